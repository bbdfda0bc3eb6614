"""The result of a prediction: what the GPU would have had to reserve, whether that fits, and where memory ran out.
Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict

from modscope._read.categories import Category
from modscope._read.load import Capture
from modscope._read.step_time import retries_of_a_step, step_ms
from modscope._virtual.certainty import FITS, NOT, Verdict, certainty_of, judge, workspaces_of
from modscope._virtual.gpus import Gpu
from modscope._virtual.outside import outside_of

if TYPE_CHECKING:
    from modscope._show.terminal import Screen
    from modscope._virtual.compiled.counts import GraphBreak

Result = dict[str, Any]
"""As --json writes it."""


class ShardingFacts(TypedDict):
    """How a script uses ``fully_shard``."""

    calls: int
    reshards: list[bool]
    """Whether modules are resharded after their forward, as it was done."""
    over: list[int]
    """How many ranks hold one copy, as it was done."""


class RanksFacts(TypedDict):
    """What a result says of virtual ranks."""

    size: int
    rank: int
    per_node: int
    communicators: int
    communicator_bytes: int
    collective_bytes: dict[str, int]
    """Bytes by kind of collective."""
    fully_shard: ShardingFacts | None


class CompiledFacts(TypedDict):
    """How torch.compile compiled a program."""

    graphs: int
    uncompiled_graphs: int
    """Of these, how many run uncompiled, because Inductor failed."""
    graph_breaks: list[GraphBreak]
    recompiles: int
    why_uncompiled: str | None
    """Why the program, or some of its graphs, ran uncompiled; None: they did not."""


class Facts(TypedDict, total=False):
    """What is known of a prediction without its capture. A process that predicts a part writes it to a file."""

    device: str
    """The virtual GPU that the figures are about."""
    steps: int
    are_optimizer_steps: bool
    """Each step is one of an optimizer: there are several, which do not step in turn."""
    seconds: float
    timed_out: float | None
    """The seconds after which the script was stopped; None: it was not."""
    ended: str
    error: str
    status: str
    torch: str
    fraction: float
    """The fraction of the GPU's memory to which the program limits itself."""
    bytes_without_rule: int | None
    retries: int
    """How often the allocator gave memory back before a request was served."""
    notes: list[str]
    ranks: RanksFacts | None
    compiled: CompiledFacts | None
    """None: the program compiled nothing."""
    step_ends: dict[str, list[float]]
    """When steps ended by the clock of each GPU, in seconds."""
    capture: str
    nothing: str
    """Why there is nothing to predict."""


class Predicted(NamedTuple):
    """What came of a command that started the script's processes."""

    status: int
    """The script's own."""
    figures: Result | None = None
    """What --json writes; None: nothing could be predicted."""
    text: Callable[[Screen], list[str]] = lambda screen: []


def result_of(gpu: Gpu, facts: Facts, capture: Capture | None, path: str) -> Result:
    """The result of a script that ran on this virtual GPU."""
    device = facts["device"]
    peak = capture.peaks.get(device) if capture else None
    reserved = capture.reserved.get(device, 0) if capture else 0
    failed = _failure(capture, device) if capture else None
    fits = failed is None or _went_on(capture, facts)
    may_reserve = may_reserve_beside(gpu, facts)
    run = _Run(capture, facts, may_reserve, failed)
    return {
        "gpu": gpu.name,
        "device": device,
        "title": gpu.title,
        "memory": gpu.memory,
        "context": gpu.context,
        "reserved_peak": reserved,
        "allocated_peak": peak.bytes if peak else 0,
        "fits": fits,
        "may_reserve": may_reserve,
        "to_spare": max(may_reserve - reserved, 0) if fits else None,
        **judged(gpu, facts, capture, fits, reserved, facts.get("retries", 0), run),
        "step_ms": step_ms(capture) if capture and capture.info.get("clock") == "virtual" else None,
        "seconds": facts["seconds"],
        "steps": facts["steps"],
        "are_optimizer_steps": facts["are_optimizer_steps"],
        "peak": _moment(peak.step, peak.phase, peak.module) if peak else None,
        "reserved_at_peak": peak.reserved if peak else 0,
        "reserved_moment": _reserved_moment(capture, device, reserved)
        if capture and peak and peak.reserved != reserved
        else None,
        "out_of_memory": failed,
        "ranks": facts.get("ranks"),
        "compiled": facts.get("compiled"),
        "ended": facts["ended"],
        "timed_out": facts["timed_out"],
        "error": facts["error"],
        "status": facts["status"],
        "torch": facts["torch"],
        "allocator": capture.info.get("allocator", "") if capture else "",
        "bytes_without_rule": facts["bytes_without_rule"],
        "notes": facts["notes"],
        "capture": path,
    }


class Replayed(Protocol):
    """What else is known of a run on a GPU, where it is asked for."""

    @property
    def may_reserve(self) -> int: ...

    def unlimited(self) -> int | None:
        """What a GPU with more memory would reserve at most; None: it is not known."""

    def fits_with(self, capacity: int) -> bool:
        """Whether it fits a GPU that has so much more or less."""


