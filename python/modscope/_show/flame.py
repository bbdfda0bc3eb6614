"""``modscope flame``: the tree of what owns and made bytes, and its picture as text.

In the tree are the modules that own bytes, below each the stack that made them, outermost frame first, and at its end
the operator. Every byte is in exactly one leaf, or in a module whose lines are not known. A report of the tree has
``name``, ``what`` ("category", "module", "frame" or "operator"), ``fqn`` of a module, ``file``, ``line`` and
``function`` of a frame, and ``own``, the bytes that none of its ``children`` has. In the picture the roots are in the
first row, and below each rectangle is what is inside it. The widths are bytes."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import NamedTuple

from modscope._read.categories import CATEGORIES, TOTAL, Raw, Sums, parts_of, sums_of
from modscope._read.groups import last_named_part, merge_numbers
from modscope._read.lines import Frame, Place
from modscope._read.module_tree import Branch, grow
from modscope._read.summary import Report
from modscope._read.text import clean, counted, percent, size, width_of
from modscope._show.lines import line_label
from modscope._show.modules import TreeNode
from modscope._show.terminal import Screen

# ---- the tree ----

Made = list[tuple[str, Place | None, Raw]]
"""Modules, the places where what they own was made, and its bytes by category."""

ORDERS = ("module", "layers", "line", "operator", "category")


class _Level(NamedTuple):
    """Two siblings with equal levels are the same node."""

    what: str
    name: str
    frame: Frame | None = None


class _Tree:
    """A node to which bytes are still added."""

    __slots__ = ("own", "children")

    def __init__(self) -> None:
        self.own: Raw = (0,) * len(CATEGORIES)
        self.children: dict[_Level, _Tree] = {}

    def add(self, levels: Iterable[_Level], raw: Raw) -> None:
        node = self
        for level in levels:
            below = node.children.get(level)
            if below is None:
                below = node.children[level] = _Tree()
            node = below
        node.own = tuple(map(add, node.own, raw))

    def reports(self) -> list[Report]:
        return _sorted([_report_of(level, child.own, child.reports()) for level, child in self.children.items()])


def _sorted(reports: list[Report]) -> list[Report]:
    return sorted(reports, key=lambda report: (-report["subtree"][TOTAL], report["name"]))


def _report_of(level: _Level, own: Raw, children: list[Report]) -> Report:
    own_sums, subtree = sums_of(own), sums_of(own)
    for child in children:
        for category, value in child["subtree"].items():
            subtree[category] += value
    frame = level.frame
    return {
        "name": level.name,
        "what": level.what,
        "fqn": level.name if level.what == "module" else None,
        "file": frame.file if frame else None,
        "line": frame.line or None if frame else None,
        "function": frame.function if frame else None,
        "own": own_sums,
        "subtree": subtree,
        "children": children,
    }


# ---- the levels of a place ----


def _frame_level(frame: Frame) -> _Level:
    """Frames in different columns of a line are the same."""
    short = Frame(frame.file, frame.function, frame.line)
    return _Level("frame", clean(f"{frame.function} ({os.path.basename(frame.file)}:{frame.line or '?'})"), short)


def _operator_levels(place: Place | None) -> list[_Level]:
    operator = place.operator if place is not None else None
    return [_Level("operator", clean(operator))] if operator else []


def _stack_levels(place: Place | None) -> list[_Level]:
    """Outermost first. Empty: nothing is known."""
    if place is not None and place.lost:
        return [_Level("frame", line_label(place))]
    frames = reversed(place.attributed.stack) if place is not None else ()
    return [*map(_frame_level, frames), *_operator_levels(place)]


class _Levels:
    """The levels of each place, which are made once."""

    def __init__(self, make: Callable[[Place | None], list[_Level]]) -> None:
        self._make = make
        self._made: dict[int, list[_Level]] = {}

    def of(self, place: Place | None) -> list[_Level]:
        levels = self._made.get(id(place))
        if levels is None:
            levels = self._made[id(place)] = self._make(place)
        return levels


# ---- orders ----


def _by_module(made: Made) -> list[Report]:
    levels = _Levels(_stack_levels)
    stacks: dict[str, _Tree] = {}
    for fqn, place, raw in made:
        stacks.setdefault(fqn, _Tree()).add(levels.of(place), raw)
    return [_module_report(branch, stacks) for branch in grow((fqn, raw) for fqn, _, raw in made)]


def _by_layers(made: Made) -> list[Report]:
    """Modules whose names differ only in numbers are one, with * for the numbers."""
    return _by_module([(merge_numbers(fqn), place, raw) for fqn, place, raw in made])


def _module_report(branch: Branch, stacks: dict[str, _Tree]) -> Report:
    children = [_module_report(child, stacks) for child in branch.children]
    held = stacks.get(branch.fqn)
    children = _sorted(children + held.reports()) if held else children
    level = _Level("module", branch.name)
    return {**_report_of(level, held.own if held else _Tree().own, children), "fqn": branch.fqn}


def _by_line(made: Made) -> list[Report]:
    """The frames, then the operator, then the module that owns the bytes."""
    levels = _Levels(lambda place: _stack_levels(place) or [_Level("frame", line_label(place))])
    tree = _Tree()
    for fqn, place, raw in made:
        tree.add([*levels.of(place), _Level("module", fqn)], raw)
    return tree.reports()


def _by_operator(made: Made) -> list[Report]:
    """The operator, then the innermost line that called it, then the module that owns the bytes."""

    def levels_of(place: Place | None) -> list[_Level]:
        operator = _operator_levels(place) or [_Level("operator", "(operator not known)")]
        frames = place.attributed.stack if place is not None else ()
        return operator + [_frame_level(frame) for frame in frames[:1]]

    levels = _Levels(levels_of)
    tree = _Tree()
    for fqn, place, raw in made:
        tree.add([*levels.of(place), _Level("module", fqn)], raw)
    return tree.reports()


def _by_category(made: Made) -> list[Report]:
    found = []
    for i, category in enumerate(CATEGORIES):
        part = [
            (fqn, place, tuple(value if at == i else 0 for at, value in enumerate(raw)))
            for fqn, place, raw in made
            if raw[i]
        ]
        if part:
            found.append(_report_of(_Level("category", str(category)), _Tree().own, _by_module(part)))
    return _sorted(found)


_MAKERS = dict(zip(ORDERS, (_by_module, _by_layers, _by_line, _by_operator, _by_category), strict=True))


def tree_of_stacks(made: Made, by: str, module: str | None) -> list[Report]:
    """The roots, largest first. ``made`` is all below ``module``, if that is given: by module, what it names are the
    roots."""
    roots = _MAKERS[by](made)
    if module is None:
        return roots
    depth = module.count(".") + 1
    if by == "category":
        return [{**root, "children": _descend(root["children"], depth)} for root in roots]
    return _descend(roots, depth) if by in ("module", "layers") else roots


def _descend(roots: list[Report], depth: int) -> list[Report]:
    """The modules whose names have so many parts, with their whole names. Those around them have no bytes of their
    own."""
    found = []
    for root in roots:
        is_above = root["what"] == "module" and root["fqn"].count(".") + 1 < depth
        found += _descend(root["children"], depth) if is_above else [{**root, "name": root["fqn"] or root["name"]}]
    return _sorted(found)


def mark_matches(reports: list[Report], text: str) -> tuple[int, int]:
    """Set ``matches`` in each report whose name, or a module's whole name, contains the text in upper or lower case.
    How many there are, and their bytes together: what is inside a match counts once."""
    count = size = 0
    for report in reports:
        names = report["name"], report["fqn"] or "", report["file"] or ""
        report["matches"] = any(text.casefold() in name.casefold() for name in names)
        count_below, size_below = mark_matches(report["children"], text)
        count += count_below + report["matches"]
        size += report["subtree"][TOTAL] if report["matches"] else size_below
    return count, size


def cut_below(reports: list[Report], depth: int | None, adds_up: bool = True) -> list[Report]:
    """The tree without what is deeper; None: all of it. ``adds_up``: what is left out becomes the own bytes of what is
    around it."""
    if depth is None:
        return reports
    if depth > 1:
        return [{**report, "children": cut_below(report["children"], depth - 1, adds_up)} for report in reports]
    return [{**report, "own": report["subtree" if adds_up else "own"], "children": []} for report in reports]


# ---- the picture ----

_NARROWEST = 5  # columns of a rectangle, with its left edge; those that would be narrower share one
_LEAST_OF_NAME = 4  # columns of a function's name before the number of its line
_NARROW_LINES = 4  # At most so many lines say what is too narrow.
_STACKS = 5  # So many stacks are listed below the picture.


class _Rectangle(NamedTuple):
    begin: int
    end: int
    labels: tuple[str, ...]
    """Names of it, of which the first that fits is written."""
    category: str | None
    """The category of most of its bytes; None for several that are too narrow to be drawn."""
    matches: bool
    number: str = ""
    """The number of a line, ":41", which says more than the end of the function's name."""


