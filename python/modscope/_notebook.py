"""Figures inside a notebook's cell: one sentence, who holds what in bars, a capture's timeline. Static HTML with its
styles in place, no script; the whole page is ``modscope report``. Needs no torch."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from modscope import _report
from modscope._closing import _where
from modscope._commands import summary
from modscope._commands.common import Report, at_least, label, notes, spot, when
from modscope._commands.terminal import Screen, clean, counted, duration, percent, size
from modscope._load import Capture, Snapshot, _main
from modscope._categories import TOTAL, Sums, sums_of

if TYPE_CHECKING:
    from modscope._mem_tracker import MemTracker

# As in page/page.css, and in its order from the bottom of a stack: what stays first, what comes and goes above it.
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
_PHASES = {"forward": 0.2, "recompute": 0.35, "backward": 0.5, "optimizer": 0.8}  # how dark
_MODULES = 10
_LONGEST = 48  # characters of a name
_SCREEN = Screen(width=160)

# The cell's own text colour and ground are the theme's, light or dark.
_FRAME = "font:13px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:inherit;max-width:760px;margin:4px 0"
_SOFT = "opacity:.7;font-size:12px"
_HEAD = "font-weight:600;margin:10px 0 3px"
_MONO = "font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_ELLIPSIS = "white-space:nowrap;overflow:hidden;text-overflow:ellipsis"
_PLAIN_CELL = "padding:1px 8px 1px 0;border:0;background:none;text-align:left;vertical-align:middle;color:inherit"


def _text(text: str) -> str:
    return html.escape(clean(text))


def _part(tag: str, style: str, *inside: str, title: str = "") -> str:
    told = f' title="{_text(title)}"' if title else ""
    return f'<{tag} style="{style}"{told}>{"".join(inside)}</{tag}>'


def _sentence(parts: _report.Sentence) -> str:
    words = (f"<b>{_text(text)}</b>" if stands_out else _text(text) for text, stands_out in parts)
    return _part("div", "overflow-wrap:anywhere", *words)


def _held_words(word: str, held: int, total: int) -> str:
    return f"{word}: {size(held)} ({held:,} bytes), {percent(held, total)}"


# ---- bars ----


def _segments(sums: Sums) -> list[str]:
    held = [(word, sums[word]) for word in COLOURS if sums.get(word)]
    return [
        _part(
            "span",
            f"display:block;height:100%;min-width:1px;width:{100 * value / sums[TOTAL]:.3f}%;background:{COLOURS[word]}",
            title=_held_words(word, value, sums[TOTAL]),
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


def _modules(modules: Mapping[str, Sums], total: int) -> str:
    largest = sorted(modules.items(), key=lambda item: -item[1][TOTAL])
    if not largest:
        return ""
    most = largest[0][1][TOTAL]
    rows = "".join(_row(fqn, sums, most, total) for fqn, sums in largest[:_MODULES])
    rest = len(largest) - _MODULES
    more = _part("div", _SOFT, f"and {counted(rest, 'smaller module')}") if rest > 0 else ""
    table = _part("table", "border-collapse:collapse;border:0;width:100%;table-layout:fixed;margin:0;color:inherit", rows)
    return _part("div", _HEAD, "The largest modules, by what each holds itself") + table + more


def _row(fqn: str, sums: Sums, most: int, total: int) -> str:
    name = _part("bdi", "", html.escape(_SCREEN.fit(label(fqn), _LONGEST)))
    amount = f"{size(sums[TOTAL])} <span style='opacity:.7'>{percent(sums[TOTAL], total)}</span>"
    return _part(
        "tr",
        "background:none",
        _part("td", f"{_PLAIN_CELL};width:48%;{_MONO};{_ELLIPSIS}", name, title=fqn),
        _part("td", _PLAIN_CELL, _bar(sums, sums[TOTAL] / most, 12)),
        _part("td", f"{_PLAIN_CELL};width:128px;text-align:right;white-space:nowrap;font-size:12px", amount),
    )


# ---- the timeline ----

_WIDE, _HIGH, _COLUMNS, _STEPS = 744, 100, 124, 60
_TOP, _BAND = 14, 7


class _Axis(NamedTuple):
    """Time from left to right, or events where most of the time nothing happened."""

    capture: Capture
    by_time: bool

    def moment(self, share: float) -> int:
        if self.by_time:
            return self.capture._reader.moment_at_time(int(self.capture.duration * 1e6 * share))
        return int(self.capture.count * share)

    def place(self, time: float, moment: int) -> float:
        share = time / self.capture.duration if self.by_time else moment / self.capture.count
        return _WIDE * min(share, 1)

    def words(self, share: float) -> str:
        if self.by_time:
            return duration(self.capture.duration * share)
        return counted(max(round(self.capture.count * share), 1), "event")


def _axis(capture: Capture) -> _Axis:
    return _Axis(capture, capture.phases["idle"].time < capture.duration / 2)


class _Column(NamedTuple):
    sums: Sums
    most: int
    phase: str


def _columns(axis: _Axis, device: str) -> list[_Column]:
    """What was held in the middle of each, and at most in it."""
    capture = axis.capture
    number, none = capture._device(device), sums_of((0,) * len(COLOURS))
    edges = [axis.moment(i / _COLUMNS) for i in range(_COLUMNS)] + [capture.count]
    found = []
    for i in range(_COLUMNS):
        snapshot = capture.snapshot(axis.moment((i + 0.5) / _COLUMNS))
        most = capture._reader.peaks(edges[i], edges[i + 1])
        held = most[number] if number < len(most) else 0
        found.append(_Column(snapshot.totals.get(device, none), held, snapshot.running[0]))
    return found


def _area(heights: Iterable[float], floors: Iterable[float]) -> str:
    """A band between two lines that go by steps."""
    wide = _WIDE / _COLUMNS
    there = "".join(f"V{y:.1f}H{wide * (i + 1):.1f}" for i, y in enumerate(heights))
    lows = list(floors)
    back = "".join(f"V{y:.1f}H{wide * i:.1f}" for i, y in reversed(list(enumerate(lows))))
    return f"M0 {lows[0]:.1f}{there}{back}Z"


def _timeline(capture: Capture, device: str) -> str:
    if not (capture.count and capture.duration > 0):
        return ""
    axis = _axis(capture)
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
    told = _part("div", _HEAD, _text(f"What {device} held, by {'time' if axis.by_time else 'event'}"))
    how = f"In grey: the most in each {axis.words(1 / _COLUMNS)}. "
    seen = {column.phase for column in columns}
    shades = ", ".join(f"{phase} {_shade(dark)}" for phase, dark in _PHASES.items() if phase in seen)
    return (
        f'{told}<svg viewBox="0 0 {_WIDE} {bottom + 4}" role="img" aria-label="timeline" '
        f'style="width:100%;max-width:{_WIDE}px;height:auto;display:block;font-size:11px" fill="currentColor">'
        f"{''.join(drawn)}{labels}</svg>{_part('div', _SOFT, how, shades and 'Below: ', shades)}"
    )


def _shade(dark: float) -> str:
    style = f"display:inline-block;width:10px;height:10px;border-radius:2px;background:currentColor;opacity:{dark}"
    return _part("span", style)


def _phases(columns: list[_Column]) -> list[str]:
    wide, drawn, begin = _WIDE / _COLUMNS, [], 0
    for i, column in enumerate(columns):
        if i + 1 < len(columns) and columns[i + 1].phase == column.phase:
            continue
        if column.phase in _PHASES:
            drawn.append(
                f'<rect x="{wide * begin:.1f}" y="{_TOP + _HIGH + 1}" width="{wide * (i + 1 - begin):.1f}" '
                f'height="{_BAND}" opacity="{_PHASES[column.phase]}"><title>{column.phase}</title></rect>'
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
        if abs(x - taken) > 120 and x > 60:  # else it would lie on another's words
            drawn.append(f'<text x="{x:.1f}" y="10" text-anchor="{anchor}" fill="{colour}">{word}</text>')
            taken = x
    return drawn


# ---- what shows itself ----


def _cell(*inside: str) -> str:
    return _part("div", _FRAME, *inside)


def _foot(*words: str) -> str:
    return _part("div", f"{_SOFT};margin-top:6px;overflow-wrap:anywhere", _text(" · ".join(filter(None, words))))


def _others(held: Mapping[str, int], device: str) -> str:
    rest = [f"{size(value)} on {name}" for name, value in held.items() if value and name != device]
    return f"also {', '.join(rest[:4])}" if rest else ""


def of_capture(capture: Capture) -> str:
    result = summary.report_of("", capture)
    run = (summary.program(result["info"]), duration(capture.duration), counted(capture.last_step, "step"))
    foot = _foot(*run, summary.ended(result["end"]), *filter(None, notes(result, Screen(width=400))))
    if not result["devices"]:
        return _cell(_part("div", "", "No memory was held."), foot)
    snapshot = capture.snapshot("oom" if capture.oom_count else "peak")
    failed = capture.last_oom
    device = str(failed.device) if failed else capture.main_device
    return _cell(
        _sentence(_report.sentence(result, capture)),
        _timeline(capture, device),
        *_holders(snapshot.totals.get(device, {}), snapshot.by_module().get(device, {})),
        foot,
    )


def _holders(sums: Sums, modules: Mapping[str, Sums]) -> list[str]:
    if not sums.get(TOTAL):
        return []
    return [_part("div", _HEAD, "By category"), _categories(sums), _modules(modules, sums[TOTAL])]


def _moment_sentence(lead: str, amount: str, where: str, sums: Sums, modules: Mapping[str, Sums]) -> str:
    rest = _report.held(sums, modules, _SCREEN) if sums.get(TOTAL) else []
    return _sentence([(lead, False), (amount, True), (f"{where}{': ' if rest else '.'}", False), *rest])


def of_snapshot(snapshot: Snapshot) -> str:
    device = snapshot.main_device
    sums, modules = snapshot.totals.get(device, {TOTAL: 0}), snapshot.by_module().get(device, {})
    moment: Report = spot(snapshot)
    amount = at_least(snapshot.is_lower_bound, size(sums[TOTAL]))
    where = f", {when(moment, _SCREEN, _SCREEN.width)}"
    held = {name: other[TOTAL] for name, other in snapshot.totals.items()}
    return _cell(
        _moment_sentence(f"{device} held ", amount, where, sums, modules),
        *_holders(sums, modules),
        _foot(counted(snapshot.count, "block"), _others(held, device)),
    )


def of_tracker(tracker: MemTracker) -> str:
    state = f"MemTracker, {'active' if tracker._depth else 'not active'}, source {tracker.source}"
    peaks = {str(device): peak for device, peak in tracker.peak.items()}
    if not peaks:
        return _cell(_part("div", "", "No memory was tracked yet."), _foot(state))
    held = {name: peak.bytes for name, peak in peaks.items()}
    device = _main(held)
    sums = {str(on): sums for on, sums in tracker.get_tracker_snapshot("peak").items()}[device]
    modules = {str(on): found for on, found in tracker.get_module_snapshot("peak").items()}.get(device, {})
    peak = peaks[device]
    where = f" on {device}, {_where(peak)}"
    now = {str(on): sums[TOTAL] for on, sums in tracker.get_tracker_snapshot().items()}.get(device, 0)
    return _cell(
        _moment_sentence("The peak is ", at_least(bool(tracker.lost), size(peak.bytes)), where, sums, modules),
        *_holders(sums, modules),
        _foot(f"{size(now)} is held {'now' if tracker._depth else 'at the end'}", _others(held, device), state),
    )
