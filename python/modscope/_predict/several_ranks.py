"""``modscope predict`` for several numbers of ranks, or for each of them: a table, and captures if they are asked for.

The script runs once for each row, in a process of its own with unlimited memory, several at a time. What it asked of
the allocator is then replayed on the GPU."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from modscope._predict import process as _predict_process
from modscope._predict import several_gpus, several_ranks_text
from modscope._predict.options import records_of
from modscope._predict.progress import Progress
from modscope._predict.result import Facts, Predicted, Result
from modscope._predict.several_ranks_text import RankRow
from modscope._read.own_files import CAPTURE
from modscope._read.text import clean
from modscope._record import capture_file
from modscope._record.options import ScriptOptions
from modscope._record.run import stem
from modscope._show import output_file
from modscope._show.terminal import say, write
from modscope._virtual.gpus import Gpu
from modscope._virtual.ranks.messages import note_end, waiting

_LAST_LINES = 40  # of what a rank printed that failed


class _Ran(NamedTuple):
    status: int
    """The first one that is not 0."""
    failed: int | None
    """The first row that had such a status."""


def predict(arguments: argparse.Namespace) -> Predicted:
    """OSError says why captures cannot be written."""
    began = time.monotonic()
    script, prediction = records_of(arguments)
    rows = _rows(arguments, script)
    for row in rows:
        if row.capture:
            output_file.check(row.capture, CAPTURE, script.force)
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        parts = [os.path.join(folder, str(number)) for number in range(len(rows))]
        ran = _predict(arguments, rows, parts, folder)
        _show_errors(rows, parts, ran)
        found = [several_gpus.read_facts(part) for part in parts]
        for row, facts in zip(rows, found):
            if facts is None or "nothing" in facts:
                whose = f"rank {row.rank} of {row.ranks}: "
                return several_gpus.nothing_to_predict(script, prediction, facts, ran.status, whose)
        gpu = arguments.gpu[0]
        results = [_result(gpu, script, row, part, facts) for row, part, facts in zip(rows, parts, found) if facts]
    elapsed = time.monotonic() - began
    figures = several_gpus.figures_of("ranks", results, elapsed)
    return Predicted(
        ran.status, figures, lambda screen: several_ranks_text.text(arguments, rows, results, elapsed, screen)
    )


def _rows(arguments: argparse.Namespace, script: ScriptOptions) -> list[RankRow]:
    output = script.output
    if output and (os.path.isdir(output) or output.endswith(os.sep)):
        output = os.path.join(output, f"modscope-{stem(script)}.msc")
    root, suffix = os.path.splitext(output) if output else ("", "")

    def row(ranks: int, rank: int) -> RankRow:
        named = output if arguments.all_ranks else f"{root}.{ranks}ranks{suffix}"
        return RankRow(ranks, rank, capture_file.name_of_rank(named, "", rank).plain() if output else "")

    if arguments.all_ranks:
        return [row(arguments.ranks[0], rank) for rank in range(arguments.ranks[0])]
    return [row(ranks, arguments.rank or 0) for ranks in arguments.ranks]


# ---- the processes ----


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _predict(arguments: argparse.Namespace, rows: Sequence[RankRow], parts: Sequence[str], folder: str) -> _Ran:
    """Run the script for each row, as many at once as there are cores; the output of the first is shown. A rank that
    waits for another one's message, as the stages of a pipeline do, takes no core meanwhile."""
    at_once = min(_cores(), len(rows))
    script, prediction = records_of(arguments)
    messages = os.path.join(folder, "messages") if arguments.all_ranks else ""
    if messages:
        os.mkdir(messages)
    what = f"{len(rows)} ranks" if arguments.all_ranks else f"{len(rows)} numbers of ranks"
    progress = Progress(f"{script.program} as {what}", script.steps, parts, quiet=script.quiet or bool(script.json))
    running: list[subprocess.Popen[Any]] = []
    is_free = lambda: len(running) - waiting(messages) < at_once
    number_of: dict[subprocess.Popen[Any], int] = {}
    ran = _Ran(0, None)
    prediction = prediction._replace(messages=messages, gpus=[arguments.gpu[0].name])
    with _predict_process.signals_passed_on(running):
        for number, (row, part) in enumerate(zip(rows, parts)):
            of_row = _predict_process.for_part(script, prediction, part, ranks=row.ranks, rank=row.rank)
            with open(_errors(part), "wb") as errors:
                running.append(
                    _predict_process.start(*of_row, silent=number > 0, errors=errors if number > 0 else None)
                )
            number_of[running[-1]] = number
            is_last = number == len(rows) - 1
            while running and (is_last or len(running) - waiting(messages) >= at_once):
                ended = _predict_process.wait_for_any(running, progress.tick, None if is_last else is_free)
                if ended is None:
                    continue
                running.remove(ended)
                which = number_of[ended]
                if messages:
                    note_end(messages, rows[which].rank)
                progress.ended()
                if ended.returncode and ran.failed is None:
                    ran = _Ran(ended.returncode, which)
    progress.done()
    return ran


def _errors(part: str) -> str:
    """The file of what a rank prints on stderr that is not shown."""
    return os.path.join(part, "stderr")


def _show_errors(rows: Sequence[RankRow], parts: Sequence[str], ran: _Ran) -> None:
    """What the first rank that failed printed, unless it is shown already."""
    if not ran.failed:
        return
    with open(_errors(parts[ran.failed]), encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()[-_LAST_LINES:]
    row = rows[ran.failed]
    say(f"rank {row.rank} of {row.ranks} failed, and printed:")
    write(sys.stderr, "".join(f"{clean(line)}\n" for line in lines))


# ---- the results ----


def _result(gpu: Gpu, script: ScriptOptions, row: RankRow, part: str, facts: Facts) -> Result:
    """The result of a row, whose capture is copied to where it was asked for."""
    result = several_gpus.rows_of([gpu], part, facts)[gpu]
    if row.capture:
        with open(facts["capture"], "rb") as source, output_file.create(row.capture, CAPTURE, script.force) as target:
            shutil.copyfileobj(source, target)
    return {**result, "capture": row.capture}
