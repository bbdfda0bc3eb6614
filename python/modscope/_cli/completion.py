"""Shell completion and the man page, made from the parsers of all commands."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from modscope import _capture
from modscope._cli.command import parser_of
from modscope._cli.main import COMMANDS

__all__ = ["completion_for", "man_page"]


class _Option(NamedTuple):
    names: list[str]
    metavar: str
    """What it takes; "" if nothing."""
    about: str


class _Described(NamedTuple):
    name: str
    does: str
    usage: str
    about: str
    options: list[_Option]
    arguments: list[_Option]


def _commands() -> Iterator[_Described]:
    for name, does in COMMANDS.items():
        parser = parser_of(name, does, importlib.import_module(f"modscope._cli.{name}").COMMAND)
        shown = [action for action in parser.actions if action.help != argparse.SUPPRESS]
        rows = [
            _Option(list(action.option_strings), _metavar(action), (action.help or "") % vars(action))
            for action in shown
        ]
        options = [row for row in rows if row.names]
        yield _Described(
            name, does, parser.format_usage(), parser.description or "", options, [row for row in rows if not row.names]
        )


def _metavar(action: argparse.Action) -> str:
    return "" if action.nargs == 0 else str(action.metavar or action.dest.upper())


# ---- shells ----


def _bash() -> str:
    from modscope._virtual.gpus import GPUS

    cases = "\n".join(
        f'    {each.name}) words="{" ".join(name for option in each.options for name in option.names)}" ;;'
        for each in _commands()
    )
    return f"""\
# Completion of modscope for bash:  source <(modscope help --completion bash)
_modscope() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(COMMANDS)}"
  elif [ "$before" = --gpu ]; then words="{" ".join(GPUS)}"
  elif [ "$before" = help ]; then words="{" ".join(COMMANDS)} $words"
  else case $current in -*) ;; *) words="" ;; esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -o bashdefault -F _modscope modscope
"""


def _zsh() -> str:
    about = "# Completion of modscope for zsh:  source <(modscope help --completion zsh)"
    return f"{about}\nautoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = ["# Completion of modscope for fish:  modscope help --completion fish | source"]
    for each in _commands():
        lines.append(f"complete -c modscope -n __fish_use_subcommand -a {each.name} -d {_quoted(each.does)}")
        for option in each.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            takes = " -r" if option.metavar and option.metavar != "[OUT]" else ""
            of_command = f"-n '__fish_seen_subcommand_from {each.name}'"
            lines.append(f"complete -c modscope {of_command} {names}{takes} -d {_quoted(option.about)}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ") + "'"


_SCRIPTS: dict[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def completion_for(shell: str) -> str:
    """The completion script of a shell."""
    return _SCRIPTS[shell]().rstrip("\n")


# ---- the man page ----


def man_page() -> str:
    """The man page of all commands, in man's macros."""
    lines = [
        f'.TH MODSCOPE 1 "" "modscope {_capture.version}"',
        ".SH NAME",
        "modscope \\- which module owns each byte of memory in a PyTorch program",
        ".SH SYNOPSIS",
        ".B modscope",
        ".I COMMAND",
        "[options]",
        ".SH COMMANDS",
    ]
    for each in _commands():
        lines += [
            f".SS {each.name}",
            ".nf",
            *map(_roff, each.usage.strip().splitlines()),
            ".fi",
            ".PP",
            *map(_roff, each.about.splitlines()),
        ]
        for option in [*each.arguments, *each.options]:
            title = ", ".join(option.names) or option.metavar
            takes = f" {option.metavar}" if option.names and option.metavar else ""
            lines += [".TP", f"\\fB{_roff(title)}\\fR{_roff(takes)}", _roff(option.about)]
    return "\n".join([*lines, ".SH SEE ALSO", "modscope help"])


def _roff(text: str) -> str:
    """Text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
