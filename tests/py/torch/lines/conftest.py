"""Fixtures of the tests of lines."""

from collections.abc import Iterator

import modscope
import pytest
from line_helpers import Prober


@pytest.fixture
def probe() -> Iterator[Prober]:
    with modscope.MemTracker(stacks=64) as tracker:
        prober = Prober(tracker)
        yield prober
    assert prober.probes
    assert prober.wrong == []
