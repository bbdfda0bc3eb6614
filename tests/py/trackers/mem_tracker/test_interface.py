"""MemTracker's interface: what each attribute returns, which arguments are allowed, and the errors for others.
Other files test whether the figures are right."""

import collections.abc

import modscope
import pytest
from helpers import INTERCEPTION, mlp
from memory_helpers import CATEGORIES, CPU, SOURCES, STATES, every_source, nonzero, now, reading
from modscope import MemTracker

import torch
from torch import nn


def train_once(mt, mod=None):
    mod = mlp() if mod is None else mod
    opt = torch.optim.Adam(mod.parameters())
    mod(torch.randn(3, 4)).sum().backward()
    opt.step()
    return mod


# ---- snapshots ----


@pytest.mark.parametrize("type", ["current", "peak"])
def test_a_snapshot_has_every_category_and_the_total(type):
    with MemTracker() as mt:
        train_once(mt)
        snapshot = mt.get_tracker_snapshot(type)
    assert list(snapshot) == [CPU]
    assert sorted(snapshot[CPU]) == sorted([*CATEGORIES, "Total"])
    assert all(isinstance(value, int) for value in snapshot[CPU].values())


def test_current_is_the_default():
    with MemTracker() as mt:
        kept = train_once(mt)
        assert mt.get_tracker_snapshot() == mt.get_tracker_snapshot("current") != mt.get_tracker_snapshot("peak")
        assert mt.get_module_snapshot() == mt.get_module_snapshot("current") != mt.get_module_snapshot("peak")
    del kept


def test_keys_are_members_that_are_words():
    with MemTracker() as mt:
        kept = train_once(mt)
        snapshot = mt.get_tracker_snapshot()[CPU]
    assert {modscope.Category(word) for word in CATEGORIES} == set(modscope.Category) == set(snapshot) - {"Total"}
    assert all(isinstance(key, str) and isinstance(key, modscope.Category) for key in snapshot if key != "Total")
    assert {modscope.Category("Parameter"): 1} == {"Parameter": 1}
    del kept


def test_states_are_members_that_are_words():
    assert {modscope.State(word) for word in STATES} == set(modscope.State)
    assert {modscope.State("Pre-Forward"): 1} == {"Pre-Forward": 1}


def test_torchs_own_keys_find_the_same_figures():
    theirs = pytest.importorskip("torch.distributed._tools.mem_tracker", reason="this torch has no MemTracker")
    mod = mlp()
    with MemTracker() as mt:
        train_once(mt, mod)
        snapshot = mt.get_tracker_snapshot()[CPU]
        states = mt.memory_tracking[mod].snapshots
    assert snapshot[theirs._MemRefType.PARAM] == snapshot["Parameter"] > 0
    assert states[theirs._ModState.PRE_FW] == states["Pre-Forward"] != []


def test_a_snapshot_is_a_copy():
    with MemTracker() as mt:
        kept = torch.empty(10)
        first = mt.get_tracker_snapshot()
        first[CPU]["Total"] = -1
        first.clear()
        assert now(mt) == 40
    del kept


def test_a_module_snapshot_has_every_category_and_the_total():
    with MemTracker() as mt:
        kept = train_once(mt)
        for children in (False, True):
            snapshot = mt.get_module_snapshot("current", children=children)
            assert list(snapshot) == [CPU] and snapshot[CPU]
            for figures in snapshot[CPU].values():
                assert sorted(figures) == sorted([*CATEGORIES, "Total"])
    del kept


@pytest.mark.parametrize("read", ["get_tracker_snapshot", "get_module_snapshot", "display_snapshot"])
@pytest.mark.parametrize("word", ["now", "", "Peak", None, 3])
def test_another_type_is_refused(read, word):
    with pytest.raises(ValueError, match="current.*peak"):
        getattr(MemTracker(), read)(word)


def test_an_unused_tracker_holds_nothing():
    mt = MemTracker()
    assert nonzero(reading(mt)) == nonzero(reading(mt, "peak")) == {}
    assert not any(mt.get_module_snapshot().values()) and not any(mt.get_module_snapshot("peak").values())
    assert len(mt.memory_tracking) == 0 and mt.lost == 0
    assert not any(figures["Total"] for figures in mt.outside.values())


