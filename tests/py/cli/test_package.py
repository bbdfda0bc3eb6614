"""Rules that the Python package keeps: no module uses another's private names, nothing but the command line imports the
commands, and pickles written by earlier versions load; captures are read where _native is missing."""

import ast
import collections
import importlib.util
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator

import modscope
import pytest

PACKAGE = pathlib.Path(modscope.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# torch's and Python's own private names that are used knowingly, and what namedtuples call so.
FOREIGN = {"torch", "_C", "aten", "_aten", "os", "sys", "argparse"}
NAMEDTUPLE = {"_asdict", "_replace", "_fields"}
TORCH = {
    "_BaseDataLoaderIter",
    "_cdata",
    "_template_from_string",
    "_sequence_nr",
    "_schema",
    "_destroy",
    "_indices",
    "_values",
    "_coalesced_",
    "_abstract_fn",
    "_qualname",
    "_opoverload",
    "_buffers",
    "_modules",
    "_source_rank",
    "_create_work_from_future",
    "_get_object_coll_device",
    "_create_internal",
    "_get_fsdp_state",
    "_device_types",
    "_get_backend",
    "_engine_run_backward",
    "_version",
    "_allgather_base",
    "_reduce_scatter_base",
}

# The native tracker, which torch's interface gives these names; and the trackers' own files, which share a tracker.
TRACKERS = {
    "_get_mod_name",
    "_known_modules",
    "_register_user_hooks",
    "_clear_user_hooks",
    "_ledger",
    "_up_to_date",
    "_give_way",
    "_tracker",
    "_depth",
    "_watch",
    "_modscope",
}
TRACKER_FILES = {
    "_trackers/mem_tracker.py",
    "_record/record.py",
    "_trackers/module_tracker.py",
    "integrations/_common.py",
    "integrations/huggingface.py",
    "integrations/lightning.py",
}


def name_of(file: pathlib.Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def own_names(tree: ast.AST) -> set[str]:
    """What a file defines: attributes of self and cls, functions, classes, fields and variables."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            if isinstance(node.ctx, ast.Store):
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(file: pathlib.Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    allowed = own_names(tree) | NAMEDTUPLE | TORCH | (TRACKERS if name_of(file) in TRACKER_FILES else set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in allowed:
            if ast.unparse(node.value) not in ("self", "cls") and ast.unparse(node).partition(".")[0] not in FOREIGN:
                yield f"{name_of(file)}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modscope."):
            for name in node.names:
                if is_private(name.name):
                    yield f"{name_of(file)}:{node.lineno}: from {node.module} import {name.name}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_module_uses_another_s_private_names(file):
    assert list(private_uses(file)) == []


def imports(file: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


TWINS = {"Event", "MemoryCallback"}
"""Names that torch and the trainers have, too: torch.cuda.Event, and a callback for each trainer."""


def test_no_two_classes_share_a_name():
    found = collections.Counter(
        node.name
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == TWINS


COMMAND_LINE = [file for file in FILES if name_of(file).startswith("_cli/") or name_of(file) == "__main__.py"]


@pytest.mark.parametrize("file", [file for file in FILES if file not in COMMAND_LINE], ids=name_of)
def test_only_the_command_line_imports_the_commands(file):
    assert not [name for name in imports(file) if name.startswith("modscope._cli")]


def test_the_text_module_imports_nothing_of_ours():
    assert not [name for name in imports(PACKAGE / "_read/text.py") if name.startswith(("modscope", "torch"))]


def test_the_tests_of_private_names_find_them(tmp_path, monkeypatch):
    file = tmp_path / "x.py"
    file.write_text(
        "from modscope._read.load import _open\ndef f(capture):\n    return capture._reader, self._mine, os._exit\n"
    )
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert [use.rpartition(": ")[2] for use in private_uses(file)] == [
        "from modscope._read.load import _open",
        "capture._reader",
    ]


# The modules that pickles of modscope 0.1.0 name.
FORMER_HOMES = {
    "_apply": ("Applied",),
    "_branch": ("Branch",),
    "_capture_types": ("Block", "CaptureError", "Event", "Phase", "Step"),
    "_categories": ("Category", "Kind", "State"),
    "_cells": ("Cell", "Cells"),
    "_lines_read": ("Frame", "Place", "Sources"),
    "_peak": ("Peak",),
    "_plan_file": ("Plan", "PlanError"),
    "_snapshots": ("ModuleStats",),
    "_virtual.gpus": ("Gpu",),
}


@pytest.mark.parametrize(("home", "name"), [(home, name) for home, names in FORMER_HOMES.items() for name in names])
def test_pickles_of_earlier_versions_find_their_classes(home: str, name: str) -> None:
    assert pickle.loads(f"cmodscope.{home}\n{name}\n.".encode()) is getattr(modscope, name)


def test_models_pickled_with_a_plan_find_the_function_that_runs_them() -> None:
    assert pickle.loads(b"cmodscope._apply\n_checkpointed\n.").__name__ == "run_checkpointed"


# ---- without _native ----


RUN = pathlib.Path(__file__).parents[2] / "corpus" / "runs" / "gpt-0.1.0.msc"


PROGRAM = """
import sys
import modscope
from modscope.__main__ import main

run = sys.argv[1]
for words in (
    ["summary", run], ["tree", run], ["blocks", run], ["leaks", run], ["flame", run], ["diff", run, run],
    ["report", run, "-o", "page.html"], ["export", run, "--format", "csv", "-o", "run.csv"],
    ["fit", run, "--gpu", "t4"], ["plan", run, "--budget", "100MiB", "-o", "plan.json"],
):
    assert main(words) == 0, words
assert "torch" not in sys.modules
print("read", modscope.load(run).optimizer_steps)
assert main(["doctor"]) == 1
try:
    modscope.MemTracker
except ImportError as error:
    print(error)
"""


def test_every_command_that_reads_a_capture_works_without_the_tracker(tmp_path):
    package = pathlib.Path(modscope.__file__).parent
    shutil.copytree(package, tmp_path / "modscope", ignore=shutil.ignore_patterns("_native*", "__pycache__"))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, RUN],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert ran.returncode == 0, ran.stderr
    *_, read, said = ran.stdout.splitlines()
    assert read == f"read {modscope.load(RUN).optimizer_steps}"
    assert said.startswith("modscope only reads captures on ") and said.endswith("copy the captures here")
    assert ran.stderr == f"modscope: {said}\n"


# ---- tools/check_layers.py finds imports that break the rooms ----


@pytest.mark.parametrize(
    "module, line, fault",
    [
        ("_read/text.py", "import modscope._show.terminal", "_read.text: _read must not import _show.terminal"),
        (
            "_read/text.py",
            "def f():\n    from modscope._show import terminal",
            "_read.text: _read must not import _show.terminal",
        ),
        ("_read/types.py", "def f():\n    import modscope._read.text", "imports in a cycle: "),
        ("_job/job.py", "import torch", "_job.job: importing it imports torch"),
    ],
)
def test_the_layer_check_finds_imports_that_break_the_rooms(tmp_path, module, line, fault):
    files = {
        "_read/text.py": "import modscope._read.types",
        "_read/types.py": "",
        "_show/terminal.py": "",
        "_job/job.py": "",
    }
    for name, text in files.items():
        file = tmp_path / "python" / "modscope" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n{line if name == module else ''}\n")
    path = pathlib.Path(__file__).parents[3] / "tools" / "check_layers.py"
    spec = importlib.util.spec_from_file_location("check_layers", path)
    check_layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_layers)
    assert any(found.startswith(fault) for found in check_layers.python_faults(tmp_path))
