"""The page that ``modscope report`` writes: captures, packed, in one HTML file that needs nothing else. The page's own
files are in ``page/``; which of their elements a test may rely on is told in ``page/page.js``."""

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
from typing import Any, NamedTuple

from modscope import _capture
from modscope._commands import leaks, summary
from modscope._commands.common import at_least, label, notes, when
from modscope._commands.terminal import Screen, clean, counted, duration, percent, size
from modscope._load import Capture, CaptureError
from modscope._categories import TOTAL, Sums

MOST_EVENTS = 2_000_000
"""In all captures of a page; of a longer run it shows some steps."""
_FEWEST_EVENTS = 200_000  # of one capture, however many there are
_SCRIPTS = tuple("text dom capture series modules paint view labels plot timeline treemap tree tables describe input page".split())
_MODULES = 3  # in the sentence
_LONGEST = 80  # characters of their names

Sentence = list[tuple[str, bool]]
"""Parts of a text, and whether each stands out."""


class Window(NamedTuple):
    """The moments that are shown."""

    first: int
    last: int | None
    note: str | None
    """Where it is not all: what it is."""


class Source(NamedTuple):
    """A capture, and what it is called."""

    file: str
    capture: Capture


class Page(NamedTuple):
    html: str
    notes: list[str]
    """What was left out."""


# ---- which moments ----


class _Step(NamedTuple):
    number: int
    first: int
    last: int


def _steps(capture: Capture) -> list[_Step]:
    begun = [(event.bytes, event.number) for event in capture.events("step")]
    begins = [(0, 0), *begun] if not begun or begun[0][0] else begun
    ends = [first for _, first in begins[1:]] + [capture.count]
    return [_Step(number, first, last) for (number, first), last in zip(begins, ends)]


def _asked(capture: Capture, steps: tuple[int | None, int | None]) -> Window:
    """The window of steps that was asked for."""
    all_steps = _steps(capture)
    low = 0 if steps[0] is None else steps[0]
    high = all_steps[-1].number if steps[1] is None else steps[1]
    chosen = [step for step in all_steps if low <= step.number <= high]
    if not chosen:
        raise CaptureError(f"There is no step {low}: the last is {all_steps[-1].number}")
    return _window(capture, chosen, "as asked for.")


def _window(capture: Capture, chosen: Sequence[_Step], why: str) -> Window:
    first, last = chosen[0], chosen[-1]
    if first.first == 0 and last.last >= capture.count:
        return Window(0, None, None)
    which = f"step {first.number}" if first is last else f"steps {first.number} to {last.number}"
    note = f"Only {which} of {capture.last_step} are shown, {why}"
    return Window(first.first, last.last, note)


def _around(capture: Capture, most: int) -> Window:
    """As much as a page can show around where memory ran out, or the peak."""
    if capture.count <= most:
        return Window(0, None, None)
    centre = capture.moment("oom" if capture.oom_count else "peak")
    middle = "where memory ran out" if capture.oom_count else "the peak"
    why = f"around {middle}, because the run has {capture.count:,} events: --steps A:B shows others."
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


def _alike(fqn: str) -> str:
    """GPT.h.3.mlp and GPT.h.4.mlp are alike: GPT.h.*.mlp"""
    *above, last = fqn.split(".")
    return ".".join([*("*" if part.isdigit() else part for part in above), last])


