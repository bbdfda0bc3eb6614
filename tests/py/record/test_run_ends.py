"""However a script ends, its capture is whole, or good up to the last second."""

import os
import signal
import subprocess
import sys
import textwrap

import modscope
import pytest
from helpers import INTERCEPTION, needs_interception
from modscope._read.summary import describe_end
from run_helpers import (
    RUN,
    WAIT_FOR_CAPTURE,
    captures,
    kill_when_ready,
    only_capture,
    run,
    run_warm,
    start,
    start_warm,
    training,
    write,
)

# some tests start a Python that imports torch; the others have a process that has done so
pytestmark = pytest.mark.slow

FOREVER = """
    step()
    big = torch.ones(3_000_000)
    print("ready", flush=True)
    while True:
        step()
"""


# The folder of the package, which no traceback of the script may name.
PACKAGE = os.fsencode(os.path.dirname(modscope.__file__))


def test_the_end_of_a_training(tmp_path):
    """The line has the capture's name and what the capture itself tells. All from the import of torch on is in it:
    parameters made before the first forward have their owner."""
    ran = run(
        tmp_path,
        training(tmp_path, "step(); step(); big = torch.ones(3_000_000); print(sys.argv)", with_dynamo=True),
        "-o",
        "x",
    )
    (path,) = captures(tmp_path)
    capture = only_capture(tmp_path)
    assert ran.status == 0 and ran.out == b"['train.py', '-o', 'x']\n" and ran.err == b""
    peak = capture.peaks["cpu"]
    assert ran.said.startswith(f"wrote {path.name} (") and ran.said.endswith(f"See it:  modscope summary {path.name}\n")
    assert (peak.step, peak.phase) == (2, "idle")
    assert f"Peak {peak.bytes / 2**20:.2f} MiB on cpu in step 2, outside any module. " in ran.said
    assert (
        capture.end == {"how": "finished"}
        and capture.info["program"] == "train.py"
        and capture.info["arguments"] == "-o\nx"
    )
    assert (capture.last_step, capture.optimizer_steps, capture.lost, capture.damaged) == (2, 2, 0, 0)
    held = capture.snapshot("step:1").by_module()["cpu"]
    assert held["Net.up"]["Parameter"] == 4 * (100 * 1000 + 1000) and held["Net.down"]["Parameter"] == 4 * 1001
    assert held["Net.up"]["Optstate"] >= 2 * held["Net.up"]["Parameter"]


def test_an_exception(tmp_path):
    ran = run(tmp_path, training(tmp_path, "step(); net(torch.ones(3, 3))"))
    assert ran.status == 1 and ran.err.startswith(b"Traceback") and not (INTERCEPTION and PACKAGE in ran.err)
    capture = only_capture(tmp_path)
    assert capture.end["how"] == "exception" and "mat1 and mat2" in capture.end["error"]


@needs_interception
def test_out_of_memory(tmp_path):
    """The story stands on stderr once, above the traceback, and the line says how to see that moment."""
    ran = run_warm(tmp_path, training(tmp_path, "step(); torch.empty(10**15)"))
    before, _, error = ran.err.partition(b"Traceback ")
    assert ran.status == 1 and b"DefaultCPUAllocator" in error
    assert before.startswith(b"[modscope] out of memory: ") and ran.err.count(b"out of memory: ") == 1
    assert "modscope tree " in ran.said and ran.said.endswith(" --at oom\n")
    capture = only_capture(tmp_path)
    assert capture.oom_count == 1 and capture.end["error"].startswith("RuntimeError: ")


@needs_interception
def test_out_of_memory_with_a_hook_of_the_scripts_own(tmp_path):
    """It gets the exception with its story."""
    text = """
        import sys
        sys.excepthook = lambda kind, error, trace: print(error.__notes__[0].splitlines()[0])
        net.up(torch.ones(1, 100).expand(10**12, -1))
    """
    ran = run_warm(tmp_path, training(tmp_path, text))
    assert ran.status == 1 and b"[modscope] out of memory: " in ran.out


def test_steps(tmp_path):
    """Also where the script catches all that it can, and runs what it must at its end."""
    text = """
        import atexit
        atexit.register(print, "at exit")
        try:
            for i in range(9):
                try:
                    print(i)
                    step()
                except BaseException as error:
                    print(repr(error))
        finally:
            print("finally")
    """
    ran = run_warm(tmp_path, "--steps", "3", training(tmp_path, text))
    assert ran.status == 0 and ran.err == b"" and b"".join(ran.out.split()).count(b"SystemExit(0)") == 7
    assert ran.out.endswith(b"finally\nat exit\n")
    capture = only_capture(tmp_path)
    assert capture.end["how"] == "stopped"


