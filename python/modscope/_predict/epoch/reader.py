"""The process that reads a DataLoader ahead of training.

It is forked when the script begins to iterate the loader, and waits until that is known to be the training loader. So
it has the random state, the dataset and the sampler that the script has then, and nothing that it does is seen by the
script: training reads the same batches as if nobody had read ahead. What it does outside of its memory (files, network)
happens a second time."""

from __future__ import annotations

import array
import base64
import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from modscope._predict.epoch.batch_shapes import Shape, leaves, shape_of
from modscope._predict.epoch.spool import Spool

_TOLD_EVERY = 0.25  # seconds
_GRACE = 10.0
"""Seconds that a batch may take beyond the time limit before the reading process is ended."""

Iterate = Callable[[Any], Iterator[Any]]


class Reader:
    """The script's side."""

    def __init__(self, pid: int, orders: int, answers: int) -> None:
        self._pid, self._orders = pid, orders
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._began = 0.0
        self._buffer = b""
        self.batches = 0
        """How many were read so far."""

    def begin(self, seconds: float, most: int) -> None:
        """Read at most ``most`` batches (0: any number) in ``seconds`` (0: no limit)."""
        self._began = time.monotonic()
        self._limit = seconds
        self._order({"seconds": seconds, "batches": most})

    def result(self, on_progress: Callable[[int], None]) -> dict[str, Any]:
        """Wait for what was read. An answer with only an "error": it came to nothing."""
        while True:
            limit = self._limit + _GRACE if self._limit else 0
            message = self._message(self._began + limit if limit else 0)
            if message is None:
                late = f"a batch took longer than {self._limit + _GRACE:.0f} s" if self.is_alive() else _died(self._pid)
                return {"error": late}
            if "read" not in message:
                return message
            self.batches = message["read"]
            on_progress(self.batches)

    def longest_sample(self, batch: int) -> list[int] | None:
        """The index of the longest sample of a batch, and how many numbers it has; None: it is not known."""
        self._order({"sample": batch})
        answer = self._message(time.monotonic() + _GRACE)
        return (answer or {}).get("sample")

    def is_alive(self) -> bool:
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            return False

    def close(self) -> None:
        os.close(self._orders)
        self._answers.close()
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _order(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._orders, json.dumps(what).encode() + b"\n")

    def _message(self, until: float) -> dict[str, Any] | None:
        """None: none came until then, or none will."""
        while b"\n" not in self._buffer:
            left = max(until - time.monotonic(), 0) if until else None
            if not select.select([self._answers], [], [], left)[0]:
                return None
            data = self._answers.read(1 << 16)
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


def _died(pid: int) -> str:
    return "the process that read ahead was killed, maybe because the machine's memory ran out"


def fork_reader(loader: Any, iterate: Iterate, folder: str) -> Reader:
    """``iterate``: what begins an iteration of the loader. OSError if no process can be started."""
    order_end, orders = os.pipe()
    answers, answer_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 about threads, as every worker has it
        pid = os.fork()
    if pid == 0:
        os.close(orders)
        os.close(answers)
        _Forked(loader, iterate, folder, order_end, answer_end).run()
    os.close(order_end)
    os.close(answer_end)
    return Reader(pid, orders, answers)


