"""``doctor()``: which interception points are verified here, and what that means for the user."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from modscope import _native
from modscope._read.categories import Kind
from modscope._torch import interception
from modscope._torch.collectives import result as collectives_result

if TYPE_CHECKING:
    from modscope._show.terminal import Screen

CAN_BE_INSTALLED = "can be installed"


def doctor() -> dict[str, str]:
    """The versions in use, and for each interception point "verified" or why the fallback is used.

    Keys: "modscope", "torch", "python", "system"; the interception points "calls" (module calls), "nodes" (backward
    nodes), "blocks" (allocated memory), "saved" (tensors that autograd keeps), "resizes" (storages that Python
    resizes), "fsdp" and "ddp" (kinds of what FSDP2 and DistributedDataParallel hold); "layout" and "tensors" say
    whether the layouts of torch's nodes and tensors were learned; where there is a GPU, "requests" (bytes requested and
    streams) and "times" (of calls on the GPU) say whether captures note them; "collectives" whether captures note those
    of torch.distributed; "virtual" whether a virtual GPU can be installed ("can be installed", or why not)."""
    from modscope._virtual.device.device import try_in_fork

    why_not_virtual = try_in_fork()  # first: the tests of the interception points may run a backward
    distributed = check_distributed()
    with _native.Tracker():  # makes sure that everything has been tried
        pass
    if torch.version.cuda and torch.cuda.is_available():
        interception.test_cuda()
    return {
        "modscope": _native.version,
        "torch": str(torch.__version__),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        **interception.results(),
        **{word: why or interception.VERIFIED for word, why in distributed.items()},
        "collectives": collectives_result(),
        "virtual": why_not_virtual or CAN_BE_INSTALLED,
    }


class _InterceptionPoint(NamedTuple):
    label: str
    verified: str
    """What it means that the point is verified."""
    fallback: str
    effect: str
    """What it means that the fallback is used."""


_POINTS = {
    "calls": _InterceptionPoint(
        "module calls",
        "modscope sees each call in C, without hooks",
        "torch's global module hooks, as C functions",
        "Tracking is slower, and torch.compile sees the hooks.",
    ),
    "nodes": _InterceptionPoint(
        "backward nodes",
        "each node is attributed to the call that created it",
        "asking autograd for the current node",
        "Nodes that a backward creates (double backward) are attributed to no module.",
    ),
    "blocks": _InterceptionPoint(
        "memory blocks",
        "each block of torch's allocators is counted",
        "the tensors that operators return, seen by the dispatcher",
        "Memory that operators allocate inside is not counted.",
    ),
    "saved": _InterceptionPoint(
        "saved tensors",
        "what autograd keeps is Activation, wherever it was made",
        "only what a module's forward makes is Activation",
        "What is made outside modules is Other, even if autograd keeps it.",
    ),
    "resizes": _InterceptionPoint(
        "resizes",
        "the dispatcher's source sees storages that are freed and refilled, as FSDP2 does",
        "sizes are read when figures are read",
        "Peaks of FSDP2 by the dispatcher, as with fake tensors, are wrong.",
    ),
    "stacks": _InterceptionPoint(
        "Python lines", "each block knows the line of the program that made it", "none", "Blocks have no lines."
    ),
    "forward": _InterceptionPoint(
        "forward lines",
        "what backward allocates knows the line of the forward that it belongs to",
        "none",
        "What backward allocates has no line of the forward.",
    ),
    "fsdp": _InterceptionPoint(
        "FSDP2", "what it holds has a kind, such as Unsharded Param", "categories only", "What it holds has no kind."
    ),
    "ddp": _InterceptionPoint(
        "DDP", "its buckets are of the kind Bucket", "categories only", "Its buckets are Other or Activation."
    ),
}


def _advice(reasons: set[str]) -> str:
    if reasons == {interception.FORCED}:
        return "To use the interception points, unset MODSCOPE_INTERPOSE."
    return "A newer modscope may support this torch. If it does not, please report this output."


_LABEL = 15  # columns


def describe(report: dict[str, str], screen: Screen) -> list[str]:
    """The report in the words that ``modscope doctor`` prints."""

    def line(label: str, *sentences: str) -> list[str]:
        """Print sentences beside a label."""
        texts = [text for each in sentences for text in screen.wrap(each, screen.width - _LABEL - 3)]
        return [f"  {'' if number else label:{_LABEL}} {text}" for number, text in enumerate(texts)]

    lines = [f"{word:9} {report[word]}" for word in ("modscope", "torch", "python", "system")]
    lines += ["", screen.bold("Interception points:")]
    reasons = set()
    for word, point in _POINTS.items():
        if report[word] == NOT_BUILT:
            continue
        if report[word] == interception.VERIFIED:
            lines += line(point.label, f"verified: {point.verified}")
            continue
        reasons.add(report[word])
        lines += line(point.label, f"not used: {report[word]}", f"Fallback: {point.fallback}. {point.effect}")
    missing = []
    lines += ["", screen.bold("Layouts of torch's objects:")]
    lines += line("nodes", report["layout"])
    lines += line("tensors", report["tensors"])
    if report["tensors"] != interception.LEARNED:
        missing.append("tensors")
        lines += line("", "MemTracker, record and modscope run cannot be used here.")
    if "requests" in report:
        lines += ["", screen.bold("What captures note of the GPU:")]
        for word, label in (("requests", "requests"), ("times", "times of calls")):
            missing += [] if report[word] == interception.VERIFIED else [label]
            lines += line(label, _noted(report[word]))
    if report["collectives"] not in (interception.VERIFIED, NOT_BUILT):
        missing.append("collectives")
    lines += ["", screen.bold("What captures note of torch.distributed:")]
    lines += line("collectives", _noted(report["collectives"]))
    can_be = report["virtual"] == CAN_BE_INSTALLED
    missing += [] if can_be else ["virtual GPU"]
    lines += ["", screen.bold("Virtual GPU:")]
    lines += line("cuda:0", CAN_BE_INSTALLED if can_be else f"cannot be installed: {report['virtual']}")
    return [*lines, "", *(text for end in _conclusion(reasons, missing) for text in screen.wrap(end))]


def _noted(answer: str) -> str:
    return answer if answer.startswith(interception.VERIFIED) else f"not noted: {answer}"


def _conclusion(reasons: set[str], missing: list[str]) -> list[str]:
    """``reasons``: why fallbacks are used. ``missing``: what else does not work here."""
    if reasons:
        return ["modscope works, with the fallback where a point is not used.", _advice(reasons)]
    if missing:
        names = ", ".join(missing)
        return [f"No fallback is used, but not everything works here: {names}. The lines above say why."]
    return [
        "Everything is verified: no fallback is used, and torch.compile does not see modscope. There is nothing to do."
    ]


# ---- FSDP2 and DDP ----
#
# Each trains a small model under a tracker, in a forked process with torch's fake process group, and the kinds are
# compared with what the model must hold.

NOT_BUILT = "this torch has no torch.distributed"
_LIMIT = 30_000  # milliseconds
_WIDTH, _RANKS = 64, 4
_BYTES = 4 * _WIDTH * _WIDTH  # the size of the model's only parameter


def _peak_of(step: Callable[[], Any], model: torch.nn.Module) -> dict[str, int]:
    """Bytes by kind at the peak of a function."""
    from modscope._trackers.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        step()
        return dict(tracker.get_kind_snapshot("peak").get(torch.device("cpu"), {}))


def _compare(found: dict[str, int], expected: dict[Kind, int]) -> str | None:
    for kind, value in expected.items():
        if found.get(kind, 0) != value:
            return f"{kind} of a small model was counted as {found.get(kind, 0)} bytes, not {value}"
    return None


def _why_not_intercepted() -> str:
    """Why FSDP2's functions are not intercepted, once it is imported."""
    is_old = sys.version_info < (3, 12)
    return (
        "this torch's FSDP2 needs Python 3.12 or torch 2.12"
        if is_old
        else "this torch's FSDP2 is not as modscope knows it"
    )