def test_steps_of_a_script_that_takes_none(tmp_path):
    """It runs to its end, and is told why."""
    text = """
        with torch.no_grad():
            for _ in range(5):
                net(torch.ones(10, 100))
    """
    ran = run_warm(tmp_path, "--steps", "3", training(tmp_path, text))
    assert ran.status == 0 and ran.said.startswith(
        "--steps did not stop the script, which took no optimizer step or only compiled ones; wrote "
    )
    assert only_capture(tmp_path).last_step == 0


def test_steps_in_a_thread(tmp_path):
    text = """
        import queue, threading
        print("begins")
        def work():
            while True:
                step()
        threading.Thread(target=work).start()
        queue.Queue().get()
    """
    ran = run_warm(tmp_path, "--steps", "2", training(tmp_path, text))
    assert ran.status == 0 and ran.out == b"begins\n" and ran.err == b""
    capture = only_capture(tmp_path)
    assert capture.end == {"how": "stopped", "status": "0", "by": "--steps 2"} and capture.optimizer_steps == 2


def test_steps_in_several_threads(tmp_path):
    """A thread takes its last step while another one, which has taken it, completes the capture."""
    text = """
        import queue, threading
        from modscope._record.record import Recording
        completes, stepped, stop = threading.Event(), threading.Event(), Recording.stop
        def wait_and_stop(*args, **end):
            completes.set()
            assert stepped.wait(60)
            return stop(*args, **end)
        Recording.stop = wait_and_stop
        def first():
            step()
            step()
        def second():
            completes.wait()
            step()
            stepped.set()
        for work in (first, second):
            threading.Thread(target=work).start()
        queue.Queue().get()
    """
    ran = run_warm(tmp_path, "--steps", "2", training(tmp_path, text))
    assert ran.status == 0 and ran.err == b"" and ran.said.startswith("wrote ")
    capture = only_capture(tmp_path)
    assert capture.end == {"how": "stopped", "status": "0", "by": "--steps 2"} and capture.optimizer_steps == 3


def test_leaving_while_another_thread_completes_the_capture(tmp_path):
    text = """
        import os, queue, threading
        from modscope._record.record import Recording
        leaves, stop = threading.Event(), Recording.stop
        def leave():
            leaves.set()
            os._exit(7)
        def start_and_stop(*args, **end):
            threading.Thread(target=leave, daemon=True).start()
            assert leaves.wait(60)
            return stop(*args, **end)
        Recording.stop = start_and_stop
        step()
    """
    ran = run_warm(tmp_path, training(tmp_path, text))
    assert ran.status in (0, 7) and ran.err == b"" and ran.said.startswith("wrote ")  # one of them ends the process
    assert only_capture(tmp_path).end == {"how": "finished"}


def test_leaving_at_once(tmp_path):
    """Into a file that is overwritten, as asked."""
    (tmp_path / "x.msc").write_text("MODSCOPE, old")
    ran = run_warm(tmp_path, "-f", "-o", "x.msc", training(tmp_path, "import os; step(); os._exit(7)"))
    assert ran.status == 7 and ran.err == b"" and ran.said.startswith("wrote x.msc ")
    assert only_capture(tmp_path).end == {"how": "finished", "status": "7"}


def test_the_very_end_is_seen(tmp_path):
    """What runs at exit, and what threads do that outlive the script."""
    text = """
        import atexit, threading, time
        atexit.register(lambda: step())
        def late():
            time.sleep(0.2)
            step()
    """
    name = write(tmp_path, text, "late.py")
    training(tmp_path, "threading.Thread(target=late).start(); step()")
    (tmp_path / name).write_text((tmp_path / name).read_text() + (tmp_path / "train.py").read_text())
    ran = run(tmp_path, "-q", name)
    assert ran.status == 0 and ran.err == b"" and ran.said == ""
    assert only_capture(tmp_path).optimizer_steps == 3


def test_the_exit_status_is_in_the_capture(tmp_path):
    ran = run(tmp_path, training(tmp_path, "step(); sys.exit(3)"))
    assert ran.status == 3 and ran.said.startswith("wrote ")
    end = only_capture(tmp_path).end
    assert end == {"how": "finished", "status": "3"} and describe_end(end) == "Exited with status 3"


