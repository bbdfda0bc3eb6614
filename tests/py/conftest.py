"""Fixtures of the suite. Helpers that are plain functions are in support/."""

import gc
import os
from collections.abc import Iterator
from typing import Any

# in the programs that tests start, too: threads of tiny tensors only wait
os.environ.setdefault("OMP_NUM_THREADS", "1")
# predictions are the same whichever cuDNN is installed; virtual/test_plans.py asks it
os.environ.setdefault("MODSCOPE_CUDNN", "0")
# Inductor asks the C++ compiler for each kind of vector instructions, which takes 5 seconds
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

import helpers
import pytest
import torch._dynamo  # The first optimizer would import it, in the middle of a test.
import warm_python  # before torch: it takes torch's own warning filters for those that come after this line
from described_json import checked
from helpers import NOWHERE, look, torch_globals
from modscope import ModTracker, ModuleTracker
from modscope._show import output_file

import torch

# what a command prints with --json, here and in forks, is as the schema says
output_file.document_of = checked(output_file.document_of)
warm_python.prepare()
# readline, which pytest imports, sets them for processes that are started later, as if there were a terminal
os.unsetenv("COLUMNS"), os.unsetenv("LINES")


# Only what observes a program differs with the fallback. Its run collects these folders without what is about captures
# that exist already, and about processes of `modscope run`.
OBSERVING = ("read", "record", "storms", "support", "torch", "trackers")
if os.environ.get("MODSCOPE_INTERPOSE") == "0":
    collect_ignore = [
        *(name for name in os.listdir(os.path.dirname(__file__)) if name not in (*OBSERVING, "conftest.py")),
        "read/test_lines_in_captures.py",
        "read/test_load.py",
        "read/test_tree.py",
        "record/test_rank_captures.py",
        "torch/lines",
    ]
    collect_ignore_glob = ["record/test_run_*.py"]


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
