"""Collectives of torch.distributed in captures: what C asks Python for, and whether C sees them as they are
launched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from modscope import _native
from modscope._torch import interception
from modscope._torch.probes import undisturbed

__all__ = ["describe_ranks", "name_groups", "name_of_group", "prepare", "result", "verify"]


def describe_ranks(ranks: Sequence[int]) -> str:
    """Ranks as a short text: "0-7", "0-56:8" for every eighth one, "1,5-7"."""
    parts = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        to = at
        while step > 0 and to + 1 < len(ranks) and ranks[to + 1] - ranks[to] == step:
            to += 1
        if to - at < 2 and step != 1:
            to = at
        parts.append(str(ranks[at]) if to == at else f"{ranks[at]}-{ranks[to]}" + (f":{step}" if step > 1 else ""))
        at = to + 1
    return ",".join(parts)


def _backends_of(group: Any) -> Iterator[Any]:
    """The backends of a group, and what they wrap."""
    for device in group._device_types:
        with contextlib.suppress(RuntimeError):  # the group has no backend for this device
            backend = group._get_backend(device)
            while backend is not None:
                yield backend
                backend = getattr(backend, "wrapped_pg", None)


def name_of_group(group: Any) -> str:
    """What torch says a group is for, else its number."""
    title = str(getattr(group, "group_desc", "") or "")
    return title if title and title != "undefined" else f"group {group.group_name}"


def _name_of_backend(group: Any, backend: Any) -> str:
    try:
        return str(backend.name())
    except RuntimeError:  # the fake one of torch 2.8 does not know its own
        return str(torch.distributed.get_backend(group))


def name_groups() -> None:
    """Tell C what the groups are that exist now. C calls this when it has seen one that it does not know."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    for group in list(torch.distributed.distributed_c10d._world.pg_map):
        with contextlib.suppress(Exception):  # a group of the program's own class may lack anything; it stays unnamed
            ranks = torch.distributed.get_process_group_ranks(group)
            for backend in _backends_of(group):
                _native.name_collective_group(
                    _native.backend_key(backend),
                    name_of_group(group),
                    _name_of_backend(group, backend),
                    describe_ranks(ranks),
                    len(ranks),
                )


# ---- verification ----


def _calls(backend: Any) -> Iterable[tuple[str, str, int, Any]]:
    """Collectives that a backend can launch alone: its function in C, kind, bytes, and what launches it."""

    def new(elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=torch.float16, device="meta")  # takes no memory, which trackers would count

    two = [new(3), new(3)]
    return [
        ("allreduce", "all_reduce", 14, lambda: backend.allreduce([new(7)])),
        ("allreduce_coalesced", "all_reduce", 10, lambda: backend.allreduce_coalesced([new(1), new(4)])),
        ("broadcast", "broadcast", 22, lambda: backend.broadcast([new(11)])),
        ("reduce", "reduce", 8, lambda: backend.reduce([new(4)])),
        ("allgather", "all_gather", 12, lambda: backend.allgather([two], [new(3)])),
        ("allgather_base", "all_gather", 20, lambda: backend._allgather_base(new(10), new(5))),
        ("all_gather_single", "all_gather", 20, lambda: backend.all_gather_single(new(10), new(5))),
        ("reduce_scatter", "reduce_scatter", 12, lambda: backend.reduce_scatter([new(3)], [two])),
        ("reduce_scatter_base", "reduce_scatter", 24, lambda: backend._reduce_scatter_base(new(6), new(12))),
        ("reduce_scatter_single", "reduce_scatter", 24, lambda: backend.reduce_scatter_single(new(6), new(12))),
        (
            "reduce_scatter_single_coalesced",
            "reduce_scatter",
            6,
            lambda: backend.reduce_scatter_single_coalesced([new(1), new(2)], [new(2), new(4)]),
        ),
        ("alltoall_base", "all_to_all", 16, lambda: backend.alltoall_base(new(8), new(8), [4, 4], [4, 4])),
        ("all_to_all_single", "all_to_all", 16, lambda: backend.all_to_all_single(new(8), new(8), [4, 4], [4, 4])),
        ("alltoall", "all_to_all", 12, lambda: backend.alltoall(two, two)),
        ("gather", "gather", 12, lambda: backend.gather([two], [new(3)])),
        ("gather_single", "gather", 20, lambda: backend.gather_single(new(10), new(5))),
        ("scatter", "scatter", 12, lambda: backend.scatter([new(3)], [two])),
        ("send", "send", 18, lambda: backend.send([new(9)], 1, 0)),
        ("recv", "recv", 26, lambda: backend.recv([new(13)], 1, 0)),
        ("barrier", "barrier", 0, lambda: backend.barrier()),
    ]


def verify(backend: Any) -> bool:
    """Whether the collectives of a backend are seen as they are launched."""
    _native.intercept_collectives(True)
    try:
        for function, kind, bytes, launch in _calls(backend):
            if not _native.finds_collective(function):  # torch's own backends do not have it either
                continue
            before = _native.last_collective()[0]
            try:
                launch()
            except (TypeError, RuntimeError, AttributeError):  # this version of torch has another signature
                continue
            if _native.last_collective() != (before + 1, kind, bytes):
                return False
        return True
    finally:
        _native.intercept_collectives(False)


_prepared = False


def prepare() -> None:
    """Before the first capture of the process: find the functions of torch's backends and verify that C sees them.
    torch's fake backend, whose collectives do nothing, is used for that."""
    global _prepared
    if _prepared or not torch.distributed.is_available():
        return
    _prepared = True
    if interception.is_forbidden():
        _native.forget_collectives(interception.FORCED)
        return
    kind = getattr(getattr(torch._C, "_distributed_c10d", None), "FakeProcessGroup", None)
    if kind is None:
        return
    with undisturbed(), torch.no_grad():
        backend = getattr(kind, "_create_internal", kind)(0, 2)  # torch 2.9 and later have the function
        if _native.add_backend_class(backend, "libtorch_python") and not verify(backend):
            _native.forget_collectives("a collective was not seen as it was launched")


def result() -> str:
    """Whether captures note the collectives of real runs: "verified", perhaps but for some kinds, or why not. For
    ``doctor``."""
    if not torch.distributed.is_available():
        return "this torch has no torch.distributed"
    prepare()
    _native.intercept_collectives(True)
    _native.intercept_collectives(False)
    missing = ", ".join(_native.collectives_not_found())
    but = f", but for {missing}, which this torch launches in another way" if missing else ""
    return _native.collectives_unknown() or interception.VERIFIED + but
