"""``modscope tree``: which modules hold the memory at a moment, as a tree."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import heading, moment_report, moment_words, name_column, next_command, notes, others
from modscope._cli.options import add_by, add_capture, add_device, add_module, add_moment, add_no_group, number
from modscope._read.categories import CATEGORIES, TOTAL, Category, Kind, Sums, category_of, parts_of, sums_of
from modscope._read.load import Snapshot
from modscope._read.module_tree import Branch, grow
from modscope._read.summary import Report
from modscope._read.text import counted, size
from modscope._show.flame import cut_below
from modscope._show.lines import UNKNOWN_NAMES, tree_of_lines, tree_of_operators, why_no_lines
from modscope._show.modules import Contents, Matches, TreeNode, check, every_module, make_nodes
from modscope._show.terminal import Screen

_SMALL = 0.01  # of the whole; modules with less share a row, unless all are asked for
_ROWS = 40  # that fit a screen


def add_options(parser: Parser) -> None:
    add_capture(parser)
    add_moment(parser)
    add_device(parser)
    levels = "how many levels (default: as many as fit 40 lines)"
    parser.add_argument("--depth", type=number(1), metavar="N", help=levels)
    first = "what the first level shows (default: module; kind: what FSDP2 and DDP hold)"
    add_by(parser, ("module", "category", "kind", "line", "operator"), first)
    add_module(parser)
    add_no_group(parser)
    every = "show every module: all levels, equal ones one by one, and those with less than 1%%"
    parser.add_argument("--all", action="store_true", help=every)


def report(arguments: Namespace, load: Load) -> Report:
    result, snapshot = moment_report(arguments.file, load, arguments)
    device = result["device"]
    matches: Matches = every_module
    branches = snapshot.tree(device)
    if arguments.module is not None:
        owned = snapshot.own_bytes(device)
        matches = check(arguments.module, (fqn for fqn, raw in owned.items() if any(raw)), device)
        branches = grow((fqn, raw) for fqn, raw in owned.items() if matches(fqn))
    result["by"], result["below"] = arguments.by, arguments.module
    result["shown"] = sum(branch.subtree[TOTAL] for branch in branches)
    if arguments.by == "module":
        result["tree"] = [branch.to_dict() for branch in branches]
    elif arguments.by == "kind":
        result["tree"] = _kind_reports(snapshot, device, matches)
    elif arguments.by in ("line", "operator"):
        make = tree_of_lines if arguments.by == "line" else tree_of_operators
        made = [(place, sums_of(raw)) for fqn, place, raw in snapshot.by_module_and_place(device) if matches(fqn)]
        result["tree"] = make(made)
    else:
        sums = {category: sum(branch.subtree[category] for branch in branches) for category in CATEGORIES}
        categories = sorted(filter(sums.get, CATEGORIES), key=lambda category: -sums[category])
        result["tree"] = [_category_report(category, sums[category], branches) for category in categories]
    return result


def as_json(result: Report, arguments: Namespace) -> Report:
    adds_up = result["by"] in ("line", "operator")
    return {**result, "tree": cut_below(result["tree"], arguments.depth, adds_up)}


def _node_report(name: str, fqn: str | None, own: Sums, subtree: Sums, children: list[Report]) -> Report:
    return {"name": name, "fqn": fqn, "own": own, "subtree": subtree, "children": children}


def _category_report(category: str, total: int, branches: Iterable[Branch]) -> Report:
    children = _trees_of(category, branches)
    return _node_report(str(category), None, {category: 0, TOTAL: 0}, {category: total, TOTAL: total}, children)


def _trees_of(category: str, branches: Iterable[Branch]) -> list[Report]:
    """The trees of modules with the bytes of one category only."""
    found = []
    for branch in branches:
        own, subtree = ({category: sums[category], TOTAL: sums[category]} for sums in (branch.own, branch.subtree))
        if subtree[TOTAL]:
            children = _trees_of(category, branch.children)
            found.append(_node_report(branch.name, branch.fqn, own, subtree, children))
    return sorted(found, key=lambda node: -int(node["subtree"][TOTAL]))


def _kind_reports(snapshot: Snapshot, device: str, matches: Matches) -> list[Report]:
    """A tree for each kind, and one for each category with what has no kind."""
    held = {fqn: dict(sums) for fqn, sums in snapshot.by_module().get(device, {}).items() if matches(fqn)}
    parts: dict[tuple[str, Category], dict[str, int]] = {}
    for fqn, kinds in snapshot.kinds_by_module().get(device, {}).items():
        for kind, value in kinds.items() if matches(fqn) else ():
            category = category_of(Kind(kind))
            parts.setdefault((kind, category), {})[fqn] = value
            held[fqn][category] -= value
    for fqn, sums in held.items():
        for category in filter(sums.get, CATEGORIES):
            parts.setdefault((category, category), {})[fqn] = sums[category]
    found = []
    for (name, category), modules in parts.items():
        at = CATEGORIES.index(category)
        rows = [(fqn, tuple(value if i == at else 0 for i in range(len(CATEGORIES)))) for fqn, value in modules.items()]
        found.append({**_category_report(category, sum(modules.values()), grow(rows)), "name": str(name)})
    return sorted(found, key=lambda node: -int(node["subtree"][TOTAL]))


# ---- as text ----


class _TreeRow(NamedTuple):
    subtree: Sums
    own: int | None
    lead: str
    """The lines from the root to here."""
    name: str


class _Branching(NamedTuple):
    """The lines that lead to a child and to the last child, and past either to what is below it."""

    child: str
    last: str
    past_child: str
    past_last: str


_DRAWN = _Branching("├─ ", "└─ ", "│  ", "   ")
_TYPED = _Branching("|- ", "`- ", "|  ", "   ")
_ROOT = _Branching("", "", "", "")


def _gather(nodes: list[TreeNode], lead: str) -> _TreeRow:
    """Gather small nodes in one row."""
    total: Sums = {}
    for node in nodes:
        for category, value in node.subtree.items():
            total[category] = total.get(category, 0) + value
    return _TreeRow(total, None, lead, f"({counted(len(nodes), 'smaller one')})")


def _join(node: TreeNode) -> tuple[str, TreeNode]:
    """The node that a row shows, and its name: a module that holds nothing itself and has one child shares its row."""
    names, is_group = [node.name], node.is_group
    while node.is_module and not node.own[TOTAL] and len(node.children) == 1:
        node = node.children[0]
        names.append(node.name)
        is_group |= node.is_group
    each = f" ({node.modules} alike, {size(node.subtree[TOTAL] // node.modules)} each)" if is_group else ""
    return ".".join(names) + each, node


def _rows(
    nodes: list[TreeNode], least: float, depth: int, lead: str, lines: _Branching, below: _Branching
) -> list[_TreeRow]:
    shown = [node for node in nodes if node.subtree[TOTAL] >= least]
    small = nodes[len(shown) :]
    if len(small) == 1:
        shown, small = nodes, []
    rows = []
    for i, (name, node) in enumerate(map(_join, shown)):
        last = i == len(shown) - 1 and not small
        own = node.own[TOTAL] if node.is_module or node.own[TOTAL] > 0 else None
        rows.append(_TreeRow(node.subtree, own, lead + (lines.last if last else lines.child), name))
        if depth != 1:
            past = lead + (lines.past_last if last else lines.past_child)
            rows += _rows(node.children, least, depth - 1, past, below, below)
    if small:
        rows.append(_gather(small, lead + lines.last))
    return rows


def _fit(
    nodes: list[TreeNode], least: float, depth: int | None, most: int | None, lines: _Branching
) -> tuple[list[_TreeRow], int, bool]:
    """The rows down to a depth, by default to the deepest with at most so many rows; that depth; whether there is more
    below."""
    if depth is None and most is None:
        return _rows(nodes, least, sys.maxsize, "", _ROOT, lines), sys.maxsize, False
    tried = depth or 1
    rows = _rows(nodes, least, tried, "", _ROOT, lines)
    while True:
        more = _rows(nodes, least, tried + 1, "", _ROOT, lines)
        if len(more) == len(rows):
            return rows, tried, False
        if depth or most is not None and len(more) > most:
            return rows, tried, True
        rows, tried = more, tried + 1


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    least = 1 if arguments.all else _SMALL * result["shown"]
    lines = _DRAWN if screen.drawing else _TYPED
    nodes = make_nodes(result["tree"], 1, None if arguments.all or arguments.no_group else Contents(result["tree"]))
    rows, depth, more = _fit(nodes, least, arguments.depth, None if arguments.all else _ROWS, lines)
    out = heading(result, screen)
    out += _table(rows, result["shown"], result["by"], screen) if rows else ["Nothing is held."]
    if result["by"] in ("line", "operator") and {node["name"] for node in result["tree"]} <= {*UNKNOWN_NAMES}:
        out += ["", *screen.wrap(why_no_lines(result))]
    out += others(result, screen) + notes(result, screen)
    words = moment_words(result, arguments)
    if more and arguments.depth is None:
        options = [] if result["by"] == "module" else ["--by", result["by"]]
        options += ["--no-group"] if arguments.no_group else []
        return out + next_command("Deeper", "tree", *words, *options, "--depth", str(depth + 1))
    return out + next_command("The largest blocks", "blocks", *words)


def _shorten_lead(lead: str, most: int, screen: Screen) -> str:
    return lead if len(lead) <= most else screen.dots + lead[len(lead) - most :]


def _table(rows: list[_TreeRow], total: int, by: str, screen: Screen) -> list[str]:
    wholes = [size(row.subtree[TOTAL]) for row in rows]
    owns = ["" if row.own is None else size(row.own) for row in rows]
    whole_width = max(map(len, [*wholes, "Subtree"]))
    own_width = max(map(len, [*owns, "Own"]))
    share = 10 if by in ("line", "operator") else 5  # of the width: the text of a line needs more room than a name
    bar = min(max((screen.width - whole_width - own_width) // share, 6), 24)
    room = screen.width - whole_width - own_width - bar - 6
    named = [(_shorten_lead(row.lead, room // 2, screen), row.name, row.subtree) for row in rows]
    names = name_column(named, room, screen, split=by == "module")
    head = f"{'Subtree':>{whole_width}}  {'Own':>{own_width}}  {'':{bar}}  {by.capitalize()}"
    out = [screen.bold(head)]
    for row, whole, own, name in zip(rows, wholes, owns, names):
        drawn = screen.bar(row.subtree[TOTAL] / total if total else 0, bar, parts_of(row.subtree))
        out.append(f"{whole:>{whole_width}}  {own:>{own_width}}  {drawn}  {name}")
    return out


COMMAND = Command(
    ("tree run.msc --at step:1", "tree run.msc --by category --depth 3"), add_options, report, text, as_json
)
