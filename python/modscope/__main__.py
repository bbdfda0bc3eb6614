"""The command line: ``modscope``, or ``python -m modscope``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import NoReturn

from modscope import _commands
from modscope._commands.arguments import SCRIPT_OPTIONS, add_command, add_commands, describe_unknown
from modscope._commands.topics import TOPICS, describe_topics
from modscope._script_arguments import is_script, split_arguments
from modscope._text import clean


def _doctor() -> int:
    import modscope

    report = modscope.doctor()
    from modscope._doctor import describe

    print(describe(report))
    return 0


COMMANDS = (
    "run",
    "predict",
    "fit",
    "batch",
    "plan",
    "summary",
    "tree",
    "flame",
    "blocks",
    "diff",
    "leaks",
    "report",
    "export",
    "calibrate",
    "doctor",
    "help",
)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> NoReturn:
        from modscope._capture import version

        print(f"modscope {version}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modscope",
        description="Show which nn.Module of a PyTorch program owns each byte of memory.",
        epilog="Examples:\n  modscope run -o run.msc train.py\n  modscope summary run.msc\n  modscope predict --gpu rtx4090 train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show modscope's version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands.add_parser("run", help="run a script, and record what happens to its memory in a file, a capture")
    commands.add_parser("predict", help="run a script on a virtual GPU, and say whether a real one has enough memory")
    commands.add_parser("fit", help="say whether a run fits a GPU, and what would make it fit")
    add_commands(commands.add_parser)
    commands.add_parser("calibrate", help="measure on a GPU what operators take, for modscope predict")
    add_command(
        commands.add_parser, "doctor", "check whether modscope works with the torch that is installed here", "doctor"
    )
    topics = add_command(
        commands.add_parser, "help", "explain a command, or a word such as moments or steps", "help moments"
    )
    topics.add_argument("topic", metavar="TOPIC", nargs="?", help=f"a command, or one of: {', '.join(TOPICS)}")
    return parser


def _help(topic: str | None) -> int:
    if topic is None:
        print(describe_topics())
    elif topic in TOPICS:
        print(TOPICS[topic].text)
    else:
        print(f"modscope: There is no help on {topic!r}.\n\n{describe_topics()}", file=sys.stderr)
        return 2
    return 0


def _suggest(word: str) -> str:
    """What to type instead of a word that is not a command."""
    import difflib

    begin, quoted = f"There is no command {clean(word)!r}.", clean(shlex.quote(word))
    if word.endswith(".msc"):
        return f"{begin} To read a capture:  modscope summary {quoted}"
    if word.endswith(".py") or os.path.isfile(word):
        return f"{begin} To run and record a script:  modscope run {quoted}"
    if similar := difflib.get_close_matches(word, COMMANDS, 1):
        return f"{begin} Did you mean:  modscope {similar[0]}"
    return f"{begin} The commands are: {', '.join(COMMANDS)}"


def _without_target(words: list[str]) -> tuple[list[str], list[str]]:
    """Of ``plan`` and ``batch``, which take a script too: the words without its arguments, and the script with them. It is
    empty if there is none."""
    if words[:1] not in (["plan"], ["batch"]):
        return words, []
    own, rest = split_arguments(words[1:], *SCRIPT_OPTIONS[words[0]])
    if not rest or not is_script(rest[0]):
        return [words[0], *rest, *own], []
    return [words[0], rest[-1] if rest[0] == "-m" else rest[0], *own], rest


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["help"] and len(words) == 2 and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if words[:1] == ["run"]:
        from modscope._run import main as run

        return run(words[1:])
    if words[:1] == ["calibrate"]:
        from modscope._calibrate import main as calibrate

        return calibrate(words[1:])
    if words[:1] == ["predict"]:
        from modscope._predict import main as predict

        return predict(words[1:])
    if words[:1] == ["fit"]:
        from modscope._fit import main as fit

        return fit(words[1:])
    if words and words[0] not in COMMANDS and not words[0].startswith("-"):
        print(f"modscope: {_suggest(words[0])}", file=sys.stderr)
        return 2
    words, target = _without_target(words)
    parser = _parser()
    known, unknown = parser.parse_known_args(words)
    known.target = target
    if unknown:
        refuse = parser.error if known.command is None else known.error
        refuse(clean(describe_unknown(known, unknown)))
    if known.command is None:
        parser.print_help(sys.stderr)
        return 2
    if known.command == "help":
        return _help(known.topic)
    if known.command != "doctor":
        return _commands.run(known)
    try:
        return _doctor()
    except ImportError as error:
        print(f"modscope: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
