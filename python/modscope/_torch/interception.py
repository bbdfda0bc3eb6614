"""Decide which interception points are used, by verifying each one first.

``prepare`` runs once, when the first tracker is entered: it learns where this torch keeps what modscope reads
(_torch/layout.py) and runs a test program through each interception point. A point whose test fails is not used;
modscope uses the fallback instead, and ``doctor()`` (_torch/doctor.py) says why.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

import torch
from modscope import _native
from modscope._read.categories import Category
from modscope._torch import layout as _layout
from modscope._torch import lines
from modscope._torch.probes import CloneFunction, make_leaf, run_in_thread, save_tensors, undisturbed

VERIFIED = "verified"
LEARNED = "learned"
FORCED = "MODSCOPE_INTERPOSE=0 is set"
_UNTRIED = "not tried yet"
_REFUSED = "fork-based multiprocessing"  # torch's words, in a child of a process that has run a backward
_FORK_LIMIT = 10_000  # milliseconds for the tests in a forked process
_NOT_RESTORED = "the original pointer was not restored after the test"

# "verified" for an interception point or "learned" for a layout; else the reason why not.
_results = dict.fromkeys(
    ("calls", "nodes", "blocks", "saved", "resizes", "stacks", "forward", "layout", "tensors"), _UNTRIED
)


def results() -> dict[str, str]:
    """Say whether the interception points "calls", "nodes", "blocks", "saved", "resizes", "stacks" and "forward", and
    the layouts of nodes ("layout") and tensors ("tensors"), can be used, or why they cannot."""
    return dict(_results)


def why_no_tensors() -> str | None:
    """Why the memory of tensors cannot be read; None if it can."""
    return None if _results["tensors"] == LEARNED else _results["tensors"]


def why_no_blocks() -> str | None:
    """Why torch's allocators cannot be intercepted; None if they can."""
    return None if _results["blocks"] == VERIFIED else _results["blocks"]


def nodes_verified() -> bool:
    return _results["nodes"] == VERIFIED


def is_forbidden() -> bool:
    return os.environ.get("MODSCOPE_INTERPOSE") == "0"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# ---- layouts ----


def _choose_node_layout() -> str | None:
    """Learn the nodes' layout and give it to the C code. Returns None, or why it is unknown."""
    layout, why = (
        _layout.UNKNOWN_NODES,
        "not learned: no single word of a node always equals its number and its creator",
    )
    try:
        layout = _layout.learn_nodes()
    except Exception as error:
        why = f"not learned: {_describe(error)}"
    _native.set_node_layout(*layout)
    if layout.number < 0:
        _results["layout"] = why
        return why
    text = f"{LEARNED}: number at byte {layout.number}, creator at byte {layout.creator} of a node"
    if layout.function >= 0:
        text += f"; a custom Function's node at byte {layout.function}"
    _results["layout"] = text
    return None


def _choose_tensor_layout() -> None:
    layout = _layout.UNKNOWN_TENSORS
    try:
        learned = _layout.learn_tensors()
        missing = _layout.missing_fields(learned)
        result = f"not learned: {', '.join(missing)}" if missing else LEARNED
        if not missing:
            layout = learned
    except Exception as error:
        result = f"not learned: {_describe(error)}"
    _results["tensors"] = result
    _native.set_tensor_layout(**{**layout, "deleter": max(layout["deleter"], 0)})


# ---- blocks ----


def _test_blocks() -> str | None:
    """Allocate a block and free it, and compare what the ledger counts. Returns None, or what is wrong."""
    ledger = _native.Ledger()
    ledger.begin(False, None)
    try:
        with undisturbed():
            for _ in range(5):  # another thread may allocate meanwhile
                before = sum(sum(sums) for sums in ledger.now())
                block = torch.empty(12345, device="cpu", dtype=torch.uint8)
                held = sum(sum(sums) for sums in ledger.now())
                del block
                after = sum(sum(sums) for sums in ledger.now())
                if held - before == 12345 and after == before:
                    return None
    finally:
        ledger.end()
    return f"a block of 12345 bytes was counted as {held - before}, and {after - before} when it was freed"


def _test_cuda() -> str | None:
    """Allocate a block of an odd size on a GPU, and compare what is known of it. Returns None, or what is wrong."""
    ledger = _native.Ledger()
    ledger.begin(False, None)
    try:
        before = _native.cuda_requests()
        stream = torch.cuda.Stream()
        with undisturbed(), torch.cuda.stream(stream):
            seen = _native.cuda_stream()
            block = torch.empty(12345, device="cuda", dtype=torch.uint8)
            del block
        after = _native.cuda_requests()
    finally:
        ledger.end()
    if after[0] is None and after[1] == before[1]:
        return "a block of 12345 bytes did not pass the interception point"
    if after[0] is None and seen != (stream.device_index, stream.stream_id):
        return f"stream {stream.stream_id} of device {stream.device_index} was read as {seen}"
    return after[0]


