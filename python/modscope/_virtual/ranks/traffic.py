"""When collectives end. They run one after another on the links, beside what the device computes.

    device   | a |      b      |.......|  c  |     c needs the result of x
    links        |     x       |   y   |

The device waits for a collective where the default stream waits for it: by ``Work.wait``, by an event, or by another
stream. Work of other streams does not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from modscope import _native
from modscope._virtual.time import times

__all__ = ["Traffic", "current", "pass_on", "wait_for", "wait_for_all", "waits"]

_DEFAULT_STREAM = 0

Ends = tuple[float, ...]
"""When something ends, on the installed GPU and on each of the others whose time is wanted."""


class Traffic:
    """The clocks of the links between ranks."""

    def __init__(self, gpus: int) -> None:
        self._free: list[float] = [0.0] * gpus
        self._of_stream: dict[int, Ends] = {}
        self._lock = threading.Lock()

    def run(self, seconds: Sequence[float]) -> Ends:
        """A collective was launched that takes so long on each GPU. Returns when it ends."""
        with self._lock:
            for gpu, duration in enumerate(seconds):
                self._free[gpu] = max(self._free[gpu], times.now(gpu - 1 if gpu else None)) + duration
            return tuple(self._free)

    def wait(self, stream: int, ends: Ends) -> None:
        """What is launched on this stream from now on begins after these ends."""
        with self._lock:
            before = self._of_stream.get(stream)
            self._of_stream[stream] = ends if before is None else tuple(map(max, before, ends))
        if stream == _DEFAULT_STREAM:
            for gpu, end in enumerate(ends):
                times.delay(end, gpu - 1 if gpu else None)

    def all(self) -> Ends:
        """When all collectives that were launched so far end."""
        return tuple(self._free)

    def of(self, stream: int) -> Ends | None:
        """What the work on a stream waits for."""
        return self._of_stream.get(stream)


current: Traffic | None = None
"""None: there are no ranks."""


def waits(stream: int) -> Ends | None:
    """What the work on a stream waits for so far, for an event that is recorded there."""
    return current.of(stream) if current is not None else None


def wait_for(ends: Ends | None, stream: int | None = None) -> None:
    """A stream waits for this; None: the current one of this thread."""
    if current is not None and ends is not None:
        current.wait(_native.virtual_stream() if stream is None else stream, ends)


def wait_for_all() -> None:
    """The current stream waits for all collectives that were launched so far."""
    wait_for(current.all() if current is not None else None)


def pass_on(stream: int, source: int) -> None:
    """Let a stream wait for another one."""
    wait_for(waits(source), stream)
