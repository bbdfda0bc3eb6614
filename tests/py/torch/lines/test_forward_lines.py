"""The line of the forward that a block of backward belongs to: compared with what torch's anomaly mode stores."""

import os
import random
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION
from modscope import _native
from modscope._read import lines as _lines_read
from modscope._trackers import mem_tracker
from torch.utils.checkpoint import checkpoint

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

Line = tuple[str, int, str]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


_LIBRARY = """
def make(number):
    forward = staticmethod(lambda ctx, x: x * 2)
    return type(f"Double{number}", (torch.autograd.Function,), {"forward": forward, "backward": backward})

@staticmethod
def backward(ctx, grad):
    return grad * 2
"""


# ---- random programs ----

_STATEMENTS = [
    "y = torch.relu(y)",
    "y = y @ x",
    "y = y + x",
    "y = y.t()",
    "y = y[1:3].expand(2, 2, 4).reshape(4, 4)",
    "y = y * y",
    "y = torch.stack([y, x]).sum(0)",
    "y = linear(y)",
    "y = y.clone()\n{0}y.add_(1)",
    "y = scale(y)",
    "with torch.no_grad():\n{0}    torch.zeros(7)",
    "y = [y.sin() for _ in range(2)][1]",
    "y = (lambda z: z.exp()\n{0} .tanh())(y)",
    "for _ in range(2):\n{0}    y = y.sigmoid()",
    "y = again(lambda z: z.cos(), y)",
    "kept.append(torch.ones(3))",
    "y = y.mT.contiguous()",
]


def random_program(pick: random.Random, number: int) -> Callable[..., torch.Tensor]:
    """A function of random statements, some in functions that it calls."""
    source = ""
    for name in ("inner", "outer"):
        source += f"def {name}(x, y, linear, scale, again, kept):\n"
        for _ in range(pick.randrange(4, 14)):
            if name == "outer" and pick.random() < 0.2:
                source += "    y = inner(x, y, linear, scale, again, kept)\n"
            else:
                source += "    " + pick.choice(_STATEMENTS).format("    ") + "\n"
        source += "    return y + x * 2\n"
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<program {number}>", "exec"), names)
    program: Callable[..., torch.Tensor] = names["outer"]
    return program


def run_program(program: Callable[..., torch.Tensor]) -> torch.Tensor:
    x = torch.rand(4, 4, requires_grad=True)
    return program(x, x, torch.nn.Linear(4, 4), Scale.apply, lambda f, z: checkpoint(f, z, use_reentrant=False), [])


# ---- what torch says ----


def nodes_of(*tensors: torch.Tensor) -> Iterator[Any]:
    left, seen = [tensor.grad_fn for tensor in tensors], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [other for other, _ in node.next_functions]
        yield node


_STANDARD = sysconfig.get_paths()["stdlib"]


def is_own(file: str) -> bool:
    return "site-packages" not in file and not file.startswith(("<frozen", _STANDARD))


def line_by_torch(node: Any) -> Line | None:
    """The innermost line of the program in the traceback that anomaly mode stored when the node was created."""
    for row in reversed(node.metadata.get("traceback_", [])):
        match = re.match(r'  File "(.*)", line (\d+), in (\S+)', row)
        if match and is_own(match[1]):
            return match[1], int(match[2]), match[3]
    return None


def first_line(stack: list[Any]) -> Line | None:
    if not stack:
        return None
    file, function, line, *_ = stack[0]
    return file, line, function.rpartition(".")[2]


@pytest.fixture
def tracked() -> Iterator[Any]:
    with torch.autograd.set_detect_anomaly(True, check_nan=False), modscope.MemTracker() as tracker:
        yield mem_tracker.ledger_of(tracker)


def test_each_node_is_created_in_the_line_that_anomaly_mode_stores(tracked):
    pick, checked = random.Random(0), 0
    for number in range(40):
        for node in nodes_of(run_program(random_program(pick, number))):
            if not node.name().endswith("AccumulateGrad"):  # which has no number
                assert first_line(_native.created_node_stack(node._sequence_nr())) == line_by_torch(node)
                checked += 1
    assert checked > 800


def watch_gradients(ledger: Any, roots: list[torch.Tensor], found: list[Any]) -> None:
    """After each node that allocates in backward, note the line of the forward by torch and by modscope."""
    kept, seen = [], set()

    def after(node: Any) -> Callable[..., None]:
        def hook(inputs: Any, outputs: Any) -> None:
            kept.extend([*inputs, *outputs])  # so that no address is used again
            seen.update(t.untyped_storage().data_ptr() for t in outputs if t is not None)
            for address in {t.untyped_storage().data_ptr() for t in inputs if t is not None} - seen:
                seen.add(address)
                nodes = [function for file, function, *_ in ledger.stack(address) if file is None]
                if nodes[:1] == [node.name()]:
                    found.append((node.name(), line_by_torch(node), first_line(ledger.forward_stack(address))))

        return hook

    for node in nodes_of(*roots):
        node.register_hook(after(node))


def test_what_backward_allocates_has_the_line_of_the_forward(tracked):
    pick = random.Random(1)
    found: list[Any] = []
    for number in range(20):
        result = run_program(random_program(pick, number))
        watch_gradients(tracked, [result], found)
        result.sum().backward()
    assert len(found) > 150 and len({name for name, *_ in found}) > 10
    assert "ScaleBackward" in {name for name, *_ in found}
    assert [row for row in found if row[1] != row[2]] == []


