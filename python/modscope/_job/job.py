"""The ranks of one job, from their captures: which belong together, which are missing, and how they differ."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from modscope._job.read import Owned, Rank, RankIdentity
from modscope._read.categories import CATEGORIES, KINDS, Category, Kind, category_of
from modscope._read.groups import describe_numbers, group_modules
from modscope._read.text import clean, counted, label, milliseconds, shorten_end
from modscope._read.types import CaptureError

_MOST_NUMBERS = 24  # columns of a list of ranks
_MOST_WORDS = 60  # columns of a program or its arguments in an error
K = TypeVar("K", bound=Hashable)


class DistributedJob(NamedTuple):
    program: str
    """The program that ran, with its arguments."""
    world: int
    attempt: int
    ranks: list[Rank]
    """The ranks of the latest attempt, by their numbers."""
    earlier: list[list[Rank]]
    """The ranks of each earlier attempt."""
    left_out: list[str]
    """Sentences on captures that are not of a rank."""

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranks without a capture: the first and the last of each run of them."""
        return missing_runs([rank.number for rank in self.ranks], self.world)


def missing_runs(present: Iterable[int], world: int) -> list[tuple[int, int]]:
    runs, expected = [], 0
    for number in [*sorted(present), world]:
        if number > expected:
            runs.append((expected, number - 1))
        expected = number + 1
    return runs


def describe_runs(runs: Sequence[tuple[int, int]]) -> str:
    """The ranks of several runs of numbers: "ranks 3, 5-7"."""
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"{'rank' if len(runs) == 1 and runs[0][0] == runs[0][1] else 'ranks'} {', '.join(words)}"


def describe_ranks(ranks: Sequence[Rank]) -> str:
    """Name ranks: "ranks 0-6", or a single one, if there are several nodes, with where it ran: "rank 7 (node 1, local
    rank 3)". Too many numbers are counted: "200 ranks from 1 to 996"."""
    if len(ranks) > 1:
        numbers = describe_numbers(rank.number for rank in ranks)
        if len(numbers) <= _MOST_NUMBERS:
            return f"ranks {numbers}"
        return f"{len(ranks)} ranks from {ranks[0].number} to {ranks[-1].number}"
    identity = ranks[0].identity
    where = describe_location(identity) if identity else ""
    return f"rank {ranks[0].number}" + (f" ({where})" if where else "")


def describe_location(identity: RankIdentity) -> str:
    """Say where a rank ran: "node 1, local rank 3", with the host if the launcher did not number the nodes. "" if there
    is one node only."""
    if identity.is_only_node:
        return ""
    node = f"node {identity.node}" if identity.node else identity.host
    local = "" if identity.local_rank is None else f"local rank {identity.local_rank}"
    return clean(", ".join(filter(None, (node, local))))


# ---- which captures belong together ----


def _of(ranks: Sequence[Rank]) -> str:
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"{shlex.quote(ranks[0].file)}{more}"


