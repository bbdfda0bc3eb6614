"""``modscope blocks``: the largest blocks that are held at a moment."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import heading, moment_report, moment_words, next_command, notes, others
from modscope._cli.options import add_capture, add_device, add_module, add_moment, add_no_group, add_rows
from modscope._read.groups import Group, group_modules
from modscope._read.lines import UNKNOWN
from modscope._read.summary import Report
from modscope._read.text import counted, duration, label, size
from modscope._show.lines import short_line
from modscope._show.modules import check
from modscope._show.terminal import Screen

_KEYS = ("bytes", "category", "kind", "module", "phase", "step", "made_at", "age", "outside")


def add_options(parser: Parser) -> None:
    add_capture(parser)
    add_moment(parser)
    add_device(parser)
    add_rows(parser)
    add_module(parser)
    add_no_group(parser)


class _Block(dict[str, Any]):
    """A block's own figures. All blocks of a place share those of the place, as there may be millions of blocks."""

    __slots__ = ("place",)

    def __init__(self, figures: Iterable[tuple[str, Any]], place: Report) -> None:
        super().__init__(figures)
        self.place = place

    def __missing__(self, key: str) -> Any:
        return self.place[key]

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, self.place.get(key, default))


def report(arguments: Namespace, load: Load) -> Report:
    result, snapshot = moment_report(arguments.file, load, arguments)
    result["count"] = snapshot.block_count
    only_json = arguments.json == "-"
    limit = arguments.n or None if (only_json or arguments.no_group) and arguments.module is None else None
    matches = None
    if arguments.module is not None:
        matches = check(arguments.module, snapshot.by_module().get(result["device"], {}), result["device"])
    result["below"] = arguments.module
    made: dict[int, Report] = {}  # by the identity of the place, which the capture keeps
    blocks = []
    for block in snapshot.blocks(limit, result["device"]):
        if matches is not None and not matches(block.module):
            continue
        place = made.get(id(block.place))
        if place is None:
            place = made[id(block.place)] = (block.place or UNKNOWN).to_dict()
        age = round(snapshot.time - block.made_at, 6)
        own = (
            block.bytes,
            block.category,
            block.kind,
            block.module,
            block.phase,
            block.step,
            block.made_at,
            age,
            block.outside,
        )
        blocks.append(_Block(zip(_KEYS, own, strict=True), place))
    result["shown"] = sum(block["bytes"] for block in blocks) if matches is not None else result["total"]
    result["blocks"] = blocks
    return result


def as_json(result: Report, arguments: Namespace) -> Report:
    return {**result, "blocks": [{**block, **block.place} for block in result["blocks"][: arguments.n or None]]}


# ---- as text ----


def _group(blocks: list[Report], arguments: Namespace) -> list[Group[Report]]:
    """The largest blocks; equal ones whose modules' names differ only in numbers share a row."""
    if arguments.no_group:
        return [Group(block["module"], [block]) for block in blocks[: arguments.n or None]]
    alike = (
        "bytes",
        "category",
        "kind",
        "phase",
        "outside",
        "file",
        "line",
        "operator",
        "forward_file",
        "forward_line",
        "model_file",
        "model_line",
    )
    groups = group_modules(blocks, lambda block: str(block["module"]), lambda block: tuple(block[key] for key in alike))
    return _sort_by_bytes(groups)


def _sort_by_bytes(groups: list[Group[Report]]) -> list[Group[Report]]:
    return sorted(groups, key=lambda group: -len(group.members) * int(group.members[0]["bytes"]))


_LINE = 6
_HEADERS = ("Bytes", "Blocks", "Category", "Phase", "Step", "Age", "Line", "Module")
_NAME_COLUMNS = 24  # that a module's name should have; for it the age is left out
_LEAST_NAME_COLUMNS = (
    20  # that it must have beside a line; for it the phase is left out, then the step, and the line is shortened
)
_LEAST_LINE_COLUMNS = 12