class _Narrow(NamedTuple):
    """Siblings that are too narrow to be drawn."""

    around: tuple[TreeNode, ...]
    nodes: list[TreeNode]
    bytes: int


def _most(sums: Sums) -> str:
    return max(parts_of(sums).items(), key=lambda part: part[1])[0]


def _labels(node: TreeNode, whole: int) -> tuple[str, ...]:
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
        self.rows: list[list[_Rectangle]] = []
        self.narrow: list[_Narrow] = []

    def _column(self, at: int) -> int:
        return (2 * at * self._columns + self._whole) // (2 * self._whole)

    def place(self, nodes: list[TreeNode], at: int = 0, level: int = 0, around: tuple[TreeNode, ...] = ()) -> None:
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
            self.rows[level].append(
                _Rectangle(begin, end, _labels(node, self._whole), _most(node.subtree), matches, number)
            )
            self.place(node.children, at, level + 1, (*around, node))
            at += node.subtree[TOTAL]

    def _place_narrow(self, nodes: list[TreeNode], at: int, level: int, around: tuple[TreeNode, ...]) -> None:
        held = sum(node.subtree[TOTAL] for node in nodes)
        begin, end = self._column(at), self._column(at + held)
        self.narrow.append(_Narrow(around, nodes, held))
        if end > begin:
            self.rows[level].append(_Rectangle(begin, end, (f"+{len(nodes)}", ""), None, any(map(_has_match, nodes))))


