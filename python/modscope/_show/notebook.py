"""What a tracker, a snapshot and a capture show in a notebook's cell: a sentence, bars, a capture's timeline. It is
static HTML with inline styles and no script; ``modscope report`` writes the whole page."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from modscope._read.categories import PHASES, TOTAL, Sums, sums_of
from modscope._read.lines import shown_file
from modscope._read.load import Capture, Snapshot
from modscope._read.sentence import Sentence, describe_held, describe_run
from modscope._read.summary import describe_end, describe_losses, describe_prediction, describe_program, summarize
from modscope._read.text import (
    at_least,
    clean,
    counted,
    describe_moment,
    duration,
    label,
    percent,
    shorten_end,
    shorten_middle,
    size,
)
from modscope._read.types import find_main_device

if TYPE_CHECKING:
    from modscope._trackers.mem_tracker import MemTracker

# The page's colours (page/page.css), in the order of its stack: from the bottom up, what stays longest first.
COLOURS = {
    "Parameter": "#3c6fd1",
    "Buffer": "#3bb0c4",
    "Optstate": "#b9443f",
    "Gradient": "#8d4fbd",
    "Activation": "#55a869",
    "Temp": "#e3a72c",
    "Other": "#8b929b",
}
_ALARM = "#dc3d3d"
_OPACITY = dict(zip(PHASES[1:], (0.2, 0.35, 0.5, 0.8, 0.1)))  # by phase; an idle thread is not drawn
_MODULES = 10
_LINES = 8
_NAME_COLUMNS, _MOMENT_COLUMNS = 48, 160

# The colours of text and background are the notebook's own, light or dark.
_FRAME = "font:13px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:inherit;max-width:760px;margin:4px 0"
_SOFT = "opacity:.7;font-size:12px"
_HEAD = "font-weight:600;margin:10px 0 3px"
_MONO = "font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_ELLIPSIS = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis"
_PLAIN_CELL = "padding:1px 8px 1px 0;border:0;background:none;text-align:left;vertical-align:middle;color:inherit"


def _text(text: str) -> str:
    return html.escape(clean(text))


def _part(tag: str, style: str, *inside: str, title: str = "") -> str:
    hint = f' title="{_text(title)}"' if title else ""
    return f'<{tag} style="{style}"{hint}>{"".join(inside)}</{tag}>'


def _sentence(parts: Sentence) -> str:
    words = (f"<b>{_text(text)}</b>" if emphasized else _text(text) for text, emphasized in parts)
    return _part("div", "overflow-wrap:anywhere", *words)


# ---- bars ----


def _segments(sums: Sums) -> list[str]:
    held = [(word, sums[word]) for word in COLOURS if sums.get(word)]
    return [
        _part(
            "span",
            f"display:block;height:100%;min-width:1px;"
            f"width:{100 * value / sums[TOTAL]:.3f}%;background:{COLOURS[word]}",
            title=f"{word}: {size(value)} ({value:,} bytes), {percent(value, sums[TOTAL])}",
        )
        for word, value in held
    ]


def _bar(sums: Sums, share: float, height: int) -> str:
    style = f"display:flex;height:{height}px;width:{100 * share:.3f}%;border-radius:2px;overflow:hidden"
    return _part("div", style, *_segments(sums))


def _categories(sums: Sums) -> str:
    held = sorted(((sums[word], word) for word in COLOURS if sums.get(word)), reverse=True)
    marks = (
        _part(
            "span",
            "display:inline-block;white-space:nowrap;margin-right:16px",
            _part("span", f"display:inline-block;width:10px;height:10px;border-radius:2px;background:{COLOURS[word]}"),
            f" {word} {size(value)} ",
            _part("span", "opacity:.7", percent(value, sums[TOTAL])),
        )
        for value, word in held
    )
    return _bar(sums, 1, 18) + _part("div", "margin:3px 0;font-size:12px", *marks)


def _table(heading: str, held: Mapping[tuple[str, str], Sums], count: int, total: int, what: str) -> str:
    """The largest of what is held, by the name that is shown and the one that appears when the mouse is over it."""
    largest = sorted(held.items(), key=lambda item: -item[1][TOTAL])
    if not largest:
        return ""
    most = largest[0][1][TOTAL]
    rows = "".join(_row(name, title, sums, most, total) for (name, title), sums in largest[:count])
    rest = len(largest) - count
    more = _part("div", _SOFT, f"and {counted(rest, what)}") if rest > 0 else ""
    table = _part(
        "table", "border-collapse:collapse;border:0;width:100%;table-layout:fixed;margin:0;color:inherit", rows
    )
    return _part("div", _HEAD, heading) + table + more


def _modules(modules: Mapping[str, Sums], total: int) -> str:
    named = {(shorten_middle(label(fqn), _NAME_COLUMNS), fqn): sums for fqn, sums in modules.items()}
    return _table("The largest modules, by their own bytes", named, _MODULES, total, "smaller module")


def _lines(snapshot: Snapshot, device: str) -> str:
    """The lines that made most of what is held, with their source text where that is known."""
    made: dict[tuple[str, str], Sums] = {}
    total = 0
    for place, sums in snapshot.by_place(device):
        total += sums[TOTAL]
        if place is None or not place.file or not place.line:
            continue
        where = f"{os.path.basename(shown_file(place.file))}:{place.line}"
        key = shorten_end(f"{where} {place.source or f'in {place.function}'}", _NAME_COLUMNS), place.describe()
        known = made.get(key)
        made[key] = {word: known[word] + value for word, value in sums.items()} if known else sums
    return _table("The lines that made most of it", made, _LINES, total, "more line")


def _kinds(kinds: Mapping[str, int]) -> str:
    """What FSDP2 or DDP holds, within the categories."""
    held = ", ".join(f"{kind} {size(value)}" for kind, value in kinds.items() if value)
    return _part("div", _SOFT, _text(f"of these: {held}")) if held else ""


def _row(shown: str, title: str, sums: Sums, most: int, total: int) -> str:
    name = _part("bdi", "", html.escape(shown))
    amount = f"{size(sums[TOTAL])} <span style='opacity:.7'>{percent(sums[TOTAL], total)}</span>"
    return _part(
        "tr",
        "background:none",
        _part("td", f"{_PLAIN_CELL};width:48%;{_MONO};{_ELLIPSIS}", name, title=title),
        _part("td", _PLAIN_CELL, _bar(sums, sums[TOTAL] / most, 12)),
        _part("td", f"{_PLAIN_CELL};width:128px;text-align:right;white-space:nowrap;font-size:12px", amount),
    )


# ---- the timeline ----

_WIDE, _HIGH, _COLUMNS, _STEPS = 744, 100, 124, 60
_TOP, _BAND = 14, 7


class _Axis(NamedTuple):
    """Time from left to right; or events, where the program was idle for most of the time."""

    capture: Capture
    by_time: bool

    def moment(self, share: float) -> int:
        if self.by_time:
            return self.capture.moment_at(self.capture.duration * share)
        return int(self.capture.event_count * share)

    def place(self, time: float, moment: int) -> float:
        share = time / self.capture.duration if self.by_time else moment / self.capture.event_count
        return _WIDE * min(share, 1)

    def words(self, share: float) -> str:
        if self.by_time:
            return duration(self.capture.duration * share)
        return counted(max(round(self.capture.event_count * share), 1), "event")


class _Column(NamedTuple):
    """A part of the timeline: what was held in its middle, the most that was held in it, and the phase."""

    sums: Sums
    most: int
    phase: str


def _columns(axis: _Axis, device: str) -> list[_Column]:
    capture, none = axis.capture, sums_of((0,) * len(COLOURS))
    edges = [axis.moment(i / _COLUMNS) for i in range(_COLUMNS)] + [capture.event_count]
    found = []
    for i in range(_COLUMNS):
        snapshot = capture.snapshot(axis.moment((i + 0.5) / _COLUMNS))
        most = capture.most_held(edges[i], edges[i + 1]).get(device, 0)
        found.append(_Column(snapshot.totals.get(device, none), most, snapshot.running[0]))
    return found


def _area(heights: Iterable[float], floors: Iterable[float]) -> str:
    """The path of the area between two lines of horizontal and vertical pieces."""
    wide = _WIDE / _COLUMNS
    there = "".join(f"V{y:.1f}H{wide * (i + 1):.1f}" for i, y in enumerate(heights))
    lows = list(floors)
    back = "".join(f"V{y:.1f}H{wide * i:.1f}" for i, y in reversed(list(enumerate(lows))))
    return f"M0 {lows[0]:.1f}{there}{back}Z"


def _timeline(capture: Capture, device: str) -> str:
    if not (capture.event_count and capture.duration > 0):
        return ""
    axis = _Axis(capture, capture.phases["idle"].time < capture.duration / 2)
    columns = _columns(axis, device)
    most = max(max(column.most, column.sums[TOTAL]) for column in columns) or 1
    base = [float(_TOP + _HIGH)] * _COLUMNS
    envelope = [_TOP + _HIGH * (1 - column.most / most) for column in columns]
    drawn = [f'<path d="{_area(envelope, base)}" fill="currentColor" opacity=".16"/>']
    for word, colour in COLOURS.items():
        if any(column.sums[word] for column in columns):
            top = [y - _HIGH * column.sums[word] / most for y, column in zip(base, columns)]
            drawn.append(f'<path d="{_area(top, base)}" fill="{colour}"><title>{word}</title></path>')
            base = top
    drawn += [*_phases(columns), *_steps(axis), *_marks(axis, device)]
    bottom = _TOP + _HIGH + _BAND + 14
    labels = (
        f'<text x="0" y="10">{size(most)}</text>'
        f'<text x="0" y="{bottom}">0</text>'
        f'<text x="{_WIDE}" y="{bottom}" text-anchor="end">{axis.words(1)}</text>'
    )
    title = _part("div", _HEAD, _text(f"What {device} held, by {'time' if axis.by_time else 'event'}"))
    how = f"In grey: the most in each {axis.words(1 / _COLUMNS)}. "
    seen = {column.phase for column in columns}
    shades = ", ".join(f"{phase} {_swatch(opacity)}" for phase, opacity in _OPACITY.items() if phase in seen)
    return (
        f'{title}<svg viewBox="0 0 {_WIDE} {bottom + 4}" role="img" aria-label="timeline" '
        f'style="width:100%;max-width:{_WIDE}px;height:auto;display:block;font-size:11px" fill="currentColor">'
        f"{''.join(drawn)}{labels}</svg>{_part('div', _SOFT, how, shades and 'Below: ', shades)}"
    )


def _swatch(opacity: float) -> str:
    style = f"display:inline-block;width:10px;height:10px;border-radius:2px;background:currentColor;opacity:{opacity}"
    return _part("span", style)


def _phases(columns: list[_Column]) -> list[str]:
    wide, drawn, begin = _WIDE / _COLUMNS, [], 0
    for i, column in enumerate(columns):
        if i + 1 < len(columns) and columns[i + 1].phase == column.phase:
            continue
        if column.phase in _OPACITY:
            drawn.append(
                f'<rect x="{wide * begin:.1f}" y="{_TOP + _HIGH + 1}" width="{wide * (i + 1 - begin):.1f}" '
                f'height="{_BAND}" opacity="{_OPACITY[column.phase]}"><title>{column.phase}</title></rect>'
            )
        begin = i + 1
    return drawn


def _steps(axis: _Axis) -> list[str]:
    if axis.capture.last_step > _STEPS:
        return []
    places = (axis.place(event.time, event.number) for event in axis.capture.events("step"))
    low = _TOP + _HIGH + _BAND + 1
    return [f'<path d="M{x:.1f} {_TOP}V{low}" stroke="currentColor" stroke-width=".6" opacity=".45"/>' for x in places]


def _marks(axis: _Axis, device: str) -> list[str]:
    marks = []
    failed, peak = axis.capture.last_oom, axis.capture.peaks.get(device)
    if failed is not None:
        marks.append((axis.place(failed.time, failed.number), "out of memory", _ALARM))
    if peak is not None:
        marks.append((axis.place(peak.time, peak.moment), "peak", "currentColor"))
    drawn, taken = [], float("-inf")
    for x, word, colour in marks:
        anchor = "end" if x > _WIDE / 2 else "start"
        drawn.append(f'<path d="M{x:.1f} {_TOP - 2}V{_TOP + _HIGH}" stroke="{colour}" stroke-dasharray="3 2"/>')
        if abs(x - taken) > 120 and x > 60:  # elsewhere it would cover another text
            drawn.append(f'<text x="{x:.1f}" y="10" text-anchor="{anchor}" fill="{colour}">{word}</text>')
            taken = x
    return drawn


# ---- cells ----


def _cell(*inside: str) -> str:
    return _part("div", _FRAME, *inside)


def _foot(*words: str) -> str:
    return _part("div", f"{_SOFT};margin-top:6px;overflow-wrap:anywhere", _text(" · ".join(filter(None, words))))


def _others(held: Mapping[str, int], device: str) -> str:
    rest = [f"{size(value)} on {name}" for name, value in held.items() if value and name != device]
    return f"also {', '.join(rest[:4])}" if rest else ""


def _holders(sums: Sums, modules: Mapping[str, Sums], kinds: Mapping[str, int]) -> list[str]:
    if not sums.get(TOTAL):
        return []
    return [_part("div", _HEAD, "By category"), _categories(sums), _kinds(kinds), _modules(modules, sums[TOTAL])]


def _moment_sentence(begin: str, amount: str, moment: str, sums: Sums, modules: Mapping[str, Sums]) -> str:
    rest = describe_held(sums, modules) if sums.get(TOTAL) else []
    return _sentence([(begin, False), (amount, True), (f"{moment}{': ' if rest else '.'}", False), *rest])


def of_capture(capture: Capture) -> str:
    summary = summarize("", capture)
    run = (
        describe_program(summary["info"]),
        *filter(None, [describe_prediction(summary["info"])]),
        duration(capture.duration),
        counted(capture.last_step, "step"),
    )
    foot = _foot(*run, describe_end(summary["end"]), *describe_losses(summary))
    if not summary["devices"]:
        return _cell(_part("div", "", "No memory was held."), foot)
    snapshot = capture.snapshot("oom" if capture.oom_count else "peak")
    failed = capture.last_oom
    device = str(failed.device) if failed else capture.main_device
    return _cell(
        _sentence(describe_run(summary, capture)),
        _timeline(capture, device),
        *_holders(
            snapshot.totals.get(device, {}), snapshot.by_module().get(device, {}), snapshot.kinds.get(device, {})
        ),
        _lines(snapshot, device),
        foot,
    )


def of_snapshot(snapshot: Snapshot) -> str:
    device = snapshot.main_device
    sums, modules = snapshot.totals.get(device, {TOTAL: 0}), snapshot.by_module().get(device, {})
    amount = at_least(snapshot.is_lower_bound, size(sums[TOTAL]))
    moment = describe_moment(snapshot.step, *snapshot.running, snapshot.time, _MOMENT_COLUMNS)
    held = {name: other[TOTAL] for name, other in snapshot.totals.items()}
    return _cell(
        _moment_sentence(f"{device} held ", amount, f", {moment}", sums, modules),
        *_holders(sums, modules, snapshot.kinds.get(device, {})),
        _lines(snapshot, device),
        _foot(counted(snapshot.block_count, "block"), _others(held, device)),
    )


def of_tracker(tracker: MemTracker, active: bool) -> str:
    state = f"MemTracker, {'active' if active else 'not active'}, source {tracker.source}"
    peaks = {str(device): peak for device, peak in tracker.peak.items()}
    if not peaks:
        return _cell(_part("div", "", "No memory was tracked yet."), _foot(state))
    held = {name: peak.bytes for name, peak in peaks.items()}
    device = find_main_device(held)
    sums = {str(on): sums for on, sums in tracker.get_tracker_snapshot("peak").items()}[device]
    modules = {str(on): found for on, found in tracker.get_module_snapshot("peak").items()}.get(device, {})
    kinds = {str(on): found for on, found in tracker.get_kind_snapshot("peak").items()}.get(device, {})
    peak = peaks[device]
    moment = f" on {device}, {describe_moment(peak.step, peak.phase, peak.module, columns=_MOMENT_COLUMNS)}"
    now = {str(on): sums[TOTAL] for on, sums in tracker.get_tracker_snapshot().items()}.get(device, 0)
    return _cell(
        _moment_sentence("The peak is ", at_least(bool(tracker.lost), size(peak.bytes)), moment, sums, modules),
        *_holders(sums, modules, kinds),
        _foot(f"{size(now)} is held {'now' if active else 'at the end'}", _others(held, device), state),
    )
