"""Run a program with a virtual H200 in a process of its own: autograd counts devices at its first backward."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from helpers import INTERCEPTION

needs_virtual_device = pytest.mark.skipif(
    not INTERCEPTION or torch.backends.cuda.is_built(), reason="the virtual GPU needs interception and a torch without CUDA"
)

BEGIN = """
import torch
from torch import nn
from modscope._virtual.device import VirtualDevice
from modscope._virtual.gpus import find_gpu
device = VirtualDevice(find_gpu("h200"), "2.11")
device.install()
"""


def run_on_h200(program: str) -> list[str]:
    text = BEGIN + textwrap.dedent(program)
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