class _Forked:
    """The forked process."""

    def __init__(self, loader: Any, iterate: Iterate, folder: str, orders: int, answers: int) -> None:
        self._loader, self._iterate = loader, iterate
        self._folder, self._orders, self._answers = folder, orders, answers
        self._spool = Spool(folder)
        self._shapes: list[Shape] = []
        self._ids: dict[tuple[tuple[str, int], ...], int] = {}
        self._batches = array.array("I")
        self._indices: list[Sequence[int]] = []
        self._told = 0.0

    def run(self) -> NoReturn:
        try:
            self._serve()
        finally:
            os._exit(0)

    def _serve(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        with os.fdopen(self._orders, "rb") as orders:
            for line in orders:
                order = json.loads(line)
                if "sample" in order:
                    self._tell({"sample": self._longest_sample(order["sample"])})
                else:
                    self._tell(self._read(order["seconds"], order["batches"]))

    def _tell(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    # ---- reading ----

    def _read(self, seconds: float, most: int) -> dict[str, Any]:
        began = time.monotonic()
        error = ""
        is_whole = False
        try:
            self._prepare()
            is_whole = self._read_batches(began + seconds if seconds else 0, most)
        except BaseException as raised:
            error = _describe(raised)
        return {
            "shapes": [shape._asdict() for shape in self._shapes],
            "batches": base64.b64encode(self._batches.tobytes()).decode(),
            "is_whole": is_whole,
            "seconds": time.monotonic() - began,
            "error": error,
            "not_stored": self._spool.why_not,
        }

    def _prepare(self) -> None:
        import torch

        torch.set_num_threads(1)  # the threads of the process that was forked are not here
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)  # what the dataset prints was not asked for twice
        os.dup2(null, 2)
        loader = self._loader
        object.__setattr__(loader, "pin_memory", False)
        object.__setattr__(loader, "_iterator", None)  # workers that persist are those of the script
        if getattr(loader, "batch_sampler", None) is not None:
            object.__setattr__(loader, "batch_sampler", _Noting(loader.batch_sampler, self._indices))
        elif getattr(loader, "sampler", None) is not None and hasattr(loader.dataset, "__getitem__"):
            object.__setattr__(loader, "sampler", _Noting(loader.sampler, self._indices))

    def _read_batches(self, until: float, most: int) -> bool:
        """Whether the loader has ended."""
        iterator = self._iterate(self._loader)
        while not most or len(self._batches) < most:
            if until and time.monotonic() > until:
                return False
            try:
                batch = next(iterator)
            except StopIteration:
                return True
            self._note(batch)
        return False

    def _note(self, batch: Any) -> None:
        shape = shape_of(batch)
        key = tuple(shape.features.items())
        number = self._ids.setdefault(key, len(self._ids))
        if number == len(self._shapes):
            self._shapes.append(shape)
            self._spool.put(number, batch)
        self._batches.append(number)
        now = time.monotonic()
        if now - self._told >= _TOLD_EVERY:
            self._told = now
            self._tell({"read": len(self._batches)})

    # ---- samples ----

    def _longest_sample(self, batch: int) -> list[int] | None:
        if batch >= len(self._indices):
            return None
        indices = self._indices[batch]
        try:
            lengths = [(_numbers_of(self._loader.dataset[index]), index) for index in _as_list(indices)]
        except Exception:  # a dataset may raise anything
            return None
        longest = max(lengths, key=lambda item: item[0], default=None)
        return [int(longest[1]), longest[0]] if longest and isinstance(longest[1], int) else None


def _describe(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    is_of_worker = isinstance(error, (ConnectionError, EOFError))  # or torch says it itself
    return f"a worker of the DataLoader exited unexpectedly ({what})" if is_of_worker else what


class _Noting:
    """A sampler that notes what it says."""

    def __init__(self, sampler: Any, notes: list[Any]) -> None:
        self._sampler, self._notes = sampler, notes

    def __iter__(self) -> Iterator[Any]:
        for item in self._sampler:
            self._notes.append(item)
            yield item

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _as_list(indices: Any) -> list[Any]:
    return [*indices] if isinstance(indices, (list, tuple)) else [indices]


def _numbers_of(sample: Any, depth: int = 0) -> int:
    """How many numbers a sample has, in tensors and in lists."""
    found = 0
    for leaf in leaves(sample):
        elements = 1
        for dim in leaf.dims:
            elements *= dim
        found += elements
    if found or depth > 3:
        return found
    if isinstance(sample, dict):
        return sum(_numbers_of(value, depth + 1) for value in sample.values())
    if isinstance(sample, (list, tuple)):
        is_flat = all(isinstance(value, (int, float)) for value in sample)
        return len(sample) if is_flat else sum(_numbers_of(value, depth + 1) for value in sample)
    return len(sample) if isinstance(sample, (str, bytes)) else 0
