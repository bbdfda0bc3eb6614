"""Fixtures of the reading commands: a folder of captures, and running a command in it."""

import json

import pytest
from command_helpers import CAPTURES
from modscope.__main__ import main


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    for name, make in CAPTURES.items():
        (folder / f"{name}.msc").write_bytes(make())
    return folder


@pytest.fixture
def modscope(captures, capsys, monkeypatch):
    """Run a command in the folder of captures; its status, output and errors."""
    monkeypatch.chdir(captures)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(line: str, columns: int = 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        try:
            status = main(line.split())
        except SystemExit as left:
            status = left.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def text(modscope):
    def run(line: str, columns: int = 80) -> str:
        status, out, err = modscope(line, columns)
        assert (status, err) == (0, ""), err
        return out

    return run


@pytest.fixture
def figures(text):
    return lambda line: json.loads(text(line + " --json"))
