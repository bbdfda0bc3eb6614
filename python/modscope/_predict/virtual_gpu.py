"""``virtual_gpu``: a part of a program on a virtual GPU, in code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from modscope._predict import device as _predict_device
from modscope._predict.result import Facts, Result, as_json, result_of
from modscope._predict.substitutes import Substitutes
from modscope._read.load import Capture, load
from modscope._read.step_time import steps_done
from modscope._record import capture_file, record
from modscope._torch import oom_report
from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.ranks import options as ranks_option
from modscope._virtual.ranks.network import RANKS_PER_NODE

if TYPE_CHECKING:
    from modscope._virtual.device.device import VirtualDevice

__all__ = ["virtual_gpu"]

_entered: list[virtual_gpu] = []


def _check_ranks(ranks: int | None, rank: int, per_node: int) -> tuple[int, int, int] | None:
    """The number of ranks, the program's rank and the ranks of a node; None: process groups have one rank."""
    if ranks is None:
        if rank != 0:
            raise ValueError(f"rank={rank} needs ranks=, how many there are, such as ranks=64")
        return None
    if ranks > ranks_option.MOST_RANKS:
        raise ValueError(ranks_option.too_many(ranks))
    if ranks < 1 or per_node < 1:
        raise ValueError(f"ranks={ranks}, ranks_per_node={per_node}: give 1 or more, such as ranks=64")
    if per_node > ranks_option.MOST_PER_NODE:
        raise ValueError(f"ranks_per_node={per_node}: torch knows at most {ranks_option.MOST_PER_NODE} GPUs of a node")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: of {ranks} ranks the first one is 0 and the last one {ranks - 1}")
    return ranks, rank, per_node


def _has_process_group() -> bool:
    import torch

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _refuse_process_group() -> None:
    if _has_process_group():
        raise RuntimeError(
            "a process group exists, which is of real ranks. Call torch.distributed.destroy_process_group() first."
        )


def _end_process_group() -> None:
    """A group of virtual ranks would be of no use after the virtual GPU."""
    import torch

    if _has_process_group():
        torch.distributed.destroy_process_group()


