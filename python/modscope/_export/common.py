"""What the formats share: names as bytes, facts about the run, the devices at a moment."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

from modscope._export import ExportPart, Put
from modscope._read.load import Capture, CaptureError, Snapshot
from modscope._read.summary import describe_prediction

_MOST_CHARACTERS = 1 << 20  # Only a forged name is longer.
_TITLE_CHARACTERS = 200
_SHORT_CHARACTERS = 256
_MOST_REPEATED = 1 << 26  # characters of names in all rows together, above which long names are shortened
_LARGEST_PID = 2**31 - 1
_LATEST_TIME = 4_000_000_000  # in seconds since 1970


def encode_utf8(name: str) -> bytes:
    return name[:_MOST_CHARACTERS].encode("utf-8", "replace")


def _shorten(name: str) -> str:
    """A long name's beginning and end, and between them a checksum, so that names remain distinct."""
    if len(name) <= _SHORT_CHARACTERS:
        return name
    checksum = zlib.crc32(name.encode("utf-8", "surrogatepass"))
    half = _SHORT_CHARACTERS // 2
    return f"{name[:half]}...{checksum:08x}...{name[-half:]}"


def shorten_in_rows(capture: Capture) -> Callable[[str], str]:
    """What becomes of a name that is written again in every row: a long one is shortened where the rows are many."""
    longest = max(map(len, (*capture.modules, *capture.all_devices)))
    longest += max(
        (
            len(place.innermost.file) + len(place.innermost.function)
            for place in capture.places.innermost()
            if place.innermost
        ),
        default=0,
    )
    return _shorten if longest * capture.event_count > _MOST_REPEATED else str


def title(capture: Capture) -> str:
    """The program and its rank, without its arguments: Perfetto shows only what follows the last slash."""
    info = capture.info
    name = os.path.basename(info.get("program", "")) or "a program"
    rank = f" (rank {info.get('rank', '?')} of {info['world']})" if info.get("world", "1") != "1" else ""
    predicted = f" ({describe_prediction(info)})" if describe_prediction(info) else ""
    return (name + rank + predicted)[:_TITLE_CHARACTERS]


def pid(capture: Capture) -> int:
    """The process's number, or 1 where it is not known."""
    text = capture.info.get("pid", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0
    return number if 0 < number <= _LARGEST_PID else 1


def began(capture: Capture) -> int:
    """When the run began, in microseconds since 1970, or 0 where it is not known."""
    try:
        seconds = float(capture.info.get("began", ""))
    except ValueError:
        return 0
    return round(seconds * 1e6) if 0 < seconds < _LATEST_TIME else 0


def write_events(
    capture: Capture,
    format: str,
    put: Put,
    part: ExportPart,
    encode: Callable[[str], bytes] = encode_utf8,
    order: list[int] | None = None,
) -> None:
    """Write the events up to the moment that is asked for; ``encode`` writes a name as the format does."""
    try:
        capture.export(
            format,
            put,
            encode,
            order=order or [],
            title=encode_utf8(title(capture)),
            pid=pid(capture),
            began=began(capture),
            last=None if part.at is None else capture.moment(part.at, part.device),
        )
    except OverflowError:
        raise CaptureError(f"The blocks of this capture are too large for {format}") from None


def devices_at(capture: Capture, at: str, device: str | None) -> Iterator[tuple[str, Snapshot]]:
    """Each device that holds something at a moment, or the one that is asked for, with the snapshot of that moment.
    "peak" is each device's own peak."""
    if at == "peak" and device is None and capture.peaks:
        main = capture.main_device
        names = sorted(capture.peaks, key=lambda name: (name != main, -capture.peaks[name].bytes))
        yield from ((name, capture.snapshot(at, name)) for name in names)
        return
    snapshot = capture.snapshot(at, device)
    main = device or snapshot.main_device
    capture.device_number(main)
    others = [name for name, sums in snapshot.totals.items() if any(sums.values()) and name != main]
    for name in [main, *(others if device is None else ())]:
        yield name, snapshot