def _row(group: Group[Report], wide: bool) -> tuple[str, ...]:
    block, count = group.members[0], len(group.members)
    each = f"{count} x {size(block['bytes'])}" if count > 1 else ""
    mark = " *" if block["outside"] else ""
    oldest = max(member["age"] for member in group.members)
    steps = sorted({member["step"] for member in group.members})
    phases = ", ".join(dict.fromkeys(member["phase"] for member in group.members))
    when = phases, str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}", duration(oldest)
    return (
        size(count * block["bytes"]),
        each,
        (block["kind"] or block["category"]) + mark,
        *when,
        short_line(block, wide),
        label(group.name),
    )


def _columns(groups: list[Group[Report]], screen: Screen) -> tuple[list[str], bool]:
    """The columns that there is room for, and whether there is room for a node's name beside a line."""
    headers = [word for word in _HEADERS if word != "Age"]
    rows, is_wide = [_row(group, wide=True) for group in groups], True
    if _room(headers, rows, screen) < _NAME_COLUMNS:
        rows, is_wide = [_row(group, wide=False) for group in groups], False
    columns = [word for i, word in enumerate(_HEADERS) if word not in ("Blocks", "Line") or any(row[i] for row in rows)]
    for word, least in (("Age", _NAME_COLUMNS), ("Phase", _LEAST_NAME_COLUMNS), ("Step", _LEAST_NAME_COLUMNS)):
        if _room(columns, rows, screen) < least and (word == "Age" or "Line" in columns):
            columns.remove(word)
    return columns, is_wide


def _merge(groups: list[Group[Report]], most: int | None, screen: Screen) -> list[Group[Report]]:
    """The largest groups, of which those are one that only columns without room would tell apart."""
    columns, is_wide = _columns(groups[:most], screen)
    shown = [_HEADERS.index(word) for word in columns if word not in ("Bytes", "Blocks", "Step", "Age")]
    found: dict[tuple[object, ...], Group[Report]] = {}
    for group in groups:
        row = _row(group, is_wide)
        key = group.members[0]["bytes"], *(row[i] for i in shown)
        members = [*found[key].members, *group.members] if key in found else group.members
        found[key] = Group(group.name, members)
    merged = _sort_by_bytes(list(found.values()))
    return merged[:most] if len(merged) == len(groups) else _merge(merged, most, screen)


def _table(groups: list[Group[Report]], screen: Screen) -> list[str]:
    columns, is_wide = _columns(groups, screen)
    rows = [_row(group, is_wide) for group in groups]
    missing = _LEAST_NAME_COLUMNS - _room(columns, rows, screen)
    if "Line" in columns and missing > 0:
        width = max(_LEAST_LINE_COLUMNS, max(len(row[_LINE]) for row in rows) - missing)
        rows = [(*row[:_LINE], screen.fit(row[_LINE], width), *row[_LINE + 1 :]) for row in rows]
    chosen = [_HEADERS.index(word) for word in columns]
    left = [columns.index(word) for word in ("Category", "Phase", "Line") if word in columns]
    return screen.table(columns, [[row[i] for i in chosen] for row in rows], left)


def _room(columns: list[str], rows: list[tuple[str, ...]], screen: Screen) -> int:
    """The columns of the screen that these leave for the module's name, which is the last."""
    others = [_HEADERS.index(word) for word in columns if word != _HEADERS[-1]]
    return screen.width - sum(max(len(row[i]) for row in (_HEADERS, *rows)) + 2 for i in others)


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    groups = _group(result["blocks"], arguments)
    if not arguments.no_group:
        groups = _merge(groups, arguments.n or None, screen)
    out = heading(result, screen) + _table(groups, screen)
    shown = [block for group in groups for block in group.members]
    if any(block["outside"] for block in shown):
        out += ["", "* from outside torch's allocators: numpy, mmap, shared memory"]
    held = sum(block["bytes"] for block in shown)
    out += ["", f"{counted(len(shown), 'block')}: {size(held)} of {size(result['total'])}"]
    out += others(result, screen) + notes(result, screen)
    if any(block["line"] or block["forward_line"] for block in shown):
        out += next_command("The lines that made them", "tree", *moment_words(result, arguments), "--by", "line")
        return out
    return out + next_command("Blocks that survive several steps", "leaks", result["file"])


COMMAND = Command(("blocks run.msc -n 50",), add_options, report, text, as_json)
