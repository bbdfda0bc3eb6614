"""`modscope.record`: the file has MemTracker's figures to the byte, and the program continues if the file fails."""

import os
import subprocess
import sys
import textwrap
import threading

import modscope
import pytest
import warm_python
from helpers import INTERCEPTION, Boom, in_child, needs_interception
from memory_helpers import every_source
from modscope import MemTracker, load, record
from modscope.__main__ import main
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 30))
        self.head = nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)).mean((2, 3)))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(40, 40), nn.GELU()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


MODELS = {
    "mlp": (Net, (7, 30)),
    "cnn": (Convolutions, (2, 3, 12, 12)),
    "checkpointed": (Checkpointed, (9, 40)),
    "transformer": (Attention, (2, 6, 16)),
}


def train(model: nn.Module, shape: tuple[int, ...], steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.randn(shape)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def words(sums: dict) -> dict:
    return {str(key): value for key, value in sums.items() if value}


def modules_of(snapshot: dict) -> dict:
    """By device, module and category, without zeros."""
    return {str(device): {fqn: words(sums) for fqn, sums in found.items()} for device, found in snapshot.items()}


@every_source
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_memtrackers_by_module_and_category(tmp_path, name, source):
    kind, shape = MODELS[name]
    with record(tmp_path / "x.msc", source=source), MemTracker(source=source) as mt:
        model = kind()
        train(model, shape)
        mt.peak  # claims what it holds
    capture = load(tmp_path / "x.msc")
    assert not capture.is_lower_bound and capture.lost == capture.damaged == 0
    for device, peak in mt.peak.items():
        captured = capture.peaks[str(device)]
        assert (captured.bytes, captured.step) == (peak.bytes, peak.step)
        assert (captured.phase, captured.module) == (peak.phase, peak.module)
    got, wanted = capture.snapshot("peak").by_module(), mt.get_module_snapshot("peak")
    assert modules_of(got)["cpu"] == modules_of(wanted)["cpu"]


@pytest.mark.parametrize("name", MODELS)
def test_a_run_of_its_own_has_the_same_peak_as_a_tracker_of_its_own(tmp_path, name):
    kind, shape = MODELS[name]

    def run() -> None:
        torch.manual_seed(0)
        train(kind(), shape)

    run()  # so that what torch allocates only once is allocated
    with record(tmp_path / "x.msc"):
        run()
    with MemTracker() as mt:
        run()
    capture = load(tmp_path / "x.msc")
    assert {device: captured.bytes for device, captured in capture.peaks.items()} == {
        str(device): peak.bytes for device, peak in mt.peak.items()
    }


def test_at_the_end_the_file_says_what_the_tracker_says(tmp_path):
    with record(tmp_path / "x.msc"), MemTracker() as mt:
        model = Net()
        optimizer = train(model, (7, 30))
        model(torch.randn(7, 30)).sum().backward()
        wanted, now = mt.get_module_snapshot(), mt.get_tracker_snapshot()
    capture = load(tmp_path / "x.msc")
    # The end of the recording frees some blocks, so the last moment before it is compared.
    snapshot = capture.snapshot(capture.event_count)
    assert modules_of(snapshot.by_module()) == modules_of(wanted)
    assert words(snapshot.totals["cpu"]) == words(now[torch.device("cpu")])
    assert optimizer


def test_parameters_made_before_the_first_forward_have_their_owner_from_the_beginning(tmp_path):
    with record(tmp_path / "x.msc"):
        model = Net()
        model(torch.randn(7, 30))
    first = load(tmp_path / "x.msc")
    born = [event.number for event in first.events("add") if event.bytes == 50 * 30 * 4]
    held = {block.module: block.category for block in first.snapshot(born[-1] + 1).blocks()}
    assert held["Net.body.0"] == "Parameter" and held["Net.body.2"] == "Parameter"


def test_a_model_that_is_never_called_owns_its_parameters_all_the_same(tmp_path):
    with record(tmp_path / "x.msc"):
        model = Net()
    sums = load(tmp_path / "x.msc").snapshot("peak").by_module()["cpu"]
    assert sums["Net.head"]["Parameter"] == (30 * 5 + 5) * 4
    assert model


def test_a_model_made_before_and_never_called_is_not_in_it(tmp_path):
    model = nn.Linear(1000, 1000)
    with record(tmp_path / "x.msc"):
        kept = torch.ones(100)
    assert load(tmp_path / "x.msc").peaks["cpu"].bytes == 400
    assert model is not None and kept is not None


@pytest.mark.slow
def test_after_many_events_every_moment_is_right(tmp_path):
    """A seek gives what adding up the events gives, also beyond the first key frames."""
    steps = 5000 if INTERCEPTION else 1000
    with record(tmp_path / "x.msc"):
        model = Net()
        for _ in range(steps):
            model(torch.ones(2, 30)).sum().backward()
    capture = load(tmp_path / "x.msc")
    assert capture.event_count > 40 * steps and capture.damaged == 0
    held, truth = 0, {}
    for event in capture.events("add", "drop"):
        held += event.bytes if event.kind == "add" else -event.bytes
        if event.number % 5003 == 0:
            truth[event.number + 1] = held
    assert {at: sum(sums["Total"] for sums in capture.snapshot(at).totals.values()) for at in truth} == truth
    assert capture.snapshot(f"step:{capture.last_step}").step == capture.last_step


def test_steps_and_phases(tmp_path):
    with record(tmp_path / "x.msc"):
        train(Checkpointed(), (9, 40), steps=4)
    capture = load(tmp_path / "x.msc")
    assert capture.optimizer_steps == 4 and capture.last_step == 4
    assert [step.number for step in capture.steps()] == [0, 1, 2, 3, 4]
    made = {word: phase.blocks for word, phase in capture.phases.items()}
    assert all(made[word] for word in ("forward", "recompute", "backward", "optimizer"))


def test_micro_batches_are_one_step(tmp_path):
    with record(tmp_path / "x.msc"):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            for _ in range(4):
                model(torch.randn(7, 30)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    capture = load(tmp_path / "x.msc")
    assert (capture.last_step, capture.optimizer_steps) == (3, 3)


# ---- as a context manager and a decorator ----


def test_each_call_of_a_decorated_function_has_a_file(tmp_path):
    @record(tmp_path / "x.msc")
    def work(n: int) -> int:
        torch.ones(n)
        return n

    assert [work(10), work(2000)] == [10, 2000]
    assert sorted(os.listdir(tmp_path)) == ["x.2.msc", "x.msc"]
    assert load(tmp_path / "x.2.msc").peaks["cpu"].bytes == 8000


def stats_by_module(tracker: MemTracker) -> dict[str, dict[object, list[object]]]:
    return {stats.mod_fqn: dict(stats.snapshots) for stats in tracker.memory_tracking.values()}


@every_source
def test_a_tracker_inside_a_recording_has_the_stats_that_it_has_alone(tmp_path, source):
    net, x = Net(), torch.randn(4, 30)

    def train() -> None:
        net.zero_grad()
        net(x).sum().backward()

    train()
    with MemTracker(source=source) as alone:
        train()
    with record(tmp_path / "x.msc", source=source):
        train()
        with MemTracker(source=source) as inside:
            train()
            found = stats_by_module(inside)
        train()
    assert stats_by_module(alone) == found == stats_by_module(inside)
    assert set(found) == {"Net", "Net.body", "Net.body.0", "Net.body.1", "Net.body.2", "Net.head"}
    assert load(tmp_path / "x.msc").last_step == 3


def test_recordings_may_be_nested_and_overlap(tmp_path):
    outer, inner = record(tmp_path / "outer.msc"), record(tmp_path / "inner.msc")
    outer.__enter__()
    kept = torch.ones(1000)
    inner.__enter__()
    more = torch.ones(2000)
    outer.__exit__(None, None, None)
    del more
    most = torch.ones(5000)
    inner.__exit__(None, None, None)
    # 1000 floats were allocated before the second recording began, but no known object holds them.
    assert load(tmp_path / "outer.msc").peaks["cpu"].bytes == 12000
    assert load(tmp_path / "inner.msc").peaks["cpu"].bytes in (20000, 24000)
    assert kept is not None and most is not None


def test_what_became_of_it(tmp_path):
    with record(tmp_path / "x.msc") as recording:
        train(Net(), (7, 30))
    outcome = recording.outcome
    assert outcome.bytes == os.path.getsize(tmp_path / "x.msc")
    assert outcome.events == load(tmp_path / "x.msc").event_count - 1  # they are numbered from 1
    assert (outcome.lost, outcome.error, outcome.out_of_memory) == (0, None, 0)


def test_an_exception_passes_and_the_file_is_whole(tmp_path):
    with pytest.raises(Boom), record(tmp_path / "x.msc"):
        torch.ones(10)
        raise Boom("that")
    assert load(tmp_path / "x.msc").end == {"how": "exception", "error": "Boom: that"}


def test_an_exception_without_a_text_still_reaches_the_program(tmp_path):
    class Odd(RuntimeError):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    for number, error in enumerate((Odd(), ValueError("x\udcff"))):
        with pytest.raises(type(error)) as caught, record(tmp_path / f"{number}.msc") as recording:
            raise error
        assert caught.value is error and recording.outcome.error is None
        assert load(tmp_path / f"{number}.msc").end["how"] == "exception"


@pytest.mark.slow
def test_a_program_that_closes_our_file_keeps_its_own(tmp_path):
    ran = run_here(
        tmp_path,
        """
        with record("x.msc") as r:
            torch.ones(10)
            r._recording._capture.flush()
            os.closerange(3, 70000)
            mine = [open(f"{n}.txt", "w") for n in range(100)]
            import resource
            least = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            least = least - 60 if least < 4096 else 4000
            os.dup2(mine[0].fileno(), least)
            for _ in range(100):
                torch.ones(10)
        os.fstat(least)
        print(r.outcome.lost > 0, r.outcome.error, os.path.getsize("0.txt"))
        """,
    )
    assert ran.stdout == "True Bad file descriptor 0\n", ran.stderr


FORKING = """
import os, sys

def count():
    return len(os.listdir("/proc/self/task"))

counts = []
os.register_at_fork(before=lambda: counts.append(count()))  # the hook that is registered first runs last
import torch
torch.set_num_threads(1)
import modscope
def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

with modscope.MemTracker():
    fork()  # some of torch's threads end here
before = count()
counts.clear()
with modscope.record(sys.argv[1]) as recording:
    kept = [torch.ones(10)]
    for _ in range(5):
        fork()
        kept.append(torch.ones(10))
    during = count()
print([each - before for each in counts], during - before, recording.outcome.lost)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no list of threads here")
def test_a_fork_finds_no_thread_of_ours(tmp_path):
    """From 3.12 on Python warns of a fork in a process with several threads."""
    words = [sys.executable, "-c", FORKING, str(tmp_path / "x.msc")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert ran.stdout == "[0, 0, 0, 0, 0] 1 0\n", ran
    capture = load(tmp_path / "x.msc")
    assert capture.snapshot(capture.event_count).totals["cpu"]["Total"] == 240


def test_a_file_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "x.msc").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="is not a capture"), record(tmp_path / "x.msc", overwrite):
            raise AssertionError
    assert (tmp_path / "x.msc").read_text() == "mine"
    (tmp_path / "x.msc").write_text("MODSCOPE")
    with pytest.raises(FileExistsError, match="overwrite=True"), record(tmp_path / "x.msc"):
        raise AssertionError
    with record(tmp_path / "x.msc", overwrite=True):
        torch.ones(10)
    assert load(tmp_path / "x.msc").peaks["cpu"].bytes == 40


@pytest.mark.parametrize("bad", [None, 3, "", b"x.msc"])
def test_bad_names(bad):
    with pytest.raises(TypeError):
        record(bad)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"), record(tmp_path / "no" / "x.msc"):
        raise AssertionError


def test_a_recording_is_entered_once(tmp_path):
    recording = record(tmp_path / "x.msc")
    with recording, pytest.raises(RuntimeError, match="begun already"):
        recording.__enter__()
    with pytest.raises(RuntimeError, match="not begun"):
        recording.__exit__(None, None, None)


# ---- when the file fails ----


BEGIN = "import os, sys, torch\nfrom modscope import load, record\n"


def run_here(folder, text: str) -> subprocess.CompletedProcess:
    return warm_python.run(["-c", BEGIN + textwrap.dedent(text)], folder)


def test_a_file_that_takes_nothing_is_named(tmp_path):
    ran = run_here(
        tmp_path,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            record("x.msc").__enter__()
        except OSError as error:
            print(error)
        """,
    )
    assert ran.stdout == "x.msc cannot be written: File too large\n" and not os.listdir(tmp_path), ran


@pytest.mark.slow
def test_a_full_disk_costs_events_and_nothing_else(tmp_path, capsys):
    ran = run_here(
        tmp_path,
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
        with record("x.msc") as r:
            for _ in range(300):
                y = model(torch.ones(4, 8))
                if _ % 100 == 0:
                    r._recording._capture.flush()
            torch.ones(1_000_000)
        print(r.outcome.lost > 0, r.outcome.error, float(y.sum()) == float(model(torch.ones(4, 8)).sum()))
        """,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("True File too large True")
    capture = load(tmp_path / "x.msc")
    assert capture.bytes <= 40_000 and capture.damaged == 0
    assert capture.event_count > 0 and capture.lost > 0 and capture.is_lower_bound
    assert main(["summary", str(tmp_path / "x.msc")]) == 0 and "at least" in capsys.readouterr().out.lower()


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_what_it_did_before(tmp_path):
    """It is written without anything that happens later."""
    ran = run_here(
        tmp_path,
        """
        import time
        with record("x.msc"):
            kept = torch.ones(1000)
            while not load("x.msc").peaks:
                time.sleep(0.05)
            os.kill(os.getpid(), 9)
        """,
    )
    assert ran.returncode == -9
    capture = load(tmp_path / "x.msc")
    assert capture.end is None and capture.peaks["cpu"].bytes == 4000


@pytest.mark.slow
def test_a_recording_that_nobody_ended_is_whole_when_python_ends(tmp_path):
    text = 'r = record("x.msc"); r.__enter__(); kept = torch.ones(1000)'
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + text], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0 and not ran.stderr
    assert load(tmp_path / "x.msc").peaks["cpu"].bytes == 4000


def test_a_forked_child_never_writes_to_it(tmp_path):
    with record(tmp_path / "x.msc") as recording:
        torch.ones(1000)

        def work() -> None:
            torch.ones(1_000_000)
            with record(tmp_path / "child.msc"):
                torch.ones(5000)

        in_child(work)
        torch.ones(2000)
    assert load(tmp_path / "x.msc").peaks["cpu"].bytes == 8000
    assert recording.outcome.lost == 0
    assert load(tmp_path / "child.msc").peaks["cpu"].bytes == 20000


def test_threads(tmp_path):
    def work() -> None:
        for _ in range(20):
            train(Net(), (7, 30), steps=1)

    with record(tmp_path / "x.msc") as recording:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    capture = load(tmp_path / "x.msc")
    assert recording.outcome.lost == 0 and capture.damaged == 0
    assert len({event.bytes for event in capture.events("thread") if event.bytes}) >= 4
    assert sum(capture.snapshot(capture.event_count).totals["cpu"].values()) == 0


@pytest.mark.slow
@needs_interception
def test_a_tracker_with_another_source_does_not_fail_because_of_modscope_run(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nfrom modscope import MemTracker\n"
        "with MemTracker(source='dispatcher') as mt:\n    x = torch.ones(1000)\n    mt.peak\n"
        "print(sum(p.bytes for p in mt.peak.values()))\n"
    )
    ran = warm_python.run(["-m", "modscope", "run", "-o", "x.msc", "train.py"], tmp_path)
    assert ran.returncode == 0 and ran.stdout == "4000\n", ran.stderr
    assert "another source" in load(tmp_path / "x.msc").end["error"]


def test_load_and_record_are_public():
    assert modscope.record is record and modscope.load is load
