"""Process groups of virtual ranks: what ``torch.distributed`` makes in place of NCCL's and gloo's.

torch's own fake backend has the ranks of a group; the collectives are those of collectives.py. What is passed as Python
objects is not sent as tensors: every other rank is taken to have passed the same.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed
import torch.multiprocessing

import torch
from modscope._virtual.operators.unknown import (
    no_rendezvous,
    other_rank_spawned,
    unknown_backend,
    unknown_objects,
    unknown_symmetric_memory,
)
from modscope._virtual.ranks import collectives, traffic

__all__ = ["installed"]

_distributed: Any = torch.distributed
_multiprocessing: Any = torch.multiprocessing
_c10d: Any = _distributed.distributed_c10d
_bindings: Any = torch._C._distributed_c10d
_Fake: Any = _bindings.FakeProcessGroup
_FAKES_ARE_CREATED = hasattr(_Fake, "_create_internal")
_split_returns = str(getattr(_distributed.split_group, "__annotations__", {}).get("return"))
_NOT_IN_SPLIT = _c10d.GroupMember.NON_GROUP_MEMBER if "NonGroupMember" in _split_returns else None
"""What split_group returns on a rank that is in no part of the group."""


# ---- backends ----


class _NcclOptions:
    """As ProcessGroupNCCL.Options: nothing here depends on them."""

    def __init__(self, is_high_priority_stream: bool = False, **_: Any) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config: Any = _NcclConfig()
        self._timeout = datetime.timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.split_from: Any = None
        self.split_color = 0


class _NcclConfig:
    """Stands for torch's NCCLConfig, and takes any setting."""


class _MadeOfFakes(type):
    """Classes that stand for a backend: their instances are torch's fake groups."""

    def __call__(cls, store: Any, rank: int, size: int, *args: Any, **options: Any) -> Any:
        return _Fake._create_internal(rank, size, _Fake.Options()) if _FAKES_ARE_CREATED else _Fake(rank, size)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Fake)


class _Nccl(metaclass=_MadeOfFakes):
    Options = _NcclOptions
    NCCLConfig = _NcclConfig


class _Gloo(metaclass=_MadeOfFakes):
    pass


_NCCL_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""The backends that torch makes for "nccl" and its variants; from 2.15 on "nccl" is the second."""


def _backend_attributes() -> list[tuple[Any, str, Any]]:
    available: Callable[[], bool] = lambda: True
    found: list[tuple[Any, str, Any]] = [(_Fake, "_set_sequence_number_for_group", lambda group: None)]
    if not hasattr(_Fake, "options"):  # before torch 2.9
        found.append((_Fake, "options", _NcclOptions()))
    # DDP's, which reads the GPU's own timer
    found.append((_bindings.Logger, "set_runtime_stats_and_log", lambda logger: None))
    for module in (_distributed, _c10d):
        found += [(module, name, _Nccl) for name in _NCCL_CLASSES] + [(module, "ProcessGroupGloo", _Gloo)]
        found += [(module, "is_nccl_available", available), (module, "is_gloo_available", available)]
    if hasattr(_c10d, "_get_split_source"):  # no communicator is split: a group is made as any other
        found.append((_c10d, "_get_split_source", lambda *_: None))
    found += [(_c10d, "_NCCL_AVAILABLE", True), (_c10d, "default_pg_nccl_timeout", datetime.timedelta(minutes=10))]
    return found


# ---- making groups ----


def _initializing(ranks: collectives.Ranks, wanted: Callable[[int], None]) -> Callable[..., None]:
    original = _distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **options: Any,
    ) -> None:
        wanted(world_size)
        _check_backend(backend)
        options = {name: options[name] for name in ("group_name", "pg_options", "device_id") if name in options}
        original(
            backend, timeout=timeout, world_size=ranks.size, rank=ranks.rank, store=_distributed.HashStore(), **options
        )

    return init_process_group


def _check_backend(backend: Any) -> None:
    """``backend``: a name such as nccl, cpu:gloo,cuda:nccl, or None for torch's own choice."""
    for part in filter(None, str(backend or "").lower().split(",")):
        name = part.rpartition(":")[2].strip()
        if name not in ("nccl", "gloo", "fake", "undefined"):
            raise unknown_backend(name)


