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

_report: dict[str, str] = {"calls": UNTRIED, "nodes": UNTRIED, "layout": UNTRIED}


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


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Run torch operators as if nobody else were watching or had changed a mode."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        temporarily_clear_interpreter_stack(),
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
            atexit.register(_native.put_back)
            try:
                _choose()
            finally:
                _state = "ready"
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
