"""What cuDNN itself would run for a convolution on the virtual GPU: asked of the library, where there is one.

From version 9.8 on, cuDNN takes a description of a GPU in place of a GPU. A process of its own asks it
(src/torch/plans), so that nothing that the library does reaches the program. Answers are kept on disk, by the library's
file and the GPU. ``MODSCOPE_CUDNN`` names another library, or is 0: then none is asked."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import sys
from typing import NamedTuple

import torch
from modscope import _native
from modscope._virtual.gpus import architecture_of
from modscope._virtual.rules.rules import GpuAndTorch, at_start

__all__ = ["NO_PLAN", "PRODUCT", "Asked", "LibraryPlan", "ask", "note", "version"]

PLANNED, PRODUCT, NO_PLAN, _NO_ANSWER = range(4)
_VARIABLE = "MODSCOPE_CUDNN"
_FORMAT = 2
_MOST_SECONDS = 60.0  # for one answer; plans for which a kernel is compiled take a second
_MOST_STARTS = 3
_MOST_CACHED = 8 << 20  # bytes of a file of answers
_REQUEST = struct.Struct("=4i5q5q5q3q3q3q")
_ANSWER = struct.Struct("=2iq")
_HELLO = struct.Struct("=2q240s")
_LINE = re.compile(r"([\d,]{20,600})=([012]) (-?\d{1,6}) (\d{1,18})", re.ASCII)


class Asked(NamedTuple):
    """One pass of a convolution, with two or three spatial dimensions."""

    what: int
    """0: forward, 1: the gradient of the input, 2: the gradient of the weight."""
    dtype: int
    """0: float32, 1: bfloat16, 2: float16, 3: float64."""
    flags: int
    """1: channels last, 2: deterministic, 4: no tf32."""
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def numbers(self) -> list[int]:
        """As in mst_convolution (src/torch/plans/plans.h)."""
        found = [self.what, self.dtype, self.flags, len(self.padding)]
        for values, length in zip(self[3:], (5, 5, 5, 3, 3, 3), strict=True):
            found += [*values, *[0] * (length - len(values))]
        return found


class LibraryPlan(NamedTuple):
    result: int
    """PLANNED; PRODUCT: of matrices, which cuDNN leaves to cuBLAS; NO_PLAN: cuDNN cannot run it on this GPU."""
    engine: int
    bytes: int
    """Of the workspace, where it is PLANNED."""


_UNKNOWN = LibraryPlan(_NO_ANSWER, -1, 0)


def describe(gpu: GpuAndTorch) -> str:
    """The GPU as cuDNN describes one to itself. Plans were seen to depend on its capability alone."""
    major, minor = gpu.capability
    shape = architecture_of(gpu.capability)
    number = 100 * major + 10 * minor
    return json.dumps(
        {
            "deviceVer": number,
            "driverVer": 13000,
            "smVersion": number,
            "maxGridSize": [2147483647, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "regsPerBlock": 65536,
            "multiProcessorCount": gpu.processors,
            "smCountOrigin": 0,
            "warpSize": 32,
            "maxSharedMemoryPerBlock": 48 << 10,
            "maxSharedMemoryPerBlockOptin": shape.shared_of_block << 10,
            "oversizedSharedMemoryPerBlock": shape.shared_of_block << 10,
            "reservedSharedMemoryPerBlock": 1 << 10,
            "maxRegistersPerSM": 65536,
            "maxCtasPerSM": max(shape.threads // 64, 16),
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": shape.threads,
            "totalGlobalMem": 80 << 30,
            "pciDeviceId": 1,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "smClockRateKHz": 1_500_000,
            "memClockRateKHz": 2_500_000,
            "memoryBusWidth": 5120,
            "l2CacheSize": 50 << 20,
            "deviceName": f"sm_{major}{minor}",
            "cudaDeviceId": 0,
        }
    )


# ---- the library ----


class _Library(NamedTuple):
    path: str
    before: str
    """Libraries that it needs, one a line."""
    identity: str
    """Of its file; "": it is not known which file it is."""


def _find_library() -> _Library | None:
    named = os.environ.get(_VARIABLE)
    if named == "0":
        return None
    folders = [pathlib.Path(folder, "nvidia") for folder in sys.path if folder]
    path = next((found for folder in folders if (found := folder / "cudnn/lib/libcudnn.so.9").is_file()), None)
    if named:
        path = pathlib.Path(named)
    if path is None:
        return _Library("libcudnn.so.9", "", "") if torch.version.cuda else None
    near = [path.parents[2]] if len(path.parents) > 2 else []
    needed = [
        str(found)
        for folder in [*near, *folders]
        for pattern in ("*/lib/libcublasLt.so.*", "*/lib/libnvrtc.so.*")
        for found in sorted(folder.glob(pattern))
        if re.fullmatch(r"\d+", found.suffix[1:])
    ]
    return _Library(str(path), "\n".join(needed), _identity(path))


def _identity(path: pathlib.Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]


# ---- the process that asks it ----


class _Refused(Exception):
    """Why there is no answer, in words."""


class _Server:
    def __init__(self, library: _Library, gpu: GpuAndTorch) -> None:
        driver = pathlib.Path(_native.__file__ or "").with_name("_no_driver.so")
        hopper = gpu.processors if gpu.capability == (9, 0) else 0
        self.process = os.getpid()
        self._socket = socket.socket(
            fileno=_native.plans_open(library.path, describe(gpu), str(driver), library.before, hopper)
        )
        self._pid = 0
        self.version, self._pid, reason = _HELLO.unpack(self._read(_HELLO.size))
        if not self.version:
            raise _Refused(reason.rstrip(b"\0").decode(errors="replace"))

    def ask(self, request: bytes) -> LibraryPlan:
        try:
            self._socket.send(request)
        except OSError as error:
            raise _Refused("the process that asks it ended") from error
        return LibraryPlan(*_ANSWER.unpack(self._read(_ANSWER.size)))

    def _read(self, size: int) -> bytes:
        ready, _, _ = select.select([self._socket], [], [], _MOST_SECONDS)
        if not ready:
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
            self._socket.close()
            raise _Refused(f"it did not answer within {_MOST_SECONDS:.0f} s")
        try:
            answer = self._socket.recv(size)
        except OSError:
            answer = b""
        if len(answer) != size:
            self._socket.close()
            raise _Refused("the process that asks it ended")
        return answer


# ---- answers on disk ----


def _cache_file(identity: str, gpu: GpuAndTorch) -> pathlib.Path | None:
    if not identity:
        return None
    try:
        folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "modscope")
    except RuntimeError:  # there is no home
        return None
    major, minor = gpu.capability
    return folder / f"cudnn-{_FORMAT}-{identity}-sm{major}{minor}-{gpu.processors}.txt"


def _read_cache(file: pathlib.Path | None) -> tuple[int, dict[str, LibraryPlan]]:
    """The library's version, and its answers. Lines that are not whole are left out."""
    try:
        text = file.read_text(encoding="ascii", errors="replace")[:_MOST_CACHED] if file else ""
    except OSError:
        return 0, {}
    version = re.match(r"cuDNN (\d{5})\n", text, re.ASCII)
    if version is None:
        return 0, {}
    found = (_LINE.fullmatch(line) for line in text.splitlines()[1:])
    return int(version[1]), {line[1]: LibraryPlan(int(line[2]), int(line[3]), int(line[4])) for line in found if line}


