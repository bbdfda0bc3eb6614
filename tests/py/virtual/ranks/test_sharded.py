"""Programs of one virtual rank of many take the memory that sharding says."""

import pathlib

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all

pytestmark = [*needs_virtual_gpu, pytest.mark.slow]
PROGRAMS = pathlib.Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("sharded", PROGRAMS)


@pytest.mark.parametrize("program", names_of("sharded", PROGRAMS))
def test_ranks(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]
