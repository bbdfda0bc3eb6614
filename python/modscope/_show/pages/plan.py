"""What ``modscope plan`` says, for the page: plans for several budgets, each with the timeline that it would give."""

from __future__ import annotations

from collections.abc import Sequence

from modscope._fit.edited_timeline import POINTS, Window, describe_difference, lines_of, moments_of
from modscope._plan.plan import ROUGH_TIMES
from modscope._read.load import Capture
from modscope._read.sentence import Sentence
from modscope._read.summary import Report
from modscope._read.text import at_least, clean, counted, describe_moment, gpu_label, milliseconds, more_time, size

Edits = Sequence[tuple[object, ...]]
_COLUMNS = 160  # A sentence that names a module is not longer.


def changes(capture: Capture, made: Report, edits: Sequence[Edits], window: Window) -> Report:
    """What the page says about plans. ``made``: what make_plan tells; ``edits``: what a replay changes, by point of its
    curve."""
    device = made["device"]
    curves = [capture.replay(device, each, points=POINTS, window=window)["curve"] for each in edits]
    return {
        "verdict": _headline(made),
        "plan": {
            "device": capture.device_number(device),
            "verb": "allocated" if device == "cpu" else "reserved",
            "gpu": clean(gpu_label(made["gpu"])) if made["gpu"] else None,
            "capacity": made["budget"],
            "text": _verdict(made),
            "moments": moments_of(curves[0]),
            "points": [{**_point(made, point), **lines_of(curve)} for point, curve in zip(made["curve"], curves)],
            "modules": [_module(curve) for curve in made["module_curves"]],
        },
    }


def _point(made: Report, point: Report) -> Report:
    keys = ("reserved", "step_ms", "modules", "is_plan", "is_knee")
    more = more_time(made["before"]["step_ms"], point["step_ms"])
    name = f"checkpoint {', '.join(point['groups'])}" if point["modules"] else ""
    return {
        **{key: point[key] for key in keys},
        "groups": [clean(name) for name in point["groups"]],
        "name": clean(name),
        "time": f"{milliseconds(point['step_ms'])}{f' ({more})' if point['modules'] else ''}",
        "text": _sentence(made, point, more),
    }


def _module(curve: Report) -> Report:
    """What modules may keep, with the texts of the row and of its points."""
    count = f" (each of {curve['count']})" if curve["count"] > 1 else ""
    points = [{**point, "keep": clean(point["keep"]), "time": milliseconds(point["ms"])} for point in curve["points"]]
    return {"name": clean(curve["name"]), "count": count, "kept": curve["kept"], "points": points}


def _headline(made: Report) -> Sentence:
    """What the plan that was chosen checkpoints, reserves and costs."""
    plan = next((point for point in made["curve"] if point["is_plan"] and point["modules"]), None)
    room = f"{gpu_label(made['gpu'])}" if made["gpu"] else f"the budget of {size(made['budget'])}"
    before = made["before"]
    if plan is None:
        fits = before["reserved"] <= made["budget"]
        judged = "No module has to be checkpointed" if fits else "No plan was found"
        return [(judged, True), (clean(f": {size(before['reserved'])} of {room}."), False)]
    more = more_time(before["step_ms"], plan["step_ms"])
    spare = made["budget"] - plan["reserved"]
    judged = f"with {size(spare)} to spare" if spare >= 0 else f"short by {size(-spare)}"
    verb = "allocates" if made["device"] == "cpu" else "reserves"
    return [
        (f"With {counted(plan['modules'], 'module')} checkpointed", True),
        (clean(f" it {verb} {size(plan['reserved'])} instead of {size(before['reserved'])}: "), False),
        (clean(f"it {'fits' if spare >= 0 else 'does not fit'} {room}, {judged}"), True),
        (f". A step takes {milliseconds(plan['step_ms'])}, {more}.", False),
    ]


def _verdict(made: Report) -> str:
    verb = "allocated" if made["device"] == "cpu" else "reserved"
    before = at_least(made["is_lower_bound"], size(made["before"]["reserved"]))
    budget = size(made["budget"])
    room = f"{gpu_label(made['gpu'])} has {budget} beside the context." if made["gpu"] else f"The budget is {budget}."
    rough = [ROUGH_TIMES] if made["times"] == "host" else []
    return " ".join([clean(f"{made['device']} {verb} {before} at most. {room}"), *rough])


def _sentence(made: Report, point: Report, more: str) -> str:
    verb = "allocates" if made["device"] == "cpu" else "reserves"
    most = at_least(made["is_lower_bound"], size(point["reserved"]))
    when = describe_moment(point["step"], point["phase"], point["module"], columns=_COLUMNS)
    less = describe_difference(made["before"]["reserved"], point["reserved"])
    what = f"{made['device']} {verb} {most} at most, {less}; its peak is then {when}."
    room, whose = made["budget"] - point["reserved"], gpu_label(made["gpu"]) if made["gpu"] else "the budget"
    fits = (
        f"It fits {whose}, with {size(room)} to spare."
        if room >= 0
        else f"It does not fit {whose}: short by {size(-room)}."
    )
    time = (
        f"A step takes {milliseconds(point['step_ms'])}, {more} with {counted(point['modules'], 'module')} "
        f"checkpointed."
    )
    return clean(f"{what} {fits} {time}")
