"""The lines that ``modscope predict`` prints at the end. Needs no torch."""

from __future__ import annotations

import os
import shlex

from modscope._predict.result import Result, failed_early, has_failed, verdict_of
from modscope._read.text import clean, counted, describe_moment, rough_size, shorten_end, size
from modscope._virtual.certainty import OPEN, describe, describe_margin, describe_retries, describe_workspaces
from modscope._virtual.gpus import find_gpu
from modscope._virtual.outside import said_of

_MOST_OF_ERROR = 400  # columns
_MATTERS = 0.01  # of what was allocated: from this share on, operators without a rule are mentioned


def closing(result: Result, shown: str, loss: str | None, quiet: bool) -> list[str]:
    """``shown``: the capture's name; ``loss``: what happened to its file, if it is no longer there."""
    if quiet and not loss:
        return []
    if not used_gpu(result):
        no_gpu = [] if failed_early(result) else ['The script used no GPU: it uses one where its device is "cuda".']
        return [" ".join([_what(result), *no_gpu]), *hints(result), *notes(result)]
    if failed_early(result):
        lines = [_what(result), *hints(result), f"Until then: {_peaks(result)}"]
    else:
        verdict = f"{_gpu(result)} {_verdict(result)}{_time(result)}{_nvidia_smi(result)}"
        lines = [f"{_what(result)} {_peaks(result)}", verdict]
    lines += notes(result)
    return [*lines, _capture(result, shown, loss)] if shown else lines


def used_gpu(result: Result) -> bool:
    return result["peak"] is not None or result["out_of_memory"] is not None


# ---- the first line: what was run, and the peak ----


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 1.95 else f"{value:.1f} s"


def describe_error(result: Result) -> str:
    """ "ValueError: no", or with which status the script ended."""
    lines = result["error"].splitlines()
    return shorten_end(clean(lines[0]), _MOST_OF_ERROR) if lines else f"exit status {result['status']}"


_OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def hints(result: Result) -> list[str]:
    """What to do about errors of scripts that are for several ranks."""
    error, ranks = describe_error(result), result.get("ranks")
    if not has_failed(result):
        return []
    missing = [name for name in _OF_LAUNCHER if error == f"KeyError: '{name}'"]
    if missing and not ranks:
        return [f"torchrun would set {missing[0]}. Say how many ranks the script is to have, such as --ranks 8."]
    if "Mesh should not be bigger than default world size" in error:
        return ["The script's DeviceMesh has more ranks than there are. Say how many it needs, such as --ranks 64."]
    return []


def count_steps(result: Result) -> str:
    """ "3 steps"; "the script", if it took none."""
    of = "optimizer step" if result.get("are_optimizer_steps") else "step"
    return counted(result["steps"], of) if result["steps"] else "the script"


def _what(result: Result) -> str:
    done = count_steps(result)
    how = ""
    if failed_early(result):
        return (
            f"the script failed{as_rank(result)} before its first optimizer step, so whether it fits is not "
            f"known: {describe_error(result)}."
        )
    if result["timed_out"]:
        how = f", until it was stopped after {result['timed_out']:g} s, as --seconds says"
    elif result["ended"] == "interrupted":
        how = ", when it was interrupted"
    elif not result["fits"]:
        how = ", until memory ran out"
    elif has_failed(result):
        how = f", until the script failed ({describe_error(result)})"
    return f"predicted {done}{as_rank(result)} in {seconds(result['seconds'])}{how}."


def _peaks(result: Result) -> str:
    reserved, allocated = size(result["reserved_peak"]), size(result["allocated_peak"])
    if result["peak"] is None:
        return f"{result['device']} reserves nothing."
    when = describe_moment(**result["peak"])
    if result["reserved_moment"] is None:
        return f"{result['device']} reserves {reserved} at most ({allocated} allocated), {when}."
    before = describe_moment(**result["reserved_moment"])
    return f"{result['device']} reserves {reserved} at most, {before}, and allocates {allocated} at most, {when}."


# ---- the second line: the GPU ----


def _gpu(result: Result) -> str:
    context = rough_size(result["context"])
    return (
        f"{find_gpu(result['gpu']).label}: {rough_size(result['memory'])}, {context} of it for the CUDA "
        f"context{_communicators(result)}:"
    )


def _communicators(result: Result) -> str:
    ranks = result.get("ranks")
    if not ranks or not ranks["communicators"]:
        return ""
    return (
        f" and about {rough_size(ranks['communicator_bytes'])} for "
        f"{counted(ranks['communicators'], 'communicator')} of NCCL"
    )


