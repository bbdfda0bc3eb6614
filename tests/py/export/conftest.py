"""Fixtures of the tests of exports."""

import pathlib

import pytest
from export_helpers import make_captures


@pytest.fixture(scope="session")
def export_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The captures of export_helpers, and what is made of them."""
    folder = tmp_path_factory.mktemp("exports")
    make_captures(folder)
    return folder
