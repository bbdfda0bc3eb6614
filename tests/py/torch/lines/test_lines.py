"""The line that makes each block, in all kinds of code: every stack is compared with traceback.extract_stack()."""

import _thread
import asyncio
import contextlib
import functools
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION, UNDER_ASAN
from line_helpers import Prober
from modscope import _native
from modscope._trackers import mem_tracker

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

# ---- one kind of code each ----


def test_plain_code_calls_over_several_lines_and_methods(probe):
    class Caller:
        def method(self) -> None:
            probe(1, 2)

        @property
        def attribute(self) -> int:
            return probe()

        def __add__(self, other: object) -> int:
            return probe()

    Caller().method()
    assert Caller().attribute and Caller() + 1
    sum(
        [probe(),
         probe()]
    )  # fmt: skip


def test_comprehensions_lambdas_generators_and_decorators(probe):
    def decorated(function: Callable[[], int]) -> Callable[[], int]:
        @functools.wraps(function)
        def around() -> int:
            probe()
            return function()

        return around

    @decorated
    def inner() -> int:
        return probe()

    def generate() -> Iterator[int]:
        yield probe()
        yield from (probe() for _ in range(2))

    [probe() for _ in range(2)]
    {probe(): [probe() for _ in range(2)] for _ in range(2)}
    (lambda: [probe(), (lambda: probe())()])()
    inner()
    list(generate())
    list(map(probe, range(2)))
    sorted([2, 1], key=probe)


def test_exceptions_and_contexts(probe):
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        probe()
        try:
            yield
        finally:
            probe()

    with context():
        probe()
    with contextlib.suppress(KeyError), context():
        raise KeyError(probe())
    try:
        try:
            raise ValueError
        except ValueError:
            probe()
            raise KeyError from None
        finally:
            probe()
    except KeyError:
        probe()


def test_coroutines(probe):
    async def inner() -> int:
        await asyncio.sleep(0)
        return probe()

    async def outer() -> None:
        await asyncio.gather(inner(), inner())
        probe()

    asyncio.run(outer())


def test_deep_recursion(probe):
    def recurse(depth: int) -> int:
        return probe() if depth == 0 else recurse(depth - 1)

    recurse(900)


def test_code_that_python_traces(probe):
    def trace(frame: Any, event: str, argument: Any) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        (lambda: [probe() for _ in range(2)])()
        for _ in range(3):
            probe()
    finally:
        sys.settrace(before)


def test_names_that_are_not_ascii(probe):
    names: dict[str, Any] = {"probe": probe}
    exec(compile("def größe_日本():\n\n    return probe()\n", "/home/ü/模型😀.py", "exec"), names)
    names["größe_日本"]()


# ---- code that is freed ----


@pytest.mark.slow
@pytest.mark.skipif(UNDER_ASAN, reason="ASan does not use the memory again")
def test_thousands_of_functions_that_are_freed(probe):
    """Their code objects use the same addresses again, with other names, files and lines."""
    addresses, probe.limit = set(), 3
    for i in range(2000):
        names: dict[str, Any] = {"probe": probe}
        source = "\n" * (i % 7) + f"def made{i % 3}():\n" + "    0\n" * (i % 5) + "    return probe()\n"
        exec(compile(source, f"<cell {i % 50}>", "exec"), names)
        function = names[f"made{i % 3}"]
        addresses.add(id(function.__code__))
        function()
        del names, function
    assert len(addresses) < 1500, "few addresses were used again, so this test tests little"


# ---- random programs ----


