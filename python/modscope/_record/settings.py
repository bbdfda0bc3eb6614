"""What ``modscope run`` passes to the script's process, and what that passes to the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, NamedTuple

from modscope._record import capture_file, child_processes
from modscope._record.options import ScriptOptions

VARIABLE = "MODSCOPE_RUN"
"""The environment variable that holds the settings."""


class Settings(NamedTuple):
    """They are passed in an environment variable."""

    options: ScriptOptions
    """What was asked, with the program as the only word of its target: the arguments may be too long for the
    environment."""
    arguments: int
    """How many arguments the program has."""
    shown: str = ""
    """The capture's path as the user gave it; "" if no capture is written."""
    file: list[Any] = []
    """The capture's file, as capture_file.NewFile has it; empty if no capture is written."""
    children: list[str] = []
    """Root and suffix of forked children's captures; empty if they are not followed."""
    pythonpath: str | None = None
    """PYTHONPATH before ``modscope run`` added its folder; None if it was not set."""
    started: list[str] = []
    """What processes that the script starts need: the folder in which ``modscope run`` was called, the option -o, and
    what captures are called without it. Empty if no captures are written."""
    began: float = 0.0
    """The time when ``modscope run`` was called."""
    captures: list[int] = []
    """The list of captures, as child_processes.CaptureList has it; empty if there is none."""
    prediction: list[Any] = []
    """What ``modscope predict`` was asked, as _predict.options.PredictOptions has it; empty for ``modscope run``."""
    is_started: bool = False
    """Whether the script started this process."""

    def new_file(self) -> capture_file.NewFile | None:
        return capture_file.NewFile(*self.file) if self.file else None

    def capture_list(self) -> child_processes.CaptureList | None:
        return child_processes.CaptureList(*self.captures) if self.captures else None

    def descriptors(self) -> list[int]:
        """The descriptors of the files that the script's process has open."""
        stdout = [self.options.json] if isinstance(self.options.json, int) else []
        return [*stdout, *(file.fd for file in (self.new_file(), self.capture_list()) if file)]

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: self._as_text()}

    def _as_text(self) -> str:
        """Begins with the version of Python: our sitecustomize leaves other versions alone."""
        return f"{sys.version_info[0]}.{sys.version_info[1]} {json.dumps(self)}"

    @classmethod
    def of_text(cls, text: str) -> Settings:
        options, *others = json.loads(text.split(" ", 1)[1])
        return cls(ScriptOptions(*options), *others)

    def for_started(self, pythonpath: str | None) -> str:
        """The variable's value for a process that this one starts."""
        return self._replace(shown="", file=[], pythonpath=pythonpath, is_started=True)._as_text()

    def in_this_process(self) -> Settings:
        """These settings, with the program of a process that the script started."""
        program = child_processes.program_of_this_process() if self.is_started else None
        if program is None:
            return self._replace(arguments=0) if self.is_started else self
        stem = os.path.splitext(os.path.basename(os.path.abspath(program[0])))[0] if sys.argv[0] != "-m" else program[0]
        return self._replace(
            options=self.options._replace(target=[program[0]]),
            arguments=program[1],
            started=[*self.started[:2], stem][: len(self.started)],
        )

    def new_started_file(self) -> tuple[str, capture_file.NewFile] | None:
        """Create the capture of a process that the script started: its name as the user sees it, and the file. OSError
        if it cannot be created. A rank that is started again does not replace the capture of its first start."""
        if not self.started:
            return None
        folder, output, stem = self.started
        name = capture_file.name_for(output or None, stem)
        if name.has_rank:
            path = os.path.join(folder, name.plain())
            with contextlib.suppress(FileExistsError):
                return name.plain(), capture_file.prepare(path, self.options.force and not self._is_of_this_run(path))
        return name.numbered(), capture_file.prepare(os.path.join(folder, name.numbered()), False)

    def _is_of_this_run(self, path: str) -> bool:
        return os.path.lexists(path) and os.lstat(path).st_mtime >= self.began
