"""memory_tracking: for each module that was called, what it holds itself, the bytes of its inputs and outputs, and
what was held around its forward and backward. It has one entry for each call of the latest step."""

import copy
import gc
import weakref

import pytest
from helpers import leaf, make, mlp
from memory_helpers import CATEGORIES, CPU, STATES, every_source, nonzero, now, reading
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import torch
from torch import nn

X, R, Y, A, C = 1024, 2048, 512, 576, 272  # see test_by_hand.py


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class Scene:
    def __init__(self, source):
        self.mod, self.x, self.gradient = network(), torch.randn(32, 8), torch.ones(32, 4)
        self.mt = MemTracker(source)
        self.mt.track_external(self.mod, self.x, self.gradient)

    def stats(self, index=None):
        return self.mt.memory_tracking[self.mod if index is None else self.mod[index]]

    def figures(self, index, state, call=-1):
        return nonzero(self.stats(index).snapshots[state][call][CPU])


def figures(**categories):
    found = {"Parameter": A + C, "Other": X + Y, **{key: value for key, value in categories.items() if value}}
    return {**found, "Total": sum(found.values())}


@every_source
def test_names_and_own_sizes(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x)
    assert {stats.mod_fqn: (stats.parameter_mem, stats.buffer_mem) for stats in s.mt.memory_tracking.values()} == {
        "Sequential": (A + C, 0),
        "Sequential.0": (A, 0),
        "Sequential.1": (0, 0),
        "Sequential.2": (C, 0),
    }
    assert {id(mod) for mod in s.mt.memory_tracking} == {id(mod) for mod in s.mod.modules()}
    assert len(s.mt.memory_tracking) == 4


@every_source
def test_buffers(source):
    mod = nn.BatchNorm1d(4)
    with MemTracker(source) as mt:
        mod(torch.randn(3, 4))
    assert mt.memory_tracking[mod].buffer_mem == 4 * (4 + 4) + 8


@every_source
def test_what_goes_in_and_comes_out(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x)
    found = [(s.stats(i).input_mem, s.stats(i).output_mem) for i in (None, 0, 1, 2)]
    assert found == [(X, Y), (X, R), (R, R), (R, Y)]


@every_source
def test_what_is_not_known_weighs_nothing(source):
    """The input was allocated earlier, and was not given to track_external."""
    mod, x = network(), torch.randn(32, 8)
    with MemTracker(source) as mt:
        mod(x)
    assert mt.memory_tracking[mod].input_mem == 0
    assert mt.memory_tracking[mod].output_mem == Y


@every_source
def test_tensors_inside_containers_go_in_and_out(source):
    mod = make("Mod", lambda m, *args: {"a": [args[0][0], None], "b": (args[0][1]["x"] + 1, "word")})
    with MemTracker(source) as mt:
        a, b = torch.empty(10), torch.empty(20)
        mod([a, {"x": b}], 3, None)
    assert mt.memory_tracking[mod].input_mem == 40 + 80
    assert mt.memory_tracking[mod].output_mem == 40 + 80


@every_source
def test_keyword_arguments_go_in(source):
    mod = make("Mod", lambda m, x, scale=None: x * scale)
    with MemTracker(source) as mt:
        mod(torch.empty(10), scale=torch.empty(1))
    assert mt.memory_tracking[mod].input_mem in (40, 44)  # torch's own tracker ignores keyword arguments


@every_source
def test_around_forward(source):
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
    assert s.figures(None, "Pre-Forward") == s.figures(0, "Pre-Forward") == figures()
    assert s.figures(0, "Post-Forward") == figures(Activation=R)
    assert s.figures(1, "Pre-Forward") == figures(Activation=R)
    assert s.figures(1, "Post-Forward") == figures(Activation=R + R)
    assert s.figures(2, "Pre-Forward") == figures(Activation=R)
    assert s.figures(2, "Post-Forward") == s.figures(None, "Post-Forward") == figures(Activation=R + Y)
    del y


@every_source
def test_the_peak_of_a_call_is_its_own(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x)
    found = [nonzero(s.stats(i).snapshots["Peak-Forward"][0][CPU])["Activation"] for i in (None, 0, 1, 2)]
    assert found == [R + R, R, R + R, R + Y]
    assert [s.stats(i).local_peak[CPU] for i in (None, 0, 1, 2)] == [figures(Activation=a)["Total"] for a in found]


