"""Tables of measured operators: signatures, files, and variants in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from modscope._read.own_files import PLAN, TABLE, is_replaceable
from modscope._virtual.time import SHIPPED_TABLES, table, table_path
from modscope._virtual.time.table import Measured, Table, TableError, from_truth, load, signature

import torch

MM = torch.ops.aten.mm.default
SUM = torch.ops.aten.sum.dim_IntList
SPLIT = (("result", 8192), ("temporary", 4096), ("temporary", -4096))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def row(
    op: Any, args: Any, kwargs: dict[str, Any], *variants: tuple[Any, int], seconds: float | None = 1e-5
) -> table.MeasuredOperator:
    return table.MeasuredOperator(*json.loads(signature(op, args, kwargs)), list(variants), seconds)


def one_row(op: Any, args: Any, *variants: tuple[Any, int]) -> Table:
    return Table({}, [row(op, args, {}, *variants)])


@pytest.mark.parametrize(
    "other",
    [(ones(4, 8, dtype=torch.bfloat16), ones(8, 8)), (ones(2, 8), ones(8, 8)), (ones(8, 4).t(), ones(8, 8))],
    ids=["type", "shape", "strides"],
)
def test_a_signature_tells_tensors_apart(other: Any) -> None:
    assert signature(MM, (ones(4, 8), ones(8, 8)), {}) != signature(MM, other, {})
    assert signature(MM, (ones(4, 8), ones(8, 8)), {}) == signature(MM, (ones(4, 8) * 3, ones(8, 8)), {})


def test_a_signature_ignores_which_number_a_scale_is_but_not_which_dimension() -> None:
    x = ones(4)
    assert signature(MM, (x, 0.3), {}) == signature(MM, (x, 0.7), {})
    assert signature(MM, (x, 0.3), {}) != signature(MM, (x, 0.0), {})
    assert signature(MM, (x, 1), {}) != signature(MM, (x, 2), {})
    assert signature(MM, (x, 1), {}) != signature(MM, (x, True), {})


def test_a_signature_counts_the_tensors_of_a_long_list() -> None:
    short, long, longer = ([ones(4)] * count for count in (8, 9, 10))
    keys = {signature(MM, (tensors,), {}) for tensors in (short, long, longer)}
    assert len(keys) == 3
    assert len(signature(MM, ([ones(4)] * 1000,), {})) < 1000


def test_keywords_may_come_in_any_order_and_devices_without_numbers() -> None:
    one = signature(MM, (), {"dtype": torch.int64, "device": torch.device("cuda", 0)})
    other = signature(MM, (), {"device": torch.device("cuda"), "dtype": torch.int64})
    assert one == other


def test_what_was_not_measured_is_not_found() -> None:
    found = one_row(SUM, (ones(4, 8), [0]), (SPLIT, 1))
    assert found.find(SUM, (ones(4, 8), [0]), {}) == Measured(SPLIT, 1e-5)
    assert found.find(SUM, (ones(4, 8), [1]), {}) is None


def test_variants_are_answered_in_their_order_and_the_last_one_goes_on() -> None:
    planned = (("kept", 512), ("result", 8192))
    found = one_row(SUM, (ones(4),), (planned, 2), (SPLIT, 1)).find(SUM, (ones(4),), {})
    assert found is not None and callable(found.events)
    assert [found.events() for _ in range(5)] == [planned, planned, SPLIT, SPLIT, SPLIT]


@pytest.mark.parametrize("name", ["table.json", "table.json.gz"])
def test_a_table_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    rows = [row(SUM, (ones(4),), {}, (SPLIT, 3), seconds=2e-5), row(MM, (ones(4),), {"out": None}, seconds=None)]
    (tmp_path / name).write_bytes(table.encode(path, {"gpu": "NVIDIA H200"}, rows))
    assert is_replaceable(path, TABLE) and not is_replaceable(path, PLAN)
    read = load(path)
    assert (len(read), read.about) == (2, {"format": 1, "gpu": "NVIDIA H200"})
    assert read.find(SUM, (ones(4),), {}) == Measured(SPLIT, 2e-5)
    assert read.find(MM, (ones(4),), {"out": None}) == Measured(None, None)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a table of operators"),
        (b"\x1f\x8b broken", "is not a table of operators"),
        (b"[1, 2]", "is not a table of operators"),
        (b'{"format": 1}', "is not a table of operators"),
        (b'{"format": 2, "operators": []}', "is a table of format 2, and this modscope reads format 1"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, [[["result"], 1]], 0.1]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, [[[["kept", 1e30]], 1]], 0.1]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, [[[["other", 1]], 1]], 0.1]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, [[[["kept", 1]], Infinity]], 0.1]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, null, "long"]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], {}, null, NaN]]}', "is damaged"),
        (b'{"format": 1, "operators": [["aten.mm.default", [], [["a", 1]], null, 0.1]]}', "is damaged"),
        (b'{"format": 1, "operators": 5}', "is damaged"),
        (b'{"format": [1], "operators": []}', "is a table of format unknown"),
        (b"[" * 200_000, "is not a table of operators"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 40, "is not a table of operators"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_what_to_do(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "table").write_bytes(content)
    with pytest.raises(TableError, match=sentence) as refused:
        load(str(tmp_path / "table"))
    assert "modscope calibrate -o FILE" in str(refused.value)


def test_a_job_s_table_follows_the_steps(tmp_path: Path) -> None:
    spec = ["float32", [4], [1]]
    workspace = [["out", 512], ["tmp", 33554432]]
    temporary = [["out", 512], ["tmp", 1024], ["tmp", -1024]]
    rows = [["aten.mm.default", [spec], {}, workspace, [1, 0]], ["aten.mm.default", [spec], {}, temporary, [1, 2]]]
    (tmp_path / "ops.json").write_text(json.dumps(rows))
    job = from_truth(str(tmp_path / "ops.json"))
    events = job.find(MM, (ones(4),), {}).events
    assert callable(events)
    beside = (("result", 512), ("temporary", 1024), ("temporary", -1024))
    assert [events() for _ in range(3)] == [(("result", 512), ("kept", 33554432)), beside, ()]
    job.begin_step(1)
    assert [events() for _ in range(3)] == [beside, beside, ()]
    assert job.find(MM, (ones(8),), {}) == Measured((), None)
    assert job.unused() == set()


def test_a_block_that_lay_where_a_result_lies_later_is_temporary(tmp_path: Path) -> None:
    events = [["out", 1024], ["tmp", 512], ["tmp", -512], ["out", -1024], ["out", 1024]]
    (tmp_path / "ops.json").write_text(json.dumps([["aten.mm.default", [], {}, events, [1]]]))
    found = from_truth(str(tmp_path / "ops.json")).find(MM, (), {}).events
    assert callable(found)
    assert found() == (
        ("temporary", 1024),
        ("temporary", 512),
        ("temporary", -512),
        ("temporary", -1024),
        ("result", 1024),
    )


def test_a_job_s_blocks_get_the_sizes_that_were_requested(tmp_path: Path) -> None:
    events = [["out", 2 << 20], ["tmp", 5 << 20], ["tmp", -(5 << 20)], ["tmp", 9 << 20]]
    (tmp_path / "ops.json").write_text(json.dumps([["aten.mm.default", [], {}, events, [1]]]))
    found = from_truth(str(tmp_path / "ops.json"), [2 << 20, (5 << 20) - 1000, 7 << 20]).find(MM, (), {}).events
    assert callable(found)
    near = (5 << 20) - 512  # in whole units of 512 bytes
    assert found() == (("result", 2 << 20), ("temporary", near), ("temporary", -near), ("temporary", 9 << 20))


def test_an_operator_in_place_is_found_by_its_other_form() -> None:
    add, add_ = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
    x, index = ones(4, 4), [ones(2, dtype=torch.int64)]
    found = one_row(add, (x, x), ((("result", 64),), 1))
    assert found.find(add_, (x, x), {}) == found.find(add, (x, x), {}) != None  # noqa: E711
    assert found.find(torch.ops.aten.mul_.Tensor, (x, x), {}) is None
    put = one_row(torch.ops.aten.index_put.default, (x, index, x, True), (SPLIT, 1))
    assert put.find(torch.ops.aten._index_put_impl_.default, (x, index, x, True, True), {}) == Measured(SPLIT, 1e-5)


def test_a_storage_is_told_by_its_size() -> None:
    tensor = torch.zeros(1000)
    assert table.spec(tensor.untyped_storage()) == table.spec(tensor.storage()) == "storage of 4000 bytes"


# ---- tables that come with modscope ----


def test_each_shipped_table_can_be_read() -> None:
    for name in SHIPPED_TABLES:
        loaded = table.load(table_path(name))
        assert loaded.about["capability"] == [9, 0] and len(loaded) > 5_000


def test_a_file_of_the_same_name_is_preferred(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h200").touch()
    assert table_path("h200") == str(tmp_path / "h200")
