"""A flame graph as text: the roots in the first row, and below each rectangle what is inside it. The widths are bytes."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from typing import NamedTuple

from modscope._categories import TOTAL, Sums, parts_of
from modscope._commands.alike import Node
from modscope._commands.terminal import Screen
from modscope._groups import last_named_part
from modscope._text import clean, counted, percent, size, width_of

_NARROWEST = 5  # columns of a rectangle, with its left edge; those that would be narrower share one
_LEAST_OF_NAME = 4  # columns of a function's name before the number of its line
_NARROW_LINES = 4  # that say what is too narrow
_STACKS = 5  # that are listed below the picture


class _Cell(NamedTuple):
    begin: int
    end: int
    labels: tuple[str, ...]
    """The first that fits is written."""
    category: str | None
    """That most of it is. None: several that are too narrow to be drawn."""
    matches: bool
    number: str = ""
    """Of a line, ":41": it says more than the end of the function's name."""


class _Narrow(NamedTuple):
    """Siblings that are too narrow to be drawn."""

    around: tuple[Node, ...]
    nodes: list[Node]
    bytes: int


def _most(sums: Sums) -> str:
    return max(parts_of(sums).items(), key=lambda part: part[1])[0]


def _labels(node: Node, whole: int) -> tuple[str, ...]:
    held, share = size(node.subtree[TOTAL]), percent(node.subtree[TOTAL], whole)
    report = node.report
    if report["function"] is not None:
        line = f"{os.path.basename(report['file'])}:{report['line'] or '?'}"
        function = report["function"].rpartition(".")[2]
        texts = f"{report['function']} {line}", f"{function} {line}", f"{function}:{report['line'] or '?'}", function
        names = tuple(map(clean, texts))
    else:
        name = clean(node.name)
        names = (name + (f" ({node.modules} alike)" if node.is_group else ""), name)
        names += (
            (report["fqn"] if report["fqn"] == "Global" else last_named_part(name),)
            if report["what"] == "module"
            else ()
        )
    figures = [f"{names[0]} {held} {share}", f"{names[0]} {share}", f"{names[1]} {share}"]
    return (*figures, *names)


class _Picture:
    """The rows of rectangles. A rectangle begins at the column of the bytes to its left, so that widths add up."""

    def __init__(self, whole: int, columns: int, depth: int | None) -> None:
        self._whole = whole
        self._columns = columns
        self._depth = depth
        self.rows: list[list[_Cell]] = []
        self.narrow: list[_Narrow] = []

    def _column(self, at: int) -> int:
        return (2 * at * self._columns + self._whole) // (2 * self._whole)

    def place(self, nodes: list[Node], at: int = 0, level: int = 0, around: tuple[Node, ...] = ()) -> None:
        if not nodes or level == self._depth:
            return
        if len(self.rows) == level:
            self.rows.append([])
        for i, node in enumerate(nodes):
            begin, end = self._column(at), self._column(at + node.subtree[TOTAL])
            if end - begin < _NARROWEST:
                self._place_narrow(nodes[i:], at, level, around)
                return
            matches = bool(node.report.get("matches"))
            number = f":{node.report['line'] or '?'}" if node.report["function"] is not None else ""
            self.rows[level].append(_Cell(begin, end, _labels(node, self._whole), _most(node.subtree), matches, number))
            self.place(node.children, at, level + 1, (*around, node))
            at += node.subtree[TOTAL]

    def _place_narrow(self, nodes: list[Node], at: int, level: int, around: tuple[Node, ...]) -> None:
        held = sum(node.subtree[TOTAL] for node in nodes)
        begin, end = self._column(at), self._column(at + held)
        self.narrow.append(_Narrow(around, nodes, held))
        if end > begin:
            self.rows[level].append(_Cell(begin, end, (f"+{len(nodes)}", ""), None, any(map(_has_match, nodes))))


def _has_match(node: Node) -> bool:
    return bool(node.report.get("matches")) or any(map(_has_match, node.children))


def _name_of_stack(stack: tuple[Node, ...]) -> str:
    """Modules with a dot between them, other names with an arrow. Of frames that follow each other the innermost."""
    out, before = "", None
    for node, below in zip(stack, (*stack[1:], None)):
        if below is None or not (node.report["what"] == below.report["what"] == "frame"):
            between = "" if before is None else "." if before == node.report["what"] == "module" else " > "
            out, before = out + between + node.name, node.report["what"]
    return out


