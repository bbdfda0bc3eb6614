"""Captures written according to docs/capture-format.md, independently of the code that the tests check."""

from __future__ import annotations

import struct

CATEGORIES = ("Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other")
PHASES = ("idle", "forward", "recompute", "backward", "optimizer", "evaluation")
NONE = 2**64 - 1
INFO, NAMES, DEVICES, FRAME, EVENTS, END, NOTES = range(1, 8)
COLLECTIVES = 9
COLLECTIVE_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
)
NOTE_KINDS = ("saved", "requested", "stream", "segment", "input", "output", "kind")
NOTES_WITH_VALUE = ("requested", "stream", "segment", "kind")
KINDS = ("Sharded Param", "Unsharded Param", "Sharded Grad", "Unsharded Grad", "All Gather", "Reduce Scatter")


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    return varint((number << 1 ^ number >> 63) & NONE)


def string(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return varint(len(data)) + data


def header(major: int = 1, minor: int = 0) -> bytes:
    return b"MODSCOPE" + struct.pack("<HHI", major, minor, 0)


def chunk(kind: int, payload: bytes, first: int = 0, time: int = 0, lowest: int = NONE, count: int = 0) -> bytes:
    head = struct.pack("<IIIIQQQI", 0x4B4E4843, kind, len(payload), crc32c(payload), first, time, lowest, count)
    return head + struct.pack("<I", crc32c(head)) + payload


def payloads(data: bytes | bytearray) -> list[range]:
    """The ranges of the payloads of a capture's chunks."""
    found, at = [], 16
    while at + 48 <= len(data):
        (size,) = struct.unpack_from("<I", data, at + 8)
        found.append(range(at + 48, at + 48 + size))
        at += 48 + size
    return found


def seal(data: bytearray) -> bytes:
    """With new checksums that fit the payloads."""
    for place in payloads(data):
        struct.pack_into("<I", data, place.start - 36, crc32c(data[place.start : place.stop]))
        struct.pack_into("<I", data, place.start - 4, crc32c(data[place.start - 48 : place.start - 4]))
    return bytes(data)


class Capture:
    """A capture that is being written. Times are microseconds; a block is identified by the slot that ``add``
    returns."""

    def __init__(self, devices: tuple[str, ...] = ("cpu",), **info: str) -> None:
        self.out = bytearray(header())
        self.page = 2_000  # bytes of events in a chunk
        self.number = self.time = self.steps = self.optimizer_steps = self.lost = 0
        self.names: list[bytes] = [b"Global", b"unknown"]
        self.paths: dict[str, int] = {}
        self.threads: dict[int, list[int]] = {1: [1000, 0, 0]}  # id, phase, path
        self.thread_now = 1
        self.held: dict[int, list[int]] = {}  # bytes, device, what, path, since_event, step, made_at
        self.free: list[int] = []
        self.reserves: dict[int, int] = {}
        self.noted: list[tuple[int, str, int, int]] = []  # the event before which it is noted, kind, slot, value
        self.notes = bytearray()
        self.collectives = bytearray()
        self._begin_chunk()
        self.out += chunk(INFO, b"".join(string(key) + string(value) for key, value in info.items()))
        self.out += chunk(DEVICES, b"".join(varint(i) + string(name) for i, name in enumerate(devices)))
        self.out += chunk(NAMES, varint(0) + b"".join(b"\0\0" + string(name) for name in self.names))
        self.frame()

    def _begin_chunk(self) -> None:
        self.payload = bytearray()
        self.first, self.began, self.last = self.number, self.time, self.time
        self.lowest = NONE
        self.slot = self.device = self.path = 0
        self.current_thread = 0  # the thread of the events that follow

    # ---- chunks ----

    def flush(self) -> None:
        if self.payload:
            count = self.number - self.first
            self.out += chunk(EVENTS, bytes(self.payload), self.first, self.began, self.lowest, count)
        if self.notes:
            self.out += chunk(NOTES, bytes(self.notes), self.first_note, self.began, self.lowest_noted)
            self.notes = bytearray()
        if self.collectives:
            self.out += chunk(COLLECTIVES, bytes(self.collectives), self.first_collective, self.began)
            self.collectives = bytearray()
        self._begin_chunk()

    def module(self, fqn: str, parent: int = 0) -> int:
        """The path of a module."""
        if fqn not in self.paths:
            self.flush()
            self.paths[fqn] = len(self.names)
            self.names.append(string(fqn))
            named = varint(self.paths[fqn]) + varint(parent) + b"\0" + string(fqn)
            self.out += chunk(NAMES, named, self.number, self.time)
        return self.paths[fqn]

    def frame(self) -> None:
        """A key frame."""
        self.flush()
        out = varint(self.steps) + varint(self.optimizer_steps) + varint(self.lost) + varint(len(self.threads))
        for number, (ident, phase, path) in self.threads.items():
            out += varint(number) + varint(ident) + varint(phase) + varint(path)
        out += varint(len(self.reserves))
        for device, reserved in self.reserves.items():
            out += varint(device) + varint(reserved)
        out += varint(len(self.held))
        before = -1
        for slot, (size, device, what, path, since_event, step, made_at) in sorted(self.held.items()):
            out += varint(slot - before - 1) + varint(size) + varint(device) + bytes([what]) + varint(path)
            out += varint(self.number - since_event) + varint(self.steps - step) + varint(self.time - made_at)
            before = slot
        self.out += chunk(FRAME, out, self.number, self.time)

    def end(self, **info: str) -> bytes:
        self.flush()
        payload = b"".join(string(key) + string(value) for key, value in info.items())
        self.out += chunk(END, payload, self.number, self.time)
        return bytes(self.out)

    def killed(self) -> bytes:
        self.flush()
        return bytes(self.out)

    # ---- events ----

    def _event(self, op: int, rest: bytes, bits: int = 0) -> None:
        if self.time > self.last:
            rest, bits = varint(self.time - self.last) + rest, bits | 8
            self.last = self.time
        self.payload += bytes([op | bits << 4]) + rest
        self.number += 1
        if len(self.payload) > self.page:
            self.flush()

    def _of_thread(self) -> None:
        if self.current_thread != self.thread_now:
            self.current_thread = self.thread_now
            self._event(4, varint(self.thread_now))

    def _relative(self, word: str, value: int) -> bytes:
        before = getattr(self, word)
        setattr(self, word, value)
        return zigzag(value - before)

    def wait(self, microseconds: int) -> None:
        self.time += microseconds

    def thread(self, number: int) -> None:
        """The events that follow are this thread's."""
        self.thread_now = number
        if number not in self.threads:
            self.threads[number] = [1000 + number, 0, 0]
            self.current_thread = number
            self._event(4, varint(number) + varint(1000 + number), 1)

    def where(self, phase: str = "idle", path: int = 0) -> None:
        self._of_thread()
        self.threads[self.thread_now][1:] = PHASES.index(phase), path
        self._event(3, self._relative("path", path), PHASES.index(phase))

    def add(
        self, size: int, device: int = 0, category: str | None = None, path: int | None = None, outside: bool = False
    ) -> int:
        self._of_thread()
        _, phase, here = self.threads[self.thread_now]
        explicit = category is not None or path is not None or outside
        word = category or ("Temp" if phase in (3, 4) else "Activation")
        what = CATEGORIES.index(word) | outside << 3 | phase << 4
        slot = self.free.pop() if self.free else len(self.held)
        self.held[slot] = [size, device, what, here if path is None else path, self.number, self.steps, self.time]
        rest = self._relative("slot", slot) + varint(size)
        other = device != self.device
        if other:
            self.device = device
            rest += varint(device)
        if explicit:
            rest += bytes([what]) + self._relative("path", self.held[slot][3])
        self._event(0, rest, other | explicit << 1)
        return slot

    def drop(self, *slots: int) -> None:
        for slot in slots:
            del self.held[slot]
            self.free.append(slot)
            self._event(1, self._relative("slot", slot))

    def claim(self, slot: int, category: str, path: int, from_now_on: bool = False) -> None:
        block = self.held[slot]
        age = self.number - block[4]
        self.lowest = min(self.lowest, block[4])
        block[2] = block[2] & 0x78 | CATEGORIES.index(category)
        block[3] = path
        if from_now_on:
            block[4] = self.number
        rest = self._relative("slot", slot) + bytes([CATEGORIES.index(category)]) + self._relative("path", path)
        self._event(2, rest + varint(age), from_now_on)

    def kind(self, slot: int, kind: str) -> None:
        """What FSDP2 holds the block for, which must have the category of this kind."""
        since = self.held[slot][4]
        self.note("kind", slot, KINDS.index(kind) + 1 | self.number - since << 4)
        self.lowest_noted = min(self.lowest_noted, since)

    def note(self, kind: str, slot: int, value: int = 0) -> None:
        if not self.notes:
            self.first_note = self.last_note = self.number
            self.lowest_noted = NONE
            self.note_slot = 0
        self.notes += varint(self.number - self.last_note << 3 | NOTE_KINDS.index(kind))
        self.notes += self._relative("note_slot", slot) + (varint(value) if kind in NOTES_WITH_VALUE else b"")
        self.last_note = self.number
        self.noted.append((self.number, kind, slot, value))

    def _begin_collectives(self) -> None:
        if not self.collectives:
            self.first_collective = self.last_collective = self.number
            self.collective_time, self.collective_step, self.collective_path = self.began, 0, 0

    def group(self, number: int, size: int, name: str, ranks: str, backend: str = "nccl") -> None:
        self._begin_collectives()
        self.collectives += varint(0) + varint(number) + varint(size) + string(name) + string(backend) + string(ranks)

    def collective(self, kind: str | int, size: int, group: int = 1, nanoseconds: int = 0) -> None:
        """The thread launches a collective. ``kind``: a name, or a number above those that have one."""
        self._begin_collectives()
        _, phase, path = self.threads[self.thread_now]
        number = kind if isinstance(kind, int) else COLLECTIVE_KINDS.index(kind) + 1
        self.collectives += varint(number << 3 | phase) + varint(self.number - self.last_collective)
        self.last_collective = self.number
        self.collectives += self._relative("collective_time", self.time) + self._relative("collective_step", self.steps)
        self.collectives += self._relative("collective_path", path) + varint(self.thread_now) + varint(group)
        self.collectives += varint(size) + varint(nanoseconds)

    def step(self) -> None:
        self.steps += 1
        self._of_thread()
        self._event(5, varint(self.steps))

    def optimizer_step(self) -> None:
        self.optimizer_steps += 1
        self._of_thread()
        self._event(6, b"")

    def reserve(self, size: int, device: int = 0) -> None:
        self.reserves[device] = size
        self.device = device
        self._event(7, varint(device) + varint(size))

    def oom(self, asked: int, allocated: int, reserved: int, device: int = 0) -> None:
        self._of_thread()
        self.device = device
        self._event(8, varint(device) + varint(asked) + varint(allocated) + varint(reserved))


def train(steps: int = 3, blocks: int = 4, device: str = "cuda:0", leak: int = 0, **info: str) -> Capture:
    """A model of a few blocks, trained: on ``device``, with the batch on the CPU. Ends after the last step."""
    devices = ("cpu", device) if device != "cpu" else ("cpu",)
    on = len(devices) - 1
    c = Capture(devices, program="train.py", arguments="--epochs\n1", pid="4242", torch="2.13.0", **info)
    names = [f"GPT.h.{i}.{part}" for i in range(blocks) for part in ("attn", "mlp")]
    parameters = {name: c.add(4_000_000, on) for name in ["GPT.wte", *names]}
    for name, slot in parameters.items():
        c.claim(slot, "Parameter", c.module(name))
    c.reserve(256 << 20, on)
    states: dict[str, int] = {}
    kept: list[int] = []
    for _ in range(steps):
        c.wait(10_000)
        batch = c.add(65_536)
        c.step()
        made = []
        for name in names:
            c.wait(5_000)
            c.where("forward", c.module(name))
            made.append(c.add(9_000_000, on))
        kept += [c.add(leak, on) for _ in range(bool(leak))]
        gradients = []
        for name in reversed(names):
            c.wait(8_000)
            c.where("backward", c.module(name))
            gradients.append(c.add(4_000_000, on))
            c.drop(made.pop())
            c.claim(gradients[-1], "Gradient", c.module(name))
        c.where("optimizer")
        for name in names:
            if name not in states:
                states[name] = c.add(8_000_000, on)
        for name, slot in states.items():
            c.claim(slot, "Optstate", c.module(name))
        c.wait(3_000)
        c.optimizer_step()
        c.where()
        c.drop(*gradients, batch)
    return c


def mixed(oom: bool = True) -> Capture:
    """Every kind of event: blocks from before the capture, late claims and claims from now on, two threads, three
    devices, blocks of 0 bytes, memory from outside, reserved memory that shrinks."""
    c = Capture(("cpu", "cuda:0", "cuda:1"), program="mixed.py", pid="77", began="1700000000.25")
    c.reserve(64 << 20, 1)
    a = c.module("Net")
    b = c.module("Net.a", a)
    before = [c.add(1000 + i, i % 3) for i in range(5)]
    c.frame()
    for step in range(4):
        c.step()
        c.wait(1000)
        c.thread(1 + step % 2)
        c.where("forward", a)
        c.where("forward", b)
        kept = [c.add(4096 * (step + 1), device) for device in (0, 1, 1, 2)] + [c.add(0), c.add(77, 0, outside=True)]
        c.wait(7)
        c.where("backward", b)
        c.claim(kept[1], "Gradient", a)
        c.claim(kept[1], "Optstate", b, from_now_on=True)
        late = c.add(333, 1)
        c.where("recompute", b)
        c.drop(kept[0], kept[2])
        c.claim(late, "Parameter", a)
        c.reserve((64 - 10 * step) << 20, 1)
        c.where()
        if step == 2:
            c.drop(before[0], kept[3])
            if oom:
                c.oom(1 << 40, 5000, 64 << 20, 1)
    c.optimizer_step()
    return c
