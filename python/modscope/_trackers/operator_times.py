"""How long operators take, for the estimators: by a model of a GPU, by measuring, or on the virtual GPU; and the times
of the operators that run while an estimator is active."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

import torch
from modscope import _native
from modscope._torch import interception
from modscope._torch.dispatch import LogMode, active_fake_mode
from modscope._trackers.module_tracker import ModTracker
from modscope._virtual.gpus import GPUS, Gpu, find_gpu
from modscope._virtual.operators import operators
from modscope._virtual.time.roofline import Roofline
from modscope._virtual.time.times import TimedRules

__all__ = ["BENCHMARK", "COST_MODEL", "Estimation", "check_mode", "milliseconds"]

BENCHMARK, COST_MODEL = "operator-level-benchmark", "operator-level-cost-model"
_DEFAULT = "h100"
_ONLY_ALLOCATE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "_unsafe_view")
"""Operators without a kernel that are no views by their schemas."""
_WARM_UP, _MEASURED = 2, 3

Estimate = Callable[[Any, Any, Any, Any], float]
"""Of an operator, its arguments, its keywords and its result: milliseconds of the device."""


def check_mode(mode: str) -> str:
    if mode not in (BENCHMARK, COST_MODEL):
        raise NotImplementedError(f"estimate_mode_type {mode} not supported: use {COST_MODEL!r} or {BENCHMARK!r}")
    return mode


# ---- which GPU ----


def _virtual_gpu() -> Gpu | None:
    rules = operators.costs
    return rules.times.gpu if isinstance(rules, TimedRules) else None


def _real_gpu() -> Gpu | None:
    """The GPU of this machine, if the table has it."""
    if not torch.cuda.is_available():
        return None
    title = torch.cuda.get_device_name()
    return next((gpu for gpu in GPUS.values() if gpu.title == title), None)


def _find_gpu(name: str | None) -> Gpu:
    gpu = find_gpu(name) if name is not None else _virtual_gpu() or _real_gpu() or find_gpu(_DEFAULT)
    if gpu.speed is None:
        raise ValueError(f"it is not known how fast a {gpu.title} is: choose a GPU of modscope.gpus as gpu_type")
    return gpu


# ---- the model ----


def _specs(op: Any, result: Any) -> Any:
    """The specs of what an operator made; None if it returns what it changed."""
    returns = op._schema.returns
    if all(each.alias_info is not None and each.alias_info.is_write for each in returns):
        return None
    return operators.spec_of(result)


def _has_kernel(op: Any) -> bool:
    """Whether an operator runs on the device. Those that read an attribute, or note something for the profiler, do
    not."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    has_result = schema.is_mutable or any("Tensor" in str(result.type) for result in schema.returns)
    return namespace not in ("prim", "profiler") and has_result and name not in _ONLY_ALLOCATE


def _remembered(compute: Estimate) -> Estimate:
    """Computed once for all calls with equal arguments."""
    known: dict[Any, float] = {}

    def estimate(op: Any, args: Any, kwargs: Any, result: Any) -> float:
        kwargs = kwargs or {}
        key = operators.key_of_call(op, args, kwargs)
        try:
            found = known.get(key)
        except TypeError:  # an argument that cannot be a key
            return compute(op, args, kwargs, result)
        if found is None:
            found = known[key] = compute(op, args, kwargs, result)
        return found

    return estimate


def _by_model(gpu: Gpu) -> Estimate:
    """Whatever device the tensors are on, the operator runs on this GPU."""
    assert gpu.speed is not None
    installed = operators.costs if _virtual_gpu() is gpu else None  # it has measured times, too
    roofline = Roofline(gpu, gpu.speed)

    def estimate(op: Any, args: Any, kwargs: Any, result: Any) -> float:
        if not _has_kernel(op):
            return 0.0
        specs = _specs(op, result)
        on_meta = operators.meta_arguments(args, kwargs)
        return 1e3 * float((installed or roofline).seconds(op, *on_meta, specs))

    return estimate


# ---- measuring ----


