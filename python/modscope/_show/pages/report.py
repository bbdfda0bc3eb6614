"""The page that ``modscope report`` writes: packed captures in one HTML file that needs no other file. The page's own
files are in ``page/``; ``page/page.js`` lists the elements that tests may rely on."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from modscope._fit.edited_timeline import Changes
from modscope._read.categories import parts_of
from modscope._read.leaks import Growth, describe_growth, describe_leaks, find_leaks
from modscope._read.lines import shown_file
from modscope._read.load import Capture, CaptureError
from modscope._read.sentence import Sentence, describe_run
from modscope._read.summary import (
    CaptureReport,
    DeviceSums,
    Report,
    describe_end,
    describe_losses,
    describe_prediction,
    describe_program,
    describe_step_time,
    summarize,
)
from modscope._read.text import clean, counted, describe_moment, duration
from modscope._show.pages import Page, make_html, packed
from modscope._show.pages.lines import lines_of_page
from modscope._show.pages.segments import Layouts, layouts_of_page

MOST_EVENTS = 2_000_000
"""All captures of a page have at most so many together; the page shows some steps of a longer run."""
_FEWEST_EVENTS = 200_000  # One capture may have as many, however many captures there are.
_MOMENT_COLUMNS = 160
_GROWING = 3  # owners that hold more after each step, in words


class PageWindow(NamedTuple):
    """The moments of a capture that the page shows."""

    first: int
    last: int | None
    note: str | None
    """A sentence that says which part this is; None if it is everything."""


class Source(NamedTuple):
    """A capture, and the name of its file."""

    file: str
    capture: Capture
    changes: Changes | None = None
    """Makes what the page says about changes of the run: "fit" and "plan", and "verdict", the page's headline."""


# ---- which moments ----


class _StepMoments(NamedTuple):
    number: int
    first: int
    last: int


def _steps(capture: Capture) -> list[_StepMoments]:
    begun = [(event.bytes, event.number) for event in capture.events("step")]
    begins = [(0, 0), *begun] if not begun or begun[0][0] else begun
    ends = [first for _, first in begins[1:]] + [capture.event_count]
    return [_StepMoments(number, first, last) for (number, first), last in zip(begins, ends)]


def _window_of_steps(capture: Capture, steps: tuple[int | None, int | None]) -> PageWindow:
    """The steps that were asked for. CaptureError if the capture has none of them."""
    all_steps = _steps(capture)
    low = 0 if steps[0] is None else steps[0]
    high = all_steps[-1].number if steps[1] is None else steps[1]
    chosen = [step for step in all_steps if low <= step.number <= high]
    if not chosen:
        raise CaptureError(f"There is no step {low}: the last is {all_steps[-1].number}")
    return _window(capture, chosen, "as asked for.")


def _window(capture: Capture, chosen: Sequence[_StepMoments], why: str) -> PageWindow:
    first, last = chosen[0], chosen[-1]
    if first.first == 0 and last.last >= capture.event_count:
        return PageWindow(0, None, None)
    which = f"step {first.number}" if first is last else f"steps {first.number} to {last.number}"
    note = f"Only {which} of {capture.last_step} are shown, {why}"
    return PageWindow(first.first, last.last, note)


