#!/usr/bin/env python3
"""Write the tables of options in docs from the parsers of the commands.

    option_tables.py [--check]

A table follows `<!-- options: predict -->`, or `<!-- options: tree blocks -->` for several commands, up to the next
empty line. With --check nothing is written, and the exit status is 1 if a table is not what the parsers say.
"""

import argparse
import importlib
import pathlib
import re
import sys

from modscope._cli.command import parser_of

DOCS = pathlib.Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- options: ([a-z ]+) -->\n)(?:\|.*\n)*")
CODE = re.compile(r"modscope (?:help )?[a-z]+|(?<![\w-])--[a-z][\w-]*(?:=OUT)?|[^\s();]*[<*][^\s();]*")


def options_of(name):
    """(how an option is written, what it means) of each option of a command."""
    parser = parser_of(name, "do something", importlib.import_module(f"modscope._cli.{name}").COMMAND)
    for action in parser.actions:
        if not action.option_strings or action.help is argparse.SUPPRESS or action.dest == "help":
            continue
        *others, last = action.option_strings
        values = action.choices or ([] if action.nargs == 0 else [action.metavar])
        written = [f"{last}[={value}]" if action.nargs == "?" else f"{last} {value}" for value in values] or [last]
        meaning = action.help.replace("%%", "%").replace("|", "\\|")
        yield ", ".join(f"`{each}`" for each in (*others, *written)), CODE.sub(lambda found: f"`{found[0]}`", meaning)


def table(names):
    """A row for each option; one that not all of the commands have, or that means another thing, says whose it is."""
    rows = {}
    for name in names:
        for row in options_of(name):
            rows.setdefault(row, []).append(f"`{name}`")
    lines = ["| option | meaning |", "|---|---|"]
    for (words, meaning), having in rows.items():
        whose = "" if len(having) == len(names) else f"{', '.join(having)}: "
        lines.append(f"| {words} | {whose}{meaning} |")
    return "".join(f"{line}\n" for line in lines)


def rewritten(text):
    """A page with its tables as the parsers say."""
    return TABLE.sub(lambda found: found[1] + table(found[2].split()), text)


def main():
    wrong = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if rewritten(text) != text:
            wrong.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(rewritten(text), encoding="utf-8")
    if wrong and "--check" in sys.argv:
        sys.exit(f"options: the tables in {', '.join(wrong)} are not what the parsers say: run `make option-tables`")


if __name__ == "__main__":
    main()
