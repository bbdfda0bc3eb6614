"""``modscope batch`` on captures: what it prints, and what it refuses."""

from __future__ import annotations

import json
import pathlib
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fit_runs import train
from modscope.__main__ import main
from modscope._cli import batch as _commands_batch
from modscope._fit import batch as _batch
from modscope._fit.job import Job, Moment, Outcome
from modscope._fit.two_captures import largest_that
from modscope._read.summary import Report
from modscope._show.terminal import Screen
from modscope._virtual.gpus import Gpu


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    train(tmp_path / "small.msc", batch=128)
    train(tmp_path / "large.msc", batch=256)
    return tmp_path


def tiny(capacity: int) -> Gpu:
    return Gpu("tiny", "Tiny GPU", capacity, (9, 0), 1, context=0)


def test_the_largest_batch_and_the_curve_are_those_of_real_runs(folder: pathlib.Path) -> None:
    train(folder / "300.msc", batch=300)
    needed = Job("300.msc").replay().reserved
    made = _batch.largest_batch(Job("small.msc"), Job("large.msc"), [tiny(needed)], (128, 256))
    (row,) = made["gpus"]
    assert (row["largest"], row["reserved"], row["is_far"]) == (300, needed, False)
    points = {point["batch"]: point for point in made["curve"]}
    assert list(points) == [75, 128, 150, 225, 256, 300, 301]
    assert [batch for batch, point in points.items() if point["is_known"]] == [128, 256]
    assert [batch for batch, point in points.items() if not point["fits"]] == [301]
    train(folder / "225.msc", batch=225)
    assert points[225]["reserved"] == Job("225.msc").replay().reserved
    assert points[256]["reserved"] == Job("large.msc").replay().reserved


def test_a_gpu_that_is_too_small_for_any_batch(folder: pathlib.Path) -> None:
    made = _batch.largest_batch(Job("small.msc"), Job("large.msc"), [tiny(1000)], (128, 256))
    assert made["gpus"][0]["largest"] is None and [point["batch"] for point in made["curve"]] == [1, 128, 256]


