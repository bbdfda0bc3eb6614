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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="modscope", description="Which nn.Module is running, and which holds each byte of memory.")
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
