"""``modscope predict`` inside the script's process: install the virtual GPU before the script, and say at its end what the
real one would have had to reserve. _run_recording.py runs it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.network import RANKS_PER_NODE

if TYPE_CHECKING:
    from modscope._load import Capture
    from modscope._predict_sharding import Sharding
    from modscope._predict_substitutes import Substitutes
    from modscope._virtual.collectives import Ranks
    from modscope._virtual.device import VirtualDevice

_GRACE = 5.0  # seconds from SystemExit until the process of a script that has caught it is ended
LOG, FACTS, CAPTURE, STEPS = "log", "facts.json", "capture.msc", "steps"
"""The files of ``Asked.part``: what was asked of the allocator, what the script did, its capture, and a byte for each of its
steps so far."""


class Asked(NamedTuple):
    """What ``modscope predict`` was asked, for the script's process."""

    gpu: str
    torch: str = ""
    """The version of torch whose rules are followed; "": the installed one."""
    seconds: float = 0.0
    """The script is ended after so long; 0: never."""
    table: str = ""
    """A file of measurements; "": none."""
    json: str = ""
    """Where the result is written; "": nowhere."""
    part: str = ""
    """A folder: the script runs with unlimited memory, nothing is printed, and LOG and FACTS are written there, to be
    replayed on other GPUs."""
    also: list[str] = []
    """The GPUs of the part, whose times are wanted."""
    selected: float = 0.5
    """Of a mask with unknown values, this fraction of the elements is selected."""
    real: bool = False
    """Run on the real GPU instead (_predict_check.py)."""
    ranks: int = 0
    """The size of the world of process groups; 0: they have one rank, whatever the script asks for."""
    rank: int = 0
    """Which of them the script is."""
    per_node: int = RANKS_PER_NODE
    mail: str = ""
    """A folder in which ranks that are predicted at the same time tell each other things; "": this one is predicted alone."""
    reshard: str = ""
    """yes or no: what fully_shard gets for reshard_after_forward; "": what the script passes."""
    shard_over: int = 0
    """How many ranks hold one copy of what fully_shard shards; 0: as the script's mesh says."""


