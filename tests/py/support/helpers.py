"""What the tests share: small modules made of functions, readings of a tracker, and access to torch's internals.
It contains no expected values."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import torch
from torch import nn

SUPPORT = os.path.dirname(os.path.abspath(__file__))
"""The folder of these helpers, for the PYTHONPATH of programs that use them."""
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")
INTERCEPTION = os.environ.get("MODSCOPE_INTERPOSE") != "0"
LONG = os.environ.get("MODSCOPE_LONG") == "1"  # `make test-long`: with more samples than `make test`
needs_interception = pytest.mark.skipif(
    not INTERCEPTION, reason="a documented limit of the fallback (MODSCOPE_INTERPOSE=0)"
)

UNKNOWN = {"Global", "unknown"}


class Boom(Exception):
    """An exception that only tests raise and catch."""


class Look(NamedTuple):
    """One reading of a tracker."""

    parents: frozenset[str]
    stack: tuple[str, ...]
    current: str
    phase: str
    is_bw: bool


def look(t: Any) -> Look:
    return Look(frozenset(t.parents), tuple(t.stack), t.current, t.phase, t.is_bw)


def at(phase: str, *stack: str) -> Look:
    """The expected reading inside `stack`, outermost first."""
    return Look(
        frozenset({"Global", *stack}),
        stack,
        stack[-1] if stack else "Global",
        phase,
        phase in ("backward", "recompute"),
    )


NOWHERE = at("idle")


def on_grad(t: Any, log: list, x: torch.Tensor) -> torch.Tensor:
    """Record the position of the node that created `x` (or of the leaf `x`) when it runs."""
    if x.requires_grad:
        x.register_hook(lambda grad: log.append(look(t)))
    return x


class Made(nn.Module):
    """A module whose forward is a function of itself and its arguments."""

    def __init__(self, body: Callable[..., Any], **children: Any) -> None:
        super().__init__()
        self.body = body
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def make(class_name: str, body: Callable[..., Any], **children: Any) -> nn.Module:
    """A module of a new class called `class_name`, so that its name as a root is known."""
    return type(class_name, (Made,), {})(body, **children)


_kept: list[nn.Module] = []


def keep(mod: nn.Module) -> nn.Module:
    """Keep a module alive until the test ends: hooks get None for a deleted one."""
    _kept.append(mod)
    return mod


def leaf(body: Callable[..., Any] = lambda m, x: x * 2) -> nn.Module:
    return make("Leaf", body)


def pair(first: nn.Module, second: nn.Module) -> nn.Module:
    """`Mod`, which calls `a` and then `b`."""
    return make("Mod", lambda m, x: m.b(m.a(x)), a=first, b=second)


def mlp(layers: int = 2, width: int = 4) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


def grad_input(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (3, 4)), requires_grad=True)


class Events:
    """User hooks that record their calls: (kind, fqn, in parents, is_bw)."""

    def __init__(self, t: Any) -> None:
        self.t = t
        self.log: list[tuple[str, str | None, bool, bool]] = []
        self.args: list[tuple[str, str | None, tuple]] = []

    def _note(self, kind: str, mod: nn.Module | None, *rest: Any) -> None:
        fqn = None if mod is None else self.t.get_known_fqn(mod)
        self.log.append((kind, fqn, fqn in self.t.parents, self.t.is_bw))
        self.args.append((kind, fqn, rest))

    def hooks(self) -> dict[str, Callable[..., None]]:
        return {
            f"{kind}_hook": (lambda mod, *rest, kind=kind: self._note(kind, mod, *rest))
            for kind in ("pre_fw", "post_fw", "pre_bw", "post_bw")
        }

    def register(self, *kinds: str) -> "Events":
        hooks = self.hooks()
        self.t.register_user_hooks(**{f"{k}_hook": hooks[f"{k}_hook"] for k in kinds} if kinds else hooks)
        return self

    def names(self, *kinds: str) -> list[tuple[str, str | None]]:
        return [(kind, fqn) for kind, fqn, _, _ in self.log if not kinds or kind in kinds]

    def count(self, kind: str, fqn: str | None = None) -> int:
        return sum(k == kind and (fqn is None or n == fqn) for k, n, _, _ in self.log)

    def clear(self) -> None:
        self.log.clear()
        self.args.clear()


def assert_paired(events: Events) -> None:
    """Check one finished backward: every pre_bw is followed by one post_bw, and there is no other post_bw."""
    open_calls: dict[str | None, int] = {}
    for kind, fqn in events.names("pre_bw", "post_bw"):
        open_calls[fqn] = open_calls.get(fqn, 0) + (1 if kind == "pre_bw" else -1)
        assert open_calls[fqn] >= 0, f"post_bw before pre_bw: {events.names()}"
    assert not any(open_calls.values()), f"unpaired: {events.names()}"


# ---- internals of torch and Python ----

# tp_vectorcall_offset in PyTypeObject: after the variable head, the name, two sizes, the destructor.
_VECTORCALL = id(types.FunctionType) + object.__basicsize__ + 5 * ctypes.sizeof(ctypes.c_void_p)


def _vectorcall_cell(function: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(function) + ctypes.c_ssize_t.from_address(_VECTORCALL).value)


def vectorcall_of(function: Any) -> int:
    """The pointer by which Python calls this function."""
    return _vectorcall_cell(function).value or 0


def set_vectorcall(function: Any, pointer: int) -> None:
    _vectorcall_cell(function).value = pointer


def torch_globals() -> dict[str, Any]:
    """Global state of torch and Python that a tracker must restore."""
    import warnings

    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = {
        name: dict(value)
        for name, value in vars(module).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }
    assert hooks
    return {
        **hooks,
        "has_global_hooks": getattr(module, "_has_any_global_hook", bool)(),  # not in every torch
        "step_pre": dict(optimizer._global_optimizer_pre_hooks),
        "step_post": dict(optimizer._global_optimizer_post_hooks),
        "formatwarning": warnings.formatwarning,
        "showwarning": warnings.showwarning,
        "filters": list(warnings.filters),
        "call": nn.Module.__call__,
        "call_impl": nn.Module._call_impl,
        "vectorcall": vectorcall_of(nn.Module._call_impl),
        "backward": torch.Tensor.backward,
        "saved_tensor_hooks": getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)(True),
    }


def python_path(*folders: str) -> str:
    """A PYTHONPATH with these folders before those of this process."""
    return os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])


def run_python(code: str, timeout: float = 600, **env: str) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter that finds these helpers."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": python_path(SUPPORT), **env},
    )


def rss() -> int:
    """The resident bytes of this process, less what malloc keeps for later: after other tests that may be much, and
    would hide growth."""
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(step: Callable[[], object], steps: int, warm: int = 500) -> int:
    """How many bytes more are in memory after many steps than after the first ones. Skips the test under ASan, which
    keeps freed memory for a while."""
    if UNDER_ASAN:
        pytest.skip("ASan keeps freed memory, so memory grows")
    for _ in range(warm):
        step()
    gc.collect()
    before = rss()
    for _ in range(steps):
        step()
    gc.collect()
    return rss() - before


def in_child(check: Callable[[], object]) -> None:
    """Run `check` in a forked child; fail if it fails, crashes or hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    until = time.monotonic() + 300  # far above what a loaded machine needs
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")
