"""The virtual device's time: what launching an operator costs the host, and how long the device then runs it.

The host launches operators one after another and does not wait for them. The device runs each when it is launched and
the one before it has ended. The host waits where a script reads a value or synchronizes. The clocks themselves are in C
(virtual_clock.c); a capture that begins while the device is installed shows when everything that was launched so far
has ended. What the script does beside operators of the device takes no time: its Python code, data loading, operators
on CPU tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from modscope import _native
from modscope._virtual.gpus import GPUS, Gpu
from modscope._virtual.operators import operators
from modscope._virtual.time.roofline import Roofline, recurrent_steps

__all__ = [
    "Seconds",
    "Times",
    "Work",
    "begin_capture",
    "compiled",
    "delay",
    "end_capture",
    "installed",
    "is_compiled",
    "kernel_seconds",
    "launch",
    "now",
    "replay",
    "run_kernel",
    "timed",
    "wait",
]

HOST = 46e-6
"""Seconds that the host needs to launch an operator that Python calls, with autograd and the Python code around it. It
was measured on the server of one H200, with training jobs whose device waits for the host, and not on other hosts."""
VIEW, ALLOCATION, COPY, CONVOLUTION = 0.3, 0.1, 0.6, 3.0
"""Seconds that views, new tensors, copies and convolutions need, as multiples of HOST."""
EACH_TENSOR, EACH_STEP = 0.04, 0.5
"""What is added for each tensor of a list, and for each time step and layer of a recurrent network, as multiples of
HOST."""
BACKWARD = {"view": 0.15, "allocation": 0.05, "copy": 0.3, "operator": 0.5, "convolution": 4.0}
"""Seconds that an operator needs that autograd calls in C++, as multiples of HOST. The backward of a convolution
launches two operators."""
READ = 8e-6
"""Seconds until a value that the device has computed is on the host, beside the transfer."""
OF_LINK = 0.8
"""The fraction of the link's rate that a copy between host and device reaches from pinned memory."""
PAGEABLE = 0.25
"""The fraction of the link's rate that a copy from memory reaches that is not pinned."""

COMPILED = 0.2
"""Seconds that the host needs to launch a kernel or an operator from the code that Inductor generates, as a multiple of
HOST: there is no autograd and little Python around it. It was not measured."""

GRAPH = 0.4
"""Seconds that the host needs to launch a CUDA graph, as a multiple of HOST. It was not measured."""

_graph_task = torch._C._current_graph_task_id


class Seconds(float):
    """How long the device runs an operator; with it, what launching costs the host."""

    __slots__ = ("also", "backward", "forward")
    forward: float
    """Called by Python."""
    backward: float
    """Called by autograd."""
    also: tuple[float, ...]
    """How long the other GPUs of ``Times`` run it; empty: as long as this one."""


def _launched(seconds: float, forward: float, backward: float) -> Seconds:
    launched = Seconds(seconds)
    launched.forward, launched.backward, launched.also = forward * HOST, backward * HOST, ()
    return launched


_VIEW = _launched(0.0, VIEW, BACKWARD["view"])
_ALLOCATION = _launched(0.0, ALLOCATION, BACKWARD["allocation"])
_LAUNCH = _launched(0.0, 1.0, BACKWARD["operator"])


def _is_backward() -> bool:
    """Whether autograd calls operators. What is computed again by a checkpoint is called by Python."""
    return _graph_task() != -1 and not torch.is_grad_enabled()


class _Clocks:
    """The two clocks of a GPU whose time is wanted beside that of the installed one, as in virtual_clock.c."""

    def __init__(self) -> None:
        self.host = self.device = 0.0

    def run(self, launch: float, seconds: float) -> None:
        self.host += launch
        if seconds > 0:
            self.device = max(self.device, self.host) + seconds

    def wait(self) -> None:
        self.host = max(self.host, self.device)


