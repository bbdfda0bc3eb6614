"""The file of ``--modscope-baseline``: what tests took of virtual GPUs, so that a change that takes more is noticed.

{"modscope_baseline": 1, "tests": {"test_train.py::test_step": {"gpu": "rtx4090", "torch": "2.13.0", ...}}}"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import pytest

from modscope._read.text import change, counted, size
from modscope.integrations.memory_tests import Figures

_VERSION = 1
_KEY = "modscope_baseline"
_MOST_ROWS = 5


class Baseline:
    """A plugin of pytest's. With xdist each worker compares its own tests, and the process that started them writes."""

    NAME = "modscope-baseline"

    def __init__(self, path: str, update: bool, config: pytest.Config) -> None:
        self._path = os.path.join(str(config.invocation_params.dir), path)
        self._is_update = update
        self._is_worker = hasattr(config, "workerinput")
        self._now: dict[str, Figures] = {}
        self._new = 0
        self._tests = _read(self._path, path, must_be_there=not update)

    # ---- a test ----

    def compare(self, test: str, now: Figures) -> str | None:
        """Why a test fails: it needs more than it did. None: it needs no more, or the file does not have it."""
        before = None if self._is_update else self._tests.get(test)
        if before is None:
            return None
        if (before.gpu, before.torch) != (now.gpu, now.torch):
            return (
                f"The baseline of this test is of {before.gpu} with torch {before.torch}, and this is {now.gpu} with "
                f"torch {now.torch}: the two cannot be compared. Write it anew with --modscope-update."
            )
        grown = now.allocated - before.allocated, now.reserved - before.reserved
        if max(grown) <= 0:
            return None
        figures = (("allocates", before.allocated, now.allocated), ("reserves", before.reserved, now.reserved))
        takes = " and ".join(f"{verb} {size(new)} (was {size(old)}, {change(new - old)})" for verb, old, new in figures)
        return "\n".join(
            (
                f"The test needs more memory than its baseline says: it {takes}.",
                *_grown("Modules that hold more at the peak:", before.modules, now.modules),
                *_grown("Lines that allocated more of it:", before.lines, now.lines),
                "If this is meant to be so, write the baseline anew with --modscope-update.",
            )
        )

    # ---- the run ----

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        figures = getattr(report, "modscope", None)
        if figures is not None and not self._is_worker:
            self._now[report.nodeid] = Figures(**figures)

    def pytest_sessionfinish(self) -> None:
        if self._is_update and not self._is_worker and self._now:
            _write(self._path, {**self._tests, **self._now})

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._is_update and self._now:
            terminalreporter.write_line(
                f"modscope: wrote the figures of {counted(len(self._now), 'test')} to {self._path}"
            )
            return
        new = sorted(set(self._now) - set(self._tests))
        if new:
            which = f"{new[0]}" + (f" and {counted(len(new) - 1, 'other test')}" if len(new) > 1 else "")
            terminalreporter.write_line(f"modscope: the baseline has no {which}: add it with --modscope-update")
        less = [test for test, now in self._now.items() if test in self._tests and _needs_less(now, self._tests[test])]
        if less:
            what = counted(len(less), "test")
            terminalreporter.write_line(
                f"modscope: {what} took less than the baseline says: lower it with --modscope-update"
            )


def _needs_less(now: Figures, before: Figures) -> bool:
    is_same = (now.gpu, now.torch) == (before.gpu, before.torch)
    return is_same and now.allocated <= before.allocated and now.reserved <= before.reserved and now[2:4] != before[2:4]


def _grown(title: str, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    changes = {name: value - before.get(name, 0) for name, value in now.items()}
    rows = sorted(((name, more) for name, more in changes.items() if more > 0), key=lambda row: -row[1])
    return [title, *(f"  {change(more):>12}  {name}" for name, more in rows[:_MOST_ROWS])] if rows else []


# ---- the file ----


def _read(path: str, asked: str, must_be_there: bool) -> dict[str, Figures]:
    """UsageError says why it is no baseline."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document[_KEY] != _VERSION:
            raise pytest.UsageError(
                f"{asked} is a baseline of another version of modscope: remove it, and write it with --modscope-update"
            )
        return {test: Figures(**figures) for test, figures in document["tests"].items()}
    except FileNotFoundError:
        if not must_be_there:
            return {}
        raise pytest.UsageError(f"There is no baseline {asked}: write it with --modscope-update") from None
    except OSError as error:
        raise pytest.UsageError(f"{asked}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise pytest.UsageError(f"{asked} is no baseline of modscope: give another name") from None


def _write(path: str, tests: Mapping[str, Figures]) -> None:
    document = {_KEY: _VERSION, "tests": {test: tests[test]._asdict() for test in sorted(tests)}}
    before = f"{path}.{os.getpid()}.new"
    with open(before, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(before, path)