class _LoneStore(_distributed.TCPStore):  # type: ignore[misc]
    """A store that a script makes itself: it does not wait for other ranks."""

    def __init__(
        self, host_name: str, port: int = 0, world_size: int | None = None, *args: Any, **options: Any
    ) -> None:
        super().__init__("localhost", 0, None, True, wait_for_workers=False)


def _refusing_symmetric_memory() -> list[tuple[Any, str, Any]]:
    owner = getattr(_bindings, "_SymmetricMemory", None)

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            raise unknown_symmetric_memory(f"torch.distributed._symmetric_memory.{name}")

        return refuse

    called = {"empty_strided_p2p": "empty", "get_mempool_allocator": "empty", "rendezvous": "rendezvous"}
    return [(owner, name, refusing(shown)) for name, shown in called.items() if hasattr(owner, name)]


def _refuse_to_meet(*args: Any, **options: Any) -> Any:
    raise no_rendezvous()


def _refuse_rendezvous(*args: Any, **options: Any) -> Any:
    """torch's own init_process_group would wait for other ranks, which do not exist."""
    raise RuntimeError(
        "init_process_group was imported before there were virtual ranks. Call "
        "torch.distributed.init_process_group, or import it later"
    )


def _spawning(ranks: collectives.Ranks) -> Callable[..., Any]:
    """torch.multiprocessing.spawn starts a process for each rank; here its function runs as the first one, in this
    process."""
    original = _multiprocessing.spawn

    @functools.wraps(original)
    def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
        if nprocs == 1:
            return original(fn, args, nprocs, *more, **options)
        if ranks.rank:
            raise other_rank_spawned(ranks.rank)
        fn(0, *args)
        return None if options.get("join", more[0] if more else True) else _Joined()

    return spawn


class _Joined:
    """As the context that torch.multiprocessing.spawn returns, when all have ended."""

    def join(self, *args: Any, **options: Any) -> bool:
        return True


def _split_group(
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: Any = None,
    backend: Any = None,
) -> Any:
    """As torch.distributed.split_group: this rank's part of a group."""
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    parent = parent_pg or _c10d.GroupMember.WORLD
    of_parent = _distributed.get_process_group_ranks(parent)
    mine = _distributed.get_group_rank(parent, _distributed.get_rank())
    for part in split_ranks:
        if mine in part:
            ranks = [of_parent[i] for i in part]
            return _distributed.new_group(ranks, timeout=timeout, backend=backend, group_desc=group_desc)
    return _NOT_IN_SPLIT


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's wait_tensor; the current stream waits for the collectives that were launched so far."""

    @functools.wraps(original)
    def wait_tensor(tensor: Any) -> Any:
        traffic.wait_for_all()
        return original(tensor)

    return wait_tensor


# ---- objects ----


def _sent(value: Any, group: Any, copies: int = 1) -> Any:
    """A copy of an object, as another rank would get it. Its bytes are on the GPU meanwhile, if the group is the
    GPU's."""
    data = pickle.dumps(value)
    device = _c10d._get_object_coll_device(group)
    buffers = [torch.empty(len(data), dtype=torch.uint8, device=device)]
    if copies > 1:
        buffers.append(torch.empty(copies * len(data), dtype=torch.uint8, device=device))
    return pickle.loads(data)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    count = _distributed.get_world_size(group)
    copied = _sent(obj, group, count)
    object_list[:count] = [copied] * count


def _gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, *args: Any, group: Any = None, **options: Any
) -> None:
    group = args[1] if len(args) > 1 else group
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj, group)


def _global_rank(rank: Any, group: Any, in_group: Any) -> int:
    return int(
        rank if rank is not None else _distributed.get_global_rank(group or _c10d.GroupMember.WORLD, in_group or 0)
    )


def _others(ranks: collectives.Ranks, group: Any) -> list[tuple[int, int]]:
    """The other ranks of a group: their numbers in it, and in the world."""
    members = _distributed.get_process_group_ranks(group or _c10d.GroupMember.WORLD)
    return [(number, member) for number, member in enumerate(members) if member != ranks.rank]


