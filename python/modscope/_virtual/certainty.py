"""How sure a prediction is: by how much its figures may be off, and whether that leaves a verdict. The only home of the
three answers (fits, does not fit, too close to tell) and of their words. Needs no torch.

Most sizes are exact: they follow from shapes, or from torch's sources. The others are counted while a script runs on
the virtual GPU (``_native.virtual_doubt``), each kind with the most that would have been allocated at once if its sizes
were twice as large. By how much figures were off is in docs/measurements/predictions.md."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NotRequired, TypedDict

from modscope._read.load import Capture
from modscope._read.ranks import world_of
from modscope._read.script_arguments import ANY_SCRIPT, program_words
from modscope._read.text import clean, counted, gpu_label, near_size, size
from modscope._virtual.gpus import GPUS, Gpu, is_described, rules_of
from modscope._virtual.outside import PART_OF_NCCL, range_of_context

__all__ = [
    "DOUBTS",
    "FITS",
    "NOT",
    "OPEN",
    "SOURCES",
    "SOURCE_OF_KIND",
    "Certainty",
    "OtherKernels",
    "Verdict",
    "about_several",
    "certainty_of",
    "count_of_retries",
    "describe",
    "describe_margin",
    "describe_retries",
    "describe_workspaces",
    "doubts_as_text",
    "in_table",
    "is_measured",
    "judge",
    "margin_of",
    "relevant",
    "other_kernels",
    "workspaces_as_text",
    "workspaces_of",
]

FITS, NOT, OPEN = "fits", "does not fit", "too close to tell"

DOUBTS = (
    "convolution", "recurrent", "batch_norm", "similar_convolution", "without_rule", "selected", "planned_convolution"
)  # fmt: skip
"""The kinds of sizes that are not sure, by their numbers in C (src/torch/virtual/virtual.h). A convolution that was not
measured itself, but similar ones were, is a similar one; that of a planned one is what cuDNN answered for the GPU."""
_MEASURED = ("convolution", "recurrent", "batch_norm")
"""Kinds that are sure on GPUs of the generation on which they were measured."""
SOURCES = ("exact rule", "library", "table", "formula")
"""Where the size of a workspace comes from, by their numbers in C, from 1: torch's sources, what a library answered for
the GPU, what was measured, or a formula that fits what was measured. An operator without a rule has "none"."""
SOURCE_OF_KIND = {
    "planned_convolution": "library", "convolution": "table", "similar_convolution": "formula",
    "recurrent": "formula", "batch_norm": "formula",
}  # fmt: skip
_OF_CUDNN = (*_MEASURED, "similar_convolution", "planned_convolution")
_MEASURED_ON = 9
_WORDS = {"convolution": "convolutions", "recurrent": "recurrent layers", "batch_norm": "batch norms"}

_PART_OF_RESERVED = 0.02
"""Of 59 jobs that were measured, 57 reserve what was predicted within so much. Other sizes of workspaces leave other
gaps between blocks, so that this holds where the peak of what is allocated has nothing to do with them too."""


def is_measured(gpu: Gpu) -> bool:
    """Whether workspaces were measured on such a GPU, where torch's sources do not tell them. Which one a GPU is that
    is given by its memory is not known."""
    return gpu.capability[0] == _MEASURED_ON and is_described(gpu)


# ---- what a capture says of its doubts ----


def doubts_as_text(peaks: list[int]) -> str:
    """What a capture's end says: by kind, what would have been allocated at most; "" if everything is sure."""
    found = {kind: peak for kind, peak in zip(DOUBTS, peaks) if peak}
    return json.dumps(found) if found else ""


def _doubts_of(capture: Capture, device: str) -> dict[str, int]:
    """By kind, by how much the peak of what is allocated would be higher."""
    said = (capture.end or {}).get("doubts")
    if not said:
        return {}
    try:
        peaks = json.loads(said)
        highest = capture.peaks[device].bytes if device in capture.peaks else 0
        return {kind: max(int(peaks[kind]) - highest, 0) for kind in DOUBTS if kind in peaks}
    except (ValueError, TypeError):  # the capture is damaged
        return {}


