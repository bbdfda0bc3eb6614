"""Operators that programs use run on a virtual GPU."""

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytestmark = needs_virtual_gpu


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("operators")


@pytest.mark.parametrize("program", names_of("operators"))
def test_operator(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]


@pytest.mark.slow
def test_results_of_torch_s_samples_are_as_on_the_cpu() -> None:
    assert run_all("torch_samples") == {"results_are_as_on_the_cpu": "ok"}