def test_nodes_of_another_thread_and_of_a_backward(tracked):
    pick = random.Random(2)
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(run_program(random_program(pick, 0))))
    thread.start()
    thread.join()
    found: list[Any] = []
    watch_gradients(tracked, made, found)
    made[0].sum().backward()
    assert found and all(theirs == ours for _, theirs, ours in found)

    x = torch.rand(4, 4, requires_grad=True)
    y = (x * x).exp().sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    again: list[Any] = []
    watch_gradients(tracked, [gradient], again)
    gradient.sum().backward()
    assert again and all(theirs == ours for _, theirs, ours in again)


def test_captures_and_commands_show_the_line_of_the_forward(tmp_path):
    from modscope._show import lines as _lines_show

    file = tmp_path / "run.msc"
    x = torch.rand(300, 300, requires_grad=True)
    with modscope.record(file):
        line = sys._getframe().f_lineno + 1
        y = torch.mm(x, x)
        y.exp().sum().backward()
    snapshot = modscope.load(file).snapshot("peak")
    made = [block.place for block in snapshot.blocks() if block.place and block.place.node == "MmBackward0"]
    assert made and {place.forward[0][:3] for place in made} == {
        (__file__, "test_captures_and_commands_show_the_line_of_the_forward", line)
    }
    assert {place.line for place in made} == {line + 1}
    assert made[0].describe().startswith(f"MmBackward0, forward at {_lines_show.line_label(made[0].attributed)}")
    report = made[0].to_dict()
    assert (report["node"], report["forward_file"], report["forward_line"], report["line"]) == (
        "MmBackward0",
        __file__,
        line,
        line + 1,
    )
    assert _lines_show.short_line(report, wide=True) == f"MmBackward0, forward at test_forward_lines.py:{line}"
    (tree,) = _lines_show.tree_of_lines(snapshot.by_place("cpu"))
    rows = {row["name"]: row for function in tree["children"] for row in function["children"]}
    row = rows[f"line {line}: y = torch.mm(x, x)"]
    in_backward = sum(sums["Total"] for place, sums in snapshot.by_place("cpu") if place in made)
    assert [(child["name"], child["own"]["Total"]) for child in row["children"]] == [
        ("MmBackward0 in backward", in_backward)
    ]
    assert row["own"]["Total"] + in_backward == row["subtree"]["Total"]
    assert tree["subtree"]["Total"] == snapshot.totals["cpu"]["Total"]


def test_what_a_custom_function_allocates_has_its_own_line_and_that_of_the_forward(tmp_path):
    file = tmp_path / "run.msc"
    x = torch.rand(3000, requires_grad=True)
    with modscope.record(file, stacks=2):
        line = sys._getframe().f_lineno + 1
        y = Scale.apply(x)
        y.sum().backward()
    name = "test_what_a_custom_function_allocates_has_its_own_line_and_that_of_the_forward"
    blocks = modscope.load(file).snapshot("peak").blocks()
    (place,) = {block.place for block in blocks if block.place and block.place.node == "ScaleBackward"}
    own = Scale.backward.__code__.co_firstlineno + 2
    assert (place.function, place.line, place.operator, place.attributed) == (
        "Scale.backward",
        own,
        "ScaleBackward",
        place,
    )
    assert [(frame.function, frame.line) for frame in place.frames] == [("Scale.backward", own), (name, line + 1)]
    assert (place.forward[0].function, place.forward[0].line, place.forward[0].called) == (name, line, "Scale.apply")
    assert place.describe() == f"{_lines_read.shown_file(__file__)}:{own} in Scale.backward"


def test_a_function_of_a_library_is_known_by_the_line_that_uses_it(tracked):
    names: dict[str, Any] = {"torch": torch, "__name__": "library"}
    code = compile(_LIBRARY, os.path.join(os.path.dirname(torch.__file__), "..", "library.py"), "exec")
    exec(code, names)
    x = torch.rand(3000, requires_grad=True)
    for number in range(5):  # classes that are made again, at addresses that were used before
        function = names["make"](number)
        y, line = function.apply(x), sys._getframe().f_lineno
        (gradient,) = torch.autograd.grad(y.sum(), x)
        nodes = [row[1] for row in tracked.stack(gradient.data_ptr()) if row[0] is None]
        assert nodes == [f"Double{number}Backward"] and y.grad_fn.name() == nodes[0]
        assert first_line(tracked.forward_stack(gradient.data_ptr())) == line_by_torch(y.grad_fn)
        assert line_by_torch(y.grad_fn) == (
            __file__,
            line,
            "test_a_function_of_a_library_is_known_by_the_line_that_uses_it",
        )
        del function, y, gradient


def test_numbers_are_no_longer_intercepted_afterwards():
    assert not _native.created_intercepted()
    with modscope.MemTracker(stacks=0):
        assert not _native.created_intercepted()
    for _ in range(3):
        with modscope.MemTracker():
            assert _native.created_intercepted()
            x = torch.ones(2, requires_grad=True)
            for result in (x * 2, Scale.apply(x)):
                assert _native.created_node_stack(result.grad_fn._sequence_nr())
        assert not _native.created_intercepted()
