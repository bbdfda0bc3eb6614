"""Another tool patches the same interception point, the vectorcall pointer of `Module._call_impl`. The two are
entered and left in any order: nothing crashes, the answers are right, and the pointer is restored."""

import ctypes
import itertools
import shutil
import subprocess
import sysconfig

import pytest
from helpers import at, grad_input, leaf, look, make, needs_interception, run_python, set_vectorcall, vectorcall_of
from modscope import ModTracker

import torch
from torch import nn

pytestmark = needs_interception

CALL = nn.Module._call_impl
TOOLS = 64  # one for every Tool of this file: a tool's function may still be called later, so it is never reused

SOURCE = """
#include <stddef.h>
typedef void *call(void *function, void *const *args, size_t nargsf, void *names);
call *chain[64];
long calls[64];
int awake[64];
#define TOOL(i) \\
    void *tool_##i(void *function, void *const *args, size_t nargsf, void *names) \\
    { calls[i] += awake[i]; return chain[i](function, args, nargsf, names); }
""" + "".join(f"TOOL({i})\n" for i in range(TOOLS))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The tools are in C, because an exception of a ctypes callback does not reach its caller."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("tool")
    (folder / "tool.c").write_text(SOURCE)
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", folder / "tool.so", folder / "tool.c"], check=True)
    return ctypes.CDLL(str(folder / "tool.so"))


class Tool:
    """Counts module calls, and calls the function that the pointer held before. A careful tool restores the
    pointer only if it still holds the tool's own function, and otherwise stays in the chain. A careless tool
    always writes back what it found."""

    numbers = itertools.count()

    def __init__(self, library, careful=True):
        self.number = next(Tool.numbers)
        self.careful = careful
        self.pointer = ctypes.cast(getattr(library, f"tool_{self.number}"), ctypes.c_void_p).value
        self._chain = (ctypes.c_void_p * TOOLS).in_dll(library, "chain")
        self._calls = (ctypes.c_long * TOOLS).in_dll(library, "calls")
        self._awake = (ctypes.c_int * TOOLS).in_dll(library, "awake")
        self.standing = False

    @property
    def calls(self):
        return self._calls[self.number]

    def __enter__(self):
        if not self.standing:
            self._chain[self.number] = vectorcall_of(CALL)
            set_vectorcall(CALL, self.pointer)
            self.standing = True
        self._awake[self.number] = 1
        return self

    def __exit__(self, *args):
        self._awake[self.number] = 0
        if not self.careful or vectorcall_of(CALL) == self.pointer:
            set_vectorcall(CALL, self._chain[self.number])
            self.standing = False


@pytest.fixture
def tool(library):
    return lambda careful=True: Tool(library, careful)


class Ours(ModTracker):
    """Counts how often it is entered, so that a failed test can be cleaned up."""

    inside = 0

    def __enter__(self):
        self.inside += 1
        return super().__enter__()

    def __exit__(self, *args):
        self.inside -= 1
        return super().__exit__(*args)


@pytest.fixture
def ours():
    t = Ours()
    with t:  # so that the tracker notices that an earlier test's tool is gone
        pass
    yield t
    while t.inside:
        t.__exit__()


@pytest.fixture
def as_found(ours):
    """The pointer is restored once all are left; what a failed test leaves does no harm."""
    before = vectorcall_of(CALL)
    yield before
    after = vectorcall_of(CALL)
    while ours.inside:
        ours.__exit__()
    set_vectorcall(CALL, before)
    assert after == before


def readings(t):
    seen = []

    def body(m, x):
        seen.append(look(t))
        y = x * 2
        y.register_hook(lambda g: seen.append(look(t)))
        return y

    make("Mod", lambda m, x: m.a(x), a=leaf(body))(grad_input()).sum().backward()
    return seen


RIGHT = [at("forward", "Mod", "Mod.a"), at("backward", "Mod", "Mod.a")]


def test_the_pointer_is_ours_only_inside(as_found):
    with ModTracker():
        assert vectorcall_of(CALL) != as_found
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert vectorcall_of(CALL) == as_found


def test_ours_inside_the_tools(as_found, tool):
    with tool() as other:
        with ModTracker() as t:
            assert readings(t) == RIGHT
        assert other.calls == 2
        readings(t)
        assert other.calls == 4


def test_the_tools_inside_ours(as_found, tool):
    with ModTracker() as t:
        with tool() as other:
            assert readings(t) == RIGHT
            assert other.calls == 2
        assert readings(t) == RIGHT
        assert other.calls == 2


