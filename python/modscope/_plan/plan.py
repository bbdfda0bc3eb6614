"""``modscope plan``: which modules to checkpoint so that a run fits a budget, and what that costs. Needs no torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from modscope._plan.curves import choices_of_curve, curves_of_modules, knee_of
from modscope._plan.file import Plan
from modscope._plan.highs import is_available
from modscope._plan.problem import Choice, PlanLimits, Problem, check_capture
from modscope._plan.search import EMPTY, Found, Search
from modscope._read.categories import Category
from modscope._read.load import Capture
from modscope._read.ranks import world_of
from modscope._read.step_time import step_time
from modscope._read.text import rough_size, size
from modscope._read.types import CaptureError
from modscope._virtual.gpus import Gpu

Report = dict[str, Any]

ROUGH_TIMES = (
    "The times are those of the host, which runs ahead of the GPU: take them as rough. A prediction has "
    "the times of a GPU."
)

_MARGIN = 100
"""The part of a budget that is left free: with the same blocks in another order, a real run was seen to reserve 1 %
more."""
_CARE = 0.02  # of a step: what leaving it free may cost
_CERTAINTY = 0.1  # of a step: what a plan may cost more of which nothing says that it may need more than the budget
_VERIFICATIONS = 4  # at most, of plans that are found for the budget
_MOST_VERIFICATIONS = 10  # with those that save much, where none of the others fits
_LEAST_GAIN = 0.01  # of the budget: where a prediction leaves less of it than this, no faster plan is searched for
_LASTING = (Category.PARAM, Category.BUFFER, Category.GRAD, Category.OPT)


# ---- a budget ----


def parse_bytes(text: str) -> int:
    """The bytes of "22GiB", "900 MB" or a number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(|b|[kmgt]i?b)", re.sub(r"\s", "", text.lower()))
    if not found or float(found[1]) == 0:
        raise ValueError(f"{text!r} is not an amount of memory: give it as 22GiB, 900MB or a number of bytes")
    unit = found[2]
    each = 1 if unit in ("", "b") else (1024 if "i" in unit else 1000) ** (1 + "kmgt".index(unit[0]))
    return int(float(found[1]) * each)


# ---- the plan ----


Verify = Callable[[Plan], "Report | None"]
"""Predicts a script with a plan: the figures, as _figures has them, or None if the plan could not be applied to it."""


def make_plan(
    file: str,
    capture: Capture,
    device: str,
    budget: int,
    gpu: Gpu | None = None,
    use_highs: bool = True,
    verify: Verify | None = None,
    limits: PlanLimits = PlanLimits(),  # noqa: B008
) -> tuple[Report, Plan]:
    """What the command tells of a plan, and the plan. With ``verify`` the plan's figures are those of a prediction with
    it. CaptureError says why there is none."""
    check_capture(capture)
    problem = Problem(capture, device, limits)
    search = Search(problem, use_highs)
    ranks = ["--ranks", str(world_of(capture))] if verify is not None and world_of(capture) > 1 else []
    advice = "For what else would help:  modscope fit " + shlex.join(
        [file, *(["--gpu", gpu.name] if gpu else []), *ranks]
    )
    tried = None if verify is None else _Verification(problem, budget, verify)
    found, verified = (
        (_find_replayed(problem, search, budget), None)
        if tried is None
        else _find_verified(problem, search, budget, tried, advice)
    )
    if found is None:
        raise CaptureError(_describe_too_small(problem, search, budget, advice))
    before, planned = _figures(problem, EMPTY), _figures(problem, found.choice)
    after = verified or planned
    facts = {
        "capture": file,
        "device": device,
        "budget": budget,
        "gpu": gpu.name if gpu else None,
        **{key: {"before": before[key], "after": after[key]} for key in ("reserved", "step_ms")},
        "torch": capture.info.get("rules") or capture.info.get("torch"),
    }
    plan = problem.plan(found.choice, facts)
    report = {
        "device": device,
        "budget": budget,
        "gpu": gpu.title if gpu else None,
        "before": before,
        "after": after,
        "planned": planned,
        "is_verified": verified is not None,
        "too_large": sorted(reserved for reserved in tried.seen.values() if reserved > budget) if tried else [],
        "checkpoint": plan.checkpoint,
        "keep": plan.keep_as_json(),
        "has_operators": capture.stream.has_operators,
        "groups": problem.groups(found.choice),
        "solver": found.how if found.choice else None,
        "has_solver": search.has_highs,
        "is_solver_installed": is_available(),
        "bound_ms": None if found.bound is None else 1e3 * (problem.step.total + found.bound),
        "curve": _curve(problem, search, found),
        "module_curves": curves_of_modules(problem),
        "times": _times_of(capture, device),
        "steps": problem.steps,
        "is_lower_bound": capture.is_lower_bound,
    }
    return report, plan


