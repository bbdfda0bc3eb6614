"""The page of the ranks of one job that ``modscope report`` writes: ranks over time, and each rank's modules at its
peak. The page's own files are ``page/ranks/``."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from modscope._job.collectives import (
    WHY_IT_HANGS,
    collectives_title,
    describe_divergence,
    describe_each,
    describe_group,
    describe_part,
    find_mismatches,
    kind_totals,
)
from modscope._job.failure import describe_failure, describe_incomplete, find_compared, has_failed, whole_or_all
from modscope._job.job import (
    Difference,
    DistributedJob,
    compare_ranks,
    describe_job,
    describe_location,
    describe_missing,
    describe_ranks,
    describe_step_times,
    find_extremes,
    find_nodes,
    group_rows,
    sums_by_kind,
)
from modscope._job.read import Owned, Rank, identity_of
from modscope._read.categories import CATEGORIES, KINDS, Raw, category_word
from modscope._read.load import CaptureError, load
from modscope._read.summary import Report, predicted_on
from modscope._read.text import at_least, clean, counted, describe_moment, duration, size
from modscope._show.pages import Page, make_html, packed

_MOST_NUMBERS = 1_200_000  # All ranks have so many together, on both axes: at most 7 MB of the page.
_MOST_COLUMNS, _FEWEST_COLUMNS = 600, 24
_MODULES = 40  # A rank shows so many; its other modules are one row.
_DIFFERENCES, _DIFFERENCE_ROWS = 60, 8  # groups of ranks that differ, and rows of modules of each
_MISMATCHES, _PARTS = 20, 12  # groups that launched different collectives, and what each part of them launched
_AFTER_END = 1.0  # seconds


class Axes(NamedTuple):
    """The columns of the heat map: by the clock, and by steps."""

    columns: int
    begin: float
    """When the first column begins, in seconds since the first capture began."""
    end: float
    first_step: int
    last_step: int
    per_step: int
    """How many columns a step has; 0 if a column has several steps."""
    steps_per_column: int

    @property
    def step_columns(self) -> int:
        steps = self.last_step - self.first_step + 1
        return steps * self.per_step if self.per_step else -(-steps // self.steps_per_column)


class Steps(NamedTuple):
    """When a rank's steps began, on its own clock. The first, 0, is what came before the steps."""

    begins: dict[int, float]
    duration: float

    def begin(self, number: int) -> float:
        """A step that the rank did not reach begins after its end."""
        return self.begins.get(number, self.duration + _AFTER_END)

    def end(self, number: int) -> float:
        return self.begins.get(number + 1, self.duration) if number in self.begins else self.duration + _AFTER_END


def _steps_of(rank: Rank) -> Steps:
    capture = load(rank.file)
    begins: dict[int, float] = {0: 0.0}
    for step in capture.step_times():
        begins.setdefault(step.number, step.begin)
    return Steps(begins, max(capture.duration, rank.duration))


def _offsets(ranks: Sequence[Rank]) -> list[float] | None:
    """How much later than the first one each capture began; None if one does not say when."""
    began = [rank.began for rank in ranks if rank.began is not None]
    return [time - min(began) for time in began] if len(began) == len(ranks) else None


