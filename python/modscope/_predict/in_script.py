"""``modscope predict`` inside the script's process: install the virtual GPU before the script, and say at its end what
the real one would have had to reserve. _record/in_process.py runs it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modscope._predict.result import Facts
from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.ranks.options import gpus_of_node

if TYPE_CHECKING:
    from modscope._predict.epoch.look_ahead import LookAhead
    from modscope._predict.options import PredictOptions
    from modscope._predict.progress import Progress
    from modscope._predict.sharding import Sharding
    from modscope._predict.substitutes import Substitutes
    from modscope._read.load import Capture
    from modscope._virtual.device.device import VirtualDevice
    from modscope._virtual.ranks.collectives import Ranks

_POLL = 0.1  # seconds
_BEFORE_USE = 60.0  # seconds at least that a script has until it uses the GPU: imports and data may take long
_GRACE = 5.0  # seconds from SystemExit until the process of a script that has caught it is ended
LOG, FACTS, CAPTURE, STEPS = "log", "facts.json", "capture.msc", "steps"
"""The files of ``PredictOptions.part``: what was asked of the allocator, what the script did, its capture, and a byte
for each of its steps so far."""


class Prediction:
    """The prediction of one script on one virtual GPU."""

    def __init__(self, asked: PredictOptions) -> None:
        self.asked = asked
        self.gpu: Gpu = find_gpu(asked.gpus[0])
        self.timed_out = False
        self._began = time.monotonic()
        self._device: VirtualDevice | None = None
        self._substitutes: Substitutes | None = None
        self._ends: dict[str, list[float]] = {}
        self._version = ""
        self._first_use = 0.0
        self._steps = 0
        self._lack_order = False
        self._progress: Progress | None = None
        self._script_ended = False
        self._ending = threading.Lock()
        self._look_ahead: LookAhead | None = None

    # ---- the beginning ----

    def install(self) -> None:
        """Raises RuntimeError or ValueError, with a sentence, where there can be no virtual GPU."""
        import torch
        from modscope._predict import device
        from modscope._predict.substitutes import Substitutes
        from modscope._virtual.operators import fakes

        self._began = time.monotonic()
        self._version = self.asked.torch or str(torch.__version__)
        others = [find_gpu(name) for name in self.asked.gpus if name != self.gpu.name]
        self._device = device.install(
            self.gpu, self.asked.torch or None, bool(self.asked.part), self.asked.table, others, self._node()
        )
        fakes.set_selected(self.asked.selected)
        self._substitutes = Substitutes(
            self._ranks([self.gpu, *others]), self._sharding(), not self.asked.no_compile, self.asked.activation_budget
        )
        self._substitutes.install()

    def look_ahead(self, stop: Callable[[], None]) -> None:
        """Read the batches of the script's DataLoader ahead, if that is asked for; ``stop`` ends the script then."""
        if not self.asked.epoch:
            return
        from modscope._predict.epoch.look_ahead import LookAhead
        from modscope._predict.result import may_reserve_beside
        from modscope._virtual.device.environment import allocator_settings

        assert self._device is not None
        device = self._device

        def capacities() -> list[int]:
            facts = self.facts(0, "", {})
            return [may_reserve_beside(find_gpu(name), facts) for name in self.asked.gpus]

        allocator = {"version": self._version, "conf": allocator_settings() or None}
        asked = self.asked
        self._look_ahead = LookAhead(
            asked.part,
            asked.seconds,
            asked.epoch_batches,
            capacities,
            allocator,
            lambda: device.used() or 0,
            stop,
            asked.read_before,
        )
        self._look_ahead.install()

    def looks_ahead(self) -> bool:
        """Whether the script ends when the steps of an epoch have been predicted."""
        return self._look_ahead is not None and self._look_ahead.has_loader

    def _node(self) -> tuple[int, int]:
        """How many GPUs the script sees, and the index of its own."""
        if not self.asked.ranks:
            return 1, 0
        return gpus_of_node(self.asked.rank, self.asked.ranks, self.asked.ranks_per_node)

    def _ranks(self, gpus: list[Gpu]) -> Ranks | None:
        if not self.asked.ranks:
            return None
        from modscope._virtual.ranks.collectives import Ranks

        assert self._device is not None
        ranks = Ranks(self.asked.rank, self.asked.ranks, self.asked.ranks_per_node, gpus, self._device.set_outside)
        if self.asked.messages:
            from modscope._virtual.ranks.messages import Messages

            ranks.messages = Messages(self.asked.messages, self.asked.rank)
        return ranks

    def _sharding(self) -> Sharding | None:
        if not self.asked.ranks:
            return None
        from modscope._predict.sharding import Sharding

        return Sharding(self.asked.reshard, self.asked.shard_over)

    def end_info(self) -> dict[str, str]:
        if not self._substitutes:
            return {}
        from modscope._predict import device

        return device.end_info(self._substitutes.ranks_facts(), self._device)

    def info(self) -> dict[str, str]:
        from modscope._predict import device

        return device.info(self.gpu, self._version)

    def recording_began(self) -> None:
        if self.asked.part:
            from modscope import _native

            _native.virtual_log_begin()

    def watch_time(self, leave: Callable[[], None], progress: Progress | None) -> None:
        """When the script's time is up, raise SystemExit in the main thread; call ``leave`` if that does not end the
        script. Nothing of this happens after ``script_ended``: it would interrupt the end of the recording."""
        self._progress = progress
        if not self.asked.seconds and progress is None:
            return

        def watch() -> None:
            while not self._is_time_up():
                time.sleep(_POLL)
                with self._ending:
                    if self._script_ended:
                        return
                    if progress is not None:
                        progress.tick(lambda: self._steps)
            self.timed_out = True
            _raise_in_main_thread(SystemExit if self.has_used_gpu() else _StoppedEarly)
            time.sleep(_GRACE)
            if not self._script_ended:
                leave()

        threading.Thread(target=watch, name="modscope-seconds", daemon=True).start()

    def has_used_gpu(self) -> bool:
        return self._device is not None and self._device.is_used()

    def _is_time_up(self) -> bool:
        """``asked.seconds`` count from the first use of the GPU. What precedes it has ``seconds_before_use``."""
        if self.looks_ahead():  # which watches its own time
            return False
        now = time.monotonic()
        if not self._first_use and self.has_used_gpu():
            self._first_use = now
        if not self._first_use:
            return bool(self.asked.seconds) and now - self._began >= self.seconds_before_use()
        return bool(self.asked.seconds) and now - self._first_use >= self.asked.seconds

    def seconds_before_use(self) -> float:
        """How long a script may go on without using the GPU, if ``asked.seconds`` limits it."""
        return max(self.asked.seconds, _BEFORE_USE)

    def script_ended(self, by_itself: bool) -> None:
        """The script has ended, by itself or not, and the end of its recording begins."""
        with self._ending:
            self._script_ended = True
        if self._progress is not None:
            self._progress.done()
        if self._look_ahead is not None:
            self._look_ahead.script_ended(by_itself)

    def optimizer_step_ended(self) -> None:
        """Note the virtual time on each GPU whose time is wanted. Without an optimizer, a backward has ended."""
        for name in self.asked.gpus:
            seconds = self._device.seconds_on(find_gpu(name)) if self._device else None
            if seconds is not None:
                self._ends.setdefault(name, []).append(seconds)

    def step_ended(self) -> None:
        """Tell those who wait for steps."""
        from modscope import _native

        self._steps += 1
        if self._look_ahead is not None:
            self._look_ahead.step_ended()
        self._lack_order = bool(_native.optimizers_lack_order())
        if self.asked.part:
            with contextlib.suppress(OSError), open(os.path.join(self.asked.part, STEPS), "ab") as file:
                file.write(b".")

    # ---- the end ----

    def facts(self, steps: int, how: str, end: dict[str, str]) -> Facts:
        """What is known without the capture."""
        notes = self._substitutes.notes() if self._substitutes else []
        device = self._device.used() if self._device else 0
        return {
            "device": f"cuda:{device}",
            "steps": steps,
            "are_optimizer_steps": self._lack_order,
            "seconds": round(time.monotonic() - self._began, 3),
            "timed_out": self.asked.seconds if self.timed_out else None,
            "ended": how,
            "error": end.get("error", ""),
            "status": end.get("status", ""),
            "torch": self._version,
            "fraction": self._device.memory.fraction(device) if self._device else 1.0,
            "bytes_without_rule": self._device.bytes_without_rule() if self._device else None,
            "retries": self._device.memory.stats(device)["num_alloc_retries"] if self._device else 0,
            "notes": [*notes, *(self._device.notes() if self._device else [])],
            "ranks": self._substitutes.ranks_facts() if self._substitutes else None,
            "compiled": self._substitutes.compiled_facts() if self._substitutes else None,
            "step_ends": self._ends,
        }

    def write_part(self, facts: Facts, capture: str) -> None:
        """Write the part of this process; of several processes, the one that asked most of the allocator counts."""
        from modscope import _native

        device = int(facts["device"].rpartition(":")[2])
        log, path = _native.virtual_log_end(device), os.path.join(self.asked.part, LOG)
        if os.path.exists(path) and os.path.getsize(path) >= len(log):
            return
        with open(path, "wb") as file:
            file.write(log)
        with open(os.path.join(self.asked.part, FACTS), "w", encoding="utf-8") as text:
            json.dump({**facts, "capture": capture}, text)

    def result(self, facts: Facts, capture: Capture | None, path: str) -> dict[str, Any]:
        from modscope._predict.result import result_of

        return result_of(self.gpu, facts, capture, path)


class _StoppedEarly(SystemExit):
    """Ends a script whose time was up before there was anything to predict."""

    def __init__(self) -> None:
        super().__init__(1)


def _raise_in_main_thread(kind: type[BaseException]) -> None:
    import ctypes

    thread = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(kind))
