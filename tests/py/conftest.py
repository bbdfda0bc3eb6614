"""Fixtures of the suite. Helpers that are plain functions are in helpers.py."""

import gc
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # in the programs that tests start, too: threads of tiny tensors only wait

import warm_python  # before torch: it takes torch's own warning filters for those that come after this line

import helpers
import pytest
import torch
import torch._dynamo  # The first optimizer would import it, in the middle of a test.
from helpers import NOWHERE, look, torch_globals

from modscope import ModTracker, ModuleTracker

warm_python.prepare()


# Reading captures, the commands and the integrations do not depend on interception, so the fallback's run skips them.
if os.environ.get("MODSCOPE_INTERPOSE") == "0":
    collect_ignore = [
        "allocator",
        "replay",
        "virtual",
        "predict",
        "page",
        "export",
        "commands",
        "integrations",
        "captures/test_load.py",
    ]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """The objects that importing torch makes are never freed. While they are frozen, gc.collect() does not visit them,
    and takes milliseconds instead of a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def drop_kept_modules() -> Iterator[None]:
    yield
    helpers._kept.clear()


@pytest.fixture(params=[ModTracker, ModuleTracker], ids=["ModTracker", "ModuleTracker"])
def tracker_type(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def t(tracker_type: type) -> Iterator[Any]:
    """An active tracker of each kind; afterwards no module may be running."""
    tracker = tracker_type()
    with tracker:
        yield tracker
        assert look(tracker) == NOWHERE
    assert look(tracker) == NOWHERE


@pytest.fixture
def mt() -> Iterator[ModTracker]:
    """An active ModTracker, for what only it has."""
    with ModTracker() as tracker:
        yield tracker
        assert look(tracker) == NOWHERE


@pytest.fixture
def torch_as_found() -> Iterator[None]:
    """Nothing global in torch or Python may differ after the test."""
    gc.collect()
    before = torch_globals()
    yield
    gc.collect()
    assert torch_globals() == before
