"""`modscope.load`: a capture as Python objects."""

import io
import itertools
from pathlib import Path

import modscope
import pytest
from capture_helpers import CATEGORIES, Capture, chunk, header, train
from helpers import run_python
from modscope import CaptureError, Category, load

MIB = 1 << 20


@pytest.fixture
def file(tmp_path):
    def write(data: bytes) -> Path:
        path = tmp_path / "run.msc"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def small(file):
    """Two devices, two steps, one module that makes a block, which turns out to be a parameter later."""
    c = Capture(("cpu", "cuda:0"), program="train.py", rank="0")
    model = c.module("Model")
    inner = c.module("Model.inner", model)
    c.add(100)  # moment 2, with the thread's event
    c.wait(1000)
    c.step()
    c.where("forward", inner)
    weight = c.add(8 * MIB, 1)
    c.add(MIB, 1)
    c.reserve(20 * MIB, 1)
    c.wait(1000)
    c.step()
    c.where("backward", model)
    c.wait(1000)
    grown = c.add(4 * MIB, 1)
    c.drop(grown)
    c.claim(weight, "Parameter", model)
    c.optimizer_step()
    c.where()
    return load(file(c.end(how="finished", status="0")))


# ---- opening ----


def test_reading_needs_no_torch(file):
    done = run_python(f"""
        import sys, modscope
        capture = modscope.load({str(file(train().end(how="finished")))!r})
        capture.snapshot().tree(), list(capture.steps()), modscope.__version__, modscope.Category
        assert "torch" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


def test_a_path_or_an_open_file(file):
    path = file(train().end(how="finished"))
    with path.open("rb") as opened:
        captures = [load(str(path)), load(path), load(opened)]
        assert not opened.closed
    assert len({capture.peaks["cuda:0"] for capture in captures}) == 1


@pytest.mark.parametrize("wrong", [io.BytesIO(b"MODSCOPE"), 5, None])
def test_anything_else_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="path"):
        load(wrong)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.msc")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"M", b"MODSCOP", b"PK\3\4" * 20, b"MODSCOPE"[::-1] * 4], ids=repr)
def test_no_capture(file, data):
    with pytest.raises(CaptureError, match="run.msc.*capture"):
        load(file(data))


def test_a_newer_version(file):
    with pytest.raises(CaptureError, match="newer"):
        load(file(header(major=2) + train().end()[16:]))


def test_a_higher_minor_version_is_read(file):
    assert load(file(header(minor=7) + train().end()[16:])).last_step == 3


def test_a_pipe_is_no_capture(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CaptureError, match="not a file"):
        load(tmp_path / "pipe")


def test_an_empty_capture(file):
    capture = load(file(header()))
    assert capture.peaks == {} and capture.last_step == 0 and capture.end is None
    assert list(capture.events()) == []
    with pytest.raises(CaptureError, match="no peak"):
        capture.snapshot("peak")


# ---- the whole run ----


def test_what_is_said_of_the_run(small):
    assert small.info["program"] == "train.py" and small.info["rank"] == "0"
    assert small.end == {"how": "finished", "status": "0"}
    assert list(small.devices) == ["cpu", "cuda:0"]
    assert (small.lost, small.damaged, small.is_lower_bound) == (0, 0, False)
    assert small.duration == 0.003
    assert "train.py" in repr(small)


def test_peaks(small):
    peak = small.peaks["cuda:0"]
    assert (peak.bytes, peak.step, peak.phase, peak.module) == (13 * MIB, 2, "backward", "Model")
    assert (peak.time, peak.reserved) == (0.003, 20 * MIB)
    assert small.peaks["cpu"].bytes == 100 and small.peaks["cpu"].step == 0
    assert small.reserved == {"cpu": 0, "cuda:0": 20 * MIB}


def test_phases(small):
    assert list(small.phases) == ["idle", "forward", "recompute", "backward", "optimizer", "evaluation"]
    assert small.phases["forward"] == (0.001, 2, 9 * MIB)
    assert small.phases["backward"] == (0.001, 1, 4 * MIB)


def test_steps(small):
    zero, one, two = small.steps()
    assert [step.number for step in (zero, one, two)] == [0, 1, 2]
    assert [(step.begin, step.end) for step in (zero, one, two)] == [(0, 0.001), (0.001, 0.002), (0.002, 0.003)]
    assert one.peaks == {"cpu": 100, "cuda:0": 9 * MIB} and two.peaks["cuda:0"] == 13 * MIB
    assert small.last_step == 2 and small.optimizer_steps == 1
    assert small.snapshot(one.last).step == 1 and small.snapshot(two.first + 1).step == 2


def test_steps_are_taken_lazily(file):
    capture = load(file(train(50).end()))
    assert [step.number for step in itertools.islice(capture.steps(), 3)] == [0, 1, 2]


def test_the_device_that_matters(small, file):
    assert small.main_device == "cuda:0"
    assert load(file(train(device="cpu").end())).main_device == "cpu"


def test_two_devices_of_one_name(file):
    c = Capture(("cuda:0", "cuda:0"))
    c.add(5, 0)
    c.add(7, 1)
    capture = load(file(c.end()))
    assert len(set(capture.devices)) == 2 and [peak.bytes for peak in capture.peaks.values()] == [5, 7]


# ---- events ----


def test_events(small):
    adds = list(small.events("add"))
    assert [event.bytes for event in adds] == [100, 8 * MIB, MIB, 4 * MIB]
    assert adds[0].device == "cpu" and adds[1].device == "cuda:0"
    assert adds[1].module == "Model.inner" and adds[1].category == Category.ACT and adds[1].phase == "forward"
    (claim,) = small.events("claim")
    assert (claim.category, claim.module, claim.from_now_on) == ("Parameter", "Model", False)
    assert [event.bytes for event in small.events("step")] == [1, 2]
    assert next(small.events("reserved")).category is None


def test_events_of_a_stretch(small):
    numbers = [event.number for event in small.events()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [event.number for event in small.events(first=numbers[3], last=numbers[6])] == numbers[3:6]


def test_no_such_kind_of_event(small):
    with pytest.raises(ValueError, match="'free'.*drop"):
        small.events("free")


def test_a_failed_allocation(file):
    c = train(2)
    c.step()
    c.where("forward", c.module("GPT.wte"))
    c.oom(3 * MIB, 2 * MIB, 9 * MIB, 1)
    capture = load(file(c.end(how="exception")))
    assert capture.oom_count == 1
    failed = capture.last_oom
    assert (failed.bytes, failed.allocated, failed.reserved, failed.device) == (3 * MIB, 2 * MIB, 9 * MIB, "cuda:0")
    assert (failed.phase, failed.module) == ("forward", "GPT.wte")
    assert capture.snapshot("oom").running == ("forward", "GPT.wte")


# ---- moments ----


def test_a_snapshot_knows_later_claims(small):
    before = small.snapshot("step:1")
    assert before.totals["cuda:0"]["Parameter"] == 8 * MIB and before.totals["cuda:0"]["Activation"] == MIB
    assert before.totals["cuda:0"]["Total"] == 9 * MIB
    assert before.by_module()["cuda:0"]["Model"][Category.PARAM] == 8 * MIB


def test_a_snapshot_by_its_moment(small):
    peak = small.snapshot()
    assert (peak.step, peak.time, peak.running) == (2, 0.003, ("backward", "Model"))
    assert peak.moment == small.peaks["cuda:0"].moment == small.moment("peak")
    assert small.snapshot(peak.moment).totals == peak.totals
    assert small.snapshot("time:0.0015").totals["cuda:0"]["Total"] == 9 * MIB
    assert small.snapshot("peak", "cpu").step == 0
    assert peak.reserved["cuda:0"] == 20 * MIB and peak.block_count == 4
    assert "step 2" in repr(peak)


@pytest.mark.parametrize("at", ["step:9", "step:99999999999999999999999", "time:9", "time:inf", "oom", -1, 10**6])
def test_a_moment_that_is_not_there(small, at):
    with pytest.raises(CaptureError, match="There is no"):
        small.snapshot(at)


@pytest.mark.parametrize(
    "at", ["", "peaks", "step", "step:", "step:-1", "step:x", "step:²", "time:", "time:nan", "time:-1", "oom:1"]
)
def test_no_word_for_a_moment(small, at):
    with pytest.raises(ValueError, match="peak, oom, step:N or time:SECONDS"):
        small.snapshot(at)


def test_no_such_device(small):
    with pytest.raises(CaptureError, match="no device 'xpu'.*cuda:0"):
        small.snapshot("peak", "xpu")
    with pytest.raises(CaptureError, match="no device"):
        small.snapshot().tree("xpu")


def test_the_time_of_a_killed_run_goes_to_its_last_event(file):
    c = train(2)
    c.wait(500_000)
    c.step()
    capture = load(file(c.killed()))
    assert capture.end is None
    assert capture.snapshot(f"time:{c.time / 1e6}").step == 3


# ---- what each module holds ----


def test_every_sum_agrees_at_every_moment(file):
    capture = load(file(train(2).end()))
    for moment in range(0, capture.event_count, 7):
        snapshot = capture.snapshot(moment)
        blocks = list(snapshot.blocks())
        for device in capture.devices:
            total = snapshot.totals[device]["Total"]
            assert total == sum(block.bytes for block in blocks if block.device == device)
            assert total == sum(sums["Total"] for sums in snapshot.by_module().get(device, {}).values())
            assert total == sum(root.subtree["Total"] for root in snapshot.tree(device))
            assert total == sum(snapshot.totals[device][word] for word in CATEGORIES)


def test_the_tree(file):
    snapshot = load(file(train(3, blocks=12).end())).snapshot()
    (root,) = snapshot.tree()
    assert root.fqn == "GPT" and root.own["Total"] == 0

    def check(branch):
        assert branch.subtree["Total"] == branch.own["Total"] + sum(child.subtree["Total"] for child in branch.children)
        sizes = [child.subtree["Total"] for child in branch.children]
        assert sizes == sorted(sizes, reverse=True)
        for child in branch.children:
            assert child.fqn == f"{branch.fqn}.{child.name}"
            check(child)

    check(root)
    blocks = next(child for child in root.children if child.name == "h").children
    equal = [branch.name for branch in blocks if branch.subtree == blocks[-1].subtree]
    assert equal == sorted(equal, key=int)
    assert (
        snapshot.by_module(children=True)["cuda:0"]["GPT.h"] == next(c for c in root.children if c.name == "h").subtree
    )


def test_blocks(small):
    first, second, *_ = small.snapshot().blocks()
    assert (first.bytes, first.category, first.module) == (8 * MIB, Category.PARAM, "Model")
    assert (first.phase, first.step, first.made_at, first.device) == ("forward", 1, 0.001, "cuda:0")
    assert second.bytes == 4 * MIB
    assert len(list(small.snapshot().blocks(2))) == 2
    assert [block.bytes for block in small.snapshot().blocks(device="cpu")] == [100]


def test_memory_from_outside(file):
    c = Capture()
    c.add(10, category="Other", outside=True)
    (block,) = load(file(c.end())).snapshot().blocks()
    assert block.outside and block.category == Category.OTH


def test_a_name_of_very_many_parts(file):
    c = Capture()
    c.where("forward", c.module("a." * 100_000 + "b"))
    c.add(10)
    (root,) = load(file(c.end())).snapshot().tree()
    assert root.subtree["Total"] == 10 and root.name == "a"


# ---- what is not whole ----


def test_what_was_lost_is_owned_up_to(file):
    c = train(2)
    c.lost = 12
    c.frame()
    c.add(1)
    capture = load(file(c.end()))
    assert capture.lost == 12 and capture.is_lower_bound
    assert capture.snapshot(capture.event_count).is_lower_bound


def test_a_file_that_was_cut_short_is_read_as_far_as_it_is_good(file):
    data = train(20).end()
    capture = load(file(data[: len(data) * 2 // 3]))
    assert capture.end is None and 1 < capture.last_step < 20
    assert capture.snapshot().totals["cuda:0"]["Total"] == capture.peaks["cuda:0"].bytes


def test_a_chunk_of_an_unknown_kind_is_passed_over(file):
    assert load(file(train(2).end() + chunk(99, b"tomorrow"))).last_step == 2


# ---- the package ----


def test_every_public_name_is_there():
    for name in modscope.__all__:
        assert getattr(modscope, name) is not None
    assert set(modscope.__all__) <= set(dir(modscope))
    assert modscope.load.__doc__ and modscope.record.__doc__


def test_no_other_name_is_there():
    with pytest.raises(AttributeError, match="'modscope'.*'nonsense'"):
        modscope.nonsense
    with pytest.raises(ImportError):
        from modscope import nonsense  # noqa: F401


@pytest.mark.slow
def test_importing_modscope_does_not_import_torch():
    done = run_python("""
        import sys, modscope
        assert not {"torch", "modscope._native"} & set(sys.modules)
        from modscope import MemTracker
        assert "torch" in sys.modules and modscope.MemTracker is MemTracker
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name, module", [("Capture", "modscope._read.load"), ("MemTracker", "modscope._torch.interception")]
)
def test_a_fork_while_another_thread_imports_a_name(name, module):
    """The fork waits for the import: the thread that holds its lock would not be in the child. What the import has
    registered for forks is not undone after this one."""
    done = run_python(f"""
        import os, signal, sys, threading, modscope
        imports, forked = threading.Event(), threading.Event()

        class SlowFinder:
            def find_spec(name, path=None, target=None):
                if name == "{module}":
                    imports.set()
                    forked.wait(0.3)

        sys.meta_path.insert(0, SlowFinder)
        thread = threading.Thread(target=lambda: modscope.{name})
        thread.start()
        imports.wait()
        if (pid := os.fork()) == 0:
            signal.alarm(20)
            os._exit(7 if modscope.{name} else 8)
        forked.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert done.stdout == "7\n" and "Exception ignored" not in done.stderr, done


@pytest.mark.slow
def test_star_import():
    done = run_python("""
        from modscope import *
        assert MemTracker and load and Category
    """)
    assert done.returncode == 0, done.stderr