class Prediction:
    """One script on one virtual GPU."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.gpu: Gpu = find_gpu(asked.gpu)
        self.timed_out = False
        self._began = time.monotonic()
        self._device: VirtualDevice | None = None
        self._substitutes: Substitutes | None = None
        self._times: dict[str, list[float]] = {}
        self._version = ""
        self._script_ended = False

    # ---- the beginning ----

    def install(self) -> None:
        """Raises RuntimeError or ValueError, with a sentence, where there can be no virtual GPU."""
        import torch

        from modscope import _predict_device
        from modscope._predict_substitutes import Substitutes
        from modscope._virtual import values

        self._began = time.monotonic()
        self._version = self.asked.torch or str(torch.__version__)
        others = [find_gpu(name) for name in self.asked.also if name != self.gpu.name]
        self._device = _predict_device.install(
            self.gpu, self.asked.torch or None, bool(self.asked.part), self.asked.table, others
        )
        values.set_selected(self.asked.selected)
        self._substitutes = Substitutes(self._ranks([self.gpu, *others]), self._sharding())
        self._substitutes.install()

    def _ranks(self, cards: list[Gpu]) -> Ranks | None:
        if not self.asked.ranks:
            return None
        from modscope._virtual.collectives import Ranks

        assert self._device is not None
        ranks = Ranks(self.asked.rank, self.asked.ranks, self.asked.per_node, cards, self._device.set_outside)
        if self.asked.mail:
            from modscope._virtual.mail import Mail

            ranks.mail = Mail(self.asked.mail, self.asked.rank)
        return ranks

    def _sharding(self) -> Sharding | None:
        if not self.asked.ranks:
            return None
        from modscope._predict_sharding import Sharding

        return Sharding(self.asked.reshard, self.asked.shard_over)

    def end_info(self) -> dict[str, str]:
        """What the capture says at its end: what NCCL would take of the GPU."""
        ranks = self._substitutes.ranks_facts() if self._substitutes else None
        return {"communicator_bytes": str(ranks["communicator_bytes"])} if ranks else {}

    def info(self) -> dict[str, str]:
        """What the capture says of itself. Its local rank is that of a real job, where the script sees 0 (_ranks.environment)."""
        from modscope import _predict_device

        of_rank = {"local_rank": str(self.asked.rank % self.asked.per_node)} if self.asked.ranks > 1 else {}
        return {**_predict_device.info(self.gpu, self._version), **of_rank}

    def recording_began(self) -> None:
        if self.asked.part:
            from modscope import _native

            _native.virtual_log_begin()

    def end_after_seconds(self, leave: Callable[[], None]) -> None:
        """After ``asked.seconds`` raise SystemExit in the main thread; call ``leave`` if that does not end the script. Nothing of
        this happens after ``script_ended``: it would interrupt the end of the recording."""
        if not self.asked.seconds:
            return

        def wait() -> None:
            time.sleep(self.asked.seconds)
            if not self._script_ended:
                self.timed_out = True
                _raise_in_main_thread(SystemExit)
                time.sleep(_GRACE)
            if not self._script_ended:
                leave()

        threading.Thread(target=wait, name="modscope-seconds", daemon=True).start()

    def script_ended(self) -> None:
        """The script has ended, and the end of its recording begins."""
        self._script_ended = True

    def step_ended(self) -> None:
        """Note the virtual time on each GPU whose time is wanted, and tell the process that waits for a part."""
        if self.asked.part:
            with contextlib.suppress(OSError), open(os.path.join(self.asked.part, STEPS), "ab") as file:
                file.write(b".")
        for name in self.asked.also or [self.gpu.name]:
            seconds = self._device.seconds_on(find_gpu(name)) if self._device else None
            if seconds is not None:
                self._times.setdefault(name, []).append(seconds)

    # ---- the end ----

    def facts(self, steps: int, how: str, end: dict[str, str]) -> dict[str, Any]:
        """What is known without the capture."""
        notes = self._substitutes.notes() if self._substitutes else []
        return {
            "steps": steps,
            "seconds": round(time.monotonic() - self._began, 3),
            "timed_out": self.asked.seconds if self.timed_out else None,
            "ended": how,
            "error": end.get("error", ""),
            "status": end.get("status", ""),
            "torch": self._version,
            "fraction": self._device.memory.fraction() if self._device else 1.0,
            "bytes_without_rule": self._device.bytes_without_rule() if self._device else None,
            "notes": notes,
            "ranks": self._substitutes.ranks_facts() if self._substitutes else None,
            "step_times": {name: _step_ms(times) for name, times in self._times.items()},
        }

    def write_part(self, facts: dict[str, Any], capture: str) -> None:
        """Of several processes, the one that asked most of the allocator counts."""
        from modscope import _native

        log, path = _native.virtual_log_end(), os.path.join(self.asked.part, LOG)
        if os.path.exists(path) and os.path.getsize(path) >= len(log):
            return
        with open(path, "wb") as file:
            file.write(log)
        with open(os.path.join(self.asked.part, FACTS), "w", encoding="utf-8") as text:
            json.dump({**facts, "capture": capture}, text)

    def result(self, facts: dict[str, Any], capture: Capture | None, path: str) -> dict[str, Any]:
        """The result, as --json has it."""
        from modscope._predict_result import result_of

        times = facts.pop("step_times")
        return result_of(self.gpu, facts, capture, path, times.get(self.gpu.name))


def _step_ms(times: list[float]) -> float | None:
    """The time of a step, from the virtual times at which steps ended: the median, without the first step."""
    import statistics

    steps = [1e3 * (after - before) for before, after in zip(times, times[1:])]
    return statistics.median(steps) if steps else None


def _raise_in_main_thread(kind: type[BaseException]) -> None:
    import ctypes

    thread = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(kind))
