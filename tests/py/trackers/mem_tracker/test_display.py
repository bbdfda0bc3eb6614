"""What is printed: the figures of the snapshots, in the requested units, in the natural order of names, in tables
with rows of equal length."""

import re

import pytest
from helpers import make
from memory_helpers import CATEGORIES, CPU, STATES
from modscope import MemTracker

import torch
from torch import nn

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@pytest.fixture(scope="module")
def tracked():
    """A tracker that saw a step of a model of twelve layers, and the model."""
    torch.manual_seed(0)
    mod = nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)])
    opt = torch.optim.Adam(mod.parameters())
    mt = MemTracker()
    mt.track_external(mod, opt)
    with mt:
        mod(torch.randn(8, 64)).sum().backward()
        opt.step()
    return mt, mod


def numbers(text):
    return [float(n) for n in re.findall(r"(?<![\w.#-])\d+(?:\.\d+)?(?![\w.])", text)]


def names(out):
    """Modules in the order in which they are first printed."""
    return list(dict.fromkeys(re.findall(r"Sequential(?:\.\d+)*", out)))


def tables(out):
    """The lines below each module's name."""
    return [part.rstrip("\n").splitlines()[1:] for part in out.split("Module:")[1:]]


@pytest.mark.parametrize("type", ["current", "peak"])
@pytest.mark.parametrize("tabulate", [False, True])
@pytest.mark.parametrize("units", UNITS)
def test_every_category_is_printed_with_its_figure(tracked, type, tabulate, units, capsys):
    mt, _ = tracked
    mt.display_snapshot(type, units=units, tabulate=tabulate)
    out = capsys.readouterr().out
    assert all(word in out for word in (*CATEGORIES, "Total", "cpu"))
    printed = numbers(out)
    for key, value in mt.get_tracker_snapshot(type)[CPU].items():
        wanted = value if units == "B" else round(value / UNITS[units], 2)
        assert wanted in printed, f"{key}: {wanted} {units} in {out}"
    if units != "B":
        assert units in out


def test_the_defaults_are_current_bytes_and_no_table(tracked, capsys):
    mt, _ = tracked
    mt.display_snapshot()
    plain = capsys.readouterr().out
    mt.display_snapshot("current", units="B", tabulate=False)
    assert capsys.readouterr().out == plain != ""


def test_the_table_of_a_snapshot_is_aligned(tracked, capsys):
    mt, _ = tracked
    mt.display_snapshot("peak", units="MiB", tabulate=True)
    lines = capsys.readouterr().out.rstrip("\n").splitlines()
    assert len(lines) > 2 and len({len(line) for line in lines}) == 1


def test_the_tables_of_modules_are_aligned(tracked, capsys):
    mt, _ = tracked
    mt.display_modulewise_snapshots(depth=2, units="KiB", tabulate=True)
    found = tables(capsys.readouterr().out)
    assert len(found) == 13
    for rows in found:
        assert len(rows) > 6 and len({len(row) for row in rows}) == 1, "\n".join(rows)


def test_tables_need_no_other_package(tracked, capsys, monkeypatch):
    import builtins

    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert name != "tabulate"
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    tracked[0].display_snapshot("peak", tabulate=True)
    tracked[0].display_modulewise_snapshots(tabulate=True)
    assert capsys.readouterr().out


@pytest.mark.parametrize("tabulate", [False, True])
def test_two_comes_before_ten(tracked, tabulate, capsys):
    mt, _ = tracked
    mt.display_modulewise_snapshots(depth=2, tabulate=tabulate)
    assert names(capsys.readouterr().out) == ["Sequential", *(f"Sequential.{i}" for i in range(12))]


@pytest.mark.parametrize("tabulate", [False, True])
@pytest.mark.parametrize("depth, wanted", [(1, {"Mod"}), (2, {"Mod", "Mod.a"}), (3, {"Mod", "Mod.a", "Mod.a.0"})])
def test_depth_counts_the_parts_of_a_name(depth, wanted, tabulate, capsys):
    mod = make("Mod", lambda m, x: m.a(x), a=nn.Sequential(nn.Linear(4, 4)))
    with MemTracker() as mt:
        mod(torch.randn(2, 4)).sum().backward()
    mt.display_modulewise_snapshots(depth=depth, tabulate=tabulate)
    assert set(re.findall(r"Mod(?:\.\w+)*(?![\w.:])", capsys.readouterr().out)) - {"Module"} == wanted


@pytest.mark.parametrize("tabulate", [False, True])
def test_every_state_of_a_module_is_printed(tracked, tabulate, capsys):
    mt, _ = tracked
    mt.display_modulewise_snapshots(depth=1, tabulate=tabulate)
    out = capsys.readouterr().out
    assert all(state in out for state in STATES[:6])
    assert "AC" not in out


def test_every_call_is_printed(capsys):
    mod = make("Mod", lambda m, x: m.a(m.a(m.a(x))), a=nn.Linear(4, 4))
    with MemTracker() as mt:
        mod(torch.randn(2, 4))
    mt.display_modulewise_snapshots(depth=2, tabulate=True)
    out = capsys.readouterr().out
    assert len(re.findall(r"Pre-Forward", out)) == 1 + 3
    assert "# 3" in out or "#3" in out


def test_figures_of_modules_are_those_of_their_entries(tracked, capsys):
    mt, mod = tracked
    mt.display_modulewise_snapshots(depth=1, units="B", tabulate=True)
    printed = numbers(capsys.readouterr().out)
    for entries in mt.memory_tracking[mod].snapshots.values():
        for entry in entries:
            assert entry[CPU]["Total"] in printed and entry[CPU]["Activation"] in printed


@pytest.mark.parametrize("tabulate", [False, True])
def test_nothing_tracked_is_said_so(tabulate, capsys):
    MemTracker().display_snapshot(tabulate=tabulate)
    assert "No memory tracked" in capsys.readouterr().out
    MemTracker().display_modulewise_snapshots(tabulate=tabulate)


def test_nothing_is_said_to_be_at_least(tracked, capsys):
    """ "At least" is only for figures that are lower bounds."""
    mt, _ = tracked
    mt.display_snapshot("peak", tabulate=True)
    mt.display_modulewise_snapshots()
    assert mt.lost == 0 and "at least" not in capsys.readouterr().out


@pytest.mark.parametrize("tabulate", [False, True])
def test_figures_that_are_not_exact_are_said_to_be_at_least(tabulate, capsys):
    class Lossy(MemTracker):
        lost = property(lambda self: 3)

    with Lossy() as mt:
        mod = nn.Linear(4, 4)
        mod(torch.zeros(1, 4))
        for display in (mt.display_snapshot, mt.display_modulewise_snapshots):
            display(tabulate=tabulate)
            assert "at least" in capsys.readouterr().out.lower()


@pytest.mark.parametrize("depth", [None, "2", 1.5])
def test_a_depth_that_is_no_count_is_refused(tracked, depth):
    with pytest.raises((TypeError, ValueError)):
        tracked[0].display_modulewise_snapshots(depth=depth)
