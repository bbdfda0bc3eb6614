"""Rules: the workspace that operators take on a real GPU.

A rule is a function of the GPU and of an operator's arguments that returns the operator's workspace
(``operators.Workspace``). Rules are registered here by the names of operators, and each states its source. The modules
of ``_MODULES`` hold them by subject. An operator without a rule takes the memory of its results only, and the bytes of
such results are counted."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from modscope import _native
from modscope._virtual.certainty import DOUBTS, SOURCE_OF_KIND
from modscope._virtual.gpus import Gpu, architecture_of
from modscope._virtual.operators import operators
from modscope._virtual.operators.operators import Workspace, WorkspaceEvents

if TYPE_CHECKING:
    from modscope._virtual.time.table import Table

__all__ = [
    "GpuAndTorch",
    "Rule",
    "Rules",
    "all_rules",
    "argument",
    "at_start",
    "contiguous_copy",
    "doubt",
    "note_doubt",
    "rule",
]

RuleFunction = Callable[["GpuAndTorch", Any, Any, Any], Workspace]

_MODULES = (
    "rules.matrix_products",
    "rules.reductions",
    "rules.sorting",
    "rules.indexing",
    "rules.normalization",
    "rules.losses",
    "rules.convolution",
    "rules.batch_norm",
    "rules.pooling",
    "rules.recurrent",
    "rules.fourier",
    "rules.attention_workspace",
    "rules.torchvision",
)


class GpuAndTorch(NamedTuple):
    """What a rule may depend on in addition to the operator's arguments."""

    capability: tuple[int, int]
    processors: int
    """Streaming multiprocessors."""
    torch: tuple[int, int] = (2, 11)
    """The version of torch whose rules are used."""

    @property
    def threads_per_processor(self) -> int:
        return architecture_of(self.capability).threads


def gpu_and_torch(gpu: Gpu, version: str) -> GpuAndTorch:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or int(numbers[1]) < 2:
        raise ValueError(f"{version!r} is not a version of torch that is known: give 2.0 or newer, such as 2.11")
    return GpuAndTorch(gpu.capability, gpu.processors, (int(numbers[1]), int(numbers[2])))


class Rule(NamedTuple):
    function: RuleFunction
    source: str
    """Where the rule comes from: a file of torch, or what was measured."""
    order: tuple[int, ...] | None = None
    """The numbers of the results in the order in which they are made, if that is not the order in which they are
    returned."""


_rules: dict[str, Rule] = {}


def rule(*names: str, source: str, order: tuple[int, ...] | None = None) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of the operators ``names``, such as ``aten.convolution.default``."""

    def register(function: RuleFunction) -> RuleFunction:
        for name in names:
            _rules[name] = Rule(function, source, order)
        return function

    return register


_starts: list[Callable[[], None]] = []


def at_start(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function that forgets what a rule remembers between calls. It is called when ``Rules`` are made."""
    _starts.append(function)
    return function


@functools.cache
def _import_rules() -> None:
    for name in _MODULES:
        importlib.import_module(f"modscope._virtual.{name}")


def all_rules() -> dict[str, Rule]:
    """The rules of every module, by the operator's name."""
    _import_rules()
    return _rules


_doubts: list[tuple[str, int, int]] = []
"""Of the rule that is running: kinds of sizes that are not sure, the bytes, and the most bytes."""


def doubt(kind: str, bytes: int, more: int | None = None) -> None:
    """Called by a rule: this workspace may take so many bytes more, by default as many again. ``kind``: one of
    certainty.DOUBTS, which says where it is sure."""
    _doubts.append((kind, bytes, bytes + (bytes if more is None else more)))


def note_doubt(kind: str, bytes: int) -> None:
    """Called by a kernel: its result is not sure, and may take so many bytes."""
    _native.virtual_doubt(DOUBTS.index(kind), bytes)


def argument(args: Any, kwargs: Any, position: int, name: str, default: Any = None) -> Any:
    """An argument of an operator. torch leaves arguments out that equal their defaults."""
    if name in kwargs:
        return kwargs[name]
    return args[position] if position < len(args) else default


def contiguous_copy(tensor: torch.Tensor | None) -> list[operators.WorkspaceEvent]:
    """The copy that a kernel makes of a tensor that is not contiguous."""
    if tensor is None or tensor.is_contiguous():
        return []
    return [("temporary", tensor.nbytes)]


def last_power(value: int) -> int:
    """The greatest power of two that is not above the value; 1 below 1."""
    return 1 << (max(value, 1).bit_length() - 1)


def _from(events: WorkspaceEvents, source: Callable[[int], str | None]) -> WorkspaceEvents:
    """Events with the sources of the temporary blocks' sizes."""
    return [((source(abs(bytes)) or what) if what == "temporary" else what, bytes) for what, bytes in events]


def result_bytes(specs: Any) -> int:
    if isinstance(specs, list):
        return sum(result_bytes(spec) for spec in specs)
    if not isinstance(specs, tuple):
        return 0
    bytes = specs[2].itemsize
    for count in specs[0]:
        bytes *= count
    return int(bytes)


