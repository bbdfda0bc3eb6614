"""By how much figures may be off, which of the three answers follows, and in which words."""

from __future__ import annotations

import json
import pathlib

import capture_helpers
import modscope
import pytest
from modscope._virtual import certainty
from modscope._virtual.certainty import FITS, NOT, OPEN, Certainty, Verdict, certainty_of, judge, other_kernels
from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.outside import libraries_of, outside_of, said_of

MIB, GIB = 1 << 20, 1 << 30
RTX4090, H200 = find_gpu("rtx4090"), find_gpu("h200")


def capture(path: pathlib.Path, doubts: str = "", **info: str) -> modscope.Capture:
    c = capture_helpers.Capture(("cpu", "cuda:0"), program="train.py", pid="1", torch="2.13.0", **info)
    c.add(1 * GIB, 1)
    path.write_bytes(c.end(how="finished", **({"doubts": doubts} if doubts else {})))
    return modscope.load(path)


def capture_of_end(path: pathlib.Path, **end: str) -> modscope.Capture:
    c = capture_helpers.Capture(("cpu", "cuda:0"), program="train.py", pid="1", torch="2.13.0")
    path.write_bytes(c.end(how="finished", **end))
    return modscope.load(path)


def sure(gpu: Gpu, workspaces: int = 0, communicators: int = 0, **doubts: int) -> Certainty:
    return Certainty(gpu, doubts, workspaces, communicators)


# ---- by how much ----


def test_without_doubts_only_the_context_is_not_sure(tmp_path: pathlib.Path) -> None:
    found = certainty_of(RTX4090, capture(tmp_path / "x.msc"), "cuda:0", 20 * GIB)
    assert (found.margin, found.margin_above) == (192 * MIB, 256 * MIB) and not found.doubts


def test_what_cudnn_takes_is_a_part_of_the_peak_or_the_largest_workspace(tmp_path: pathlib.Path) -> None:
    of = capture(tmp_path / "x.msc", json.dumps({"convolution": GIB + 600 * MIB}))
    assert certainty_of(RTX4090, of, "cuda:0", 20 * GIB).workspaces == 600 * MIB
    assert certainty_of(RTX4090, of, "cuda:0", 50 * GIB).workspaces == GIB


def test_what_was_measured_is_sure_on_such_a_gpu(tmp_path: pathlib.Path) -> None:
    """Which GPU one is that is given by its memory is not known."""
    measured = capture(tmp_path / "measured.msc", json.dumps({"convolution": 9 * GIB, "recurrent": 1, "batch_norm": 1}))
    similar = capture(tmp_path / "similar.msc", json.dumps({"similar_convolution": GIB}))
    assert [certainty_of(gpu, measured, "cuda:0", GIB).workspaces for gpu in (H200, find_gpu("141GiB"))] == [0, 8 * GIB]
    assert certainty_of(H200, similar, "cuda:0", 50 * GIB).workspaces == GIB


def test_operators_without_a_rule_count_where_they_raise_the_peak(tmp_path: pathlib.Path) -> None:
    low = capture(tmp_path / "low.msc", '{"without_rule": 1000, "selected": 5}')
    assert certainty_of(RTX4090, low, "cuda:0", 20 * GIB).workspaces == 0
    high = capture(tmp_path / "high.msc", json.dumps({"without_rule": 3 * GIB}))
    assert certainty_of(RTX4090, high, "cuda:0", 20 * GIB).workspaces == 2 * GIB


def test_half_of_what_nccl_takes_is_not_sure(tmp_path: pathlib.Path) -> None:
    found = certainty_of(RTX4090, capture(tmp_path / "x.msc"), "cuda:0", GIB, 600 * MIB)
    assert found.margin == 300 * MIB + 192 * MIB


@pytest.mark.parametrize("text", ["[", "[1]", '{"convolution": "x"}', "7"])
def test_damaged_doubts_are_none(text: str, tmp_path: pathlib.Path) -> None:
    assert certainty_of(RTX4090, capture(tmp_path / "x.msc", text), "cuda:0", GIB).workspaces == 0


# ---- the three answers ----


@pytest.mark.parametrize(("spare", "answer"), [(200 * MIB, FITS), (100 * MIB, OPEN)])
def test_a_job_that_fits_has_more_to_spare_than_the_margin(spare: int, answer: str) -> None:
    found = judge(sure(RTX4090), spare, 20 * GIB, True, 0, lambda capacity: pytest.fail("nothing is given back"))
    assert (found.answer, found.margin, bool(found.why)) == (answer, 192 * MIB, answer == OPEN)