def _find_replayed(problem: Problem, search: Search, budget: int) -> Found | None:
    """The fastest choice within the budget; or one that stays within it, or within it with a margin, whatever is not
    known of lifetimes, if that takes little more time."""
    found = search.find(budget)
    if found is None or not found.choice or problem.is_cpu:
        return found
    careful = Search(problem, search.has_highs, is_careful=True)
    for target, most in ((budget - budget // _MARGIN, _CARE), (budget, _CERTAINTY)):
        other = careful.find(target)
        if other and problem.seconds(other.choice) - problem.seconds(found.choice) <= most * problem.step.total:
            return other if other.bound is not None else other._replace(bound=found.bound)
    return found


class _Verification:
    """Predictions of choices: the fastest one within the budget."""

    def __init__(self, problem: Problem, budget: int, verify: Verify) -> None:
        self._problem, self._budget, self._verify = problem, budget, verify
        self.best: tuple[Found, Report] | None = None
        self.seen: dict[Choice, int] = {}
        """What each choice reserves."""

    def attempt(self, found: Found) -> int:
        """What the choice reserves. CaptureError if it cannot be applied."""
        figures = self._verify(self._problem.plan(found.choice))
        if figures is None:
            raise CaptureError(
                "The plan cannot be applied to the script: its modules are not called as modules of the model "
                "that it was made from"
            )
        reserved: int = figures["reserved"]
        self.seen[found.choice] = reserved
        if reserved <= self._budget and (self.best is None or figures["step_ms"] < self.best[1]["step_ms"]):
            self.best = found, figures
        return reserved


def _find_verified(
    problem: Problem, search: Search, budget: int, tried: _Verification, advice: str
) -> tuple[Found | None, Report | None]:
    """The fastest choice whose prediction stays within the budget. What the replay of a choice and its prediction
    differ by is taken into account in the next search. Where none of these fits, choices that save much are predicted.
    CaptureError if no prediction stays within the budget."""
    target = budget
    careful = Search(problem, search.has_highs, is_careful=True)
    for number in range(_VERIFICATIONS):
        found = careful.find(budget) if number == 1 and tried.best is None else search.find(target)
        if found is None or found.choice in tried.seen:
            if number == 1 and tried.best is None:
                continue
            break
        if not found.choice:
            return found, None  # it is the prediction itself
        reserved = tried.attempt(found)
        lower = budget - (reserved - problem.reserved(found.choice))
        if reserved <= budget and lower <= target + _LEAST_GAIN * budget:
            break
        target = min(lower, problem.reserved(EMPTY) - 1)
    for choice in _saving_most(problem, search, budget):
        if tried.best or len(tried.seen) >= _MOST_VERIFICATIONS:
            break
        if choice not in tried.seen:
            tried.attempt(Found(choice, "greedy", None))
    if tried.best is None and tried.seen:
        raise CaptureError(
            f"No plan was found that stays within {rough_size(budget)} when the script is predicted with it: the "
            f"lowest of {len(tried.seen)} that were predicted reserved {rough_size(min(tried.seen.values()))}. {advice}"
        )
    return tried.best or (None, None)


def _saving_most(problem: Problem, search: Search, budget: int) -> list[Choice]:
    """Choices that may fit, as far as allocated bytes tell, those that reserve least first."""
    choices = [
        choice for choice in dict.fromkeys(search.deep_choices) if choice and problem.verify(choice).allocated <= budget
    ]
    return sorted(choices, key=lambda choice: (problem.reserved(choice), sorted(choice)))


def verified_figures(capture: Capture, device: str) -> Report:
    """Those of a run, as _figures has them."""
    peak = capture.peaks[device]
    return {
        "reserved": (reserved := capture.reserved.get(device) or peak.bytes),
        "reserved_range": [reserved, reserved],
        "allocated": peak.bytes,
        "step_ms": 1e3 * step_time(capture).total,
        "step": peak.step,
        "phase": peak.phase,
        "module": peak.module,
    }


def _times_of(capture: Capture, device: str) -> str:
    """Whose times the capture has: the device's, or those of the host, which runs ahead of a GPU."""
    has_gpu_times = capture.info.get("clock") == "virtual" or capture.stream.has_gpu_times
    return "device" if device == "cpu" or has_gpu_times else "host"


def _figures(problem: Problem, choice: Choice) -> Report:
    verified = problem.verify(choice)
    seconds = problem.step.total + problem.seconds(choice)
    where = {"step": verified.step, "phase": verified.phase, "module": _module(problem, verified.path)}
    return {
        "reserved": verified.reserved,
        "reserved_range": list(problem.range_of(choice)),
        "allocated": verified.allocated,
        "step_ms": 1e3 * seconds,
        **where,
    }


def _module(problem: Problem, path: int) -> str:
    names = problem.capture.module_names
    return names[path] if path < len(names) else "?"


def _curve(problem: Problem, search: Search, found: Found) -> list[Report]:
    """Plans for several budgets, with the knee."""
    choices = choices_of_curve(problem, search, found)
    knee = knee_of([(problem.reserved(choice), problem.seconds(choice)) for choice in choices])
    return [
        {**_point(problem, choice, choice == found.choice), "is_knee": i == knee} for i, choice in enumerate(choices)
    ]


def _point(problem: Problem, choice: Choice, is_plan: bool) -> Report:
    return {
        **_figures(problem, choice),
        "modules": len(choice),
        "groups": problem.groups(choice),
        "is_plan": is_plan,
        "edits": problem.edits(choice),
    }


def _lasting_bytes(problem: Problem) -> dict[str, int]:
    """By category: what no checkpointing frees, at the peak of the run."""
    sums = problem.capture.snapshot("peak", problem.device).totals[problem.device]
    return {category: sums.get(category, 0) for category in _LASTING}


def _describe_too_small(problem: Problem, search: Search, budget: int, advice: str) -> str:
    least = problem.reserved(search.least())
    lasting = _lasting_bytes(problem)
    remain = size(sum(lasting.values()))
    what = "allocates" if problem.is_cpu else "reserves"
    begin = f"The run does not fit {size(budget)} by checkpointing alone: "
    if lasting[Category.PARAM] > budget:
        return f"{begin}its parameters take {size(lasting[Category.PARAM])}. {advice}"
    if not problem.candidates:
        return f"{begin}no module below a root module keeps anything for backward. {advice}"
    return (
        f"{begin}with every module that helps checkpointed it still {what} {size(least)}. "
        f"{remain} of parameters, buffers, gradients and state remain. {advice}"
    )