# ---- as lines ----


def _row(cells: list[_Cell], columns: int, screen: Screen) -> str:
    out, at, edge = "", 0, False
    for cell in [*cells, _Cell(columns, columns, ("",), None, False)]:
        if cell.begin > at:
            out += (screen.edge if edge else " ") + " " * (cell.begin - at - 1)
            edge = False
        if cell.end > cell.begin:
            out += screen.edge + _inside(cell, screen)
            edge = True
        at = cell.end
    return (out + (screen.edge if edge else "")).rstrip()


def _inside(cell: _Cell, screen: Screen) -> str:
    room = cell.end - cell.begin - 1
    mark = screen.mark if cell.matches else ""
    inner = room - width_of(mark)
    text = next((label for label in cell.labels if width_of(label) <= inner), None)
    if cell.number and text in (None, cell.labels[-1]) and inner - len(cell.number) >= _LEAST_OF_NAME:
        text = screen.cut(cell.labels[-1], inner - len(cell.number)) + cell.number
    text = screen.cut(cell.labels[-1], inner) if text is None else text
    text = (mark + text)[:room] if inner < 1 else mark + text
    filled = text + " " * (room - width_of(text))
    return screen.filled(filled, cell.category, cell.matches) if cell.category else screen.dim(filled)


def _narrow_lines(narrow: list[_Narrow], whole: int, screen: Screen) -> list[str]:
    if not narrow:
        return []
    narrow = sorted(narrow, key=lambda each: -each.bytes)
    lines = ["", screen.bold("Too narrow to draw (+)")]
    for each in narrow[:_NARROW_LINES]:
        names = ", ".join(node.name for node in each.nodes[:20])
        inside = f" in {_name_of_stack(each.around)}" if each.around else ""
        lines.append(screen.cut(f"{size(each.bytes)} ({percent(each.bytes, whole)}){inside}: {names}", screen.width))
    rest = narrow[_NARROW_LINES:]
    if rest:
        held = sum(each.bytes for each in rest)
        lines.append(f"{size(held)} ({percent(held, whole)}) in {counted(len(rest), 'other place')}")
    return lines


def _leaves(nodes: list[Node], around: tuple[Node, ...] = ()) -> Iterator[tuple[int, tuple[Node, ...]]]:
    for node in nodes:
        stack = *around, node
        if node.own[TOTAL]:
            yield node.own[TOTAL], stack
        yield from _leaves(node.children, stack)


def _stack_lines(nodes: list[Node], whole: int, screen: Screen) -> list[str]:
    largest = heapq.nlargest(_STACKS, _leaves(nodes), key=lambda leaf: leaf[0])
    rows = [(size(held), percent(held, whole), _name_of_stack(stack)) for held, stack in largest]
    return ["", *screen.table(("Bytes", "Share", "The largest stacks"), rows)]


def draw(nodes: list[Node], title: str, whole: int, depth: int | None, screen: Screen) -> list[str]:
    """The picture of these nodes, which hold ``whole`` bytes, and what it does not show: the names that are cut, and what is
    too narrow."""
    columns = screen.width - 1
    picture = _Picture(whole, columns, depth)
    picture.place(nodes)
    rows = [_row(cells, columns, screen) for cells in picture.rows]
    if len(nodes) > 1:
        rows.insert(
            0,
            _row(
                [_Cell(0, columns, (f"{clean(title)} {size(whole)} 100%", clean(title)), _most_of(nodes), False)],
                columns,
                screen,
            ),
        )
    scale = f"Width is bytes: a column is {size(round(whole / columns))}, 100% is {size(whole)}. What is below a part is inside it."
    return [
        *rows,
        "",
        *screen.wrap(scale),
        *_legend(nodes, screen),
        *_narrow_lines(picture.narrow, whole, screen),
        *_stack_lines(nodes, whole, screen),
    ]


def _most_of(nodes: list[Node]) -> str:
    return _most(_sum(nodes))


def _sum(nodes: list[Node]) -> Sums:
    total: Sums = {}
    for node in nodes:
        for category, value in node.subtree.items():
            total[category] = total.get(category, 0) + value
    return total


def _legend(nodes: list[Node], screen: Screen) -> list[str]:
    if not screen.colour:
        return []
    parts = sorted(parts_of(_sum(nodes)).items(), key=lambda part: -part[1])
    return ["Colour is what most of it is: " + " ".join(screen.filled(f" {word} ", word, False) for word, _ in parts)]
