"""Fixtures of the tests of the page."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from browser import opened
from page_helpers import Pages, Shown


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one in which all pages are looked at."""
    if os.environ.get("MODSCOPE_INTERPOSE") == "0":
        pytest.skip("pages are looked at once, in the run without MODSCOPE_INTERPOSE=0")
    yield from opened(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Pages(tmp_path_factory.mktemp("pages"))


@pytest.fixture
def shown(browser: Any, pages: Any) -> Iterator[Any]:
    """To open a page with. Afterwards the console must be empty, and nobody asked for over the network."""
    browser.media()
    shown = Shown(browser, pages)
    yield shown
    shown.is_quiet()
