"""Models of transformers train unmodified on a virtual GPU."""

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [*needs_virtual_gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("models")


@pytest.mark.parametrize("program", names_of("models"))
def test_model(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]
