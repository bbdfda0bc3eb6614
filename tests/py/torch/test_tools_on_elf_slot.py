"""Another tool patches the same ELF slot, that of autograd's `evaluate_function`. The two are entered and left
in any order: both see every node, and the slot is restored."""

import ctypes
import itertools
import pathlib
import shutil
import subprocess

import pytest
from helpers import NOWHERE, at, grad_input, leaf, look, needs_interception, on_grad, pair
from modscope import ModTracker

import torch

pytestmark = needs_interception

SOURCES = pathlib.Path(__file__).resolve().parents[3] / "src"

# modscope's own code that finds an ELF slot, in a separate library: a second copy of modscope would do the same.
TOOL = """
#include "interpose/elf_slot.h"
typedef void evaluate(void *, void *, void *, void *, void *);
static ms_elf_slot slot;
static evaluate *next;
long nodes;
static void counted(void *engine, void *task, void *node, void *inputs, void *queue)
{
    nodes++;
    next(engine, task, node, inputs, queue);
}
int find(void) { return ms_elf_slot_find("libtorch_cpu", "_ZN5torch8autograd6Engine17evaluate_function", &slot); }
void *now(void) { return (void *)ms_elf_slot_read(&slot); }
void enter(void) { next = (evaluate *)ms_elf_slot_read(&slot); ms_elf_slot_write(&slot, (ms_function)counted); }
/* Restores the slot only if it still holds its own function. */
int leave(void)
{
    if (ms_elf_slot_read(&slot) != (ms_function)counted)
        return 0;
    ms_elf_slot_write(&slot, (ms_function)next);
    return 1;
}
"""


@pytest.fixture
def tool(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not (SOURCES / "interpose" / "elf_slot.c").exists():
        pytest.skip("no C compiler or no sources here")
    (tmp_path / "tool.c").write_text(TOOL)
    subprocess.run(
        [
            compiler,
            "-std=c11",
            "-O1",
            "-w",
            "-fexceptions",
            "-shared",
            "-fPIC",
            f"-I{SOURCES}",
            f"-I{SOURCES.parent / 'include'}",
        ]
        + ["-o", tmp_path / "tool.so", tmp_path / "tool.c", SOURCES / "interpose" / "elf_slot.c", "-ldl", "-lpthread"],
        check=True,
    )
    library = ctypes.CDLL(str(tmp_path / "tool.so"))
    library.now.restype = ctypes.c_void_p
    assert library.find() == 0
    library.count = lambda: ctypes.c_long.in_dll(library, "nodes").value
    return library


def readings(t):
    log = []
    pair(leaf(lambda m, x: on_grad(t, log, x * 2)), leaf())(grad_input()).sum().backward()
    return log


RIGHT = [at("backward", "Mod", "Mod.a")]
NODES = 4  # sum, two products, the input's accumulation; one more where the root is counted


def seen_by(tool):
    before = tool.count()
    (grad_input() * 2 * 2).sum().backward()
    return tool.count() - before


def test_the_slot_is_ours_only_inside(tool):
    before = tool.now()
    with ModTracker() as t:
        assert tool.now() != before
        assert readings(t) == RIGHT
    assert tool.now() == before


ORDERS = sorted(
    {o for o in itertools.permutations("tTuU") if o.index("t") < o.index("T") and o.index("u") < o.index("U")}
)


@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_any_order(tool, order):
    """Lower case enters, upper case leaves; t is the tracker, u the tool."""
    before = tool.now()
    t = ModTracker()
    step = {"t": t.__enter__, "T": t.__exit__, "u": tool.enter, "U": tool.leave}
    ours = theirs = False
    for what in order:
        step[what]()
        ours, theirs = (what == "t" or ours) and what != "T", (what == "u" or theirs) and what != "U"
        readings_now = readings(t)
        assert readings_now == RIGHT if ours else [r.parents for r in readings_now] == [{"Global"}]
        if theirs:
            assert seen_by(tool) >= NODES
    with t:
        assert readings(t) == RIGHT
    tool.leave()
    with t:
        assert readings(t) == RIGHT
    assert tool.now() == before
    assert seen_by(tool) == 0


def test_an_exception_passes_through_both(tool):
    with ModTracker() as t:
        tool.enter()
        x = grad_input()
        y = leaf()(x)
        y.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        assert look(t) == NOWHERE
        assert readings(t) == RIGHT
        assert tool.leave() == 1
    assert torch.equal(torch.autograd.grad((x * 2).sum(), x)[0], torch.full_like(x, 2))