class virtual_gpu:
    """Run a part of a program on a GPU that is not there, and see how much memory it would need::

        with modscope.virtual_gpu("h100") as gpu:
            model = Model().cuda()
            train(model)
        gpu.fits, gpu.peak_reserved, gpu.peak_allocated, gpu.step_ms
        gpu.capture     # as modscope.load gives it: which module owned each byte

    ``gpu``: a name of ``modscope.gpus``, or its memory, as "24GiB" or in bytes. ``torch``: the version of torch whose
    rules are followed, by default the installed one. ``path``: keep the capture in this file, which must not exist
    unless ``overwrite``. ``ranks``: process groups have so many ranks, and the program is the one with the number
    ``rank``; without it they have one. ``ranks_per_node``: how many of them share a node. It must be entered before the
    process's first use of a real GPU, and not inside another one. What is on the virtual GPU has shapes and types, but
    no values: it is read as zeros."""

    def __init__(
        self,
        gpu: str | int | Gpu,
        *,
        torch: str | None = None,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        ranks: int | None = None,
        rank: int = 0,
        ranks_per_node: int = RANKS_PER_NODE,
    ) -> None:
        self.gpu = gpu if isinstance(gpu, Gpu) else find_gpu(str(gpu))
        self.path = None if path is None else os.fspath(path)
        self._overwrite = overwrite
        self._version = torch
        self._ranks = _check_ranks(ranks, rank, ranks_per_node)
        self._device: VirtualDevice | None = None
        self._recording: record.Recording | None = None
        self._substitutes = Substitutes()
        self._undo = contextlib.ExitStack()
        self._fd = -1
        self._is_stopped = False
        self._is_default = False
        """Whether torch's default device was a GPU before."""
        self._began = 0.0
        self._capture: Capture | None = None
        self._result: Result | None = None

    # ---- entering and leaving ----

    def __enter__(self) -> Self:
        if _entered:
            raise RuntimeError(
                "a virtual GPU is installed already: a process can have one at a time. Leave the other one first."
            )
        if self._recording is not None:
            raise RuntimeError("this virtual GPU was used already. Use another virtual_gpu(...).")
        import torch

        file = None if self.path is None else capture_file.prepare(self.path, self._overwrite)
        try:
            node = ranks_option.gpus_of_node(self._ranks[1], self._ranks[0], self._ranks[2]) if self._ranks else (1, 0)
            self._device = _predict_device.install(self.gpu, self._version, node=node)
            self._is_default = torch.get_default_device().type == "cuda"
            if self._ranks is not None:
                self._enter_ranks(self._device, *self._ranks)
            self._substitutes.install()
            self._fd = file.fd if file else os.memfd_create("modscope-virtual-gpu", os.MFD_CLOEXEC)
            program = getattr(sys.modules.get("__main__"), "__file__", None) or "python"
            version = self._version or str(torch.__version__)
            info = {**record.default_info(program, sys.argv[1:]), **_predict_device.info(self.gpu, version)}
            self._recording = record.Recording(self._fd, info, yields=False)
            self._recording.start(file.path if file else "", file.publish if file else None)
        except BaseException:
            if file:
                file.discard()
            self._recording = None
            self._remove()
            raise
        self._began = time.monotonic()
        _entered.append(self)
        return self

    def _enter_ranks(self, device: VirtualDevice, ranks: int, rank: int, per_node: int) -> None:
        """Process groups get these ranks, and the program the environment that torchrun gives a rank."""
        from modscope._predict.sharding import Sharding
        from modscope._virtual.ranks.collectives import Ranks

        _refuse_process_group()
        self._undo.enter_context(ranks_option.in_environment(rank, ranks, per_node))
        self._substitutes = Substitutes(Ranks(rank, ranks, per_node, [self.gpu], device.set_outside), Sharding())
        self._undo.callback(_end_process_group)

    def __exit__(self, kind: Any = None, error: BaseException | None = None, traceback: Any = None) -> None:
        if self not in _entered:
            return
        try:
            self.stop(error)
        finally:
            _entered.remove(self)
            self._remove()

    def stop(self, error: BaseException | None = None) -> None:
        """Count no more: the results are known from now on. The GPU stays until the end of the with statement, for
        what cleans up. ``error``: the exception that ended what was counted."""
        from modscope import _native

        recording = self._recording
        if recording is None or self not in _entered or self._is_stopped:
            return
        self._is_stopped = True
        how, end = "finished", {}
        if error is not None:
            oom_report.add_note(error)
            how, end = "exception", {"error": f"{type(error).__name__}: {oom_report.text_of(error)}"}
        end |= _predict_device.end_info(self._substitutes.ranks_facts(), self._device)
        lack_order = bool(_native.optimizers_lack_order())
        recording.stop(how, **end)
        self._read(how, end.get("error", ""), lack_order)

    def _read(self, how: str, error: str, lack_order: bool) -> None:
        path = self.path if self.path is not None else f"/proc/self/fd/{self._fd}"
        capture = self._capture = load(path)
        device = self._device.used() if self._device else 0
        facts: Facts = {
            "device": f"cuda:{device}",
            "seconds": time.monotonic() - self._began,
            "steps": steps_done(capture),
            "are_optimizer_steps": lack_order,
            "ended": how,
            "timed_out": None,
            "error": error,
            "status": "",
            "torch": capture.info.get("rules", ""),
            "fraction": self._device.memory.fraction(device) if self._device else 1.0,
            "bytes_without_rule": self._device.bytes_without_rule() if self._device else None,
            "retries": self._device.memory.stats(device)["num_alloc_retries"] if self._device else 0,
            "notes": [*self._substitutes.notes(), *(self._device.notes() if self._device else [])],
            "ranks": self._substitutes.ranks_facts(),
            "compiled": self._substitutes.compiled_facts(),
        }
        self._result = result_of(self.gpu, facts, capture, self.path or "")

    def _remove(self) -> None:
        import torch

        self._undo.close()
        self._substitutes.remove()
        if self._device is not None:
            if not self._is_default and torch.get_default_device().type == "cuda":
                torch.set_default_device(None)
            self._device.remove()
            self._device = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # ---- the result ----

    def _after(self, name: str, attribute: str = "") -> Any:
        if self._result is None:
            raise RuntimeError(
                f"{attribute or name} is known after the virtual GPU was left: read it after the with statement, or "
                "after stop()"
            )
        return self._result[name]

    @property
    def peak_reserved(self) -> int:
        """The most that the GPU would have to reserve, in bytes."""
        return int(self._after("reserved_peak", "peak_reserved"))

    @property
    def peak_allocated(self) -> int:
        """The most that tensors and workspaces took of it, in bytes."""
        return int(self._after("allocated_peak", "peak_allocated"))

    @property
    def fits(self) -> bool:
        """Whether the GPU has enough memory: no allocation failed, or the program went on after the last failure."""
        return bool(self._after("fits"))

    @property
    def verdict(self) -> str:
        """ "fits", "does not fit" or "too close to tell": ``result["why"]`` says then what is not sure."""
        return str(self._after("verdict"))

    @property
    def step_ms(self) -> float | None:
        """The time of a training step in milliseconds; None where it is not known."""
        value = self._after("step_ms")
        return None if value is None else float(value)

    @property
    def result(self) -> Result:
        """Everything that ``modscope predict --json`` writes."""
        self._after("gpu", "result")
        return as_json(self._result or {})

    @property
    def capture(self) -> Capture:
        """What happened to memory, as ``modscope.load`` gives it."""
        if self._capture is None:
            raise RuntimeError(
                "the capture is complete after the virtual GPU was left: read it after the with statement, or after "
                "stop()"
            )
        return self._capture

    def __repr__(self) -> str:
        if self._result is None:
            return f"<virtual_gpu {self.gpu.name}>"
        from modscope._read.text import size

        return f"<virtual_gpu {self.gpu.name}: reserves {size(self.peak_reserved)} at most, {self.verdict}>"