class WorkspaceBytes(TypedDict):
    """The bytes of workspaces whose sizes come from one source."""

    at_peak: int
    """When most was allocated. Of operators without a rule: by how much the peak may be higher."""
    in_all: int


def workspaces_as_text(found: list[tuple[int, int]], without_rule: int) -> str:
    """What a capture's end says: by source, the bytes at the peak and in all. ``found``: by the numbers in C;
    ``without_rule``: the results of operators without a rule."""
    return json.dumps({**dict(zip(SOURCES, found[1:])), "none": (0, without_rule)})


def workspaces_of(capture: Capture | None, device: str) -> dict[str, WorkspaceBytes]:
    """By source, of all sources; none, if the capture does not tell."""
    try:
        said = json.loads(capture.end["workspaces"]) if capture and capture.end else {}
        found = {source: WorkspaceBytes(at_peak=int(at), in_all=int(all)) for source, (at, all) in said.items()}
        found["none"]["at_peak"] = _doubts_of(capture, device).get("without_rule", 0) if capture else 0
    except (KeyError, ValueError, TypeError, AttributeError):  # it is of an older version, or damaged
        return {}
    return found


def describe_workspaces(workspaces: Mapping[str, WorkspaceBytes]) -> str:
    """ "Workspaces at the peak whose sizes are not exact: 512.00 MiB by a table and 2.00 MiB by formulas." """
    words = {"library": "cuDNN's plans", "table": "a table", "formula": "formulas", "none": "no rule (at most)"}
    bytes_of = {word: workspaces[source]["at_peak"] for source, word in words.items() if source in workspaces}
    found = [f"{size(bytes)} by {word}" for word, bytes in bytes_of.items() if bytes]
    return f"Workspaces at the peak whose sizes are not exact: {_listed(found)}." if found else ""


# ---- how sure ----


class Certainty(NamedTuple):
    """By how much figures of a job on a GPU may be off, in bytes."""

    gpu: Gpu
    doubts: Mapping[str, int]
    """By kind."""
    workspaces: int
    """Together, more or less."""
    communicators: int
    """What NCCL takes, more or less."""
    interpolated: int = 0
    """Sizes that follow from steps of batches with other shapes, more or less."""

    @property
    def _figures(self) -> int:
        return self.workspaces + self.communicators + self.interpolated

    @property
    def margin(self) -> int:
        """The GPU may have so much less room than it takes to be as predicted."""
        return self._figures + int((range_of_context(self.gpu)[1] - 1) * self.gpu.context)

    @property
    def margin_above(self) -> int:
        """By how many bytes it may need more."""
        return self._figures + int((1 - range_of_context(self.gpu)[0]) * self.gpu.context)


def certainty_of(gpu: Gpu, capture: Capture | None, device: str, reserved: int, communicators: int = 0) -> Certainty:
    """``reserved``: at most, by the figures that are judged; ``communicators``: what NCCL takes, by them."""
    doubts = relevant(gpu, _doubts_of(capture, device) if capture else {})
    return Certainty(gpu, doubts, margin_of(doubts, reserved), int(PART_OF_NCCL * communicators))


def relevant(gpu: Gpu, doubts: Mapping[str, int]) -> dict[str, int]:
    """Without those that were measured on such a GPU."""
    sure = _MEASURED if is_measured(gpu) else ()
    return {kind: bytes for kind, bytes in doubts.items() if kind not in sure}


def margin_of(doubts: Mapping[str, int], reserved: int) -> int:
    """By how much what is reserved may be off. ``doubts``: by kind, by how much the peak of what is allocated may be
    higher."""
    part = _PART_OF_RESERVED if any(kind in doubts for kind in _OF_CUDNN) else 0.0
    return max(int(part * reserved), *doubts.values(), 0)


