"""``modscope plan``: which modules to checkpoint so that a run fits a budget, and what that costs. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from modscope._capture_types import CaptureError
from modscope._categories import Category
from modscope._groups import describe_numbers, is_number
from modscope._load import Capture
from modscope._plan_file import Plan, plan_of
from modscope._plan_problem import Choice, Problem, check_capture
from modscope._plan_search import EMPTY, Found, Search
from modscope._text import natural_key, rough_size
from modscope._virtual.gpus import Gpu

Report = dict[str, Any]

_CURVE = 6  # points
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


# ---- names ----


def _key(name: str) -> tuple[str, int | None]:
    """The name with * for its last number, and that number."""
    parts = name.split(".")
    for i in range(len(parts) - 1, -1, -1):
        if is_number(parts[i]):
            return ".".join([*parts[:i], "*", *parts[i + 1 :]]), int(parts[i])
    return name, None


def group_names(names: Iterable[str], among: Iterable[str] = ()) -> list[str]:
    """ "GPT2.h.{0-5}.mlp (6 of 12)": modules whose names differ in their last number together. ``among``: all that there are."""
    there: dict[str, int] = {}
    for name in among:
        there[_key(name)[0]] = there.get(_key(name)[0], 0) + 1
    groups: dict[str, list[int]] = {}
    for name in sorted(names, key=natural_key):
        pattern, number = _key(name)
        groups.setdefault(pattern, []).append(-1 if number is None else number)
    lines = []
    for pattern, numbers in groups.items():
        total = there.get(pattern, 0)
        if numbers == [-1] or len(numbers) == 1:
            text = pattern.replace("*", str(numbers[0]))
        else:
            text = pattern.replace("*", "*" if len(numbers) == total else "{" + describe_numbers(numbers).replace(" ", "") + "}")
        lines.append(f"{text} ({len(numbers)} of {total})" if total > 1 else text)
    return lines


# ---- the plan ----


def make_plan(file: str, capture: Capture, device: str, budget: int, gpu: Gpu | None = None, use_highs: bool = True) -> tuple[Report, Plan]:
    """CaptureError says why there is no plan."""
    check_capture(capture)
    problem = Problem(capture, device)
    search = Search(problem, use_highs)
    found = search.find(budget)
    if found is None:
        raise CaptureError(_describe_too_small(problem, search, budget))
    before, after = _figures(problem, EMPTY), _figures(problem, found.choice)
    times = {"before": before["step_ms"], "after": after["step_ms"]}
    plan = plan_of(
        problem.names(found.choice),
        {
            "capture": file,
            "device": device,
            "budget": budget,
            "gpu": gpu.name if gpu else None,
            "reserved": {"before": before["reserved"], "after": after["reserved"]},
            "step_ms": times,
            "torch": capture.info.get("rules") or capture.info.get("torch"),
        },
    )
    report = {
        "device": device,
        "budget": budget,
        "gpu": gpu.title if gpu else None,
        "before": before,
        "after": after,
        "checkpoint": plan.checkpoint,
        "groups": group_names(problem.names(found.choice), [candidate.name for candidate in problem.candidates]),
        "solver": found.how if found.choice else None,
        "has_solver": search.has_highs,
        "bound_ms": None if found.bound is None else 1e3 * (problem.step_seconds + found.bound),
        "curve": _curve(problem, search, budget, found),
        "times": _clock(capture, device),
        "steps": problem.steps,
        "is_lower_bound": capture.is_lower_bound,
    }
    return report, plan


def _clock(capture: Capture, device: str) -> str:
    """Whose times the capture has: the device's, or those of the host, which runs ahead of a GPU."""
    return "device" if device == "cpu" or capture.info.get("clock") == "virtual" else "host"


def _figures(problem: Problem, choice: Choice) -> Report:
    verified = problem.verify(choice)
    seconds = problem.step_seconds + problem.seconds(choice)
    where = {"step": verified.step, "phase": verified.phase, "module": _module(problem, verified.path)}
    return {"reserved": verified.reserved, "allocated": verified.allocated, "step_ms": 1e3 * seconds, **where}


def _module(problem: Problem, path: int) -> str:
    names = problem.capture.module_names
    return names[path] if path < len(names) else "?"


def _curve(problem: Problem, search: Search, budget: int, found: Found) -> list[Report]:
    """What other budgets would take: from no plan to the one that reserves least."""
    names = [candidate.name for candidate in problem.candidates]
    highest, lowest = problem.reserved(EMPTY), problem.reserved(search.least())
    choices = {EMPTY, found.choice}
    for i in range(1, _CURVE):
        other = Search(problem, use_highs=False).find(lowest + (highest - lowest) * (_CURVE - 1 - i) // (_CURVE - 1))
        if other:
            choices.add(other.choice)
    points = sorted(choices, key=lambda choice: (-problem.reserved(choice), problem.seconds(choice), sorted(choice)))
    kept: list[Choice] = []
    for choice in points:
        while kept and problem.seconds(kept[-1]) >= problem.seconds(choice) and kept[-1] != found.choice:
            kept.pop()  # it takes more memory and as much time
        kept.append(choice)
    return [{**_figures(problem, choice), "groups": group_names(problem.names(choice), names), "is_plan": choice == found.choice} for choice in kept]


def _lasting_bytes(problem: Problem) -> dict[str, int]:
    """By category: what no checkpointing frees, at the peak of the run."""
    sums = problem.capture.snapshot("peak", problem.device).totals[problem.device]
    return {category: sums.get(category, 0) for category in _LASTING}


def _describe_too_small(problem: Problem, search: Search, budget: int) -> str:
    least = problem.reserved(search.least())
    lasting = _lasting_bytes(problem)
    remain = rough_size(sum(lasting.values()))
    what = "allocates" if problem.is_cpu else "reserves"
    begin = f"The run does not fit {rough_size(budget)} by checkpointing alone: "
    if lasting[Category.PARAM] > budget:
        return f"{begin}its parameters take {rough_size(lasting[Category.PARAM])}. For what else would help:  modscope fit"
    if not problem.candidates:
        return f"{begin}no module below a root module keeps anything for backward. For what else would help:  modscope fit"
    return (
        f"{begin}with every module that helps checkpointed it still {what} {rough_size(least)}. "
        f"{remain} of parameters, buffers, gradients and state remain. For what else would help:  modscope fit"
    )
