"""Rules for the workspace of operators, against what was measured on a GPU."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from modscope._virtual.gpus import find_gpu
from modscope._virtual.rules import rules, sorting
from modscope._virtual.rules.rules import GpuAndTorch, Rules
from virtual_helpers import needs_interception, run_on_h200

import torch

H200 = GpuAndTorch((9, 0), 132, (2, 11))
TRUTH = Path(__file__).resolve().parents[4] / "shared" / "truth" / "h200"
aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def longs(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int64)


def taken(op: Any, *args: Any, gpu: GpuAndTorch = H200, **kwargs: Any) -> list[int]:
    """The sizes of the workspace that a rule takes, in their order."""
    answer = Rules(gpu).events(op, args, kwargs, None)
    events = answer() if callable(answer) else answer
    return [bytes for what, bytes in events or () if what != "result" and bytes > 0]


bf16 = torch.bfloat16
MIB = 1 << 20
MEASURED = [
    # Measured on an H200 with torch 2.11: the sizes of the workspaces that were requested.
    (aten.sum.dim_IntList, (meta(4096, 768), [0], True), [25165824, 24]),
    (aten.sum.dim_IntList, (meta(4096, 30522), [0], True), [23440896, 1908]),
    (aten.sum.dim_IntList, (meta(4096, 768, dtype=bf16), [0], True), [25165824, 24]),
    (aten.sum.dim_IntList, (meta(4096, 768), [1], True), []),
    (aten.sum.dim_IntList, (meta(8, 512, dtype=torch.bool), []), [32768]),
    (aten.mean.dim, (meta(32, 128, 10000), []), [2112, 4]),
    (aten.embedding_dense_backward, (meta(8, 512, 768), longs(8, 512), 50257, -1, False), None),
    (aten.embedding_dense_backward, (meta(1, 256, 768), longs(1, 256), 512, -1, False), []),
    (aten._softmax_backward_data, (meta(16, 8, 256, 256), meta(16, 8, 256, 256), -1, torch.float32), [33554432]),
    (aten.roll, (meta(32, 14, 14, 384), [3, 3], [1, 2]), [9633792]),
    (aten.sort, (longs(4096),), [32768]),
    (aten.cumsum, (meta(4, 1024, dtype=torch.bool), -1), [32768]),
    (aten.cumsum, (longs(8_000_000), 0), [144127]),
    (
        aten.masked_scatter_,
        (meta(32000, 512), meta(32000, 512, dtype=torch.bool), meta(32000, 512)),
        [131072000, 293631],
    ),
    (aten._foreach_norm.Scalar, ([meta(768, 768)] * 50 + [meta(768)] * 50 + [meta(50257, 768)],), [237956]),
    (aten.addmm, (meta(768), meta(4096, 768), meta(768, 768)), [33554432, 1048576]),
    (aten.mm, (meta(4096, 1536)[:, ::2], meta(768, 768)), [12582912, 33554432]),
    (aten.native_group_norm, (meta(8, 64, 256, 256), meta(64), meta(64), 8, 64, 65536, 8, 1e-5), [2048, 2048]),
]
EMBEDDING = [32768, 32768, 32768, 83455, 32768, 8, 32768, 1279, 32768, 32768, 1279, 8, 36040, 13839360]


def _name(value: Any) -> str | None:
    return str(value) if hasattr(value, "_schema") or hasattr(value, "overloads") else None


@pytest.mark.parametrize(("op", "args", "sizes"), MEASURED, ids=_name)
def test_a_rule_gives_what_was_measured(op: Any, args: Any, sizes: list[int] | None) -> None:
    op = op.default if hasattr(op, "overloads") else op
    assert taken(op, *args) == (EMBEDDING if sizes is None else sizes)


def test_a_reduction_depends_on_the_gpu() -> None:
    """Worked by hand from setReduceConfig: 768 columns, four to a thread, give blocks of 32 x 4 threads, 6 of them in a
    row. Each thread would sum 1024 rows, which is split among at most 1024 / 16 blocks, or as many as the GPU has room
    for."""
    args = (meta(4096, 768), [0], True)
    assert taken(aten.sum.dim_IntList, *args)[0] == 768 * 4 * 64 * 32 * 4
    small = GpuAndTorch((7, 5), 10, (2, 11))  # 10 processors x (1024 / 128) blocks = 80: 14 for each of the 6
    assert taken(aten.sum.dim_IntList, *args, gpu=small)[0] == 768 * 4 * 14 * 32 * 4


@pytest.mark.parametrize(
    ("version", "capability", "blas", "lt"),
    [
        ((2, 8), (9, 0), 32 * MIB, ("temporary", MIB)),
        ((2, 8), (8, 9), 8519680, ("temporary", MIB)),
        ((2, 11), (9, 0), 32 * MIB, ("kept", MIB)),
        ((2, 11), (10, 0), 8519680, ("kept", MIB)),
        ((2, 12), (10, 0), 32 * MIB, None),
        ((2, 14), (8, 0), 8519680, None),
    ],
)
def test_workspaces_follow_the_version_and_the_architecture(
    version: tuple[int, int], capability: tuple[int, int], blas: int, lt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    first = Rules(GpuAndTorch(capability, 100, version)).events(
        aten.addmm.default, (meta(8), meta(4, 8), meta(8, 8)), {}, None
    )
    assert callable(first)
    again: list[Any] = [("result", 0), lt] if lt and lt[0] == "temporary" else []
    assert list(first()) == [("result", 0), ("kept", blas), *([lt] if lt else [])]
    assert list(first()) == again, "a workspace that is kept is taken once"


def test_each_gpu_and_each_thread_takes_workspaces_of_its_own() -> None:
    def product() -> list[Any]:
        answer = known.events(aten.mm.default, (meta(4, 8), meta(8, 8)), {}, None)
        return [what for what, _ in (answer() if callable(answer) else ())]

    for _ in range(2):
        known = Rules(H200)
        assert (product(), product()) == (["result", "kept"], [])
        found: list[list[Any]] = []
        thread = threading.Thread(target=lambda: found.append(product()))
        thread.start()
        thread.join()
        assert found == [["result", "kept"]]


def test_from_torch_2_15_on_no_workspace_is_kept() -> None:
    gpu = GpuAndTorch((9, 0), 132, (2, 15))
    product = Rules(gpu).events(aten.mm.default, (meta(4, 8), meta(8, 8)), {}, None)
    assert callable(product)
    assert list(product()) == list(product()) == [("result", 0), ("temporary", 32 * MIB)]


def test_workspaces_obey_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "2048")
    assert taken(aten.addmm.default, meta(8), meta(4, 8), meta(8, 8)) == [8519680, 2 * MIB]
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")
    assert taken(aten.addmm.default, meta(8), meta(4, 8), meta(8, 8)) == [8519680]


def test_a_radix_sort_keeps_copies_only_for_more_than_one_pass() -> None:
    assert sorting.sort_bytes(1024, 8, 8) == 1
    assert sorting.sort_bytes(2401, 8, 8, bits=8) == 2048 + 1024 + 256 + 255
    assert sorting.sort_bytes(4096, 8, 8, bits=12) == 4096 + 1024 + 2 * 32768 + 256 + 255


def test_a_table_comes_before_the_rules() -> None:
    class Table:
        def find(self, op: Any, args: Any, kwargs: Any) -> Any:
            known = op is aten.sum.dim_IntList
            return SimpleNamespace(events=[("temporary", 5)] if known else None, seconds=2.0)

    table = Rules(H200, Table())
    assert table.events(aten.sum.dim_IntList, (meta(4096, 768), [0]), {}, None) == [("table", 5)]
    assert table.seconds(aten.sum.dim_IntList, (meta(4096, 768), [0]), {}, None) == 2.0
    assert table.events(aten.roll.default, (meta(8, 8), [1, 1], [0, 1]), {}, None) == [
        ("temporary", 256),
        ("result", 0),
    ]


def test_bytes_of_operators_without_a_rule_are_counted() -> None:
    known = Rules(H200)
    spec = ((4, 4), (4, 1), torch.float32)
    assert known.events(aten.add.Tensor, (), {}, spec) is None, "it is pointwise"
    assert known.events(aten.gather.default, (), {}, spec) is None
    count = known.events(aten.linalg_qr.default, (), {}, [spec, spec])
    assert callable(count) and known.bytes_without_rule() == 0
    assert list(count()) == list(count()) == []
    assert known.bytes_without_rule() == 2 * 2 * 64


def test_every_rule_names_an_operator_and_its_source() -> None:
    for name, rule in rules.all_rules().items():
        assert rule.source, name
        namespace, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        assert found is None or overload in found.overloads(), name


def test_gpus_are_made_from_gpus() -> None:
    assert rules.gpu_and_torch(find_gpu("t4"), "2.13.0+cpu") == GpuAndTorch((7, 5), 40, (2, 13))
    assert rules.gpu_and_torch(find_gpu("t4"), "2.13").threads_per_processor == 1024
    assert rules.gpu_and_torch(find_gpu("rtx4090"), "2.13").threads_per_processor == 1536
    for version in ("new", "1.13.1"):
        with pytest.raises(ValueError, match="is not a version of torch that is known: give 2.0 or newer"):
            rules.gpu_and_torch(find_gpu("t4"), version)


RECORD = """
import json
from modscope._virtual.operators import operators
from modscope._virtual.rules import matrix_products
taken = []