def _check_fsdp() -> str | None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from modscope._trackers.mem_tracker import MemTracker

    model, x = torch.nn.Linear(_WIDTH, _WIDTH, bias=False), torch.ones(1, _WIDTH)
    # Gradients are reduced in more bytes than the rest has, so that every torch has its peak where it reduces them.
    # Without a mesh, FSDP2 moves the model to a GPU that is there.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (_RANKS,)), mp_policy=policy)
    sharded = {Kind.SHARDED_PARAM: _BYTES // _RANKS}
    with MemTracker():
        if not _native.intercept_fsdp():
            return _why_not_intercepted()
    with torch.no_grad():
        forward = _peak_of(lambda: model(x), model)
    backward = _peak_of(lambda: model(x).sum().backward(), model)
    half = _BYTES // 2
    return _compare(forward, {**sharded, Kind.UNSHARDED_PARAM: half, Kind.ALL_GATHER: half}) or _compare(
        backward, {**sharded, Kind.UNSHARDED_GRAD: half, Kind.REDUCE_SCATTER: _BYTES}
    )


def _check_ddp() -> str | None:
    """Its constructor only: torch's fake process group cannot reduce for it."""
    model = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
    kept = []
    return _compare(
        _peak_of(lambda: kept.append(torch.nn.parallel.DistributedDataParallel(model)), model), {Kind.BUCKET: _BYTES}
    )


def _describe(check: Callable[[], str | None]) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _check_in_fork() -> str:
    """A JSON object: for "fsdp" and "ddp" null, or why not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed: Any = torch.distributed
    if distributed.is_initialized():
        distributed.destroy_process_group()
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=_RANKS)
    return json.dumps({"fsdp": _describe(_check_fsdp), "ddp": _describe(_check_ddp)})


def check_distributed() -> dict[str, str | None]:
    """Why what FSDP2 ("fsdp") and DDP ("ddp") hold has no kinds; None where it has. This process does not change."""
    if not torch.distributed.is_available():
        return dict.fromkeys(("fsdp", "ddp"), NOT_BUILT)
    if interception.is_forbidden():
        return dict.fromkeys(("fsdp", "ddp"), interception.FORCED)
    if len(sys._current_frames()) > 1:
        return dict.fromkeys(("fsdp", "ddp"), "it was not tried, because this process has several threads")
    answer = _native.run_in_fork(_check_in_fork, _LIMIT)
    if answer is None:
        return dict.fromkeys(("fsdp", "ddp"), "the process that tried it ended without an answer")
    found: dict[str, str | None] = json.loads(answer)
    return found
