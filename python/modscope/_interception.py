"""Learn where this torch keeps what we need, and prove each place before standing in it.

Runs once, when the first tracker is entered. A place that cannot be proved is not taken:
the fallback is used, and ``doctor()`` says why.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from modscope import _native

FORCED = "MODSCOPE_INTERPOSE=0 is set"
UNTRIED = "not tried yet"

_report: dict[str, str] = {"calls": UNTRIED, "nodes": UNTRIED, "blocks": UNTRIED, "layout": UNTRIED, "tensors": UNTRIED}


def _same(x: Any) -> Any:
    return x


_C: Any = torch._C


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    state = _C._get_tracing_state()
    if state is not None:
        _C._set_tracing_state(None)
    try:
        yield
    finally:
        if state is not None:
            _C._set_tracing_state(state)


def _plain_saving() -> contextlib.AbstractContextManager[object]:
    """Tensors are saved as they are, whatever hooks the program has for that."""
    top = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)  # not in every torch
    if top is None or top(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def _no_transforms() -> contextlib.AbstractContextManager[object]:
    """Outside any functorch transform. Where none is active nothing is touched: asking functorch
    itself makes its thread state, which autograd then copies for every node, for good."""
    key = _C.DispatchKey.FuncTorchDynamicLayerFrontMode
    if not _C._dispatch_tls_is_dispatch_key_included(key):
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    cleared: contextlib.AbstractContextManager[object] = temporarily_clear_interpreter_stack()
    return cleared


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Run torch operators as if nobody else were watching or had changed a mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        _no_transforms(),
        _untraced(),
        _disable_current_modes(),
        _C.DisableTorchFunction(),
        torch.inference_mode(False),
        torch.enable_grad(),
        _plain_saving(),
    ):
        yield


def _leaf() -> torch.Tensor:
    return torch.ones(1, device="cpu", dtype=torch.float32, requires_grad=True)


def run_one_node() -> None:
    with _undisturbed():
        _leaf().neg().backward()


def make_one_block() -> None:
    with _undisturbed():
        torch.empty(64, device="cpu", dtype=torch.uint8)


def _in_thread(work: Callable[[], Any]) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0]


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class _Sample(NamedTuple):
    number: int
    maker: int
    words: list[int]  # of the node's Python object
    graph: torch.Tensor  # keeps the node alive


def _sample(make: Callable[[torch.Tensor], torch.Tensor]) -> list[_Sample]:
    """Some nodes of this thread."""
    with _undisturbed():
        y = _leaf()
        samples = []
        for _ in range(4):
            y = make(y.abs())
            node: Any = y.grad_fn
            samples.append(_Sample(node._sequence_nr(), _native.thread_id(), _native.object_words(node), y))
        return samples


def _samples(make: Callable[[torch.Tensor], torch.Tensor]) -> list[_Sample]:
    here, there = functools.partial(_sample, make), functools.partial(_in_thread, functools.partial(_sample, make))
    return [*here(), *there(), *there(), *here()]


def _only(candidates: Iterable[int]) -> int:
    """Where it is, in bytes, if there is a single word that always agrees; else -1."""
    found = list(candidates)
    return 8 * found[0] if len(found) == 1 else -1


_NODE = 2  # the word of a C++ node's Python object that points to the node: the first after its head


def _learn() -> tuple[int, int, int]:
    """Where a node keeps its number and its maker, and a custom Function its node."""
    nodes = [(s, _native.words_at(s.words[_NODE])) for s in _samples(torch.neg)]
    places = range(min(len(words) for _, words in nodes))
    number = _only(i for i in places if all(words[i] == s.number for s, words in nodes))
    maker = _only(i for i in places if all(words[i] == s.maker for s, words in nodes))
    if number < 0 or maker < 0:
        return -1, -1, -1

    def points_to_node(sample: _Sample, place: int) -> bool:
        words = _native.words_at(sample.words[place])
        return bool(words) and words[number // 8] == sample.number and words[maker // 8] == sample.maker

    customs = _samples(_Pass.apply)
    places = range(_NODE, min(len(s.words) for s in customs))
    return number, maker, _only(i for i in places if all(points_to_node(s, i) for s in customs))


# ---- where a tensor keeps its memory ----

_WORDS = {"impl": 24, "storage": 16, "meta": 32, "node": 96}  # how far to look


def _place(samples: Iterable[tuple[list[int], int]]) -> int:
    """Where each list of words has its value, in bytes, if there is a single such word; else -1."""
    found = [{i for i, word in enumerate(words) if word == value} for words, value in samples]
    return _only(set.intersection(*found))


def _learn_storage(tensors: list[torch.Tensor]) -> dict[str, int]:
    storages = [t.untyped_storage() for t in tensors]
    impls = [_native.peek(t._cdata, _WORDS["impl"]) for t in tensors]
    words = [_native.peek(s._cdata, _WORDS["storage"]) for s in storages]
    buffer = torch.frombuffer(bytearray(64), dtype=torch.uint8)  # memory that the allocator did not make
    lent = _native.peek(buffer.untyped_storage()._cdata, _WORDS["storage"])
    meta = torch.empty(3, device="meta")
    other = _native.peek(meta.untyped_storage()._cdata, _WORDS["storage"])

    def is_device(i: int) -> bool:  # type and index, a byte each: the CPU is 0 and -1
        return all(w[i] & 0xFFFF == 0xFF00 for w in words) and other[i] & 0xFF00 == 0xFF00 and other[i] & 0xFF != 0

    def is_deleter(i: int) -> bool:
        return words[0][i] != 0 and all(w[i] == words[0][i] for w in words) and lent[i] not in (0, words[0][i])

    data = _place([*((w, s.data_ptr()) for w, s in zip(words, storages)), (lent, buffer.data_ptr())])
    device = _only(filter(is_device, range(_WORDS["storage"])))
    return {
        "object": _place((_native.object_words(t), t._cdata) for t in tensors),
        "storage": _place((w, s._cdata) for w, s in zip(impls, storages)),
        "data": data,
        "deleter": _only(filter(is_deleter, range(data // 8 + 1, device // 8))),
        "device": device,
        "size": _place((w, s.nbytes()) for w, s in zip(words, storages)),
    }


def _learn_gradient(leaves: list[torch.Tensor]) -> dict[str, int]:
    found: list[set[tuple[int, int]]] = []
    for leaf in leaves:
        assert leaf.grad is not None
        at = set()
        for i, word in enumerate(_native.peek(leaf._cdata, _WORDS["impl"])):
            words = _native.peek(word, _WORDS["meta"]) if word % 8 == 0 and word > 4096 else []
            at |= {(8 * i, 8 * k) for k, inner in enumerate(words) if inner == leaf.grad._cdata}
        found.append(at)
    both = set.intersection(*found)
    meta, grad = both.pop() if len(both) == 1 else (-1, -1)
    return {"meta": meta, "grad": grad}


def _learn_accumulation(leaves: list[torch.Tensor]) -> dict[str, int]:
    nodes = []
    for leaf in leaves:
        view = leaf.expand_as(leaf)
        assert view.grad_fn is not None
        node = view.grad_fn.next_functions[0][0]
        nodes.append(_native.peek(_native.object_words(node)[_NODE], _WORDS["node"]))
    kinds = {words[0] for words in nodes}
    variable = _place((words, leaf._cdata) for words, leaf in zip(nodes, leaves))
    return {"variable": variable, "accumulate": kinds.pop() if len(kinds) == 1 and variable >= 0 else 0}


def _learn_tensors() -> dict[str, int]:
    """Where a tensor, its storage and its gradient are, as ``set_tensor_layout`` takes it."""
    with _undisturbed():
        tensors = [torch.empty(8 * n + 1000 * n, device="cpu", dtype=torch.uint8) for n in range(1, 8)]
        layout = _learn_storage(tensors)
        leaves = [_leaf() for _ in range(5)]
        for leaf in leaves:
            leaf.grad = torch.ones(1, device="cpu", dtype=torch.float32)
        layout |= _learn_gradient(leaves) | _learn_accumulation(leaves)
        deleter, word = 0, layout["deleter"]
        if word >= 0:
            deleter = _native.peek(tensors[0].untyped_storage()._cdata, _WORDS["storage"])[word // 8]
        return layout | {"cpu_deleter": deleter}


_NEEDED = ("object", "storage", "data", "device", "size")
_NO_TENSORS = {word: -1 for word in (*_NEEDED, "deleter", "meta", "grad", "variable")} | {"cpu_deleter": 0, "accumulate": 0}


def _choose_tensors() -> None:
    try:
        layout = _learn_tensors()
        lacking = [word for word in _NEEDED if layout[word] < 0]
        why = f"not learned: {', '.join(lacking)}" if lacking else "learned"
    except Exception as error:
        why = f"not learned: {type(error).__name__}: {error}"
    _report["tensors"] = why
    if why != "learned":
        layout = _NO_TENSORS
    layout["deleter"] = max(layout["deleter"], 0)
    _native.set_tensor_layout(**layout)


def tensors_known() -> str | None:
    """None if the memory of tensors can be read, else why not."""
    return None if _report["tensors"] == "learned" else _report["tensors"]


def _prove_blocks() -> str | None:
    """Make a block and free it, and see whether the ledger counts it; None, or what is wrong."""
    ledger = _native.Ledger()
    ledger.begin(False, None)
    try:
        with _undisturbed():
            for _ in range(5):  # another thread may allocate meanwhile
                before = sum(sum(sums) for sums in ledger.now())
                block = torch.empty(12345, device="cpu", dtype=torch.uint8)
                there = sum(sum(sums) for sums in ledger.now())
                del block
                after = sum(sum(sums) for sums in ledger.now())
                if there - before == 12345 and after == before:
                    return None
    finally:
        ledger.end()
    return f"a block of 12345 bytes was counted as {there - before}, and {after - before} when it was freed"


def _choose_blocks() -> None:
    if os.environ.get("MODSCOPE_INTERPOSE") == "0":
        _report["blocks"] = FORCED
        return
    why = tensors_known() or _native.find_block_slots()
    if why is None:
        try:
            why = _prove_blocks()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why is None and _native.blocks_standing():
            why = "the place was not given back"
    _report["blocks"] = why or "proved"


def blocks_known() -> str | None:
    """None if the allocator's blocks can be watched, else why not."""
    return None if _report["blocks"] == "proved" else _report["blocks"]