def _holders(modules: Mapping[str, Sums]) -> list[tuple[str, int, int]]:
    """What holds most itself: a name, bytes, and of how many modules of like names."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for fqn, sums in modules.items():
        groups.setdefault(_alike(fqn), []).append((fqn, sums[TOTAL]))
    found = [
        (name if len(members) > 1 else members[0][0], sum(held for _, held in members), len(members))
        for name, members in groups.items()
    ]
    return sorted(found, key=lambda group: -group[1])[:_MODULES]


def held(categories: Sums, modules: Mapping[str, Sums], screen: Screen) -> Sentence:
    """ "58% Activation, 24% Optstate. Most by ..." """
    total = categories[TOTAL]
    words = sorted((word for word in categories if word != TOTAL and categories[word]), key=lambda word: -categories[word])
    shares = [f"{percent(categories[word], total)} {word}" for word in words if 200 * categories[word] >= total]
    text: Sentence = [(", ".join(shares) + ". ", False)]
    largest = _holders(modules)
    holders = [group for group in largest if 100 * group[1] >= total] or largest[:1]
    if not holders:
        return text
    most = 2 * sum(bytes for _, bytes, _ in holders) > total
    text.append(("Most of it is in " if most else "The largest owners are ", False))
    for i, (name, held, count) in enumerate(holders):
        text.append((" and " if i and i == len(holders) - 1 else ", " if i else "", False))
        text.append((screen.fit(label(name), _LONGEST), True))
        text.append((f" ({size(held)}{f' in {count} modules' if count > 1 else ''})", False))
    return [*text, (". ", False)]


def _peak_words(result: dict[str, Any], modules: Mapping[str, Sums], screen: Screen) -> Sentence:
    main = result["devices"][0]
    peak = main["peak"]
    text: Sentence = [
        ("The peak is ", False),
        (at_least(result["is_lower_bound"], size(peak["bytes"])), True),
        (f" on {clean(main['device'])}, ", False),
        (when(peak, screen, screen.width), False),
        (": ", False),
        *held(main["categories"], modules, screen),
    ]
    if peak["reserved"] > peak["bytes"]:
        more = size(peak["reserved"] - peak["bytes"])
        text.append((f"The allocator had reserved {size(peak['reserved'])}, {more} more.", False))
    return text


def _oom_words(result: dict[str, Any], categories: Sums, modules: Mapping[str, Sums], screen: Screen) -> Sentence:
    oom = result["last_oom"]
    times = "" if result["oom_count"] == 1 else f" {result['oom_count']} times, the last time"
    text: Sentence = [
        (f"Out of memory{times}: ", True),
        ("an allocation of ", False),
        (size(oom["requested"]), True),
        (f" failed on {clean(oom['device'])}, ", False),
        (when(oom, screen, screen.width), False),
        (", when ", False),
        (at_least(result["is_lower_bound"], size(oom["held"])), True),
        (" was allocated", False),
    ]
    if oom["reserved"]:
        text.append((f" and {size(oom['reserved'])} reserved", False))
    text.append((": " if categories[TOTAL] else ". ", False))
    if categories[TOTAL]:
        text += held(categories, modules, screen)
    if result["devices"]:
        peak = result["devices"][0]
        text.append((f"The peak was {size(peak['peak']['bytes'])} on {clean(peak['device'])}.", False))
    return text


def sentence(result: dict[str, Any], capture: Capture) -> Sentence:
    """What the peak is and which modules own it; for a run that ran out of memory, what failed and what was allocated."""
    screen = Screen(width=160, drawing=True)
    oom = result["last_oom"]
    snapshot = capture.snapshot("oom" if oom else "peak")
    device = str(oom["device"]) if oom else result["devices"][0]["device"]
    modules = snapshot.by_module().get(device, {})
    if oom:
        return _oom_words(result, snapshot.totals[device], modules, screen)
    return _peak_words(result, modules, screen)


def _facts(result: dict[str, Any]) -> str:
    info = result["info"]
    steps = [counted(result["steps"], "step"), counted(result["optimizer_steps"], "optimizer step")]
    versions = [f"{word} {info[word]}" for word in ("torch", "python") if info.get(word)]
    facts = [duration(result["duration"]), *steps, summary.ended(result["end"]), f"{result['events']:,} events", *versions]
    return clean(" · ".join(facts))


def _leaks(file: str, capture: Capture, screen: Screen) -> dict[str, Any]:
    result = leaks.report_of(file, capture, None)
    why = leaks.why_none(result)
    held = sum(group["bytes"] for group in result["groups"])
    amount = at_least(result["is_lower_bound"], size(held))
    text = why or f"{amount} from earlier steps is still held at the end of step {result['step']}."
    return {"text": text, "step": result["step"], "groups": result["groups"]}


# ---- one capture ----


def _names(capture: Capture) -> tuple[list[str], list[int]]:
    """Names, each once, and of every path which it is."""
    numbers: dict[str, int] = {}
    paths = [numbers.setdefault(name, len(numbers)) for name, _, _ in capture._paths]
    return list(numbers), paths


class _Part(NamedTuple):
    """What the page needs of one capture."""

    title: str
    metadata: dict[str, Any]
    window: Window


def _part(source: Source, title: str, window: Window) -> _Part:
    capture, screen = source.capture, Screen(width=160)
    result = summary.report_of(source.file, capture)
    names, paths = _names(capture)
    program = summary.program(result["info"])
    first = capture.snapshot(window.first)
    metadata = {
        "title": f"modscope: {clean(title)}",
        "program": clean(program),
        "sentence": sentence(result, capture),
        "facts": _facts(result),
        "notes": [*filter(None, (window.note,)), *(line for line in notes(result, Screen(width=400)) if line)],
        "devices": [clean(name) for name in capture.devices],
        "used": [capture.devices.index(one["device"]) for one in result["devices"]],
        "main": capture.devices.index(_first_device(result)),
        "duration": capture.duration,
        "window": None if window.note is None else [window.first, window.last],
        "is_lower_bound_at_first": first.is_lower_bound,
        "leaks": _leaks(source.file, capture, screen),
        "names": names,
        "paths": paths,
        "peaks": [
            {
                "device": clean(one["device"]),
                "bytes": one["peak"]["bytes"],
                "when": when(one["peak"], screen, screen.width),
                "sums": {word: value for word, value in one["categories"].items() if value and word != TOTAL},
            }
            for one in result["devices"]
        ],
        "is_lower_bound": result["is_lower_bound"],
    }
    return _Part(title, metadata, window)


def _first_device(result: dict[str, Any]) -> str:
    """The one to show first: where memory ran out, if it holds any."""
    used = [one["device"] for one in result["devices"]]
    oom = result["last_oom"]
    return str(oom["device"] if oom and oom["device"] in used else used[0])


def _titles(sources: Sequence[Source]) -> list[str]:
    """The files' names, with as many of their folders as tell them apart."""
    paths = [os.path.abspath(source.file).split(os.sep) for source in sources]
    names = [path[-1] for path in paths]
    for parts in range(2, max(map(len, paths))):
        names = ["/".join(path[-parts:]) if names.count(name) > 1 else name for path, name in zip(paths, names)]
    return names


