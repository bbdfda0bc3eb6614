"""The command line: ``modscope``, or ``python -m modscope``."""

from __future__ import annotations

import argparse
import sys

from modscope import _commands


def _doctor() -> int:
    import modscope

    report = modscope.doctor()
    from modscope._doctor import describe

    print(describe(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Which nn.Module is running, and which holds each byte of memory."
    parser = argparse.ArgumentParser(prog="modscope", description=about)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run a script, and write what happens to its memory to a file, a capture")
    _commands.add_parsers(commands)
    commands.add_parser("doctor", help="show which interception points are verified here, and what to do if one is not")
    return parser


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["run"]:
        from modscope._run import main as run

        return run(words[1:])
    known = _parser().parse_args(words)
    if known.command != "doctor":
        return _commands.run(known)
    try:
        return _doctor()
    except ImportError as error:
        print(f"modscope: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