def _axes(steps: Sequence[Steps], offsets: Sequence[float], asked: tuple[int | None, int | None] | None) -> Axes:
    last = max(max(one.begins) for one in steps)
    low, high = (asked[0] or 0, last if asked[1] is None else min(asked[1], last)) if asked else (0, last)
    if low > last:
        raise CaptureError(f"There is no step {low}: the last of all ranks is {last}")
    have = [(one, offset) for one, offset in zip(steps, offsets) if low in one.begins]
    begin = min(offset + one.begin(low) for one, offset in have)
    end = max(offset + min(one.end(high), one.duration) for one, offset in have)
    most = _MOST_NUMBERS // (2 * len(CATEGORIES) * len(steps))
    columns = min(max(most, _FEWEST_COLUMNS), _MOST_COLUMNS)
    count = high - low + 1
    return Axes(
        columns,
        begin,
        max(end, begin + 1e-6),
        low,
        high,
        columns // count,
        1 if columns >= count else -(-count // columns),
    )


def _time_bounds(axes: Axes, offset: float) -> list[float]:
    width = (axes.end - axes.begin) / axes.columns
    return [axes.begin + i * width - offset for i in range(axes.columns + 1)]


def _step_bounds(axes: Axes, steps: Steps) -> list[float]:
    bounds = []
    if axes.per_step:
        for number in range(axes.first_step, axes.last_step + 1):
            begin, end = steps.begin(number), steps.end(number)
            bounds += [begin + (end - begin) * i / axes.per_step for i in range(axes.per_step)]
    else:
        bounds = [steps.begin(number) for number in range(axes.first_step, axes.last_step + 1, axes.steps_per_column)]
    bounds.append(min(steps.end(axes.last_step), steps.duration + _AFTER_END))
    latest = 0.0
    for i, bound in enumerate(bounds):  # in a damaged capture a step may be missing
        bounds[i] = latest = max(bound, latest)
    return bounds


def _series_of(rank: Rank, axes: Axes, steps: Steps, offset: float) -> bytes:
    nothing = (-1).to_bytes(8, "little", signed=True) * len(CATEGORIES)
    if not rank.device:
        return nothing * (axes.columns + axes.step_columns)
    capture = load(rank.file)
    return capture.series(rank.device, _time_bounds(axes, offset)) + capture.series(
        rank.device, _step_bounds(axes, steps)
    )


# ---- in words and figures ----


def _sentence(job: DistributedJob) -> str:
    """Which rank failed, if one did, and the highest peak."""
    failure = describe_failure(job.ranks)
    return (f'<span class="alarm">{html.escape(failure)}</span> ' if failure else "") + _sentence_on_peaks(job)


def _sentence_on_peaks(job: DistributedJob) -> str:
    """The spread is of the ranks that are compared; one that is not may have the highest peak."""
    compared = find_compared(job.ranks)
    low, high = find_extremes(compared)
    highest = find_extremes(job.ranks)[1]
    peak = at_least(high.is_lower_bound, size(high.bytes))
    if len(compared) == len(job.ranks) and low.bytes == high.bytes:
        return (
            f"Every rank has a peak of <strong>{peak}</strong>."
            if len(job.ranks) > 1
            else f"The peak is <strong>{peak}</strong>."
        )
    spread = (
        f": <strong>{size(high.bytes - low.bytes)}</strong> more than {_name(low)}, which has the lowest"
        if low.bytes < high.bytes
        else ""
    )
    if highest.bytes == high.bytes:
        return f"The highest peak is <strong>{peak}</strong>, on <strong>{_name(high)}</strong>{spread}."
    recorded = at_least(highest.is_lower_bound, size(highest.bytes))
    own = (
        f"that of {_name(high)} is {peak}"
        if len(compared) == 1
        else f"of those that are, the highest is <strong>{peak}</strong>, on {_name(high)}{spread}"
    )
    return (
        f"The highest peak recorded is <strong>{recorded}</strong>, on <strong>{_name(highest)}</strong>, but "
        f"it is not compared; {own}."
    )


def _name(rank: Rank) -> str:
    return html.escape(describe_ranks([rank]))


def _facts(job: DistributedJob) -> str:
    longest = max(job.ranks, key=lambda rank: rank.steps)
    length = duration(max(rank.duration for rank in job.ranks))
    events = filter(None, (length, counted(longest.steps, "step"), describe_step_times(job.ranks)))
    ended = sum(not has_failed(rank) for rank in job.ranks)
    ends = "all ranks finished" if ended == len(job.ranks) else f"{ended} of {counted(len(job.ranks), 'rank')} finished"
    return " · ".join([describe_job(job), *events, ends])


def _table(owned: Owned, names: dict[str, int]) -> list[list[int]]:
    """Rows of a name's number and the bytes of each category, largest first; the last is of all other modules, -1."""
    rows = sorted(owned, key=lambda row: -sum(row[1]))
    table = [[names.setdefault(fqn, len(names)), *raw] for fqn, raw, _ in rows[:_MODULES]]
    rest: list[Raw] = [raw for _, raw, _ in rows[_MODULES:]]
    return [*table, [-1, *(sum(column) for column in zip(*rest))]] if rest else table


def _rank(rank: Rank, offset: float, table: int, usual: Rank | None) -> Report:
    """What the page says about a rank. ``usual``: the rank that it is compared with, or None."""
    identity, peak = rank.identity, rank.peak
    return {
        "rank": rank.number,
        "place": describe_location(identity) if identity else "",
        "node": clean((f"node {identity.node}" if identity.node else identity.host) if identity else ""),
        "local": None if identity is None else identity.local_rank,
        "file": clean(os.path.basename(rank.file)),
        "device": clean(rank.device),
        "peak": rank.bytes,
        "change": rank.bytes - usual.bytes if usual else None,
        "reserved": rank.reserved,
        "when": describe_moment(peak.step, peak.phase, peak.module, peak.time, 160) if peak else "it held no memory",
        "peakAt": peak.time + offset if peak else None,
        "peakStep": peak.step if peak else None,
        "begin": offset,
        "end": offset + rank.duration,
        "steps": rank.steps,
        "ended": clean(rank.how_it_ended),
        "ok": not has_failed(rank),
        "oom": bool(rank.oom),
        "atLeast": rank.is_lower_bound,
        "table": table,
        "kinds": {str(kind): value for kind, value in zip(KINDS, sums_by_kind(rank)) if value},
    }


def _collectives(job: DistributedJob) -> Report:
    whole = whole_or_all(job.ranks)
    totals = [[one.kind, one.launches, one.bytes, one.seconds, describe_each(one, whole)] for one in kind_totals(whole)]
    mismatches = []
    for one in find_mismatches(job.ranks)[:_MISMATCHES]:
        says = {split.ranks[0].number: describe_divergence(split, one.parts[0].ranks) for split in one.divergences}
        parts = [
            [
                clean(describe_ranks(part.ranks)),
                part.ranks[0].number,
                describe_part(part),
                says.get(part.ranks[0].number, ""),
            ]
            for part in one.parts[:_PARTS]
        ]
        mismatches.append({"group": describe_group(one.group), "parts": parts, "more": len(one.parts[_PARTS:])})
    return {"title": collectives_title(job.ranks), "totals": totals, "mismatches": mismatches, "why": WHY_IT_HANGS}


def _difference(one: Difference) -> Report:
    rows = group_rows(one)
    shown = [
        [row.name, str(row.word), row.usual, row.these, str(category_word(row.word))] for row in rows[:_DIFFERENCE_ROWS]
    ]
    return {
        "ranks": describe_ranks(one.ranks),
        "first": one.ranks[0].number,
        "change": one.change,
        "rows": shown,
        "count": len(rows),
    }


def _metadata(job: DistributedJob, axes: Axes, offsets: Sequence[float], aligned: bool) -> Report:
    names: dict[str, int] = {}
    tables: dict[Owned, int] = {}
    peers = find_compared(job.ranks)
    numbers = {rank.number for rank in peers}
    compared = compare_ranks(peers)
    rows = []
    for rank, offset in zip(job.ranks, offsets):
        usual = compared.usual[0] if rank.number in numbers else None
        rows.append(_rank(rank, offset, tables.setdefault(rank.owned, len(tables)), usual))
    differences = [_difference(one) for one in compared.differences[:_DIFFERENCES]]
    return {
        "world": job.world,
        "ranks": rows,
        "missing": [list(run) for run in job.missing],
        "usual": describe_ranks(compared.usual),
        "differences": differences,
        "differing": len(compared.differences),
        "hasNodes": any(rank.identity and not rank.identity.is_only_node for rank in job.ranks),
        "nodes": [
            [node.name, *(rank.bytes for rank in find_extremes(node.ranks)), len(node.ranks)]
            for node in find_nodes(job.ranks)
        ],
        "axes": {**axes._asdict(), "stepColumns": axes.step_columns},
        "aligned": aligned,
        "collectives": _collectives(job),
        "tables": [_table(owned, names) for owned in tables],
        "names": [clean(name) for name in names],
    }


def _notes(job: DistributedJob, aligned: bool) -> list[str]:
    notes = [describe_missing(job), *job.left_out, *describe_incomplete(job.ranks)]
    for ranks in job.earlier:
        identity = ranks[0].identity
        if identity:
            name = describe_ranks(ranks)
            notes.append(
                f"{name[0].upper()}{name[1:]} of attempt {identity.attempt} are not shown, only those of attempt "
                f"{job.attempt}."
            )
    if not aligned:
        notes.append("Not every capture says when it began: all are shown as if they began at the same time.")
    return [note for note in notes if note]


# ---- the page ----


def _planes(data: bytes) -> bytes:
    """First the lowest byte of every number, then the next ones: the high bytes are mostly equal, and deflate well."""
    return b"".join(data[i::8] for i in range(8))


def ranks_page(job: DistributedJob, steps: tuple[int | None, int | None] | None = None) -> Page:
    """The page of a job, of all steps or of the given ones. CaptureError if there is nothing to show."""
    if not any(rank.peak for rank in job.ranks):
        raise CaptureError(f"There is nothing to show: {job.ranks[0].file} and the others have no memory in them")
    is_predicted = all(predicted_on(load(rank.file).info) for rank in job.ranks)
    known = [0.0] * len(job.ranks) if is_predicted else _offsets(job.ranks)
    offsets = known or [0.0] * len(job.ranks)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        every = list(pool.map(_steps_of, job.ranks))
        axes = _axes(every, offsets, steps)
        series = b"".join(
            pool.map(lambda one: _series_of(one[0], axes, one[1], one[2]), zip(job.ranks, every, offsets))
        )
    metadata = {**_metadata(job, axes, offsets, known is not None), "isPredicted": is_predicted}
    notes = _notes(job, known is not None)
    values = {
        "title": html.escape(f"modscope: {describe_job(job)}"),
        "program": html.escape(clean(job.program)),
        "sentence": _sentence(job),
        "facts": html.escape(_facts(job)),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "job": packed(json.dumps(metadata, separators=(",", ":")).encode()),
        "series": packed(_planes(series)),
    }
    return Page(make_html("ranks", values), notes)


class Meant(NamedTuple):
    """What several captures are given for."""

    is_job: bool
    """They say that they are different ranks, so that their page has a rank axis. ``find_job`` refuses those of
    different jobs."""
    repeated: int | None
    """All say that they are ranks, but this rank occurs twice."""


def what_is_meant(files: Sequence[str]) -> Meant:
    """Tell what the captures are given for, from their beginnings and ends alone."""
    seen: set[tuple[int, int]] = set()
    repeated = None
    for file in files:
        capture = load(file)
        identity = identity_of(capture.info, capture.end)
        if identity is None:
            return Meant(False, None)
        if (identity.rank, identity.attempt) in seen and repeated is None:
            repeated = identity.rank
        seen.add((identity.rank, identity.attempt))
    return Meant(len(files) > 1 and repeated is None, repeated)
