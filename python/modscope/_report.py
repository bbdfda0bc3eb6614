"""The page that ``modscope report`` writes: packed captures in one HTML file that needs no other file. The page's own
files are in ``page/``; ``page/page.js`` lists the elements that tests may rely on. Needs no torch."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from modscope import _capture
from modscope._categories import parts_of
from modscope._collectives_page import collectives_of_page
from modscope._edited import Changes
from modscope._leaks import describe_growth, describe_leaks, find_leaks
from modscope._lines_page import lines_of_page
from modscope._lines_read import shown_file
from modscope._load import Capture, CaptureError
from modscope._sentence import Sentence, describe_run
from modscope._summary import Report, describe_end, describe_losses, describe_prediction, describe_program, summarize
from modscope._text import clean, counted, describe_moment, duration

MOST_EVENTS = 2_000_000
"""In all captures of a page together; of a longer run the page shows some steps."""
_FEWEST_EVENTS = 200_000  # of one capture, however many there are
_MOMENT_COLUMNS = 160
_GROWING = 3  # owners that hold more after each step, in words
_SCRIPTS = tuple(
    "text dom stacks capture series modules grouping paint view labels edited plot timeline collectives treemap flame_tree flame tree tables levers plans legend place describe input page".split()
)


class Window(NamedTuple):
    """The moments that are shown."""

    first: int
    last: int | None
    note: str | None
    """A sentence that says which part this is; None if it is everything."""


class Source(NamedTuple):
    """A capture, and the name of its file."""

    file: str
    capture: Capture
    changes: Changes | None = None
    """Makes what the page says about changes of the run: "fit" and "plan"."""


class Page(NamedTuple):
    html: str
    notes: list[str]
    """Sentences about what was left out."""


# ---- which moments ----


class _Step(NamedTuple):
    number: int
    first: int
    last: int


def _steps(capture: Capture) -> list[_Step]:
    begun = [(event.bytes, event.number) for event in capture.events("step")]
    begins = [(0, 0), *begun] if not begun or begun[0][0] else begun
    ends = [first for _, first in begins[1:]] + [capture.event_count]
    return [_Step(number, first, last) for (number, first), last in zip(begins, ends)]


def _window_of_steps(capture: Capture, steps: tuple[int | None, int | None]) -> Window:
    """The steps that were asked for. CaptureError if the capture has none of them."""
    all_steps = _steps(capture)
    low = 0 if steps[0] is None else steps[0]
    high = all_steps[-1].number if steps[1] is None else steps[1]
    chosen = [step for step in all_steps if low <= step.number <= high]
    if not chosen:
        raise CaptureError(f"There is no step {low}: the last is {all_steps[-1].number}")
    return _window(capture, chosen, "as asked for.")


def _window(capture: Capture, chosen: Sequence[_Step], why: str) -> Window:
    first, last = chosen[0], chosen[-1]
    if first.first == 0 and last.last >= capture.event_count:
        return Window(0, None, None)
    which = f"step {first.number}" if first is last else f"steps {first.number} to {last.number}"
    note = f"Only {which} of {capture.last_step} are shown, {why}"
    return Window(first.first, last.last, note)


def _window_around_peak(capture: Capture, most: int) -> Window:
    """At most so many events around the moment where memory ran out, or around the peak."""
    if capture.event_count <= most:
        return Window(0, None, None)
    centre = capture.moment("oom" if capture.oom_count else "peak")
    middle = "where memory ran out" if capture.oom_count else "the peak"
    why = f"around {middle}, because the run has {capture.event_count:,} events: --steps A:B shows others."
    steps = _steps(capture)
    low = high = max(i for i, step in enumerate(steps) if step.first <= centre or i == 0)
    if steps[low].last - steps[low].first > most:
        first = max(centre - most * 3 // 4, 0)
        note = f"Only {most:,} events are shown, {why}"
        return Window(first, first + most, note)
    while True:
        if low > 0 and steps[high].last - steps[low - 1].first <= most:
            low -= 1
        elif high + 1 < len(steps) and steps[high + 1].last - steps[low].first <= most:
            high += 1
        else:
            return _window(capture, steps[low : high + 1], why)


# ---- in words ----


def _facts(summary: Report) -> str:
    info = summary["info"]
    steps = [counted(summary["steps"], "step"), counted(summary["optimizer_steps"], "optimizer step")]
    versions = [f"{word} {info[word]}" for word in ("torch", "python") if info.get(word)]
    events = f"{summary['events']:,} events"
    facts = [
        describe_prediction(info),
        duration(summary["duration"]),
        *steps,
        describe_end(summary["end"]),
        events,
        *versions,
    ]
    return clean(" · ".join(filter(None, facts)))


def _leaks(file: str, capture: Capture) -> Report:
    leaks = find_leaks(file, capture)
    text = [describe_leaks(leaks), *(describe_growth(each) + _made_by(each) for each in leaks["growth"][:_GROWING])]
    for group in leaks["groups"]:  # The page has the source text of lines elsewhere, unless it must not have any.
        group["lines"] = [{key: value for key, value in line.items() if key != "source"} for line in group["lines"]]
    return {"text": " ".join(map(clean, text)), "step": leaks["step"], "groups": leaks["groups"]}


def _made_by(growth: Report) -> str:
    lines = [f"{shown_file(line['file'])}:{line['line']} in {line['function']}" for line in growth["lines"][:1]]
    return f" (made by {lines[0]})." if lines else "."


# ---- one capture ----


def _names(capture: Capture) -> tuple[list[str], list[int]]:
    """Each module's name once, and for every path the number of its name."""
    numbers: dict[str, int] = {}
    paths = [numbers.setdefault(name, len(numbers)) for name in capture.modules]
    return list(numbers), paths


