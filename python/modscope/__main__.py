"""The command line: ``python -m modscope doctor``."""

from __future__ import annotations

import argparse
import sys


def _doctor() -> int:
    import modscope

    report = modscope.doctor()
    for word in ("modscope", "torch", "python", "system"):
        print(f"{word:9} {report[word]}")
    print()
    meanings = {
        "calls": ("module calls", "torch's global module hooks, as C functions"),
        "nodes": ("backward nodes", "asking autograd for the current node"),
    }
    fallen_back = False
    for word, (meaning, instead) in meanings.items():
        proved = report[word] == "proved"
        fallen_back |= not proved
        print(f"{meaning:15} {'place proved' if proved else f'fallback ({instead}): {report[word]}'}")
    print(f"{'node layout':15} {report['layout']}")
    print()
    if fallen_back:
        print("The fallback gives the same answers more slowly, and torch.compile sees its hooks.")
    else:
        print("All is well: modscope watches from below, and torch.compile sees nothing of it.")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="modscope", description="Which nn.Module is running right now.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("doctor", help="show what modscope stands on here, and why")
    parser.parse_args(arguments)
    try:
        return _doctor()
    except ImportError as error:
        print(f"modscope: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
