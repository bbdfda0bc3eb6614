"""Threads that train, enter and leave trackers, read figures, record and fork, all at once; in a process of its own,
because a defect may crash or hang it."""

import os
import subprocess
import sys

import pytest
from helpers import SUPPORT, python_path
from storm_helpers import SECONDS, SEED

HERE = os.path.dirname(__file__)

pytestmark = pytest.mark.slow


def test_threads_that_train_enter_read_and_fork(tmp_path):
    seconds = SECONDS or 5
    # Freed memory is overwritten, so that using it is noticed.
    environment = os.environ | {
        "PYTHONPATH": python_path(HERE, SUPPORT),
        "MALLOC_PERTURB_": "165",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    }
    command = [sys.executable, os.path.join(HERE, "thread_storm.py"), str(seconds), str(SEED)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=seconds + 600)
    print(ran.stdout)
    assert ran.returncode == 0, f"MODSCOPE_STORM_SEED={SEED}: {ran.returncode}\n{ran.stderr[-6000:]}"
