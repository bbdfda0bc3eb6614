"""What ``modscope predict`` prints for several numbers of ranks, or for each of them. Needs no torch."""

from __future__ import annotations

import argparse
import glob
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from modscope._predict import several_gpus
from modscope._predict.result import Result, has_failed
from modscope._predict.text import count_steps, describe_error, hints, notes, seconds
from modscope._read.text import clean, counted, rough_size, size
from modscope._show.terminal import Screen, as_lines

_MOST_NAMES = 2  # captures that are named one by one


class RankRow(NamedTuple):
    ranks: int
    rank: int
    capture: str
    """Its path; "": none was asked for."""


def text(
    options: argparse.Namespace, rows: Sequence[RankRow], results: list[Result], elapsed: float, screen: Screen
) -> list[str]:
    first = results[0]
    done = count_steps(first)
    which = f"rank {rows[0].rank} of {_list([row.ranks for row in rows])} ranks"
    if options.all_ranks:
        which = f"each of {counted(len(rows), 'rank')}"
    context = f"{rough_size(first['context'])} of each for the CUDA context{_communicators(results)}"
    ran = f"predicted {done} as {which} on {options.gpu[0].label} in {seconds(elapsed)}."
    lines = [ran, f"{rough_size(first['memory'])} of memory, {context}."]
    wrapped = [line for sentence in _sentences(options, rows, results) for line in screen.wrap(sentence)]
    return [*as_lines(lines, screen), *_table(options, rows, results, screen), *wrapped]


def _list(numbers: Sequence[int]) -> str:
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def _communicators(results: Sequence[Result]) -> str:
    most = max(result["ranks"]["communicator_bytes"] for result in results)
    return f", up to about {rough_size(most)} for NCCL" if most else ""


def _table(
    options: argparse.Namespace, rows: Sequence[RankRow], results: Sequence[Result], screen: Screen
) -> list[str]:
    headers = ["rank" if options.all_ranks else "ranks", "allocates", "reserves", "to spare"]
    cells = [
        [str(row.rank if options.all_ranks else row.ranks), size(result["allocated_peak"]), *several_gpus.needs(result)]
        for row, result in zip(rows, results)
    ]
    return several_gpus.table(headers, cells, results, screen, about="about ")


def _sentences(options: argparse.Namespace, rows: Sequence[RankRow], results: Sequence[Result]) -> list[str]:
    lines = [_spread(rows, results)] if options.all_ranks and not any(map(has_failed, results)) else []
    failed = [row for row, result in zip(rows, results) if has_failed(result)]
    stopped = [row for row, result in zip(rows, results) if result["timed_out"]]
    if failed:
        first = next(result for result in results if has_failed(result))
        whose = f"rank {failed[0].rank} of {failed[0].ranks}"
        lines += [
            f"The script failed as {whose} ({describe_error(first)}): what would follow is not known.",
            *hints(first),
        ]
    elif stopped:
        whose = f"rank {stopped[0].rank} of {stopped[0].ranks}"
        lines.append(
            f"The time that --seconds {options.seconds:g} gives was over before {whose} had taken {options.steps} "
            f"steps."
        )
    lines += several_gpus.about_verdicts(results)
    return [*lines, *notes(results[0]), *_captures(options, rows, results)]


def _spread(rows: Sequence[RankRow], results: Sequence[Result]) -> str:
    """Which rank reserves most, and which least."""
    reserved = [result["reserved_peak"] if result["fits"] else result["reserved_if_larger"] for result in results]
    if len(set(reserved)) == 1:
        return f"All ranks reserve the same: {size(reserved[0])}."
    most, least = max(reserved), min(reserved)
    names = rows[reserved.index(most)].rank, rows[reserved.index(least)].rank
    return (
        f"Rank {names[0]} reserves most, {size(most)}, and rank {names[1]} least, {size(least)}: a spread of "
        f"{size(most - least)}."
    )


# ---- captures ----


def _captures(options: argparse.Namespace, rows: Sequence[RankRow], results: Sequence[Result]) -> list[str]:
    if not rows[0].capture:
        what = "of each rank" if options.all_ranks else "of each row"
        return [f"To write a capture {what}, add -o NAME.msc, or -o FOLDER."]
    names = [row.capture for row in rows]
    lines = []
    if not all(result["fits"] for result in results):
        lines.append("Captures show what would be allocated if the GPU had enough memory.")
    lines.append(f"Wrote {counted(len(names), 'capture')}: {_as_words(names)}")
    if len(names) == 1:
        return [*lines, f"See it:  modscope summary {_as_words(names)}"]
    if options.all_ranks:
        return [*lines, f"See them as one job:  modscope summary {_as_words(names)}"]
    return [*lines, f"Compare two:  modscope diff {_as_words([names[0], names[-1]])}"]


def _as_words(names: Sequence[str]) -> str:
    """For a shell: each name, or a pattern where there are many and it finds no other files."""
    pattern = _pattern(names)
    if len(names) > _MOST_NAMES and pattern and sorted(glob.glob(pattern)) == sorted(names):
        folder, name = os.path.split(pattern)
        return clean(shlex.quote(os.path.join(folder, "")) * bool(folder) + name)
    return clean(shlex.join(names))


def _pattern(names: Sequence[str]) -> str:
    """What the names have in common, with * where their ranks are; "" if that needs quotes in a shell."""
    root, dot, suffix = names[0].rpartition(".rank0")
    found = f"{root}.rank*{suffix}" if dot else ""
    return found if shlex.quote(root + suffix) == root + suffix else ""
