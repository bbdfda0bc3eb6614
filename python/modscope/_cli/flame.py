"""``modscope flame``: the bytes at a moment by module and by the stack that made them, as a flame graph."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import heading, moment_report, moment_words, next_command, notes, others
from modscope._cli.options import (
    add_by,
    add_capture,
    add_device,
    add_module,
    add_moment,
    add_no_group,
    number,
    some_text,
)
from modscope._read.categories import TOTAL
from modscope._read.summary import Report
from modscope._read.text import clean, counted, label, percent, size
from modscope._show.flame import cut_below, draw, mark_matches, tree_of_stacks
from modscope._show.lines import why_no_lines
from modscope._show.modules import Contents, check, make_nodes
from modscope._show.terminal import NARROWEST, WIDEST, Screen


def add_options(parser: Parser) -> None:
    add_capture(parser)
    add_moment(parser)
    add_device(parser)
    order = "what the first rows show (default: module; layers: modules whose names differ only in numbers as one)"
    add_by(parser, ("module", "layers", "line", "operator", "category"), order)
    add_module(parser)
    find = "mark what has this text in its name, and say how many bytes it holds"
    parser.add_argument("--find", type=some_text, metavar="TEXT", help=find)
    parser.add_argument("--depth", type=number(1), metavar="N", help="how many rows (default: all)")
    width = "how many columns, 60 to 400 (default: the terminal's)"
    parser.add_argument("--width", type=number(NARROWEST, WIDEST), metavar="N", help=width)
    add_no_group(parser)
    folded = "print each stack and its bytes on a line, as flamegraph.pl reads them"
    parser.add_argument("--folded", action="store_true", help=folded)


def report(arguments: Namespace, load: Load) -> Report:
    if arguments.folded and arguments.json:
        arguments.error("--folded and --json are two formats: choose one")
    result, snapshot = moment_report(arguments.file, load, arguments)
    made = snapshot.by_module_and_place(result["device"])
    if arguments.module is not None:
        matches = check(arguments.module, (fqn for fqn, _, _ in made), result["device"])
        made = [row for row in made if matches(row[0])]
    tree = tree_of_stacks(made, arguments.by, arguments.module)
    result["by"], result["below"] = arguments.by, arguments.module
    result["shown"] = sum(root["subtree"][TOTAL] for root in tree)
    result["frames"] = max((len(place.attributed.frames) for _, place, _ in made if place), default=0)
    if arguments.find is not None:
        count, matching = mark_matches(tree, arguments.find)
        result["find"] = {"text": arguments.find, "count": count, "bytes": matching}
    result["tree"] = tree
    return result


def as_json(result: Report, arguments: Namespace) -> Report:
    return {**result, "tree": cut_below(result["tree"], arguments.depth)}


# ---- as text ----


def folded(tree: list[Report], above: tuple[str, ...] = ()) -> Iterator[str]:
    """A line for each stack: its names, with semicolons between them, and its bytes. flamegraph.pl and others read
    it."""
    for node in tree:
        stack = *above, clean(label(node["name"])).replace(";", ":")
        if node["own"][TOTAL]:
            yield f"{';'.join(stack)} {node['own'][TOTAL]}"
        yield from folded(node["children"], stack)


_INSIDE = {
    "module": (
        "Below a module are the modules in it, then the lines that made what it owns, the outermost first, "
        "then the operator."
    ),
    "layers": (
        "Below a module are the modules in it, those whose names differ only in numbers as one (*), then "
        "the lines that made what they own, the outermost first, then the operator."
    ),
    "line": "Below a line is the line that it called, then the operator, then the module that owns what was made.",
    "operator": "Below an operator are the lines that called it, then the module that owns what was made.",
    "category": (
        "Below a category are its modules, then the lines that made what they own, the outermost first, "
        "then the operator."
    ),
}


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    tree = result["tree"]
    if arguments.folded:
        return list(folded(as_json(result, arguments)["tree"]))
    if arguments.width:
        screen = Screen(arguments.width, screen.colour, screen.drawing)
    out = heading(result, screen)
    if not result["shown"]:
        return [*out, "Nothing is held."]
    nodes = make_nodes(tree, 1, None if arguments.no_group else Contents(tree))
    out += draw(nodes, _title(result), result["shown"], arguments.depth, screen)
    out += [
        "",
        *screen.wrap(f"{_INSIDE[result['by']]} {'' if result['predicted_on'] else _lines_hint(result)}".strip()),
    ]
    out += _matches(result, screen) + others(result, screen) + notes(result, screen)
    words = moment_words({**result, "below": None}, arguments)
    options = [] if result["by"] == "module" else ["--by", result["by"]]
    closer = _closer(tree)
    if closer is not None:
        return out + next_command("Closer", "flame", *words, *options, "--module", closer)
    return out + next_command("The blocks", "blocks", *words)


_ONE_LINE = "Only the innermost line was recorded: modscope run --stacks 8 records those around it too."


def _lines_hint(result: Report) -> str:
    """What another recording would show. By operator only the innermost line is drawn."""
    if not result["frames"]:
        return why_no_lines(result)
    return _ONE_LINE if result["frames"] == 1 and result["by"] != "operator" else ""


def _title(result: Report) -> str:
    return str(result["device"] if result["below"] is None else result["below"])


def _matches(result: Report, screen: Screen) -> list[str]:
    find = result.get("find")
    if find is None:
        return []
    if not find["count"]:
        return ["", *screen.wrap(f"Nothing matches {find['text']!r}.")]
    share = f"{size(find['bytes'])} ({percent(find['bytes'], result['shown'])})"
    return [
        "",
        *screen.wrap(
            f"{find['text']!r} matches {share}, in {counted(find['count'], 'place')}, marked with {screen.mark}."
        ),
    ]


def _closer(tree: list[Report]) -> str | None:
    """The largest module that does not hold most of what is shown, where a picture of its own shows more."""
    shown = sum(node["subtree"][TOTAL] for node in tree)
    level = tree
    while level:
        largest = max(level, key=lambda node: int(node["subtree"][TOTAL]))
        if largest["subtree"][TOTAL] <= 0.6 * shown:
            modules = [node for node in level if node["what"] == "module" and node["children"]]
            is_one = modules and modules[0]["fqn"] != "Global" and "*" not in modules[0]["fqn"]
            return str(modules[0]["fqn"]) if is_one else None
        level = largest["children"]
    return None


COMMAND = Command(
    ("flame run.msc --find attention", "flame run.msc --by line --folded"), add_options, report, text, as_json
)
