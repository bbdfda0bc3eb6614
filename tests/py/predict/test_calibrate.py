"""``modscope calibrate``: what it makes of the allocator's trace, its command line, and on a GPU the table itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import warm_python
from helpers import INTERCEPTION
from modscope._cli import calibrate as _calibrate
from modscope._predict import calibrate_measure
from modscope._predict.calibrate_measure import Count, MeasuredCall, Measuring, TraceEntry, events_of_calls
from modscope._predict.calibrate_sweep import SweepCase, cases
from modscope._virtual.time import table

import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def alloc(address: int, bytes: int) -> TraceEntry:
    return TraceEntry(True, address, bytes)


def free(address: int) -> TraceEntry:
    return TraceEntry(False, address, 0)


def call(begin: tuple[int, int], end: tuple[int, int], *results: int) -> MeasuredCall:
    return MeasuredCall("key", Count(*begin), Count(*end), frozenset(results), None)


def test_blocks_of_a_call_are_temporary_results_or_kept() -> None:
    trace = [alloc(1, 100), alloc(2, 200), free(2), alloc(3, 300)]
    assert events_of_calls([call((0, 0), (3, 1), 3)], Count(0, 0), trace) == [
        (("kept", 100), ("temporary", 200), ("temporary", -200), ("result", 300))
    ]


def test_what_happens_between_calls_belongs_to_none() -> None:
    trace = [alloc(1, 100), alloc(2, 200), free(1), alloc(3, 300), free(2), free(3), alloc(4, 400)]
    calls = [call((11, 5), (12, 5), 2), call((12, 6), (13, 6), 3), call((13, 8), (14, 8), 4)]
    events = events_of_calls(calls, Count(10, 5), trace)
    assert events == [(("result", 200),), (("result", 300),), (("result", 400),)]


def test_a_block_of_before_that_a_call_frees_is_left_out() -> None:
    trace = [alloc(1, 100), free(1), alloc(1, 50)]
    assert events_of_calls([call((1, 0), (2, 1), 1)], Count(0, 0), trace) == [(("result", 50),)]


def test_an_address_that_is_used_twice_in_a_call_is_two_blocks() -> None:
    trace = [alloc(1, 100), free(1), alloc(1, 40)]
    assert events_of_calls([call((0, 0), (2, 1), 1)], Count(0, 0), trace) == [
        (("temporary", 100), ("temporary", -100), ("result", 40))
    ]


class Numbers:
    """A meter whose every operator takes a temporary of ``sizes``' next bytes, and a tenth of a second more each
    time."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._trace: list[TraceEntry] = []
        self._count = Count(0, 0)
        self._seconds = 0.0

    def start_trace(self) -> Count:
        self._trace = []
        return self._count

    def take_trace(self) -> list[TraceEntry]:
        return self._trace

    def count(self) -> Count:
        return self._count

    def time_begins(self) -> float:
        self._seconds += 0.1
        return self._seconds

    def time_ends(self, timing: float) -> None:
        self._trace += [alloc(7, self._sizes.pop(0)), free(7)]
        self._count = Count(self._count.allocated + 1, self._count.freed + 1)

    def seconds(self, timing: float) -> float:
        return timing


def measured(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], calls_at_once: int = 100
) -> dict[str, tuple[table.Variants, float | None]]:
    """Rows of relu, which runs once for each size. The CPU stands for the GPU."""
    monkeypatch.setattr(calibrate_measure, "_addresses", lambda values: frozenset({1}))
    monkeypatch.setattr(calibrate_measure, "_CALLS_AT_ONCE", calls_at_once)
    measuring = Measuring(Numbers(sizes))
    x = torch.ones(4)
    with measuring:
        while sizes:
            torch.relu(x)
    return {op: (variants, seconds) for op, _, _, variants, seconds in measuring.rows()}


def temporary(bytes: int) -> table.MeasuredEvents:
    return (("temporary", bytes), ("temporary", -bytes))


@pytest.mark.parametrize("calls_at_once", [1, 2, 100])
def test_calls_that_take_the_same_are_one_variant(monkeypatch: pytest.MonkeyPatch, calls_at_once: int) -> None:
    rows = measured(monkeypatch, [512, 512, 64, 512], calls_at_once)
    assert rows == {"aten.relu.default": ([(temporary(512), 2), (temporary(64), 1), (temporary(512), 1)], 0.25)}


def test_the_last_variant_is_kept_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    [(variants, _)] = measured(monkeypatch, [512 * (i + 1) for i in range(40)]).values()
    assert len(variants) == 16
    assert variants[0] == (temporary(512), 1) and variants[-1] == (temporary(512 * 40), 1)


def test_backward_s_operators_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_measure, "_addresses", lambda values: frozenset({1}))
    measuring = Measuring(Numbers([512] * 100))
    x = torch.ones(4, requires_grad=True)
    with measuring:
        torch.tanh(x).sum().backward()
    assert {"aten.tanh.default", "aten.tanh_backward.default"} <= {row[0] for row in measuring.rows()}


