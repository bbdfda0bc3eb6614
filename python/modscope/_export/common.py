"""What the formats share: names as bytes, the program's title, devices at their moments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from modscope._export import Asked, Put
from modscope._load import Capture, CaptureError, Snapshot

_LONGEST = 1 << 20  # characters of a name; one that is longer is nobody's
_TITLE = 200
_PID_MOST = 2**31 - 1
_LAST_YEAR = 4_000_000_000  # seconds since 1970


def plain(name: str) -> bytes:
    return name[:_LONGEST].encode("utf-8", "replace")


def title(capture: Capture) -> str:
    """The program and its rank. Not its arguments: Perfetto shows what comes after the last slash."""
    info = capture.info
    name = os.path.basename(info.get("program", "")) or "a program"
    rank = f" (rank {info.get('rank', '?')} of {info['world']})" if info.get("world", "1") != "1" else ""
    return (name + rank)[:_TITLE]


def pid(capture: Capture) -> int:
    """The process's number, or 1 where it is not known."""
    text = capture.info.get("pid", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else 0
    return number if 0 < number <= _PID_MOST else 1


def began(capture: Capture) -> int:
    """Microseconds since 1970, or 0 where it is not known."""
    try:
        seconds = float(capture.info.get("began", ""))
    except ValueError:
        return 0
    return round(seconds * 1e6) if 0 < seconds < _LAST_YEAR else 0


def events(
    capture: Capture,
    format: str,
    put: Put,
    asked: Asked,
    name: Callable[[str], bytes] = plain,
    order: list[int] | None = None,
) -> None:
    """What happened, up to the moment that is asked for; ``name`` is how the format writes names."""
    try:
        capture._reader.export(
            format,
            put,
            modules=[name(module) for module, _, _ in capture._paths],
            devices=[name(device) for device in capture._names],
            order=order or [],
            title=plain(title(capture)),
            pid=pid(capture),
            began=began(capture),
            last=None if asked.at is None else capture.moment(asked.at, asked.device),
            progress=asked.progress,
        )
    except OverflowError:
        raise CaptureError(f"The blocks of this capture are too large for {format}") from None


def moments(capture: Capture, at: str, device: str | None) -> Iterator[tuple[str, Snapshot]]:
    """Each device that holds something at a moment, or the one that is asked for. The peak is each one's own."""
    if at == "peak" and device is None and capture.peaks:
        main = capture.main_device
        names = sorted(capture.peaks, key=lambda name: (name != main, -capture.peaks[name].bytes))
        yield from ((name, capture.snapshot(at, name)) for name in names)
        return
    snapshot = capture.snapshot(at, device)
    main = device or snapshot.main_device
    capture._device(main)
    others = [name for name, sums in snapshot.totals.items() if any(sums.values()) and name != main]
    for name in [main, *(others if device is None else ())]:
        yield name, snapshot
