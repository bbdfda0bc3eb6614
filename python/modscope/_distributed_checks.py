"""Whether FSDP2 and DistributedDataParallel are as modscope knows them: each trains a small model under a tracker, in a
forked process with torch's fake process group, and the kinds are compared with what the model must hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from modscope import _interception, _native
from modscope._categories import Kind

__all__ = ["NOT_BUILT", "check_in_fork"]

NOT_BUILT = "this torch has no torch.distributed"
_LIMIT = 30_000  # milliseconds
_WIDTH, _RANKS = 64, 4
_BYTES = 4 * _WIDTH * _WIDTH  # of the model's only parameter


def _peak_of(step: Callable[[], Any], model: torch.nn.Module) -> dict[str, int]:
    """Bytes by kind at the peak of a function."""
    from modscope._mem_tracker import MemTracker

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
    from torch.distributed.fsdp import fully_shard

    from modscope._mem_tracker import MemTracker

    model, x = torch.nn.Linear(_WIDTH, _WIDTH, bias=False), torch.ones(1, _WIDTH)
    fully_shard(
        model, mesh=init_device_mesh("cpu", (_RANKS,))
    )  # without a mesh, FSDP2 moves the model to a GPU that is there
    sharded = {Kind.SHARDED_PARAM: _BYTES // _RANKS}
    with MemTracker():
        if not _native.intercept_fsdp():
            return _why_not_intercepted()
    with torch.no_grad():
        forward = _peak_of(lambda: model(x), model)
    backward = _peak_of(lambda: model(x).sum().backward(), model)
    return _compare(forward, {**sharded, Kind.UNSHARDED_PARAM: _BYTES, Kind.ALL_GATHER: _BYTES}) or _compare(
        backward, {**sharded, Kind.UNSHARDED_GRAD: _BYTES, Kind.REDUCE_SCATTER: _BYTES}
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


def _check() -> str:
    """A JSON object: for "fsdp" and "ddp" null, or why not."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed: Any = torch.distributed
    if distributed.is_initialized():
        distributed.destroy_process_group()
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=_RANKS)
    return json.dumps({"fsdp": _describe(_check_fsdp), "ddp": _describe(_check_ddp)})


def check_in_fork() -> dict[str, str | None]:
    """For "fsdp" and "ddp": None, or why what they hold has no kinds. This process does not change."""
    if not torch.distributed.is_available():
        return dict.fromkeys(("fsdp", "ddp"), NOT_BUILT)
    if _interception.is_forbidden():
        return dict.fromkeys(("fsdp", "ddp"), _interception.FORCED)
    if len(sys._current_frames()) > 1:
        return dict.fromkeys(("fsdp", "ddp"), "it was not tried, because this process has several threads")
    answer = _native.run_in_fork(_check, _LIMIT)
    if answer is None:
        return dict.fromkeys(("fsdp", "ddp"), "the process that tried it ended without an answer")
    found: dict[str, str | None] = json.loads(answer)
    return found