@every_source
def test_around_backward(source):
    s = Scene(source)
    with s.mt:
        y = s.mod(s.x)
        y.backward(s.gradient)
    before = figures(Activation=R + Y)
    assert s.figures(None, "Pre-Backward") == s.figures(2, "Pre-Backward") == before
    assert s.figures(2, "Post-Backward") == figures(Activation=R + Y, Gradient=C, Temp=R)
    assert s.figures(1, "Pre-Backward") == figures(Activation=R + Y, Gradient=C, Temp=R)
    assert s.figures(1, "Peak-Backward") == figures(Activation=R + Y, Gradient=C, Temp=R + R)
    assert s.figures(0, "Post-Backward") == figures(Activation=Y, Gradient=A + C)
    assert s.figures(None, "Post-Backward") == figures(Activation=Y, Gradient=A + C)
    assert s.figures(None, "Peak-Backward") == figures(Activation=R + Y, Gradient=C, Temp=R + R)


@every_source
def test_one_entry_a_call(source):
    mod = make("Mod", lambda m, x: m.a(m.a(m.a(x))), a=leaf(lambda m, x: x.sin()))
    with MemTracker(source) as mt:
        mod(torch.zeros(4, requires_grad=True)).sum().backward()
    counts = {state: len(entries) for state, entries in mt.memory_tracking[mod.a].snapshots.items() if entries}
    assert counts == dict.fromkeys(STATES[:6], 3)
    counts = {state: len(entries) for state, entries in mt.memory_tracking[mod].snapshots.items() if entries}
    assert counts == dict.fromkeys(STATES[:6], 1)


@every_source
def test_entries_are_in_the_order_of_the_calls(source):
    kept = []
    mod = make("Mod", lambda m: [m.a(), m.a(), m.a()], a=leaf(lambda m: kept.append(torch.empty(10))))
    with MemTracker(source) as mt:
        mod()
    assert [nonzero(entry.get(CPU, {})) for entry in mt.memory_tracking[mod.a].snapshots["Pre-Forward"]] == [
        {},
        {"Activation": 40, "Total": 40},
        {"Activation": 80, "Total": 80},
    ]


@every_source
def test_an_entry_has_every_category_and_adds_up(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x).backward(s.gradient)
    for stats in s.mt.memory_tracking.values():
        for entries in stats.snapshots.values():
            for entry in entries:
                assert sorted(entry[CPU]) == sorted([*CATEGORIES, "Total"])
                assert sum(entry[CPU][key] for key in CATEGORIES) == entry[CPU]["Total"]


@every_source
def test_a_call_without_gradients_has_no_backward(source):
    s = Scene(source)
    with s.mt, torch.no_grad():
        s.mod(s.x)
    assert {state for state, entries in s.stats().snapshots.items() if entries} == set(STATES[:3])


@every_source
def test_recompute_has_entries_of_its_own(source):
    for reentrant in (False, True):
        part = network()
        mod = make("Mod", lambda m, x: checkpoint(m.part, x, use_reentrant=reentrant), part=part)
        with MemTracker(source) as mt, set_checkpoint_early_stop(False):
            mod(torch.randn(32, 8, requires_grad=True)).sum().backward()
        snapshots = mt.memory_tracking[part].snapshots
        assert len(snapshots["Pre-Forward"]) == len(snapshots["Post-Forward"]) == 1
        assert len(snapshots["Pre-Forward-AC"]) == len(snapshots["Post-Forward-AC"]) == 1
        before, after = (snapshots[state][0][CPU]["Activation"] for state in ("Pre-Forward-AC", "Post-Forward-AC"))
        assert after - before == R + Y


@every_source
def test_the_latest_step_is_shown(source):
    s = Scene(source)
    opt = torch.optim.Adam(s.mod.parameters())
    with s.mt:
        for _ in range(3):
            s.mod(s.x).backward(s.gradient)
            opt.step()
            opt.zero_grad()
            for stats in s.mt.memory_tracking.values():
                assert all(len(entries) == 1 for entries in stats.snapshots.values() if entries)
    assert s.figures(None, "Pre-Forward")["Optstate"] == 2 * (A + C) + 16, "the first step had none yet"


@every_source
def test_reset_forgets_until_the_next_call(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x)
        before = reading(s.mt), reading(s.mt, "peak")
        s.mt.reset_mod_stats()
        assert len(s.mt.memory_tracking) == 0 and s.mod not in s.mt.memory_tracking
        assert list(s.mt.memory_tracking) == []
        assert (reading(s.mt), reading(s.mt, "peak")) == before
        s.mod[1](s.x)
        assert list(s.mt.memory_tracking) == [s.mod[1]]
        s.mod(s.x)
        assert len(s.mt.memory_tracking) == 4 and len(s.stats().snapshots["Pre-Forward"]) == 1