@pytest.mark.parametrize(("needed", "answer"), [(20 * GIB + 300 * MIB, NOT), (20 * GIB + 200 * MIB, OPEN)])
def test_a_job_that_does_not_fit_would_not_with_the_margin_either(needed: int, answer: str) -> None:
    found = judge(sure(RTX4090), 20 * GIB - needed, 20 * GIB, False, 0, lambda capacity: needed <= capacity)
    assert (found.answer, found.margin) == (answer, 256 * MIB)


@pytest.mark.parametrize(("least", "answer"), [(19 * GIB, FITS), (20 * GIB - 1, OPEN)])
def test_a_job_that_gives_memory_back_must_fit_with_less(least: int, answer: str) -> None:
    assert judge(sure(RTX4090), GIB, 20 * GIB, True, 3, lambda capacity: least <= capacity).answer == answer


def test_the_reasons_of_an_open_verdict() -> None:
    def why(of: Certainty) -> str:
        return judge(of, 0, GIB, True, 0, lambda capacity: True).why

    foreign = why(sure(RTX4090, 500 * MIB, convolution=400 * MIB, batch_norm=0))
    assert foreign.startswith(
        "the workspaces of convolutions and batch norms were measured on an H200 only (500.00 MiB more or less) and a "
        "CUDA context takes 0.25 to 0.69 GiB. A run on the GPU would settle it (modscope predict --check), or a table "
    )
    assert why(sure(H200, 5 * MIB, similar_convolution=0)).startswith(
        "the workspaces of some convolutions follow from similar ones that were measured (5.00 MiB more or less) and "
    )
    assert "measured on an H200 only" in why(sure(find_gpu("24GiB"), 5, convolution=0)), "it could be any GPU"
    assert why(sure(RTX4090, 1, selected=1)).endswith("predict with --selected 0 and with --selected 1.")
    assert "operators have no rule for their workspace" in why(sure(RTX4090, 1, without_rule=1))
    assert "NCCL takes 300.00 MiB more or less" in why(sure(RTX4090, 0, 300 * MIB))
    assert why(sure(RTX4090)).endswith("would settle it (modscope predict --check).")


def test_an_open_verdict_in_words() -> None:
    verdict = Verdict(OPEN, 600 * MIB, "something. Do this.")
    assert certainty.describe(verdict, 94 * MIB) == (
        "too close to tell: 94.00 MiB to spare. That may be off by 600.00 MiB: something. Do this."
    )
    assert certainty.describe(verdict, -94 * MIB).startswith("too close to tell: short by 94.00 MiB. That ")
    again = certainty.describe_retries(6, 2, 30 * GIB)
    assert "94.00 MiB to spare, only because the allocator gives memory back 2 times in each step; with more " in (
        certainty.describe(verdict, 94 * MIB, again)
    )
    assert certainty.in_table(verdict) == "too close to tell (600.00 MiB more or less)"


@pytest.mark.parametrize(
    ("per_step", "words"), [(1, "once in each step"), (0, "3 times, before the last step"), (None, "3 times")]
)
def test_how_often_memory_is_given_back(per_step: int | None, words: str) -> None:
    assert certainty.count_of_retries(3, per_step) == f"the allocator gives memory back {words}"


# ---- where workspaces come from ----


def test_workspaces_by_source(tmp_path: pathlib.Path) -> None:
    said = certainty.workspaces_as_text([(9, 9), (1, 2), (3 * MIB, 4), (0, 5), (0, 0)], 70)
    of = capture_of_end(tmp_path / "x.msc", workspaces=said)
    found = certainty.workspaces_of(of, "cuda:0")
    assert {source: tuple(each.values()) for source, each in found.items()} == {
        "exact rule": (1, 2), "library": (3 * MIB, 4), "table": (0, 5), "formula": (0, 0), "none": (0, 70)
    }  # fmt: skip
    assert certainty.describe_workspaces(found) == (
        "Workspaces at the peak whose sizes are not exact: 3.00 MiB by cuDNN's plans."
    )
    found["none"]["at_peak"] = MIB
    assert certainty.describe_workspaces(found).endswith("3.00 MiB by cuDNN's plans and 1.00 MiB by no rule (at most).")
    assert not certainty.describe_workspaces({})


