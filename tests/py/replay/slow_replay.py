"""A slow model of src/replay: lists of events, searched from the beginning for every question."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from typing import Any

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
    saved_in: int | None = None


@dataclasses.dataclass
class Call:
    path: int
    parent: int | None
    thread: int
    begin: int
    end: float = NEVER
    backward: float = NEVER
    last_save: float = -1


class Stream:
    """``events`` holds (kind, value): add and drop with a block's index, position with (thread, phase, path)."""

    def __init__(self, reader: _capture.Reader, notes: list[tuple[int, str, int, int]]) -> None:
        self.parents = [parent for _, parent, _ in reader.paths]
        self.events: list[tuple[str, Any]] = []
        self.blocks: list[Block] = []
        self.calls: list[Call] = []
        positions: dict[int, tuple[str, int]] = {}
        open_calls: dict[int, list[int]] = {}
        # thread -> (path, the event that entered it), outermost first
        self.nodes: dict[int, list[tuple[int, int]]] = {}
        slots: dict[int, int] = {}
        for thread, _, phase, path in reader.snapshot(0).threads():
            self._move(thread, phase, path, 0, open_calls.setdefault(thread, []), self.nodes.setdefault(thread, []))
            positions[thread] = (phase, path)
            self.events.append(("position", (thread, phase, path)))
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
                self._move(thread, phase, path, at, open_calls.setdefault(thread, []), self.nodes.setdefault(thread, []))
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

    def _note(self, block: Block, kind: str, value: int, running: list[int], streams: list[int]) -> None:
        if kind == "saved":
            block.saved_in = running[-1] if running else None
            for call in running:
                self.calls[call].last_save = len(self.events)
        elif kind == "requested":
            block.requested = value
        elif kind == "stream":
            block.stream = streams[block.device] = value

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
        least = max(self.blocks[i].bytes for i in found) // 4
        return [i for i in found if self.blocks[i].bytes >= least][-1]

    def is_cast(self, block: Block) -> bool:
        """Whether autocast may have made the block from a parameter of the same module."""
        wanted = ("Parameter", block.path, 2 * block.requested, block.device)
        return any((other.category, other.path, other.requested, other.device) == wanted for other in self.blocks)

    def unsaved_end(self, call: int, block: int) -> float:
        """When the block is freed in forward if autograd does not keep it; `call` is checkpointed."""
        if self.is_cast(self.blocks[block]):
            return min(self.calls[self.calls_around(call)[-1]].end, self.calls[call].backward)
        used = self.blocks[block].saved_in
        if used is not None and call in self.calls_around(used) and self.calls[used].end < NEVER:
            return max(self.calls[used].end, self._end_by_calls(call, block))
        return self._end_by_calls(call, block)

    def _end_by_calls(self, call: int, block: int) -> float:
        for inner in self.calls_around(self.blocks[block].call):
            if inner == call or self.result(inner) != block:
                return self.calls[inner].end
            later = [
                one for one in self.calls if one.thread == self.calls[inner].thread and one.begin >= self.calls[inner].end
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
        return found[-1] if found else None


class Edited:
    """The requests and frees of a device, by event: (key, bytes), and (key, None) for a free."""

    def __init__(self, stream: Stream, device: int, edits: list[tuple[Any, ...]]) -> None:
        self.stream, self.device = stream, device
        self.sizes = [block.requested for block in stream.blocks]
        self.devices = [block.device for block in stream.blocks]
        self.before: dict[float, list[tuple[tuple[int, int], Any]]] = {}
        self.holders = [0] * len(stream.blocks)
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
            self.streams[key] = 0 if isinstance(key, tuple) and key[0] == "inserted" else self.stream.blocks[block].stream

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
            and block.bytes >= least
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
        stream, of = self.stream, self.stream.calls[call]
        kept = [i for i, block in enumerate(stream.blocks) if stream.keeps(call, block)]
        if not kept:
            return
        others = [i for i in stream.outliving(call) if i not in kept and stream.blocks[i].drop < NEVER]
        output = None if others or stream.result(call) not in kept else stream.result(call)
        for block in kept:
            if block != output:
                self.later(stream.unsaved_end(call, block), 2, block, lambda block=block: self.free_kept(block, to))
        self.later(of.backward, 3, -call, lambda: self.again(call, kept, output, to))
        last = max(stream.blocks[block].drop for block in kept)
        given = stream.input(call)
        if to is None and given is not None and stream.blocks[given].drop < last:
            self.holders[given] += 1
            self.later(last, 1, given, lambda: self.drop_input(given, last))

    def offload(self, call: int, to: int) -> None:
        self.checkpoint(call, to)

    def free_kept(self, block: int, to: int | None) -> None:
        self.release(block)
        if to == self.device and self.devices[block] != self.device:
            self.alloc(block, self.sizes[block])

    def drop_input(self, block: int, at: float) -> None:
        self.holders[block] -= 1
        if not self.holders[block] and self.stream.blocks[block].drop < at:
            self.release(block)

    def again(self, call: int, kept: list[int], output: int | None, to: int | None) -> None:
        if to is not None:
            for block in kept:
                if block != output:
                    self.release(block)
                    self.alloc(block, self.size(block))
            return
        self.release(output)
        last = max(self.stream.blocks[kept[-1]].add, self.stream.calls[call].last_save - 1)  # torch stops there
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
