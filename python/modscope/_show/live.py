"""What ``modscope top`` shows of captures that are still being written, as the lines of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modscope._read.categories import CATEGORIES
from modscope._read.live import LiveCapture, LiveDevice, LiveRow
from modscope._read.text import clean, duration, size
from modscope._show.terminal import Screen

SORTS = ("now", "peak", "growth")
KEYS = "q quit  m/c/l module/category/line  n/p/g sort now/peak/growth  d device"
RANK_KEY = "  r rank"
_QUIET = 10  # seconds without an event after which that is said
_MOST_RANKS = 8
_WIDEST_BAR = 100


class View(NamedTuple):
    """What was chosen with keys."""

    by: str = "module"
    sort: str = "now"
    device: int = 0
    rank: int = 0


def signed(value: int) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{size(abs(value))}"


def _name_of(capture: LiveCapture) -> str:
    info = capture.info
    words = clean(info.get("program", "") or capture.path)
    rank = f", rank {clean(info['rank'])} of {clean(info.get('world', '?'))}" if info.get("world", "1") != "1" else ""
    return f"{words} (process {clean(info.get('pid', '?'))}{rank})"


def state_of(capture: LiveCapture) -> str:
    ended = capture.ended()
    if ended is not None:
        return ended
    if not capture.info:
        return "it has written nothing yet"
    quiet = capture.quiet_seconds
    return f"no events for {duration(quiet)}" if quiet > _QUIET else "running"


def step_words(capture: LiveCapture) -> str:
    status = capture.status
    speed = f", {1e6 / status.step_time:.3g} steps/s" if status.step_time else ""
    where = f", {status.phase} of {clean(status.running)}" if status.phase != "idle" else ""
    oom = f", {status.oom_count} failed allocations" if status.oom_count else ""
    return f"step {status.step}{speed}{where}{oom}"


def device_words(device: LiveDevice) -> str:
    reserved = (
        f"; reserved {size(device.reserved)}, at most {size(device.peak_reserved)}" if device.peak_reserved else ""
    )
    return f"{device.name} holds {size(device.now)}, peak {size(device.peak)} in step {device.peak_step}{reserved}"


def chosen_device(capture: LiveCapture, view: View) -> LiveDevice | None:
    devices = capture.devices()
    return devices[view.device % len(devices)] if devices else None


def plain_line(capture: LiveCapture) -> str:
    """One line, for where there is no terminal."""
    device = chosen_device(capture, View())
    held = device_words(device) if device else "nothing is held"
    return f"{_name_of(capture)}: {state_of(capture)}, {step_words(capture)}; {held}"


def frame(captures: Sequence[LiveCapture], view: View, screen: Screen, height: int) -> list[str]:
    """The lines of a screen, at most ``height``."""
    capture = captures[view.rank % len(captures)]
    out = [screen.bold(screen.cut(f"modscope top  {_name_of(capture)}: {state_of(capture)}", screen.width))]
    out.append(screen.cut(step_words(capture), screen.width))
    if len(captures) > 1:
        out += _rank_lines(captures, view, screen)
    device = chosen_device(capture, view)
    if device is None:
        return [*out, "Nothing is held yet."]
    out.append(screen.cut(device_words(device), screen.width))
    share = device.now / device.peak if device.peak else 0
    held = {row.name: row.now for row in capture.rows(device, "category")}
    parts = {str(category): held[str(category)] for category in CATEGORIES if held.get(str(category), 0) > 0}
    out.append(screen.bar(share, min(screen.width - 1, _WIDEST_BAR), parts))
    out += _table(capture, device, view, screen, height - len(out) - 1)
    out += [""] * (height - 1 - len(out))
    return [*out[: height - 1], screen.dim(screen.cut(KEYS + RANK_KEY * (len(captures) > 1), screen.width - 1))]


def _rank_lines(captures: Sequence[LiveCapture], view: View, screen: Screen) -> list[str]:
    chosen = view.rank % len(captures)
    first = max(0, min(chosen - _MOST_RANKS // 2, len(captures) - _MOST_RANKS))
    rows = []
    for number, capture in list(enumerate(captures))[first : first + _MOST_RANKS]:
        device = chosen_device(capture, view)
        figures = (size(device.now), size(device.peak)) if device else ("", "")
        mark = screen.mark if number == chosen else ""
        name = f"{mark} rank {clean(capture.info.get('rank', str(number)))}"
        rows.append((name.strip(), *figures, str(capture.status.step), state_of(capture)))
    return screen.table(("Rank", "Now", "Peak", "Step", "State"), rows)


def _table(capture: LiveCapture, device: LiveDevice, view: View, screen: Screen, most: int) -> list[str]:
    rows = sorted(capture.rows(device, view.by), key=lambda row: -abs(getattr(row, view.sort)))
    heads = [f"{word}{'*' if word.lower().startswith(view.sort) else ''}" for word in ("Now", "Peak", "Growth/step")]
    shown = rows[: max(most - 1, 1)]
    texts = [(size(row.now), size(row.peak), _growth(row, device), row.name) for row in shown]
    lines = screen.table((*heads, view.by.capitalize()), texts)
    return lines[:most]


def _growth(row: LiveRow, device: LiveDevice) -> str:
    return signed(row.growth) if device.growth_steps else ""
