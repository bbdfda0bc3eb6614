"""Random trees of modules whose backward allocates and frees blocks of known sizes: their owners, the peak, and
what was held around each call's backward, compared with a list kept by the test."""

from helpers import needs_interception
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import CPU, every_source, random_programs, trees, wrong_sums
from modscope import MemTracker

import torch
from torch import nn

pytestmark = needs_interception  # the fallback notices a module's backward only by its gradients


class Work(torch.autograd.Function):
    """Allocates only the given blocks: it frees some at once and keeps others."""

    @staticmethod
    def forward(ctx, x, node):
        ctx.node = node
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.node.run()
        return grad, None


class Node:
    """One node of the graph: the calls around it, and what it does in backward."""

    def __init__(self, world, use, keep):
        self.world, self.use, self.keep = world, use, keep
        self.calls = list(world.open)
        self.owner = world.stack[-1]

    def run(self):
        world = self.world
        before = world.total()
        torch.empty(self.use).dim()
        if self.keep:
            world.kept.append((self.owner, torch.empty(self.keep)))
        after = world.total()
        most = max(before + 4 * self.use, after)
        for call in self.calls:
            span = world.spans.setdefault(call, [before, after, most])
            span[1], span[2] = after, max(span[2], most)
        world.peak = max(world.peak, most)
        world.order += [call for call in self.calls if call not in world.order]


class World:
    def __init__(self):
        self.stack, self.open, self.made = ["Global"], [], 0
        self.kept, self.spans, self.order, self.peak = [], {}, [], 0

    def held(self):
        return [(owner, tensor.nbytes) for owner, tensor in self.kept]

    def total(self):
        return sum(size for _, size in self.held())


class Tree(nn.Module):
    def __init__(self, world, spec, fqn):
        super().__init__()
        self.program, kids = spec
        self.world, self.fqn = [world], fqn
        for i, kid in enumerate(kids):
            setattr(self, f"k{i}", Tree(world, kid, f"{fqn}.k{i}"))

    def forward(self, x):
        world = self.world[0]
        world.stack.append(self.fqn)
        world.made += 1
        world.open.append((self.fqn, world.made))
        for what, a, b in self.program:
            x = getattr(self, f"k{a}")(x) if what == "call" else Work.apply(x, Node(world, a, b))
        world.open.pop()
        world.stack.pop()
        return x


def programs(children):
    steps = [st.tuples(st.just("work"), st.integers(1, 9), st.integers(0, 3))]
    if children:
        steps += [st.tuples(st.just("call"), st.integers(0, children - 1), st.just(0))] * 2
    return st.lists(st.one_of(*steps), max_size=4)


def read_totals(mt, states):
    """For each module the totals of each of its calls, in the order of time."""
    found = {}
    for stats in mt.memory_tracking.values():
        entries = [[entry.get(CPU, {}).get("Total", 0) for entry in stats.snapshots.get(state, [])] for state in states]
        calls = [list(call) for call in zip(*entries, strict=True)]
        if calls:
            found[stats.mod_fqn] = calls
    return found


@every_source
@random_programs
@given(tree=trees(programs))
def test_the_owners_of_blocks_of_backward_and_what_was_held_around_it(source, tree):
    world = World()
    mod = Tree(world, tree, "Tree")
    x, gradient = torch.ones(1, requires_grad=True), torch.ones(1)
    mt = MemTracker(source)
    with mt:
        y = mod(x)
        if y is not x:
            torch.autograd.grad(y, x, gradient)
        owners = {}
        for owner, size in world.held():
            owners[owner] = owners.get(owner, 0) + size
        found = mt.get_module_snapshot().get(CPU, {})
        assert {fqn: figures["Temp"] for fqn, figures in found.items()} == owners
        assert all(figures["Total"] == figures["Temp"] for figures in found.values())
        assert mt.get_tracker_snapshot("peak").get(CPU, {}).get("Total", 0) == world.peak
        wanted = {}
        for call in world.order:
            wanted.setdefault(call[0], []).append(world.spans[call])
        assert read_totals(mt, ("Pre-Backward", "Post-Backward", "Peak-Backward")) == wanted
        assert wrong_sums(mt) == []