def test_ours_left_first(as_found, ours, tool):
    """The pointer cannot be restored then: modscope's function stays in the chain, inactive, until it can."""
    t, other = ours, tool()
    t.__enter__()
    other.__enter__()
    t.__exit__()
    assert [r.parents for r in readings(t)] == [{"Global"}] * 2
    assert other.calls == 2
    other.__exit__()
    readings(t)
    assert other.calls == 2
    with t:
        assert readings(t) == RIGHT


def test_the_tool_left_first(as_found, ours, tool):
    t, other = ours, tool()
    other.__enter__()
    t.__enter__()
    other.__exit__()
    assert readings(t) == RIGHT
    assert other.calls == 0
    t.__exit__()
    with other:
        assert len(readings(t)) == 2
    assert other.calls == 2


def test_a_careless_tool_throws_us_out(as_found, ours, tool):
    """It writes back another function than modscope's: nothing crashes, and entering again works."""
    t, other = ours, tool(False)
    other.__enter__()
    t.__enter__()
    other.__exit__()
    readings(t)
    t.__exit__()
    with t:
        assert readings(t) == RIGHT


def test_a_careless_tool_brings_us_back(as_found, ours, tool):
    """It found modscope's function, and writes it back after the tracker was left."""
    t, other = ours, tool(False)
    t.__enter__()
    other.__enter__()
    t.__exit__()
    other.__exit__()
    assert [r.parents for r in readings(t)] == [{"Global"}] * 2
    with t:
        assert readings(t) == RIGHT


ORDERS = sorted(
    {o for o in itertools.permutations("tTuU") if o.index("t") < o.index("T") and o.index("u") < o.index("U")}
)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_any_order_again_and_again(order, rounds, ours, tool):
    """Lower case enters, upper case leaves; t is the tracker, u the tool. No call recurses endlessly."""
    before = vectorcall_of(CALL)
    t, other = ours, tool()
    step = {"t": t.__enter__, "T": t.__exit__, "u": other.__enter__, "U": other.__exit__}
    try:
        inside = False
        for what in order * rounds:
            step[what]()
            inside = what == "t" or (inside and what != "T")
            if inside:
                assert readings(t) == RIGHT
            else:
                assert [r.parents for r in readings(t)] == [{"Global"}] * 2
        counted = other.calls
        readings(t)
        assert other.calls == counted
        with t:
            assert readings(t) == RIGHT
    finally:
        while t.inside:
            t.__exit__()
        set_vectorcall(CALL, before)


def test_two_tools_and_two_trackers(as_found, tool):
    a, b = ModTracker(), ModTracker()
    first, second = tool(), tool()
    with first, a, second, b:
        assert readings(a) == readings(b) == RIGHT
    assert (first.calls, second.calls) == (4, 4)


def test_exceptions_pass_through_both(as_found, tool):
    def thrown():
        with pytest.raises(ZeroDivisionError):
            make("Mod", lambda m, x: m.a(x), a=leaf(lambda m, x: 1 / 0))(1)

    with tool(), ModTracker() as t, tool():
        thrown()
        assert readings(t) == RIGHT


def test_a_tool_on_call_itself(as_found):
    """A patch in Python, as many tools do it."""
    original = nn.Module.__call__
    seen = []

    def patched(self, *args, **kwargs):
        seen.append(type(self).__name__)
        return original(self, *args, **kwargs)

    with ModTracker() as t:
        nn.Module.__call__ = patched
        try:
            assert readings(t) == RIGHT
        finally:
            nn.Module.__call__ = original
        assert readings(t) == RIGHT
    assert seen == ["Mod", "Leaf"]


def test_torchs_own_trackers_beside_ours(as_found):
    from torch.distributed._tools.mod_tracker import ModTracker as Theirs

    theirs = Theirs()
    with ModTracker() as t, theirs:
        assert readings(t) == RIGHT
    with theirs, ModTracker() as t:
        assert readings(t) == RIGHT


@pytest.mark.slow
def test_call_impl_is_replaced_by_another_function():
    """The function that modscope has patched is no longer called; nothing breaks."""
    done = run_python("""
        import torch
        from torch import nn
        from modscope import ModTracker
        original = nn.Module._call_impl
        def mine(self, *args, **kwargs):
            return original(self, *args, **kwargs)
        seen = []
        class Mod(nn.Module):
            def forward(self, x):
                seen.append(t.parents)
                return x * 2
        with ModTracker() as t:
            nn.Module._call_impl = mine
            Mod()(torch.ones(1, requires_grad=True)).sum().backward()
        with ModTracker() as t:
            Mod()(torch.ones(1, requires_grad=True)).sum().backward()
        assert all("Global" in s for s in seen), seen
    """)
    assert done.returncode == 0, done.stderr
