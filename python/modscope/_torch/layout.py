"""Learn at which byte offsets this torch keeps what modscope reads from nodes and tensors.

torch's C++ classes differ between versions and builds. An offset is learned by example: several objects are made
whose values are known, and the offset is the only word at which every object holds its own value. If no word or
more than one qualifies, the offset is -1 and the caller uses the fallback.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from modscope import _native
from modscope._torch.probes import CloneFunction, make_leaf, run_in_thread, undisturbed

_WORD = 8  # bytes

# A C++ node's Python object is: reference count, type, pointer to the node, ...
_NODE_POINTER = 2


def _offset(candidates: Iterable[int]) -> int:
    """The offset in bytes of the only candidate word; -1 if there is none or more than one."""
    found = list(candidates)
    return _WORD * found[0] if len(found) == 1 else -1


def _offset_of_values(samples: Iterable[tuple[list[int], int]]) -> int:
    """The offset in bytes of the only word that holds the sample's value in every sample; else -1."""
    found = [{i for i, word in enumerate(words) if word == value} for words, value in samples]
    return _offset(set.intersection(*found))


# ---- nodes ----


class NodeLayout(NamedTuple):
    """Offsets in bytes; -1 is unknown. ``number`` and ``creator`` are both known or both unknown."""

    number: int
    """The offset of the node number in a node."""
    creator: int
    """The offset, in a node, of the id of the thread that created it."""
    function: int
    """The offset of the node in the Python object of a custom Function's node."""
    object: int
    """The offset of this Python object in the node."""
    custom: int
    """The first word of each custom Function's node, by which it is recognized; 0: that or ``object`` is unknown."""


UNKNOWN_NODES = NodeLayout(-1, -1, -1, -1, 0)


class _Sample(NamedTuple):
    number: int
    creator: int
    object: int  # the address of the node's Python object
    words: list[int]  # the words of that object
    graph: torch.Tensor  # keeps the node alive


def _make_nodes(operator: Callable[[torch.Tensor], torch.Tensor]) -> list[_Sample]:
    """Create four nodes in the calling thread."""
    with undisturbed():
        y = make_leaf()
        samples = []
        for _ in range(4):
            y = operator(y.abs())
            node: Any = y.grad_fn
            samples.append(_Sample(node._sequence_nr(), _native.thread_id(), id(node), _native.object_words(node), y))
        return samples


def _make_samples(operator: Callable[[torch.Tensor], torch.Tensor]) -> list[_Sample]:
    """Create nodes in three threads, so that no word agrees with the numbers and creators by chance."""
    here = functools.partial(_make_nodes, operator)
    return [*here(), *run_in_thread(here), *run_in_thread(here), *here()]