def _append(file: pathlib.Path, version: int, key: str, plan: LibraryPlan) -> None:
    """Several processes may append at once: each line is written whole, and a second first line is left out."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        end = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(end).st_size
            first = "" if size else f"cuDNN {version}\n"
            if size < _MOST_CACHED:
                os.write(end, f"{first}{key}={plan.result} {plan.engine} {plan.bytes}\n".encode())
        finally:
            os.close(end)
    except OSError:
        pass  # it is asked again the next time


# ---- asking ----


class _Answers:
    """Of one GPU."""

    def __init__(self, gpu: GpuAndTorch) -> None:
        self.count = 0
        """How many times there was an answer."""
        self.refusal = ""
        self._gpu = gpu
        self._library = _find_library()
        self.is_absent = False
        self._server: _Server | None = None
        self._starts = 0
        self._file = _cache_file(self._library.identity, gpu) if self._library else None
        self.version, self._known = _read_cache(self._file)

    def find(self, asked: Asked) -> LibraryPlan | None:
        if self._library is None:
            self.is_absent = os.environ.get(_VARIABLE) != "0"
            return None
        numbers = asked.numbers()
        key = ",".join(map(str, numbers))
        plan = self._known.get(key)
        if plan is None and self._starts < _MOST_STARTS:
            plan = self._known[key] = self._new(key, numbers)
        if plan is None or plan.result == _NO_ANSWER:
            return None
        self.count += 1
        return plan

    def find_version(self) -> int:
        if not self.version and self._library is not None and self._starts < _MOST_STARTS:
            self._start()
        return self.version

    def _start(self) -> _Server | None:
        """A process that was forked from this one needs a server of its own: both would read the same answers."""
        if self._server is not None and self._server.process == os.getpid():
            return self._server
        assert self._library is not None
        self._server, self._starts = None, self._starts + 1
        try:
            self._server = _Server(self._library, self._gpu)
            self.version = self._server.version
        except (_Refused, OSError) as error:
            self._starts = _MOST_STARTS
            self.refusal = str(error)
        return self._server

    def _new(self, key: str, numbers: list[int]) -> LibraryPlan:
        server = self._start()
        if server is None:
            return _UNKNOWN
        try:
            plan = server.ask(_REQUEST.pack(*numbers))
        except _Refused as error:
            self._server, self.refusal = None, str(error)
            return _UNKNOWN
        if self._file is not None and plan.result != _NO_ANSWER:
            _append(self._file, self.version, key, plan)
        return plan


_answers: dict[GpuAndTorch, _Answers] = {}


@at_start
def _forget() -> None:
    _answers.clear()


def _answers_of(gpu: GpuAndTorch) -> _Answers:
    if gpu not in _answers:
        _answers[gpu] = _Answers(gpu)
    return _answers[gpu]


def ask(gpu: GpuAndTorch, asked: Asked) -> LibraryPlan | None:
    """None: cuDNN was not asked, or did not answer."""
    return _answers_of(gpu).find(asked)


def note() -> str:
    """Where the workspaces of convolutions come from, in a sentence; "" if there were none, or nobody wants to know."""
    for answers in _answers.values():
        if answers.count:
            return f"Workspaces of convolutions: as cuDNN {_as_text(answers.version)} plans them for this GPU."
        if answers.refusal:
            return f"Workspaces of convolutions: by measurements of an H200. cuDNN was not asked: {answers.refusal}."
        if answers.is_absent:
            return (
                "Workspaces of convolutions: by measurements of an H200. For those of this GPU, install cuDNN, which "
                "tells them without one:  pip install 'modscope[cudnn]'"
            )
    return ""


def version(gpu: GpuAndTorch) -> int:
    """Of the library that answers, as cudnnGetVersion says; 0: none does."""
    return _answers_of(gpu).find_version()


def _as_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