def _window_around_peak(capture: Capture, most: int) -> PageWindow:
    """Choose at most so many events around the moment where memory ran out, or around the peak."""
    if capture.event_count <= most:
        return PageWindow(0, None, None)
    centre = capture.moment("oom" if capture.oom_count else "peak")
    middle = "where memory ran out" if capture.oom_count else "the peak"
    why = f"around {middle}, because the run has {capture.event_count:,} events: --only-steps A:B shows others."
    steps = _steps(capture)
    low = high = max(i for i, step in enumerate(steps) if step.first <= centre or i == 0)
    if steps[low].last - steps[low].first > most:
        first = max(centre - most * 3 // 4, 0)
        note = f"Only {most:,} events are shown, {why}"
        return PageWindow(first, first + most, note)
    while True:
        if low > 0 and steps[high].last - steps[low - 1].first <= most:
            low -= 1
        elif high + 1 < len(steps) and steps[high + 1].last - steps[low].first <= most:
            high += 1
        else:
            return _window(capture, steps[low : high + 1], why)


# ---- in words ----


def _facts(summary: CaptureReport) -> str:
    info = summary["info"]
    steps = [counted(summary["steps"], "step"), counted(summary["optimizer_steps"], "optimizer step")]
    versions = [f"{word} {info[word]}" for word in ("torch", "python") if info.get(word)]
    events = f"{summary['events']:,} events"
    facts = [
        describe_prediction(info),
        duration(summary["duration"]),
        *steps,
        describe_step_time(summary["step_ms"]),
        describe_end(summary["end"]),
        events,
        *versions,
    ]
    return clean(" · ".join(filter(None, facts)))


def _leaks(file: str, capture: Capture) -> Report:
    leaks = find_leaks(file, capture)
    text = [describe_leaks(leaks), *(describe_growth(each) + _made_by(each) for each in leaks["growth"][:_GROWING])]
    groups = [
        # The page has the source text of lines elsewhere, unless it must not have any.
        {**group, "lines": [{key: value for key, value in line.items() if key != "source"} for line in group["lines"]]}
        for group in leaks["groups"]
    ]
    return {"text": " ".join(map(clean, text)), "step": leaks["step"], "groups": groups}


def _made_by(growth: Growth) -> str:
    lines = [f"{shown_file(line['file'])}:{line['line']} in {line['function']}" for line in growth["lines"][:1]]
    return f" (made by {lines[0]})." if lines else "."


# ---- one capture ----


def _names(capture: Capture) -> tuple[list[str], list[int]]:
    """Each module's name once, and for every path the number of its name."""
    numbers: dict[str, int] = {}
    paths = [numbers.setdefault(name, len(numbers)) for name in capture.modules]
    return list(numbers), paths


class _CaptureData(NamedTuple):
    """What the page needs of one capture."""

    title: str
    metadata: Report
    window: PageWindow
    layouts: Layouts


def _part(source: Source, title: str, window: PageWindow) -> _CaptureData:
    capture = source.capture
    summary = summarize(source.file, capture)
    names, paths = _names(capture)
    used = [capture.device_number(one["device"]) for one in summary["devices"]]
    devices = capture.all_devices[: max(len(capture.devices), *(number + 1 for number in used))]
    changes = source.changes((window.first, window.last)) if source.changes else {}
    run, verdict = describe_run(summary, capture), changes.pop("verdict", None)
    layouts = layouts_of_page(capture, used, is_whole=window.note is None)
    metadata = {
        "title": f"modscope: {clean(title)}",
        "program": clean(describe_program(summary["info"])),
        "sentence": verdict or run,
        "lead": run if verdict else [],
        "facts": _facts(summary),
        "notes": [*filter(None, (window.note,)), *describe_losses(summary)],
        "devices": [clean(name) for name in devices],
        "used": used,
        "main": capture.device_number(_first_device(summary)),
        "duration": capture.duration,
        "window": None if window.note is None else [window.first, window.last],
        "is_lower_bound_at_first": capture.snapshot(window.first).is_lower_bound,
        "leaks": _leaks(source.file, capture),
        "names": names,
        "paths": paths,
        "peaks": [_peak_words(one) for one in summary["devices"]],
        "is_lower_bound": summary["is_lower_bound"],
        "lost_at_end": capture.last_readable is not None
        and (window.last is None or window.last >= capture.last_readable),
        "requested_by": clean((capture.end or {}).get("requested_by", "")),
        "collectives": collectives_of_page(capture, window.first, window.last, names),
        "no_layouts": layouts.left_out,
        **changes,
    }
    return _CaptureData(title, metadata, window, layouts)


def _peak_words(device: DeviceSums) -> Report:
    peak = device["peak"]
    return {
        "device": clean(device["device"]),
        "bytes": peak["bytes"],
        "when": describe_moment(peak["step"], peak["phase"], peak["module"], peak["time"], _MOMENT_COLUMNS),
        "sums": parts_of(device["categories"]),
    }


def _first_device(summary: CaptureReport) -> str:
    """The device to show first: the one where memory ran out, if it ever held any, or else the main one."""
    used = [one["device"] for one in summary["devices"]]
    oom = summary["last_oom"]
    return str(oom["device"] if oom and oom["device"] in used else used[0])


def _titles(sources: Sequence[Source]) -> list[str]:
    """The files' names, each with as many of its folders as are needed to make it unique."""
    paths = [os.path.abspath(source.file).split(os.sep) for source in sources]
    names = [path[-1] for path in paths]
    for parts in range(2, max(map(len, paths))):
        names = ["/".join(path[-parts:]) if names.count(name) > 1 else name for path, name in zip(paths, names)]
    return names


def _pack(part: _CaptureData, capture: Capture, with_source: bool) -> str:
    pack, stacks = capture.pack(part.window.first, part.window.last)
    lines = {"stacks": lines_of_page(capture.places, stacks, with_source)} if stacks else {}
    metadata = json.dumps({**part.metadata, **lines}, separators=(",", ":")).encode()
    length, rest = bytearray(), len(metadata)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    length.append(rest)
    return packed(bytes(length) + metadata + pack)


# ---- the page ----


def _marked(sentence: Sentence) -> str:
    return "".join(
        f"<strong>{html.escape(text)}</strong>" if strong else html.escape(text) for text, strong in sentence
    )


def page(
    sources: Sequence[Source], steps: tuple[int | None, int | None] | None = None, with_source: bool = True
) -> Page:
    """The page of these captures, of all their steps or of the given ones, with or without source text. CaptureError if
    there is nothing to show."""
    shown = [source for source in sources if source.capture.peaks]
    left_out = [f"{source.file} is left out: it has no memory in it" for source in sources if not source.capture.peaks]
    if not shown:
        raise CaptureError(f"There is nothing to show: {sources[0].file} has no memory in it")
    most = max(MOST_EVENTS // len(shown), _FEWEST_EVENTS)
    parts = []
    for source, title in zip(shown, _titles(shown)):
        window = _window_of_steps(source.capture, steps) if steps else _window_around_peak(source.capture, most)
        parts.append(_part(source, title, window))
        left_out += [f"{source.file}: {note}" for note in parts[-1].metadata["notes"]]
    beside = [
        {"title": part.title, "peaks": part.metadata["peaks"], "is_lower_bound": part.metadata["is_lower_bound"]}
        for part in parts
    ]
    for part in parts:
        part.metadata["all"] = beside
    return Page(_html(shown, parts, with_source), left_out)


def _html(sources: Sequence[Source], parts: Sequence[_CaptureData], with_source: bool) -> str:
    data = "\n".join(
        f'<script type="application/octet-stream" data-pack data-title="{html.escape(clean(part.title))}">'
        f"{_pack(part, source.capture, with_source)}</script>"
        for source, part in zip(sources, parts)
    )
    data += "".join(
        f'\n<script type="application/octet-stream" data-layout="{number} {device}">{columns}</script>'
        for number, part in enumerate(parts)
        for device, columns in part.layouts.columns.items()
    )
    first = parts[0].metadata
    values = {
        "title": html.escape(first["title"]),
        "program": html.escape(first["program"]),
        "sentence": _marked(first["sentence"]),
        "lead": _marked(first["lead"]),
        "facts": html.escape(first["facts"]),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in first["notes"]),
        "data": data,
    }
    return make_html("report", values)


# ---- collectives ----

_MOST_COLLECTIVES = 20_000  # A page has no more; each takes about ten bytes of it.


def collectives_of_page(capture: Capture, first: int, last: int | None, modules: Sequence[str]) -> Report | None:
    """The collectives launched between two moments, as columns; None if there are none. ``modules``: the page's
    names."""
    found = [one for one in capture.collectives() if one.event > first and (last is None or one.event <= last + 1)]
    if not found:
        return None
    shown = found[:_MOST_COLLECTIVES]
    kinds = sorted({one.kind for one in shown})
    groups = list(dict.fromkeys(one.group for one in shown))
    numbers = {name: i for i, name in enumerate(modules)}
    return {
        "kinds": kinds,
        "groups": [
            clean(f"{counted(group.size, 'rank')} ({group.ranks}) of {group.name} over {group.backend}")
            if group.size
            else "an unknown group"
            for group in groups
        ],
        "event": [one.event for one in shown],
        "time": [round(one.time * 1e6) for one in shown],
        "nanoseconds": [round((one.seconds or 0) * 1e9) for one in shown],
        "timing": [one.timing or "" for one in shown],
        "bytes": [one.bytes for one in shown],
        "kind": [kinds.index(one.kind) for one in shown],
        "group": [groups.index(one.group) for one in shown],
        "module": [numbers.get(one.module, -1) for one in shown],
        "phase": [one.phase for one in shown],
        "left_out": len(found) - len(shown),
    }
