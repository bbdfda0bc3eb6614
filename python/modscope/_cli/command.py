"""What a command is, and how the words of a command line become its arguments. Every command is parsed here."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from modscope._show.terminal import Screen, write

if TYPE_CHECKING:
    from modscope._read.load import Capture

Load = Callable[[str], "Capture"]
Report = dict[str, Any]


class Command(NamedTuple):
    """What a module of this package says of its command, as COMMAND. _cli/main.py has the names of all commands, and
    what each does in a line."""

    examples: Sequence[str]
    """Command lines without ``modscope``, for the end of the help."""
    add_options: Callable[[Parser], None]
    report: Callable[[argparse.Namespace, Load], Any]
    """Do what was asked. Returns the figures."""
    text: Callable[[Any, Screen, argparse.Namespace], list[str]]
    """The figures as lines for a terminal."""
    as_json: Callable[[Any, argparse.Namespace], Mapping[str, Any] | None] = lambda report, arguments: report
    """The figures as --json prints them; None: there are none, and nothing is printed."""
    status: Callable[[Any], int] = lambda report: 0
    """The exit status."""
    figures: str = "the exact figures"
    """What --json prints, for the help; "": the command has no such option."""
    takes: Literal["", "script", "script or nothing", "script or captures"] = ""
    """What the command takes: captures, which its parser has as arguments; a script, which has all words after it; or
    either. Then options may follow the script, and what follows -- is the script's."""
    usage: Sequence[str] = ()
    """How the command line of one that takes a script looks, without ``modscope`` and the name."""
    about: str = ""
    """More about what it does, for the help."""

    @property
    def runs_a_script(self) -> bool:
        """Whether the script has stdin, stdout and stderr. Then the command's own words go to stderr."""
        return self.takes in ("script", "script or nothing")


# ---- the parser ----


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(Screen(width).fill(text))


class Parser(argparse.ArgumentParser):
    """A parser whose help and errors fit the terminal, and fail with OSError if they cannot be written."""

    def __init__(self, **more: Any) -> None:
        super().__init__(formatter_class=_Formatter, **more)

    @property
    def actions(self) -> list[argparse.Action]:
        return self._actions

    def format_help(self) -> str:
        return _with_equals(super().format_help())

    def format_usage(self) -> str:
        return _with_equals(super().format_usage())

    def error(self, message: str) -> NoReturn:
        lines = Screen.of(sys.stderr).wrap(f"{self.prog}: error: {message}", shorten=False)
        with contextlib.suppress(OSError):
            write(sys.stderr, self.format_usage() + "".join(f"{line}\n" for line in lines))
        self.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        write(file, message)


def _with_equals(text: str) -> str:
    """The only value that needs an equals sign (_split)."""
    return text.replace("--json [OUT]", "--json[=OUT]")


def parser_of(name: str, does: str, command: Command) -> Parser:
    """``does``: what the command does, in a line."""
    lines = ["Example:" if len(command.examples) == 1 else "Examples:", *(f"  modscope {e}" for e in command.examples)]
    parser = Parser(
        prog=f"modscope {name}",
        usage=f"\n{'':7}".join(f"modscope {name} {line}" for line in command.usage) or None,
        description="\n".join(filter(None, (f"{does[0].upper()}{does[1:]}.", command.about))),
        allow_abbrev=not command.takes,
    )
    command.add_options(parser)
    if any("--gpu" in action.option_strings for action in parser.actions):
        from modscope._virtual.gpus import GPUS

        lines[:0] = [f"GPUs: {', '.join(GPUS)}", ""]
    parser.epilog = "\n".join(lines)
    if command.figures:
        what = f"print {command.figures} as JSON; --json=OUT writes a file; see modscope help json"
        parser.add_argument("--json", nargs="?", const="-", metavar="OUT", help=what)
    parser.set_defaults(error=parser.error, json=None)
    return parser


# ---- the words ----