def _has_match(node: TreeNode) -> bool:
    return bool(node.report.get("matches")) or any(map(_has_match, node.children))


def _name_of_stack(stack: tuple[TreeNode, ...]) -> str:
    """Modules with a dot between them, other names with an arrow. Of frames that follow each other the innermost."""
    out, before = "", None
    for node, below in zip(stack, (*stack[1:], None)):
        if below is None or not (node.report["what"] == below.report["what"] == "frame"):
            between = "" if before is None else "." if before == node.report["what"] == "module" else " > "
            out, before = out + between + node.name, node.report["what"]
    return out


# ---- as lines ----


def _row(cells: list[_Rectangle], columns: int, screen: Screen) -> str:
    out, at, edge = "", 0, False
    for cell in [*cells, _Rectangle(columns, columns, ("",), None, False)]:
        if cell.begin > at:
            out += (screen.edge if edge else " ") + " " * (cell.begin - at - 1)
            edge = False
        if cell.end > cell.begin:
            out += screen.edge + _inside(cell, screen)
            edge = True
        at = cell.end
    return (out + (screen.edge if edge else "")).rstrip()


def _inside(cell: _Rectangle, screen: Screen) -> str:
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


def _leaves(nodes: list[TreeNode], around: tuple[TreeNode, ...] = ()) -> Iterator[tuple[int, tuple[TreeNode, ...]]]:
    for node in nodes:
        stack = *around, node
        if node.own[TOTAL]:
            yield node.own[TOTAL], stack
        yield from _leaves(node.children, stack)


def _stack_lines(nodes: list[TreeNode], whole: int, screen: Screen) -> list[str]:
    largest = heapq.nlargest(_STACKS, _leaves(nodes), key=lambda leaf: leaf[0])
    rows = [(size(held), percent(held, whole), _name_of_stack(stack)) for held, stack in largest]
    return ["", *screen.table(("Bytes", "Share", "The largest stacks"), rows)]


def draw(nodes: list[TreeNode], title: str, whole: int, depth: int | None, screen: Screen) -> list[str]:
    """The picture of these nodes, which hold ``whole`` bytes, and what it does not show: the names that are cut, and
    what is too narrow."""
    columns = screen.width - 1
    picture = _Picture(whole, columns, depth)
    picture.place(nodes)
    rows = [_row(cells, columns, screen) for cells in picture.rows]
    if len(nodes) > 1:
        rows.insert(
            0,
            _row(
                [
                    _Rectangle(
                        0, columns, (f"{clean(title)} {size(whole)} 100%", clean(title)), _most(_sum(nodes)), False
                    )
                ],
                columns,
                screen,
            ),
        )
    scale = (
        f"Width is bytes: a column is {size(round(whole / columns))}, 100% is {size(whole)}. What is below a "
        f"part is inside it."
    )
    return [
        *rows,
        "",
        *screen.wrap(scale),
        *_legend(nodes, screen),
        *_narrow_lines(picture.narrow, whole, screen),
        *_stack_lines(nodes, whole, screen),
    ]


def _sum(nodes: list[TreeNode]) -> Sums:
    total: Sums = {}
    for node in nodes:
        for category, value in node.subtree.items():
            total[category] = total.get(category, 0) + value
    return total


def _legend(nodes: list[TreeNode], screen: Screen) -> list[str]:
    if not screen.colour:
        return []
    parts = sorted(parts_of(_sum(nodes)).items(), key=lambda part: -part[1])
    lines, used = ["Colour is what most of it is:"], 29
    for word, _ in parts:
        needed = 3 + width_of(word)
        if used + needed > screen.width:
            lines, used = [*lines, ""], -1
        lines[-1] += " " * (used >= 0) + screen.filled(f" {word} ", word, False)
        used += needed
    return lines
