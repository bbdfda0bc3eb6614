"""Collectives of virtual ranks: they move nothing, take the memory that NCCL's process group takes, and end at once.

torch passes every collective to an operator of its own (``c10d::allreduce_``), whose kernel asks the process group.
These kernels stand in their place. Every other rank is taken to hold what this one holds: what is gathered from the
others is this rank's own, and what is reduced stays as it is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from modscope import _native
from modscope._torch.collectives import describe_ranks, name_of_group
from modscope._virtual.gpus import GPUS, Gpu
from modscope._virtual.operators import known, operators
from modscope._virtual.operators.unknown import sparse_collective, unknown_collective, unknown_symmetric_memory
from modscope._virtual.ranks import network, traffic
from modscope._virtual.ranks.messages import Messages
from modscope._virtual.time import times

__all__ = ["Ranks", "registered"]


class _Done(list[Any]):
    """The result of a collective: its tensors. It lies in the future of its work."""

    ends: traffic.Ends | None = None
    held: Sequence[Any] = ()
    """Tensors that the process group holds until somebody waits for the work."""
    source: int = 0
    """Of a message from any rank: from which one of the group it is taken to come."""


class Ranks:
    """The virtual ranks: which one this is, how many there are, and which groups of them communicate."""

    def __init__(
        self,
        rank: int,
        size: int,
        per_node: int,
        gpus: Sequence[Gpu],
        taken: Callable[[int], None] = lambda bytes: None,
    ) -> None:
        """``gpus``: the GPU, and others whose times are wanted. ``taken`` is told what communicators take of the
        GPU."""
        self.rank = rank
        self.size = size
        self.messages: Messages | None = None
        """To other ranks, if they are predicted at the same time."""
        self.per_node = per_node
        self._gpus = [gpu if gpu.speed else gpu._replace(speed=GPUS["h100"].speed) for gpu in gpus]
        self._taken = taken
        self._groups: dict[str, tuple[int, ...]] = {}
        """The communicators: the ranks of each group that has used the GPU, by its name."""
        self._keys: dict[tuple[str, str], int] = {}
        """The numbers by which captures know groups, by name and backend."""
        self._over_nccl: dict[str, bool] = {}
        self.bytes: dict[str, int] = {}
        """What went through collectives of the GPU, by their kind."""

    def communicators(self) -> list[tuple[int, ...]]:
        return [ranks for ranks in self._groups.values() if len(ranks) > 1]

    def communicator_bytes(self) -> int:
        """What NCCL takes of the GPU for them, about."""
        return sum(network.communicator_bytes(len(ranks)) for ranks in self.communicators())

    def ranks_of(self, group: Any) -> tuple[int, ...]:
        found = self._groups.get(group.group_name)
        if found is None:
            found = self._groups[group.group_name] = tuple(sorted(torch.distributed.get_process_group_ranks(group)))
            self._taken(self.communicator_bytes())
        return found

    def new_traffic(self) -> traffic.Traffic:
        return traffic.Traffic(len(self._gpus))

    def run(self, kind: str, bytes: int, counted: int, group: Any) -> traffic.Ends | None:
        """A collective of the GPU that moves so many bytes, of which results and captures say ``counted``. Returns when
        it ends."""
        ranks = self.ranks_of(group)
        self.bytes[kind] = self.bytes.get(kind, 0) + counted
        times.launch()
        seconds = [network.seconds(gpu, kind, bytes, ranks, self.per_node) for gpu in self._gpus]
        ends = None if traffic.current is None else traffic.current.run(seconds)
        wait = 0.0 if ends is None else ends[0] - seconds[0] - times.now()
        self._note(kind, counted, group, "nccl", ranks, max(wait, 0.0), 0.0 if ends is None else seconds[0])
        return ends

    def is_nccl(self, group: Any) -> bool:
        """Whether tensors of the GPU go through NCCL in this group: gloo takes them too, by way of the CPU."""
        name = group.group_name
        if name not in self._over_nccl:
            devices = dict(
                part.split(":") for part in torch.distributed.get_backend_config(group).split(",") if ":" in part
            )
            self._over_nccl[name] = devices.get("cuda", "nccl") != "gloo"
        return self._over_nccl[name]

    def run_over_gloo(self, kind: str, bytes: int, group: Any) -> None:
        """A collective over gloo, whose time is not known."""
        self._note(
            kind, bytes, group, "gloo", tuple(sorted(torch.distributed.get_process_group_ranks(group))), 0.0, 0.0
        )

    def _note(
        self, kind: str, bytes: int, group: Any, backend: str, ranks: tuple[int, ...], wait: float, seconds: float
    ) -> None:
        """For captures: a collective begins in ``wait`` seconds and takes ``seconds``."""
        key = self._keys.setdefault((group.group_name, backend), len(self._keys) + 1)
        _native.name_collective_group(key, name_of_group(group), backend, describe_ranks(ranks), len(ranks))
        _native.note_collective(kind, bytes, key, round(wait * 1e9), round(seconds * 1e9))


# ---- the memory of NCCL's process group ----


def _flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The buffer through which NCCL gathers into tensors of one size, or scatters from them. It takes them one by one
    if their sizes differ."""
    first = tensors[0] if tensors else None
    if first is None or any(tensor.shape != first.shape for tensor in tensors):
        return []
    return [operators.make((len(tensors), *first.shape), _contiguous((len(tensors), *first.shape)), first.dtype)]


