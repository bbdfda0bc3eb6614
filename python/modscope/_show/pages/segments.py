"""Where the blocks of a GPU are: the picture of segments, for the page of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from modscope._read.load import Capture
from modscope._show.pages import packed

MOST_BYTES = 3_000_000
"""The page has no picture that would make it larger by more than this."""


class Layouts(NamedTuple):
    """By the numbers of the devices that are GPUs."""

    columns: dict[int, str]
    """Where their blocks are (``Stream.layout``), packed."""
    left_out: dict[int, str]
    """Why the page does not have it."""


def layouts_of_page(capture: Capture, devices: Sequence[int], is_whole: bool) -> Layouts:
    """``is_whole``: the page shows all of the run. The page has no picture of a part, as its blocks are not numbered
    from the run's beginning."""
    found = Layouts({}, {})
    gpus = [device for device in devices if capture.all_devices[device].startswith("cuda")]
    reason = _reason_against(capture, is_whole) if gpus else None
    stream = capture.whole_stream() if gpus and not reason else None
    for device in gpus:
        if stream is None or stream.is_lower_bound:
            found.left_out[device] = reason or "events of this capture are missing."
            continue
        try:
            columns = packed(capture.layout(stream, device))
        except ValueError as error:
            found.left_out[device] = f"{error}."
            continue
        if len(columns) > MOST_BYTES:
            found.left_out[device] = f"it would make the page {len(columns) / 1e6:.1f} MB larger."
        else:
            found.columns[device] = columns
    return found


def _reason_against(capture: Capture, is_whole: bool) -> str | None:
    if capture.is_lower_bound:
        return "events of this capture are missing."
    return None if is_whole else "the page shows only a part of the run."
