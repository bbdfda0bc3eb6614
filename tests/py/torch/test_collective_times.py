"""How long collectives of real runs take, over gloo: compared with clocks that the program reads itself."""

import json

import modscope
import pytest
import warm_python
from helpers import needs_interception
from modscope.__main__ import main
from perfetto_readers import READ

pytestmark = [needs_interception, pytest.mark.slow]

PAUSE = 0.3
ROUNDS = 3  # On a loaded machine a rank may be late by more than the pause. That is not so in each of these.
SCRIPT = """
import json, os, sys, threading, time, torch, torch.distributed as dist, modscope
torch.set_num_threads(1)
rank, folder, PAUSE = int(os.environ["RANK"]), sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + folder + "/store", rank=rank, world_size=2)
x, rows = torch.ones(1000), [torch.ones(1000), torch.ones(1000)]
clocks = {}

def timed(name, call):
    begin = time.perf_counter()
    call()
    clocks.setdefault(name, []).append(time.perf_counter() - begin)

def overlap():
    work = dist.all_reduce(x, async_op=True)
    time.sleep(PAUSE)  # it ends long before
    work.wait()

def several():
    for work in [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(600)]:
        work.wait()

def late(call):
    dist.barrier()
    if rank == 1:
        time.sleep(PAUSE)
    call()

dist.barrier()
before = dist.all_reduce(x, async_op=True)  # launched before the recording
with modscope.record(f"{folder}/rank{rank}.msc"):
    before.wait()
    for _ in range(int(sys.argv[3])):
        late(lambda: timed("all_reduce", lambda: dist.all_reduce(x)))
        timed("overlap", overlap)
        late(lambda: timed("message", lambda: dist.recv(x, 1) if rank == 0 else dist.send(x, 0)))
        late(lambda: timed("all_gather", lambda: dist.all_gather(rows, x)))
        late(lambda: timed("barrier", lambda: dist.barrier()))
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.uint16))
    except RuntimeError:
        clocks["raised"] = True
    several()
    unwaited = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
timed("after", lambda: dist.all_reduce(x))
unwaited.wait()
dist.destroy_process_group()
print(json.dumps(clocks))
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The captures of both ranks, and what their own clocks said."""
    folder = tmp_path_factory.mktemp("times")
    (folder / "times.py").write_text(SCRIPT)
    clocks = [
        json.loads(out.splitlines()[-1])  # gloo of torch 2.8 prints to stdout, too
        for out in warm_python.run_ranks(["times.py", str(folder), str(PAUSE), str(ROUNDS)], folder, 2)
    ]
    return [(folder / f"rank{rank}.msc", clocks[rank]) for rank in range(2)]


def each_round(found, kind, nth, of):
    """The nth of so many collectives of the kind in each round."""
    return [one for one in found if one.kind == kind][nth : of * ROUNDS : of]


def test_times_are_those_that_the_program_measured(ranks):
    """Rank 0 waits for rank 1 in each of these."""
    for rank, (file, clocks) in enumerate(ranks):
        found = modscope.load(file).collectives()
        assert clocks["raised"]
        for name, those in [
            ("all_reduce", each_round(found, "all_reduce", 0, 2)),
            ("message", each_round(found, "send" if rank else "recv", 0, 1)),
            ("all_gather", each_round(found, "all_gather", 0, 1)),
            ("barrier", each_round(found, "barrier", 4, 5)),
        ]:
            times = [(one.seconds, clock) for one, clock in zip(those, clocks[name], strict=True)]
            assert all(seconds is not None and seconds <= clock for seconds, clock in times), (rank, name, times)
            if rank == 0:
                assert any(seconds > 0.5 * PAUSE and clock - seconds < 0.5 * PAUSE for seconds, clock in times), (
                    name,
                    times,
                )
        assert {one.timing for one in found if one.kind in ("send", "recv")} == {"waited", None}
        assert {one.timing for one in found if one.kind in ("all_gather", "barrier")} == {"executed"}


def test_an_asynchronous_collective_takes_as_long_as_it_runs(ranks):
    for file, clocks in ranks:
        times = [one.seconds for one in each_round(modscope.load(file).collectives(), "all_reduce", 1, 2)]
        assert min(clocks["overlap"]) > PAUSE and None not in times and 0 < min(times) < PAUSE / 2, (times, clocks)


def test_what_ran_before_or_raised_or_was_not_waited_for_has_no_time(ranks):
    for rank, (file, _) in enumerate(ranks):
        found = modscope.load(file).collectives()
        assert found[0].kind == "barrier"  # what was launched before the recording is no part of it
        raised = next(one for one in found if one.kind == "all_reduce" and one.bytes == 6)
        assert raised.seconds is None
        assert found[-1].kind == ("recv" if rank else "send") and found[-1].seconds is None
        # Many at a time: nearly all are found again, each once.
        many = [one for one in found if one.bytes == 40]
        assert len(many) == 600 and sum(one.seconds is not None for one in many) > 300
        ends = [one.time + one.seconds for one in many if one.seconds is not None]
        assert max(ends) <= modscope.load(file).duration + 0.001


def test_summary_and_trace_show_them(ranks, tmp_path, capsys):
    file = ranks[0][0]
    capture = modscope.load(file)
    assert main(["summary", *(str(file) for file, _ in ranks)]) == 0
    out = capsys.readouterr().out
    assert "time" in next(line for line in out.splitlines() if line.startswith("Collectives of all ranks"))
    assert main(["summary", str(file)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Collectives"))
    assert "time" in row.split()
    for reader in READ:
        target = tmp_path / f"{reader}.pftrace"
        assert main(["export", str(file), "-o", str(target)]) == 0
        shown = READ[reader](target).on("collectives")
        expected = sorted(
            (round(one.time * 1e6), round((one.seconds or 0) * 1e9), one.timing) for one in capture.collectives()
        )
        assert sorted((slice.ts // 1000, slice.dur, slice.args.get("timing")) for slice in shown) == expected
