"""Run programs on a virtual GPU: all programs of one file in one process, each a function without arguments."""

import ast
import json
import pathlib

import pytest
import warm_python
from helpers import INTERCEPTION

PROGRAMS = pathlib.Path(__file__).parents[1] / "virtual" / "programs"

needs_virtual_gpu = [pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")]

RUN_ALL = """
import importlib, json, signal, sys, traceback, warnings
warnings.filterwarnings("ignore")
sys.path.insert(0, {folder!r})
import torch
from modscope._virtual.device.device import VirtualDevice
from modscope._virtual.gpus import find_gpu
device = VirtualDevice(find_gpu("h100"), "2.13")
device.install()
torch.set_num_threads(1)
programs = importlib.import_module({module!r})
def out_of_time(*_):
    raise TimeoutError("the program does not end")
signal.signal(signal.SIGALRM, out_of_time)
for name in {names!r}:
    signal.alarm(180)
    torch.manual_seed(0)
    try:
        getattr(programs, name)()
        outcome = "ok"
    except Exception:
        outcome = traceback.format_exc()
    signal.alarm(0)
    print("\\n" + json.dumps({{name: outcome}}), flush=True)
"""


def names_of(module: str, folder: pathlib.Path = PROGRAMS) -> list[str]:
    """The programs of a file, in its order."""
    tree = ast.parse((folder / f"{module}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def run_all(module: str, folder: pathlib.Path = PROGRAMS) -> dict[str, str]:
    """By program: "ok", or why it failed."""
    names = names_of(module, folder)
    text = RUN_ALL.format(folder=str(folder), module=module, names=names)
    ran = warm_python.run(["-W", "ignore", "-c", text], seconds=600)
    outcomes = dict.fromkeys(names, f"the process ended before, with {ran.returncode}: {ran.stderr[-2000:]}")
    for line in ran.stdout.splitlines():
        if line.startswith('{"') and line.endswith('"}'):
            outcomes.update(json.loads(line))
    return outcomes