class Times:
    """Times of operators on one GPU, and beside it on others."""

    def __init__(self, gpu: Gpu, also: Sequence[Gpu] = ()) -> None:
        self.gpu = gpu
        self._also = [Times(other) for other in also]
        self.clocks = [_Clocks() for _ in also]
        speed = gpu.speed or GPUS["h100"].speed
        assert speed is not None
        self._roofline = Roofline(gpu, speed)
        self._link = speed.link * 1e9 * OF_LINK

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any, device: float | None = None) -> Seconds:
        """The times of an operator. ``device``: how long the device runs, where that was measured."""
        launched = self._launched(op, args, kwargs, device or self._roofline.seconds(op, args, kwargs, specs))
        if self._also and launched:
            launched.also = tuple([float(other.seconds(op, args, kwargs, specs)) for other in self._also])
        return launched

    def _launched(self, op: Any, args: Any, kwargs: Any, device: float) -> Seconds:
        if not device:
            return _VIEW
        name = str(op._schema.name).partition("::")[2]
        if "convolution" in name:
            return _launched(device, CONVOLUTION, BACKWARD["convolution"])
        more = 0.0
        if name.startswith(("_foreach_", "_fused_", "_amp_foreach")):
            more = EACH_TENSOR * max((len(a) for a in args if isinstance(a, (list, tuple))), default=0)
        elif name.startswith("_cudnn_rnn"):
            more = EACH_STEP * recurrent_steps(op, args, kwargs) * (2 if name.endswith("backward") else 1)
        return _launched(device, 1 + more, BACKWARD["operator"] + more)

    def kernel_seconds(self, bytes: float, operations: float, dtype: torch.dtype) -> Seconds:
        """The times of a kernel that moves so many bytes and computes so many operations."""
        launched = _launched(self._roofline.kernel_seconds(bytes, operations, dtype), COMPILED, COMPILED)
        if self._also:
            launched.also = tuple([float(other.kernel_seconds(bytes, operations, dtype)) for other in self._also])
        return launched

    def copy_seconds(self, target: torch.Tensor, source: torch.Tensor) -> Seconds:
        """The times of a copy inside the device, or between it and the host."""
        if target.device.type == source.device.type:
            device = self._roofline.seconds(torch.ops.aten.copy_.default, (target, source), {}, None)
            return _launched(device, COPY, BACKWARD["copy"])
        bytes = target.nbytes
        of_link = PAGEABLE if not (target if source.device.type != "cpu" else source).is_pinned() else 1.0
        return _launched(READ / 4 + bytes / (self._link * of_link), 1.0, BACKWARD["operator"])

    def advance(self, seconds: float) -> None:
        """An operator that takes so long was launched. While a CUDA graph is captured the device does not run it."""
        also: tuple[float, ...] = ()
        if isinstance(seconds, Seconds):
            also = seconds.also
            launch = COMPILED * HOST if _in_compiled and seconds else seconds.forward
            if _is_backward():
                launch = min(launch, seconds.backward)
        else:
            launch = HOST * (BACKWARD["operator"] if _is_backward() else 1.0)
        if _captured:
            _captured[-1].add(seconds, also, len(self.clocks))
            seconds, also = 0.0, ()
        self.run(launch, seconds, also)

    def run(self, launch: float, seconds: float, also: Sequence[float] = ()) -> None:
        """The host launches something that the device then runs."""
        _native.virtual_clock_run(launch, seconds)
        for i, clocks in enumerate(self.clocks):
            clocks.run(launch, also[i] if also else seconds)


# ---- CUDA graphs ----


