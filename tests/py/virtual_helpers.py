"""Run a program in a process in which a virtual GPU is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from helpers import INTERCEPTION

needs_interception = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")

BEGIN = """
import io, sys, torch
from torch import nn
from modscope._virtual.device import VirtualDevice
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


def run(program: str, gpu: str = "h100", version: str = "2.13", **environment: str) -> list[str]:
    """The lines that it prints. It fails where the program does: its asserts are the test's."""
    text = BEGIN.format(gpu=gpu, version=version) + textwrap.dedent(program)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