def group(ranks: Iterable[Rank], key: Callable[[Rank], K]) -> dict[K, list[Rank]]:
    found: dict[K, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(key(rank), []).append(rank)
    return found


def _refuse_if_different(ranks: Sequence[Rank], what: str, key: Callable[[Rank], str]) -> None:
    found = sorted(group(ranks, key).items(), key=lambda item: -len(item[1]))
    if len(found) > 1:
        shown = [f"{shorten_end(value, _MOST_WORDS) or 'none'} ({_of(members)})" for value, members in found[:4]]
        raise CaptureError(f"These captures are of {what}: {', '.join(shown)}. Give the captures of one job")


def find_job(ranks: Sequence[Rank]) -> DistributedJob:
    """Join ranks to a job. CaptureError, with what differs, if the captures are not of one job."""
    _refuse_if_different(ranks, "different programs", lambda rank: rank.program)
    _refuse_if_different(ranks, "a program with different arguments", lambda rank: " ".join(rank.arguments))
    placed = [rank for rank in ranks if rank.identity]
    if not placed:
        raise CaptureError(
            "These captures do not say which ranks they are, so they are no ranks of one job. Give one capture, "
            "or compare two: "
            f"modscope diff {shlex.quote(ranks[0].file)} {shlex.quote(ranks[-1].file)}"
        )
    _refuse_if_different(
        placed, "real and predicted runs, or of different GPUs", lambda rank: rank.predicted_on or "a real run"
    )
    _refuse_if_different(
        placed, "different jobs of the launcher", lambda rank: rank.identity.job if rank.identity else ""
    )
    attempts = group(_mark_only_node(placed), lambda rank: rank.identity.attempt if rank.identity else 0)
    for members in attempts.values():
        _check_attempt(members)
    *earlier, latest = [sorted(attempts[number], key=lambda rank: rank.number) for number in sorted(attempts)]
    others = [rank for rank in ranks if not rank.identity]
    left_out = [f"{_of(others)} {'is' if len(others) == 1 else 'are'} left out: no rank is known."] if others else []
    identity = latest[0].identity
    assert identity is not None
    program = " ".join(filter(None, (latest[0].program, *latest[0].arguments)))
    return DistributedJob(program, identity.world, identity.attempt, latest, earlier, left_out)


def _mark_only_node(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """A local rank other than the rank is of another node, even if the captures of the first one are not there."""
    identities = [rank.identity for rank in ranks if rank.identity]
    nodes = {identity.node or identity.host for identity in identities}
    if len(nodes) > 1 or any(identity.local_rank not in (None, identity.rank) for identity in identities):
        return ranks
    return [
        rank._replace(identity=rank.identity._replace(is_only_node=True)) if rank.identity else rank for rank in ranks
    ]


def _check_attempt(ranks: Sequence[Rank]) -> None:
    _refuse_if_different(
        ranks, "jobs of different sizes", lambda rank: f"{rank.identity.world if rank.identity else 1} ranks"
    )
    for number, members in group(ranks, lambda rank: rank.number).items():
        if len(members) > 1:
            names = " and ".join(shlex.quote(member.file) for member in members[:2])
            raise CaptureError(
                f"There are {len(members)} captures of rank {number}: {names}. Give the captures of one run"
            )


# ---- how they differ ----


class Difference(NamedTuple):
    """What ranks hold more or less than the others at their peaks."""

    ranks: list[Rank]
    """They hold the same in every module and category."""
    change: int
    rows: list[tuple[str, Category | Kind, int, int]]
    """Module, kind, or category for bytes without a kind, bytes of the others, bytes of these; the largest change
    first."""


class Comparison(NamedTuple):
    usual: list[Rank]
    """The largest group of ranks that hold the same; the one with the lowest rank among equals."""
    differences: list[Difference]
    """How all other ranks differ, the largest change first."""


def _owners(owned: Owned) -> dict[tuple[str, Category | Kind], int]:
    found: dict[tuple[str, Category | Kind], int] = {}
    for fqn, raw, kinds in owned:
        sums = dict(zip(CATEGORIES, raw))
        for kind, value in zip(KINDS, kinds):
            sums[category_of(kind)] -= value
            if value:
                found[fqn, kind] = value
        found.update({(fqn, word): value for word, value in sums.items() if value})
    return found


def compare_ranks(ranks: Sequence[Rank]) -> Comparison:
    groups = sorted(
        group(ranks, lambda rank: rank.owned).values(), key=lambda members: (-len(members), members[0].number)
    )
    usual = groups[0]
    before = _owners(usual[0].owned)
    differences = []
    for members in groups[1:]:
        after = _owners(members[0].owned)
        rows = [(*owner, before.get(owner, 0), after.get(owner, 0)) for owner in {**before, **after}]
        rows = sorted((row for row in rows if row[2] != row[3]), key=lambda row: -abs(row[3] - row[2]))
        differences.append(Difference(members, members[0].bytes - usual[0].bytes, rows))
    differences.sort(key=lambda one: (-abs(one.change), one.ranks[0].number))
    return Comparison(usual, differences)


class DifferenceRow(NamedTuple):
    """A row of a difference, of one module or of several equal ones whose names differ only in numbers. Bytes are of
    all of them."""

    name: str
    word: Category | Kind
    usual: int
    these: int

    @property
    def change(self) -> int:
        return self.these - self.usual


def group_rows(one: Difference) -> list[DifferenceRow]:
    """The largest change first. Temp of which one module holds more and another as much less is last: it is of the
    modules that ran at the peaks, as workspaces are, and is no reason why the peaks differ."""
    rows = []
    for found in group_modules(one.rows, lambda row: row[0], lambda row: row[1:]):
        (_, word, usual, these), count = found.members[0], len(found.members)
        alike = f" ({count} alike)" if count > 1 else ""
        rows.append(DifferenceRow(clean(label(found.name)) + alike, word, count * usual, count * these))
    rows.sort(key=lambda row: -abs(row.change))
    opposite = Counter(-row.change for row in rows if row.word == Category.TEMP)
    first, last = list[DifferenceRow](), list[DifferenceRow]()
    for row in rows:
        is_paired = row.word == Category.TEMP and opposite[row.change] > 0
        opposite[row.change] -= is_paired
        (last if is_paired else first).append(row)
    return first + last


def sums_by_category(rank: Rank) -> list[int]:
    return [sum(column) for column in zip(*(raw for _, raw, _ in rank.owned))] or [0] * len(CATEGORIES)


def sums_by_kind(rank: Rank) -> list[int]:
    return [sum(column) for column in zip(*(kinds for _, _, kinds in rank.owned if kinds))] or [0] * len(KINDS)


class NodeOfJob(NamedTuple):
    name: str
    """ "node 0 (host a)"; "" if neither is known."""
    ranks: list[Rank]


def find_nodes(ranks: Sequence[Rank]) -> list[NodeOfJob]:
    """The nodes of a job, as the launcher numbers them, or else by their hosts."""
    found = group(ranks, lambda rank: (rank.identity.node or rank.identity.host) if rank.identity else "")
    nodes = []
    for name, members in found.items():
        identity = members[0].identity
        host = Counter(rank.identity.host for rank in members if rank.identity).most_common(1)[0][0]
        numbered = f"node {name}" + (f" ({host})" if host else "")
        nodes.append(NodeOfJob(clean(numbered if identity and identity.node else name), members))
    return nodes


def describe_job(job: DistributedJob) -> str:
    """A job in words: "train.py --lr 3: 6 of 8 ranks on 2 nodes, attempt 1"."""
    nodes = find_nodes(job.ranks)
    have = f"{len(job.ranks)} of {job.world} ranks" if job.missing else counted(job.world, "rank")
    on = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
    attempt = f", attempt {job.attempt}" if job.attempt or job.earlier else ""
    return f"{clean(job.program)}: {have}{on}{attempt}"


def describe_step_times(ranks: Sequence[Rank]) -> str:
    """Say how long a step takes, of the fastest and the slowest rank where that is not the same: "9.4 to 9.9 ms a
    step"; "" if it is not known."""
    times = [rank.step_ms for rank in ranks if rank.step_ms]
    if not times:
        return ""
    least, most = milliseconds(min(times)), milliseconds(max(times))
    return f"{most} a step" if least == most else f"{least.removesuffix(' ms')} to {most} a step"


def describe_missing(job: DistributedJob) -> str:
    """A sentence on the ranks without a capture; "" if there are none."""
    if not job.missing:
        return ""
    ranks = describe_runs(job.missing)
    return f"There is no capture of {ranks}: what {'it' if ranks.startswith('rank ') else 'they'} held is not known."


def find_extremes(ranks: Sequence[Rank]) -> tuple[Rank, Rank]:
    """The ranks with the lowest and the highest peak."""
    return min(ranks, key=lambda rank: rank.bytes), max(ranks, key=lambda rank: rank.bytes)