IN_THREAD = """
import _thread
ended = _thread.allocate_lock()
ended.acquire()
def end():
    try:
        sys.exit(3)
    finally:
        ended.release()
_thread.start_new_thread(end, ())
ended.acquire()
"""
EXITS = {
    "raise SystemExit(259)": 3,
    "exit()": 0,
    "sys.exit('a sentence')": 1,
    "import argparse; argparse.ArgumentParser().parse_args(['--no'])": 2,
    "class Own(SystemExit): pass\nraise Own(4)": 4,
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass": None,
    IN_THREAD: None,
}


def test_the_exit_status_of_every_way_to_exit(tmp_path):
    """Forked children take one each."""
    text = f"""
        import os
        for text in {list(EXITS)!r}:
            pid = os.fork()
            if pid == 0:
                break
            print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        else:
            text = ""
        step()
        exec(text)
    """
    ran = run(tmp_path, "--follow-fork", training(tmp_path, text))
    assert ran.status == 0
    children = [line.split() for line in ran.out.decode().splitlines()]
    assert [int(status) for _, status in children] == [status or 0 for status in EXITS.values()]
    for (pid, _), status in zip(children, EXITS.values()):
        end = modscope.load(tmp_path / f"modscope-train.{pid}.msc").end
        assert end == {"how": "finished"} | ({} if status is None else {"status": str(status)})
        assert describe_end(end) == (f"Exited with status {status}" if status else "Finished")


def test_without_a_capture(tmp_path):
    """And with fewer steps than it may do."""
    ran = run_warm(tmp_path, "--no-capture", "--steps", "5", training(tmp_path, "step(); sys.exit(3)"))
    assert ran.status == 3 and ran.said.startswith("Peak ") and ran.said.count("\n") == 1
    assert captures(tmp_path) == []


# ---- signals ----


def test_ctrl_c(tmp_path):
    """The status is that of Python alone. It is death by SIGINT, unless something that runs at exit evaluates a string,
    as torch's own exit functions do where tabulate is installed: Python then exits with status 1."""
    name = training(tmp_path, FOREVER, with_dynamo=True)
    plain = kill_when_ready(start(tmp_path, name, command=[sys.executable]), signal.SIGINT)
    ran = kill_when_ready(start(tmp_path, name), signal.SIGINT)
    assert ran.status == plain.status and plain.status in (-signal.SIGINT, 1)
    assert ran.err.endswith(b"KeyboardInterrupt\n") and not (INTERCEPTION and PACKAGE in ran.err)
    assert ran.said.startswith("wrote ")
    capture = only_capture(tmp_path)
    assert capture.end["how"] == "interrupted" and capture.peaks["cpu"].bytes > 12_000_000


def test_killed(tmp_path):
    """What happened is in the capture before it ends, without anything that happens later."""
    text = """
        big = torch.ones(3_000_000)
        wait_for_capture(lambda capture: "cpu" in capture.peaks and capture.peaks["cpu"].bytes > 12_000_000)
        print("now", flush=True)
        while True:
            step()
    """
    ran = kill_when_ready(
        start_warm(tmp_path, training(tmp_path, textwrap.dedent(WAIT_FOR_CAPTURE) + textwrap.dedent(text))),
        signal.SIGKILL,
    )
    assert ran.status == -signal.SIGKILL and ran.out == b"now\n" and ran.err == b"" and ran.said == ""
    capture = only_capture(tmp_path)
    assert capture.end is None and capture.damaged == 0 and capture.peaks["cpu"].bytes > 12_000_000


@pytest.mark.parametrize("end", ["while True: step()", "sum(itertools.repeat(1))"])
def test_sigterm(tmp_path, end):
    """Also while a thread keeps the GIL in C code for ever. The process still dies by the signal."""
    text = f"""
        import itertools, signal
        step()
        big = torch.ones(3_000_000)
        print(signal.getsignal(signal.SIGTERM), flush=True)
        {end}
    """
    ran = kill_when_ready((start if "step" in end else start_warm)(tmp_path, training(tmp_path, text)), signal.SIGTERM)
    (path,) = captures(tmp_path)
    assert ran.status == -signal.SIGTERM and ran.out == b"0\n" and ran.err == b""
    assert ran.said.startswith(f"wrote {path.name} (") and ran.said.endswith(
        f"iB). SIGTERM ended the program. See it:  modscope summary {path.name}\n"
    )
    capture = modscope.load(path)
    assert capture.end == {"how": "terminated"} and describe_end(capture.end) == "Ended by SIGTERM"
    assert (
        capture.damaged == capture.lost == 0
        and capture.peaks["cpu"].bytes > 12_000_000
        and capture.optimizer_steps >= 1
    )


