"""Python processes that a script starts have a capture each, and the line at the end lists them."""

import os
import subprocess
import sys

import modscope
import pytest
from modscope._record import child_processes
from modscope._record.child_processes import StartedProcess
from modscope._record.last_line import last_line_of_launcher
from modscope._record.options import ScriptOptions
from modscope._record.settings import Settings
from run_helpers import RUN, call, captures, only_capture, run, run_warm, training, write

import torch

# ---- ranks and other processes that use torch ----

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo"
)


@needs_gloo
@pytest.mark.slow
def test_torchrun(tmp_path):
    """The launcher allocates nothing and has no capture. Each rank is stopped after the second step."""
    text = """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("gloo")
        net = DistributedDataParallel(net)
        while True:
            step()
    """
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = run_warm(
        tmp_path, "-o", "x.msc", "--steps", "2", *launch, training(tmp_path, text, with_dynamo=True), "--lr", "3"
    )
    assert ran.status == 0, ran
    assert [path.name for path in captures(tmp_path)] == ["x.rank0.msc", "x.rank1.msc"]
    found = [modscope.load(path) for path in captures(tmp_path)]
    assert [(c.info["rank"], c.info["world"], c.info["program"], c.info["arguments"]) for c in found] == [
        (rank, "2", "train.py", "--lr\n3") for rank in "01"
    ]
    assert [(c.end["how"], c.optimizer_steps) for c in found] == [("stopped", 2)] * 2
    assert "DistributedDataParallel.up" in found[1].snapshot("peak").by_module()["cpu"]
    assert ran.said.startswith(
        "torch.distributed.run itself allocated no PyTorch memory. 2 processes that it started wrote captures: "
    )
    assert (
        all(f"{name} (peak " in ran.said for name in ("x.rank0.msc", "x.rank1.msc"))
        and ran.err.count(b"[modscope]") == 0
    )


WORKERS = """
    import torch.multiprocessing as mp
    from torch.utils.data import DataLoader

    class Items:
        def __len__(self):
            return 2
        def __getitem__(self, i):
            return torch.full((100,), float(i))

    def work(rank, method):
        step()
        print(sum(float(batch.sum()) for batch in DataLoader(Items(), num_workers=1, multiprocessing_context=method)), flush=True)

    if __name__ == "__main__":
        mp.start_processes(work, args=(sys.argv[1],), nprocs=1, start_method=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing(tmp_path, method):
    """The DataLoader's worker imports torch and allocates too, but it is no rank."""
    ran = run(tmp_path, training(tmp_path, WORKERS), method)
    assert ran.status == 0 and ran.out == b"100.0\n" and ran.err == b"", ran
    own, child = sorted(
        (modscope.load(path) for path in captures(tmp_path)), key=lambda capture: capture.optimizer_steps
    )
    assert (own.optimizer_steps, child.optimizer_steps) == (0, 1)
    assert child.end["how"] == "finished" and child.info["program"] == "train.py"
    name = f"modscope-train.{child.info['pid']}.msc"
    assert f"A process that it started wrote a capture too: {name} (peak " in ran.said
    assert {path.name for path in captures(tmp_path)} == {
        f"modscope-train.{one.info['pid']}.msc" for one in (own, child)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "[sys.executable, 'child.py']",
        pytest.param(
            "['./child.py']",
            marks=pytest.mark.skipif(" " in sys.executable, reason="a #! line cannot name a path with a space"),
        ),
    ],
)
def test_a_launcher_of_another_script(tmp_path, words):
    """It does not import torch, and passes an environment of its own. A file that begins with #! is known as Python,
    too. The exit status stays."""
    child = training(tmp_path, "step(); sys.exit(3)", "child.py")
    (tmp_path / child).write_text(f"#!{sys.executable}\n" + (tmp_path / child).read_text())
    (tmp_path / child).chmod(0o755)
    write(
        tmp_path,
        f"import os, subprocess, sys; sys.exit(subprocess.run({words}, env={{**os.environ, 'MINE': '1'}}).returncode)",
    )
    ran = run(tmp_path, "script.py")
    (path,) = captures(tmp_path)
    assert ran.status == 3 and ran.out == ran.err == b""
    assert modscope.load(path).end == {"how": "finished", "status": "3"} and path.name.startswith("modscope-child.")
    assert ran.said.startswith(
        f"script.py itself did not import torch. A process that it started wrote a capture: {path.name} (peak "
    )
    assert ran.said.endswith(f"See it:  modscope summary {path.name}\n")


@pytest.mark.slow
def test_peaks_without_captures(tmp_path):
    training(tmp_path, "step()", "child.py")
    write(tmp_path, "import subprocess, sys; subprocess.run([sys.executable, 'child.py'])")
    ran = run(tmp_path, "--no-capture", "script.py")
    assert ran.status == 0 and captures(tmp_path) == []
    assert (
        "A process that it started were" not in ran.said
        and " was tracked: process " in ran.said
        and "(peak " in ran.said
    )


