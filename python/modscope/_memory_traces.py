"""The picture of ``MemoryTracker.show_traces``: with matplotlib, else an SVG file."""

from __future__ import annotations

import itertools
import os
from typing import Any, TextIO
from xml.sax.saxutils import escape

from modscope._memory_stats_file import Stats

Trace = tuple[str, list[float]]

_COLORS = {"allocated_memory": "#1f77b4", "active_memory": "#ff7f0e", "reserved_memory": "#2ca02c"}
_MARKER_COLORS = {"fw_bw_boundary": "red"}
_WIDE, _HIGH, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 260, 90, 20, 30, 40
_WITHOUT_DISPLAY = (
    "agg",
    "cairo",
    "pdf",
    "pgf",
    "ps",
    "svg",
    "template",
)  # backends of matplotlib that write files only
_COLUMNS = 1000  # of a line of the SVG file: the least and the most in each


def draw(stats: Stats) -> None:
    """One picture with all figures, and one for each: they may differ too much to be seen in one."""
    traces = [
        (label, [mib for _, mib in rows.values()])
        for label, rows in (
            ("allocated_memory", stats.memories_allocated),
            ("active_memory", stats.memories_active),
            ("reserved_memory", stats.memories_reserved),
        )
    ]
    if not stats.memories_allocated:
        print("No operators were recorded, so there is nothing to draw.")
        return
    pictures = [traces, *([trace] for trace in traces)]
    try:
        import matplotlib.pyplot as plt

        numbers = [_plot(plt, picture, stats.markers) for picture in pictures]
        if hint := _how_to_see(plt, numbers):
            print(hint)
    except ImportError as error:  # of matplotlib, or of its backend where there is no display
        _write_svg(pictures, stats.markers, f"matplotlib cannot be used ({error})")


def _bounds(traces: list[Trace]) -> tuple[float, float]:
    values = [value for _, trace in traces for value in (min(trace), max(trace))]
    return min(values) * 0.999, max(values) * 1.001


def _how_to_see(plt: Any, numbers: list[int]) -> str:
    """What to do to see the figures of matplotlib; "" in a notebook, which shows them."""
    backend = str(plt.get_backend())
    which = f"figures {numbers[0]} to {numbers[-1]} of matplotlib"
    if backend.lower() in _WITHOUT_DISPLAY:
        save = f'matplotlib.pyplot.figure({numbers[0]}).savefig("traces.png")'
        return f"The traces are {which}, which has no display here (its backend is {backend}). To save one:  {save}"
    is_shown = (
        plt.isinteractive()
        or backend.startswith("module://")
        or backend.lower() in ("inline", "nbagg", "widget", "ipympl")
    )
    return "" if is_shown else f"The traces are {which}. To see them:  matplotlib.pyplot.show()"


def _plot(plt: Any, traces: list[Trace], markers: dict[str, int]) -> int:
    """The number of the figure."""
    bounds = _bounds(traces)
    figure = plt.figure()
    for label, values in traces:
        plt.plot(range(len(values)), values, label=label)
    plt.xlabel("# Operator Calls")
    plt.ylabel("Memory (MB)")
    plt.legend()
    for marker, at in markers.items():
        plt.plot([at, at], bounds, color=_MARKER_COLORS.get(marker, "black"), lw=2, label=marker)
    return int(figure.number)


# ---- without matplotlib ----


def _write_svg(pictures: list[list[Trace]], markers: dict[str, int], why: str) -> None:
    with _new_file() as file:
        high = len(pictures) * _HIGH
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" font-family="sans-serif" font-size="12">\n'
        )
        file.write(f'<rect width="{_WIDE}" height="{high}" fill="white"/>\n')
        for number, traces in enumerate(pictures):
            file.write(f'<g transform="translate(0 {number * _HIGH})">\n{_picture(traces, markers)}\n</g>\n')
        file.write("</svg>\n")
    print(f"{why}, so the traces are in {os.path.abspath(file.name)}")


def _new_file() -> TextIO:
    """A file of its own in the current folder: no other file is overwritten."""
    for number in itertools.count(1):
        try:
            return open(f"memory-traces{'' if number == 1 else f'-{number}'}.svg", "x", encoding="utf-8")
        except FileExistsError:
            continue
    raise AssertionError


def _picture(traces: list[Trace], markers: dict[str, int]) -> str:
    low, most = _bounds(traces)
    count = max(len(values) for _, values in traces)
    wide, high = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + wide * at / max(count - 1, 1)

    def y(value: float) -> float:
        return _TOP + high * (1 - (value - low) / (most - low or 1))

    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{wide}" height="{high}" fill="none" stroke="#888"/>']
    for value in (low, (low + most) / 2, most):
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HIGH - 8}"># Operator Calls: {count}. Memory (MB)</text>')
    for number, (label, values) in enumerate(traces):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in _thinned(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLORS[label]}"/>')
        parts.append(f'<text x="{_LEFT + 170 * number}" y="{_TOP - 8}" fill="{_COLORS[label]}">{label}</text>')
    for marker, at in markers.items():
        color = _MARKER_COLORS.get(marker, "black")
        parts.append(
            f'<path d="M{x(at):.1f} {_TOP}v{high}" stroke="{color}" stroke-width="2"><title>{escape(marker)}</title></path>'
        )
    return "\n".join(parts)


def _thinned(values: list[float]) -> list[tuple[int, float]]:
    """Few enough points to draw, with every extreme among them."""
    if len(values) <= 2 * _COLUMNS:
        return list(enumerate(values))
    points = set()
    step = -(-len(values) // _COLUMNS)
    for begin in range(0, len(values), step):
        part = range(begin, min(begin + step, len(values)))
        points |= {min(part, key=values.__getitem__), max(part, key=values.__getitem__)}
    return [(at, values[at]) for at in sorted(points)]
