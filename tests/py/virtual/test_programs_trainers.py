"""Trainers that others wrote run unmodified on a virtual GPU. A program whose package is missing is skipped."""

import importlib.util

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytestmark = [
    *needs_virtual_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("modscope._virtual.device.cuda_functions") is None,
        reason="trainers need pinned memory, storages and streams of the virtual GPU",
    ),
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("trainers")


@pytest.mark.parametrize("program", names_of("trainers"))
def test_trainer(outcomes: dict[str, str], program: str) -> None:
    if "ModuleNotFoundError" in outcomes[program] or "requires the" in outcomes[program]:
        pytest.skip(outcomes[program].splitlines()[-1])
    assert outcomes[program] == "ok", outcomes[program]