# ---- the verdict ----


class Judged(TypedDict):
    """How sure it is whether a job fits, as JSON."""

    verdict: str
    margin: int
    why: str


class Verdict(NamedTuple):
    answer: str
    """FITS, NOT or OPEN."""
    margin: int
    """By how many bytes the figures may be off."""
    why: str = ""
    """Of OPEN: what is not sure, and what would settle it, in sentences; else empty."""

    def as_json(self) -> Judged:
        return {"verdict": self.answer, "margin": self.margin, "why": self.why}


def judge(
    sure: Certainty, spare: int, capacity: int, fits: bool, retries: int, fits_with: Callable[[int], bool]
) -> Verdict:
    """``fits``: whether it fits by the figures, in ``capacity`` bytes that it may reserve, of which ``spare`` are left;
    ``fits_with``: whether it fits in other capacities, by giving memory back if need be."""
    if fits:
        margin = sure.margin
        is_sure = spare >= margin and (not retries or fits_with(max(capacity - margin, 0)))
    else:
        margin = sure.margin_above
        is_sure = not fits_with(capacity + margin)
    return Verdict((FITS if fits else NOT) if is_sure else OPEN, margin, "" if is_sure else _why(sure))


def _why(sure: Certainty) -> str:
    reasons = []
    is_planned = "planned_convolution" in sure.doubts
    kinds = {"convolution" if kind == "similar_convolution" else kind for kind in sure.doubts if kind in _OF_CUDNN}
    kinds -= {"planned_convolution"}
    if kinds and is_measured(sure.gpu):
        reasons.append("the workspaces of some convolutions follow from similar ones that were measured")
    elif kinds:
        measured = [word for kind, word in _WORDS.items() if kind in kinds]
        reasons.append(f"the workspaces of {_listed(measured)} were measured on an H200 only")
    if is_planned and is_measured(sure.gpu):
        reasons.append("without a GPU cuDNN does not tell all of the workspaces of some convolutions")
    elif is_planned:
        reasons.append("what cuDNN plans for convolutions was compared with an H200 only")
    if sure.doubts.get("without_rule"):
        reasons.append("operators have no rule for their workspace")
    if sure.doubts.get("selected"):
        reasons.append("sizes depend on values that are not known")
    if sure.workspaces and reasons:
        reasons[-1] += f" ({near_size(sure.workspaces)} more or less)"
    if sure.communicators:
        reasons.append(f"NCCL takes {near_size(sure.communicators)} more or less")
    if sure.interpolated:
        reasons.append(f"sizes that follow from batches of other shapes may be off by {near_size(sure.interpolated)}")
    if sure.gpu.context:
        low, high = (part * sure.gpu.context / (1 << 30) for part in range_of_context(sure.gpu))
        reasons.append(f"a CUDA context takes {low:.2f} to {high:.2f} GiB")
    return f"{_listed(reasons)}. {_settled_by(sure)}"


def _settled_by(sure: Certainty) -> str:
    if sure.doubts.get("selected"):
        return "To see how much values matter, predict with --selected 0 and with --selected 1."
    of_table = " or a table that modscope calibrate makes there" if sure.workspaces else ""
    return f"A run on the GPU would settle it (modscope predict --check){of_table and ',' + of_table}."


