"""``modscope tree``: who holds what at a moment."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import NamedTuple

from modscope._branch import Branch
from modscope._commands.common import (
    Load,
    Report,
    heading,
    label,
    moment_report,
    moment_words,
    name_column,
    next_command,
    notes,
    others,
    parts_of,
)
from modscope._commands.terminal import Screen, counted, size
from modscope._categories import CATEGORIES, TOTAL, Sums

_SMALL = 0.01  # of the whole: less is put together, unless everything is asked for
_FITTING = 40  # rows


def report(arguments: Namespace, load: Load) -> Report:
    result, snapshot = moment_report(arguments.file, load, arguments)
    branches = snapshot.tree(result["device"])
    depth = arguments.depth if arguments.json else None
    result["by"] = arguments.by
    if arguments.by == "module":
        result["tree"] = [_module(branch, depth) for branch in branches]
    else:
        sums = snapshot.totals[result["device"]]
        words = sorted(filter(sums.get, CATEGORIES), key=lambda word: -sums[word])
        result["tree"] = [_category(word, sums[word], branches, depth) for word in words]
    return result


def _below(depth: int | None) -> int | None:
    return None if depth is None else depth - 1


def _node(name: str, fqn: str | None, own: Sums, subtree: Sums, children: list[Report]) -> Report:
    return {"name": name, "fqn": fqn, "own": own, "subtree": subtree, "children": children}


def _module(branch: Branch, depth: int | None) -> Report:
    children = [] if depth == 1 else [_module(child, _below(depth)) for child in branch.children]
    return _node(branch.name, branch.fqn, branch.own, branch.subtree, children)


def _category(word: str, total: int, branches: Iterable[Branch], depth: int | None) -> Report:
    children = [] if depth == 1 else _parts(word, branches, _below(depth))
    return _node(str(word), None, {word: 0, TOTAL: 0}, {word: total, TOTAL: total}, children)


def _parts(word: str, branches: Iterable[Branch], depth: int | None) -> list[Report]:
    """The tree of modules with one category only."""
    found = []
    for branch in branches:
        own, subtree = ({word: sums[word], TOTAL: sums[word]} for sums in (branch.own, branch.subtree))
        if subtree[TOTAL]:
            children = [] if depth == 1 else _parts(word, branch.children, _below(depth))
            found.append(_node(branch.name, branch.fqn, own, subtree, children))
    return sorted(found, key=lambda node: -int(node["subtree"][TOTAL]))


# ---- as text ----


class _Row(NamedTuple):
    subtree: Sums
    own: int | None
    lead: str
    """The lines from the root to here."""
    name: str


class _Branching(NamedTuple):
    """What leads to a child, to the last child, and past either to what is below it."""

    child: str
    last: str
    past_child: str
    past_last: str


_DRAWN = _Branching("├─ ", "└─ ", "│  ", "   ")
_TYPED = _Branching("|- ", "`- ", "|  ", "   ")
_ROOT = _Branching("", "", "", "")


def _gathered(nodes: list[Report]) -> _Row:
    whole: Sums = {}
    for node in nodes:
        for word, value in node["subtree"].items():
            whole[word] = whole.get(word, 0) + value
    return _Row(whole, None, "", f"({counted(len(nodes), 'smaller one')})")


def _joined(node: Report) -> tuple[str, Report]:
    """A module that holds nothing itself and has one child only is shown in one row with it."""
    name = label(node["name"])
    while node["fqn"] is not None and not node["own"][TOTAL] and len(node["children"]) == 1:
        node = node["children"][0]
        name += "." + label(node["name"])
    return name, node


def _rows(nodes: list[Report], least: float, depth: int, lead: str, lines: _Branching, below: _Branching) -> list[_Row]:
    shown = [node for node in nodes if node["subtree"][TOTAL] >= least]
    small = nodes[len(shown) :]
    if len(small) == 1:
        shown, small = nodes, []
    rows = []
    for i, (name, node) in enumerate(map(_joined, shown)):
        last = i == len(shown) - 1 and not small
        own = None if node["fqn"] is None else node["own"][TOTAL]
        rows.append(_Row(node["subtree"], own, lead + (lines.last if last else lines.child), name))
        if depth != 1:
            past = lead + (lines.past_last if last else lines.past_child)
            rows += _rows(node["children"], least, depth - 1, past, below, below)
    if small:
        rows.append(_gathered(small)._replace(lead=lead + lines.last))
    return rows


def _fitting(nodes: list[Report], least: float, depth: int | None, lines: _Branching) -> tuple[list[_Row], int, bool]:
    """The rows down to a depth, by default the deepest that fits a screen; the depth; whether there is more below."""
    tried = depth or 1
    rows = _rows(nodes, least, tried, "", _ROOT, lines)
    while True:
        more = _rows(nodes, least, tried + 1, "", _ROOT, lines)
        if len(more) == len(rows):
            return rows, tried, False
        if depth or len(more) > _FITTING:
            return rows, tried, True
        rows, tried = more, tried + 1


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    least = 1 if arguments.all else _SMALL * result["total"]
    lines = _DRAWN if screen.drawing else _TYPED
    rows, depth, more = _fitting(result["tree"], least, arguments.depth, lines)
    out = heading(result, screen)
    out += _table(rows, result["total"], result["by"], screen) if rows else ["Nothing is held."]
    out += others(result, screen) + notes(result, screen)
    words = moment_words(result, arguments)
    if more and arguments.depth is None:
        by = () if result["by"] == "module" else ("--by", "category")
        return out + next_command("Deeper", "tree", *words, *by, "--depth", str(depth + 1))
    return out + next_command("The largest blocks", "blocks", *words)


def _short(lead: str, most: int, screen: Screen) -> str:
    return lead if len(lead) <= most else screen.dots + lead[len(lead) - most :]


def _table(rows: list[_Row], total: int, by: str, screen: Screen) -> list[str]:
    wholes = [size(row.subtree[TOTAL]) for row in rows]
    owns = ["" if row.own is None else size(row.own) for row in rows]
    whole_width = max(map(len, [*wholes, "Subtree"]))
    own_width = max(map(len, [*owns, "Own"]))
    bar = min(max((screen.width - whole_width - own_width) // 5, 6), 24)
    room = screen.width - whole_width - own_width - bar - 6
    named = [(_short(row.lead, room // 2, screen), row.name, row.subtree) for row in rows]
    names = name_column(named, room, screen, split=by == "module")
    head = f"{'Subtree':>{whole_width}}  {'Own':>{own_width}}  {'':{bar}}  {'Module' if by == 'module' else 'Category'}"
    out = [screen.bold(head)]
    for row, whole, own, name in zip(rows, wholes, owns, names):
        drawn = screen.bar(row.subtree[TOTAL] / total if total else 0, bar, parts_of(row.subtree))
        out.append(f"{whole:>{whole_width}}  {own:>{own_width}}  {drawn}  {name}")
    return out
