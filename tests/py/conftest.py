"""Fixtures of the suite. Helpers that are plain functions are in helpers.py."""

import gc
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import helpers
import pytest
import torch
from helpers import NOWHERE, look, torch_globals

from modscope import ModTracker, ModuleTracker


# What only reads captures is the same with the fallback, and how a script is run, too: once is enough.
if os.environ.get("MODSCOPE_INTERPOSE") == "0":
    collect_ignore_glob = ["test_page_*", "test_export_*", "test_report.py", "test_commands.py", "test_load.py", "test_run_*"]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    helpers._kept.clear()


@pytest.fixture(scope="session")
def export_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The captures of export_helpers, and what is made of them."""
    from export_helpers import make_captures

    folder = tmp_path_factory.mktemp("exports")
    make_captures(folder)
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one in which all pages are looked at."""
    from browser import CHROMIUM, DRIVER, Browser

    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no Chromium with its driver here (Debian: chromium chromium-driver)")
    if os.environ.get("MODSCOPE_INTERPOSE") == "0":
        pytest.skip("pages are looked at once, in the run without MODSCOPE_INTERPOSE=0")
    one = Browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from page_helpers import Pages

    return Pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def shown(browser: Any, pages: Any) -> Iterator[Any]:
    """To open a page with. Afterwards the console must be empty, and nobody asked for over the network."""
    from page_helpers import Shown

    browser.media()
    shown = Shown(browser, pages)
    yield shown
    shown.is_quiet()


@pytest.fixture(params=[ModTracker, ModuleTracker], ids=["ModTracker", "ModuleTracker"])
def tracker_type(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def t(tracker_type: type) -> Iterator[Any]:
    """An entered tracker of each kind; afterwards it must be nowhere."""
    tracker = tracker_type()
    with tracker:
        yield tracker
        assert look(tracker) == NOWHERE
    assert look(tracker) == NOWHERE


@pytest.fixture
def mt() -> Iterator[ModTracker]:
    """An entered ModTracker, for what only it has."""
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