@every_source
def test_it_stays_readable_after_the_tracker_was_left(source):
    s = Scene(source)
    with s.mt:
        s.mod(s.x).backward(s.gradient)
        inside = copy.deepcopy(s.stats().snapshots)
    s.mod(s.x)
    assert s.stats().snapshots == inside


@every_source
def test_no_module_is_kept_alive(source):
    mt = MemTracker(source)
    with mt:
        mod = network()
        mod(torch.randn(32, 8)).sum().backward()
        dead = [weakref.ref(part) for part in mod.modules()]
        stats = mt.memory_tracking[mod]
        view = mt.memory_tracking
        del mod
        gc.collect()
        assert [ref() for ref in dead] == [None] * 4
        assert len(view) == len(mt.memory_tracking) == 0
    assert stats.mod_fqn == "Sequential"


@every_source
def test_modules_are_distinguished_by_identity(source):
    class Equal(nn.Module):
        def forward(self, x):
            return x + 1

        def __eq__(self, other):
            return isinstance(other, Equal)

        def __hash__(self):
            return 1

    one, two = Equal(), Equal()
    with MemTracker(source) as mt:
        one(torch.zeros(1)), two(torch.zeros(1))
        assert len(mt.memory_tracking) == 2
        assert Equal() not in mt.memory_tracking


@every_source
def test_a_copy_has_the_same_modules(source):
    """torch's own tools make a deep copy of it, and then look up modules in the copy."""
    mod = mlp(1)
    with MemTracker(source) as mt:
        mod(torch.zeros(1, 4))
    copied = dict(copy.deepcopy(mt.memory_tracking))
    assert set(map(id, copied)) == set(map(id, mod.modules()))
    assert copied[mod].mod_fqn == "Sequential"
    assert copied[mod].snapshots == mt.memory_tracking[mod].snapshots


@every_source
def test_a_call_that_raised(source):
    def body(m, x):
        m.kept = torch.empty(10)
        raise ZeroDivisionError

    mod = make("Mod", lambda m, x: m.a(x), a=leaf(body))
    with MemTracker(source) as mt:
        for _ in range(2):
            try:
                mod(torch.zeros(1))
            except ZeroDivisionError:
                pass
        stats = mt.memory_tracking[mod.a]
        assert len(stats.snapshots["Pre-Forward"]) == 1
        assert now(mt, "Activation") == 40


@every_source
@pytest.mark.parametrize("length", [lambda self: 0, lambda self: 1 / 0], ids=["false", "cannot say"])
def test_a_module_that_is_false_or_cannot_say(source, length):
    class Odd(nn.Linear):
        __len__ = length

    mod = Odd(4, 4)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod(torch.zeros(1, 4)).sum().backward()
        assert mt.memory_tracking[mod].parameter_mem == 80
    assert mt.memory_tracking[mod].parameter_mem == 80
    assert mt.get_tracker_snapshot()[CPU]["Gradient"] == 80


@every_source
def test_a_second_tracker_starts_afresh(source):
    """The peak of a call before this tracker was entered is not in its stats."""
    big, small = leaf(lambda m: torch.empty(100).dim()), leaf(lambda m: torch.empty(1).dim())
    with MemTracker(source):
        big()
    with MemTracker(source) as mt:
        small()
        assert mt.memory_tracking[small].snapshots["Peak-Forward"][0][CPU]["Total"] == 4
        assert mt.peak[CPU].bytes == 4


def train_and_read(source, layers, width, ckpt):
    """All of memory_tracking after a step."""
    mod, x = mlp(layers, width), torch.randn(4, width, requires_grad=True)
    opt = torch.optim.Adam(mod.parameters())
    run = make(
        "Run", lambda m, x: checkpoint(m.a, x, use_reentrant=False, preserve_rng_state=False) if ckpt else m.a(x), a=mod
    )
    mt = MemTracker(source)
    mt.track_external(run, opt, x)
    with mt:
        run(x).sum().backward()
        opt.step()
    facts = {
        stats.mod_fqn: (stats.local_peak, stats.snapshots, stats.input_mem, stats.output_mem)
        for stats in mt.memory_tracking.values()
    }
    return facts, mt.peak, mt.get_module_snapshot("peak")


@every_source
def test_the_same_program_has_the_same_stats_again(source):
    """Other programs that are tracked in between change nothing."""
    programs = [
        (1, 4, False),
        (3, 64, False),
        (2, 8, True),
        (1, 128, True),
        (1, 4, False),
        (2, 8, True),
        (3, 64, False),
    ]
    first = {}
    for program in programs:
        stats = train_and_read(source, *program)
        assert stats == first.setdefault(program, stats), program
