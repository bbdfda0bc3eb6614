"""What is called in the line that makes a block, by the program's bytecode: compared with Python's own ``ast`` and
``dis``."""

import ast
import asyncio
import dis
import functools
import glob
import operator
import os
import random
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION, UNDER_ASAN
from modscope import _capture, _native
from modscope._read import lines as _lines_read
from modscope._trackers import mem_tracker

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

_ARITHMETIC = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}


# ---- all instructions of Python's own library, by its source ----


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def dotted(tree: ast.expr) -> str | None:
    if isinstance(tree, ast.Name):
        return tree.id
    base = dotted(tree.value) if isinstance(tree, ast.Attribute) else None
    return f"{base}.{tree.attr}" if base and isinstance(tree, ast.Attribute) else None


class Source:
    """The expressions of a source text by where they end."""

    def __init__(self, tree: ast.AST) -> None:
        self._ending: dict[tuple[int | None, int | None], list[Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.expr | ast.stmt):
                self._ending.setdefault((node.end_lineno, node.end_col_offset), []).append(node)
        decorated = (
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        )
        self.decorators = {dotted(decorator) for node in decorated for decorator in node.decorator_list}

    def find(self, at: dis.Positions, kinds: type | tuple[type, ...]) -> Any:
        """The expression at the position. That of a method's call may begin at the method's name."""
        start = at.lineno, at.col_offset
        found = [node for node in self._ending.get((at.end_lineno, at.end_col_offset), []) if isinstance(node, kinds)]
        for node in found:
            if (node.lineno, node.col_offset) == start:
                return node
        for node in found:
            method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
            if method and (method.end_lineno, (method.end_col_offset or 0) - len(method.attr)) == start:
                return node
        return None


def expected_of_call(node: ast.Call) -> set[str | None]:
    """As it is written; only the method's name, where more than names is before it. Then the base may be in
    parentheses."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else None
    return {dotted(node.func) or method, method or dotted(node.func)}


def is_private(node: ast.AST) -> bool:  # whose name is another one in the bytecode
    return any(isinstance(part, ast.Attribute) and part.attr.startswith("__") for part in ast.walk(node))


def compare_code(code: CodeType, source: Source, counts: Counter[str], wrong: list[Any]) -> None:
    for instruction in dis.get_instructions(code):
        at = instruction.positions
        if at is None or at.col_offset is None:
            continue
        *_, line, end_line, column, end_column, called = _native.describe_instruction(code, instruction.offset)
        assert (line, end_line, column, end_column) == (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset)
        name = instruction.opname
        if name in ("PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            node = source.find(at, ast.Call)
            allowed = expected_of_call(node) if node else {None, *source.decorators}
            right = called in allowed or called == "exit" or (node is not None and is_private(node.func))
            counts["calls" if node and called in allowed and called else "others"] += 1
        elif name == "BINARY_OP":
            node = source.find(at, (ast.BinOp, ast.AugAssign))
            named = _ARITHMETIC[type(node.op)] if node else None
            right = node is None or called == ("i" if isinstance(node, ast.AugAssign) else "") + str(named)
            counts["operators"] += node is not None
        elif name in ("BINARY_SUBSCR", "BINARY_SLICE"):
            right = called == "getitem"
        else:
            continue
        if not right:
            wrong.append((code.co_filename, at, name, called))


def test_what_each_instruction_of_the_standard_library_calls():
    files = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "*.py")))
    counts: Counter[str] = Counter()
    wrong: list[Any] = []
    for file in random.Random(0).sample(files, 12):
        with open(file, "rb") as stream:
            text = stream.read()
        source = Source(ast.parse(text))
        for code in codes_in(compile(text, file, "exec")):
            compare_code(code, source, counts, wrong)
    assert wrong == []
    assert counts["calls"] > 1000 and counts["operators"] > 50, counts
    assert counts["others"] < 0.2 * counts["calls"], counts


# ---- blocks ----

# Each row: a statement that makes a block and keeps it, and what it calls.
_ROWS = {
    "keep(torch.ones(1000))": "torch.ones",
    "keep(torch.nn.functional.relu(x))": "torch.nn.functional.relu",
    "keep(x.view(10, 100).t().contiguous())": "contiguous",
    "keep(x\n     .view(10, 100)\n     .clone())": "clone",
    "keep(torch.relu(x) + x.exp())": "add",
    "keep((torch.relu(x), x.exp())[0])": "torch.relu",
    "keep((torch.relu(x), x.exp())[1])": "x.exp",
    "keep(x[0] if x is None else x * 3)": "mul",
    "keep(-x)": "neg",
    "keep(1 - x ** 2)": "sub",
    "keep(x < 1)": "lt",
    "keep(x[[1, 2]])": "getitem",
    "keep(m @ x)": "matmul",
    "z = 1\n    z += x\n    keep(z)": "iadd",
    "keep((x if x is not None else m).mul(2))": "mul",
    "keep([torch.relu][0](x))": None,
    "keep(torch.add(x, other=x))": "torch.add",
    "keep(torch.add(*(x, x), **{}))": "torch.add",
    "keep([z.sin() for z in (x,)][0])": "z.sin",
    "keep((lambda z: z.cos())(x))": "z.cos",
    "keep(eval('torch.exp(x)'))": "torch.exp",
    "keep(eval('torch.cos(x)'))": "torch.cos",
    "keep(holder.made)": "holder.made",
    "with manager() as z:\n        keep(z)": "enter",
    "for z in map(torch.ones, [1000]):\n        keep(z)": "next",
    "z, = map(torch.ones, [1000])\n    keep(z)": "iter",
    "holder.inner.make = torch.ones\n    keep(holder.inner.make(1000))": "holder.inner.make",
}


class Holder:
    """Its property is C code: it makes a block without a frame of its own."""

    made = property(operator.methodcaller("make"))
    make = functools.partial(torch.ones, 1000)

    def __init__(self) -> None:
        self.inner = types.SimpleNamespace()


class Manager:
    __enter__ = functools.partial(torch.ones, 1000)

    def __exit__(self, *ignored: object) -> None:
        pass


def run_rows(ledger: _native.Ledger, trace: Any = None) -> list[Any]:
    """What each row is said to call, in a function that was executed a few times before, and so is specialized."""
    kept: list[torch.Tensor] = []
    names = {
        "torch": torch,
        "keep": kept.append,
        "x": torch.rand(1000),
        "m": torch.rand(3, 1000),
        "holder": Holder(),
        "manager": Manager,
    }
    found = []
    for number, row in enumerate(_ROWS):
        exec(compile(f"def made():\n    {row}\n", f"<row {number}>", "exec"), names)
        for repeat in range(12):
            sys.settrace(trace if repeat == 11 else None)
            try:
                names["made"]()  # type: ignore[operator]
            finally:
                sys.settrace(None)
        found.append((row, ledger.stack(kept[-1].data_ptr())[0][6]))
    return found


@pytest.mark.parametrize("traced", [False, True])
def test_what_made_a_block_is_known_without_its_source(traced):
    def trace(frame: Any, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        return trace

    with modscope.MemTracker() as tracker:
        found = run_rows(mem_tracker.ledger_of(tracker), trace if traced else None)
    assert found == list(_ROWS.items())


@pytest.mark.skipif(UNDER_ASAN, reason="ASan does not use the memory again")
def test_code_at_addresses_that_were_used_before():
    """Functions that differ in one name only, and are freed a few or many at a time."""
    pick = random.Random(0)
    x = torch.rand(10)
    used: Counter[int] = Counter()
    with modscope.MemTracker() as tracker:
        ledger = mem_tracker.ledger_of(tracker)
        for _ in range(60):
            functions = []
            for _ in range(pick.choice([1, 2, 15, 16, 17, 40])):
                name = pick.choice(["exp", "sin", "cos", "tan"])
                names: dict[str, Any] = {"torch": torch, "x": x}
                exec(compile(f"def made():\n    return torch.{name}(x)\n", "<again>", "exec"), names)
                functions.append((name, names.pop("made")))
            for name, function in functions:
                made = function()
                used[id(function.__code__)] += 1
                assert ledger.stack(made.data_ptr())[0][6] == f"torch.{name}"
            del functions, function
    assert max(used.values()) > 5


def test_what_is_awaited():
    async def make(kept: list[torch.Tensor]) -> None:
        kept.append(await asyncio.sleep(0, torch.ones(3)) + 1)

    async def main(ledger: _native.Ledger) -> Any:
        kept: list[torch.Tensor] = []
        await make(kept)
        return ledger.stack(kept[0].data_ptr())

    with modscope.MemTracker(stacks=2) as tracker:
        inner, outer = asyncio.run(main(mem_tracker.ledger_of(tracker)))
    assert (inner[6], outer[6]) == ("add", "make")


def test_code_without_columns_has_operators_but_no_functions():
    code = compile("a @ b\nf(a)\n", "<no columns>", "exec")
    lines = b"".join(bytes([0x80 | 13 << 3 | min(left, 8) - 1, 0]) for left in range(len(code.co_code) // 2, 0, -8))
    found = [
        _native.describe_instruction(code.replace(co_linetable=lines), each.offset)[6]
        for each in dis.get_instructions(code)
    ]
    assert set(found) == {None, "matmul"}


# ---- captures ----


def operators_of(file: Path, script: Path) -> dict[int, str | None]:
    _lines_read._source_note.cache_clear()
    made = [
        block
        for block in modscope.load(file).snapshot("peak").blocks()
        if block.place and block.place.file == str(script)
    ]
    return {block.bytes: block.place.operator for block in made if block.place and block.bytes > 8}


def test_a_capture_needs_no_source_to_tell_what_was_called(tmp_path):
    script, file = tmp_path / "script.py", tmp_path / "run.msc"
    text = "kept = [torch.ones(1000), x + 1]\n"
    script.write_text(text)
    names = {"torch": torch, "x": torch.ones(3000)}
    with modscope.record(file):
        exec(compile(text, str(script), "exec"), names)
    expected = {4000: "torch.ones", 12000: "add"}
    assert operators_of(file, script) == expected
    script.write_text("kept = [numpy.full(1000), x - 1]\n")
    os.utime(script, (1e9, 1e9))
    assert operators_of(file, script) == expected
    script.unlink()
    assert operators_of(file, script) == expected


def test_a_source_is_known_by_its_content(tmp_path):
    script, file = tmp_path / "script.py", tmp_path / "run.msc"
    text = "kept = torch.ones(1000)\n"
    script.write_text(text)
    os.utime(script, (1e9, 1e9))
    with modscope.record(file):
        exec(compile(text, str(script), "exec"), {"torch": torch})

    def note() -> str | None:
        _lines_read._source_note.cache_clear()
        (place,) = (block.place for block in modscope.load(file).snapshot("peak").blocks() if block.bytes == 4000)
        assert place is not None
        return place.source_note

    assert note() is None
    for changed in (text.replace("1000", "2000"), text + "\n"):  # with an older time, and once of the same size
        script.write_text(changed)
        os.utime(script, (1e8, 1e8))
        assert note() == "changed since"
    script.write_text(text)
    os.utime(script)
    assert note() is None
    assert _capture.read_source(str(script))[0] == len(text)
    assert _capture.read_source(str(tmp_path)) is None and _capture.read_source("<string>") is None