class Program:
    """Source of functions that call one another and probe()."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.lines: list[str] = []
        for number in range(6):
            self._function(number)

    def _call(self, number: int) -> str:
        return f"f{self._chance.randrange(number)}(probe)" if number and self._chance.random() < 0.7 else "probe()"

    def _function(self, number: int) -> None:
        self.lines += [""] * self._chance.randrange(4)
        if self._chance.random() < 0.3:
            self.lines.append("@wrapped")
        self.lines.append(f"def f{number}(probe):")
        for _ in range(self._chance.randrange(1, 4)):
            self._statement(number)
        self.lines.append("    return 1")

    def _statement(self, number: int) -> None:
        call = self._call(number)
        forms = [
            [call],
            [f"[{call} for _ in range(2)]"],
            [f"(lambda: {call})()"],
            [f"list({call} for _ in range(2))"],
            ["max(", f"    {call},", "    1,", ")"],
            ["try:", "    raise KeyError", "except KeyError:", f"    {call}", "finally:", f"    {call}"],
            ["for _ in range(2):", f"    if {call}:", "        continue"],
            [
                "class Inner:",
                f"    value = {call}",
                "    def method(self):",
                f"        return {call}",
                "Inner().method()",
            ],
            ["def generate():", f"    yield {call}", f"    yield {call}", "list(generate())"],
            [f"exec(compile('\\n' * {self._chance.randrange(5)} + 'probe()', '<inner>', 'exec'))"],
        ]
        self.lines += ["    " + line for line in self._chance.choice(forms)]


def run_random(probe: Prober, seed: int) -> None:
    def wrapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda given: function(given)

    program = Program(random.Random(seed))
    names: dict[str, Any] = {"wrapped": wrapped}
    exec(compile("\n".join(program.lines), f"/random/{seed}.py", "exec"), names)
    names["f5"](probe)


def test_random_programs(probe):
    for seed in range(25):
        run_random(probe, seed)
    assert probe.probes > 200


@pytest.mark.slow
def test_random_programs_in_threads(probe):
    ended = []

    def run(first: int) -> None:
        for seed in range(first, first + 12):
            run_random(probe, seed)
        ended.append(first)

    threads = [threading.Thread(target=run, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 4 and probe.probes > 300


# ---- which frames are kept ----


def test_the_line_is_the_programs_own_and_not_torchs(probe):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    result, here = model(torch.ones(4, 8)), traceback.extract_stack()[-1]
    stack = probe._ledger.stack(result.data_ptr())
    assert stack[0][:3] == (__file__, "test_the_line_is_the_programs_own_and_not_torchs", here.lineno)
    probe()


def test_backward_knows_the_node_and_the_line_of_backward(probe):
    x = torch.ones(300, requires_grad=True)
    y = (x * 3).exp()
    y.sum().backward()
    assert x.grad is not None
    stack = probe._ledger.stack(x.grad.data_ptr())
    assert [frame[:2] for frame in stack[:2]] == [
        (None, "MulBackward0"),
        (__file__, "test_backward_knows_the_node_and_the_line_of_backward"),
    ]
    probe()


def test_a_custom_function_knows_its_own_line_in_backward(probe):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            result, here = grad * 2, traceback.extract_stack()[-1]
            found.append((probe._ledger.stack(result.data_ptr())[0], here.lineno))
            return result

    found: list[Any] = []
    Twice.apply(torch.ones(300, requires_grad=True)).sum().backward()
    ((frame, line),) = found
    assert frame[0] == __file__ and frame[1].endswith("Twice.backward") and frame[2] == line
    probe()


def test_frames_of_modscope_are_never_kept(probe):
    """As in a thread that runs nothing else: backward on a virtual GPU."""
    names: dict[str, Any] = {"torch": torch, "kept": [], "made": threading.Event()}
    file = os.path.join(os.path.dirname(modscope.__file__), "made_up.py")
    exec(compile("def make():\n    kept.append(torch.empty(300))\n    made.set()\n", file, "exec"), names)
    _thread.start_new_thread(names["make"], ())
    assert names["made"].wait(600)
    assert probe._ledger.stack(names["kept"][0].data_ptr()) == []
    probe()


def test_so_many_frames_are_kept_as_were_asked_for():
    def inner(ledger: Any) -> int:
        block = torch.empty(300)
        return len(ledger.stack(block.data_ptr()))

    for stacks in (0, 1, 2):
        with modscope.MemTracker(stacks=stacks) as tracker:
            assert (lambda held: inner(mem_tracker.ledger_of(held)))(tracker) == stacks


def test_of_several_trackers_the_deepest_counts():
    block = torch.empty(1)
    with modscope.MemTracker(stacks=0) as outer:
        ledger = mem_tracker.ledger_of(outer)
        with modscope.MemTracker(stacks=1):
            block = torch.empty(300)
            assert len(ledger.stack(block.data_ptr())) == 1
        block = torch.empty(301)
        assert ledger.stack(block.data_ptr()) == []


@pytest.mark.parametrize("stacks", [-1, 65, 1.0, True, "1", None])
def test_a_number_of_frames_that_is_none_is_refused(stacks):
    with pytest.raises(ValueError, match="0 to 64"):
        modscope.MemTracker(stacks=stacks)


def test_nothing_stays_intercepted():
    with modscope.MemTracker():
        pass
    assert _native.read_stack() == []  # no stack is read any more


def test_doctor_says_that_lines_are_verified():
    assert modscope.doctor()["stacks"] == "verified"