@pytest.mark.parametrize("text", ["", "[", "[1]", '{"table": 1}', "{}"])
def test_damaged_workspaces_are_none(text: str, tmp_path: pathlib.Path) -> None:
    assert certainty.workspaces_of(capture_of_end(tmp_path / "x.msc", workspaces=text), "cuda:0") == {}


# ---- what nvidia-smi shows ----


def test_libraries_are_found_by_the_operators_that_they_run() -> None:
    found = libraries_of(["aten.addmm.out", "aten.convolution.default", "aten.linalg_qr.default", "prims.x"], False)
    assert found == ["cublas", "cudnn", "cusolver"]
    assert libraries_of(["aten._fft_r2c.default", "aten.linalg_vector_norm.default", "aten"], True) == [
        "cuda_graphs", "cufft"
    ]  # fmt: skip


def test_what_nvidia_smi_showed_on_an_h200(tmp_path: pathlib.Path) -> None:
    """The parts as they were measured; what torch reserved was 318 MiB, and nvidia-smi showed 2,066 with NCCL's 880."""
    used = "cublas,cudnn,cufft,cusolver,cuda_graphs"
    of = capture_of_end(tmp_path / "x.msc", libraries=used, communicator_bytes=str(880 * MIB))
    report = outside_of(H200, of).report(318 * MIB)
    assert report["about"] == sum(report["parts"].values()) == (318 + 877 + 880) * MIB
    assert report["low"] < 2066 * MIB < report["high"] and abs(report["about"] - 2066 * MIB) < 10 * MIB
    assert (report["parts"]["context"], report["parts"]["cusolver"]) == (527 * MIB, 96 * MIB)


def test_what_nvidia_smi_shows_on_a_gpu_that_was_not_measured(tmp_path: pathlib.Path) -> None:
    """The context of the table is divided, and everything that was seen elsewhere is within the range."""
    found = outside_of(RTX4090, capture_of_end(tmp_path / "x.msc", libraries="cublas,cudnn"))
    assert list(found.parts) == ["context", "kernels", "cublas", "cudnn"]
    assert 0 <= RTX4090.context - sum(found.parts.values()) < 4
    assert found.low <= 256 * MIB and 702 * MIB <= found.high
    assert said_of(found.report(20 * GIB)) == "nvidia-smi will show about 20.5 GiB (20.2 to 20.7 GiB)"
    without = outside_of(RTX4090, capture_of_end(tmp_path / "y.msc"))
    assert list(without.parts) == ["context", "kernels"] and without.high < found.high


# ---- another GPU ----


A100 = {"source": "predicted", "gpu": "a100", "gpu_title": "NVIDIA A100-SXM4-80GB", "gpu_capability": "8.0"}


@pytest.mark.parametrize(("gpu", "differs"), [("t4", True), ("rtx4090", True), ("a30", False), ("24GiB", False)])
def test_a_gpu_of_another_generation_runs_other_kernels(gpu: str, differs: bool, tmp_path: pathlib.Path) -> None:
    assert bool(other_kernels(capture(tmp_path / "x.msc", **A100), find_gpu(gpu))) == differs


def test_other_kernels_in_words(tmp_path: pathlib.Path) -> None:
    found = other_kernels(capture(tmp_path / "x.msc", arguments="--batch\n8", **A100), find_gpu("t4"))
    assert found is not None and found.sentence == (
        "Predicted on A100-SXM4-80GB; T4 runs other kernels, so this may be wrong:  "
        "modscope predict --gpu t4 train.py --batch 8"
    )
    ranks = other_kernels(capture(tmp_path / "r.msc", world="8", rank="0", **A100), find_gpu("t4"))
    assert ranks is not None and ranks.command == "modscope predict --gpu t4 --ranks 8 train.py"


def test_a_recording_says_on_which_gpu_it_was_made(tmp_path: pathlib.Path) -> None:
    """By its capability, or by its title where an older modscope recorded it."""
    recorded = capture(tmp_path / "new.msc", gpu_title="NVIDIA A100X", gpu_capability="8.0")
    older = capture(tmp_path / "old.msc", gpu_title="NVIDIA A100-SXM4-80GB")
    for each, label in ((recorded, "A100X"), (older, "A100-SXM4-80GB")):
        found = other_kernels(each, find_gpu("t4"))
        assert found is not None and found.made == f"recorded on {label}"
    assert other_kernels(capture(tmp_path / "unknown.msc"), find_gpu("t4")) is None
    assert other_kernels(capture(tmp_path / "odd.msc", gpu_capability="8.x"), find_gpu("t4")) is None