def _broadcasting(ranks: collectives.Ranks) -> Callable[..., Any]:
    def broadcast_object_list(
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        device: Any = None,
        group_src: Any = None,
        **options: Any,
    ) -> None:
        source = _global_rank(src, group, group_src)
        if ranks.messages is not None and source != ranks.rank:
            object_list[:] = ranks.messages.receive(source)
        elif ranks.messages is not None:
            for _, other in _others(ranks, group):
                ranks.messages.send(other, list(object_list))
        _sent(list(object_list), group)

    return broadcast_object_list


def _scattering(ranks: collectives.Ranks) -> Callable[..., Any]:
    def scatter_object_list(
        outputs: list[Any],
        inputs: Sequence[Any] | None = None,
        src: Any = None,
        group: Any = None,
        group_src: Any = None,
        **options: Any,
    ) -> None:
        source = _global_rank(src, group, group_src)
        if ranks.messages is not None and source != ranks.rank:
            outputs[0] = _sent(ranks.messages.receive(source), group)
            return
        if inputs is None:
            raise unknown_objects("scatter_object_list")
        if ranks.messages is not None:
            for number, other in _others(ranks, group):
                ranks.messages.send(other, inputs[number])
        outputs[0] = _sent(inputs[_distributed.get_rank(group)], group)

    return scatter_object_list


def _sending(ranks: collectives.Ranks) -> Callable[..., Any]:
    def send_object_list(
        object_list: list[Any],
        dst: Any = None,
        group: Any = None,
        device: Any = None,
        group_dst: Any = None,
        **options: Any,
    ) -> None:
        _sent(list(object_list), group)
        if ranks.messages is not None:
            ranks.messages.send(_global_rank(dst, group, group_dst), list(object_list))

    return send_object_list


def _receiving(ranks: collectives.Ranks) -> Callable[..., Any]:
    def recv_object_list(
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        device: Any = None,
        group_src: Any = None,
        **options: Any,
    ) -> int:
        if ranks.messages is None:
            raise unknown_objects("recv_object_list")
        source = _global_rank(src, group, group_src)
        object_list[:] = _sent(ranks.messages.receive(source), group)
        return source

    return recv_object_list


_OBJECTS: dict[str, Callable[..., Any]] = {"all_gather_object": _all_gather_object, "gather_object": _gather_object}


# ---- installation ----


@contextlib.contextmanager
def installed(ranks: collectives.Ranks, wanted: Callable[[int], None]) -> Iterator[None]:
    """While this is entered, process groups have these ranks. ``wanted`` is told of the sizes that the script asks
    for."""
    import torch.distributed._functional_collectives as functional
    import torch.distributed.device_mesh as device_mesh

    attributes = _backend_attributes()
    initialize = _initializing(ranks, wanted)
    for module in (_distributed, _c10d):
        attributes += [(module, "init_process_group", initialize), (module, "split_group", _split_group)]
        attributes += [(module, name, function) for name, function in _OBJECTS.items()]
        attributes += [(module, "send_object_list", _sending(ranks)), (module, "recv_object_list", _receiving(ranks))]
        attributes += [
            (module, "broadcast_object_list", _broadcasting(ranks)),
            (module, "scatter_object_list", _scattering(ranks)),
        ]
    attributes += [(_c10d, "rendezvous", _refuse_rendezvous), (_distributed, "rendezvous", _refuse_to_meet)]
    attributes += [(module, "TCPStore", _LoneStore) for module in (_distributed, _c10d) if hasattr(module, "TCPStore")]
    attributes += [*_refusing_symmetric_memory(), (_multiprocessing, "spawn", _spawning(ranks))]
    attributes.append((functional, "wait_tensor", _waiting(functional.wait_tensor)))
    attributes += [(device_mesh, "init_process_group", initialize), (device_mesh, "split_group", _split_group)]
    with contextlib.ExitStack() as undo:
        for owner, name, value in attributes:
            undo.enter_context(_attribute(owner, name, value))
        undo.enter_context(collectives.registered(ranks))
        yield


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    absent = object()
    before = vars(owner).get(name, absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
