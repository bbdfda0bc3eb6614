"""Run programs in processes in which a virtual GPU is installed.

What a program leaves behind must not change the next one, so each has a process of its own (warm_python.py).
"""

from __future__ import annotations

import textwrap

import pytest
import warm_python
from helpers import INTERCEPTION

needs_interception = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")

BEGIN = """
import io, sys, torch
from torch import nn
from modscope import _native
from modscope._virtual.device.device import VirtualDevice
from modscope._virtual.gpus import find_gpu

def error(function, *args, **kwargs):
    "The type and the first line of what a call raises."
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__ + ": " + str(error).splitlines()[0]
    return "no error"

device = VirtualDevice(find_gpu("{gpu}"), "{version}")
device.install()
"""


def run_bare(program: str, **environment: str) -> list[str]:
    """The lines that a program prints. The test fails where the program does. No virtual GPU is installed."""
    ran = warm_python.run(["-W", "ignore", "-c", program], **environment)
    assert ran.returncode == 0, f"status {ran.returncode}: {ran.stderr}"
    return ran.stdout.splitlines()


def run(program: str, gpu: str = "h100", version: str = "2.13", **environment: str) -> list[str]:
    """The lines that a program prints on a virtual GPU: its asserts are the test's."""
    return run_bare(BEGIN.format(gpu=gpu, version=version) + textwrap.dedent(program), **environment)


def run_on_h200(program: str) -> list[str]:
    return run(program, "h200", "2.11")
