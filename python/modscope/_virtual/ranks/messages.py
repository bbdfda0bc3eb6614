"""What virtual ranks that run at the same time tell each other: objects, and integers whose values are known. The
stages of a pipeline agree on shapes by them. A message is a file in a folder that the processes share; tensors
themselves are not sent."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

__all__ = ["Messages", "note_end", "waiting"]

_POLL = 0.005
_PATIENCE = 300.0
"""Seconds until a message is taken to be lost."""


def note_end(folder: str, rank: int) -> None:
    """Tell the others that this rank has ended, and sends nothing more."""
    with open(_end_of(folder, rank), "wb"):
        pass


_WAITING = "waiting-"


def waiting(folder: str) -> int:
    """How many ranks wait for a message now. ``folder``: of the messages; "": there are none."""
    return sum(name.startswith(_WAITING) for name in os.listdir(folder)) if folder else 0


def _end_of(folder: str, rank: int) -> str:
    return os.path.join(folder, f"end-{rank}")


class Messages:
    """The messages from and to one rank. Those between two ranks arrive in the order in which they were sent."""

    def __init__(self, folder: str, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def send(self, to: int, message: Any) -> None:
        number = self._sent[to] = self._sent.get(to, 0) + 1
        path = self._path(self._rank, to, number)
        with open(f"{path}.part", "wb") as file:
            pickle.dump(message, file)
        os.replace(f"{path}.part", path)

    def receive(self, source: int) -> Any:
        """Waits until the message is there. RuntimeError or TimeoutError says from whom it does not come."""
        number = self._received[source] = self._received.get(source, 0) + 1
        path = self._path(source, self._rank, number)
        if not os.path.exists(path):
            mark = os.path.join(self._folder, f"{_WAITING}{self._rank}")
            with open(mark, "wb"):
                pass
            try:
                self._wait(path, source)
            finally:
                os.unlink(mark)
        with open(path, "rb") as file:
            message = pickle.load(file)
        os.unlink(path)
        return message

    def _wait(self, path: str, source: int) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not os.path.exists(path):
            if os.path.exists(_end_of(self._folder, source)) and not os.path.exists(path):
                raise RuntimeError(
                    f"rank {source} ended, and had not sent what rank {self._rank} waits for: see whether it failed"
                )
            if time.monotonic() > deadline or not os.path.isdir(self._folder):
                raise TimeoutError(
                    f"rank {source} sent nothing to rank {self._rank} within {_PATIENCE:g} s: see whether it failed"
                )
            time.sleep(_POLL)

    def _path(self, source: int, to: int, number: int) -> str:
        return os.path.join(self._folder, f"{source}-{to}-{number}")
