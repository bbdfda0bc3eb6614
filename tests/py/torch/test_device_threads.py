"""Verifying the interception points starts no thread of autograd, so that a process that is forked later can run a
backward. torch starts such threads for devices; a backend that is registered here stands in for a GPU."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import warm_python
from helpers import needs_interception
from modscope import _native

import torch

try:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend  # noqa: F401
except ImportError:
    _setup_privateuseone_for_python_backend = None

SCRIPT = """
    import os, signal, sys, torch
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    _setup_privateuseone_for_python_backend("standin")
    x = torch.ones(1, requires_grad=True)
    if "before" in sys.argv:
        x.neg().backward()
    os.register_at_fork(before=lambda: print("a hook", flush=True), after_in_child=lambda: print("a hook", flush=True))
    signal.signal(signal.SIGCHLD, lambda *_: print("a signal"))
    import modscope
    with modscope.ModTracker():
        pass
    points = modscope.doctor()
    print(points["calls"], points["nodes"])
    print(sum("autograd" in open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            x.neg().backward()
            print("ran")
        except RuntimeError as error:
            print("refused")
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


@needs_interception
@pytest.mark.slow
@pytest.mark.skipif(
    _setup_privateuseone_for_python_backend is None, reason="this torch cannot register a backend in Python"
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are listed as Linux does")
@pytest.mark.parametrize("words, threads, child", [([], "0", "ran"), (["before"], "1", "refused")])
def test_a_child_forked_before_the_first_backward_can_run_one(words, threads, child):
    """As without modscope. The program's own functions and handlers are not called."""
    done = warm_python.run(["-W", "ignore", "-c", textwrap.dedent(SCRIPT), *words])
    assert done.stderr == "" and done.stdout.split("\n") == [
        "verified verified",
        threads,
        "a hook",
        "a hook",
        child,
        "",
    ]


def crash():
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise ValueError


def hang():
    signal.pause()


@pytest.mark.parametrize(
    "function, answer",
    [
        (lambda: "yés", "yés"),
        (lambda: "", ""),
        (fail, None),
        (crash, None),
        (hang, None),
        (lambda: 3, None),
        (lambda: "x" * 9999, None),
    ],
)
def test_what_a_forked_process_answers(tmp_path, capfd, function, answer):
    """It leaves nothing to wait for, and prints nothing."""

    def answer_in_child():
        (tmp_path / "pid").write_text(str(os.getpid()))
        return function()

    assert _native.run_in_fork(answer_in_child, 1_000 if function is hang else 300_000) == answer
    if (tmp_path / "pid").exists():  # a child that hangs may have been given up before it wrote this
        with pytest.raises(ChildProcessError):
            os.waitpid(int((tmp_path / "pid").read_text()), os.WNOHANG)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("own_child", [False, True])
def test_only_the_programs_own_children_are_reported_to_it(own_child):
    """Also if another thread may get the signal."""
    seen = []
    other = threading.Thread(target=time.sleep, args=(0.5,))
    before = signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
    try:
        other.start()
        process = subprocess.Popen(["sleep", "0.1"]) if own_child else None
        assert _native.run_in_fork(lambda: str(time.sleep(0.3)), 300_000) == "None"
        assert process is None or process.wait() == 0  # the signal comes before that
        other.join()
        assert bool(seen) == own_child
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_forked_process_changes_nothing_here():
    seen = []
    assert _native.run_in_fork(lambda: str(seen.append(torch.ones(1))), 300_000) == "None" and seen == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_forked_process_of_a_program_without_output_answers_too(tmp_path):
    """The pipe of the answer then has the number of stdout or stderr."""
    program = """
        import os
        from modscope import _native
        os.close(1), os.close(2)
        answer = _native.run_in_fork(lambda: "an answer", 300_000)
        with open("answer", "w") as file:
            file.write(answer)
        os._exit(0)
    """
    warm_python.run(["-c", textwrap.dedent(program)], tmp_path)
    assert (tmp_path / "answer").read_text() == "an answer"