def _packed(part: _Part, capture: Capture) -> str:
    metadata = json.dumps(part.metadata, separators=(",", ":")).encode()
    length, rest = bytearray(), len(metadata)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    length.append(rest)
    pack = capture._reader.pack(part.window.first, part.window.last)
    return base64.b64encode(zlib.compress(bytes(length) + metadata + pack, 9)).decode()


# ---- the page ----


def _file(name: str) -> str:
    return (resources.files("modscope") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _marked(sentence: Sentence) -> str:
    return "".join(f"<strong>{html.escape(text)}</strong>" if strong else html.escape(text) for text, strong in sentence)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Each {word} of the template once; what is put in is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)


def page(sources: Sequence[Source], steps: tuple[int | None, int | None] | None = None) -> Page:
    """The page of these captures, each whole or in the given steps. CaptureError if there is nothing to show."""
    shown = [source for source in sources if source.capture.peaks]
    left_out = [f"{source.file} is left out: it has no memory in it" for source in sources if not source.capture.peaks]
    if not shown:
        raise CaptureError(f"There is nothing to show: {sources[0].file} has no memory in it")
    most = max(MOST_EVENTS // len(shown), _FEWEST_EVENTS)
    parts = []
    for source, title in zip(shown, _titles(shown)):
        window = _asked(source.capture, steps) if steps else _around(source.capture, most)
        parts.append(_part(source, title, window))
        if window.note:
            left_out.append(f"{source.file}: {window.note}")
    beside = [{"title": part.title, "peaks": part.metadata["peaks"], "is_lower_bound": part.metadata["is_lower_bound"]} for part in parts]
    for part in parts:
        part.metadata["all"] = beside
    return Page(_html(shown, parts), left_out)


def _html(sources: Sequence[Source], parts: Sequence[_Part]) -> str:
    style, script = _file("page.css"), "\n".join(_file(f"{name}.js") for name in _SCRIPTS)
    data = "\n".join(
        f'<script type="application/octet-stream" data-pack data-title="{html.escape(clean(part.title))}">'
        f"{_packed(part, source.capture)}</script>"
        for source, part in zip(sources, parts)
    )
    first = parts[0].metadata
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
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
    return _filled(_file("page.html"), values)
