"""Programs run unmodified on a virtual GPU: training, operators, trainers and models of others, and what is read from the
GPU. Those of a file run in one process; a file whose packages are missing is skipped."""

import functools
import importlib.util
from collections.abc import Iterator

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all
from virtual_helpers import run

pytestmark = needs_virtual_gpu

FILES = {"training": False, "values": False, "operators": False, "models": True, "detection": True, "trainers": True}
"""Whether the programs of the file are slow."""

outcomes = functools.cache(run_all)


def programs() -> Iterator[object]:
    for file, is_slow in FILES.items():
        marks = [pytest.mark.slow] if is_slow else []
        yield from (pytest.param(file, name, marks=marks, id=f"{file}-{name}") for name in names_of(file))


@functools.cache
def missing(file: str) -> str:
    if file == "models" and not importlib.util.find_spec("transformers"):
        return "transformers is not installed"
    if file == "detection" and not importlib.util.find_spec("torchvision"):
        return "torchvision is not installed"
    if file == "detection" and not importlib.import_module("torchvision").extension._has_ops():
        return "torchvision's operators cannot be loaded with this torch"
    return ""


@pytest.mark.parametrize("file, program", list(programs()))
def test_program(file: str, program: str) -> None:
    if reason := missing(file):
        pytest.skip(reason)
    outcome = outcomes(file)[program]
    if file == "trainers" and ("ModuleNotFoundError" in outcome or "requires the" in outcome):
        pytest.skip(outcome.splitlines()[-1])
    assert outcome == "ok", outcome


@pytest.mark.slow
def test_results_of_torch_s_samples_are_as_on_the_cpu() -> None:
    assert run_all("torch_samples") == {"results_are_as_on_the_cpu": "ok"}


def test_operators_of_torchvision_that_were_loaded_before_run_too() -> None:
    if reason := missing("detection"):
        pytest.skip(reason)
    run(
        """
        import torchvision
        assert torchvision.ops.nms(torch.rand(10, 4).cuda(), torch.rand(10).cuda(), 0.5).numel() == 5
        device.remove()
        assert torchvision.ops.nms(torch.tensor([[0.0, 0, 1, 1]]), torch.ones(1), 0.5).tolist() == [0]
        """
    )