def as_rank(result: Result) -> str:
    """Which rank a result is of, with a space before it."""
    ranks = result.get("ranks")
    return f" as rank {ranks['rank']} of {ranks['size']}" if ranks else ""


def _verdict(result: Result) -> str:
    compiled = result.get("compiled")
    return ("uncompiled, " if compiled and compiled["why_uncompiled"] else "") + _fits(result)


def _fits(result: Result) -> str:
    failed, verdict = result["out_of_memory"], verdict_of(result)
    if not result["fits"]:
        if verdict.answer == OPEN:
            return f"{OPEN}: {describe_failure(failed)}. {describe_margin(verdict)}"
        return f"it does not fit: {describe_failure(failed)}."
    if verdict.answer == OPEN:
        return describe(verdict, result["to_spare"], _retries(result))
    caught = ""
    if failed:
        times = "an allocation failed" if failed["count"] == 1 else f"{failed['count']} allocations failed"
        caught = f", after {times} and the script went on"
    only = f", but only because {often}" if (often := _retries(result)) else ""
    is_early = result["timed_out"] and not result["steps"]
    unknown = "so far " if has_failed(result) or result["ended"] == "interrupted" or is_early else ""
    return f"{unknown}it fits, with {rough_size(result['to_spare'])} to spare{only}{caught}."


def _retries(result: Result) -> str:
    """What is said of a script that fits only because the allocator gives memory back."""
    if not result.get("retries") or not result["reserved_unlimited"]:
        return ""
    return describe_retries(result["retries"], result["retries_per_step"], result["reserved_unlimited"])


def describe_failure(failed: Result) -> str:
    when = describe_moment(failed["step"], failed["phase"], failed["module"])
    return (
        f"an allocation of {size(failed['requested'])} failed {when}, when {size(failed['allocated'])} was "
        f"allocated and "
        f"{size(failed['reserved'])} reserved"
    )


def step_time(milliseconds: float) -> str:
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def _time(result: Result) -> str:
    return f" About {step_time(result['step_ms'])} a step." if result["step_ms"] else ""


def _nvidia_smi(result: Result) -> str:
    return f" {said_of(result['nvidia_smi'])}." if result.get("nvidia_smi") else ""


# ---- the others ----


_MOST_BREAKS = 3


def describe_compiled(result: Result) -> list[str]:
    """How torch.compile compiled the script; nothing, if it ran uncompiled, as a note says."""
    compiled = result.get("compiled")
    if not compiled or compiled["why_uncompiled"] and not compiled["graphs"]:
        return []
    breaks = compiled["graph_breaks"]
    parts = [counted(compiled["graphs"], "graph")]
    if breaks:
        places = ", ".join(f"{os.path.basename(each['file'])}:{each['line']}" for each in breaks[:_MOST_BREAKS])
        more = ", ..." if len(breaks) > _MOST_BREAKS else ""
        parts.append(f"{counted(len(breaks), 'graph break')} at {places}{more}")
    if compiled["recompiles"]:
        parts.append(counted(compiled["recompiles"], "recompile"))
    lines = [f"compiled: {', '.join(parts)}."]
    if failed := compiled["uncompiled_graphs"]:
        why = shorten_end(clean(compiled["why_uncompiled"]), _MOST_OF_ERROR)
        lines.append(f"{counted(failed, 'graph')} ran uncompiled, as Inductor failed: {why}")
    return lines


def notes(result: Result) -> list[str]:
    """How the script was compiled, what was done in another way than on a GPU, and what is not known."""
    lines = [*describe_compiled(result), *result["notes"]]
    if result.get("verdict") == OPEN and (made := describe_workspaces(result.get("workspaces") or {})):
        lines.append(made)
    unknown = result["bytes_without_rule"] or 0
    if unknown > _MATTERS * result["allocated_peak"]:
        lines.append(f"{size(unknown)} went through operators without a rule for their workspace.")
    return lines


def note_of_started(count: int) -> str:
    """What is said of a script that used no GPU itself, but started processes that did."""
    if count == 1:
        return "This is a process that the script started: the script itself used no GPU."
    return (
        f"The script itself used no GPU: of {count} processes that it started, this is the one that needs most memory."
    )


def _capture(result: Result, shown: str, loss: str | None) -> str:
    name = shlex.quote(shown)
    if loss:
        return f"the capture {name} {loss} during the run."
    see = f"tree {name} --at oom" if not result["fits"] else f"summary {name}"
    return f"wrote {name}. See it:  modscope {see}"
