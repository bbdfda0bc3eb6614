"""``modscope predict`` for several numbers of ranks, or for each of them: a table, and captures if they are asked for.

The script runs once for each row, in a process of its own with unlimited memory, several at a time. What it asked of the
allocator is then replayed on the GPU.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope import _files, _output, _predict_process, _predict_ranks_text, _predict_table, _run
from modscope._predict_progress import Progress
from modscope._predict_ranks_text import Row, name_of
from modscope._predict_result import Result
from modscope._text import clean
from modscope._virtual.mail import note_end

_MOST_AT_ONCE = 16
"""Processes. Where each rank is predicted, so many run at the same time also on fewer cores: the stages of a pipeline wait for each other."""
_LAST_LINES = 40  # of what a rank printed that failed


class _Ran(NamedTuple):
    status: int
    """The first one that is not 0."""
    failed: int | None
    """The first row that had such a status."""


def predict(options: argparse.Namespace) -> int:
    """The exit status, which is the script's."""
    began = time.monotonic()
    rows = _rows(options)
    try:
        for row in rows:
            if row.capture:
                _output.check(row.capture, options.force, *filter(os.path.exists, options.target[:1]))
        with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
            parts = [os.path.join(folder, str(number)) for number in range(len(rows))]
            ran = _predict(options, rows, parts, folder)
            _show_errors(rows, parts, ran)
            found = [_predict_table.read_facts(part) for part in parts]
            for row, facts in zip(rows, found):
                if facts is None or "nothing" in facts:
                    return _predict_table.refuse(options, facts, ran.status, f"rank {row.rank} of {row.ranks}: ")
            results = [_result(options, row, part, facts) for row, part, facts in zip(rows, parts, found) if facts]
    except OSError as error:
        print(f"modscope: {clean(str(error))}", file=sys.stderr)
        return 1
    elapsed = time.monotonic() - began
    _predict_table.write_json(options.json, "ranks", results, elapsed)
    if not options.quiet:
        sys.stderr.write(_predict_ranks_text.text(options, rows, results, elapsed))
        sys.stderr.flush()
    return ran.status


def _rows(options: argparse.Namespace) -> list[Row]:
    output = options.output
    if output and (os.path.isdir(output) or output.endswith(os.sep)):
        output = os.path.join(output, f"modscope-{_run.stem(options)}.msc")
    root, suffix = os.path.splitext(output) if output else ("", "")

    def row(ranks: int, rank: int) -> Row:
        named = output if options.all_ranks else f"{root}.{ranks}ranks{suffix}"
        return Row(ranks, rank, _files.name_of_rank(named, "", rank).plain() if output else "")

    if options.all_ranks:
        return [row(options.ranks[0], rank) for rank in range(options.ranks[0])]
    return [row(ranks, options.rank or 0) for ranks in options.ranks]


# ---- the processes ----


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _predict(options: argparse.Namespace, rows: Sequence[Row], parts: Sequence[str], folder: str) -> _Ran:
    """Run the script for each row; the output of the first is shown."""
    at_once = min(_MOST_AT_ONCE if options.all_ranks else max(_cores(), 2), _MOST_AT_ONCE, len(rows))
    mail = os.path.join(folder, "mail") if options.all_ranks else None
    for path in filter(None, (*parts, mail)):
        os.mkdir(path)
    what = f"{len(rows)} ranks" if options.all_ranks else f"{len(rows)} numbers of ranks"
    progress = Progress(parts, what, options.steps, options.quiet or bool(options.json))
    running: list[subprocess.Popen[Any]] = []
    number_of: dict[subprocess.Popen[Any], int] = {}
    ran = _Ran(0, None)
    with _predict_process.signals_passed_on(running):
        for number, (row, part) in enumerate(zip(rows, parts)):
            of_row = copy.copy(options)
            of_row.ranks, of_row.rank, of_row.mail = [row.ranks], row.rank, mail
            of_row.seconds = options.seconds * -(-at_once // min(_cores(), at_once))  # they share the processors
            running.append(_predict_process.start(of_row, part, options.gpu, silent=number > 0, errors=_errors(part)))
            number_of[running[-1]] = number
            while len(running) >= at_once or (running and number == len(rows) - 1):
                ended = _predict_process.wait_for_any(running, progress.tick)
                running.remove(ended)
                which = number_of[ended]
                if mail:
                    note_end(mail, rows[which].rank)
                progress.ended(name_of(options, rows[which]), parts[which], ended.returncode)
                if ended.returncode and ran.failed is None:
                    ran = _Ran(ended.returncode, which)
    progress.done()
    return ran


def _errors(part: str) -> str:
    """The file of what a rank prints on stderr that is not shown."""
    return os.path.join(part, "stderr")


def _show_errors(rows: Sequence[Row], parts: Sequence[str], ran: _Ran) -> None:
    """What the first rank that failed printed, unless it is shown already."""
    if not ran.failed:
        return
    with open(_errors(parts[ran.failed]), encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()[-_LAST_LINES:]
    row = rows[ran.failed]
    print(f"[modscope] rank {row.rank} of {row.ranks} failed, and printed:", file=sys.stderr)
    for line in lines:
        print(clean(line), file=sys.stderr)


# ---- the results ----


def _result(options: argparse.Namespace, row: Row, part: str, facts: dict[str, Any]) -> Result:
    """Of a row, whose capture is copied to where it was asked for."""
    result = _predict_table.rows_of(options.gpu, part, facts)[options.gpu[0]]
    if row.capture:
        with open(facts["capture"], "rb") as source, _output.create(row.capture, options.force) as target:
            shutil.copyfileobj(source, target)
    return {**result, "capture": row.capture}
