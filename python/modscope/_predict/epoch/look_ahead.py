"""``predict --epoch`` inside the script's process. The script's own loop predicts the steps: its DataLoader gives it
batches of the shapes that are wanted, after another process has read the shapes of the whole epoch."""

from __future__ import annotations

import array
import contextlib
import functools
import json
import os
import sys
import sysconfig
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from modscope._predict.epoch.batch_shapes import Features, Shape, shape_of
from modscope._predict.epoch.plain_loop import PlainLoop
from modscope._predict.epoch.reader import Reader, fork_reader
from modscope._predict.epoch.spool import Spool
from modscope._predict.epoch.steps_of_shapes import (
    EPOCH,
    MOST_SAMPLES,
    ReadAhead,
    Sampled,
    ShapedSteps,
    first_choice,
    next_choice,
    schedule,
)

PROGRESS = "epoch.progress"
"""A file of ``PredictOptions.part``: how far reading and predicting are."""
_WARM_STEPS = 2
_FILLERS = 2
"""Steps after the last one that counts: it may end in the next one."""
_MOST_READERS = 16


class _Loader:
    """A DataLoader that the script iterates."""

    def __init__(self, loader: Any, place: str) -> None:
        self.loader, self.place = loader, place
        self.reader: Reader | None = None
        self.marks: list[int] = []
        """Where the log was when each batch was asked for."""
        self.shapes: list[Shape] = []
        self.steps: list[int] = []
        """How many batches were asked for when each step ended."""

    def length(self) -> int | None:
        try:
            return len(self.loader)
        except Exception:  # of an iterable dataset, which may raise anything
            return None