def nodes_known() -> bool:
    return _report["nodes"] == "proved"


class _Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor, look: Callable[[str], Any], fail: bool) -> torch.Tensor:
        look("forward")
        if fail:
            raise ValueError
        y = x.neg()
        y.register_hook(lambda grad: look("backward"))
        z: torch.Tensor = _Pass.apply(y)
        z.register_hook(lambda grad: look("custom"))
        return z


class _Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()

    def forward(self, x: torch.Tensor, look: Callable[[str], Any], fail: bool = False) -> torch.Tensor:
        result: torch.Tensor = self.inner(x, look, fail)
        return result.neg()


def _proof() -> str | None:
    """Run a small model and compare what is seen with what must be; None, or what is wrong."""
    seen: dict[str, list[str]] = {}
    model = _Outer()
    tracker = _native.Tracker()

    def look(moment: str) -> None:
        seen[moment] = tracker.stack

    def forward() -> torch.Tensor:
        with _undisturbed():
            y: torch.Tensor = model(_leaf(), look)
            return y

    inside = ["_Outer", "_Outer.inner"]
    with tracker, _undisturbed():
        with contextlib.suppress(ValueError):
            model(_leaf(), look, fail=True)
        if tracker.stack:
            return "a call that raised stays open"
        for made_by in (forward, lambda: _in_thread(forward)):
            seen.clear()
            made_by().backward()
            for moment in ("forward", "backward", "custom"):
                if seen.get(moment) != inside:
                    return f"{moment} of {inside[-1]} is seen as {seen.get(moment)}"
        if tracker.stack:
            return "a backward stays open"
    return None


