"""Each rank of a job writes a capture that says which rank it is, however the rank ends."""

import json
import os
import pathlib
import textwrap

import modscope
import pytest
import warm_python
from modscope.__main__ import main
from modscope._record import capture_file, rank_identity

import torch

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo"
)

TRAIN = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)

    def train(steps):
        net = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(steps):
            net(torch.ones(8, 64)).sum().backward()
            opt.step()
            opt.zero_grad()
"""

# In the first attempt rank 1 runs out of memory, and then rank 0 is killed. In the second one rank 1 finishes, and then
# rank 0 raises. Rank 0 waits for rank 1, and ignores the launcher's SIGTERM until then. The second attempt has no
# process group: its ranks train for themselves, and for a different number of steps.
ENDS = """
    rank, name = int(os.environ["RANK"]), f"pid{os.environ['TORCHELASTIC_RESTART_COUNT']}"

    def wait_for_end_of_rank_1():
        while not os.path.exists(name):
            time.sleep(0.01)
        stat = f"/proc/{open(name).read()}/stat"
        while os.path.exists(stat) and open(stat).read().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)

    def write_pid():
        with open(f"{name}.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{name}.part", name)

    if rank == 1:
        write_pid()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if name == "pid1":
        net = nn.Linear(64, 64)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(1 + 2 * rank):
            net(torch.ones(8, 64)).sum().backward()
            opt.step()
        if rank == 1:
            torch.ones(100_000)
            sys.exit()
        wait_for_end_of_rank_1()
        raise KeyError("no such batch")
    dist.init_process_group("gloo")
    train(2)
    dist.barrier()
    if rank == 1:
        nn.Linear(1, 1)(torch.ones(1, 1).expand(1 << 50, 1).contiguous())
    wait_for_end_of_rank_1()
    import modscope
    while modscope.load("modscope-train.rank0.msc").optimizer_steps < 2:  # until that is written
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def program(folder: pathlib.Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(TRAIN) + textwrap.dedent(text))
    return name


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A job of two ranks, which torchrun starts twice."""
    folder = tmp_path_factory.mktemp("job")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    ran = warm_python.run(
        [*torchrun, "--monitor-interval", "0.1", "-m", "modscope", "run", program(folder, ENDS), "--lr", "3"], folder
    )
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.count("[modscope] wrote") == 3, ran.stderr  # by all but the rank that is killed
    return folder


@needs_gloo
@pytest.mark.slow
def test_attempts_are_kept_apart_and_say_their_rank(restarted):
    names = sorted(path.name for path in restarted.glob("*.msc"))
    assert names == sorted(f"modscope-train.rank{rank}{end}.msc" for rank in range(2) for end in ("", ".attempt1"))
    jobs = set()
    for rank in range(2):
        for attempt, end in ((0, ""), (1, ".attempt1")):
            info = modscope.load(restarted / f"modscope-train.rank{rank}{end}.msc").info
            said = {
                key: info[key]
                for key in ("program", "arguments", "rank", "world", "local_rank", "local_world", "node", "attempt")
            }
            assert said == {
                "program": "train.py", "arguments": "--lr\n3", "rank": str(rank), "world": "2", "local_rank": str(rank),
                "local_world": "2", "node": "0", "attempt": str(attempt),
            }  # fmt: skip
            assert info["host"] == os.uname().nodename
            jobs.add(info["job"])
    assert len(jobs) == 1


@needs_gloo
@pytest.mark.slow
def test_each_rank_says_how_it_ended(restarted):
    killed, out_of_memory = (modscope.load(restarted / f"modscope-train.rank{rank}.msc") for rank in range(2))
    assert killed.end is None and killed.optimizer_steps == 2
    assert "DistributedDataParallel" in killed.snapshot("peak").by_module()["cpu"]
    assert out_of_memory.end["how"] == "exception" and out_of_memory.oom_count == 1
    raised, finished = (modscope.load(restarted / f"modscope-train.rank{rank}.attempt1.msc") for rank in range(2))
    assert raised.end == {"how": "exception", "error": "KeyError: 'no such batch'"} and raised.optimizer_steps == 1
    assert finished.end["how"] == "finished" and finished.optimizer_steps == 3


@needs_gloo
@pytest.mark.slow
def test_summary_of_the_restarted_job(restarted):
    """The latest attempt is shown, and of the earlier one how each rank ended."""
    files = sorted(path.name for path in restarted.glob("*.msc"))
    ran = warm_python.run(["-m", "modscope", "summary", *files], restarted, COLUMNS="400")
    said = ran.stdout
    assert ran.returncode == 0, ran.stderr
    latest, earlier = said.split("Attempt 0 of the launcher: 2 captures")
    assert latest.startswith("train.py --lr 3: 2 ranks, attempt 1\n")
    assert "rank 0: 1 optimizer step" in latest and "rank 1: 3 optimizer steps" in latest
    assert "\nRank 0 failed in step 1: KeyError: 'no such batch'.\n" in latest
    assert "rank 0: Ended by an exception: KeyError: 'no such batch'" in latest and "from rank 0 to rank 1." in latest
    assert (
        "rank 0: No end: it was killed, or still runs" in earlier
        and "rank 1: Ended by an exception" in earlier
        and "an allocation of 4.00 PiB failed" in earlier
    )


@needs_gloo
@pytest.mark.slow
def test_the_attempt_in_which_a_rank_ran_out_of_memory_and_one_was_killed(restarted, capsys, monkeypatch):
    monkeypatch.chdir(restarted)
    files = [f"modscope-train.rank{rank}.msc" for rank in range(2)]
    assert main(["summary", *files, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["failure"].startswith("Rank 1 ran out of memory in step ") and told["failure"].endswith(
        ": an allocation of 4.00 PiB failed on cpu."
    )
    assert [(one["rank"], one["why"]) for one in told["incomplete"]] == [(0, "not closed")]
    assert told["collectives_of"] == [1] and told["mismatches"] == []
    assert main(["report", *files, "-o", "job.html", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)["notes"]
    assert first.startswith("The capture of rank 0 ends ")
    assert all("not compared either" in note for note in others)  # depends on how much of the last step was written


SPAWNED = """
    import torch.multiprocessing as mp

    def work(rank, folder):
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
        train(2)
        dist.destroy_process_group()
        if rank == 1:
            sys.exit(3)
        print("ready", flush=True)
        time.sleep(100)

    if __name__ == "__main__":
        mp.spawn(work, args=(os.getcwd(),), nprocs=2)
