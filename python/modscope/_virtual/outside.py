"""What a process takes of a GPU beside torch's allocator, by what takes it: nvidia-smi shows that much more than torch
reserves. Needs no torch.

The parts were measured on one H200 (torch 2.11 for CUDA 13.0, driver 580), by the memory in use without what torch
reserves. No other GPU was measured: there the context of the table of GPUs is divided as on the H200, and the range is
that of what was seen on several, from 256 MiB on an RTX 3090 to 703 MiB on the H200. docs/nvidia-smi.md has
all that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypedDict

from modscope._read.load import Capture
from modscope._read.ranks import number_said
from modscope._read.text import rough_size
from modscope._virtual.gpus import Gpu

__all__ = ["PART_OF_NCCL", "Outside", "OutsideReport", "libraries_of", "outside_of", "range_of_context", "said_of"]

_PARTS = {"context": 527, "kernels": 92, "cublas": 66, "cudnn": 18}
"""MiB on the H200 of what most programs that train have. Together they are its context in the table of GPUs."""
_FURTHER = {"cufft": 8, "cusolver": 96, "cuda_graphs": 70}
"""MiB of what some have in addition. ``cuda_graphs``: one of 50 kernels."""
_ALWAYS = ("context", "kernels")
_MEASURED_ON = "h200"
_LEAST, _MOST = 0.5, 1.375
_LEAST_MEASURED, _MOST_MEASURED = 0.75, 1.25
"""Where it was measured: from the context alone, 527 MiB, to what all of these libraries take, 877 MiB."""
PART_OF_NCCL = 0.5
"""Of what communicators take, reports differ by so much. On the H200 one of a single rank took 490 MiB, the next 390:
what one takes between several GPUs was not measured."""


def range_of_context(gpu: Gpu) -> tuple[float, float]:
    """A CUDA context, with kernels and libraries, may take so many times what the table of GPUs says."""
    return (_LEAST_MEASURED, _MOST_MEASURED) if gpu.name == _MEASURED_ON else (_LEAST, _MOST)


# ---- which libraries a program uses ----

_BY_CUBLAS = frozenset("mm addmm bmm baddbmm addmv dot vdot _scaled_mm _int_mm linalg_solve_triangular".split())
_BY_CUDNN = ("convolution", "cudnn", "_cudnn", "native_batch_norm", "_batch_norm_with_update", "batch_norm_backward")
_BY_CUSOLVER = ("_linalg_", "linalg_", "cholesky", "geqrf", "ormqr", "lu_")
_WITHOUT = frozenset("linalg_vector_norm linalg_cross linalg_solve_triangular linalg_diagonal linalg_vecdot".split())


def libraries_of(operators: Iterable[str], has_graphs: bool) -> list[str]:
    """What these operators, such as ``aten.mm.default``, are run by. ``has_graphs``: CUDA graphs were captured."""
    found = {"cuda_graphs"} if has_graphs else set()
    for operator in operators:
        name = (operator.split(".") + [""])[1]
        if name.rstrip("_") in _BY_CUBLAS:
            found.add("cublas")
        elif name.startswith(_BY_CUDNN):
            found.add("cudnn")
        elif name.startswith("_fft_"):
            found.add("cufft")
        elif name.startswith(_BY_CUSOLVER) and name not in _WITHOUT:
            found.add("cusolver")
    return sorted(found)


# ---- what is outside ----


class OutsideReport(TypedDict):
    """What nvidia-smi shows of a process at most, as JSON."""

    about: int
    low: int
    high: int
    parts: Mapping[str, int]


class Outside(NamedTuple):
    parts: Mapping[str, int]
    """Bytes by what takes them, about: context, kernels, cublas, cudnn, cufft, cusolver, cuda_graphs, nccl."""
    low: int
    """Together, at least."""
    high: int

    def report(self, reserved: int) -> OutsideReport:
        """What nvidia-smi shows, where torch reserves so much."""
        about = reserved + sum(self.parts.values())
        parts = {"torch": reserved, **self.parts}
        return {"about": about, "low": reserved + self.low, "high": reserved + self.high, "parts": parts}


def outside_of(gpu: Gpu, capture: Capture) -> Outside:
    """What the program of a prediction takes of the GPU beside torch's allocator."""
    used = (capture.end or {}).get("libraries", "").split(",")
    whole = sum(_PARTS.values())
    parts = {
        name: gpu.context * mib // whole for name, mib in (_PARTS | _FURTHER).items() if name in _ALWAYS or name in used
    }
    low, high = (int(part * sum(parts.values())) for part in range_of_context(gpu))
    nccl = number_said(capture, "communicator_bytes") or 0
    if nccl:
        parts["nccl"] = nccl
    return Outside(parts, low + int((1 - PART_OF_NCCL) * nccl), high + int((1 + PART_OF_NCCL) * nccl))


def said_of(report: OutsideReport) -> str:
    """ "nvidia-smi will show about 19.0 GiB (18.7 to 19.2 GiB)" """
    low, high = rough_size(report["low"]), rough_size(report["high"])
    return f"nvidia-smi will show about {rough_size(report['about'])} ({low.removesuffix(' GiB')} to {high})"
