"""Test the modscope that is installed for the interpreter that runs this script.

    python tools/test_installed.py           without torch: the package's files, the commands, reading a capture
    python tools/test_installed.py --torch   with torch: MemTracker, and `modscope run`

These are the checks that a wheel needs beyond the test suite: that every file was installed, and that the package
works where nothing else of this repository is on the path. pytest is not needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CAPTURE = REPOSITORY / "tests" / "corpus" / "capture" / "all_operations.msc"
COMMAND = pathlib.Path(sysconfig.get_path("scripts"), "modscope")
PAGE_SIZE_AT_LEAST = 100_000

# pip installs no folder of the repository but python/modscope: help that names another one sends the reader to a
# missing file.
REPOSITORY_FILE = re.compile(
    r"\b(?:README|CONTRIBUTING|CHANGES)\.md|\b(?:bench|docs|examples|include|src|tests|tools)/[\w./-]+"
)


def modscope(*arguments: object) -> str:
    """What a command prints. Fails if its exit status is not 0."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"modscope {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def installed_folder() -> pathlib.Path:
    spec = importlib.util.find_spec("modscope")
    assert spec is not None and spec.origin is not None, "modscope is not installed"
    return pathlib.Path(spec.origin).parent


def files_below(folder: pathlib.Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# ---- without torch ----


def check_every_file_is_installed(_: pathlib.Path) -> None:
    folder = installed_folder()
    assert folder.is_relative_to(sys.prefix), f"modscope comes from {folder}, which is not in {sys.prefix}"
    installed, source = files_below(folder), files_below(REPOSITORY / "python" / "modscope")
    extensions = {f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in ("_native", "_capture")}
    extensions.add("_no_driver.so")
    assert installed.keys() == source.keys() | extensions, installed.keys() ^ (source.keys() | extensions)
    assert not (changed := [name for name in source if installed[name] != source[name]]), changed


def check_metadata(_: pathlib.Path) -> None:
    import modscope

    metadata = importlib.metadata.metadata("modscope")
    assert metadata["Version"] == modscope.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert "modscope" in metadata["Description"]
    requirements = importlib.metadata.requires("modscope") or []
    assert not (unasked := [one for one in requirements if not re.search(r";.*\bextra ==", one)]), unasked


def check_help_names_no_file_that_is_not_installed(_: pathlib.Path) -> None:
    commands = re.findall(r"^ {4}([a-z]+)\b", modscope("--help"), re.MULTILINE)
    assert {"run", "summary", "report", "doctor"} <= set(commands), commands
    for words in ([], *([command] for command in commands)):
        text = modscope(*words, "--help")
        assert not (missing := set(REPOSITORY_FILE.findall(text))), f"modscope {words} --help names {missing}"


def check_load(_: pathlib.Path) -> None:
    import modscope

    capture = modscope.load(CAPTURE)
    assert list(capture.devices) == ["cpu", "cuda:0"], capture.devices
    assert capture.snapshot("peak").totals["cuda:0"]["Total"] == 5 * 1024


def check_commands_read_a_capture(folder: pathlib.Path) -> None:
    summary = modscope("summary", CAPTURE)
    assert "Net.fc" in summary and "5.00 KiB" in summary, summary
    assert "Net" in modscope("tree", CAPTURE)
    page = folder / "page.html"
    modscope("report", CAPTURE, "-o", page)
    assert page.stat().st_size > PAGE_SIZE_AT_LEAST and "Net.fc" in page.read_text(encoding="utf-8")
    modscope("export", CAPTURE, "--format", "perfetto", "-o", folder / "trace.perfetto")
    assert (folder / "trace.perfetto").stat().st_size > 0


def check_missing_torch_is_reported(_: pathlib.Path) -> None:
    import modscope

    assert importlib.util.find_spec("torch") is None, (
        "torch is there: run this with --torch, or where it is not installed"
    )
    try:
        modscope.MemTracker  # noqa: B018
    except ImportError as error:
        assert "torch" in str(error)
    else:
        raise AssertionError("MemTracker was imported without torch")


# ---- with torch ----


def check_mem_tracker(_: pathlib.Path) -> None:
    import modscope

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    size = sum(parameter.nbytes for parameter in model.parameters())
    tracker = modscope.MemTracker()
    tracker.track_external(model)
    with tracker:
        model(torch.ones(4, 64)).sum().backward()
        held = tracker.get_tracker_snapshot("current")[torch.device("cpu")]
    assert held["Parameter"] == held["Gradient"] == size, (held, size)
    assert held["Total"] == sum(count for word, count in held.items() if word != "Total"), held


def check_doctor(_: pathlib.Path) -> None:
    print(textwrap.indent(modscope("doctor"), "      "), end="")


def check_run(folder: pathlib.Path) -> None:
    from modscope import load

    script, capture = folder / "train.py", folder / "train.msc"
    script.write_text("import torch\nmodel = torch.nn.Linear(512, 512)\nmodel(torch.ones(4, 512)).sum().backward()\n")
    modscope("run", "-o", capture, script)
    held = load(capture).snapshot("peak").totals["cpu"]
    assert held["Parameter"] == 4 * (512 * 512 + 512), held
    assert "Linear" in modscope("summary", capture)


WITHOUT_TORCH: tuple[Callable[[pathlib.Path], None], ...] = (
    check_every_file_is_installed,
    check_metadata,
    check_help_names_no_file_that_is_not_installed,
    check_load,
    check_commands_read_a_capture,
    check_missing_torch_is_reported,
)
WITH_TORCH: tuple[Callable[[pathlib.Path], None], ...] = (
    check_every_file_is_installed,
    check_doctor,
    check_mem_tracker,
    check_run,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Test the modscope that is installed for this Python.")
    parser.add_argument("--torch", action="store_true", help="run the checks that need torch, instead of the others")
    checks = WITH_TORCH if parser.parse_args().torch else WITHOUT_TORCH
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
        print(f"  ok  {check.__name__.removeprefix('check_').replace('_', ' ')}", flush=True)


if __name__ == "__main__":
    main()
