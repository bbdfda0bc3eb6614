"""Training programs run unmodified on a virtual GPU."""

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytestmark = needs_virtual_gpu


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("training")


@pytest.mark.parametrize("program", names_of("training"))
def test_training(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]