def _contiguous(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _flat_of_lists(lists: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [buffer for tensors in lists for buffer in _flat(tensors)]


def _barrier_tensor(_: Any) -> list[torch.Tensor]:
    return [operators.make((1,), (1,), torch.float32)]


# ---- values ----


def _tell(target: torch.Tensor, source: torch.Tensor) -> None:
    """A target of any multiple of the source's elements gets its values that often."""
    if target.device.type == "cpu":
        target.copy_(source.reshape(-1).repeat(_times(target, source)).view(target.shape))
        return
    values = known.values_of(source)
    if values is None or target.numel() > known.LARGEST:
        known.copy_distribution(source, target)
    else:
        known.tell(target, values.reshape(-1).repeat(_times(target, source)).view(target.shape))


def _times(target: torch.Tensor, source: torch.Tensor) -> int:
    return target.numel() // max(source.numel(), 1)


def _gathered(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    for output, source in zip(outputs, inputs, strict=False):
        if source.numel() and output.numel() % source.numel() == 0:
            _tell(output, source)


def _gathered_lists(outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
    for tensors, source in zip(outputs, inputs, strict=False):
        for output in tensors:
            if output.shape == source.shape:
                _tell(output, source)


def _mailed(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the values of messages like these are passed on: both sides must answer the same."""
    return all(
        not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() <= known.LARGEST
        for tensor in tensors
    )


def _send_values(messages: Messages, to: int, tensors: Sequence[torch.Tensor]) -> None:
    if _mailed(tensors):
        values = [known.values_of(tensor) for tensor in tensors]
        messages.send(to, [None if value is None else value.reshape(-1).tolist() for value in values])


def _receive_values(messages: Messages, source: int, tensors: Sequence[torch.Tensor]) -> None:
    if _mailed(tensors):
        for tensor, values in zip(tensors, messages.receive(source), strict=True):
            if values is not None:
                _tell(tensor, torch.tensor(values, dtype=tensor.dtype).view(tensor.shape))


# ---- the kernels ----


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _tensors(item)


def _bytes(argument: Any) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in _tensors(argument))


class _Collective:
    """What is special about a collective. ``inputs``: the position of its argument."""

    def __init__(
        self,
        name: str,
        inputs: int = 0,
        buffer: Callable[[Any], list[torch.Tensor]] | None = None,
        buffer_of: int = 0,
        values: Callable[[Any, Any], None] | None = None,
        message: Callable[[Messages, int, Any], None] | None = None,
        counts_outputs: bool = False,
    ) -> None:
        """``counts_outputs``: its bytes are those of its outputs, not the larger ones."""
        self.counts_outputs = counts_outputs
        self.message = message
        self.name = name
        self.inputs = inputs
        self.buffer = buffer
        self.buffer_of = buffer_of
        self.values = values


def _one(function: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    return lambda output, source: function([output], [source])


_KINDS = {
    "allreduce_": _Collective("all_reduce"),
    "allreduce_coalesced_": _Collective("all_reduce"),
    "broadcast_": _Collective("broadcast"),
    "reduce_": _Collective("reduce"),
    "allgather_": _Collective("all_gather", 1, _flat_of_lists, 0, _gathered_lists),
    "_allgather_base_": _Collective("all_gather", 1, values=_one(_gathered)),
    "allgather_coalesced_": _Collective("all_gather", 1),
    "allgather_into_tensor_coalesced_": _Collective("all_gather", 1, values=_gathered),
    "reduce_scatter_": _Collective("reduce_scatter", 1, _flat_of_lists, 1),
    "_reduce_scatter_base_": _Collective("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": _Collective("reduce_scatter", 1, counts_outputs=True),
    "alltoall_": _Collective("all_to_all", 1, values=_gathered),
    "alltoall_base_": _Collective("all_to_all", 1, values=_one(_gathered)),
    "gather_": _Collective("gather", 1, values=_gathered_lists),
    "gather_into_tensor_": _Collective("gather", 1, values=_one(_gathered)),
    "scatter_": _Collective("scatter", 1),
    "send": _Collective("send", message=_send_values),
    "recv_": _Collective("recv", message=_receive_values),
    "recv_any_source_": _Collective("recv"),
    "barrier": _Collective("barrier", 0, _barrier_tensor),
}
"""By the name of the operator."""
_NOTHING_RETURNED = ("monitored_barrier_",)


def _work(done: _Done) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(done)
    return getattr(torch._C, "_distributed_c10d")._create_work_from_future(future).boxed()


def _kernel(op: Any, kind: _Collective, ranks: Ranks, of_gpu: bool) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    group_at = names.index("process_group")
    async_at = names.index("async_op") if "async_op" in names else None
    returns_outputs = len(op._schema.returns) == 2

    def run(*args: Any) -> Any:
        outputs = args[0]
        done = _Done(_tensors(outputs))
        group = torch.distributed.ProcessGroup.unbox(args[group_at])
        done.source = int(group.rank() == 0)
        size = 0 if kind.name == "barrier" else max(_bytes(outputs), _bytes(args[kind.inputs]))
        counted = _bytes(outputs) if kind.counts_outputs else size
        if of_gpu and ranks.is_nccl(group):
            buffers = kind.buffer(args[kind.buffer_of]) if kind.buffer else []
            if async_at is None or len(args) <= async_at or args[async_at]:
                done.held = [*buffers, *_tensors(args[kind.inputs])]
            done.ends = ranks.run(kind.name, size, counted, group)
        else:
            ranks.run_over_gloo(kind.name, counted, group)
        with torch.no_grad():
            if kind.values is not None:
                kind.values(outputs, args[kind.inputs])
            elif kind.message is not None and ranks.messages is not None:
                kind.message(ranks.messages, torch.distributed.get_global_rank(group, args[2]), outputs)
        return (outputs, _work(done)) if returns_outputs else _work(done)

    return run


def _refusing(name: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise unknown_collective(name)

    return run


def _refuse_sparse(*args: Any) -> Any:
    raise sparse_collective()


def _operators() -> Iterator[tuple[str, Any]]:
    """The collectives of this torch, by the names of their operators."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "c10d" and "." not in name:
            op = getattr(torch.ops.c10d, name).default
            if any(argument.name == "process_group" for argument in op._schema.arguments):
                yield name, op


def _register(library: Any, ranks: Ranks) -> None:
    for name, op in _operators():
        for key in ("CUDA", "CPU"):
            if name in _NOTHING_RETURNED:
                kernel: Callable[..., Any] = lambda *_: None
            elif name in _KINDS:
                kernel = _kernel(op, _KINDS[name], ranks, key == "CUDA")
            else:
                kernel = _refusing(f"c10d::{name}")
            # dynamo would compile the Python code of a kernel that a compiled program calls
            library.impl(name, key, _native.operator_kernel(kernel, None, None, True), False)
    library.impl("allreduce_", "SparseCUDA", _refuse_sparse, False)


def _refuse_symmetric_memory(library: Any) -> None:
    """The operators of symmetric memory: their fake kernels would answer, or those for CUDA that write to it."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "symm_mem":
            library.impl(name, "CUDA", _refusing_symmetric(full), False)


def _refusing_symmetric(name: str) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise unknown_symmetric_memory(name)

    return run


# ---- waiting ----


def _wait(work: Any) -> None:
    """The current stream waits for a collective, and the group no longer holds its tensors."""
    try:
        done = work.get_future().value()
    except RuntimeError:  # a work that torch made itself has no future
        return
    if isinstance(done, _Done):
        traffic.wait_for(done.ends)
        done.held = ()


@contextlib.contextmanager
def _waits_noticed() -> Iterator[None]:
    """Programs that wait for a work in Python are noticed. What is received from any rank comes from the first other
    one."""
    kind: Any = torch.distributed.Work
    original, source_rank = kind.wait, kind._source_rank

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        _wait(work)
        return original(work, *args, **kwargs)

    def find_source(work: Any) -> int:
        done = work.get_future().value()
        return done.source if isinstance(done, _Done) else 0

    kind.wait, kind._source_rank = wait, find_source
    try:
        yield
    finally:
        kind.wait, kind._source_rank = original, source_rank


@contextlib.contextmanager
def registered(ranks: Ranks) -> Iterator[None]:
    """While this is entered, collectives are those of these ranks."""
    import warnings

    library, of_symmetric_memory = (
        torch._C._dispatch_library("IMPL", namespace, "") for namespace in ("c10d", "symm_mem")
    )
    before, traffic.current = traffic.current, ranks.new_traffic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says once that a kernel is replaced
            _register(library, ranks)
            _refuse_symmetric_memory(of_symmetric_memory)
        with _waits_noticed():
            yield
    finally:
        traffic.current = before
        library.reset()
        of_symmetric_memory.reset()
