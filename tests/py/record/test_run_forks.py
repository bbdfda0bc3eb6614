"""Other processes of a script: forked ones never touch its capture, and have their own if asked"""

import sys

import modscope
import pytest
from run_helpers import RUN, call, captures, only_capture, run, run_warm, training, write

pytestmark = pytest.mark.slow  # each test starts a Python that imports torch

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


def test_forked_children_leave_the_capture_alone(tmp_path):
    ran = run_warm(tmp_path, training(tmp_path, FORKS))
    assert ran.status == 0 and ran.out == EXPECTED and ran.err == b"" and ran.said.startswith("wrote ")
    capture = only_capture(tmp_path)
    assert capture.peaks["cpu"].bytes < 40 * 2**20 and capture.optimizer_steps == 1
    assert capture.end["how"] == "finished" and capture.damaged == 0


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
