"""How a script is run and recorded: the options that ``modscope run`` and ``modscope predict`` pass on to its process.

An option of either is a field here, or of _predict/options.py, and a line in its command's parser: the records are
filled by the names of their fields, and reach the script's process as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse


class ScriptOptions(NamedTuple):
    """What ``modscope run`` was asked. What belongs to a prediction is in _predict/options.py."""

    target: list[str]
    """The script, or -m and a module, with its arguments."""
    output: str = ""
    """The capture's path; "": it is named after the script."""
    force: bool = False
    steps: int = 0
    """The script is stopped after so many optimizer steps; 0: never."""
    plan: str = ""
    """The path of a plan, whose modules are checkpointed; "": none."""
    stacks: int = 1
    """How many frames are kept for each block."""
    no_capture: bool = False
    follow_fork: bool = False
    quiet: bool = False
    json: str | int = ""
    """The path of the file that gets the figures as JSON, or the descriptor of stdout; "": nothing does."""
    environment: dict[str, str] = {}
    """Variables that the script has besides."""

    @property
    def program(self) -> str:
        """The script, or the name of the module."""
        return self.target[1] if self.target[0] == "-m" else self.target[0]


def options_of(record: Any, arguments: argparse.Namespace, **more: Any) -> Any:
    """A record with the values of the options that have the names of its fields. An option that was not given leaves
    the record's default."""
    given = {name: value for name, value in vars(arguments).items() if name in record._fields and value is not None}
    return record(**{**given, **more})