def test_the_text(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "small.msc", "large.msc", "--gpu", "1GiB", "--batches", "128,256"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("The largest batch that fits GPU of 1GiB is ") and "cpu allocates" in out[0]
    assert out[3].split()[:2] == ["batch", "allocated"] and any(line.endswith("captured") for line in out)
    assert sum("the largest that fits" in line for line in out) == sum("does not fit" in line for line in out) == 1
    assert all(len(line) <= 80 and line == line.rstrip() for line in out)
    assert "no caching allocator" in " ".join(out) and "to be sure" in " ".join(out)
    assert main(["batch", "small.msc", "large.msc", "--batches", "128,256"]) == 0
    assert capsys.readouterr().out.startswith("GPU ")
    assert main(["batch", "small.msc", "large.msc", "--batches", "128,256", "--gpu", "t4,h100", "--json"]) == 0
    assert [row["gpu"] for row in json.loads(capsys.readouterr().out)["gpus"]] == ["t4", "h100"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["small.msc", "large.msc"], 1, "give them with --batches"),
        (["small.msc", "large.msc", "--batches", "4,12"], 1, "2 times as large"),
        (["small.msc"], 1, "small.msc is one capture: give captures of one program with a small and a larger batch"),
        (["small.msc", "absent.msc"], 1, "There is no file absent.msc"),
        (["small.msc", "large.msc", "--batches", "8,4"], 2, "not two batches"),
        (["small.msc", "large.msc", "--gpu", ","], 2, "needs the name of a GPU"),
        (["small.msc", "large.msc", "more.msc"], 2, "unrecognized arguments: more.msc"),
        (["small.msc", "large.msc", "--device", "cuda:7"], 1, "cuda:7"),
        ([], 2, "no capture is given. Use: modscope batch FILE, or modscope batch script.py"),
        (["train.py", "--gpu", "t4"], 1, "Write {} for the batch in the arguments of the script"),
        (["train.py", "--", "{}"], 1, "give one, such as --gpu rtx4090"),
        (["train.py", "--gpu", "t4", "--", "{}"], 2, "There is no script train.py"),
        (["train.py", "--gpu", "t4", "--steps", "0", "--", "{}"], 2, "not a number of steps"),
    ],
)
def test_bad_arguments(
    words: list[str], status: int, text: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = main(["batch", *words])
    except SystemExit as exit:
        ended = exit.code
    assert ended == status and text in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("largest", [0, 1, 7, 8, 9, 100, 127, 128, 1000])
def test_the_search_for_the_largest(largest: int) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= largest

    assert largest_that(fits, 8, 128) == (min(largest, 128) or None)
    assert len(tried) < 14 and max(tried) <= 128


def _search(reserved: Callable[[int], int], gpu: Gpu, first: tuple[int, int]) -> Report:
    """Search the largest batch of a script that reserves so much."""

    class Predicted:
        died, whole_steps, device, caching = False, 3, "cuda:0", True
        epoch = None
        is_lower_bound = has_damaged_notes = False
        capture = SimpleNamespace(info={}, end={}, main_device="cuda:0")

        def __init__(self, batch: int) -> None:
            self._needed = reserved(batch)

        def may_reserve(self, gpu: Gpu) -> int:
            return gpu.capacity

        def replay(self, capacity: int) -> Outcome:
            at = Moment(1, "forward", "Net")
            return Outcome(self._needed, self._needed, at, self._needed <= capacity, 0, None, 0)

    return _batch.search(Predicted, gpu, first, 8)  # type: ignore[arg-type]


def _fits(reserved: Callable[[int], int], capacity: int, first: tuple[int, int]) -> dict[int, bool]:
    return {point["batch"]: point["fits"] for point in _search(reserved, tiny(capacity), first)["curve"]}


def test_the_largest_batch_is_too_close_to_tell() -> None:
    """It leaves 100 MiB, and what a context takes is not sure by 192 MiB."""
    gpu = Gpu("some", "Some GPU", (512 + 8 * 200 + 100) << 20, (9, 0), 1)
    made = {**_search(lambda batch: batch * 200 << 20, gpu, (4, 8)), "device": "cuda:0", "script": ["train.py"]}
    (row,) = made["gpus"]
    assert (row["largest"], row["largest_for_sure"], row["verdict"]) == (8, 4, "too close to tell")
    lines = _commands_batch.text(made, Screen(wraps=False), Namespace())
    assert (
        "On Some GPU a batch of 4 fits for sure; a batch of 8 is too close to tell: 100.00 MiB to spare. That may be "
        "off by 192.00 MiB: a CUDA context takes 0.25 to 0.69 GiB. A run on the GPU would settle it (modscope predict "
        "--check)." in lines
    )
    far = Gpu("some", "Some GPU", (512 + 8 * 200 + 199) << 20, (9, 0), 1)
    (row,) = _search(lambda batch: batch * 200 << 20, far, (4, 8))["gpus"]
    assert (row["largest"], row["largest_for_sure"], row["verdict"]) == (8, 8, "fits")


@pytest.mark.parametrize("is_far, of_another", [(True, False), (False, True)])
def test_no_batch_is_sure_of_another_generation_or_far_from_those_captured(monkeypatch, is_far, of_another) -> None:
    monkeypatch.setattr(_batch, "other_kernels", lambda capture, gpu: object() if of_another else None)
    gpu = Gpu("some", "Some GPU", 1 << 30, (9, 0), 1)
    job = SimpleNamespace(capture=SimpleNamespace(info={}, end={}, main_device="cuda:0"), device="cuda:0")
    made = _batch._judged(job, gpu, 1 << 30, 8, 1 << 29, is_far)  # type: ignore[arg-type]
    assert (made["largest"], made["largest_for_sure"]) == (8, None)


@pytest.mark.parametrize("largest", [1, 8, 9, 100, 5000])
def test_a_script_is_predicted_a_few_times(largest: int) -> None:
    def reserved(batch: int) -> int:
        return 5 << 20 if batch < 6 else (3 << 20) + (batch << 18)

    capacity = reserved(largest) if largest > 1 else (5 << 20) - 1
    fits = _fits(reserved, capacity, (4, 8))
    assert len(fits) <= 8
    if largest > 1:
        assert fits[largest] and not fits[largest + 1]
    else:
        assert fits == {1: False, 4: False, 8: False}
