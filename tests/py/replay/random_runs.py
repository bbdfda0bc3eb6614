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