class _Part(NamedTuple):
    """What the page needs of one capture."""

    title: str
    metadata: Report
    window: Window


def _part(source: Source, title: str, window: Window) -> _Part:
    capture = source.capture
    summary = summarize(source.file, capture)
    names, paths = _names(capture)
    used = [capture.device_number(one["device"]) for one in summary["devices"]]
    devices = capture.all_devices[: max(len(capture.devices), *(number + 1 for number in used))]
    metadata = {
        "title": f"modscope: {clean(title)}",
        "program": clean(describe_program(summary["info"])),
        "sentence": describe_run(summary, capture),
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
        "collectives": collectives_of_page(capture, window.first, window.last, names),
        **(source.changes((window.first, window.last)) if source.changes else {}),
    }
    return _Part(title, metadata, window)


def _peak_words(device: Report) -> Report:
    peak = device["peak"]
    return {
        "device": clean(device["device"]),
        "bytes": peak["bytes"],
        "when": describe_moment(peak["step"], peak["phase"], peak["module"], peak["time"], _MOMENT_COLUMNS),
        "sums": parts_of(device["categories"]),
    }


def _first_device(summary: Report) -> str:
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


def _packed(part: _Part, capture: Capture, with_source: bool) -> str:
    pack, stacks = capture.pack(part.window.first, part.window.last)
    lines = {"stacks": lines_of_page(capture.places, stacks, with_source)} if stacks else {}
    metadata = json.dumps({**part.metadata, **lines}, separators=(",", ":")).encode()
    length, rest = bytearray(), len(metadata)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    length.append(rest)
    return base64.b64encode(zlib.compress(bytes(length) + metadata + pack, 9)).decode()


# ---- the page ----


def read_page_file(name: str) -> str:
    return (resources.files("modscope") / "page" / name).read_text(encoding="utf-8")


def compact(script: str) -> str:
    """The script without indentation and without comments that have lines of their own: a sixth less to send."""
    without_comments = re.sub(r"(?m)^ */\*(?:(?!\*/)[\s\S])*\*/\n", "", script)
    return re.sub(r"(?m)^ +", "", without_comments)


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _marked(sentence: Sentence) -> str:
    return "".join(
        f"<strong>{html.escape(text)}</strong>" if strong else html.escape(text) for text, strong in sentence
    )


def fill_page(template: str, values: Mapping[str, str]) -> str:
    """The template with each {word} replaced. Words inside the values are not replaced."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


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


def _html(sources: Sequence[Source], parts: Sequence[_Part], with_source: bool) -> str:
    style = read_page_file("page.css") + read_page_file("flame.css")
    script = compact("\n".join(read_page_file(f"{name}.js") for name in _SCRIPTS))
    data = "\n".join(
        f'<script type="application/octet-stream" data-pack data-title="{html.escape(clean(part.title))}">'
        f"{_packed(part, source.capture, with_source)}</script>"
        for source, part in zip(sources, parts)
    )
    first = parts[0].metadata
    policy = f"default-src 'none'; script-src {hash_of(script)}; style-src {hash_of(style)}; base-uri 'none'; form-action 'none'"
    values = {
        "version": _capture.version,
        "policy": policy,
        "title": html.escape(first["title"]),
        "style": style,
        "program": html.escape(first["program"]),
        "sentence": _marked(first["sentence"]),
        "facts": html.escape(first["facts"]),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in first["notes"]),
        "data": data,
        "script": script,
    }
    return fill_page(read_page_file("page.html"), values)