def test_a_product_s_workspace_is_left_to_the_rules() -> None:
    known, mm = calibrate_measure._known_variants, "aten.mm.default"
    assert known(mm, [((("result", 64), ("kept", 33554432)), 1), ((("result", 64),), 5)]) == []
    assert known(mm, [((("kept", 512), *temporary(64), ("result", 64)), 1)]) == [((*temporary(64), ("result", 64)), 1)]


def test_a_sweep_goes_on_after_a_case_that_cannot_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_measure, "_addresses", lambda values: frozenset({1}))

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nMore text")

    measuring = Measuring(Numbers([512] * 100))
    x = torch.ones(4)
    some = [SweepCase("large", lambda: fail), SweepCase("relu", lambda: lambda: torch.relu(x))]
    assert _calibrate.sweep(measuring, some, float("inf")) == (1, 1, True)
    assert _calibrate.sweep(measuring, some, 0.0) == (0, 0, False)
    assert [row[0] for row in measuring.rows()] == ["aten.relu.default"]
    assert capsys.readouterr().err == "[modscope] large could not run: CUDA out of memory.\n"


def test_the_cases_are_the_same_each_time_and_have_names_of_their_own() -> None:
    names = [case.name for case in cases()]
    assert names == [case.name for case in cases()]
    assert len(set(names)) == len(names) > 1000


# ---- the command ----


def calibrate(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-m", "modscope", "calibrate", *arguments], folder)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    ran = calibrate(folder=tmp_path)
    assert ran.returncode == 1
    assert "torch finds none here" in ran.stderr and len(ran.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence", "status"),
    [
        (["absent.py"], "There is no script absent.py", 2),
        (["-o", "there.json"], "there.json exists already", 1),
        (["-o", "no/folder/x.json"], "There is no folder", 1),
        (["--steps", "0"], "is not a number of steps: give 1 or more", 2),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: list[str], sentence: str, status: int) -> None:
    (tmp_path / "there.json").write_text("{}")
    ran = calibrate(*arguments, folder=tmp_path)
    assert (ran.returncode, sentence in ran.stderr) == (status, True), ran.stderr
    assert (tmp_path / "there.json").read_text() == "{}"


def test_a_script_is_run_with_its_arguments_until_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate_measure, "_addresses", lambda values: frozenset({1}))
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import sys, torch
            assert __name__ == "__main__"
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters())
            for i in range(100):
                model(torch.ones(2, 4)).sum().backward()
                open(sys.argv[1], "a").write("step ")
                optimizer.step()
        """)
    )
    before = sys.argv, sys.path[:]
    measuring = Measuring(Numbers([512] * 10000))
    assert _calibrate.run_script(measuring, [str(tmp_path / "train.py"), str(tmp_path / "steps")], 2) == 2
    assert (tmp_path / "steps").read_text() == "step step "
    assert (sys.argv, sys.path) == before
    assert any(row[0] == "aten.addmm.default" for row in measuring.rows())


@needs_gpu
def test_a_script_on_a_gpu_gives_a_table_with_its_temporaries(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import torch
            model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048)).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            while True:
                model(torch.ones(4096, 2048, device="cuda")).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        """)
    )
    ran = calibrate("-o", "train.json.gz", "--steps", "3", "train.py", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    read = table.load(str(tmp_path / "train.json.gz"))
    assert read.about["gpu"] == torch.cuda.get_device_name() and read.about["torch"] == torch.__version__
    x = torch.empty(4096, 2048, device="cuda")
    product = read.find(torch.ops.aten.addmm.default, (x[0], x, torch.empty(2048, 2048, device="cuda").t()), {})
    assert product is not None and product.events is None  # its workspace is the rules' matter
    assert product.seconds is not None and 1e-5 < product.seconds < 1e-1
    reduced = read.find(torch.ops.aten.mean.default, (x,), {})
    assert reduced is not None and isinstance(reduced.events, tuple)
    assert [what for what, _ in reduced.events].count("result") == 1
    assert ("result", 4) in reduced.events  # the bytes that were requested, not the block's
    assert sum(bytes for what, bytes in reduced.events if what == "temporary") == 0


@needs_gpu
def test_the_sweep_runs_on_a_gpu(tmp_path: Path) -> None:
    ran = calibrate("-o", "sweep.json.gz", "--seconds", "20", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(table.load(str(tmp_path / "sweep.json.gz"))) > 100
    assert "0 could not run" in ran.stderr


@pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
@pytest.mark.slow
def test_cases_of_the_sweep_run() -> None:
    """Every 40th, on the virtual GPU. It lacks some operators that depend on values."""
    program = """
        from modscope._virtual.device.device import VirtualDevice
        from modscope._virtual.gpus import find_gpu
        device = VirtualDevice(find_gpu("h100"), "2.11")
        device.install()
        from modscope._predict.calibrate_sweep import cases
        ran = 0
        for case in list(cases())[::40]:
            if not any(word in case.name for word in ("GRU", "unique", "masked_select")):
                case.make()()
                ran += 1
        print(ran)
        device.remove()
    """
    ran = warm_python.run(["-W", "ignore", "-c", textwrap.dedent(program)])
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 50
