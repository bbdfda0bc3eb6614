"""A slow model of src/replay: lists of events, searched from the beginning for every question."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from typing import Any

from capture_helpers import KINDS
from modscope import _capture

CATEGORIES = ("Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other")
PHASES = ("idle", "forward", "recompute", "backward", "optimizer", "evaluation")
HELD_BY_OBJECTS = ("Parameter", "Buffer", "Gradient", "Optstate")
NEVER = math.inf


def open_capture(data: bytes) -> _capture.Reader:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return _capture.Reader(os.dup(file.fileno()))


@dataclasses.dataclass
class Block:
    bytes: int
    device: int
    path: int
    category: str
    phase: str
    call: int | None
    add: float
    drop: float = NEVER
    drop_phase: str = "idle"
    claimed_from_now_on: bool = False
    requested: int = 0
    stream: int = 0
    kind: str = ""
    uses: list[tuple[str, int | None, int]] = dataclasses.field(default_factory=list)
    """("input", "output" or "saved", the call, the next event) in their order."""
    use_numbers: list[int] = dataclasses.field(default_factory=list)
    """Of the uses, in the list of all uses."""


@dataclasses.dataclass
class Call:
    path: int
    parent: int | None
    thread: int
    begin: int
    end: float = NEVER
    backward: float = NEVER
    last_save: float = -1
    saves: bool = False
    inputs: list[int] = dataclasses.field(default_factory=list)


class Stream:
    """``events`` holds (kind, value): add and drop with a block's index, position with (thread, phase, path)."""

    def __init__(self, reader: _capture.Reader, notes: list[tuple[int, str, int, int]]) -> None:
        self.parents = [parent for _, parent, _ in reader.paths]
        self.events: list[tuple[str, Any]] = []
        self.threads: list[int] = []
        """By event."""
        self.uses: list[tuple[Block, str, int]] = []
        """Of all blocks, in their order: the block, the kind of use, the next event."""
        self.cpu = next((i for i, name in enumerate(reader.devices) if name == "cpu"), -1)
        self.blocks: list[Block] = []
        self.calls: list[Call] = []
        self.has_inputs = any(kind in ("input", "output") for _, kind, _, _ in notes)
        positions: dict[int, tuple[str, int]] = {}
        open_calls: dict[int, list[int]] = {}
        # thread -> (path, the event that entered it), outermost first
        self.nodes: dict[int, list[tuple[int, int]]] = {}
        slots: dict[int, int] = {}
        for thread, _, phase, path in reader.snapshot(0).threads():
            self._move(thread, phase, path, 0, open_calls.setdefault(thread, []), self.nodes.setdefault(thread, []))
            positions[thread] = (phase, path)
            self.events.append(("position", (thread, phase, path)))
            self.threads.append(thread)
        streams = [0, 0]
        notes_at: dict[int, list[tuple[int, str, int, int]]] = {}
        for note in notes:
            notes_at.setdefault(note[0], []).append(note)
        before = 0  # the thread of the event before
        for number, op, _, thread, device, size, path, category, phase, slot, extra in reader.events():
            at = len(self.events)
            for _, kind, noted, value in notes_at.get(number, []):
                if noted in slots:
                    running = open_calls.get(before, []) if positions.get(before, ("", 0))[0] == "forward" else []
                    self._note(self.blocks[slots[noted]], kind, value, running, streams)
            before = thread
            if op == "position":
                self._move(
                    thread, phase, path, at, open_calls.setdefault(thread, []), self.nodes.setdefault(thread, [])
                )
                positions[thread] = (phase, path)
                self.events.append(("position", (thread, phase, path)))
            elif op == "add":
                call = None
                if positions.get(thread, ("idle", 0))[0] == "forward" and open_calls.get(thread):
                    call = open_calls[thread][-1]
                slots[slot] = len(self.blocks)
                self.blocks.append(
                    Block(size, device, path, category, phase, call, at, requested=size, stream=streams[device])
                )
                self.events.append(("add", slots[slot]))
            elif op == "drop":
                block = self.blocks[slots[slot]]
                block.drop, block.drop_phase = at, positions.get(thread, ("idle", 0))[0]
                if block.drop_phase == "backward":
                    self._note_drop(block, dict(self.nodes.get(thread, [])))
                self.events.append(("drop", slots.pop(slot)))
            elif op == "claim":
                block = self.blocks[slots[slot]]
                block.claimed_from_now_on |= bool(extra)
                if not block.claimed_from_now_on:
                    block.category, block.path = category, path
            elif op == "step":
                self.events.append(("step", size))
            elif op == "reserved":
                self.events.append(("reserved", size))
            self.threads += [thread] * (len(self.events) - len(self.threads))

    def _note(self, block: Block, kind: str, value: int, running: list[int], streams: list[int]) -> None:
        if kind == "saved" and block.device == self.cpu and block.requested <= 16:
            return  # a number of Python, which hooks do not see
        if kind == "saved":
            self._add_use(block, kind, running[-1] if running else None)
            for call in running:
                self.calls[call].last_save = len(self.events)
            if running:
                self.calls[running[-1]].saves = True
        elif kind in ("input", "output") and running:
            self._add_use(block, kind, running[-1])
            if kind == "input":
                self.calls[running[-1]].inputs.append(self.blocks.index(block))
        elif kind == "requested":
            block.requested = value
        elif kind == "kind":
            block.kind = KINDS[(value & 15) - 1]
        elif kind == "stream":
            block.stream = streams[block.device] = value

    def _add_use(self, block: Block, kind: str, by: int | None) -> None:
        block.use_numbers.append(len(self.uses))
        block.uses.append((kind, by, len(self.events)))
        self.uses.append((block, kind, len(self.events)))

    def chain(self, path: int) -> list[int]:
        chain = []
        while path:
            chain.insert(0, path)
            path = self.parents[path]
        return chain

    def _move(
        self, thread: int, phase: str, path: int, at: int, calls: list[int], nodes: list[tuple[int, int]]
    ) -> None:
        chain = self.chain(path)
        if phase == "backward" and path:
            entered = dict(nodes)
            nodes[:] = [(one, entered.get(one, at)) for one in chain]
        if phase == "forward":
            for of_thread in self.nodes.values():
                of_thread.clear()
        if phase == "forward" or (phase == "idle" and not path):
            while calls and self.calls[calls[-1]].path not in chain:
                self.calls[calls.pop()].end = at
            for one in chain[len(calls) :]:
                self.calls.append(Call(one, calls[-1] if calls else None, thread, at))
                calls.append(len(self.calls) - 1)

    def _note_drop(self, block: Block, nodes: dict[int, int]) -> None:
        for call in self.calls_around(block.call):
            if self.calls[call].path in nodes and self.calls[call].backward == NEVER:
                self.calls[call].backward = nodes[self.calls[call].path]

    def calls_around(self, call: int | None) -> list[int]:
        """The call, the one around it, and so on."""
        around = []
        while call is not None:
            around.append(call)
            call = self.calls[call].parent
        return around

    def keeps(self, call: int, block: Block) -> bool:
        of = self.calls[call]
        return (
            call in self.calls_around(block.call)
            and max(of.backward, of.end) < NEVER
            and of.backward <= block.drop < NEVER
            and block.drop_phase == "backward"
            and block.category not in HELD_BY_OBJECTS
        )

    def outliving(self, call: int) -> list[int]:
        return [
            i
            for i, block in enumerate(self.blocks)
            if call in self.calls_around(block.call) and block.drop >= self.calls[call].end
        ]

    def result(self, call: int) -> int:
        found = self.outliving(call)
        least = max(self.blocks[i].requested for i in found) // 4
        return [i for i in found if self.blocks[i].requested >= least][-1]

    def is_cast(self, block: Block) -> bool:
        """Whether autocast may have made the block from a parameter of the same module."""
        wanted = ("Parameter", block.path, 2 * block.requested, block.device)
        return any((other.category, other.path, other.requested, other.device) == wanted for other in self.blocks)

    def unsaved_end(self, call: int, block: int) -> float:
        """When the block is freed in forward if autograd does not keep it; `call` is checkpointed."""
        if self.is_cast(self.blocks[block]):
            return min(self.calls[self.calls_around(call)[-1]].end, self.calls[call].backward)
        if self.has_inputs:
            return self._end_by_uses(call, self.blocks[block])
        used = self.blocks[block].uses[-1][1] if self.blocks[block].uses else None
        if used is not None and call in self.calls_around(used) and self.calls[used].end < NEVER:
            return max(self.calls[used].end, self._end_by_calls(call, block))
        return self._end_by_calls(call, block)

    def _end_by_uses(self, call: int, block: Block) -> float:
        uses = [use for use in block.uses if use[1] is not None and call in self.calls_around(use[1])]
        assert block.call is not None
        own = self.calls[block.call]
        ends = [self.calls[by].end for kind, by, _ in uses if kind == "input" and by is not None]
        if uses:
            kind, by, at = uses[-1]
            assert by is not None
            if kind == "saved" and (by == block.call or self._is_operand(block.uses.index(uses[-1]), block)):
                ends.append(self._operator_end(by, at, block.device))
            else:
                ends.append(self.calls[by].end)
        if any(by == block.call for _, by, _ in uses):
            return max(ends)
        if not ends or max(ends) >= own.end:
            return max([own.end, *ends])
        return self._sum_end(block, int(max(ends)))

    def _steps_of(self, thread: int, first: int, last: float) -> list[tuple[int, str, Any]]:
        """The thread's events in [first, last): (event, kind, value)."""
        between = range(first, int(min(last, len(self.events))))
        return [(at, *self.events[at]) for at in between if self.threads[at] == thread]

    def _operator_end(self, by: int, at: int, device: int) -> float:
        """After the operator's result and the workspaces that follow it."""
        steps = self._steps_of(self.calls[by].thread, at, self.calls[by].end)
        steps = [step for step in steps if step[1] == "position" or self._is_on(step, device)]
        while steps and steps[0][1] != "add":
            steps.pop(0)
        while steps:
            at = steps.pop(0)[0]
            if not steps or steps[0][1] != "add":
                return at + 1
            workspace = self.blocks[steps[0][2]]
            if workspace.drop == NEVER and workspace.category not in HELD_BY_OBJECTS:
                continue
            if len(steps) < 2 or steps[1][0] != workspace.drop:
                return at + 1
            steps.pop(0)
        return self.calls[by].end

    def _is_on(self, step: tuple[int, str, Any], device: int) -> bool:
        return step[1] in ("add", "drop") and self.blocks[step[2]].device == device

    def _is_operand(self, use: int, block: Block) -> bool:
        """Whether an operator of two operands at most saves the block, and the latest call computed one of them."""
        number = block.use_numbers[use]
        at = block.uses[use][2]
        first = last = number
        while first and self.uses[first - 1][1:] == ("saved", at):
            first -= 1
        while last + 1 < len(self.uses) and self.uses[last + 1][1:] == ("saved", at):
            last += 1
        return last - first < 2 and any(self._is_latest(self.uses[i][0], i, at) for i in range(first, last + 1))

    def _is_latest(self, block: Block, number: int, at: int) -> bool:
        by, own = block.uses[block.use_numbers.index(number)][1], block.call
        if by is None or own is None or by not in self.calls_around(own):
            return False
        begun = [
            i
            for i, one in enumerate(self.calls)
            if i == own or (i > own and one.begin < at and one.thread == self.calls[own].thread)
        ]
        around = self.calls_around(begun[-1])
        return by in around and self._child(begun[-1], by) == self._child(own, by)

    def _child(self, call: int, around: int) -> int:
        """The call itself, or the one of those around it that lies directly in ``around``."""
        chain = self.calls_around(call)
        return chain[max(chain.index(around) - 1, 0)]

    def _sum_end(self, block: Block, first: int) -> float:
        """After the last equally large block of the same code, before that calls another module."""
        assert block.call is not None
        own, found = self.calls[block.call], None
        for at, kind, value in self._steps_of(own.thread, first, own.end):
            if kind == "position" and value[2] != own.path and found is not None:
                break
            if kind == "add" and (self.blocks[value].call, self.blocks[value].requested) == (
                block.call,
                block.requested,
            ):
                found = at
        return first if found is None else found + 1

    def returned_end(self, call: int, block: Block) -> float:
        """When a block that the call returns is freed in forward."""
        outside = [(kind, by) for kind, by, _ in block.uses if by is None or call not in self.calls_around(by)]
        parent = self.calls[call].parent
        if any(kind == "saved" for kind, _ in outside):
            return NEVER
        ends = [self.calls[by].end for _, by in outside if by is not None]
        ends = ends or [self.calls[parent].end if parent is not None else NEVER]
        return max(ends) if max(ends) < self.calls[call].backward else NEVER

    def first_unpack(self, call: int, last: float) -> float:
        owning = {block.path for block in self.blocks if block.category == "Parameter"}
        inside = [one for i, one in enumerate(self.calls) if call in self.calls_around(i)]
        saving = {one.path for one in inside if one.saves or one.path in owning}
        begin = int(self.calls[call].backward)
        for at in range(begin, int(last) if self.has_inputs else begin):
            kind, value = self.events[at]
            if kind == "position" and value[1] == "backward" and value[2] in saving:
                return at
        return begin

    def recomputed_end(self, index: int) -> float:
        """Before the gradient of a bias is summed, if the events are those of a product with a bias."""
        block = self.blocks[index]
        savers = [by for kind, by, _ in block.uses if kind == "saved"]
        drop = int(block.drop)
        if not savers or savers[-1] is None:
            return drop
        results = [one.requested for one in self.blocks if savers[-1] in self.calls_around(one.call)]
        first = drop
        while self.events[first - 1][0] in ("add", "drop", "reserved") and first > max(0, drop - 64):
            first -= 1
        near = [(kind, self.blocks[value]) for kind, value in self.events[first : drop + 1] if kind in ("add", "drop")]
        for at in range(drop - 1, first - 1, -1):
            kind, value = self.events[at]
            bias = self.blocks[value] if kind == "add" else block
            if kind != "add" or bias.drop <= drop or not self._is_gradient_size(bias):
                continue
            for kind, value in self.events[first:at]:
                weight = self.blocks[value] if kind == "add" else block
                if kind != "add" or weight.requested <= bias.requested or not self._is_gradient_size(weight):
                    continue
                inner, rest = divmod(weight.requested, bias.requested)
                elements = [size // bias.requested * inner for size in results if size % bias.requested == 0]
                if not rest and any(one.requested in (2 * n, 4 * n, 8 * n) for _, one in near for n in elements):
                    return at
        return drop

    def _is_gradient_size(self, block: Block) -> bool:
        wanted = [("Parameter", block.path, times * block.requested, block.device) for times in (1, 2)]
        return any((other.category, other.path, other.requested, other.device) in wanted for other in self.blocks)

    def _end_by_calls(self, call: int, block: int) -> float:
        for inner in self.calls_around(self.blocks[block].call):
            if inner == call or self.result(inner) != block:
                return self.calls[inner].end
            later = [
                one
                for one in self.calls
                if one.thread == self.calls[inner].thread and one.begin >= self.calls[inner].end
            ]
            if later and later[0].parent == self.calls[inner].parent and later[0].end < NEVER:
                return later[0].end
        raise AssertionError

    def input(self, call: int) -> int | None:
        root = self.calls_around(call)[-1]
        found = [
            i
            for i, block in enumerate(self.blocks)
            if block.add < self.calls[call].begin < block.drop
            and block.category not in HELD_BY_OBJECTS
            and root in self.calls_around(block.call)
        ]
        if not found:
            return None
        maker = self.blocks[found[-1]].call
        if maker is None or maker == call or any(one.parent == maker for one in self.calls):
            return found[-1]
        result = self.result(maker)  # the statistics of a normalization follow its result
        given = (
            self.blocks[result].drop > self.calls[call].begin and self.blocks[result].category not in HELD_BY_OBJECTS
        )
        return result if given else found[-1]


class Edited:
    """The requests and frees of a device, by event: (key, bytes), and (key, None) for a free."""

    def __init__(self, stream: Stream, device: int, edits: list[tuple[Any, ...]]) -> None:
        self.stream, self.device = stream, device
        self.sizes = [block.requested for block in stream.blocks]
        self.devices = [block.device for block in stream.blocks]
        self.before: dict[float, list[tuple[tuple[int, int], Any]]] = {}
        self.holders = [0] * len(stream.blocks)
        self.over: set[int] = set()
        self.live: set[Any] = set()
        self.streams: dict[Any, int] = {}
        self.done: list[list[tuple[Any, int | None]]] = []
        for name, *arguments in edits:
            getattr(self, name)(*arguments)
        for at, (kind, value) in enumerate(stream.events):
            self.now: list[tuple[Any, int | None]] = []
            self.done.append(self.now)
            for _, act in sorted(self.before.pop(at, []), key=lambda one: one[0]):
                act()
            if kind == "add":
                self.alloc(value, self.size(value))
            elif kind == "drop" and not self.holders[value]:
                self.release(value)

    def size(self, block: int) -> int:
        return self.sizes[block] if self.devices[block] == self.device else 0

    def alloc(self, key: Any, size: int) -> None:
        if size:
            self.live.add(key)
            self.now.append((key, size))
            block = key[1] if isinstance(key, tuple) else key
            self.streams[key] = (
                0 if isinstance(key, tuple) and key[0] == "inserted" else self.stream.blocks[block].stream
            )

    def release(self, key: Any) -> None:
        if key in self.live:
            self.live.remove(key)
            self.now.append((key, None))

    def later(self, at: float, kind: int, order: int, act: Any) -> None:
        self.before.setdefault(at, []).append(((kind, order), act))

    # ---- edits ----

    def selected(self, selection: tuple[int, int, int | None, int, int]) -> list[int]:
        categories, phases, device, root, least = selection
        return [
            i
            for i, block in enumerate(self.stream.blocks)
            if (not categories or categories >> CATEGORIES.index(block.category) & 1)
            and (not phases or phases >> PHASES.index(block.phase) & 1)
            and (device is None or device == self.devices[i])
            and (not root or root in self.stream.chain(block.path))
            and block.requested >= least
            and self.sizes[i]
        ]

    def scale(self, selection: Any, numerator: int, denominator: int) -> None:
        for i in self.selected(selection):
            self.sizes[i] = -(-self.sizes[i] * numerator // denominator)

    def remove(self, selection: Any) -> None:
        self.scale(selection, 0, 1)

    def move(self, selection: Any, device: int) -> None:
        for i in self.selected(selection):
            self.devices[i] = device

    def resize(self, block: int, size: int) -> None:
        self.sizes[block] = size

    def insert(self, begin: int, end: int | None, size: int, device: int) -> None:
        key = ("inserted", len(self.before), begin, end, size)
        if device == self.device:
            self.later(begin, 4, 0, lambda: self.alloc(key, size))
            if end is not None:
                self.later(end, 0, 0, lambda: self.release(key))

    def checkpoint(self, call: int, to: int | None = None) -> None:
        stream = self.stream
        kept = [i for i, block in enumerate(stream.blocks) if stream.keeps(call, block)]
        if not kept:
            return
        returned = self.returned(call, kept)
        for block in kept:
            if block not in returned:
                self.later(stream.unsaved_end(call, block), 2, block, lambda block=block: self.free_kept(block, to))
            elif to is None and (end := stream.returned_end(call, stream.blocks[block])) < NEVER:
                self.later(end, 2, block, lambda block=block: self.free_kept(block, to))
            if to is None and (end := stream.recomputed_end(block)) < stream.blocks[block].drop:
                self.later(end, 2, block, lambda block=block: self.free_kept(block, to))
        last = max(stream.blocks[block].drop for block in kept)
        self.later(stream.first_unpack(call, last), 3, -call, lambda: self.again(call, kept, returned, to))
        given = stream.calls[call].inputs if stream.has_inputs else [stream.input(call)]
        for block in given if to is None else []:
            if block is not None:
                self.holders[block] += 1
                self.later(last, 1, block, lambda block=block: self.drop_input(block, last))

    def returned(self, call: int, kept: list[int]) -> list[int]:
        """The blocks of what the call keeps that it returns."""
        stream = self.stream
        if stream.has_inputs:
            return [block for block in kept if ("output", call) in [use[:2] for use in stream.blocks[block].uses]]
        others = [i for i in stream.outliving(call) if i not in kept and stream.blocks[i].drop < NEVER]
        return [stream.result(call)] if not others and stream.result(call) in kept else []

    def offload(self, call: int, to: int) -> None:
        self.checkpoint(call, to)

    def free_kept(self, block: int, to: int | None) -> None:
        if self.holders[block]:
            self.over.add(block)
            return
        self.release(block)
        if to == self.device and self.devices[block] != self.device:
            self.alloc(block, self.sizes[block])

    def drop_input(self, block: int, at: float) -> None:
        self.holders[block] -= 1
        if not self.holders[block] and (self.stream.blocks[block].drop < at or block in self.over):
            self.release(block)

    def again(self, call: int, kept: list[int], returned: list[int], to: int | None) -> None:
        if to is not None:
            for block in kept:
                if block not in returned:
                    self.release(block)
                    self.alloc(block, self.size(block))
            return
        for block in kept:
            self.release(block)
        last = max(self.stream.blocks[kept[-1]].add, self.stream.calls[call].last_save - 1)  # torch stops there
        owning = {block.path for block in self.stream.blocks if block.category == "Parameter"}
        inside = [one for i, one in enumerate(self.stream.calls) if i != call and call in self.stream.calls_around(i)]
        last = max([last, *(one.begin for one in inside if one.path in owning)])  # the parameter is saved
        for at in range(self.stream.calls[call].begin, int(last) + 1):
            kind, value = self.stream.events[at]
            if kind not in ("add", "drop") or call not in self.stream.calls_around(self.stream.blocks[value].call):
                continue
            key = value if value in kept else ("again", value)
            self.release(key)
            if kind == "add":
                self.alloc(key, self.size(value))
        for key in sorted(one for one in self.live if isinstance(one, tuple) and one[0] == "again"):
            self.release(key)


def figures(edited: Edited, version: str, conf: str | None) -> dict[str, Any]:
    """The peaks and, for each event, the highest figures, of a device with torch's allocator and of one without."""
    allocator = _capture.Allocator(version, conf, total_memory=1 << 40)
    total = requests = 0
    sizes: dict[Any, int] = {}
    curve, plain = [], []
    reserved = allocated = 0
    for now in edited.done:
        top, top_plain = (reserved, allocated), total
        for key, size in now:
            if size is None:
                allocator.free(key)
                total -= sizes.pop(key)
            else:
                allocator.malloc(key, size, edited.streams[key])
                requests += 1
                total += size
                sizes[key] = size
            stats = allocator.stats()
            reserved, allocated = (stats[f"{what}_bytes"]["all"]["current"] for what in ("reserved", "allocated"))
            top = max(top[0], reserved), max(top[1], allocated)
            top_plain = max(top_plain, total)
        curve.append(top)
        plain.append(top_plain)
    return {"requests": requests, "curve": curve, "plain": plain}