class Recording:
    def __getattr__(self, name):
        return getattr(_native, name)
    def virtual_empty(self, size, strides, dtype, item):
        if 0 not in size:
            taken.append((1 + sum((n - 1) * s for n, s in zip(size, strides))) * item)
        return _native.virtual_empty(size, strides, dtype, item)
    def virtual_take(self, bytes, source=0):
        taken.append(bytes)
        return _native.virtual_take(bytes, source)

def build(spec):
    if isinstance(spec, str) and spec.startswith("torch."):
        return getattr(torch, spec[6:])
    if isinstance(spec, dict):
        return torch.empty_strided([64, 64], spec["cpu"])
    if not isinstance(spec, list):
        return spec
    if len(spec) == 3 and isinstance(spec[0], str):
        return operators.make(spec[1], spec[2], getattr(torch, spec[0]))
    return [build(item) for item in spec]

for name, args, kwargs in json.loads(CALLS):
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    args, kwargs = build(args), {key: build(spec) for key, spec in kwargs.items()}
    matrix_products.forget_workspaces()
    operators._native = Recording()
    taken.clear()
    op(*args, **kwargs)
    operators._native = _native
    print(json.dumps(taken))
"""


def record(calls: list[Any]) -> list[list[int]]:
    """What each operator takes on the virtual device, results included."""
    return [json.loads(line) for line in run_on_h200(f"CALLS = {json.dumps(calls)!r}\n{RECORD}")]


OTHERS = ("convolution", "batch_norm", "attention", "rnn", "pool")


def _truth() -> list[Any]:
    """The entries of operators whose rules are tested here. Their lists were cut after eight items."""
    entries = []
    for path in sorted(TRUTH.glob("*.ops.json")):
        for name, args, kwargs, events, _ in json.loads(path.read_text()):
            if not any(other in name for other in OTHERS):
                if name == "aten.native_group_norm_backward.default":
                    args = [*args, args[2][1][1], [True, True, True]]
                entries.append((path.stem, [name, args, kwargs], events))
    return entries


def _fits(requested: int, block: int) -> bool:
    """A block is as large as the request, rounded up; a large one may be up to 1 MiB larger."""
    rounded = -(-requested // 512) * 512
    return rounded == block or (rounded > MIB and rounded <= block <= rounded + MIB)


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the measurements are not here")
@needs_interception
def test_operators_take_what_they_took_in_real_jobs() -> None:
    entries = _truth()
    assert len(entries) > 150
    wrong = []
    for (job, call, events), sizes in zip(entries, record([call for _, call, _ in entries]), strict=True):
        blocks = [bytes for _, bytes in events if bytes > 0]
        kept = [size for size in (32 * MIB, MIB) if size not in blocks]
        sizes = [size for size in sizes if size not in kept]
        if len(sizes) != len(blocks) or not all(map(_fits, sizes, blocks)):
            wrong.append((job, call, sizes, blocks))
    assert not wrong, f"{len(wrong)} of {len(entries)}: {wrong[:3]}"


@needs_interception
def test_copies_between_devices_go_through_a_contiguous_one() -> None:
    tensor, transposed = ["float32", [64, 64], [64, 1]], ["float32", [64, 64], [1, 64]]
    pairs = ((tensor, [64, 1]), (transposed, [64, 1]), (transposed, [1, 64]))
    calls = [["aten.copy_.default", [to, {"cpu": of}], {}] for to, of in pairs]
    assert record(calls) == [[], [16384], []]


@needs_interception
def test_results_are_made_in_the_kernel_s_order() -> None:
    tensor = ["float32", [8, 512], [512, 1]]
    calls = [
        ["aten.native_dropout.default", [tensor, 0.1, True], {}],
        ["aten.binary_cross_entropy.default", [tensor, tensor], {}],
        ["aten.log_sigmoid_forward.default", [tensor], {}],
        ["aten._fused_rms_norm.default", [tensor, [512], ["float32", [512], [1]], 1e-5], {}],
        ["aten.mse_loss.default", [tensor, tensor], {}],
        [
            "aten._ctc_loss.default",
            [["float32", [249, 8, 32], [256, 32, 1]], ["int64", [8, 30], [30, 1]], [9], [0]],
            {},
        ],
    ]
    ctc = [64, 64, 64, 8 * 249 * 61 * 4, 32]
    wanted = [[4096, 16384], [16384, 4], [16384], [16384, 32], [4, 16384], ctc]
    if len(torch.ops.aten._fused_rms_norm.default._schema.returns) == 1:  # before torch 2.9 it was another operator
        del calls[3], wanted[3]
    assert record(calls) == wanted


# ---- pooling ----


def pooled(op: Any, *args: Any) -> list[int]:
    """The workspace that the rule of an operator takes for results as torch describes them."""
    specs = op(*args)
    listed = [(t.shape, t.stride(), t.dtype) for t in (specs if isinstance(specs, tuple) else (specs,))]
    events: Any = Rules(H200).events(op, args, {}, listed if len(listed) > 1 else listed[0])
    return [bytes for what, bytes in events or () if what == "temporary"]


def images(*shape: int, last: bool = False) -> torch.Tensor:
    return torch.empty(shape, device="meta").to(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_dense_images_are_pooled_without_copies() -> None:
    """Measured on an H200, in both layouts."""
    for last in (False, True):
        x = images(8, 30, 56, 56, last=last)
        out, indices = aten.max_pool2d_with_indices.default(x, [2, 2])
        window = ([2, 2], [2, 2], [0, 0])
        assert pooled(aten.max_pool2d_with_indices.default, x, [2, 2]) == []
        assert pooled(aten.max_pool2d_with_indices_backward.default, out, x, *window, [1, 1], False, indices) == []
        assert pooled(aten.avg_pool2d.default, x, [2, 2]) == pooled(aten._adaptive_avg_pool2d.default, x, [7, 7]) == []


def test_what_is_not_dense_in_the_input_s_layout_is_copied() -> None:
    x = images(8, 60, 56, 56)[:, ::2]
    assert pooled(aten.max_pool2d_with_indices.default, x, [2, 2]) == [8 * 30 * 56 * 56 * 4]
    dense = images(8, 32, 56, 56, last=True)
    out, indices = aten.max_pool2d_with_indices.default(dense, [2, 2])
    grad = images(8, 32, 28, 28)
    args = (grad, dense, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    assert pooled(aten.max_pool2d_with_indices_backward.default, *args) == [8 * 32 * 28 * 28 * 4]
    args = (grad, dense, [2, 2], [2, 2], [0, 0], False, True, None)
    assert pooled(aten.avg_pool2d_backward.default, *args) == [8 * 32 * 28 * 28 * 4]
