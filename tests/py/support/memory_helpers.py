"""What the tests of MemTracker share: sums over objects, readings of a tracker, and a count of the CPU allocator's
own events that is independent of modscope. It contains no expected values."""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from helpers import INTERCEPTION
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from modscope import MemTracker
from torch.profiler import ProfilerActivity, profile, record_function

import torch
from torch import nn

CPU = torch.device("cpu")
CATEGORIES = ("Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other")
STATES = (
    "Pre-Forward",
    "Post-Forward",
    "Peak-Forward",
    "Pre-Backward",
    "Peak-Backward",
    "Post-Backward",
    "Pre-Forward-AC",
    "Post-Forward-AC",
)
SOURCES = ("allocator", "dispatcher") if INTERCEPTION else ("dispatcher",)
every_source = pytest.mark.parametrize("source", SOURCES)


# ---- sums over objects ----


def tensors_in(held: Any) -> list[torch.Tensor]:
    """The tensors in containers of containers, optimizer state for example."""
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, Mapping):
        held = held.values()
    elif not isinstance(held, (list, tuple, set, frozenset)):
        return []
    return [tensor for part in held for tensor in tensors_in(part)]


def bytes_of(*held: Any) -> int:
    """The bytes of these tensors' storages, each storage counted once."""
    storages = {}
    for tensor in tensors_in(held):
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def parameter_bytes(*mods: nn.Module) -> int:
    return bytes_of([p for m in mods for p in m.parameters()])


def trees(programs):
    """Trees of modules: pairs of a program, which ``programs`` makes for so many children, and the children."""
    leaves = st.tuples(programs(0), st.just([]))

    def grow(inner):
        return st.lists(inner, min_size=1, max_size=3).flatmap(
            lambda kids: st.tuples(programs(len(kids)), st.just(kids))
        )

    return st.recursive(leaves, grow, max_leaves=5)


def tracker_of(source, *known):
    """A MemTracker of this source that tracks these objects."""
    mt = MemTracker(source)
    mt.track_external(*known)
    return mt


def buffer_bytes(*mods: nn.Module) -> int:
    return bytes_of([b for m in mods for b in m.buffers()])


def gradient_bytes(*mods: nn.Module) -> int:
    return bytes_of([p.grad for m in mods for p in m.parameters()])


def state_bytes(*opts: torch.optim.Optimizer) -> int:
    return bytes_of([dict(opt.state) for opt in opts])


def held_by(mods: Iterable[nn.Module], opts: Iterable[torch.optim.Optimizer] = ()) -> dict[str, int]:
    """The four categories whose bytes can be read from the objects themselves."""
    mods, opts = list(mods), list(opts)
    return {
        "Parameter": parameter_bytes(*mods),
        "Buffer": buffer_bytes(*mods),
        "Gradient": gradient_bytes(*mods),
        "Optstate": state_bytes(*opts),
    }


# ---- readings of a tracker ----


def reading(mt: Any, type: str = "current", device: torch.device = CPU) -> dict[str, int]:
    """One device's snapshot with plain words as keys; zeros for a device that holds nothing."""
    found = mt.get_tracker_snapshot(type).get(device, {})
    return {key: found.get(key, 0) for key in (*CATEGORIES, "Total")}


def now(mt: Any, category: str = "Total", device: torch.device = CPU) -> int:
    return reading(mt, "current", device)[category]


def at_peak(mt: Any, category: str = "Total", device: torch.device = CPU) -> int:
    return reading(mt, "peak", device)[category]


def held(mt: Any) -> dict[str, int]:
    """The tracker's figures for the categories of `held_by`."""
    found = reading(mt)
    return {key: found[key] for key in ("Parameter", "Buffer", "Gradient", "Optstate")}


def of_module(
    mt: Any, fqn: str, type: str = "current", children: bool = False, device: torch.device = CPU
) -> dict[str, int]:
    """What one module holds; zeros if it holds nothing."""
    found = mt.get_module_snapshot(type, children=children).get(device, {}).get(fqn, {})
    return {key: found.get(key, 0) for key in (*CATEGORIES, "Total")}


def outside(mt: Any, category: str = "Total") -> int:
    return mt.outside.get(CPU, {}).get(category, 0)


