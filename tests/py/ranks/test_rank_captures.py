"""Each rank of a job writes a capture that says which rank it is, however the rank ends."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

import modscope
from modscope import _files, _ranks_identity

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

# In the first attempt rank 1 runs out of memory, then rank 2 raises, then rank 0 is killed. Each waits for the one
# before, and ignores the launcher's SIGTERM until then.
ENDS = """
    def wait_for_end_of(rank):
        while not os.path.exists(f"pid{rank}"):
            time.sleep(0.01)
        pid = int(open(f"pid{rank}").read())
        while os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.01)

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":  # without a group: each rank trains for itself
        net = nn.Linear(64, 64)
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(1 + 2 * (os.environ["RANK"] == "2")):
            net(torch.ones(8, 64)).sum().backward()
            opt.step()
        if os.environ["RANK"] == "1":
            torch.ones(100_000)
        sys.exit()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train(2)
    if rank != 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"pid{rank}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"pid{rank}.part", f"pid{rank}")
    dist.barrier()
    if rank == 1:
        nn.Linear(1, 1)(torch.ones(1, 1).expand(1 << 50, 1).contiguous())
    if rank == 2:
        wait_for_end_of(1)
        raise KeyError("no such batch")
    wait_for_end_of(2)
    time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def program(folder: pathlib.Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(TRAIN) + textwrap.dedent(text))
    return name


def launch(folder: pathlib.Path, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, timeout=180, env=environment)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A job of three ranks whose first attempt fails, and whose second one succeeds."""
    folder = tmp_path_factory.mktemp("job")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--max-restarts", "1"]
    ran = launch(folder, *torchrun, "--monitor-interval", "0.1", "-m", "modscope", "run", program(folder, ENDS), "--lr", "3")
    assert ran.returncode == 0, ran.stderr.decode()
    return folder


@needs_gloo
@pytest.mark.slow
def test_attempts_are_kept_apart_and_say_their_rank(restarted):
    names = sorted(path.name for path in restarted.glob("*.msc"))
    assert names == sorted(f"modscope-train.rank{rank}{end}.msc" for rank in range(3) for end in ("", ".attempt1"))
    jobs = set()
    for rank in range(3):
        for attempt, end in ((0, ""), (1, ".attempt1")):
            info = modscope.load(restarted / f"modscope-train.rank{rank}{end}.msc").info
            said = {key: info[key] for key in ("program", "arguments", "rank", "world", "local_rank", "local_world", "node", "attempt")}
            assert said == {
                "program": "train.py", "arguments": "--lr\n3", "rank": str(rank), "world": "3", "local_rank": str(rank),
                "local_world": "3", "node": "0", "attempt": str(attempt),
            }  # fmt: skip
            assert info["host"] == os.uname().nodename
            jobs.add(info["job"])
    assert len(jobs) == 1


@needs_gloo
@pytest.mark.slow
def test_each_rank_says_how_it_ended(restarted):
    killed, out_of_memory, raised = (modscope.load(restarted / f"modscope-train.rank{rank}.msc") for rank in range(3))
    assert killed.end is None and killed.optimizer_steps == 2
    assert out_of_memory.end["how"] == "exception" and out_of_memory.oom_count == 1
    assert raised.end == {"how": "exception", "error": "KeyError: 'no such batch'"} and raised.oom_count == 0
    steps = [modscope.load(restarted / f"modscope-train.rank{rank}.attempt1.msc").optimizer_steps for rank in range(3)]
    assert steps == [1, 1, 3]


@needs_gloo
@pytest.mark.slow
def test_summary_of_the_restarted_job(restarted):
    """The latest attempt is shown, and of the earlier one how each rank ended."""
    files = sorted(path.name for path in restarted.glob("*.msc"))
    ran = launch(restarted, "-m", "modscope", "summary", *files, COLUMNS="400")
    said = ran.stdout.decode()
    assert ran.returncode == 0, ran.stderr
    assert "3 ranks" in said and "attempt 1" in said
    assert "rank 2 (node 0, local rank 2): 3 optimizer steps" in said and "ranks 0-1: 1 optimizer step" in said
    assert "Attempt 0 of the launcher: 3 captures" in said
    assert "rank 0 (node 0, local rank 0): No end: it was killed, or still runs" in said
    assert "rank 2 (node 0, local rank 2): Ended by an exception: KeyError: 'no such batch'" in said
    assert "rank 1 (node 0, local rank 1): Ended by an exception" in said and "an allocation of 4.00 PiB failed" in said


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
    launch(tmp_path, "-m", "modscope", "run", program(tmp_path, SPAWNED))
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
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "-1"}, {"rank": "5", "world": "8", "host": os.uname().nodename}),
    ],
)
def test_what_the_environment_says(variables, expected):
    assert _ranks_identity.describe_in_environment(variables) == expected


def test_a_second_run_never_replaces_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, value in {"RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(key, value)
    name = _files.name_for(None, "train")
    made = [_files.prepare_for_run(name, False, force, "-f") for force in (False, False, True)]
    for _, file in made:
        os.close(file.fd)
    assert [shown for shown, _ in made] == [f"modscope-train.rank3{end}.msc" for end in ("", f".{os.getpid()}", "")]
    with pytest.raises(FileExistsError, match="exists already: choose another name, or overwrite it"):
        _files.prepare_for_run(name, True, False, "-f")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert _files.name_for("x.msc", "train").plain() == "x.rank3.attempt2.msc"