def parse(name: str, does: str, command: Command, words: Sequence[str]) -> argparse.Namespace:
    """The arguments. ``target`` is the script, or -m and a module, with its own arguments; [] if none was given."""
    parser = parser_of(name, does, command)
    own, rest = _split(parser, command.takes, words)
    is_script = command.runs_a_script or bool(rest) and _is_script(rest[0], own)
    # of a script the name stands for the capture that the parser expects
    captures = [] if command.runs_a_script or not command.takes else rest[:1] if is_script else rest or ["none"]
    arguments, unknown = parser.parse_known_args([*own, *["--"] * bool(captures), *captures])
    if unknown:
        parser.error(_describe_unknown(name, parser, unknown))
    if not rest and command.takes in ("script", "script or captures"):
        uses = ("script.py", "-m module") if command.takes == "script" else ("FILE", "script.py")
        what = "script" if command.takes == "script" else "capture"
        parser.error(f"no {what} is given. Use: {', or '.join(f'modscope {name} {use}' for use in uses)}")
    arguments.target = [*["-m"] * getattr(arguments, "is_module", False), *rest] if is_script else []
    if arguments.json not in (None, "-"):
        _check_json(parser, arguments)
    return arguments


def _split(parser: Parser, takes: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for the parser, and the other ones: the script with its arguments, or captures where a script could be
    given instead. Where neither is possible the parser gets all words.

    A script has all words after it; but where captures could be given instead, known options of ours may follow.
    --json has a value after = only, because the word after it may be a capture or a script; but one that ends in .json
    is neither."""
    own: list[str] = []
    rest: list[str] = []
    valued = {option for action in parser.actions if action.nargs != 0 for option in action.option_strings}
    known = {option for action in parser.actions for option in action.option_strings} - {"-h", "--help", "-m"}
    left = [*words][::-1]
    while left:
        word = left.pop()
        in_script = bool(rest) and _is_script(rest[0], own)
        is_option = word.partition("=")[0] in known if in_script else word.startswith("-") and word != "-"
        if word == "--json":
            own.append(f"--json={left.pop() if left and left[-1].endswith('.json') else '-'}")
        elif not takes:
            own.append(word)
        elif word == "--":
            rest += left[::-1]
            break
        elif is_option:
            own.append(word)
            own += [left.pop()] if left and _takes_next(word, valued) else []
        elif takes == "script or captures":
            rest.append(word)
        else:
            rest += [word, *left[::-1]]
            break
    return own, rest


def _is_script(word: str, own: Sequence[str]) -> bool:
    return word.endswith(".py") or "-m" in own


def _takes_next(word: str, valued: set[str]) -> bool:
    """Whether the word after this option is its value: after ``--output`` and ``-fo``, not after ``-oFILE``."""
    if word.startswith("--"):
        return word in valued
    return next((i == len(word) for i, char in enumerate(word[1:], 2) if f"-{char}" in valued), False)


def _describe_unknown(name: str, parser: Parser, unknown: Sequence[str]) -> str:
    """What to say of arguments that a command does not know: of captures, how many it reads and what to do."""
    captures = [action for action in parser.actions if not action.option_strings]
    if any(action.nargs for action in captures) or not captures or any(word.startswith("-") for word in unknown):
        return f"unrecognized arguments: {' '.join(unknown)}"
    reads = "reads one capture" if len(captures) == 1 else "compares two captures"
    often = "once for each of them" if len(captures) == 1 else "for two of them"
    return (
        f"{name} {reads}, not {len(captures) + len(unknown)}: run it {often}. All ranks of a job are "
        f"compared by:  modscope summary FILE FILE ..."
    )


def _check_json(parser: Parser, arguments: argparse.Namespace) -> None:
    """End with a message if --json names no file that can be written, or one that is read or written otherwise."""
    path = arguments.json
    if not path or os.path.isdir(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        parser.error(f"--json {path}: it is a folder, or its folder does not exist")
    others = (word for key, value in vars(arguments).items() if key != "json" for word in _words_of(value))
    if any(os.path.abspath(word) == os.path.abspath(path) or _is_same(word, path) for word in others):
        parser.error(f"--json {path} is a file that is read or written otherwise: choose another name")


def _words_of(value: object) -> Iterator[str]:
    values = value if isinstance(value, list) else [value]
    return (word for word in values if isinstance(word, str))


def _is_same(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
