"""Random trees of modules that allocate and free blocks of known sizes, compared with a slow and simple
ledger: a dict of live blocks that is copied at every new peak."""

import threading

import pytest
from helpers import Boom, needs_interception
from hypothesis import given, note
from hypothesis import strategies as st
from memory_helpers import CPU, every_source, random_programs, trees, wrong_sums
from modscope import MemTracker

import torch
from torch import nn


def programs(children):
    steps = [
        st.tuples(st.just("keep"), st.integers(1, 9)),
        st.tuples(st.just("use"), st.integers(1, 9)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
    ]
    if children:
        steps += [st.tuples(st.just("call"), st.integers(0, children - 1))] * 2
    body = st.lists(st.one_of(*steps), max_size=5)
    return st.tuples(body, st.sampled_from([False] * 7 + [True])).map(lambda bt: bt[0] + [("raise", 0)] * bt[1])


scripts = st.lists(
    st.one_of(
        st.just(("call", 0)),
        st.tuples(st.just("keep"), st.integers(1, 9)),
        st.tuples(st.just("use"), st.integers(1, 9)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.just(("reset", 0)),
    ),
    min_size=1,
    max_size=8,
)


class Ledger:
    """The expected figures, of a program with one thread; all blocks of modules are Activation, the rest is Other."""

    def __init__(self):
        self.blocks = []  # [owner, tensor]
        self.stack = ["Global"]
        self.peak, self.at_peak, self.peak_by = 0, {}, None
        self.step = 0
        self.calls = {}  # fqn: [[before, after, most]] of the latest root call
        self.open = []

    def by_owner(self):
        found = {}
        for owner, tensor in self.blocks:
            found[owner] = found.get(owner, 0) + tensor.nbytes
        return found

    def total(self):
        return sum(tensor.nbytes for _, tensor in self.blocks)

    def add(self, size):
        self.blocks.append((self.stack[-1], torch.empty(size)))
        total = self.total()
        for call in self.open:
            call[2] = max(call[2], total)
        if total > self.peak:
            self.peak, self.at_peak = total, self.by_owner()
            self.peak_by = self.step, "forward" if self.open else "idle", self.stack[-1], self.stack[-1]

    def act(self, what, n):
        if what == "keep":
            self.add(n)
        elif what == "use":
            self.add(n)
            self.blocks.pop()
        elif what == "drop" and self.blocks:
            del self.blocks[n % len(self.blocks)]

    def enter(self, fqn):
        if not self.open:
            self.step += 1
            self.calls = {}
        total = self.total()
        self.open.append([total, None, total])
        self.calls.setdefault(fqn, []).append(self.open[-1])
        self.stack.append(fqn)

    def leave(self):
        self.open.pop()[1] = self.total()
        self.stack.pop()


class Node(nn.Module):
    def __init__(self, ledger, spec, fqn):
        super().__init__()
        self.program, kids = spec
        self.ledger, self.fqn = [ledger], fqn
        for i, kid in enumerate(kids):
            setattr(self, f"k{i}", Node(ledger, kid, f"{fqn}.k{i}"))

    def forward(self):
        ledger = self.ledger[0]
        ledger.enter(self.fqn)
        try:
            for what, n in self.program:
                if what == "call":
                    getattr(self, f"k{n}")()
                elif what == "raise":
                    raise Boom
                else:
                    ledger.act(what, n)
        finally:
            ledger.leave()


def activations(mt, type):
    found = mt.get_module_snapshot(type).get(CPU, {})
    assert all(
        figures["Total"] == figures["Other" if fqn == "Global" else "Activation"] for fqn, figures in found.items()
    )
    return {fqn: figures["Total"] for fqn, figures in found.items()}


def read_totals(mt):
    """For each module: before, after and most, of each of its calls."""
    found = {}
    for stats in mt.memory_tracking.values():
        entries = [
            [entry.get(CPU, {}).get("Total", 0) for entry in stats.snapshots.get(state, [])]
            for state in ("Pre-Forward", "Post-Forward", "Peak-Forward")
        ]
        found[stats.mod_fqn] = [list(call) for call in zip(*entries, strict=True)]
    return found


@every_source
@random_programs
@given(tree=trees(programs), script=scripts)
def test_who_holds_what_now_at_the_peak_and_around_each_call(source, tree, script):
    ledger = Ledger()
    mod = Node(ledger, tree, "Node")
    with MemTracker(source) as mt:
        for what, n in script:
            note(f"{what} {n}")
            raised = False
            if what == "call":
                try:
                    mod()
                except Boom:
                    raised = True
            elif what == "reset":
                mt.reset_peak()
                ledger.peak, ledger.at_peak, ledger.peak_by = ledger.total(), ledger.by_owner(), None
            else:
                ledger.act(what, n)
            assert activations(mt, "current") == ledger.by_owner()
            assert activations(mt, "peak") == ledger.at_peak
            assert wrong_sums(mt) == []
            if ledger.peak:
                peak = mt.peak[CPU]
                assert peak.bytes == ledger.peak
                assert ledger.peak_by in (None, (peak.step, peak.phase, peak.module, peak.owner))
            if what == "call" and not raised:
                found = read_totals(mt)
                assert {fqn: found[fqn] for fqn in ledger.calls} == ledger.calls


@pytest.mark.slow
@needs_interception
@random_programs
@given(first=st.tuples(trees(programs), scripts), second=st.tuples(trees(programs), scripts))
def test_two_threads_at_once(first, second):
    """Each thread has its own tree with its own names. In any order of events, the final figures are right."""
    ledgers, errors = [Ledger(), Ledger()], []

    def work(i, tree, script):
        mod = type(f"Node{i}", (Node,), {})(ledgers[i], tree, f"Node{i}")
        try:
            for what, n in script:
                try:
                    mod() if what == "call" else ledgers[i].act(what, n)
                except Boom:
                    pass
        except BaseException as error:
            errors.append(error)

    with MemTracker("allocator") as mt:
        threads = [threading.Thread(target=work, args=(i, *plan)) for i, plan in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert errors == []
        wanted = {}
        for ledger in ledgers:
            for fqn, size in ledger.by_owner().items():
                wanted[fqn] = wanted.get(fqn, 0) + size
        assert activations(mt, "current") == wanted
        assert wrong_sums(mt) == []
