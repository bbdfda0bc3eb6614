"""``modscope predict`` for several numbers of ranks, or for each of them: a table.

The script runs once for each row, in a process of its own with unlimited memory, several at a time. What it asked of the
allocator is then replayed on the GPU.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from modscope import _predict_process, _predict_table
from modscope._predict_result import Result
from modscope._predict_text import as_lines, notes, seconds, step_time
from modscope._text import counted, rough_size, size

_AT_ONCE = 2
_TALKING = 16
"""How many ranks run at the same time where each of them is predicted: the stages of a pipeline wait for each other."""


class _Row(NamedTuple):
    ranks: int
    rank: int


def predict(options: argparse.Namespace) -> int:
    """The exit status, which is the script's."""
    began = time.monotonic()
    rows = _rows(options)
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        status = _run(options, rows, folder)
        results: list[Result] = []
        for number in range(len(rows)):
            part = os.path.join(folder, str(number))
            facts = _predict_table.read_facts(part)
            if facts is None or "nothing" in facts:
                return _predict_table.refuse(options, facts, status)
            results.append(_predict_table.rows_of(options.gpu, part, facts)[options.gpu[0]])
    elapsed = time.monotonic() - began
    _predict_table.write_json(options.json, "ranks", results, elapsed)
    if not options.quiet:
        sys.stderr.write(_text(options, rows, results, elapsed))
        sys.stderr.flush()
    return status


def _rows(options: argparse.Namespace) -> list[_Row]:
    if options.all_ranks:
        return [_Row(options.ranks[0], rank) for rank in range(options.ranks[0])]
    return [_Row(ranks, options.rank or 0) for ranks in options.ranks]


def _run(options: argparse.Namespace, rows: Sequence[_Row], folder: str) -> int:
    """Run the script for each row; the output of the first is shown. Returns the first status that is not 0."""
    status = 0
    running = []
    at_once = _TALKING if options.all_ranks else _AT_ONCE
    options.mail = os.path.join(folder, "mail") if options.all_ranks else None
    if options.mail:
        os.mkdir(options.mail)
    for number, row in enumerate(rows):
        part = os.path.join(folder, str(number))
        os.mkdir(part)
        of_row = copy.copy(options)
        of_row.ranks, of_row.rank = [row.ranks], row.rank
        of_row.seconds = options.seconds * min(at_once, len(rows))  # they share the processors
        running.append(_predict_process.start(of_row, part, options.gpu, silent=number > 0))
        while len(running) >= at_once or (running and number == len(rows) - 1):
            status = status or _predict_process.wait(*running)
            del running[0]
    return status


# ---- the text ----


def _text(options: argparse.Namespace, rows: Sequence[_Row], results: list[Result], elapsed: float) -> str:
    first = results[0]
    done = counted(first["steps"], "step") if first["steps"] else "the script"
    which = f"rank {rows[0].rank} of {_list([row.ranks for row in rows])} ranks"
    if options.all_ranks:
        which = f"each of {counted(len(rows), 'rank')}"
    context = f"{rough_size(first['context'])} of each for the CUDA context{_communicators(results)}"
    ran = f"predicted {done} of {which} on {options.gpu[0].label} in {seconds(elapsed)}."
    lines = [ran, f"{rough_size(first['memory'])} of memory, {context}."]
    return as_lines(lines) + _table(options, rows, results) + "".join(f"{line}\n" for line in _sentences(options, rows, results))


def _list(numbers: Sequence[int]) -> str:
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def _communicators(results: Sequence[Result]) -> str:
    most = max(result["ranks"]["communicator_bytes"] for result in results)
    return f", up to about {rough_size(most)} for NCCL" if most else ""


def _table(options: argparse.Namespace, rows: Sequence[_Row], results: Sequence[Result]) -> str:
    has_times = any(result["step_ms"] for result in results)
    lines = [["rank" if options.all_ranks else "ranks", "allocates", "reserves", "to spare", *(["a step"] if has_times else []), ""]]
    for row, result in zip(rows, results):
        time = [f"about {step_time(result['step_ms'])}" if result["step_ms"] else ""] if has_times else []
        name = str(row.rank if options.all_ranks else row.ranks)
        lines.append([name, size(result["allocated_peak"]), *_predict_table.needs(result), *time, _predict_table.verdict(result)])
    return _predict_table.as_columns(lines)


def _sentences(options: argparse.Namespace, rows: Sequence[_Row], results: Sequence[Result]) -> list[str]:
    lines = [_spread(rows, results)] if options.all_ranks else []
    ended = next(((row, result) for row, result in zip(rows, results) if result["ended"] == "exception" or result["timed_out"]), None)
    if ended is not None:
        row, result = ended
        how = f"--seconds {result['timed_out']:g} ended the script"
        if not result["timed_out"]:
            how = f"an exception ended the script ({result['error'].splitlines()[0][:200]})"
        lines.append(f"Rank {row.rank} of {row.ranks}: {how}: what would follow is not known.")
    return [*lines, *notes(results[0])]


def _spread(rows: Sequence[_Row], results: Sequence[Result]) -> str:
    """Which rank reserves most, and which least."""
    reserved = [result["reserved_peak"] if result["fits"] else result["reserved_if_larger"] for result in results]
    if len(set(reserved)) == 1:
        return f"All ranks reserve the same: {size(reserved[0])}."
    most, least = max(reserved), min(reserved)
    names = rows[reserved.index(most)].rank, rows[reserved.index(least)].rank
    return f"Rank {names[0]} reserves most, {size(most)}, and rank {names[1]} least, {size(least)}: a spread of {size(most - least)}."