class Work:
    """How long the device runs what was captured in a graph."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.also: list[float] = []
        """On the other GPUs."""

    def add(self, seconds: float, also: Sequence[float], others: int) -> None:
        self.seconds += seconds
        self.also = self.also or [0.0] * others
        for i in range(others):
            self.also[i] += also[i] if also else seconds


_captured: list[Work] = []


def begin_capture() -> Work:
    _captured.append(Work())
    return _captured[-1]


def end_capture() -> None:
    _captured.pop()


def replay(work: Work) -> None:
    """The host launches a graph."""
    if isinstance(operators.costs, TimedRules):
        operators.costs.times.run(GRAPH * HOST, work.seconds, work.also)


class TimedRules(operators.OperatorCosts):
    """Rules with times. If an operator was measured, its measured time is used; else it is computed."""

    def __init__(self, rules: operators.OperatorCosts, times: Times) -> None:
        self._rules = rules
        self.times = times
        self.advance = times.advance  # type: ignore[method-assign]  # called for every operator

    def events(self, op: Any, args: Any, kwargs: Any, specs: Any) -> operators.Workspace:
        return self._rules.events(op, args, kwargs, specs)

    def order(self, op: Any) -> tuple[int, ...] | None:
        return self._rules.order(op)

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        return self.times.seconds(op, args, kwargs, specs, self._rules.seconds(op, args, kwargs, specs) or None)


_VIEWS = ("as_strided", "view", "_reshape_alias", "unfold")
_ALLOCATIONS = ("empty.memory_format", "empty_strided", "resize_")
_READ_BY_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "equal")
_COPIES = {"copy_": (0, 1), "_copy_from": (1, 0)}
"""Positions of what is written and what is read."""


def timed(name: str, kernel: Any) -> Callable[..., Any]:
    """A kernel that does not pass through operators.run, with its time."""
    if name in _VIEWS or name in _ALLOCATIONS:
        return _after(kernel, _VIEW if name in _VIEWS else _ALLOCATION)
    if name in _COPIES:
        return _copying(kernel, *_COPIES[name])
    if name in _READ_BY_HOST:
        return _reading(kernel)
    return kernel  # type: ignore[no-any-return]


def _after(kernel: Callable[..., Any], seconds: Seconds) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        operators.costs.advance(seconds)
        return result

    return run


def _copying(kernel: Callable[..., Any], target: int, source: int) -> Callable[..., Any]:
    remembered: dict[Any, Seconds] = {}

    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        rules = operators.costs
        if isinstance(rules, TimedRules):
            pair = (
                args[target],
                args[source] if isinstance(args[source], torch.Tensor) else torch.tensor(args[source]),
            )
            key = tuple([(t.shape, t.stride(), t.dtype, t.device.type) for t in pair])
            seconds = remembered.get(key)
            if seconds is None:
                seconds = remembered[key] = rules.times.copy_seconds(*pair)
            rules.advance(seconds)
            if pair[0].device.type != pair[1].device.type and not (len(args) > 2 and args[2]):
                wait()  # torch waits for copies in both directions
        return result

    return run


def _reading(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = kernel(*args, **kwargs)
        operators.costs.advance(_launched(READ, 1.0, BACKWARD["operator"]))
        wait()
        return result

    return run


def wait() -> None:
    """The host waits for the device, as torch.cuda.synchronize() does."""
    if _captured:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    _native.virtual_clock_wait()
    if isinstance(operators.costs, TimedRules):
        for clocks in operators.costs.times.clocks:
            clocks.wait()


def now(also: int | None = None) -> float:
    """Seconds: when everything that was launched so far has ended. An event that is recorded now has this time.
    ``also``: on which of the other GPUs."""
    if also is None:
        return _native.virtual_clock_read()[1]
    assert isinstance(operators.costs, TimedRules)
    clocks = operators.costs.times.clocks[also]
    return max(clocks.host, clocks.device)


def launch() -> None:
    """The host launched something whose time is counted elsewhere, as that of collectives is."""
    operators.costs.advance(_LAUNCH)


def kernel_seconds(bytes: float, operations: float, dtype: torch.dtype) -> float:
    """How long the device runs a kernel that was generated: by the bytes that it moves and what it computes."""
    if isinstance(operators.costs, TimedRules):
        return operators.costs.times.kernel_seconds(bytes, operations, dtype)
    return 0.0


def run_kernel(seconds: float) -> None:
    """A generated kernel was launched that takes so long."""
    operators.costs.advance(seconds)


_in_compiled = False


def is_compiled() -> bool:
    """Whether operators are launched by code that Inductor generated."""
    return _in_compiled


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """Meanwhile operators are launched by code that Inductor generated."""
    global _in_compiled
    before, _in_compiled = _in_compiled, True
    try:
        yield
    finally:
        _in_compiled = before


def delay(until: float, also: int | None = None) -> None:
    """The device does nothing until then. ``also``: on which of the other GPUs."""
    seconds = until - now(also)
    if seconds <= 0:
        return
    if also is None:
        _native.virtual_clock_run(0.0, seconds)
    elif isinstance(operators.costs, TimedRules):
        operators.costs.times.clocks[also].run(0.0, seconds)


@contextlib.contextmanager
def installed(gpu: Gpu, also: Sequence[Gpu] = ()) -> Iterator[None]:
    """Give operators their times on this GPU, and captures that begin meanwhile the virtual clock. ``also``: other
    GPUs whose time ``now`` tells."""
    before = operators.costs
    operators.costs = TimedRules(before, Times(gpu, also))
    _native.virtual_clock_use(True)
    try:
        yield
    finally:
        _native.virtual_clock_use(False)
        operators.costs = before
