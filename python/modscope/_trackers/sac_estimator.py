"""``SACEstimator``: what each module could give back of memory by selective checkpointing, and what that would cost."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import torch
from modscope._plan.selective import draws_random_numbers
from modscope._trackers import piecewise_fit
from modscope._trackers.operator_times import COST_MODEL, Estimation, check_mode
from modscope._trackers.runtime_estimator import is_shown
from modscope._trackers.snapshots import table

__all__ = ["MSPS", "SACEstimator", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats"]

_IN_PLACE, _VIEW, _RANDOM, _SKIPPED, _SAVED = 1, 2, 4, 8, 16
_DELTA = 1e-2  # by which torch moves the trade-off curve to the right
_GRAPHS = "tradeoff_graphs"


@dataclasses.dataclass
class SACStats:
    """The operators of a module, in their order. Of a module that is called several times with the same operators,
    times and bytes are sums over its calls; where the operators differ, those of each call follow one another."""

    func_names: list[str]
    runtimes: list[float]
    """Milliseconds."""
    memory: list[int]
    """Bytes of the results. What the module returns is kept anyway, and is 0; a result that is changed in place counts
    once, where it was made."""
    view_like_ops: list[int]
    rand_ops: list[int]
    saved_autograd_ops: list[int]
    """Those of which autograd keeps a result for backward."""
    inplace_ops: list[tuple[int, int]]
    """Operators that change a result in place, each with the operator that made it; with itself if none in the module
    did."""
    force_store_random: bool
    """A call of the module has no tensor among its inputs."""


class MSPS(NamedTuple):
    """Operators that are recomputed together."""

    func_names: set[str]
    op_idx: int
    """The first of them."""
    memory: int
    runtime: float
    msps: float
    """Bytes for each millisecond."""


@dataclasses.dataclass
class SACTradeOffStats:
    """The fraction of the time that recomputing takes, by the fraction of the bytes that is given back."""

    n_segments: int
    slopes: list[float]
    intercepts: list[float]
    fit_breaks: list[float]
    tradeoff_curve: OrderedDict[float, float]
    sac_memory: int
    sac_runtime: float


@dataclasses.dataclass
class SACGreedyOrderMeta:
    """In which order operators would be recomputed."""

    recomputed_ops: set[int]
    """Views, which take no memory."""
    stored_ops: set[int]
    inplace_op_groups: dict[int, set[int]]
    random_ops_group: dict[int, set[int]]
    msps_meta: list[MSPS]
    """The others, the most bytes for each millisecond first."""


# ---- what an operator does ----


def _skipped_operators() -> frozenset[Any]:
    """Operators that selective checkpointing does not see, as in torch."""
    from torch.utils import checkpoint

    aten = torch.ops.aten
    known = getattr(checkpoint, "SAC_IGNORED_OPS", {aten.detach.default})
    return frozenset(known) | {aten.lift_fresh.default, aten.clone.default}


def _flags(skipped: frozenset[Any]) -> Callable[[Any], int]:
    def flags_of(op: Any) -> int:
        schema = getattr(op, "_schema", None)
        if op in skipped or "_record_function" in str(op):
            return _SKIPPED
        if schema is None:
            return 0
        written = [each.alias_info is not None and each.alias_info.is_write for each in schema.returns]
        has_out = any(argument.is_out for argument in schema.arguments)
        is_in_place = schema.is_mutable and all(written) and not has_out
        return (
            _IN_PLACE * is_in_place
            | _VIEW * (torch.Tag.inplace_view in op.tags)
            | _RANDOM * (torch.Tag.nondeterministic_seeded in op.tags)
        )

    return flags_of


def _is_random(op: Any, args: Any, kwargs: Any) -> bool:
    return draws_random_numbers(op, args, kwargs or {})


# ---- statistics of modules ----


def _name(op: Any) -> str:
    packet = getattr(op, "_overloadpacket", op)
    return str(getattr(packet, "__name__", packet))


def _stats(operators: tuple[list[Any], list[float], list[int], list[int], list[int]], has_tensor: bool) -> SACStats:
    ops, runtimes, memory, flags, heads = operators

    def marked(mark: int) -> list[int]:
        return [i for i, each in enumerate(flags) if each & mark]

    changed = [(i, head) for i, head in enumerate(heads) if head >= 0]
    return SACStats(
        list(map(_name, ops)), runtimes, memory, marked(_VIEW), marked(_RANDOM), marked(_SAVED), changed, not has_tensor
    )


def _union(a: Iterable[int], b: Iterable[int]) -> list[int]:
    return sorted({*a, *b})


def _added(a: SACStats, b: SACStats) -> SACStats:
    """The stats of two calls of one module."""
    force = a.force_store_random or b.force_store_random
    if a.func_names == b.func_names and a.inplace_ops == b.inplace_ops:
        return SACStats(
            a.func_names,
            [x + y for x, y in zip(a.runtimes, b.runtimes)],
            [x + y for x, y in zip(a.memory, b.memory)],
            _union(a.view_like_ops, b.view_like_ops),
            _union(a.rand_ops, b.rand_ops),
            _union(a.saved_autograd_ops, b.saved_autograd_ops),
            a.inplace_ops,
            force,
        )
    base = len(a.func_names)
    return SACStats(
        a.func_names + b.func_names,
        a.runtimes + b.runtimes,
        a.memory + b.memory,
        a.view_like_ops + [base + i for i in b.view_like_ops],
        a.rand_ops + [base + i for i in b.rand_ops],
        a.saved_autograd_ops + [base + i for i in b.saved_autograd_ops],
        a.inplace_ops + [(base + i, base + head) for i, head in b.inplace_ops],
        force,
    )


def _stats_by_module(estimation: Estimation) -> dict[str, SACStats]:
    """In the order in which forwards ended. A call inside another one of the same module is a part of it."""
    found: dict[str, SACStats] = {}
    ends: dict[str, int] = {}
    for number, fqn, first, end, has_tensor in estimation.log.calls():
        if first < ends.get(fqn, 0):
            continue
        ends[fqn] = end
        stats = _stats(estimation.log.operators(number), has_tensor)
        found[fqn] = _added(found[fqn], stats) if fqn in found else stats
    return {fqn: found[fqn] for fqn in dict.fromkeys(estimation.log.orders[1]) if fqn in found}


# ---- the greedy order ----


def _greedy_order(stats: SACStats) -> SACGreedyOrderMeta:
    heads = dict(stats.inplace_ops)
    groups: dict[int, set[int]] = {}
    for op, head in heads.items():
        groups.setdefault(head, {head}).add(op)
    random = set(stats.rand_ops)
    random_groups = {min(random): set(random)} if random else {}
    stored = set(random_groups) if stats.force_store_random else set()
    for head, group in groups.items():
        if head in heads or (stats.force_store_random and group & random):
            stored.add(head)
    recomputed = set(stats.view_like_ops) - set(heads)
    kept_out = {i for head in stored for i in _together(head, groups, random_groups)} | recomputed
    order, seen = [], set(kept_out)
    for op in range(len(stats.memory)):
        if op in seen:
            continue
        together = _together(op if op not in heads else heads[op], groups, random_groups) - kept_out
        seen |= together
        memory, runtime = sum(stats.memory[i] for i in together), sum(stats.runtimes[i] for i in together)
        rate = memory / runtime if runtime > 0 else sys.float_info.max
        order.append(MSPS({stats.func_names[i] for i in together}, op, memory, runtime, rate))
    order.sort(key=lambda each: -each.msps)
    return SACGreedyOrderMeta(recomputed, stored, groups, random_groups, order)


def _together(op: int, groups: dict[int, set[int]], random_groups: dict[int, set[int]]) -> set[int]:
    """The operators that are recomputed or stored with this one: all that change its result in place, and, if one of
    these draws random numbers, all that draw any."""
    found = {op}
    while True:
        more = set(found)
        for group in (*groups.values(), *random_groups.values()):
            if group & found:
                more |= group
        if more == found:
            return found
        found = more


class _Row(NamedTuple):
    """A step of the greedy order: with it, so much is given back and recomputed."""

    ops: set[int]
    msps: float | None
    is_stored: bool
    is_recomputed: bool
    memory: int
    runtime: float


def _rows(stats: SACStats, order: SACGreedyOrderMeta) -> list[_Row]:
    rows: list[_Row] = []
    memory, runtime, seen = 0, 0.0, set[int]()

    def add(ops: set[int], msps: float | None, is_stored: bool, is_recomputed: bool) -> None:
        nonlocal memory, runtime
        ops = ops - seen
        seen.update(ops)
        memory += sum(stats.memory[i] for i in ops)
        runtime += sum(stats.runtimes[i] for i in ops)
        rows.append(_Row(ops, msps, is_stored, is_recomputed, memory, runtime))

    groups, random_groups = order.inplace_op_groups, order.random_ops_group
    stored = {i for head in order.stored_ops for i in _together(head, groups, random_groups)}
    for op in sorted(order.recomputed_ops):
        add({op}, None, False, True)
    for each in order.msps_meta:
        add(_together(each.op_idx, groups, random_groups) - stored, each.msps, False, False)
    for op in sorted(order.stored_ops):
        add(_together(op, groups, random_groups), None, True, False)
    return rows


def _fraction(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _trade_off(stats: SACStats, order: SACGreedyOrderMeta, n_segments: int) -> SACTradeOffStats:
    memory, runtime = sum(stats.memory), sum(stats.runtimes)
    rows = _rows(stats, order)
    fixed = [row for row in rows if row.is_recomputed]
    steps = [(fixed[-1].memory, fixed[-1].runtime) if fixed else (0, 0.0)]
    steps += [(row.memory, row.runtime) for row in rows if not row.is_recomputed and not row.is_stored]
    steps.append((rows[-1].memory, rows[-1].runtime) if rows else (0, 0.0))
    curve: OrderedDict[float, float] = OrderedDict()
    for discarded, recomputed in steps:
        curve[_fraction(discarded, memory) + _DELTA] = _fraction(recomputed, runtime)
    # Each step costs what it gives back only as a whole: the bound has its cost from where the step before ends.
    points = list(zip(list(curve)[:-1], list(curve.values())[1:]))
    pieces = piecewise_fit.fit(
        points or [(0.0, _fraction(steps[-1][1], runtime))], max(min(len(points) - 2, n_segments), 1)
    )
    return SACTradeOffStats(len(pieces.slopes), pieces.slopes, pieces.intercepts, pieces.breaks, curve, memory, runtime)


def _draw(stats: SACTradeOffStats, name: str) -> None:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("save_tradeoff_graphs draws with matplotlib: install it, or leave the option out") from error
    pieces = piecewise_fit.Pieces(stats.slopes, stats.intercepts, stats.fit_breaks)
    x, y = list(stats.tradeoff_curve), list(stats.tradeoff_curve.values())
    figure, axes = pyplot.subplots()
    axes.plot(x, y, "x", label="greedy order")
    axes.plot(x[:-1], y[1:], "o", label="upper bound")
    axes.plot(stats.fit_breaks, [pieces.at(at) for at in stats.fit_breaks], "-", label="pieces")
    axes.set_xlabel("memory given back, of all")
    axes.set_ylabel("time to recompute, of all")
    axes.set_title(f"{name}: {stats.sac_memory} B, {stats.sac_runtime:.4f} ms")
    axes.legend()
    os.makedirs(_GRAPHS, exist_ok=True)
    figure.savefig(os.path.join(_GRAPHS, f"{name}.png"))
    pyplot.close(figure)


# ---- text ----


def _print_table(headers: Sequence[str], rows: list[list[str]], is_ruled: bool) -> None:
    if is_ruled:
        print(table(headers, rows))
        return
    lines = [list(headers), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    for line in lines:
        print("\t".join(cell.ljust(width) for cell, width in zip(line, widths)))


_OPERATOR_HEADERS = "Op Idx,Op Name,Runtimes(ms),Memory (B),View-like,Random,Saved Autograd,In-place".split(",")
_TRADE_OFF_HEADERS = (
    "Op Id(s),Op Name(s),Discarded Mem (%),Discarded Mem (B),Recomp time (%),Recomp time (ms),MSPS,"
    "Always Stored,Always Recomputed"
).split(",")


# ---- the estimator ----


class SACEstimator:
    """Estimates, for each module with submodules, what selective checkpointing would save and cost.

    A drop-in for ``torch.distributed._tools.sac_estimator.SACEstimator``::

        estimator = SACEstimator()
        with FakeTensorMode():
            ...  # the model, a batch
            with estimator("operator-level-cost-model"):
                loss = model(batch).sum()
            estimator.display_modulewise_sac_stats(depth=4, print_tabular=True)

    It is entered under a ``FakeTensorMode``, or inside ``modscope.virtual_gpu``; ``gpu_type`` and the modes are those
    of ``RuntimeEstimator``. Only forwards count, and not what a checkpoint runs again.
    """

    def __init__(self, gpu_type: str | None = None) -> None:
        self._gpu_type = gpu_type
        self._mode = COST_MODEL
        self._estimation: Estimation | None = None
        self._is_active = False
        self._read_until = (0, 0)
        self._sac_mod_stats: dict[str, SACStats] = {}
        self._sac_mod_greedy_order_meta: dict[str, SACGreedyOrderMeta] = {}
        self.sac_mod_tradeoff_stats: dict[str, SACTradeOffStats] = {}

    def __call__(self, estimate_mode_type: str) -> Self:
        """Choose how times are found, as ``RuntimeEstimator`` does. NotImplementedError for another mode."""
        self._mode = check_mode(estimate_mode_type)
        return self

    def __enter__(self) -> Self:
        if self._is_active:
            raise RuntimeError("this SACEstimator is active already: use another one, or leave it first")
        self._read()
        estimation = Estimation(self._mode, self._gpu_type, _flags(_skipped_operators()), _is_random)
        estimation.enter()
        self._estimation, self._is_active, self._read_until = estimation, True, (0, 0)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._estimation is not None and self._is_active:
            self._is_active = False
            self._estimation.leave()

    @property
    def lost(self) -> int:
        """How many operators and calls could not be recorded. If not 0, the statistics are not complete."""
        return self._estimation.log.lost if self._estimation else 0

    # ---- figures ----

    def _read(self) -> None:
        """Bring the statistics up to date. Those of an earlier use stay for modules that were not called since."""
        if self._estimation is None:
            return
        ended = len(self._estimation.log.orders[1])
        state = (id(self._estimation), ended)
        if state == self._read_until:
            return
        self._read_until = state
        found = _stats_by_module(self._estimation)
        self._sac_mod_stats.update(found)
        self._sac_mod_greedy_order_meta.update({fqn: _greedy_order(stats) for fqn, stats in found.items()})

    @property
    def sac_mod_stats(self) -> dict[str, SACStats]:
        """By fqn, the operators of each module that has submodules."""
        self._read()
        return self._sac_mod_stats

    @property
    def sac_mod_greedy_order_meta(self) -> dict[str, SACGreedyOrderMeta]:
        """By fqn, in which order its operators would be recomputed."""
        self._read()
        return self._sac_mod_greedy_order_meta

    def pwlf_sac_tradeoff_curve(self, n_segments: int = 2, save_tradeoff_graphs: bool = False) -> None:
        """Fill ``sac_mod_tradeoff_stats``: by fqn, the trade-off curve and so many straight pieces through it.
        ``save_tradeoff_graphs`` draws them to files in ``tradeoff_graphs``, with matplotlib."""
        if isinstance(n_segments, bool) or not isinstance(n_segments, int) or n_segments < 1:
            raise ValueError(f"n_segments must be an int of 1 or more, not {n_segments!r}")
        for fqn, stats in self.sac_mod_stats.items():
            trade_off = _trade_off(stats, self.sac_mod_greedy_order_meta[fqn], n_segments)
            self.sac_mod_tradeoff_stats[fqn] = trade_off
            if save_tradeoff_graphs:
                _draw(trade_off, fqn)

    # ---- text ----

    def display_sac_stats(self, sac_stats: SACStats, print_tabular: bool = False) -> None:
        """Print the operators of a module."""
        print(
            f"Total Memory: {sum(sac_stats.memory)} B Total Runtime: {sum(sac_stats.runtimes)} ms"
            f" Store Random: {sac_stats.force_store_random}"
        )
        heads = dict(sac_stats.inplace_ops)
        marks = (set(sac_stats.view_like_ops), set(sac_stats.rand_ops), set(sac_stats.saved_autograd_ops))
        rows = [
            [str(i), name, f"{runtime:.4f}", str(memory), *(str(i in mark) for mark in marks), str(heads.get(i))]
            for i, (name, runtime, memory) in enumerate(zip(sac_stats.func_names, sac_stats.runtimes, sac_stats.memory))
        ]
        _print_table(_OPERATOR_HEADERS, rows, print_tabular)

    def display_sac_tradeoff_stats(
        self, greedy_order_meta: SACGreedyOrderMeta, sac_stats: SACStats, print_tabular: bool = False
    ) -> None:
        """Print the greedy order of a module, with what is given back and recomputed up to each step."""
        memory, runtime = sum(sac_stats.memory), sum(sac_stats.runtimes)
        rows = [
            [
                str(row.ops or "{}"),
                str({sac_stats.func_names[i] for i in row.ops} or "{}"),
                f"{_fraction(row.memory, memory):.4f}",
                str(row.memory),
                f"{_fraction(row.runtime, runtime):.4f}",
                str(row.runtime),
                "nan" if row.msps is None else f"{row.msps:.2e}",
                str(row.is_stored),
                str(row.is_recomputed),
            ]
            for row in _rows(sac_stats, greedy_order_meta)
        ]
        _print_table(_TRADE_OFF_HEADERS, rows, print_tabular)

    def display_modulewise_sac_stats(self, depth: int = 2, print_tabular: bool = False) -> None:
        """Print both for each module whose name has at most ``depth`` parts."""
        for fqn, stats in self.sac_mod_stats.items():
            if is_shown(fqn, depth):
                print(f"Module: {fqn}")
                self.display_sac_stats(stats, print_tabular)
                print(f"AC Trade-off for Module: {fqn} MSPS = Memory/Runtime")
                self.display_sac_tradeoff_stats(self.sac_mod_greedy_order_meta[fqn], stats, print_tabular)