def _prove(calls: bool, nodes: bool) -> str | None:
    _native.set_places(calls, nodes)
    try:
        wrong = _proof()
    except Exception as error:  # a proof that cannot be run proves nothing
        wrong = f"{type(error).__name__}: {error}"
    if wrong is None and (_native.calls_standing() or _native.nodes_standing()):
        wrong = "the place was not given back"
    return wrong


def _choose() -> None:
    """Learn, prove, and say how to watch."""
    try:
        number, maker, function = _learn()
    except Exception as error:
        number = maker = function = -1
        why = f"not learned: {type(error).__name__}: {error}"
    else:
        why = "not learned: no single word of a node always agrees with its number and its maker"
    _native.set_layout(number, maker, function)
    _choose_tensors()
    _choose_blocks()
    learned = number >= 0
    if learned:
        why = f"number at byte {number}, maker at byte {maker} of a node"
        if function >= 0:
            why += f"; a custom Function's node at byte {function}"
    _report["layout"] = why
    if os.environ.get("MODSCOPE_INTERPOSE") == "0":
        _report["calls"] = _report["nodes"] = FORCED
        _native.set_places(False, False)
        return
    why_no_nodes = _native.find_slot() or (None if learned else why)
    if why_no_nodes is None:
        why_no_nodes = _prove(False, True)
    why_no_calls = _prove(True, why_no_nodes is None)
    _native.set_places(why_no_calls is None, why_no_nodes is None)
    _report["calls"] = why_no_calls or "proved"
    _report["nodes"] = why_no_nodes or "proved"


_choosing = threading.RLock()
_state = "new"  # then "choosing", then "ready"; guarded by _choosing


def prepare() -> bool:
    """Choose how to watch, once. Called by every tracker that is entered until this says True:
    the proof enters some itself, and goes on with what is to be proved."""
    global _state
    with _choosing:
        if _state == "new":
            _state = "choosing"
            try:
                _choose()
            except BaseException:  # interrupted: the next one tries again
                _state = "new"
                raise
            _state = "ready"
            atexit.register(_native.put_back)
        return _state == "ready"


def doctor() -> dict[str, str]:
    """What this installation stands on: versions, and for each place "proved" or why not."""
    with _native.Tracker():
        pass
    return {
        "modscope": _native.version,
        "torch": str(torch.__version__),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        **_report,
    }
