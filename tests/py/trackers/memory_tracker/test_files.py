"""Files are exchanged with torch's MemoryTracker, and nothing but plain data is read from them."""

import collections
import os
import pathlib
import pickle

import pytest
from memory_tracker_helpers import Net, monitored
from modscope import MemoryTracker

import torch

theirs = pytest.importorskip("torch.distributed._tools.memory_tracker")


@pytest.fixture
def recorded():
    net = Net()
    with monitored(net) as tracker:
        net(torch.randn(3, 8)).sum().backward()
    return tracker


def contents(tracker):
    return (
        dict(tracker.memories_allocated),
        dict(tracker.memories_active),
        dict(tracker.memories_reserved),
        dict(tracker._markers),
        tracker._num_alloc_retries,
    )


def torch_tracker(tracker):
    """torch's own, with the same contents. It is made without __init__, which only some accelerators pass."""
    other = theirs.MemoryTracker.__new__(theirs.MemoryTracker)
    for name, rows in zip(("memories_allocated", "memories_active", "memories_reserved"), contents(tracker)):
        setattr(other, name, collections.defaultdict(None, rows))
    other._markers = collections.defaultdict(int, tracker._markers)
    other._num_alloc_retries, other._op_index = 3, tracker._op_index
    return other


def test_torch_reads_what_is_saved(recorded, tmp_path, capsys):
    recorded.save_stats(tmp_path / "stats")
    other = theirs.MemoryTracker.__new__(theirs.MemoryTracker)
    other.load(tmp_path / "stats")
    assert contents(other) == contents(recorded)
    assert contents(recorded)[3] == {"fw_start": 1, "fw_bw_boundary": 7}


def test_what_torch_saves_is_read(recorded, tmp_path):
    other = torch_tracker(recorded)
    other.save_stats(tmp_path / "stats")
    loaded = MemoryTracker()
    loaded.load(str(tmp_path / "stats"))
    assert contents(loaded) == contents(other)
    assert loaded._op_index == recorded._op_index


@pytest.mark.parametrize("has_count", [False, True])
def test_files_of_torch_with_and_without_a_count_are_read(recorded, tmp_path, has_count):
    other = torch_tracker(recorded)
    other.save_stats(tmp_path / "stats")
    stats = pickle.loads((tmp_path / "stats").read_bytes())
    stats.pop("op_index", None)
    if has_count:
        stats["op_index"] = other._op_index
    (tmp_path / "stats").write_bytes(pickle.dumps(stats))
    loaded = MemoryTracker()
    loaded.load(tmp_path / "stats")
    assert loaded._op_index == len(loaded.memories_allocated) == recorded._op_index


def test_a_loaded_file_has_the_same_summary(recorded, tmp_path, capsys):
    recorded.save_stats(tmp_path / "stats")
    recorded.summary(1000)
    before = capsys.readouterr().out
    loaded = MemoryTracker()
    loaded.load(tmp_path / "stats")
    loaded.summary(1000)
    assert capsys.readouterr().out == before
    assert before.count("MB") == recorded._op_index


def test_a_loaded_tracker_can_monitor_again(recorded, tmp_path):
    recorded.save_stats(tmp_path / "stats")
    recorded.load(tmp_path / "stats")
    recorded.start_monitor(Net())
    torch.zeros(2)
    recorded.stop()
    assert recorded._op_index == 1


def test_the_names_that_torch_s_users_read_are_there_after_stop_and_load(recorded, tmp_path):
    counts, last = dict(recorded._operator_names), recorded._cur_module_name
    assert last == "first.backward" and counts["addmm.default"] == 2
    recorded.save_stats(tmp_path / "stats")
    recorded.load(tmp_path / "stats")
    assert recorded._operator_names == counts and recorded._cur_module_name == last
    assert recorded._hooks == [] and MemoryTracker()._cur_module_name == ""