def test_cuda() -> None:
    """Verify what captures note of a GPU. This is not done in programs, whose memory it would change: there, each block
    is compared with its request, and requests are not noted if most do not agree."""
    _results["requests"] = FORCED if is_forbidden() else _verify(_test_cuda) or VERIFIED
    _results["times"] = _native.cuda_times()[0] or VERIFIED


def _verify(test: Callable[[], str | None], is_active: Callable[[], bool] = lambda: False) -> str | None:
    """What is wrong with an interception point; None: nothing. A test that cannot run verifies nothing, and afterwards
    the point must be inactive."""
    try:
        why = test()
    except Exception as error:
        why = _describe(error)
    return _NOT_RESTORED if why is None and is_active() else why


def _choose_blocks() -> None:
    why = FORCED if is_forbidden() else why_no_tensors() or _native.find_block_slots()
    _results["blocks"] = why or _verify(_test_blocks, _native.blocks_intercepted) or VERIFIED


# ---- saved tensors ----


def _test_saved() -> str | None:
    """Let autograd save three tensors made outside modules, and compare what the ledger counts as activations.
    Returns None, or what is wrong."""
    activation = list(Category).index(Category.ACT)
    ledger = _native.Ledger()
    ledger.begin(False, None)
    try:
        with undisturbed():
            for _ in range(5):  # another thread may allocate meanwhile
                tensors = [torch.ones(8000 + i, device="cpu", dtype=torch.float32) for i in range(3)]
                made = ledger.now()[0][activation]
                small = [tensor[:100] for tensor in tensors]  # a tensor is a part of its block
                kept = save_tensors(*small)
                saved = ledger.now()[0][activation] - made
                del kept
                if 4 * 24003 <= saved < 4 * 24003 + 8000:  # autograd saves small intermediate results, too
                    return None
    finally:
        ledger.end()
    return f"of three blocks that autograd saved, {saved} bytes became activations"


def _choose_saved() -> None:
    why = FORCED if is_forbidden() else why_no_blocks() or _native.find_saved_slots()
    if why is None:
        _native.set_saved_interception(True)
        why = _verify(_test_saved, _native.saved_intercepted)
        _native.set_saved_interception(why is None)
    _results["saved"] = why or VERIFIED


# ---- storages that Python resizes ----


def _test_resizes() -> str | None:
    """Resize a storage, and compare what the ledger counts by the dispatcher. Returns None, or what is wrong."""
    ledger = _native.Ledger()
    ledger.begin(True, None)
    try:
        with undisturbed():
            tensor = torch.empty(0, device="cpu", dtype=torch.uint8)
            sizes = []
            for size in (12345, 0):
                tensor.untyped_storage().resize_(size)
                sizes.append(sum(sum(sums) for sums in ledger.now()))
    finally:
        ledger.end()
    return None if sizes == [12345, 0] else f"a storage of 12345 bytes, and then none, was counted as {sizes}"


def _choose_resizes() -> None:
    why = FORCED if is_forbidden() else why_no_tensors() or _native.find_resize_method()
    if why is None:
        _native.set_resize_interception(True)
        why = _verify(_test_resizes, _native.resizes_intercepted)
        _native.set_resize_interception(why is None)
    _results["resizes"] = why or VERIFIED


# ---- buckets of DistributedDataParallel ----


def _choose_buckets() -> None:
    """They are verified whenever they are used: what begins a bucket must be a tensor."""
    if torch.distributed.is_available() and not is_forbidden() and why_no_blocks() is None:
        _native.find_bucket_slots(torch.empty(1, device="cpu"))


# ---- stacks ----


def _choose_stacks() -> None:
    why = FORCED if is_forbidden() else why_no_blocks() or _verify(lines.test)
    _results["stacks"] = why or VERIFIED
    _results["forward"] = why or _verify(lines.test_forward) or VERIFIED


# ---- calls and nodes ----


class _Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor, look: Callable[[str], Any], fail: bool) -> torch.Tensor:
        look("forward")
        if fail:
            raise ValueError
        y = x.neg()
        y.register_hook(lambda grad: look("backward"))
        z: torch.Tensor = CloneFunction.apply(y)
        z.register_hook(lambda grad: look("custom"))
        return z


class _Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()

    def forward(self, x: torch.Tensor, look: Callable[[str], Any], fail: bool = False) -> torch.Tensor:
        result: torch.Tensor = self.inner(x, look, fail)
        return result.neg()


