"""``modscope diff``: what grew between two captures."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import moment_report, moment_words, next_command, notes, when, why_incomplete
from modscope._cli.options import add_by, add_device, add_module, add_moment, add_no_group, add_rows
from modscope._read.categories import CATEGORIES, parts_of
from modscope._read.groups import group_modules
from modscope._read.load import Capture, Snapshot
from modscope._read.summary import Report
from modscope._read.text import at_least, change, clean, counted, label, percent, size
from modscope._show.line_diff import compare_lines
from modscope._show.lines import sides_without_lines
from modscope._show.markdown import comparison
from modscope._show.modules import Matches, check, every_module
from modscope._show.terminal import Screen

_Owner = tuple[str, str]  # module, category


def add_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="A", help="a capture")
    parser.add_argument("other", metavar="B", help="the capture to compare it with")
    add_moment(parser)
    add_device(parser)
    add_rows(parser)
    add_by(parser, ("module", "line"), "what is compared (default: module)")
    add_module(parser)
    add_no_group(parser)
    comment = "print Markdown for a comment on a pull request: by module and by line, ten rows each"
    parser.add_argument("--markdown", action="store_true", help=comment)


def report(arguments: Namespace, load: Load) -> Report:
    captures: dict[str, Capture] = {}

    def load_once(file: str) -> Capture:
        return captures.setdefault(file, load(file)) if file not in captures else captures[file]

    (a, before), (b, after) = (moment_report(file, load_once, arguments) for file in (arguments.file, arguments.other))
    owned = _owned(before, a["device"]), _owned(after, b["device"])
    matches: Matches = every_module
    if arguments.module is not None:
        matches = check(
            arguments.module, {fqn for side in owned for fqn, _ in side}, " or ".join({a["device"], b["device"]})
        )
        owned = _only(owned[0], matches), _only(owned[1], matches)
    lines = modules = []
    if arguments.by == "line" or arguments.markdown:
        files = captures[arguments.file], captures[arguments.other]
        lines = compare_lines(files, (before, after), (a["device"], b["device"]), matches)
    if arguments.by == "module" or arguments.markdown:
        modules = [_row(owner, *(side.get(owner, 0) for side in owned)) for owner in {**owned[0], **owned[1]}]
    categories = []
    for word in CATEGORIES:
        held = (sum(value for (_, category), value in side.items() if category == word) for side in owned)
        categories.append(_row((None, word), *held))
    return {
        "is_lower_bound": a["is_lower_bound"] or b["is_lower_bound"],
        "a": a,
        "b": b,
        "below": arguments.module,
        "change": sum(owned[1].values()) - sum(owned[0].values()),
        "categories": _sort_by_change(row for row in categories if row["a"] or row["b"]),
        "by": arguments.by,
        "modules": _changed(lines if arguments.by == "line" else modules),
        **({"by_module": _changed(modules), "by_line": _changed(lines)} if arguments.markdown else {}),
    }


def _changed(rows: Iterable[Report]) -> list[Report]:
    return _sort_by_change(row for row in rows if row["change"])


def _only(owned: dict[_Owner, int], matches: Matches) -> dict[_Owner, int]:
    return {owner: value for owner, value in owned.items() if matches(owner[0])}


def _owned(snapshot: Snapshot, device: str) -> dict[_Owner, int]:
    modules = snapshot.by_module().get(device, {})
    return {(fqn, word): value for fqn, sums in modules.items() for word, value in parts_of(sums).items()}


def _row(owner: tuple[str | None, str], a: int, b: int) -> Report:
    return {"module": owner[0], "category": str(owner[1]), "a": a, "b": b, "change": b - a}


def _sort_by_change(rows: Iterable[Report]) -> list[Report]:
    return sorted(rows, key=lambda row: -abs(row["change"]))


# ---- as text ----


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if arguments.markdown:
        without = sides_without_lines(result)
        remarks = [f"{side.upper()}: {why}" for side in ("a", "b") for why in why_incomplete(result[side])]
        lines = None if without else result["by_line"]
        return comparison(result, _group(result["by_module"], arguments), lines, [*remarks, *filter(None, [without])])
    out = _sides(result, screen)
    if result["by"] == "line" and (without := sides_without_lines(result)):
        out += [*screen.wrap(without), ""]
    out += [*_table("Category", result["categories"], screen), ""]
    every = result["modules"] if result["by"] == "line" else _group(result["modules"], arguments)
    rows = every[: arguments.n or None]
    if rows:
        out += _table(result["by"].capitalize(), rows, screen)
    else:
        out.append(f"No {result['by']} holds more or less.")
    if len(rows) < len(every):
        out.append(f"({counted(len(every) - len(rows), 'row')} with smaller changes: -n 0 shows all)")
    for side in ("a", "b"):
        if lines := notes(result[side], screen):
            out += ["", f"{side.upper()}:", *lines[1:]]
    what, by = ("Which lines made it", ["--by", "line"]) if result["by"] == "line" else ("Which modules hold it", [])
    below = {**result["b"], "below": result["below"]}
    return out + next_command(what, "tree", *moment_words(below, arguments), *by)


def _group(modules: list[Report], arguments: Namespace) -> list[Report]:
    """The rows of modules. Equal ones whose modules' names differ only in numbers become one, with the sum of their
    bytes."""
    if arguments.no_group:
        return modules
    rows = []
    for group in group_modules(
        modules, lambda row: str(row["module"]), lambda row: (row["category"], row["a"], row["b"])
    ):
        one, count = group.members[0], len(group.members)
        alike = f" ({count} alike)" if count > 1 else ""
        rows.append({**_row((group.name, one["category"]), count * one["a"], count * one["b"]), "alike": alike})
    return _sort_by_change(rows)


def _sides(result: Report, screen: Screen) -> list[str]:
    out = []
    for side in ("a", "b"):
        one = result[side]
        held = at_least(one["is_lower_bound"], size(one["total"]))
        out += [
            f"{side.upper()}  {screen.fit(one['file'], screen.width - 3)}",
            f"   {screen.bold(held)} on {clean(one['device'])}{_predicted(one)}",
            "   " + when(one, screen, screen.width - 3),
        ]
    share = percent(result["change"], sum(row["a"] for row in result["categories"]))
    of = "" if result["below"] is None else f" of {clean(result['below'])}"
    of += " of what can be read" if result["is_lower_bound"] else ""
    total = f"Change{of}: {change(result['change'])} ({'+' if result['change'] > 0 else ''}{share})"
    return [*out, "", screen.of_change(total, result["change"]), ""]


def _predicted(side: Report) -> str:
    return f", predicted on {clean(side['predicted_on'])[:40]}" if side["predicted_on"] else ""


def _table(word: str, rows: list[Report], screen: Screen) -> list[str]:
    def cells(row: Report) -> tuple[str, ...]:
        figures = change(row["change"]), size(row["a"]), size(row["b"])
        name = [] if row["module"] is None else [label(row["module"]) + row.get("alike", "")]
        return (*figures, row["category"], *name)

    headers = ("Change", "A", "B", "Category", word)[: 4 if word == "Category" else 5]
    return screen.table(headers, [cells(row) for row in rows], left=(3,))


COMMAND = Command(("diff before.msc after.msc", "diff --markdown before.msc after.msc"), add_options, report, text)
