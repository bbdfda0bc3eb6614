"""The lines and operators that made blocks, as captures have them, and the source text that belongs to them."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from modscope import _capture
from modscope._read.cells import Cells

_RawFrame = tuple[str | None, str, int, int, int, int, int]

LOST = 1  # the stack of blocks that were made when the table of stacks was full
NOT_FOUND = "source not found"
CHANGED = "changed since"
_Source = tuple[int, int, int]  # its size, when it was modified, in microseconds since 1970, and its checksum
_MOST_FRAMES = 130  # as many as a recording keeps, with node and operator; a forged file could have millions


class Frame(NamedTuple):
    """A frame of a Python stack. Columns are in bytes of UTF-8, from 0; ``end_line`` is 0 where they are not known."""

    file: str
    function: str
    line: int
    end_line: int = 0
    column: int = 0
    end_column: int = 0
    called: str | None = None
    """What is called there, as the program's bytecode says: "torch.relu", "matmul"."""


class Sources:
    """The source files of a capture, as they were then."""

    def __init__(self, by_file: Mapping[str, _Source]) -> None:
        self._by_file = by_file

    def note(self, file: str, began: float | None) -> str | None:
        """Why the source text cannot be shown; None if it can."""
        return _source_note(file, began, self._by_file.get(file))


_NO_SOURCES = Sources({})


class Place(NamedTuple):
    """Where in the program a block was made."""

    frames: tuple[Frame, ...]
    """The program's own frames, innermost first."""
    node: str | None
    """The class of the backward node that made it; None outside backward."""
    began: float | None
    """When the run began, in seconds since 1970."""
    lost: bool = False
    """The line was known, but the table of lines was full."""
    aten: str | None = None
    """The operator of torch's dispatcher that made it, such as ``aten::addmm``; known where modscope runs operators
    itself: with the dispatcher as the source of blocks, and in predictions."""
    forward: tuple[Frame, ...] = ()
    """The program's frames that created the backward node in the forward, innermost first, where they are known."""
    cells: Cells | None = None
    """The notebook's cells, whose source is not in files."""
    sources: Sources = _NO_SOURCES
    """The source files as they were when the program ran."""
    model: tuple[Frame, ...] = ()
    """Inside the program's frames, those of a model that is in a library, innermost first."""
    forward_model: tuple[Frame, ...] = ()
    """The same of the forward that created the backward node."""
    is_inside: bool = False
    """Whether the innermost frame is in the backward of a custom Function, whose node this is."""

    @property
    def file(self) -> str | None:
        return self.frames[0].file if self.frames else None

    @property
    def line(self) -> int | None:
        return self.frames[0].line or None if self.frames else None

    @property
    def function(self) -> str | None:
        return self.frames[0].function if self.frames else None

    @property
    def stack(self) -> tuple[Frame, ...]:
        """All its frames, innermost first."""
        return self.model + self.frames

    @property
    def innermost(self) -> Frame | None:
        """The model's line if it is in a library, else the program's own."""
        return next(iter(self.stack), None)

    @property
    def operator(self) -> str | None:
        """The operator of torch's dispatcher, if it is known. Else in backward the node's class, and in forward the
        function that is called in the line. Captures of earlier versions do not tell it: then it is looked up in the
        source, as long as that is there and has not changed."""
        innermost = self.innermost
        known = self.aten or self.node or (innermost.called if innermost else None)
        if known or not innermost or self.note_of(innermost):
            return known
        return _function_called(innermost, self.cells)

    @property
    def source_note(self) -> str | None:
        """Why the source text of the line cannot be shown; None if it can."""
        return self.note_of(self.frames[0]) if self.frames else NOT_FOUND

    def note_of(self, frame: Frame) -> str | None:
        """Why the source text of a frame's line cannot be shown; None if it can."""
        if self.cells is not None and self.cells.is_cell(frame.file):
            return NOT_FOUND if self.cells.lines(frame.file) is None else None
        return self.sources.note(frame.file, self.began)

    @property
    def source(self) -> str | None:
        """The source text of the line, if it is there and has not changed since."""
        return self.source_of(self.frames[0]) if self.frames else None

    def source_of(self, frame: Frame) -> str | None:
        if not frame.line or self.note_of(frame):
            return None
        return "".join(source_lines(frame.file, self.cells)[frame.line - 1 : frame.line]).strip() or None

    @property
    def attributed(self) -> Place:
        """To which line it is attributed: in backward, that of the forward if it is known, except what the program's
        own code allocates in the backward of a custom Function."""
        if not self.forward or self.is_inside:
            return self
        return self._replace(frames=self.forward, model=self.forward_model, forward=(), forward_model=())

    def to_dict(self) -> dict[str, Any]:
        """The program's innermost line, its operator, in backward the node and the line of the forward, the line of a
        model that is in a library, and all frames. None where it is not known."""
        stack = [{"file": each.file, "line": each.line or None, "function": each.function} for each in self.stack]
        made = {
            "operator": self.operator,
            "node": self.node,
            **_line_of(self.forward, "forward_"),
            "in_custom_backward": self.is_inside,
            **_line_of(self.attributed.model, "model_"),
        }
        return {**_line_of(self.frames), **made, "stack": stack}

    def describe(self) -> str:
        """Say where it is: "train.py:41 in forward", and if its source is not there any more, that it is not. In
        backward "MmBackward0, forward at train.py:41 in forward", if that line is known."""
        if self.forward and not self.is_inside:
            return f"{self.node}, forward at {self.attributed.describe()}"
        if self.lost:
            return "(line lost: the table of lines was full)"
        if not self.frames:
            return "(no Python line)"
        note = f" ({self.source_note})" if self.source_note else ""
        model = f"{describe_model_frame(self.model[0])}, called from " if self.model else ""
        return f"{model}{shown_file(self.frames[0].file)}:{self.line or '?'} in {self.function}{note}"