def _data_like(value: Any) -> Any:
    """A tensor with random numbers, on the GPU, in the place of a fake one."""
    if isinstance(value, torch.Tensor):
        data = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
        return data.uniform_() if value.dtype.is_floating_point and value.dtype.itemsize > 1 else data.zero_()
    if isinstance(value, (list, tuple)):
        return type(value)([_data_like(item) for item in value])
    return torch.device("cuda") if isinstance(value, torch.device) and value.type != "meta" else value


def _measure(op: Any, args: Any, kwargs: Any) -> float:
    args, kwargs = [_data_like(a) for a in args], {name: _data_like(a) for name, a in kwargs.items()}
    for _ in range(_WARM_UP):
        op(*args, **kwargs)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_MEASURED):
        op(*args, **kwargs)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / _MEASURED


def _by_measuring(gpu: Gpu, not_measured: set[str]) -> Estimate:
    model = _by_model(gpu)

    def estimate(op: Any, args: Any, kwargs: Any, result: Any) -> float:
        if model(op, args, kwargs, result) == 0.0 or torch.Tag.inplace_view in op.tags:
            return 0.0
        try:
            with torch.no_grad(), _disable_current_modes():  # not the fake mode either: the operator really runs
                return _measure(op, args, kwargs)
        except (RuntimeError, TypeError, ValueError):
            not_measured.add(str(op))
            return model(op, args, kwargs, result)

    return estimate


def _estimate(mode: str, gpu_type: str | None, not_measured: set[str]) -> tuple[Estimate | None, Gpu]:
    """None: the virtual device's clock tells how long an operator took. AssertionError where operators would run for
    nothing."""
    is_fake = active_fake_mode() is not None
    if not is_fake and _virtual_gpu() is None:
        raise AssertionError(
            "No FakeTensorMode found: use the estimator under FakeTensorMode, or inside modscope.virtual_gpu(...)"
        )
    gpu = _find_gpu(gpu_type)
    if mode == BENCHMARK:
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"{BENCHMARK!r} runs each operator on a GPU, and there is none: use {COST_MODEL!r}, which needs none"
            )
        if is_fake:
            return _remembered(_by_measuring(gpu, not_measured)), gpu
    if not is_fake and _virtual_gpu() is gpu:
        return None, gpu
    return _remembered(_by_model(gpu)), gpu


@functools.cache
def _estimate_on(gpu: Gpu, mode: str) -> Estimate:
    return _remembered(_by_measuring(gpu, set()) if mode == BENCHMARK else _by_model(gpu))


def milliseconds(mode: str, op: Any, args: Any, kwargs: Any, result: Any) -> float:
    """How long an operator takes, outside an estimation."""
    return _estimate_on(_find_gpu(None), mode)(op, args, kwargs, result)


# ---- what is active ----


class Estimation:
    """The operators that run from ``__enter__`` to ``__exit__``, and the calls of modules."""

    def __init__(
        self,
        mode: str,
        gpu_type: str | None,
        flags_of: Callable[[Any], int] | None = None,
        is_random: Callable[[Any, Any, Any], bool] | None = None,
    ) -> None:
        """With ``flags_of``, each operator is kept, and what autograd saves."""
        interception.prepare()
        why = interception.why_no_tensors()
        if why and flags_of is not None:
            raise RuntimeError(f"modscope cannot read the tensors of this torch ({why}). Update modscope.")
        self.not_measured: set[str] = set()
        """Operators that cannot run alone with data of their own. Their times are those of the model."""
        estimate, self.gpu = _estimate(mode, gpu_type, self.not_measured)
        distributed = sys.modules.get("torch.distributed.tensor")
        self.log = _native.OperatorTimes(estimate, flags_of, is_random, getattr(distributed, "DTensor", None))
        self._keeps_operators = flags_of is not None
        self._undo = contextlib.ExitStack()

    def enter(self) -> None:
        log = self.log
        with contextlib.ExitStack() as undo:
            tracker = ModTracker()
            tracker.register_user_hooks(log.forward_begins, log.forward_ends, log.backward_begins, log.backward_ends)
            undo.enter_context(tracker)
            if self._keeps_operators:
                undo.enter_context(torch.autograd.graph.saved_tensors_hooks(log.saved, _as_it_is))
            undo.enter_context(LogMode(log))
            self._undo = undo.pop_all()
        log.recording = True

    def leave(self) -> None:
        self.log.recording = False
        self._undo.close()


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
