"""show_traces draws with matplotlib, or writes an SVG file where that is not installed."""

import sys
import xml.etree.ElementTree

import pytest
from memory_tracker_helpers import Net, monitored
from modscope import MemoryTracker

import torch

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def recorded():
    net = Net()
    with monitored(net) as tracker:
        net(torch.randn(3, 8)).sum().backward()
    return tracker


@pytest.fixture
def no_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_matplotlib_draws_the_figures_of_torch_s_tracker(recorded, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    theirs = pytest.importorskip("torch.distributed._tools.memory_tracker").MemoryTracker
    drawn = []
    for draw in (recorded.show_traces, lambda: theirs.show_traces(recorded)):
        plt.close("all")
        draw()
        figures = [plt.figure(number).gca() for number in plt.get_fignums()]
        drawn.append(
            [
                (
                    axes.get_xlabel(),
                    axes.get_ylabel(),
                    [(line.get_label(), *map(list, line.get_data())) for line in axes.lines],
                )
                for axes in figures
            ]
        )
    plt.close("all")
    assert len(drawn[0]) == 4 and [len(lines) for _, _, lines in drawn[0]] == [5, 3, 3, 3]
    assert drawn[0] == drawn[1]


def test_a_file_is_loaded_and_drawn(recorded, tmp_path, no_matplotlib, capsys):
    recorded.save_stats(tmp_path / "stats")
    tracker = MemoryTracker()
    tracker.show_traces(str(tmp_path / "stats"))
    assert tracker._op_index == recorded._op_index
    assert str(no_matplotlib / "memory-traces.svg") in capsys.readouterr().out


def test_without_matplotlib_the_traces_are_in_a_file_that_overwrites_none(recorded, no_matplotlib, capsys):
    recorded.show_traces()
    recorded.show_traces()
    assert "memory-traces-2.svg" in capsys.readouterr().out
    for name in ("memory-traces.svg", "memory-traces-2.svg"):
        root = xml.etree.ElementTree.parse(no_matplotlib / name).getroot()
        lines = root.findall(f".//{SVG}polyline")
        assert len(lines) == 6  # three in the first picture, and one in each of three others
        assert {len(line.get("points").split()) for line in lines} == {recorded._op_index}
        assert len(root.findall(f".//{SVG}path")) == 8  # two markers in each


def test_where_matplotlib_has_no_display_the_traces_are_in_a_file(recorded, tmp_path, monkeypatch, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")

    def fail():
        raise ImportError("Cannot load backend 'TkAgg'")

    monkeypatch.setattr(plt, "figure", fail)
    monkeypatch.chdir(tmp_path)
    recorded.show_traces()
    assert "TkAgg" in capsys.readouterr().out and (tmp_path / "memory-traces.svg").exists()


def test_a_long_trace_is_thinned_and_keeps_its_extremes(no_matplotlib, tmp_path):
    import pickle

    rows = {i: (f"op_{i}", 900.0 if i == 12345 else 1.0 + i % 7) for i in range(20000)}
    names = ("memories_allocated", "memories_active", "memories_reserved")
    (tmp_path / "stats").write_bytes(
        pickle.dumps({**dict.fromkeys(names, rows), "markers": {}, "num_alloc_retries": 0})
    )
    MemoryTracker().show_traces(tmp_path / "stats")
    text = (no_matplotlib / "memory-traces.svg").read_text()
    assert len(text) < 400_000
    assert "900.90" in text  # the most, and a thousandth above it
    heights = [
        float(point.split(",")[1])
        for point in xml.etree.ElementTree.fromstring(text).find(f".//{SVG}polyline").get("points").split()
    ]
    assert heights.count(min(heights)) == 1


def test_nothing_recorded_is_said(no_matplotlib, capsys):
    MemoryTracker().show_traces()
    assert "nothing to draw" in capsys.readouterr().out
    assert not list(no_matplotlib.iterdir())


@pytest.mark.parametrize(
    "backend, interactive, said",
    [
        ("agg", False, "savefig"),
        ("Agg", True, "savefig"),
        ("TkAgg", False, "pyplot.show()"),
        ("QtAgg", True, ""),
        ("module://matplotlib_inline.backend_inline", False, ""),
    ],
)
def test_what_to_do_to_see_the_figures(recorded, monkeypatch, capsys, backend, interactive, said):
    """matplotlib itself shows figures only in a notebook, or if it is interactive."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "get_backend", lambda: backend)
    monkeypatch.setattr(plt, "isinteractive", lambda: interactive)
    recorded.show_traces()
    out = capsys.readouterr().out
    assert (said in out if said else out == "") and ("figures " in out) == bool(said)
    if said == "savefig":
        exec(
            out[out.index("matplotlib.pyplot.figure") :]
            .replace("traces.png", "/dev/null")
            .replace("matplotlib.pyplot", "plt")
            .replace(")\n", ', format="png")'),
            {"plt": plt},
        )
    plt.close("all")