def _line_of(frames: tuple[Frame, ...], before: str = "") -> dict[str, str | int | None]:
    frame = frames[0] if frames else None
    known = (frame.file, frame.line or None, frame.function) if frame is not None else (None, None, None)
    return dict(zip((f"{before}file", f"{before}line", f"{before}function"), known, strict=True))


UNKNOWN = Place((), None, None)


def shown_file(file: str) -> str:
    """A file below the present folder without that folder's name."""
    here = os.path.join(os.getcwd(), "")
    return file.removeprefix(here)


def library_file(file: str) -> str:
    """The file of an installed library from the library's folder on: transformers/models/gpt2/modeling_gpt2.py."""
    for folder in ("site-packages", "dist-packages"):
        _, found, inside = file.rpartition(f"{os.sep}{folder}{os.sep}")
        if found:
            return inside
    return shown_file(file)


def describe_model_frame(frame: Frame) -> str:
    return f"{library_file(frame.file)}:{frame.line or '?'} in {frame.function}"


@lru_cache(4096)
def normal_file(file: str) -> str:
    """A whole file name without "..", as in that of a script that was given as ../train.py. It stays as it is if it
    would then name another file, as beyond a symbolic link."""
    plain = os.path.normpath(file) if os.path.isabs(file) else file
    if plain == file:
        return file
    try:
        return plain if os.path.samefile(file, plain) else file
    except (OSError, ValueError):
        return file if os.path.lexists(file) else plain


@lru_cache(4096)
def _source_note(file: str, began: float | None, was: _Source | None) -> str | None:
    """Why the source of a file cannot be shown. ``was``: the file when the program ran; without it, a file that was
    modified since the run began counts as changed. A file like "<string>" never had a source that could be found
    later."""
    try:
        modified = os.stat(file).st_mtime
        now = _capture.read_source(file) if was is not None else None
    except (OSError, ValueError):
        return NOT_FOUND
    if was is not None:
        modified = was[1] / 1e6
        if now is None or (now[0], now[2]) != (was[0], was[2]):
            return CHANGED
    return CHANGED if began is not None and modified > began else None


def source_lines(file: str, cells: Cells | None) -> list[str]:
    """The lines of a file, or of a notebook's cell. Empty: not found."""
    found = cells.lines(file) if cells is not None else None
    return linecache.getlines(file) if found is None else found


# ---- the function that is called ----

_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
    ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift", ast.USub: "neg", ast.Invert: "invert", ast.Eq: "eq", ast.NotEq: "ne",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip


@lru_cache(4096)
def _function_called(frame: Frame, cells: Cells | None) -> str | None:
    lines = source_lines(frame.file, cells)[frame.line - 1 : frame.end_line] if frame.end_line else []
    if not lines:
        return None
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][: frame.end_column]
    encoded[0] = encoded[0][frame.column :]
    try:
        tree = ast.parse(b"(" + b"".join(encoded).lstrip(b".") + b")", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return _name_of(tree)


def _name_of(tree: ast.expr) -> str | None:
    if isinstance(tree, ast.Await):
        return _name_of(tree.value)
    if isinstance(tree, ast.Call):
        return _dotted(tree.func) or (tree.func.attr if isinstance(tree.func, ast.Attribute) else None)
    if isinstance(tree, (ast.BinOp, ast.UnaryOp)):
        return _OPERATORS.get(type(tree.op))
    if isinstance(tree, ast.Compare):
        return _OPERATORS.get(type(tree.ops[0]))
    return "getitem" if isinstance(tree, ast.Subscript) else None


def _dotted(tree: ast.expr) -> str | None:
    """A name with its dots, such as "torch.relu"; None if the expression is more than names."""
    if isinstance(tree, ast.Name):
        return tree.id
    base = _dotted(tree.value) if isinstance(tree, ast.Attribute) else None
    return f"{base}.{tree.attr}" if base and isinstance(tree, ast.Attribute) else None


# ---- the table ----


class Places:
    """The stacks of a capture, as the places that they stand for."""

    def __init__(
        self,
        stacks: Sequence[_RawFrame | None],
        began: str | None = None,
        forward: Mapping[int, int] | None = None,
        cells: str | None = None,
        *,
        model_frames: Set[int] = frozenset(),
        called: Mapping[int, str] | None = None,
        sources: Mapping[str, _Source] | None = None,
    ) -> None:
        self._stacks = stacks
        self._forward = forward or {}
        self._model_frames = model_frames
        self._called = called or {}
        self._sources = (
            Sources({normal_file(file): source for file, source in sources.items()}) if sources else _NO_SOURCES
        )
        self._began_text = began
        self._cells = Cells(cells)
        self._found: dict[int, Place | None] = {0: None}

    @cached_property
    def _began(self) -> float | None:
        try:
            return float(self._began_text or "")
        except ValueError:
            return None

    @cached_property
    def has_lines(self) -> bool:
        """Whether frames were recorded. Operators may be known without them."""
        return any(raw is not None and raw[0] is not None for raw in self._stacks)

    def find(self, stack: int) -> Place | None:
        """The place that a stack stands for; None if nothing is known about it."""
        if stack not in self._found:
            self._found[stack] = Place((), None, None, lost=True) if stack == LOST else self._read(stack)
        return self._found[stack]

    def source_lines(self, file: str) -> list[str]:
        return source_lines(file, self._cells)

    def innermost(self) -> Iterator[Place]:
        """Yield the place of each stack in the order of their numbers, without the frames around the innermost one."""
        return (self._read(stack, most=1) or UNKNOWN for stack in range(len(self._stacks)))

    def _read(self, stack: int, most: int | None = None) -> Place | None:
        frames: list[Frame] = []
        model: list[Frame] = []
        node = aten = None
        is_inside = False
        made_at: Place | None = None
        for _ in range(_MOST_FRAMES):
            raw = self._stacks[stack] if 0 < stack < len(self._stacks) else None
            if raw is None or (node and len(frames) == most):
                break
            file, function, line, end_line, column, end_column, outer = raw
            if file is not None and len(frames) == most:
                pass  # a node may be around it
            elif file is not None:
                called = self._called.get(stack)
                (model if stack in self._model_frames else frames).append(
                    Frame(normal_file(self._cells.name(file)), function, line, end_line, column, end_column, called)
                )
            elif "::" in function:
                aten = function
            else:
                node = function
                is_inside = bool(frames)
                created = self._forward.get(stack, 0)
                made_at = self.find(created) if created < stack else None
            stack = outer if outer < stack else 0
        if not (frames or model or node or aten):
            return None
        return Place(
            tuple(frames),
            node,
            self._began,
            aten=aten,
            forward=made_at.frames if made_at is not None else (),
            cells=self._cells,
            sources=self._sources,
            model=tuple(model),
            forward_model=made_at.model if made_at is not None else (),
            is_inside=is_inside,
        )
