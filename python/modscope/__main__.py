"""The command line: ``modscope``, or ``python -m modscope``."""

from __future__ import annotations

import argparse
import sys

from modscope import _commands


def _doctor() -> int:
    import modscope

    report = modscope.doctor()
    for word in ("modscope", "torch", "python", "system"):
        print(f"{word:9} {report[word]}")
    print()
    meanings = {
        "calls": ("module calls", "torch's global module hooks, as C functions"),
        "nodes": ("backward nodes", "asking autograd for the current node"),
        "blocks": ("blocks of memory", "what operators return, by the dispatcher"),
    }
    fallen_back = False
    for word, (meaning, instead) in meanings.items():
        proved = report[word] == "proved"
        fallen_back |= not proved
        print(f"{meaning:17} {'place proved' if proved else f'fallback ({instead}): {report[word]}'}")
    print(f"{'node layout':17} {report['layout']}")
    print(f"{'tensor layout':17} {report['tensors']}")
    print()
    if fallen_back:
        print("The fallback is slower, sees less of the memory, and torch.compile sees its hooks (docs/api.md).")
    else:
        print("All is well: modscope watches from below, and torch.compile sees nothing of it.")
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Which nn.Module is running, and which holds each byte of memory."
    parser = argparse.ArgumentParser(prog="modscope", description=about)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run a script, and write what happens to its memory to a file, a capture")
    _commands.add_parsers(commands)
    commands.add_parser("doctor", help="show what modscope stands on here, and why")
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