def test_a_tracker_that_is_filled_by_hand_has_a_summary_and_a_file(tmp_path, capsys):
    tracker = MemoryTracker()
    for number, name in enumerate(("convolution.default_0", "a.forward.relu.default_0", "b")):
        for rows in (tracker.memories_allocated, tracker.memories_active, tracker.memories_reserved):
            rows[number] = (name, 2.0 * number)
        tracker._op_index += 1
    tracker._num_alloc_retries = 4
    tracker.save_stats(tmp_path / "stats")
    loaded = MemoryTracker()
    loaded.load(tmp_path / "stats")
    assert loaded._op_index == tracker._op_index == 3
    assert loaded._operator_names == {"convolution.default": 1, "relu.default": 1, "b": 1}
    tracker.summary()
    expected = capsys.readouterr().out
    loaded.summary()
    assert (
        capsys.readouterr().out == expected and "are: 4" in expected and "a.forward.relu.default_0: 2.0MB" in expected
    )


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "stats").write_bytes(pickle.dumps({"memories_allocated": RunsCode(mark)}))
    with pytest.raises(ValueError, match="only plain data"):
        MemoryTracker().load(tmp_path / "stats")
    assert not mark.exists()


ROWS = {0: ("a", 1.0)}
GOOD = {
    "memories_allocated": ROWS,
    "memories_active": ROWS,
    "memories_reserved": ROWS,
    "markers": {},
    "num_alloc_retries": 0,
}


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "not a pickle"),
        (b"not a pickle", "not a pickle"),
        (pickle.dumps(GOOD)[:-20], "not a pickle"),
        (pickle.dumps([1, 2]), "list instead of a dict"),
        (pickle.dumps({}), "no dict 'memories_allocated'"),
        (pickle.dumps(GOOD | {"memories_active": 3}), "no dict 'memories_active'"),
        (pickle.dumps(GOOD | {"memories_active": {}}), "not of the same operators"),
        (pickle.dumps(GOOD | {"memories_allocated": {0: "a"}}), "'memories_allocated' is not"),
        (pickle.dumps(GOOD | {"memories_reserved": {"0": ("a", 1.0)}}), "'memories_reserved' is not"),
        (pickle.dumps(GOOD | {"memories_reserved": {0: ("a", "b")}}), "'memories_reserved' is not"),
        (pickle.dumps(GOOD | {"markers": [1]}), "'markers'"),
        (pickle.dumps(GOOD | {"num_alloc_retries": "x"}), "'num_alloc_retries'"),
        (pickle.dumps(GOOD | {"allocated_at_start": "x"}), "'allocated_at_start'"),
        (pickle.dumps(GOOD | {"markers": os.getcwd}), "only plain data"),
    ],
)
def test_an_odd_file_is_refused_with_a_reason_and_changes_nothing(recorded, tmp_path, content, why):
    (tmp_path / "stats").write_bytes(content)
    before = contents(recorded)
    with pytest.raises(ValueError, match=why) as error:
        recorded.load(tmp_path / "stats")
    assert "save_stats" in str(error.value) and str(tmp_path) in str(error.value)
    assert contents(recorded) == before


def test_the_good_file_of_these_tests_is_good(tmp_path):
    (tmp_path / "stats").write_bytes(pickle.dumps(GOOD))
    tracker = MemoryTracker()
    tracker.load(tmp_path / "stats")
    assert tracker.memories_allocated == ROWS


def test_a_missing_file_and_a_folder_are_errors_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        MemoryTracker().load(tmp_path / "none")
    with pytest.raises(OSError):
        MemoryTracker().load(tmp_path)
    with pytest.raises(FileNotFoundError):
        MemoryTracker().save_stats(tmp_path / "none" / "stats")


def test_the_summary_is_torch_s_where_torch_counts(recorded, tmp_path, capsys):
    """A file of torch's does not say what was allocated before the first operator, so that one is left out by both."""
    other = torch_tracker(recorded)
    other.save_stats(tmp_path / "stats")
    other.summary(7)
    expected = capsys.readouterr().out
    loaded = MemoryTracker()
    loaded.load(tmp_path / "stats")
    loaded.summary(7)
    assert capsys.readouterr().out == expected
    assert expected.count("MB") == 7


def test_an_empty_tracker_has_an_empty_summary(capsys):
    MemoryTracker().summary()
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "The number of alloc retries are: 0",
        "Top 20 ops that generates memory are:",
    ]