@pytest.mark.parametrize(
    "text, status",
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))", 5),
        ("signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_IGN))", -signal.SIGTERM),
    ],
)
def test_a_script_that_handles_sigterm_itself(tmp_path, text, status):
    """Its own handler, or the default action that it restored."""
    ran = kill_when_ready(
        (start if status == 5 else start_warm)(
            tmp_path, training(tmp_path, f"import signal\n{text}\n{textwrap.dedent(FOREVER)}")
        ),
        signal.SIGTERM,
    )
    assert ran.status == status and ran.err == b""
    end = only_capture(tmp_path).end
    assert end == {"how": "finished", "status": "5"} if status == 5 else end is None


def test_sigterm_in_a_forked_child(tmp_path):
    """It dies by the signal at once, and the capture is the parent's."""
    text = """
        import os, signal, time
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        step()
    """
    ran = run_warm(tmp_path, training(tmp_path, text))
    assert ran.status == 0 and ran.out == b"-15\n" and ran.err == b""
    capture = only_capture(tmp_path)
    assert capture.end == {"how": "finished"} and capture.optimizer_steps == 1


def test_an_ignored_sigterm_stays_ignored(tmp_path):
    script = training(
        tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM); step(); print(signal.getsignal(15))"
    )
    done = subprocess.run(["sh", "-c", 'trap "" TERM; "$@"', "sh", *RUN, script], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0 and done.stdout == b"1\n"
    assert only_capture(tmp_path).end == {"how": "finished"}


# ---- what another program does to the file ----


@pytest.mark.parametrize(
    "text, said",
    [
        ("os.unlink('x.msc')", "the capture x.msc was deleted or moved during the run. Peak "),
        ("os.rename('y.txt', 'x.msc')", "the capture x.msc was replaced by another file during the run. Peak "),
        ("os.truncate('x.msc', 0)", "events are not in it (another program truncated the file)"),
    ],
)
def test_a_file_that_does_not_stay(tmp_path, text, said):
    (tmp_path / "y.txt").write_text("mine")
    program = f"""
    import os, time
    step()
    wait_for_capture(lambda capture: capture.optimizer_steps == 1)
    {text}
    step()
    time.sleep(0.6)  # so that it is written before the end, too
    step()
    """
    ran = run_warm(tmp_path, "-q", "-o", "x.msc", training(tmp_path, WAIT_FOR_CAPTURE + program))
    assert ran.status == 0 and ran.err == b"" and said in ran.said


# ---- a disk that takes no more ----


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
def test_a_file_that_takes_nothing(tmp_path):
    """Stands in for a full disk: the script runs without a capture, and is told of which file."""
    text = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    write(tmp_path, text + "import torch\nprint(torch.ones(3).sum().item())", "full.py")
    ran = run(tmp_path, "-o", "full.msc", "full.py")
    assert (ran.status, ran.out, ran.err) == (0, b"3.0\n", b"")
    assert ran.said == (
        "recording could not begin, so the script runs without a capture: full.msc cannot be written: File too large\n"
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
def test_a_file_that_may_not_grow(tmp_path):
    """Stands in for a full disk: the script runs on, and the line says what is missing."""
    text = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        for _ in range(300):
            step()
        print("fine")
    """
    ran = run_warm(tmp_path, training(tmp_path, text))
    assert ran.status == 0 and ran.out == b"fine\n" and ran.err == b""
    assert "events are not in it" in ran.said and "at least" in ran.said and "File too large" in ran.said
    capture = only_capture(tmp_path)
    # The end, which says how many events were lost, is a chunk too, of about 70 bytes: either it fits, or it does not.
    # Without it, the file is that of a process which was killed: whole up to its last chunk.
    if capture.end:
        assert capture.end["how"] == "finished" and capture.lost and capture.is_lower_bound and capture.bytes <= 8192
    else:
        assert 8192 - 100 < capture.bytes <= 8192
    assert capture.damaged == 0
