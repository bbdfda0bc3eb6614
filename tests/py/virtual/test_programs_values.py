"""What is read from a virtual GPU, and which sizes depend on it."""

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytestmark = needs_virtual_gpu


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("values")


@pytest.mark.parametrize("program", names_of("values"))
def test_values(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]