def _listed(words: list[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def describe(verdict: Verdict, spare: int, retries: str = "") -> str:
    """ "too close to tell: 94.00 MiB to spare is less than the 1.2 GiB by which it may be off: ..." ``spare``: by the
    figures; below 0 it is short by that. ``retries``: what ``describe_retries`` says."""
    left = f"{near_size(spare)} to spare" if spare >= 0 else f"short by {near_size(-spare)}"
    only = f", only because {retries}" if retries else ""
    return f"{OPEN}: {left}{only}. {describe_margin(verdict)}"


def describe_margin(verdict: Verdict) -> str:
    """ "That may be off by 1.2 GiB: ..." """
    return f"That may be off by {near_size(verdict.margin)}: {verdict.why}"


def in_table(verdict: Verdict) -> str:
    """ "too close to tell (1.2 GiB more or less)" """
    return f"{OPEN} ({near_size(verdict.margin)} more or less)"


def describe_retries(retries: int, per_step: int | None, unlimited: int) -> str:
    """How often the allocator gives memory back in a job that fits only so, and what it would reserve otherwise."""
    return f"{count_of_retries(retries, per_step)}; with more memory it would reserve {size(unlimited)}"


def count_of_retries(retries: int, per_step: int | None) -> str:
    """ "the allocator gives memory back 12 times in each step" """
    if per_step:
        return f"the allocator gives memory back {_times(per_step)} in each step"
    return f"the allocator gives memory back {_times(retries)}{', before the last step' if per_step == 0 else ''}"


def _times(number: int) -> str:
    return "once" if number == 1 else counted(number, "time")


# ---- another GPU than that of the capture ----


class OtherKernelsReport(TypedDict):
    """OtherKernels as JSON. ``sentence`` says both in words."""

    made: str
    command: str
    sentence: NotRequired[str]


class OtherKernels(NamedTuple):
    """A capture is of a GPU of another generation than the one that is asked about, which runs other kernels with other
    workspaces: its events say little about that one."""

    made: str
    """ "predicted on A100-SXM4-80GB" """
    label: str
    """The other GPU."""
    command: str
    """It predicts the program on that one."""

    @property
    def sentence(self) -> str:
        made = self.made[0].upper() + self.made[1:]
        return clean(f"{made}; {self.label} runs other kernels, so this may be wrong:  {self.command}")

    def as_json(self) -> OtherKernelsReport:
        return {"made": self.made, "command": self.command}


def other_kernels(capture: Capture, gpu: Gpu) -> OtherKernels | None:
    """None: the GPU runs the same kernels, or it is not known of which GPU the capture is. A GPU that is given by its
    memory is taken to be of the capture's generation."""
    info = {**capture.info, **(capture.end or {})}
    capability = _capability_of(info)
    if not is_described(gpu) or capability is None or rules_of(gpu._replace(capability=capability)) == rules_of(gpu):
        return None
    of = gpu_label(info["gpu_title"]) if info.get("gpu_title") else f"a GPU of capability {info['gpu_capability']}"
    verb = "predicted" if info.get("source") == "predicted" else "recorded"
    return OtherKernels(f"{verb} on {of}", gpu.label, _predict_command(capture, gpu.name))


def _predict_command(capture: Capture, gpus: str) -> str:
    ranks = ["--ranks", str(world)] if (world := world_of(capture)) > 1 else []
    program = program_words(capture.info) or ANY_SCRIPT
    return shlex.join(["modscope", "predict", "--gpu", gpus, *ranks, *program])


def about_several(capture: Capture, gpus: Sequence[Gpu]) -> list[str]:
    """What a table of GPUs says of those that run other kernels."""
    found = [(gpu, other) for gpu in gpus if (other := other_kernels(capture, gpu))]
    if not found:
        return []
    made = found[0][1].made
    names = ",".join(gpu.name for gpu, _ in found)
    command = _predict_command(capture, names if 2 * len(found) < len(GPUS) else "all")
    return [
        clean(
            f"{made[0].upper()}{made[1:]}; GPUs that are marked with * run other kernels, so their rows may be "
            f"wrong:  {command}"
        )
    ]


def _capability_of(info: Mapping[str, str]) -> tuple[int, int] | None:
    """The compute capability of the GPU on which a capture was made; recordings had its title only."""
    said = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", info.get("gpu_capability", ""), re.ASCII)
    if said:
        return int(said[1]), int(said[2])
    return next((gpu.capability for gpu in GPUS.values() if gpu.title == info.get("gpu_title")), None)
