"""What is read of each rank's capture: which rank it is, its peak, what each module held then, and the collectives that
it launched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from modscope._read.categories import KINDS, Raw, Sums
from modscope._read.load import Capture, load
from modscope._read.step_time import step_ms
from modscope._read.summary import OutOfMemory, describe_end, predicted_on, summarize_oom
from modscope._read.text import describe_moment, size
from modscope._read.types import CollectiveGroup, Peak

# ---- the collectives of one rank ----


class KindSums(NamedTuple):
    launches: int
    bytes: int
    nanoseconds: int
    """The time that the timed launches took."""
    timed: int
    """How many launches have a known time."""


class GroupSums(NamedTuple):
    """What a rank launched in one group."""

    group: CollectiveGroup
    launched: int
    """How many collectives. Messages, which only two ranks take part in, are not counted."""
    order: tuple[int, ...]
    """Equal on two ranks that launched the same collectives in the same order."""
    kinds: dict[str, KindSums]
    """The sums of each kind of collective, and of messages."""


def read_sums(capture: Capture) -> tuple[GroupSums, ...]:
    """A group that was destroyed and created again counts as one."""
    found: dict[CollectiveGroup, GroupSums] = {}
    for group, launched, order, rows in capture.collective_sums():
        before = found.get(group, GroupSums(group, 0, (), {}))
        kinds = dict(before.kinds)
        for kind, *sums in rows:
            kinds[kind] = KindSums(*(a + b for a, b in zip(kinds.get(kind, (0, 0, 0, 0)), sums)))
        orders = (*before.order, order) if launched else before.order
        found[group] = GroupSums(group, before.launched + launched, orders, kinds)
    return tuple(found.values())


# ---- one rank ----

Owned = tuple[tuple[str, Raw, Raw], ...]
"""Modules, their own bytes by category, and by kind (empty where there are none), sorted by name. Equal ranks share
one."""

_LARGEST = 10**9


class RankIdentity(NamedTuple):
    """Which rank of a job a process was, and where it ran."""

    rank: int
    world: int
    local_rank: int | None = None
    node: str = ""
    """The number of the node; "" if the launcher did not say so."""
    host: str = ""
    attempt: int = 0
    """How often the launcher had started the job again."""
    job: str = ""
    """The name that the launcher gave to the job."""
    is_only_node: bool = False
    """The job has one node, whose local ranks are the ranks: there is no need to say where a rank ran."""


class Rank(NamedTuple):
    """What is read of the capture of one process."""

    file: str
    identity: RankIdentity | None
    """None: it says no rank, or that it is the only one."""
    program: str
    arguments: tuple[str, ...]
    predicted_on: str | None
    began: float | None
    """When the run began, in seconds since 1970."""
    duration: float
    events: int
    steps: int
    optimizer_steps: int
    step_ms: float | None
    """The time of a step; None: not known."""
    end: Mapping[str, str] | None
    oom: OutOfMemory | None
    device: str
    """Its main device; "" if it held no memory."""
    peak: Peak | None
    reserved: int
    """The most that the device's allocator had reserved."""
    is_lower_bound: bool
    lost: int
    damaged: int
    owned: Owned
    """What each module held at the peak."""
    collectives: tuple[GroupSums, ...]
    """The collectives that it launched in each group."""

    @property
    def number(self) -> int:
        return self.identity.rank if self.identity else 0

    @property
    def bytes(self) -> int:
        return self.peak.bytes if self.peak else 0

    @property
    def how_it_ended(self) -> str:
        text = describe_end(self.end)
        if self.oom:
            where = describe_moment(self.oom["step"], self.oom["phase"], self.oom["module"])
            text += (
                f"; out of memory: an allocation of {size(self.oom['requested'])} failed on "
                f"{self.oom['device']}, {where}"
            )
        return text


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else None


def identity_of(info: Mapping[str, str], end: Mapping[str, str] | None) -> RankIdentity | None:
    """What the end of a capture says comes from torch.distributed, and counts more than the environment at the
    start."""
    said = {**info, **(end or {})}
    rank, world = _number(said.get("rank")), _number(said.get("world"))
    if rank is None or world is None or world < 2 or rank >= world or world > _LARGEST:
        return None
    local, attempt = _number(said.get("local_rank")), _number(said.get("attempt"))
    return RankIdentity(
        rank, world, local, said.get("node", ""), said.get("host", ""), attempt or 0, said.get("job", "")
    )


def _without_local_rank(arguments: Sequence[str]) -> tuple[str, ...]:
    """Some launchers pass each rank its local rank: it makes no other program of it."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("--local_rank", "--local-rank"):
            next(words, None)
        elif not word.startswith(("--local_rank=", "--local-rank=")):
            kept.append(word)
    return tuple(kept)


def _began(text: str | None) -> float | None:
    try:
        return float(text) if text is not None and 0 < float(text) < 1e12 else None
    except ValueError:
        return None


def _raw_kinds(kinds: Sums | None) -> Raw:
    return tuple(kinds.get(kind, 0) for kind in KINDS) if kinds else ()


def read_rank(file: str, capture: Capture) -> Rank:
    info = capture.info
    device = capture.main_device if capture.peaks else ""
    peak = capture.peaks.get(device)
    snapshot = capture.snapshot(peak.moment) if peak else None
    owned = snapshot.own_bytes(device) if snapshot else {}
    kinds = snapshot.kinds_by_module().get(device, {}) if snapshot else {}
    return Rank(
        file,
        identity_of(info, capture.end),
        info.get("program", "a program"),
        _without_local_rank(info.get("arguments", "").split("\n")),
        predicted_on(info),
        _began(info.get("began")),
        capture.duration,
        capture.event_count,
        capture.last_step,
        capture.optimizer_steps,
        step_ms(capture),
        capture.end,
        summarize_oom(capture),
        device,
        peak,
        capture.reserved.get(device, 0),
        capture.is_lower_bound,
        capture.lost,
        capture.damaged,
        tuple(sorted((fqn, raw, _raw_kinds(kinds.get(fqn))) for fqn, raw in owned.items() if any(raw))),
        read_sums(capture),
    )


def read_ranks(files: Sequence[str]) -> list[Rank]:
    """Read captures, several at a time: C reads them without the GIL. No capture stays open."""
    tables: dict[Owned, Owned] = {}

    def read(file: str) -> Rank:
        rank = read_rank(file, load(file))
        return rank._replace(owned=tables.setdefault(rank.owned, rank.owned))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(read, files))
