"""Run a script as Python does, and record its memory: for ``modscope run``, and for ``modscope predict``.

This process replaces itself with ``python script.py`` (execve), so modscope has no frame on the script's stack, and
Python itself handles exceptions and the exit status. Before the script, Python imports _record/start/sitecustomize.py,
which starts the recording (_record/in_process.py).

``python -m modscope._record.run`` is the process that becomes the script's where a command starts several
(``command``)."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from modscope._read.types import Refused
from modscope._record import capture_file, child_processes
from modscope._record.options import ScriptOptions
from modscope._record.settings import Settings

# ---- the script ----


def check_target(target: Sequence[str]) -> None:
    """Raise Refused where Python could not run the script."""
    if target[0] not in ("-", "-m"):
        _check_script(target[0])
    elif target == ["-m"]:
        raise Refused("-m needs the name of a module", 2)


def _check_script(path: str) -> None:
    """Raise Refused, with Python's own exit status, where Python could not run the script."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            if not any(os.path.exists(os.path.join(path, f"__main__.{suffix}")) for suffix in ("py", "pyc")):
                raise Refused(f"{path} is a folder without a __main__.py, so it cannot be run")
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                if not _may_be_python(path, file.read(4096)):
                    raise Refused(f"{path} is not a Python script")
    except FileNotFoundError:
        raise Refused(f"There is no script {path}", 2) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {getattr(error, 'strerror', error)}", 2) from None


def _may_be_python(path: str, head: bytes) -> bool:
    if b"\0" not in head or head.startswith(importlib.util.MAGIC_NUMBER) or path.endswith(".pyc"):
        return True
    import zipfile

    return zipfile.is_zipfile(path)


def stem(options: ScriptOptions) -> str:
    """What captures of the script are called."""
    if options.target[0] in ("-", "-m"):
        return "stdin" if options.target[0] == "-" else options.program
    return os.path.splitext(os.path.basename(os.path.abspath(options.program)))[0]


# ---- replacing this process ----


def python_flags() -> list[str]:
    """Python's options before ``-m modscope``. They apply to the script."""
    head = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return head[:-2] if head[-2:] in (["-m", "modscope"], ["-m", _HERE]) else []


def _check_python(flags: list[str]) -> None:
    if not sys.executable:
        raise Refused(
            "The path of the Python interpreter is unknown (sys.executable is empty), so the script cannot be run"
        )
    if flags and (sys.flags.ignore_environment or sys.flags.no_site):
        raise Refused("modscope cannot record a script under python -I, -E or -S. Run it without these options", 2)
    if os.pathsep in child_processes.START:
        raise Refused(
            f"modscope is installed in {child_processes.START}. Python cannot import from a path with a "
            f"{os.pathsep!r}: "
            f"install it elsewhere"
        )


def _settings(options: ScriptOptions, prediction: Sequence[Any]) -> Settings:
    """Creates the capture's file. OSError if it cannot be created: the script is not run then."""
    name = capture_file.name_for(options.output or None, stem(options))
    shown, file = "", None
    if not options.no_capture:
        shown, file = capture_file.prepare_for_run(name, bool(options.output), options.force, "-f")
        file = file.with_absolute_names()
    captures = child_processes.new_list()
    return Settings(
        options=options._replace(target=[options.program], environment={}),
        arguments=len(options.target) - 1 - (options.target[0] == "-m"),
        shown=shown,
        file=list(file) if file else [],
        children=[os.path.abspath(name.root), name.suffix] if options.follow_fork else [],
        pythonpath=os.environ.get("PYTHONPATH"),
        started=[os.getcwd(), options.output, stem(options)] if shown else [],
        began=time.time(),
        captures=list(captures) if captures else [],
        prediction=list(prediction),
    )


def _replace_process(command: list[str], settings: Settings) -> NoReturn:
    path = os.pathsep.join(filter(None, [child_processes.START, settings.pythonpath]))
    file = settings.new_file()
    for fd in settings.descriptors():
        os.set_inheritable(fd, True)
    try:
        os.execve(
            sys.executable, [sys.executable, *command], {**os.environ, **settings.to_environment(), "PYTHONPATH": path}
        )
    except OSError as error:
        if file:
            file.discard()
        raise Refused(f"Python cannot be started: {error.strerror}") from None


def start(options: ScriptOptions, prediction: Sequence[Any] = ()) -> NoReturn:
    """Become the script's process. Refused or OSError says why the script cannot be run. ``prediction``: what
    ``modscope predict`` was asked, as _predict.options.PredictOptions has it."""
    flags = python_flags()
    _check_python(flags)
    check_target(options.target)
    os.environ.update(options.environment)
    _replace_process([*flags, *options.target], _settings(options, prediction))


# ---- a process that becomes the script's ----

_HERE = "modscope._record.run"


def command(options: ScriptOptions, prediction: Sequence[Any]) -> list[str]:
    """A command line whose process becomes the script's. The script's own words may be too long for one of ours."""
    words = json.dumps([options._replace(target=[]), prediction])
    return [sys.executable, *python_flags(), "-m", _HERE, words, *options.target]


def _main(words: str, *target: str) -> int:
    options, prediction = json.loads(words)
    try:
        start(ScriptOptions(*options)._replace(target=list(target)), prediction)
    except (Refused, OSError) as error:
        from modscope._show.terminal import complain

        complain(str(error))
        return error.status if isinstance(error, Refused) else 1


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