class Rules(operators.OperatorCosts):
    """The rules of one GPU, as the virtual device asks them."""

    def __init__(self, gpu: GpuAndTorch, table: Table | None = None) -> None:
        self._gpu = gpu
        self._table = table
        self._rules = all_rules()
        self._bytes_without_rule = 0
        self.operators: set[str] = set()
        """The names of those that ran."""
        for start in _starts:
            start()

    def events(self, op: Any, args: Any, kwargs: Any, specs: Any) -> Workspace:
        name = str(op)
        self.operators.add(name)
        if self._table is not None:
            found = self._table.find(op, args, kwargs)
            if found is not None and found.events is not None:
                return found.events if callable(found.events) else _from(found.events, lambda bytes: "table")
        known = self._rules.get(name)
        if known is not None:
            _doubts.clear()
            events = known.function(self._gpu, args, kwargs, specs)
            return self._noting(events, result_bytes(specs)) if _doubts else events
        bytes = result_bytes(specs)
        return self._counting(bytes) if bytes and not takes_results_only(op) else None

    def order(self, op: Any) -> tuple[int, ...] | None:
        known = self._rules.get(str(op))
        return known.order if known is not None else None

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        """How long the operator took when it was measured; 0 if the table does not tell."""
        if self._table is not None:
            found = self._table.find(op, args, kwargs)
            if found is not None and found.seconds is not None:
                return found.seconds
        return 0.0

    def bytes_without_rule(self) -> int:
        """The bytes of the results of operators that have no rule."""
        return self._bytes_without_rule

    def _noting(self, events: Workspace, results: int) -> Callable[[], WorkspaceEvents]:
        """The events, and at each call it is noted what the operator would take at most."""
        found = [(DOUBTS.index(kind), results + most) for kind, _, most in _doubts]
        sources = {bytes: SOURCE_OF_KIND[kind] for kind, bytes, _ in _doubts if kind in SOURCE_OF_KIND}
        fixed = () if callable(events) else _from(events or (), sources.get)

        def note() -> WorkspaceEvents:
            for kind, bytes in found:
                _native.virtual_doubt(kind, bytes)
            return _from(events() or (), sources.get) if callable(events) else fixed

        return note

    def _counting(self, bytes: int) -> Callable[[], WorkspaceEvents]:
        """The workspace may be as large as the results."""

        def count() -> WorkspaceEvents:
            self._bytes_without_rule += bytes
            note_doubt("without_rule", 2 * bytes)
            return ()

        return count


_RESULTS_ONLY = frozenset(
    """
    _amp_update_scale_ arange as_strided bernoulli bernoulli_ binary_cross_entropy_backward bincount binomial
    bucketize cat cauchy_ channel_shuffle col2im copy_ _dirichlet_grad _efficientzerotensor elu elu_backward
    _embedding_bag _embedding_bag_forward_only embedding_renorm_ empty empty_strided eq_ exponential_ eye fill_ flip
    floor_divide floor_divide_ fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d
    fractional_max_pool3d_backward gather gcd_ ge_ gelu gelu_ gelu_backward geometric_ glu glu_backward glu_jvp
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward gt_ hardshrink
    hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_ hardswish_backward hardtanh
    hardtanh_backward heaviside_ histc huber_loss_backward __ilshift__ index_add index_add_ index_copy index_copy_
    index_fill_ index_reduce_ index_select __irshift__ lcm_ le_ leaky_relu leaky_relu_backward linspace log_normal_
    log_sigmoid_backward log_sigmoid_forward logspace lt_ masked_fill_ _masked_softmax _masked_softmax_backward median
    mish mish_ mish_backward mse_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward
    native_channel_shuffle ne_ nll_loss2d_backward nll_loss_backward normal normal_ _pdist_forward pixel_shuffle
    pixel_unshuffle poisson polar _prelu_kernel _prelu_kernel_backward random_ range reflection_pad1d
    reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward
    replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward _reshape_alias resize_ rrelu_with_noise rrelu_with_noise_ rsub _sample_dirichlet
    scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ searchsorted set_ smooth_l1_loss_backward
    softplus softplus_backward softshrink softshrink_backward _stack _standard_gamma _standard_gamma_grad take
    threshold threshold_ threshold_backward tril tril_ tril_indices triu triu_ triu_indices unfold unfold_backward
    uniform_ upsample_bicubic2d _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward upsample_bicubic2d_backward
    upsample_bilinear2d _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d _upsample_nearest_exact3d_backward upsample_trilinear3d upsample_trilinear3d_backward
    view _weight_norm_interface _weight_norm_interface_backward where zero_
""".split()
)
"""Operators whose CUDA kernels (torch's aten/src/ATen/native/cuda) take no workspace, or only a few bytes. Operators
that torch tags as pointwise, operators on lists (``_foreach_``) and those of optimizers (``_fused_``) take none either,
and are not listed."""


def takes_results_only(op: Any) -> bool:
    """Whether it is known that an operator takes no workspace."""
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten":
        return False
    return (
        torch.Tag.pointwise in op.tags
        or name in _RESULTS_ONLY
        or name.startswith(("_foreach_", "_fused_", "_amp_foreach_"))
    )
