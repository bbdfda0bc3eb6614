"""Captures of random training runs: modules in modules, blocks that autograd keeps, threads, claims."""

from __future__ import annotations

import random

from capture_helpers import Capture

SIZES = (512, 4_096, 100_000, 700_000, 1_048_576, 3_000_000, 9_437_184, 33_554_432)


class RandomRun:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.capture = Capture(("cpu", "cuda:0"))
        root = self.capture.module("Net")
        self.children: dict[int, list[int]] = {root: []}
        for i in range(self.random.randrange(3, 9)):
            parent = self.random.choice(list(self.children))
            path = self.capture.module(f"m{i}", parent)
            self.children[parent].append(path)
            self.children[path] = []
        self.root = root
        for path in self.children:  # parameters
            for size in self.random.sample(SIZES, self.random.randrange(3)):
                self.capture.claim(self.capture.add(size, 1), "Parameter", path)
        self.backward_thread = self.random.choice((1, 2))
        self.notes_calls = self.random.random() < 0.6

    def size(self) -> int:
        if self.random.random() < 0.2:
            return self.random.choice(SIZES) // 2  # perhaps a cast of a parameter
        return self.random.choice(SIZES) + self.random.choice((0, 0, 512, 5_000))

    def device(self) -> int:
        return int(self.random.random() < 0.85)

    def request(self) -> int:
        size = self.size()
        block = self.capture.add(size, self.device())
        if self.random.random() < 0.3:
            self.capture.note("requested", block, size - self.random.randrange(size // 2))
        if self.random.random() < 0.05:
            self.capture.note("stream", block, self.random.randrange(3))
        return block

    def forward(self, path: int, saved: list[tuple[int, list[int]]]) -> None:
        """``saved`` gets, in the order of forward, what each stretch of a module keeps for backward."""
        c, choose = self.capture, self.random
        c.where("forward", path)
        self.note_call("input")
        mine: list[int] = []
        for child in [None, *self.children[path] * choose.choice((1, 1, 2)), None]:
            if child is not None:
                self.forward(child, saved)
                c.where("forward", path)
            if self.alive and choose.random() < 0.3:  # a block of an earlier call is saved, or it is not held any more
                c.note("saved", choose.choice(self.alive))
            for _ in range(choose.randrange(3)):
                block = self.request()
                fate = choose.random()
                if fate < 0.6:
                    mine.append(block)
                    if choose.random() < 0.7:
                        c.note("saved", block)
                    self.alive.append(block)
                elif fate < 0.9:
                    c.drop(block)
                elif fate < 0.95 and saved:
                    saved[-1][1].append(block)
                else:
                    self.later.append(block)
            saved.append((path, mine))
            mine = []
        self.note_call("output")

    def note_call(self, kind: str) -> None:
        """What the call takes or returns: blocks that exist."""
        if self.notes_calls and self.alive:
            for block in self.random.sample(self.alive, min(self.random.randrange(3), len(self.alive))):
                self.capture.note(kind, block)

    def step(self) -> None:
        c, choose = self.capture, self.random
        self.later: list[int] = []
        saved: list[tuple[int, list[int]]] = []
        self.alive: list[int] = []
        c.step()
        c.thread(1)
        for _ in range(choose.choice((1, 1, 2))):
            self.forward(self.root, saved)
        c.where()
        if choose.random() < 0.3:
            c.drop(*self.later)
            self.later = []
        c.thread(self.backward_thread)
        gradients = []
        for path, blocks in reversed(saved):
            c.where("backward", path)
            made = [c.add(self.size(), self.device()) for _ in range(choose.randrange(2))]
            c.drop(*blocks)
            for block in made:
                if choose.random() < 0.4:
                    c.claim(block, "Gradient", path, from_now_on=choose.random() < 0.2)
                    gradients.append(block)
                else:
                    c.drop(block)
        c.where()
        c.thread(1)
        c.drop(*self.later)
        c.where("optimizer")
        c.drop(*[c.add(self.size(), 1) for _ in range(choose.randrange(4))])
        c.optimizer_step()
        c.where()
        c.drop(*gradients)

    def make(self) -> bytes:
        """The capture. Its notes are in `self.capture.noted`."""
        for _ in range(self.random.randrange(2, 4)):
            self.step()
        return self.capture.end(how="finished")


class RandomTraining:
    """Steps of a model of layers, some of which are equal: of one process that may use autocast, or of a rank of FSDP2,
    whose blocks have kinds."""

    def __init__(self, seed: int, is_rank: bool) -> None:
        self.random = random.Random(seed)
        choose = self.random
        self.capture = Capture(("cpu", "cuda:0"))
        self.is_rank, self.autocast = is_rank, choose.random() < 0.6
        self.keeps, self.ranks = choose.random() < 0.4, choose.choice((2, 4))
        self.root = self.capture.module("Net")
        self.layers = [self.capture.module(f"Net.h.{i}", self.root) for i in range(choose.randrange(2, 5))]
        self.parts = {
            layer: [self.capture.module(f"Net.h.{i}.{j}", layer) for j in range(choose.randrange(3))]
            for i, layer in enumerate(self.layers)
        }
        self.sizes: dict[int, list[int]] = {}
        paths = [self.root, *self.layers, *(part for parts in self.parts.values() for part in parts)]
        for path in paths:
            self.sizes[path] = [choose.choice(SIZES) for _ in range(choose.choice((0, 1, 1, 2)))]
            for size in self.sizes[path]:
                slot = self.capture.add(size // self.ranks if is_rank else size, 1)
                self.capture.claim(slot, "Parameter", path)
                if is_rank:
                    self.capture.kind(slot, "Sharded Param")
        self.plan: list[int] = []
        for _ in range(choose.randrange(1, 3)):
            self.plan += [choose.randrange(1000)] * choose.choice((1, 2, 8, 12))

    @property
    def called(self) -> list[int | None]:
        """By path: the number of the layer that it is."""
        count = len(self.capture.names)
        return [self.layers.index(path) if path in self.layers else None for path in range(count)]

    def members(self, layer: int) -> list[int]:
        return [layer, *self.parts[layer]]

    def gather(self, layer: int) -> list[int]:
        c, sizes = self.capture, [size for path in self.members(layer) for size in self.sizes[path]]
        own = c.add(sum(sizes) // self.ranks + self.random.randrange(3) * 300, 1) if self.autocast else None
        gathered = c.add(max(sum(sizes), 512), 1, "Temp", layer)
        c.kind(gathered, "All Gather")
        if own is not None:
            c.drop(own)
        made = []
        for path in self.members(layer):
            for size in self.sizes[path]:
                made.append(c.add(size, 1, "Parameter", path))
                c.kind(made[-1], "Unsharded Param")
        c.drop(gathered)
        return made

    def forward(self, layer: int) -> tuple[list[int], list[int]]:
        """What the layer keeps, and what was gathered for it."""
        c, choose = self.capture, self.random
        c.where("forward", layer)
        gathered = self.gather(layer) if self.is_rank else []
        kept = []
        for path in self.members(layer):
            c.where("forward", path)
            for size in self.sizes[path]:
                if self.autocast and not self.is_rank:
                    kept.append(c.add(size // 2 + choose.choice((0, 512)), 1))
                kept += [self.saved() for _ in range(choose.randrange(2))]
            c.where("forward", layer)
        if not self.keeps:
            c.drop(*gathered)
        return kept, gathered if self.keeps else []

    def saved(self) -> int:
        slot = self.capture.add(self.random.choice(SIZES), 1)
        self.capture.note("saved", slot)
        return slot

    def backward(self, layer: int, kept: list[int], gathered: list[int], gradients: list[int]) -> None:
        c, choose = self.capture, self.random
        c.where("backward", layer)
        again = gathered or (self.gather(layer) if self.is_rank else [])
        for path in reversed(self.members(layer)):
            c.where("backward", path)
            for size in self.sizes[path]:
                cast = c.add(size // 2, 1) if self.autocast and not self.is_rank else None
                made = c.add(size, 1, "Gradient", path)
                if cast is not None:
                    c.drop(cast)
                if self.is_rank:
                    c.kind(made, "Unsharded Grad")
                    c.drop(made)
                elif choose.random() < 0.9:
                    gradients.append(made)
                else:
                    c.drop(made)
        c.drop(*kept, *again)
        if self.is_rank:
            self.reduce(layer, gradients)

    def reduce(self, layer: int, gradients: list[int]) -> None:
        c = self.capture
        total = max(sum(size for path in self.members(layer) for size in self.sizes[path]), 512)
        given = c.add(total, 1, "Temp", layer)
        c.kind(given, "Reduce Scatter")
        output = c.add(total // self.ranks // 2, 1) if self.autocast else None
        gradients.append(c.add(total // self.ranks, 1, "Gradient", layer))
        c.kind(gradients[-1], "Sharded Grad")
        if output is not None:
            c.drop(output)
        c.drop(given)

    def step(self) -> None:
        c, choose = self.capture, self.random
        c.step()
        c.where("forward", self.root)
        of_root = [self.saved() for _ in range(choose.randrange(2))]
        held = []
        for layer in self.layers:
            held.append((layer, *self.forward(layer)))
            c.where("forward", self.root)
        of_root.append(self.saved())
        c.where()
        c.where("backward", self.root)
        c.drop(of_root.pop())
        gradients: list[int] = []
        for layer, kept, gathered in reversed(held):
            self.backward(layer, kept, gathered, gradients)
        c.where("backward", self.root)
        c.drop(*of_root)
        c.where()
        c.where("optimizer")
        c.drop(*[c.add(choose.choice(SIZES), 1) for _ in range(choose.randrange(3))])
        c.optimizer_step()
        c.where()
        c.drop(*gradients)

    def make(self) -> bytes:
        for seed in self.plan:
            self.random = random.Random(seed)
            self.step()
        return self.capture.end(how="finished")
