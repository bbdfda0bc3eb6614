"""The command line of a program: as its capture says it, and as it is typed again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

ANY_SCRIPT = ["train.py"]
"""What stands for the script in a command, where its name is not known."""


def program_words(info: Mapping[str, str]) -> list[str]:
    """The script of a capture, or -m and its module, with its arguments, for a command that runs it again; [] if the
    capture does not say it, or the program is none that modscope can run. ``info``: what the capture says of its
    run."""
    program, arguments = info.get("program", ""), info.get("arguments", "")
    words = arguments.split("\n") if arguments else []
    # which is a module, whose name is not known
    if program.endswith(".py") and os.path.basename(program) != "__main__.py":
        return [program, *words]
    parts = program.split(".")
    return ["-m", program, *words] if len(parts) > 1 and all(map(str.isidentifier, parts)) else []


def script_words(target: Sequence[str], *options: str) -> str:
    """The script, options of ours and the script's arguments, for a line that can be typed."""
    count = 2 if target[0] == "-m" else 1
    arguments = ["--", *target[count:]] if target[count:] else []
    return shlex.join([*target[:count], *options, *arguments])
