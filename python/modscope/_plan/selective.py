"""A checkpointed module that keeps the results of some operators, and does not compute these again in backward.

An operator is known by its place in the module's forward: the n-th call of ``aten::addmm`` in one call of the module.
Places are counted in forward and in the recomputation, each from the beginning.

In compiled code this is torch's own selective checkpointing. In eager code it is not, which refuses (torch 2.13 and
2.15) a recomputation that casts a weight that autocast had cast before, and a second backward of one graph."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch

KeptOperators = tuple[tuple[str, int, int], ...]
"""Of each operator that is kept: its name, which of its calls, and how many calls it has; 0: any number. Plain tuples,
as torch.compile compares them with those that it has compiled for."""

Refuse = Callable[[str], None]
"""Called with what is different in the model, when a module has run."""


def name_of(operator: Any) -> str:
    """ "aten::addmm", "aten::mul.Tensor"."""
    return operator.name() if hasattr(operator, "name") else str(operator)


def why_not(operator: Any) -> str | None:
    """Why the operator's result cannot be kept; None: it can. What shares memory with a tensor that is computed again
    would not change when that does."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    if schema.is_mutable:
        return "changes a tensor in place"
    return "returns a view" if any(result.alias_info is not None for result in schema.returns) else None


def draws_random_numbers(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it draws random numbers. Attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    for i, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            return bool(kwargs.get("dropout_p", args[i] if i < len(args) else argument.default_value))
    return True


# ---- eager code ----


class _RandomState(NamedTuple):
    """Of the generator of a device."""

    device: torch.device
    state: torch.Tensor

    @classmethod
    def of(cls, device: torch.device) -> _RandomState | None:
        """None: checkpoints do not preserve it either."""
        if device.type == "cpu":
            return cls(device, torch.get_rng_state())
        module: Any = None if device.type == "meta" else torch.get_device_module(device)
        if not getattr(module, "_initialized", False):
            return None
        with module.device(device.index):
            return cls(device, module.get_rng_state())

    def restore(self) -> None:
        if self.device.type == "cpu":
            torch.set_rng_state(self.state)
            return
        module = torch.get_device_module(self.device)
        with module.device(self.device.index):
            module.set_rng_state(self.state)


class _Kept(NamedTuple):
    result: Any
    """Its tensors, without their history."""
    versions: list[int]
    shapes: list[torch.Size]
    """Of the operator's arguments."""
    drawn: _RandomState | None
    """After the operator, if it draws random numbers."""

    def is_changed(self) -> bool:
        """Whether the program has changed it in place since."""
        return self.versions != _versions(self.result)


def _shapes(args: Any) -> list[torch.Size]:
    return [argument.shape for argument in args if isinstance(argument, torch.Tensor)]


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _versions(result: Any) -> list[int]:
    return [tensor._version for tensor in _tensors(result)]


def _without_history(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Below autograd a view would not share the count of changes in place.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return value.detach()


def _is_virtual() -> bool:
    """Whether there is a virtual GPU, whose kernels run operators in Python."""
    device = sys.modules.get("modscope._virtual.device.device")
    return device is not None and device.is_installed()


class _Region:
    """One call of a checkpointed module."""

    def __init__(self, places: KeptOperators) -> None:
        self.wanted = {(name, call) for name, call, _ in places}
        self.kept: dict[tuple[str, int], _Kept] = {}
        is_seen = torch._C._len_torch_dispatch_stack() or _is_virtual()
        self.has_kernels = not is_seen and _kernels.answer({name for name, *_ in places})
        """Whether kernels answer the operators, rather than a mode: in forward and in the recomputation, as kernels
        also see the operators that run within others."""


class _Pass:
    """The forward or the recomputation of a region, which answers the operators that its thread runs."""

    def __init__(self, region: _Region) -> None:
        self.region = region
        self.counts: Counter[str] = Counter()
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> None:
        self.counts.clear()
        self._inside.enter_context(_kernels.asking(self) if self.region.has_kernels else _Mode(self))

    def __exit__(self, *exception: Any) -> Any:
        return self._inside.__exit__(*exception)

    def run(self, operator: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The operator's result. ``call`` computes it."""
        raise NotImplementedError


class _Keep(_Pass):
    """In forward."""

    def run(self, operator: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        name = name_of(operator)
        self.counts[name] += 1
        place = name, self.counts[name]
        if place in self.region.wanted and why_not(operator) is None:
            kept = tree_map(_without_history, result)
            is_random = draws_random_numbers(operator, args, kwargs)
            drawn = _RandomState.of(_tensors(kept)[0].device) if is_random else None
            self.region.kept[place] = _Kept(kept, _versions(kept), _shapes(args), drawn)
        return result


class _Reuse(_Pass):
    """In the recomputation. What is not there any more, or was changed in place, is computed again: so in a second
    backward of one graph.

    A checkpoint sets the random numbers back to those of its beginning. After an operator that draws some and is not
    computed again, they are set to those that followed it in forward."""

    def __init__(self, region: _Region) -> None:
        super().__init__(region)
        self._outside: dict[torch.device, _RandomState | None] = {}
        """How the random numbers were before the first of them."""

    def __exit__(self, *exception: Any) -> Any:
        self.region.kept.clear()
        while self._outside:
            if before := self._outside.popitem()[1]:
                before.restore()
        return super().__exit__(*exception)

    def run(self, operator: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        name = name_of(operator)
        self.counts[name] += 1
        kept = self.region.kept.pop((name, self.counts[name]), None)
        if kept is None or kept.is_changed() or kept.shapes != _shapes(args):
            return call(*args, **kwargs)
        if kept.drawn:
            if kept.drawn.device not in self._outside:
                self._outside[kept.drawn.device] = _RandomState.of(kept.drawn.device)
            kept.drawn.restore()
        return kept.result


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled functions that the module calls run as they are

    def __init__(self, of: _Pass) -> None:
        super().__init__()
        self._pass = of

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._pass.run(func, func, args, kwargs or {})


class _Kernels:
    """Kernels in Python of the operators whose results are kept, below autograd. A mode would run Python for every
    operator of a module.

    They are registered for the dispatch key Fake, which no tensor of eager code has, and for which other operators fall
    through. Only a thread in whose set the key is included runs them. Where the key has another user, ``answer`` is
    False, and modes are used."""

    _KEY = "Fake"

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._names: set[str] = set()
        self._is_refused = False
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def answer(self, names: Iterable[str]) -> bool:
        """Whether these operators have kernels that ask the passes of their thread."""
        missing = [name for name in names if name not in self._names]
        if missing and not self._is_refused:
            with self._lock:
                self._register(missing)
        return not self._is_refused

    def refuse(self) -> None:
        """From now on ``answer`` is False."""
        self._is_refused = True

    def _register(self, names: list[str]) -> None:
        try:
            if not self._libraries:
                self._key = torch._C._dispatch_key_parse(self._KEY)
                self._only_key = torch._C.DispatchKeySet(self._key)
                self._libraries["_"] = torch.library.Library("_", "IMPL", self._KEY)
                self._libraries["_"].fallback(torch.library.fallthrough_kernel)
            for name in names:
                self._register_one(name)
        except (RuntimeError, AttributeError, ValueError, TypeError):
            self.refuse()

    def _register_one(self, name: str) -> None:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        operator = None if found is None else getattr(found, overload or "default", None)
        if operator is not None and name not in self._names:
            library = self._libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL", self._KEY))
            library.impl(rest, functools.partial(self._ask, operator))
        self._names.add(name)  # the module does not call one that does not exist

    def _ask(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        call = operator
        for each in getattr(self._of_thread, "passes", ()):  # each one was entered in those before it
            call = functools.partial(_run, each, operator, call)
        with torch._C._ExcludeDispatchKeyGuard(self._only_key):
            return call(*args, **kwargs)

    @contextlib.contextmanager
    def asking(self, of: _Pass) -> Iterator[None]:
        outer = getattr(self._of_thread, "passes", ())
        self._of_thread.passes = (*outer, of)
        try:
            with torch._C._IncludeDispatchKeyGuard(self._key):
                yield
        finally:
            self._of_thread.passes = outer


def _run(of: _Pass, operator: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return of.run(operator, call, args, kwargs)


_kernels = _Kernels()


def _difference(places: KeptOperators, counts: Counter[str]) -> str | None:
    """What the module does otherwise than the plan says, first."""
    for name, call, of in places:
        found = counts[name]
        if found < call or (of and found != of):
            planned = f"call {call} of {of}" if of else f"call {call}"
            return f"it keeps the result of {name}, {planned}, and the module calls {name} {found} times"
    return None


@contextlib.contextmanager
def _checked(forward: _Keep, places: KeptOperators, refuse: Refuse) -> Iterator[None]:
    with forward:
        yield
    difference = _difference(places, forward.counts)
    if difference is None:
        return
    if forward.region.has_kernels and all(forward.counts[name] >= max(call, of) for name, call, of in places):
        _kernels.refuse()  # Some may run within other operators, which a mode does not see: the next call has one.
    else:
        refuse(difference)


def contexts(places: KeptOperators, refuse: Refuse) -> tuple[Any, Any]:
    """For a call of a module: what its forward and what its recomputation run in."""
    region = _Region(places)
    return _checked(_Keep(region), places, refuse), _Reuse(region)


# ---- compiled code ----


class _Policy:
    """torch asks it in forward, and before torch 2.13 in the recomputation too."""

    def __init__(self, places: KeptOperators) -> None:
        self._wanted = {(name, call) for name, call, _ in places}
        self._counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._keeps_random = {False: False, True: False}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        again, name = bool(context.is_recompute), name_of(operator)
        self._counts[again][name] += 1
        is_random = draws_random_numbers(operator, args, kwargs)
        is_kept = (name, self._counts[again][name]) in self._wanted or (self._keeps_random[again] and is_random)
        if not is_kept or why_not(operator) is not None:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self._keeps_random[again] |= is_random
        return CheckpointPolicy.MUST_SAVE


def contexts_of_compiled(places: KeptOperators) -> tuple[Any, Any]:
    """The contexts for a module in compiled code, in which torch checkpoints it."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    found: tuple[Any, Any] = create_selective_checkpoint_contexts(_Policy(places))
    return found