"""


@needs_gloo
@pytest.mark.slow
def test_ranks_of_spawned_processes_are_known_from_their_process_group(tmp_path):
    """It is destroyed before they end, and SIGTERM ends rank 0."""
    warm_python.run(["-m", "modscope", "run", program(tmp_path, SPAWNED)], tmp_path)
    found = [modscope.load(path) for path in tmp_path.glob("*.msc")]
    assert [capture.info["world"] for capture in found] == ["1"] * len(found)
    ends = {capture.end["rank"]: capture.end for capture in found if "rank" in (capture.end or {})}
    assert ends["0"] == {"how": "terminated", "rank": "0", "world": "2"}
    assert ends["1"] == {"how": "finished", "status": "3", "rank": "1", "world": "2"}


# ---- without processes ----


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, {"rank": "0", "world": "1"}),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, {"rank": "0", "world": "1"}),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
            {"rank": "5", "world": "8", "local_rank": "1", "node": "1", "host": os.uname().nodename, "job": "none"},
        ),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "-1"},
            {"rank": "5", "world": "8", "host": os.uname().nodename},
        ),
    ],
)
def test_what_the_environment_says(variables, expected):
    assert rank_identity.describe_in_environment(variables) == expected


def test_a_second_run_never_replaces_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, value in {"RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(key, value)
    name = capture_file.name_for(None, "train")
    made = [capture_file.prepare_for_run(name, False, force, "-f") for force in (False, False, True)]
    for _, file in made:
        os.close(file.fd)
    assert [shown for shown, _ in made] == [f"modscope-train.rank3{end}.msc" for end in ("", f".{os.getpid()}", "")]
    with pytest.raises(FileExistsError, match="exists already: choose another name, or overwrite it"):
        capture_file.prepare_for_run(name, True, False, "-f")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert capture_file.name_for("x.msc", "train").plain() == "x.rank3.attempt2.msc"