class _Run:
    """A run on a GPU with limited memory, of which the capture is replayed."""

    def __init__(self, capture: Capture | None, facts: Facts, may_reserve: int, failed: Result | None) -> None:
        self._capture, self._facts, self.may_reserve, self._failed = capture, facts, may_reserve, failed
        self._device = facts["device"]

    def unlimited(self) -> int | None:
        if self._failed:
            return None
        if self._capture is None or self._device not in self._capture.peaks:
            return 0
        if not self._facts.get("retries"):
            return self._capture.reserved.get(self._device, 0)
        return self._capture.replay(self._device)["reserved_peak"]

    def fits_with(self, capacity: int) -> bool:
        """Whether a whole step, and what the optimizer's state adds in the next one, fit. What follows is not known of
        a run that ended where memory ran out."""
        capture, failed = self._capture, self._failed
        if capture is None or self._device not in capture.peaks:  # not even one allocation succeeded
            return failed is None or int(failed["requested"]) <= capacity
        if failed is None:
            return capture.replay(self._device, capacity=capacity)["failure"] is None
        steps = capture.stream.steps()
        if len(steps) < 2:
            return False
        first = capture.replay(self._device, [("stop", steps[1][0])])["allocated_peak"]
        state = capture.snapshot("oom").totals[self._device][Category.OPT]
        return max(first + state, int(failed["reserved"] + failed["requested"])) <= capacity


def judged(
    gpu: Gpu, facts: Facts, capture: Capture | None, fits: bool, reserved: int, retries: int, run: Replayed
) -> Result:
    """The verdict, and what giving memory back has to do with it. A script that went on after an allocation failed
    has adapted itself to the GPU: it is taken at its word. ``reserved``: at most on this GPU."""
    ranks, unlimited = facts.get("ranks"), run.unlimited()
    communicators = ranks["communicator_bytes"] if ranks else 0
    is_known = unlimited is not None
    spare = run.may_reserve - reserved if is_known else run.may_reserve
    sure = certainty_of(
        gpu, capture, facts["device"], run.may_reserve if unlimited is None else unlimited, communicators
    )
    verdict = judge(sure, spare, run.may_reserve, fits, retries if is_known else 0, run.fits_with)
    per_step = retries_of_a_step(capture, facts["device"], run.may_reserve) if capture and fits and retries else 0
    return {
        **verdict.as_json(),
        "retries": retries if fits else None,
        "retries_per_step": per_step if fits else None,
        "reserved_unlimited": unlimited,
        "workspaces": workspaces_of(capture, facts["device"]),
        "nvidia_smi": outside_of(gpu, capture).report(reserved) if capture and fits and reserved else None,
    }


def verdict_of(result: Mapping[str, Any]) -> Verdict:
    answer = result.get("verdict") or (FITS if result["fits"] else NOT)
    return Verdict(answer, result.get("margin", 0), result.get("why", ""))


def may_reserve_beside(gpu: Gpu, facts: Facts) -> int:
    """What torch's allocator may reserve beside the context and NCCL's communicators."""
    ranks = facts.get("ranks")
    return gpu.may_reserve(facts["fraction"], ranks["communicator_bytes"] if ranks else 0)


def has_failed(result: Result) -> bool:
    """Whether the script ended by an exception, or with a status that says so; not, where the GPU's memory ran out."""
    return bool(result["fits"]) and (result["ended"] == "exception" or result["status"] not in ("", "0"))


def failed_early(result: Result) -> bool:
    """Whether it failed before its first optimizer step, so that nothing can be said of what it needs."""
    return has_failed(result) and not result["steps"]


def as_json(result: Result) -> Result:
    """Without a verdict where there can be none."""
    if failed_early(result):
        none = dict.fromkeys(("fits", "to_spare", "verdict", "margin", "nvidia_smi"))
        return {**result, **none, "why": ""}
    return result


def _moment(step: int, phase: str | None, module: str | None) -> Result:
    return {"step": step, "phase": phase or "idle", "module": module or "Global"}


def _failure(capture: Capture | None, device: str) -> Result | None:
    """The last allocation that failed on the virtual GPU."""
    failed = capture.last_oom if capture else None
    if capture is None or failed is None or failed.device != device:
        return None
    step = capture.snapshot("oom").step
    figures = {"requested": failed.bytes, "allocated": failed.allocated, "reserved": failed.reserved}
    return {"count": capture.oom_count, **figures, **_moment(step, failed.phase, failed.module)}


def _went_on(capture: Capture | None, facts: Facts) -> bool:
    """Whether the script caught the failure and did its work afterwards: it took an optimizer step, or, if it never
    takes one, allocated more."""
    if capture is None or capture.last_oom is None or facts["ended"] == "exception":
        return False
    kind = "optimizer_step" if capture.optimizer_steps else "add"
    return next(capture.events(kind, first=capture.last_oom.number + 1), None) is not None


def _reserved_moment(capture: Capture, device: str, reserved: int) -> Result | None:
    """The moment at which the most was first reserved."""
    for event in capture.events("reserved"):
        if event.device == device and event.bytes == reserved:
            snapshot = capture.snapshot(event.number + 1)
            return _moment(snapshot.step, *snapshot.running)
    return None
