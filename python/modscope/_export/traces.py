"""All events of a capture: Perfetto's trace, with counters of what is held, slices of modules and phases, steps, peaks
and failed allocations; and the pickle that torch.cuda._memory_viz and its viewer read, for any device."""

from __future__ import annotations

from modscope._export import ExportPart, Put
from modscope._export.common import write_events
from modscope._read.load import Capture

_NO_DEVICE = -1
_MOST_DEVICES = 64


def _torch_order(capture: Capture, only: str | None = None) -> list[int]:
    """The capture's device for each of torch's numbers. An accelerator keeps its number; the others come after them."""
    failed = capture.last_oom.device if capture.last_oom else None
    known = [*capture.peaks, *(name for name, most in capture.reserved.items() if most), failed]
    numbers: dict[int, int] = {}
    rest = []
    for name in dict.fromkeys(name for name in known if name is not None and only in (None, name)):
        kind, _, index = name.partition(":")
        number = int(index) if index.isascii() and index.isdigit() and len(index) < 3 else _MOST_DEVICES
        if kind != "cpu" and number < _MOST_DEVICES and number not in numbers:
            numbers[number] = capture.device_number(name)
        else:
            rest.append(capture.device_number(name))
    return [*(numbers.get(i, _NO_DEVICE) for i in range(max(numbers, default=-1) + 1)), *sorted(rest)]


def write(capture: Capture, format: str, put: Put, part: ExportPart) -> None:
    if format == "perfetto":
        write_events(capture, format, put, part)
        return
    if part.device is not None:
        capture.device_number(part.device)
    write_events(capture, format, put, part, order=_torch_order(capture, part.device))