# ---- processes that do not use it ----


@pytest.mark.slow
def test_a_script_that_allocates_nothing(tmp_path):
    write(tmp_path, "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', 'print(1)'])")
    ran = run_warm(tmp_path, "script.py")
    assert ran.status == 0 and ran.out == b"1\n" and ran.err == b"" and captures(tmp_path) == []
    assert (
        ran.said.startswith("script.py allocated no PyTorch memory, so no capture was written. ")
        and "doctor" not in ran.said
    )


def test_another_version_of_python_is_left_alone(tmp_path):
    """It cannot import the extension. Its environment is as without modscope."""
    variables = {"MODSCOPE_RUN": "2.7 {}", "PYTHONPATH": os.pathsep.join([child_processes.START, "mine"])}
    show = "import os, sys; print('modscope' in sys.modules, os.environ.get('MODSCOPE_RUN'), os.environ['PYTHONPATH'])"
    done = subprocess.run(
        [sys.executable, "-c", show], env={**os.environ, **variables}, cwd=tmp_path, capture_output=True
    )
    assert done.stdout == b"False None mine\n" and done.stderr == b""


# ---- names ----


def settings(folder, force=False, output="out.msc"):
    options = ScriptOptions(["launch.py"], force=force)
    return Settings(options, 0, started=[str(folder), output, "launch"], began=1e9)


def new_name(it):
    name, file = it.new_started_file()
    os.close(file.fd)
    return name


@pytest.mark.slow
def test_a_python_that_ignores_our_sitecustomize_has_its_own_environment(tmp_path):
    text = """
        import os, subprocess, sys, torch
        torch.ones(9)
        show = "import os; print('MODSCOPE_RUN' in os.environ, '_record/start' in os.environ.get('PYTHONPATH', ''))"
        for options in [["-I"], ["-E"], ["-S"], ["-X", "utf8", "-BI"], ["-Wignore", "-sE"]]:
            words = [sys.executable, *options, "-c", show]
            subprocess.run(words)
            os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)
    """
    ran = run(tmp_path, write(tmp_path, text))
    assert ran.out.splitlines() == [b"False False"] * 10, ran


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        (["train.py", "-I"], True),
        (["-m", "train", "-E"], True),
        (["-mtrain", "-E"], True),
        (["-cprint('-I')", "-I"], True),
        (["-W", "-I", "train.py"], True),
        (["--check-hash-based-pycs", "always", "train.py", "-S"], True),
        (["-", "-S"], True),
        ([], True),
        (["-uI", "train.py"], False),
        (["-Xdev", "-W", "error", "-S", "train.py"], False),
    ],
)
def test_only_pythons_own_options_decide(options, reads):
    assert child_processes._reads_environment([os.fsencode(word) for word in options]) is reads


