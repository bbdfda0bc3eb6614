"""``doctor()``: which interception points are verified here, and what that means for the user."""

from __future__ import annotations

import platform
from typing import NamedTuple

import torch

from modscope import _distributed_checks, _interception, _native
from modscope._collectives import result as collectives_result


CAN_BE_INSTALLED = "can be installed"


def doctor() -> dict[str, str]:
    """The versions in use, and for each interception point "verified" or why the fallback is used.

    Keys: "modscope", "torch", "python", "system"; the interception points "calls" (module calls), "nodes" (backward
    nodes), "blocks" (allocated memory), "saved" (tensors that autograd keeps), "fsdp" and "ddp" (kinds of what FSDP2 and
    DistributedDataParallel hold); "layout" and "tensors" say whether the layouts of torch's nodes and
    tensors were learned; where there is a GPU, "requests" (bytes requested and streams) and "times" (of calls on the GPU) say
    whether captures note them; "collectives" whether captures note those of torch.distributed; "virtual" whether a virtual GPU can be installed ("can be installed", or why not).
    """
    from modscope._virtual.device import try_in_fork

    why_not_virtual = try_in_fork()  # first: the tests of the interception points may run a backward
    distributed = _distributed_checks.check_in_fork()
    with _native.Tracker():  # makes sure that everything has been tried
        pass
    if torch.version.cuda and torch.cuda.is_available():
        _interception.test_cuda()
    return {
        "modscope": _native.version,
        "torch": str(torch.__version__),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        **_interception.results(),
        **{word: why or _interception.VERIFIED for word, why in distributed.items()},
        "collectives": collectives_result(),
        "virtual": why_not_virtual or CAN_BE_INSTALLED,
    }


class _Point(NamedTuple):
    label: str
    verified: str
    """What it means that the point is verified."""
    fallback: str
    effect: str
    """What it means that the fallback is used."""


_POINTS = {
    "calls": _Point(
        "module calls",
        "modscope sees each call in C, without hooks",
        "torch's global module hooks, as C functions",
        "Tracking is slower, and torch.compile sees the hooks.",
    ),
    "nodes": _Point(
        "backward nodes",
        "each node is attributed to the call that created it",
        "asking autograd for the current node",
        "Nodes that a backward creates (double backward) are attributed to no module.",
    ),
    "blocks": _Point(
        "memory blocks",
        "each block of torch's allocators is counted",
        "the tensors that operators return, seen by the dispatcher",
        "Memory that operators allocate inside is not counted.",
    ),
    "saved": _Point(
        "saved tensors",
        "what autograd keeps is Activation, wherever it was made",
        "only what a module's forward makes is Activation",
        "What is made outside modules is Other, even if autograd keeps it.",
    ),
    "stacks": _Point(
        "Python lines", "each block knows the line of the program that made it", "none", "Blocks have no lines."
    ),
    "forward": _Point(
        "forward lines",
        "what backward allocates knows the line of the forward that it belongs to",
        "none",
        "What backward allocates has no line of the forward.",
    ),
    "fsdp": _Point(
        "FSDP2", "what it holds has a kind, such as Unsharded Param", "categories only", "What it holds has no kind."
    ),
    "ddp": _Point(
        "DDP", "its buckets are of the kind Bucket", "categories only", "Its buckets are Other or Activation."
    ),
}


def _advice(reasons: set[str]) -> str:
    if reasons == {_interception.FORCED}:
        return "To use the interception points, unset MODSCOPE_INTERPOSE."
    return "A newer modscope may support this torch. If it does not, please report this output."


def describe(report: dict[str, str]) -> str:
    """What ``modscope doctor`` prints."""
    lines = [f"{word:9} {report[word]}" for word in ("modscope", "torch", "python", "system")]
    lines += ["", "Interception points:"]
    reasons = set()
    for word, point in _POINTS.items():
        if report[word] == _distributed_checks.NOT_BUILT:
            continue
        if report[word] == _interception.VERIFIED:
            lines.append(f"  {point.label:15} verified: {point.verified}")
            continue
        reasons.add(report[word])
        lines.append(f"  {point.label:15} not used: {report[word]}")
        lines.append(f"  {'':15} Fallback: {point.fallback}. {point.effect}")
    lines += ["", "Layouts of torch's objects:"]
    lines.append(f"  {'nodes':15} {report['layout']}")
    lines.append(f"  {'tensors':15} {report['tensors']}")
    if report["tensors"] != _interception.LEARNED:
        lines.append(f"  {'':15} MemTracker, record and modscope run cannot be used here.")
    if "requests" in report:
        lines += ["", "What captures note of the GPU:"]
        for word, label in (("requests", "requests"), ("times", "times of calls")):
            is_right = report[word] == _interception.VERIFIED
            lines.append(f"  {label:15} {_interception.VERIFIED if is_right else f'not noted: {report[word]}'}")
    is_right = report["collectives"] == _interception.VERIFIED
    lines += ["", "What captures note of torch.distributed:"]
    lines.append(
        f"  {'collectives':15} {_interception.VERIFIED if is_right else 'not noted: ' + report['collectives']}"
    )
    lines += ["", "Virtual GPU:"]
    can_be = report["virtual"] == CAN_BE_INSTALLED
    lines.append(
        f"  {'cuda:0':15} {CAN_BE_INSTALLED}" if can_be else f"  {'cuda:0':15} cannot be installed: {report['virtual']}"
    )
    lines.append("")
    if not reasons:
        lines.append(
            "Everything is verified: no fallback is used, and torch.compile does not see modscope. There is nothing to do."
        )
    else:
        lines.append("modscope works, with the fallback where a point is not used.")
        lines.append(_advice(reasons))
    return "\n".join(lines)