def learn_nodes() -> NodeLayout:
    nodes = [(sample, _native.read_node_words(sample.words[_NODE_POINTER])) for sample in _make_samples(torch.neg)]
    indices = range(min(len(words) for _, words in nodes))
    number = _offset(i for i in indices if all(words[i] == sample.number for sample, words in nodes))
    creator = _offset(i for i in indices if all(words[i] == sample.creator for sample, words in nodes))
    if number < 0 or creator < 0:
        return UNKNOWN_NODES

    def points_to_node(sample: _Sample, index: int) -> bool:
        words = _native.read_node_words(sample.words[index])
        return bool(words) and words[number // _WORD] == sample.number and words[creator // _WORD] == sample.creator

    custom = _make_samples(CloneFunction.apply)
    indices = range(_NODE_POINTER, min(len(sample.words) for sample in custom))
    function = _offset(i for i in indices if all(points_to_node(sample, i) for sample in custom))
    if function < 0:
        return NodeLayout(number, creator, function, -1, 0)
    memory = [_native.read_memory(sample.words[function // _WORD], _SEARCHED["node"]) for sample in custom]
    held = _offset_of_values((words, sample.object) for words, sample in zip(memory, custom))
    tables = {words[0] for words in memory if words}
    return NodeLayout(number, creator, function, held, tables.pop() if held >= 0 and len(tables) == 1 else 0)


# ---- tensors ----

# How many words of each object are searched.
_SEARCHED = {"impl": 24, "storage": 16, "meta": 32, "node": 96}


def _learn_storage(tensors: list[torch.Tensor]) -> dict[str, int]:
    storages = [tensor.untyped_storage() for tensor in tensors]
    impls = [_native.read_memory(tensor._cdata, _SEARCHED["impl"]) for tensor in tensors]
    words = [_native.read_memory(storage._cdata, _SEARCHED["storage"]) for storage in storages]
    buffer = torch.frombuffer(bytearray(64), dtype=torch.uint8)  # its memory is not from torch's allocator
    borrowed = _native.read_memory(buffer.untyped_storage()._cdata, _SEARCHED["storage"])
    meta_tensor = torch.empty(3, device="meta")
    meta = _native.read_memory(meta_tensor.untyped_storage()._cdata, _SEARCHED["storage"])

    def is_device(i: int) -> bool:
        """A device is two bytes, type and index; the CPU's are 0 and -1."""
        return all(w[i] & 0xFFFF == 0xFF00 for w in words) and meta[i] & 0xFF00 == 0xFF00 and meta[i] & 0xFF != 0

    def is_deleter(i: int) -> bool:
        """The function that frees the memory: one for all blocks of an allocator, another for a borrowed buffer."""
        return words[0][i] != 0 and all(w[i] == words[0][i] for w in words) and borrowed[i] not in (0, words[0][i])

    pointers = [*((w, storage.data_ptr()) for w, storage in zip(words, storages)), (borrowed, buffer.data_ptr())]
    data = _offset_of_values(pointers)
    device = _offset(filter(is_device, range(_SEARCHED["storage"])))
    return {
        "object": _offset_of_values((_native.object_words(tensor), tensor._cdata) for tensor in tensors),
        "storage": _offset_of_values((w, storage._cdata) for w, storage in zip(impls, storages)),
        "data": data,
        "deleter": _offset(filter(is_deleter, range(data // _WORD + 1, device // _WORD))),
        "device": device,
        "size": _offset_of_values((w, storage.nbytes()) for w, storage in zip(words, storages)),
    }


def _learn_gradient(leaves: list[torch.Tensor]) -> dict[str, int]:
    """The gradient is found in two steps: TensorImpl -> autograd metadata -> gradient."""
    found: list[set[tuple[int, int]]] = []
    for leaf in leaves:
        assert leaf.grad is not None
        pairs = set()
        for i, word in enumerate(_native.read_memory(leaf._cdata, _SEARCHED["impl"])):
            words = _native.read_memory(word, _SEARCHED["meta"]) if word % _WORD == 0 and word > 4096 else []
            pairs |= {(_WORD * i, _WORD * k) for k, inner in enumerate(words) if inner == leaf.grad._cdata}
        found.append(pairs)
    common = set.intersection(*found)
    meta, grad = common.pop() if len(common) == 1 else (-1, -1)
    return {"meta": meta, "grad": grad}


def _learn_accumulation(leaves: list[torch.Tensor]) -> dict[str, int]:
    """AccumulateGrad nodes: where they keep their variable, and their vtable, by which they are recognized."""
    nodes = []
    for leaf in leaves:
        view = leaf.expand_as(leaf)
        assert view.grad_fn is not None
        node = view.grad_fn.next_functions[0][0]
        nodes.append(_native.read_memory(_native.object_words(node)[_NODE_POINTER], _SEARCHED["node"]))
    vtables = {words[0] for words in nodes}
    variable = _offset_of_values((words, leaf._cdata) for words, leaf in zip(nodes, leaves))
    return {"variable": variable, "accumulate": vtables.pop() if len(vtables) == 1 and variable >= 0 else 0}


def _learn_shapes() -> dict[str, int]:
    """Where the lengths of dimensions are, after their number, and the number of the dtype."""
    dtypes = {0: torch.uint8, 4: torch.int64, 6: torch.float32, 11: torch.bool, 15: torch.bfloat16}
    found: list[tuple[set[int], set[int]]] = []
    for number, dtype in dtypes.items():
        dims = [3 + number, 17 + number, 29 + number]
        tensor = torch.empty(dims, dtype=dtype, device="cpu")
        words = _native.read_memory(tensor._cdata, _SEARCHED["impl"])
        sizes = {i for i in range(len(words) - 3) if words[i : i + 4] == [3, *dims]}
        numel = {i for i, word in enumerate(words) if word == tensor.numel()}
        found.append((sizes, {i for i, word in enumerate(words) if word & 0xFFFF == number and i - 1 in numel}))
    sizes, dtypes_at = (set.intersection(*each) for each in zip(*found))
    return {"sizes": _offset(sizes), "dtype": _offset(dtypes_at)}


_REQUIRED = ("object", "storage", "data", "device", "size")

UNKNOWN_TENSORS = dict.fromkeys((*_REQUIRED, "deleter", "meta", "grad", "variable", "sizes", "dtype"), -1) | {
    "cpu_deleter": 0,
    "accumulate": 0,
}


def learn_tensors() -> dict[str, int]:
    """The offsets in a tensor, its storage and its gradient, as the arguments of ``set_tensor_layout``."""
    with undisturbed():
        tensors = [torch.empty(8 * n + 1000 * n, device="cpu", dtype=torch.uint8) for n in range(1, 8)]
        layout = _learn_storage(tensors)
        leaves = [make_leaf() for _ in range(5)]
        for leaf in leaves:
            leaf.grad = torch.ones(1, device="cpu", dtype=torch.float32)
        layout |= _learn_gradient(leaves) | _learn_accumulation(leaves) | _learn_shapes()
        deleter, offset = 0, layout["deleter"]
        if offset >= 0:
            deleter = _native.read_memory(tensors[0].untyped_storage()._cdata, _SEARCHED["storage"])[offset // _WORD]
        return layout | {"cpu_deleter": deleter}


def missing_fields(layout: dict[str, int]) -> list[str]:
    """The names of the unknown offsets without which no tensor's memory can be read."""
    return [name for name in _REQUIRED if layout[name] < 0]