def test_a_rank_that_is_started_again_has_another_capture(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for force in (False, True):
        it = settings(tmp_path, force=force)
        (tmp_path / "out.rank1.msc").unlink(missing_ok=True)
        assert [new_name(it), new_name(it)] == ["out.rank1.msc", f"out.rank1.{os.getpid()}.msc"]
        (tmp_path / f"out.rank1.{os.getpid()}.msc").unlink()
    os.utime(tmp_path / "out.rank1.msc", (1e8, 1e8))  # of an earlier run
    assert new_name(settings(tmp_path, force=True)) == "out.rank1.msc"
    assert new_name(settings(tmp_path)) == f"out.rank1.{os.getpid()}.msc"


@pytest.mark.parametrize(
    "output, name", [("out.msc", "out.{}.msc"), ("", "modscope-launch.{}.msc"), ("sub/x", "sub/x.{}")]
)
def test_a_process_without_a_rank_has_its_id_in_the_name(tmp_path, monkeypatch, output, name):
    monkeypatch.delenv("RANK", raising=False)
    (tmp_path / "sub").mkdir()
    assert new_name(settings(tmp_path, output=output)) == name.format(os.getpid())


# ---- the line ----

A, B = StartedProcess(11, "a.rank0.msc", "/a", "peak 2.00 GiB on cuda:0"), StartedProcess(12, "a b.msc", "/b")


@pytest.mark.parametrize(
    "others, started, line",
    [
        ([], False, "go.py did not import torch, so no capture was written."),
        (
            [],
            True,
            "go.py did not import torch, so no capture was written. "
            "Processes that it started did not either, or are no Python: start those with modscope run.",
        ),
        (
            [A, B],
            True,
            "go.py itself did not import torch. 2 processes that it started wrote captures: a.rank0.msc (peak "
            "2.00 GiB on cuda:0), "
            "'a b.msc'. See them:  modscope report a.rank0.msc 'a b.msc'",
        ),
        (
            [StartedProcess(11, "", "", error="torch 2.5 or newer is needed")] * 3,
            True,
            "go.py itself did not import torch. 3 processes that it started could not be recorded: torch 2.5 or "
            "newer is needed.",
        ),
        (
            [StartedProcess(number, "", "", "peak 1 B on cpu") for number in range(10)],
            True,
            "go.py itself did not import torch. 10 processes that it started were tracked: "
            + ", ".join(f"process {number} (peak 1 B on cpu)" for number in range(8))
            + ", and 2 more.",
        ),
    ],
)
def test_lines_of_launchers(others, started, line):
    assert last_line_of_launcher("go.py", "did not import torch", others, started) == line


def test_a_list_of_captures_is_that_of_its_process(tmp_path):
    listed = child_processes.new_list()
    if listed is None:
        pytest.skip("this system has no files in memory")
    listed.add(A)
    listed.add(A._replace(peak="peak 1 B on cpu"))
    listed.add(B._replace(dropped=True))
    assert listed.read() == [A._replace(peak="peak 1 B on cpu")]
    os.close(listed.fd)
    other = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    if other != listed.fd:
        os.dup2(other, listed.fd)
    listed.add(A)  # the program has another file under this number
    assert listed.read() == [] and (tmp_path / "mine").read_bytes() == b""
    os.close(listed.fd)


# ---- forked processes, which never touch the script's capture, and have their own if asked ----


FORKS = """
    import multiprocessing, os
    from torch.utils.data import DataLoader

    class Items:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return torch.full((100,), float(i))

    def child(megabytes):
        kept = torch.ones(megabytes * 2**18)
        step()

    if __name__ == "__main__":
        print(sum(float(batch.sum()) for batch in DataLoader(Items(), num_workers=2)))
        process = multiprocessing.get_context("fork").Process(target=child, args=(50,))
        process.start()
        process.join()
        print(process.exitcode, flush=True)
        pid = os.fork()
        if pid == 0:
            child(60)
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        step()
"""


EXPECTED = b"600.0\n0\n5\n"


@pytest.mark.slow
def test_forked_children_leave_the_capture_alone(tmp_path):
    ran = run_warm(tmp_path, training(tmp_path, FORKS))
    assert ran.status == 0 and ran.out == EXPECTED and ran.err == b"" and ran.said.startswith("wrote ")
    capture = only_capture(tmp_path)
    assert capture.peaks["cpu"].bytes < 40 * 2**20 and capture.optimizer_steps == 1
    assert capture.end["how"] == "finished" and capture.damaged == 0


@pytest.mark.slow
def test_forked_children_are_followed(tmp_path):
    """Two workers, a process and a fork, beside the script itself; one line is said."""
    ran = run_warm(tmp_path, "--follow-fork", "-o", "all.msc", training(tmp_path, FORKS))
    assert ran.status == 0 and ran.out == EXPECTED and ran.err == b"" and ran.said.startswith("wrote all.msc ")
    found = {path: modscope.load(path) for path in captures(tmp_path)}
    own = found.pop(tmp_path / "all.msc")
    assert own.optimizer_steps == 1 and own.peaks["cpu"].bytes < 40 * 2**20
    assert {path.name for path in found} == {f"all.{capture.info['pid']}.msc" for capture in found.values()}
    assert all(capture.end["how"] == "finished" and capture.damaged == 0 for capture in found.values())
    large = sorted(capture.peaks["cpu"].bytes // 2**20 for capture in found.values())[-2:]
    assert len(found) == 4 and 50 <= large[0] < 60 <= large[1] < 70


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python warns of threads at a fork from 3.12 on")
def test_a_fork_causes_no_warning(tmp_path):
    """The thread that writes the capture does not exist during a fork."""
    text = """
        import os
        for _ in range(20):
            step()
            if os.fork() == 0:
                os._exit(0)
            os.wait()
    """
    name = training(tmp_path, text)
    plain = call([sys.executable, "-W", "always::DeprecationWarning:__main__", name], tmp_path)
    ran = call([sys.executable, "-W", "always::DeprecationWarning:__main__", *RUN[1:], name], tmp_path)
    # Where torch itself has threads, Python warns of each fork without modscope, too.
    assert ran.status == plain.status == 0 and ran.err.count(b"Warning") == plain.err.count(b"Warning")
    assert ran.said.startswith("wrote ")


@pytest.mark.slow
def test_a_child_that_is_forked_before_torch_is_imported(tmp_path):
    name = write(
        tmp_path,
        """
        import os
        pid = os.fork()
        import torch
        kept = torch.ones(1000 if pid else 10**6)
        if pid:
            os.waitpid(pid, 0)
        """,
    )
    ran = run(tmp_path, "--follow-fork", name)
    assert ran.status == 0 and ran.err == b"" and ran.said.startswith("wrote ")
    assert sorted(modscope.load(path).peaks["cpu"].bytes > 10**6 for path in captures(tmp_path)) == [False, True]