def nonzero(figures: Mapping[str, int]) -> dict[str, int]:
    """Only what is not zero, with plain words as keys: short to write down by hand."""
    return {str.__str__(key): value for key, value in figures.items() if value}


def wrong_sums(mt: Any) -> list[str]:
    """Every way in which the figures of a tracker do not add up; [] if they do."""
    wrong = []
    for type in ("current", "peak"):
        whole = mt.get_tracker_snapshot(type)
        own = mt.get_module_snapshot(type)
        tree = mt.get_module_snapshot(type, children=True)
        for device in {*whole, *own, *tree}:
            total = reading(mt, type, device)
            if sum(total[c] for c in CATEGORIES) != total["Total"]:
                wrong.append(f"{type} {device}: categories do not add up: {total}")
            if min(total.values()) < 0:
                wrong.append(f"{type} {device}: below zero: {total}")
            of = {fqn: {k: int(v) for k, v in figures.items()} for fqn, figures in own.get(device, {}).items()}
            for key in (*CATEGORIES, "Total"):
                if sum(figures[key] for figures in of.values()) != total[key]:
                    wrong.append(f"{type} {device} {key}: modules do not add up to {total[key]}: {of}")
                for fqn, figures in tree.get(device, {}).items():
                    below = sum(f[key] for name, f in of.items() if name == fqn or name.startswith(fqn + "."))
                    if figures[key] != below:
                        wrong.append(f"{type} {device} {key}: {fqn} with children is {figures[key]}, not {below}")
            for fqn, figures in of.items():
                if min(figures.values()) < 0:
                    wrong.append(f"{type} {device}: {fqn} below zero: {figures}")
    return wrong


# ---- independent counts ----


def python_calls(step: Callable[[], Any]) -> int:
    """How many Python functions and C functions called from Python ran in `step`."""
    count = 0

    def probe(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(probe)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


MARK = "modscope-test-mark"


class Counted:
    """While a tracker is active, torch's profiler records the CPU allocator's events of this thread. At each mark, and
    at the end, `tracked` has the tracker's current and peak totals, `counted` the sums of the events, both less what
    the tracker held at the beginning.

    Blocks allocated before the beginning must not be freed inside: the profiler does not know their size."""

    def __init__(self, mt: Any) -> None:
        self.mt = mt
        self.tracked: list[tuple[int, int]] = []
        self.counted: list[tuple[int, int]] = []
        self.events = 0
        self.spans: dict[str, list[int]] = {}  # by name: the totals before and after, and the highest between
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> "Counted":
        self._profile.__enter__()
        gc.disable()  # garbage of earlier tests would be freed at some point inside
        self.mt.reset_peak()
        self._start = now(self.mt)
        return self

    def mark(self) -> None:
        with record_function(MARK):
            pass
        self.tracked.append((now(self.mt) - self._start, at_peak(self.mt) - self._start))

    def open(self, name: str) -> None:
        with record_function(f"{MARK} open {name}"):
            pass

    def close(self, name: str) -> None:
        with record_function(f"{MARK} close {name}"):
            pass

    def __exit__(self, *exc: Any) -> None:
        self.mark()
        gc.enable()
        self._profile.__exit__(*exc)
        if exc[0] is None:
            self._count()

    def _count(self) -> None:
        current = peak = 0
        opened: dict[str, list[int]] = {}
        for event in sorted(self._profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
            name = event.name()
            if name == "[memory]":
                current += event.nbytes()
                peak = max(peak, current)
                self.events += 1
                for span in opened.values():
                    span[2] = max(span[2], current)
            elif name == MARK:
                self.counted.append((current, peak))
            elif name.startswith(f"{MARK} open "):
                opened[name.split()[2]] = [current, 0, current]
            elif name.startswith(f"{MARK} close "):
                span = self.spans[name.split()[2]] = opened.pop(name.split()[2])
                span[1] = current
        assert self.events > 0, "the profiler saw nothing: this test tests nothing"


# How property tests are run; MODSCOPE_EXAMPLES=1200 for a long one.
random_programs = settings(
    max_examples=int(os.environ.get("MODSCOPE_EXAMPLES", "150")),
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