class LookAhead:
    def __init__(
        self,
        part: str,
        seconds: float,
        batches: int,
        capacities: Callable[[], list[int]],
        allocator: dict[str, Any],
        device: Callable[[], int],
        stop: Callable[[], None],
        before: str = "",
    ) -> None:
        """``seconds``: that reading may take, and predicting again; ``batches``: that are read at most, 0 for all of
        them; ``capacities``: that matter; ``allocator``: what its replays are told; ``stop``: ends the script;
        ``before``: PredictOptions.read_before."""
        self._part, self._seconds, self._most = part, seconds, batches
        self._capacities, self._allocator, self._device, self._stop = capacities, allocator, device, stop
        self._pid = os.getpid()
        self._before: dict[str, Any] | None = None
        if before:
            with open(os.path.join(before, EPOCH), encoding="utf-8") as file:
                self._before = json.load(file)
        self._undo = contextlib.ExitStack()
        self._loaders: dict[int, _Loader] = {}
        self._latest: _Loader | None = None
        self._training: _Loader | None = None
        self._read: ReadAhead | None = None
        self._spool: Spool | None = None
        self._queue: list[int] = []
        self._fed: list[int] = []
        self._rounds = self._sampled = 0
        self._sampling_began = 0.0
        self._shapes: list[Shape] = []
        self._notes: list[str] = []
        self._iterated: list[str] = []
        self._plain = PlainLoop(self._log_count)
        self._leave_plain: Callable[[], None] | None = None

    @property
    def has_loader(self) -> bool:
        return self._training is not None

    def install(self) -> None:
        from torch.utils.data import dataloader

        module: Any = dataloader
        DataLoader: Any = module.DataLoader

        iterate = DataLoader.__iter__
        advance = module._BaseDataLoaderIter.__next__
        look = self
        watched_by: weakref.WeakKeyDictionary[Any, _Loader] = weakref.WeakKeyDictionary()

        @functools.wraps(iterate)
        def __iter__(loader: Any) -> Iterator[Any]:
            watched = look._begin(loader, iterate) if look._is_here() else None
            iterator = iterate(loader)
            if watched is not None:
                watched_by[iterator] = watched
            return iterator  # type: ignore[no-any-return]

        @functools.wraps(advance)
        def __next__(iterator: Any) -> Any:
            watched = watched_by.get(iterator)
            if watched is None or not look._is_here():
                return advance(iterator)
            return look._next(watched, lambda: advance(iterator))

        DataLoader.__iter__ = __iter__
        module._BaseDataLoaderIter.__next__ = __next__
        self._leave_plain = self._plain.install()
        self._undo.callback(self._forget_plain)
        self._undo.callback(setattr, DataLoader, "__iter__", iterate)
        self._undo.callback(setattr, module._BaseDataLoaderIter, "__next__", advance)

    def script_ended(self, by_itself: bool) -> None:
        """Without a DataLoader, what is known are the script's own steps. ``by_itself``: it took no more of them."""
        if self._leave_plain is not None and self._plain.has_steps:
            self._write(self._plain_document(by_itself))
        self.remove()

    def _forget_plain(self) -> None:
        """The script iterates a DataLoader."""
        if self._leave_plain is not None:
            self._leave_plain()
            self._leave_plain = None

    def remove(self) -> None:
        self._undo.close()
        for watched in self._loaders.values():
            if watched.reader is not None:
                watched.reader.close()
                watched.reader = None

    def _is_here(self) -> bool:
        """Not in a worker, nor in the process that reads ahead."""
        return os.getpid() == self._pid

    # ---- until the training loader is known ----

    def _begin(self, loader: Any, iterate: Any) -> _Loader:
        watched = self._loaders.get(id(loader))
        if watched is None:
            watched = self._loaders[id(loader)] = _Loader(loader, _place())
            if self._training is None and self._before is None and len(self._loaders) <= _MOST_READERS:
                folder = os.path.join(self._part, f"batches{len(self._loaders)}")
                os.makedirs(folder, exist_ok=True)
                try:
                    watched.reader = fork_reader(loader, iterate, folder)
                except OSError as error:
                    self._notes.append(f"No process could be started to read ahead: {error.strerror}.")
                self._spool = self._spool or Spool(folder)
        return watched

    def step_ended(self) -> None:
        """A training step has ended. The loader that gave batches for two steps is the one of training."""
        if not self._is_here():
            return
        if self._leave_plain is not None:
            self._plain.step_ended()
        latest, self._latest = self._latest, None
        if latest is None:
            return
        latest.steps.append(len(latest.marks))
        is_known = latest.reader is not None or self._before is not None
        if self._training is None and is_known and len(latest.steps) == _WARM_STEPS:
            self._choose(latest)

    def _choose(self, training: _Loader) -> None:
        self._training = training
        self._forget_plain()
        if self._before is not None:
            self._spool = Spool(self._before["folder"])
            return
        assert training.reader is not None
        number = [*self._loaders.values()].index(training) + 1
        self._spool = Spool(os.path.join(self._part, f"batches{number}"))
        for other in self._loaders.values():
            if other is not training and other.reader is not None:
                self._iterated.append(other.place)
                other.reader.close()
                other.reader = None
        training.reader.begin(self._seconds, self._most)

    # ---- batches ----

    def _next(self, watched: _Loader, advance: Callable[[], Any]) -> Any:
        watched.marks.append(self._log_count())
        if watched is self._training and (self._read is not None or len(watched.steps) >= _WARM_STEPS):
            return self._wanted(watched)
        try:
            batch = advance()
        except StopIteration:
            watched.marks.pop()
            raise
        watched.shapes.append(shape_of(batch))
        self._latest = watched
        return batch

    def _wanted(self, watched: _Loader) -> Any:
        """The next batch whose step is to be predicted. The script ends if there is none."""
        assert self._spool is not None
        if self._read is None:
            self._receive(watched)
        while not self._queue:
            if not self._refine(watched):
                self._finish(watched)
        shape = self._queue.pop(0)
        self._fed.append(shape)
        return self._spool.get(shape)

    def _receive(self, watched: _Loader) -> None:
        """Wait for what is read, and choose what to predict first."""
        if self._before is not None:
            self._read_again(watched, self._before)
            return
        assert watched.reader is not None
        length = watched.length()

        def tell(count: int) -> None:
            of = f" of {length:,}" if length is not None else ""
            self._say(f"reading the DataLoader at {watched.place}: {count:,}{of} batches")

        self._read = ReadAhead.of_json(watched.reader.result(tell))
        self._shapes = [*self._read.shapes]
        self._first = [self._number_of(shape) for shape in watched.shapes]
        self._sampling_began = time.monotonic()
        table = self._steps_table()
        usable = self._usable()
        self._queue = self._in_each_kind(first_choice(table, usable), self._period(watched)) if usable else []
        self._sampled = len(self._queue)
        self._queue += self._queue[-1:] * _FILLERS

    def _read_again(self, watched: _Loader, before: dict[str, Any]) -> None:
        """Predict the shapes that the earlier prediction predicted, with the batches that it stored."""
        self._read = ReadAhead.of_json(before["read"])
        self._shapes = [*self._read.shapes]
        self._first = [self._number_of(shape) for shape in watched.shapes]
        self._queue = before["sampled"]["shapes"][before["sampled"]["first"] :]

    def _in_each_kind(self, shapes: list[int], period: int) -> list[int]:
        """Each shape several times, where several batches make a step: each time in another place of the step."""
        again = [*shapes, *shapes[: len(shapes) % period == 0]]
        return again * min(period, 2) if period > 1 else shapes

    def _steps_table(self) -> Any:
        from modscope._predict.epoch.batch_shapes import table_of

        return table_of([shape.features for shape in self._shapes])

    def _number_of(self, shape: Shape) -> int:
        """The number of the shape of a batch that training got."""
        numbers: dict[tuple[tuple[str, int], ...], int] = {
            tuple(known.features.items()): number for number, known in enumerate(self._shapes)
        }
        key: Features = shape.features
        number = numbers.get(tuple(key.items()))
        if number is None:
            number = len(self._shapes)
            self._shapes.append(shape)
        return number

    def _usable(self) -> list[int]:
        assert self._spool is not None and self._read is not None
        return [number for number in range(len(self._read.shapes)) if self._spool.has(number)]

    def _period(self, watched: _Loader) -> int:
        """How many batches there are for an optimizer step."""
        period = watched.steps[-1] - watched.steps[-2] if len(watched.steps) > 1 else 1
        return period if 1 <= period <= 64 else 1

    def _refine(self, watched: _Loader) -> bool:
        """Choose what to predict next. False: nothing more is needed, or there is no time for it."""
        assert self._read is not None
        if self._before is not None:
            return False
        is_late = bool(self._seconds) and time.monotonic() - self._sampling_began > self._seconds
        if not self._fed or is_late or self._sampled >= MOST_SAMPLES * self._period(watched):
            return False
        self._say("replaying the epoch")
        steps = ShapedSteps(self._log(), self._steps(watched), self._shapes)
        chosen = next_choice(steps, self._read.batches, set(self._usable()), self._capacities(), {**self._allocator})
        position = len(self._first) + len(self._fed) + steps.facts["lag"]
        kinds = steps.sampled.kind
        self._queue = schedule(chosen, lambda at: kinds(position + at), self._fed)
        self._sampled += len(self._queue)
        self._queue += self._queue[-1:] * (1 + steps.facts["lag"])
        return bool(chosen)

    def _log_count(self) -> int:
        from modscope import _native

        return _native.virtual_log_count(self._device())

    def _log(self) -> bytes:
        from modscope import _native

        return _native.virtual_log_read(self._device())

    def _steps(self, watched: _Loader) -> Sampled:
        return Sampled([*watched.marks], [*self._first, *self._fed], len(self._first), self._period(watched))

    # ---- the end ----

    def _finish(self, watched: _Loader) -> None:
        assert self._read is not None
        self._say("")
        sampled = self._steps(watched)
        document = {
            "place": watched.place,
            "length": watched.length(),
            "other_loaders": self._iterated,
            "notes": [*self._notes, *self._about(watched)],
            "read": self._read._replace(shapes=self._shapes).as_json(),
            "sampled": sampled._asdict(),
            "longest": self._longest_samples(watched),
            "folder": self._spool.folder if self._spool else "",
        }
        self._write(document)
        self.remove()
        self._stop()

    def _plain_document(self, is_whole: bool) -> dict[str, Any]:
        shapes, steps = self._plain.as_read()
        read = ReadAhead(shapes, array.array("I", steps), is_whole, 0.0, "", "")
        return {
            "place": "",
            "length": len(steps) if is_whole else None,
            "other_loaders": [],
            "notes": self._notes,
            "read": read.as_json(),
            "sampled": Sampled(self._plain.marks, steps, _WARM_STEPS, 1)._asdict(),
            "longest": {},
            "folder": "",
        }

    def _write(self, document: dict[str, Any]) -> None:
        path = os.path.join(self._part, EPOCH)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(f"{path}.new", path)

    def _about(self, watched: _Loader) -> list[str]:
        """What training got should be what was read ahead."""
        assert self._read is not None
        got = self._first
        read = [*self._read.batches[: len(got)]]
        if not read or got[: len(read)] == read:
            return []
        return [
            "The script's first batches have other shapes than those that were read ahead: the loader's order is not "
            "the same twice. Set a seed for an exact answer."
        ]

    def _longest_samples(self, watched: _Loader) -> dict[str, list[int]]:
        """By batch, for the batches of which an answer may speak."""
        if self._before is not None:
            longest: dict[str, list[int]] = self._before["longest"]
            return longest
        assert self._read is not None and watched.reader is not None
        if not self._read.batches or not self._fed:
            return {}
        steps = ShapedSteps(self._log(), self._steps(watched), self._shapes)
        batches = steps.batches(self._read.batches)
        largest = max(range(len(batches)), key=lambda batch: steps.table.volume(batches[batch]))
        wanted = {largest}
        for capacity in self._capacities():
            failed = steps.replay(batches, capacity=capacity, first_only=True, **self._allocator)["first_failure"]
            if failed is not None:
                wanted.add(steps.computed(failed))
        found = {str(batch): watched.reader.longest_sample(batch) for batch in sorted(wanted)}
        return {batch: sample for batch, sample in found.items() if sample}

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError), open(os.path.join(self._part, PROGRESS), "w", encoding="utf-8") as file:
            file.write(what)


def _place() -> str:
    """Where the script iterates a loader: the innermost line that is not a library's."""
    libraries = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    frame: FrameType | None = sys._getframe()
    outermost = ""
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if os.path.isfile(file):
            outermost = f"{os.path.basename(file)}:{frame.f_lineno}"
            if not file.startswith(libraries) and not file.startswith(own) and "site-packages" not in file:
                return outermost
        frame = frame.f_back
    return outermost or "?"