# ---- entering ----


def test_entering_gives_the_tracker():
    mt = MemTracker()
    with mt as same:
        assert same is mt


def test_an_error_inside_passes_through():
    with pytest.raises(ZeroDivisionError), MemTracker():
        raise ZeroDivisionError


def test_leaving_what_was_not_entered_is_refused():
    with pytest.raises(RuntimeError):
        MemTracker().__exit__(None, None, None)


def test_nothing_is_lost_where_memory_is_enough():
    with MemTracker() as mt:
        train_once(mt)
    assert mt.lost == 0


# ---- sources ----


def test_before_entering_the_source_is_what_was_asked_for():
    assert [MemTracker(source=word).source for word in ("auto", "allocator", "dispatcher")] == [
        "auto",
        "allocator",
        "dispatcher",
    ]
    assert MemTracker().source == "auto"


@every_source
def test_the_source_asked_for_is_used(source):
    mt = MemTracker(source=source)
    with mt:
        assert mt.source == source
    assert mt.source == source


def test_auto_is_the_allocator_where_it_can_be_watched():
    with MemTracker() as mt:
        assert mt.source == SOURCES[0]
    assert mt.source == ("allocator" if INTERCEPTION else "dispatcher")


@pytest.mark.parametrize("word", ["", "Allocator", "profiler"])
def test_another_source_is_refused(word):
    with pytest.raises(ValueError, match="auto.*allocator.*dispatcher"):
        MemTracker(source=word)


@pytest.mark.parametrize("word", [None, 1, b"auto", ["auto"]])
def test_a_source_that_is_no_word_is_refused(word):
    with pytest.raises(TypeError):
        MemTracker(source=word)


# ---- units and depth ----


@pytest.mark.parametrize("display", ["display_snapshot", "display_modulewise_snapshots"])
@pytest.mark.parametrize("tabulate", [False, True])
@pytest.mark.parametrize("units", ["MB", "kib", "", None])
def test_other_units_are_refused(display, tabulate, units, capsys):
    with MemTracker() as mt:
        kept = train_once(mt)
        with pytest.raises(ValueError, match="B.*KiB.*MiB.*GiB"):
            getattr(mt, display)(units=units, tabulate=tabulate)
    assert capsys.readouterr().out == ""
    del kept


@pytest.mark.parametrize("display", ["display_snapshot", "display_modulewise_snapshots"])
def test_other_units_are_refused_before_anything_was_tracked(display):
    with pytest.raises(ValueError, match="B.*KiB.*MiB.*GiB"):
        getattr(MemTracker(), display)(units="pages")


# ---- what is read-only ----


def test_a_peak_cannot_be_changed():
    with MemTracker() as mt:
        train_once(mt)
    peak = mt.peak[CPU]
    assert list(peak._fields[:5]) == ["bytes", "step", "phase", "module", "owner"]
    with pytest.raises(AttributeError):
        peak.bytes = 0


def test_memory_tracking_is_a_mapping_that_cannot_be_written():
    mod = mlp()
    with MemTracker() as mt:
        train_once(mt, mod)
    assert isinstance(mt.memory_tracking, collections.abc.Mapping)
    assert mod in mt.memory_tracking and nn.ReLU() not in mt.memory_tracking
    assert mt.memory_tracking.get(nn.ReLU()) is None
    with pytest.raises(KeyError):
        mt.memory_tracking[nn.ReLU()]
    with pytest.raises(TypeError):
        mt.memory_tracking[mod] = None


@pytest.mark.parametrize("name", ["source", "peak", "outside", "lost", "memory_tracking"])
def test_answers_cannot_be_assigned(name):
    with pytest.raises(AttributeError):
        setattr(MemTracker(), name, None)


def test_the_package_distinguishes_it():
    assert "MemTracker" in modscope.__all__ and modscope.MemTracker is MemTracker
