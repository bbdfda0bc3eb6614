"""What a ``MemoryTracker`` recorded: the files that ``save_stats`` writes, of modscope and of torch, which are pickles
of plain data, and the picture of ``show_traces``, with matplotlib or else as an SVG file."""

from __future__ import annotations

import collections
import itertools
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO
from xml.sax.saxutils import escape

Rows = dict[int, tuple[str, float]]

# What torch's own files refer to, beside plain data: the types of its dicts.
_ALLOWED: dict[tuple[str, str], type] = {
    ("collections", "defaultdict"): collections.defaultdict,
    ("builtins", "int"): int,
}


@dataclass
class Stats:
    """What a ``MemoryTracker`` has recorded."""

    memories_allocated: Rows = field(default_factory=dict)
    memories_active: Rows = field(default_factory=dict)
    memories_reserved: Rows = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    num_alloc_retries: int = 0
    op_index: int = 0
    allocated_at_start: float | None = None
    """MiB before the first operator; None where it is not known."""

    def growth(self) -> Iterator[tuple[str, float]]:
        """Each operator's name, and how much more was allocated after it than after the one before."""
        before = self.allocated_at_start
        for name, allocated in self.memories_allocated.values():
            if before is not None:
                yield name, allocated - before
            before = allocated

    def operator_counts(self) -> dict[str, int]:
        """How many operators have each name."""
        return collections.Counter(_parts(name)[1] for name, _ in self.memories_allocated.values())

    def last_position(self) -> str:
        """The module and the phase of the last operator; "" if there is none."""
        rows = self.memories_allocated
        return _parts(rows[max(rows)][0])[0] if rows else ""


def _parts(name: str) -> tuple[str, str]:
    """Split an operator's name: "layers.0.forward.addmm.default_3" is ("layers.0.forward", "addmm.default")."""
    without_number = name.rpartition("_")[0] or name
    position, _, overload = without_number.rpartition(".")
    position, _, operator = position.rpartition(".")
    return position, f"{operator}.{overload}" if operator else overload


def write(path: str | os.PathLike[str], stats: Stats) -> None:
    content = pickle.dumps(dict(vars(stats)), pickle.HIGHEST_PROTOCOL)
    with open(path, "wb") as file:
        file.write(content)


class _PlainUnpickler(pickle.Unpickler):
    """Refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, and only plain data is read")
        return allowed


def read(path: str | os.PathLike[str]) -> Stats:
    """Read statistics. OSError if the file cannot be read, ValueError if it is not a file of ``save_stats``."""
    with open(path, "rb") as file:
        try:
            content = _PlainUnpickler(file).load()
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise _refusal(path, f"it is not a pickle of plain data ({error})") from None
    why = _what_is_wrong(content)
    if why:
        raise _refusal(path, why)
    stats = Stats(**{name: content[name] for name in Stats.__dataclass_fields__ if name in content})
    for name in ("memories_allocated", "memories_active", "memories_reserved"):
        setattr(stats, name, {number: (row[0], float(row[1])) for number, row in sorted(content[name].items())})
    stats.markers = dict(stats.markers)
    stats.op_index = len(stats.memories_allocated)  # files of torch before 2.15 do not have it
    return stats


def _refusal(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)!r} cannot be loaded: {why}. Load a file that MemoryTracker.save_stats wrote.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_row(number: object, row: object) -> bool:
    return (
        type(number) is int
        and isinstance(row, tuple)
        and len(row) == 2
        and isinstance(row[0], str)
        and _is_number(row[1])
    )


def _what_is_wrong(content: object) -> str:
    """Why it is not what ``save_stats`` writes; "" if it is."""
    if not isinstance(content, dict):
        return f"it holds a {type(content).__name__} instead of a dict"
    for name in ("memories_allocated", "memories_active", "memories_reserved"):
        rows = content.get(name)
        if not isinstance(rows, dict):
            return f"it has no dict {name!r}"
        if not all(_is_row(number, row) for number, row in rows.items()):
            return f"{name!r} is not a dict of numbers to pairs of a name and a number"
        if rows.keys() != content["memories_allocated"].keys():
            return f"{name!r} and 'memories_allocated' are not of the same operators"
    markers = content.get("markers")
    if not isinstance(markers, dict) or not all(isinstance(k, str) and type(v) is int for k, v in markers.items()):
        return "'markers' is not a dict of names to numbers"
    if type(content.get("num_alloc_retries")) is not int:
        return "'num_alloc_retries' is not a number"
    if not (content.get("allocated_at_start") is None or _is_number(content["allocated_at_start"])):
        return "'allocated_at_start' is not a number"
    return ""


# ---- pictures ----

Trace = tuple[str, list[float]]

_COLORS = {"allocated_memory": "#1f77b4", "active_memory": "#ff7f0e", "reserved_memory": "#2ca02c"}
_MARKER_COLORS = {"fw_bw_boundary": "red"}
_WIDE, _HIGH, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 260, 90, 20, 30, 40
# backends of matplotlib that write files only
_WITHOUT_DISPLAY = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
_COLUMNS = 1000  # A line of the SVG file has so many, with the least and the most in each.


def draw(stats: Stats) -> None:
    """Draw one picture with all figures, and one for each: they may differ too much to be seen in one."""
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
    except ImportError as error:  # matplotlib is missing, or its backend where there is no display.
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
    """Plot the traces, and return the number of the figure."""
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
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" font-family="sans-serif" '
            f'font-size="12">\n'
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
            f'<path d="M{x(at):.1f} {_TOP}v{high}" stroke="{color}" '
            f'stroke-width="2"><title>{escape(marker)}</title></path>'
        )
    return "\n".join(parts)


def _thinned(values: list[float]) -> list[tuple[int, float]]:
    """Choose few enough points to draw, with every extreme among them."""
    if len(values) <= 2 * _COLUMNS:
        return list(enumerate(values))
    points = set()
    step = -(-len(values) // _COLUMNS)
    for begin in range(0, len(values), step):
        part = range(begin, min(begin + step, len(values)))
        points |= {min(part, key=values.__getitem__), max(part, key=values.__getitem__)}
    return [(at, values[at]) for at in sorted(points)]
