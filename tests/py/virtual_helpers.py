"""Run programs in processes in which a virtual GPU is installed.

Autograd counts devices at the first backward of a process, so each program has a process of its own: a fork of one that has
imported torch and modscope already, which takes most of the time.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap

import pytest
import torch
from helpers import INTERCEPTION

needs_interception = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
needs_virtual_device = pytest.mark.skipif(
    not INTERCEPTION or torch.backends.cuda.is_built(), reason="the virtual GPU needs interception, and here a torch without CUDA"
)

SECONDS = 120
SERVER = """
import atexit, json, os, signal, sys, tempfile, traceback
import torch
import modscope
from modscope._virtual import device

def next_program():
    "In a fork: the program to run. In the server: None, at the end."
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
            pid = os.fork()
            if pid == 0:
                signal.alarm(request["seconds"])
                for file, number in ((open(os.devnull), 0), (out, 1), (err, 2)):
                    os.dup2(file.fileno(), number)
                os.environ.update(request["environment"])
                return request["program"]
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            out.seek(0), err.seek(0)
            reply = {"status": status, "out": out.read().decode(), "err": err.read().decode()}
        print(json.dumps(reply), flush=True)

program = next_program()
if program is not None:
    status = 1
    try:
        exec(compile(program, "<program>", "exec"), globals())
        status = 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)  # freeing what torch's modules have takes longer than most programs
"""
BEGIN = """
import io, sys, torch
from torch import nn
from modscope import _native
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


@functools.cache
def _server() -> subprocess.Popen[str]:
    """It ends with this process, which closes its stdin."""
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_bare(program: str, **environment: str) -> list[str]:
    """The lines that a program prints. The test fails where the program does. No virtual GPU is installed."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    request = {"program": program, "environment": environment, "seconds": SECONDS}
    print(json.dumps(request), file=server.stdin, flush=True)
    reply = json.loads(server.stdout.readline())
    assert reply["status"] == 0, f"status {reply['status']}: {reply['err']}"
    lines: list[str] = reply["out"].splitlines()
    return lines


def run(program: str, gpu: str = "h100", version: str = "2.13", **environment: str) -> list[str]:
    """The lines that a program prints on a virtual GPU: its asserts are the test's."""
    return run_bare(BEGIN.format(gpu=gpu, version=version) + textwrap.dedent(program), **environment)


def run_on_h200(program: str) -> list[str]:
    return run(program, "h200", "2.11")
