"""A slow model of src/replay/sharding.c, casts.c and resharding.c: the same as edits of single blocks, each found by
looking at all of them."""

from __future__ import annotations

from typing import Any

from slow_replay import CATEGORIES, NEVER, PHASES, Block, Call, Stream

Edits = list[tuple[Any, ...]]
GATHER, REDUCE, ROUNDED = 1 << 40, 2 << 40, 1024


def divided(size: int, by: int) -> int:
    return -(-size // by)


def or_none(event: float) -> int | None:
    return None if event == NEVER else int(event)


class SlowSharding:
    """``called``: by path, the number of the unit that it is; a path below it lies in it."""

    def __init__(self, stream: Stream, device: int, called: list[int | None]) -> None:
        self.stream, self.device, self.called = stream, device, called
        self.blocks = [(i, block) for i, block in enumerate(stream.blocks) if block.device == device]
        self.steps = [at for at, (kind, _) in enumerate(stream.events) if kind == "step"]
        self.edits: Edits = []

    def around(self, path: int) -> int | None:
        inner = [self.called[one] for one in self.stream.chain(path) if self.called[one] is not None]
        return inner[-1] if inner else None

    def of(self, category: str = "", phase: str = "", kind: str = "") -> list[tuple[int, Block]]:
        return [
            (i, block)
            for i, block in self.blocks
            if category in ("", block.category) and phase in ("", block.phase) and kind in ("", block.kind)
        ]

    def select(self, category: str = "", phase: str = "", kind: int = 0) -> tuple[int, ...]:
        of_category = 1 << CATEGORIES.index(category) if category else 0
        return of_category, 1 << PHASES.index(phase) if phase else 0, self.device, 0, 0, kind and 1 << kind

    def insert(self, begin: float, end: float, size: int, stream: int = 0) -> None:
        if size and begin < end:
            self.edits.append(("insert", int(begin), or_none(end), size, self.device, stream))

    # ---- a job of one process ----

    def casts(self) -> list[int]:
        gradients = [(i, g) for i, g in self.of("Gradient", "backward") if g.requested >= 4096]
        found, weights, copied = [], set(), 0
        for _, gradient in gradients:
            near = [
                i
                for i, cast in self.of("Temp", "backward")
                if cast.path == gradient.path
                and abs(2 * cast.requested - gradient.requested) <= ROUNDED
                and cast.add < gradient.add < cast.drop <= gradient.add + 2
            ]
            if not near:
                continue
            found.append(near[0])
            copied += gradient.requested
            kept = [
                (i, block)
                for i, block in self.of("Activation", "forward")
                if block.path == gradient.path
                and block.add < gradient.add
                and abs(2 * block.requested - gradient.requested) <= ROUNDED
            ]
            begins = [c.begin for c in self.stream.calls if c.path == gradient.path and c.begin < gradient.add]
            later = [i for i, block in kept if block.add >= max(begins, default=0)]
            if kept:
                weights.add(later[0] if later else kept[-1][0])
        enough = copied >= max(sum(g.requested for _, g in gradients) / 2, 1)
        return [*found, *sorted(weights)] if enough else []

    def backward(self, call: Call) -> float:
        if call.backward < NEVER or call.end == NEVER:
            return call.backward
        end = min((step for step in self.steps if step > call.begin), default=len(self.stream.events))
        added = [
            block.add
            for _, block in self.of(phase="backward")
            if self.around(block.path) == self.called[call.path] and call.end < block.add < end
        ]
        return min(added, default=NEVER)

    def shard(self, ranks: int, mixed: bool, keeps: bool) -> Edits:
        casts = self.casts() if mixed else []
        if not self.of("Parameter") or (mixed and not casts):
            return []
        self.ranks, self.mixed, self.keeps = ranks, mixed, keeps
        for selection in (self.select("Parameter"), self.select("Optstate"), self.select("Temp", "optimizer")):
            self.edits.append(("scale", selection, 1, ranks))
        self.edits += [("resize", number, 0) for number in casts]
        self.reduced: set[int] = set()
        for begin, end in zip(self.steps, [*self.steps[1:], len(self.stream.events)]):
            calls = [call for call in self.stream.calls if begin <= call.begin < end]
            roots = [call for call in calls if call.parent is None and call.backward < NEVER]
            self.shard_step([call for call in calls if self.called[call.path] is not None], roots[:1], end)
        for i, gradient in self.of("Gradient"):
            if i not in self.reduced:
                self.edits.append(("resize", i, divided(gradient.requested, ranks)))
        return self.edits

    def gathered(self, block: Block) -> int:
        return divided(block.requested, 2) if self.mixed else block.requested

    def owned(self, category: str, unit: int | None) -> list[tuple[int, Block]]:
        return [(i, block) for i, block in self.of(category) if self.around(block.path) == unit]

    def gather(self, begin: float, end: float, unit: int | None) -> None:
        size = sum(self.gathered(block) for _, block in self.owned("Parameter", unit))
        if self.mixed:
            self.insert(begin, begin + 1, divided(size, self.ranks), GATHER)
        self.insert(begin, end, size, GATHER)

    def parameters(self, begin: float, end: float, unit: int | None) -> None:
        for _, block in self.owned("Parameter", unit):
            self.insert(begin, end, self.gathered(block))

    def reduce(self, unit: int | None, begin: float, end: float, until: float) -> None:
        found = [(i, g) for i, g in self.owned("Gradient", unit) if begin <= max(g.add, 0) <= end < g.drop]
        if not found:
            return
        for i, gradient in found:
            self.reduced.add(i)
            self.edits.append(("end", i, int(end) + 1))
            if self.mixed:
                self.edits.append(("resize", i, self.gathered(gradient)))
        size = sum(self.gathered(gradient) for _, gradient in found)
        self.insert(end, until, size)
        if self.mixed:
            self.insert(end, end + 1, divided(size, self.ranks), REDUCE)
        output = divided(size, self.ranks) * (2 if self.mixed else 1)
        self.insert(end, max(gradient.drop for _, gradient in found), output, REDUCE)

    def shard_step(self, runs: list[Call], root: list[Call], end: int) -> None:
        first = runs[0].begin if runs else 0
        units = [*(self.called[run.path] for run in runs), *(None for _ in root)]
        adds = [g.add for unit in units for _, g in self.owned("Gradient", unit) if first <= g.add < end]
        last = max(adds, default=end - 1) + 1
        for call in root:
            self.gather(call.begin, (first if runs else call.begin) + 1, None)
            self.parameters(call.begin, last, None)
        for i, run in enumerate(runs):
            unit, run_end = self.called[run.path], min(run.end, end) if run.end == NEVER else run.end
            self.gather(run.begin, runs[i + 1].begin + 1 if i + 1 < len(runs) else run_end, unit)
            if not self.keeps or self.backward(run) == NEVER:
                self.parameters(run.begin, run_end, unit)
        nodes = sorted((run for run in runs if self.backward(run) < NEVER), key=self.backward)
        begins = [self.backward(run) for run in nodes]
        ends = [max(after - 1, begin + 1) for begin, after in zip(begins, [*begins[1:], last])]
        for i, run in enumerate(nodes):
            unit = self.called[run.path]
            if i == 0 and not self.keeps:
                self.gather(begins[0], begins[0] + 1, unit)
            if i + 1 < len(nodes) and not self.keeps:
                self.gather(begins[i], begins[i + 1], self.called[nodes[i + 1].path])
            self.parameters(run.begin if self.keeps else begins[i], ends[i], unit)
            self.reduce(unit, begins[i], ends[i], ends[i + 1] if i + 1 < len(nodes) else last)
        for call in root:
            self.reduce(None, call.backward, last, last + 1)

    # ---- a rank of FSDP2 ----

    def keep_gathered(self) -> Edits:
        waiting: list[tuple[int, Block]] = []
        for i, block in self.of(kind="Unsharded Param"):
            if block.phase not in ("backward", "recompute"):
                waiting.append((i, block))
                continue
            same = [one for one in waiting if (one[1].path, one[1].requested) == (block.path, block.requested)]
            if same:
                waiting.remove(same[0])
                self.edits += [("end", same[0][0], or_none(block.drop)), ("resize", i, 0)]
        if self.edits:
            again = [(i, block) for i, block in self.of(kind="All Gather") if block.phase in ("backward", "recompute")]
            self.edits += [("resize", i, 0) for i, _ in again]
        return self.edits

    def shard_over(self, before: int, after: int, in_copies: bool) -> Edits:
        kinds = [self.select(kind=1), self.select(kind=3), self.select("Optstate"), self.select("Temp", "optimizer")]
        self.edits += [("scale", selection, before, after) for selection in kinds]
        drops = sorted(block.drop for _, block in self.of(kind="Reduce Scatter") if block.drop < NEVER)
        for _, gathered in self.of(kind="All Gather"):
            part = self.made_before(gathered, divided(gathered.requested, before))
            if part is not None:
                self.edits.append(("resize", part, divided(gathered.requested, after)))
        for _, gradient in self.of(kind="Sharded Grad"):
            output = self.made_before(gradient, divided(gradient.requested, 2))
            if output is None:
                continue
            end = min((step for step in self.steps if step > gradient.add), default=len(self.stream.events))
            until = max((drop for drop in drops if drop < end), default=0)
            until = until if in_copies and until > gradient.add else gradient.add + 1
            self.edits.append(("resize", output, divided(gradient.requested * before, 2 * after)))
            self.edits.append(("end", output, int(until)))
        return self.edits

    def made_before(self, block: Block, size: int) -> int | None:
        for add in range(int(block.add) - 1, int(block.add) - 4, -1):
            for i, one in self.blocks:
                is_copy = one.add == add and one.category in ("Activation", "Temp", "Other")
                if is_copy and abs(one.requested - size) <= ROUNDED:
                    return i
        return None

    def reshard(self) -> Edits:
        gathers = self.of(kind="All Gather")
        stream = gathers[0][1].stream if gathers else 0
        uses: dict[int, list[tuple[int, Block]]] = {}
        calls = self.stream.calls
        for i, block in self.of(kind="Unsharded Param", phase="forward"):
            mine = [
                number
                for number, call in enumerate(calls)
                if self.called[call.path] is not None
                and self.called[call.path] == self.around(block.path)
                and max(call.end, call.backward) < NEVER
                and call.begin <= block.add
            ]
            call = calls[mine[-1]] if mine else None
            if call and block.add <= call.end < call.backward < block.drop:
                uses.setdefault(mine[-1], []).append((i, block))
        before = 0.0
        for number in sorted(uses, key=lambda number: calls[number].backward):
            call = calls[number]
            since = before if before > call.end else call.backward
            size = sum(block.requested for _, block in uses[number])
            self.edits.append(("insert", int(since), int(call.backward) + 1, size, self.device, stream))
            for i, block in uses[number]:
                self.edits.append(("end", i, int(call.end)))
                end = or_none(block.drop)
                at = int(call.backward)
                self.edits.append(("insert", at, end, block.requested, self.device, block.stream))
            before = call.backward
        return self.edits