def _test_model() -> str | None:
    """Run a small model, and compare the modules that are reported with those that run. Returns None, or what is
    wrong."""
    seen: dict[str, list[str]] = {}
    model = _Outer()
    tracker = _native.Tracker()

    def look(when: str) -> None:
        seen[when] = tracker.stack

    def forward() -> torch.Tensor:
        with undisturbed():
            y: torch.Tensor = model(make_leaf(), look)
            return y

    expected = ["_Outer", "_Outer.inner"]
    with tracker, undisturbed():
        with contextlib.suppress(ValueError):
            model(make_leaf(), look, fail=True)
        if tracker.stack:
            return "a call that raised is still reported as running"
        for make in (forward, lambda: run_in_thread(forward)):
            seen.clear()
            make().backward()
            for when in ("forward", "backward", "custom"):
                if seen.get(when) != expected:
                    return f"{when} of {expected[-1]} is reported as {seen.get(when)}"
        if tracker.stack:
            return "a backward that ended is still reported as running"
    return None


def _test_points(calls: bool, nodes: bool) -> str | None:
    """Run the test model through these interception points. Returns None, or what is wrong."""
    _native.set_interception(calls, nodes)
    return _verify(_test_model, lambda: _native.calls_intercepted() or _native.nodes_intercepted())


class _Tests(NamedTuple):
    """Why these interception points cannot be used; None: they can."""

    nodes: str | None
    calls: str | None


def _test_nodes_and_calls(why_no_nodes: str | None) -> _Tests:
    """Test the interception of nodes and calls. ``why_no_nodes``: the reason, if it is known without a test."""
    if why_no_nodes is None:
        why_no_nodes = _test_points(False, True)
    return _Tests(why_no_nodes, _test_points(True, why_no_nodes is None))


def _has_device_threads() -> bool:
    """Whether the first backward of a process starts threads, one for each device. Once they run, torch refuses every
    backward in a process that is forked later."""
    own = torch._C._get_privateuse1_backend_name() != "privateuseone"
    return own or any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu"))


def _can_test_in_fork() -> bool:
    """A fork has only the thread that made it, and it cannot use the parent's CUDA."""
    return sys.platform == "linux" and len(sys._current_frames()) == 1 and not torch.cuda.is_initialized()


def _test_without_device_threads(why_no_nodes: str | None) -> _Tests:
    """The tests run a backward, so they run in a forked process. Where that has no answer, they run here: the program
    has run a backward already, or uses the devices, and then the threads of ours do no harm."""
    if _has_device_threads() and _can_test_in_fork():
        answer = _native.run_in_fork(lambda: json.dumps(_test_nodes_and_calls(why_no_nodes)), _FORK_LIMIT)
        tests = _Tests(*json.loads(answer)) if answer else None
        if tests and not any(_REFUSED in (why or "") for why in tests):
            return tests
    return _test_nodes_and_calls(why_no_nodes)


def _choose() -> None:
    """Learn the layouts, verify the interception points, and tell the C code which ones to use."""
    why_no_layout = _choose_node_layout()
    _choose_tensor_layout()
    _choose_blocks()
    _choose_saved()
    _choose_resizes()
    _choose_buckets()
    _choose_stacks()
    if is_forbidden():
        _results["calls"] = _results["nodes"] = FORCED
        _native.set_interception(False, False)
        return
    tests = _test_without_device_threads(_native.find_node_slot() or why_no_layout)
    _native.set_interception(tests.calls is None, tests.nodes is None)
    _results["calls"] = tests.calls or VERIFIED
    _results["nodes"] = tests.nodes or VERIFIED


_preparing = threading.RLock()
_state = "new"  # then "preparing", then "ready"; guarded by _preparing

_fork_began = False  # guarded by _preparing


def _begin_fork() -> None:
    """Wait until another thread has finished preparing. Otherwise the child would have a lock that no thread of it
    releases, and interception points in the middle of their tests."""
    global _fork_began
    _preparing.acquire()
    _fork_began = True


def _end_fork() -> None:
    """A fork that began before this module was imported only ends here."""
    global _fork_began
    if _fork_began:
        _fork_began = False
        _preparing.release()


os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def _import_what_trackers_need() -> None:
    """Import now what entering a tracker imports: a process forked during that import would wait for it forever."""
    from modscope._torch import global_hooks  # noqa: F401

    if why_no_blocks():
        with TorchDispatchMode():  # torch imports files when it enters the first mode
            pass


def prepare() -> bool:
    """Choose the interception points, once per process; whether that is done.

    Every tracker that is entered calls this until it returns True. The tests enter trackers themselves: those get
    False, and use the interception point that is being tested.
    """
    global _state
    with _preparing:
        if _state == "new":
            _state = "preparing"
            try:
                _choose()
                _import_what_trackers_need()
            except BaseException:  # after an interrupt the next tracker tries again
                _state = "new"
                raise
            _state = "ready"
            atexit.register(_native.restore)
        return _state == "ready"
