"""``modscope plan``: which modules to checkpoint so that a run fits a budget."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from contextlib import nullcontext

from modscope._cli.command import Command, Load, Parser
from modscope._cli.common import find_device, notes, page_address
from modscope._cli.options import (
    add_device,
    add_force,
    add_output,
    add_page,
    add_prediction,
    check_ranks,
    one_gpu,
    read_value,
)
from modscope._fit.activation_budget import SETTING, predict_budgets
from modscope._fit.capacity import may_reserve, nccl_bytes
from modscope._fit.edited_timeline import Window
from modscope._fit.job import Job
from modscope._fit.levers.fsdp2 import why_not_over
from modscope._fit.sharding import edits as sharding_edits
from modscope._fit.sharding import uses_fsdp2
from modscope._fit.two_captures import join
from modscope._fit.verdict import answer
from modscope._plan.file import Plan
from modscope._plan.plan import ROUGH_TIMES, Verify, make_plan, verified_figures
from modscope._plan.problem import PlanLimits
from modscope._predict.capture_of_script import PredictedScript, is_compiled
from modscope._predict.options import records_of
from modscope._read.load import Capture, CaptureError
from modscope._read.own_files import PAGE, PLAN
from modscope._read.ranks import world_of
from modscope._read.script_arguments import ANY_SCRIPT, program_words, script_words
from modscope._read.summary import Report, file_report
from modscope._read.text import clean, counted, gpu_label, milliseconds, more_time, near_size, rough_size, size
from modscope._show.output_file import check, create
from modscope._show.pages import fit
from modscope._show.pages import plan as _plan_page
from modscope._show.pages.report import Source, page
from modscope._show.terminal import Screen
from modscope._virtual.certainty import OPEN, Verdict, certainty_of, describe, judge, other_kernels
from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.ranks.network import communicator_bytes

_GROUPS = 12  # that are listed
_MODULES = 5  # whose curves are listed
_BAR = 10
_MANY_GAPS = 0.3  # of what is allocated: from here on a replay and a run were seen to differ by 20 %
_EXACT = 0.01  # of what is reserved: a plan whose figure may be off by more says by how much
_ABOUT_RANKS = (
    "The figures are those of each of {} ranks with FSDP2 (fully_shard), which are inferred; the times are those of "
    "one process, without communication. Apply the plan before fully_shard."
)
_GPU = "h100"  # on which a script is predicted, where a budget is given and no GPU


def _bytes(text: str) -> int:
    from modscope._plan.plan import parse_bytes

    return int(read_value(parse_bytes, text))


def add_options(parser: Parser) -> None:
    file = "a capture; or a script, which is predicted, and predicted again with the plan"
    parser.add_argument("file", metavar="FILE", help=file)
    other = "of a run that died: a predicted capture of the same program, from which what is missing is taken"
    parser.add_argument("other", metavar="PREDICTED", nargs="?", help=other)
    gpu = "a GPU by name, or its memory as 24GiB: the budget is its memory without the context"
    parser.add_argument("--gpu", type=one_gpu, metavar="GPU", help=gpu)
    budget = "what may be reserved, such as 22GiB; with --gpu, a script is predicted on that GPU"
    parser.add_argument("--budget", type=_bytes, metavar="BYTES", help=budget)
    parser.add_argument(
        "--whole-modules", action="store_true", help="checkpointed modules keep no results of operators"
    )
    only = "checkpoint only modules whose names match, such as 'GPT.h.*'; * stands for dots too; may be repeated"
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help=only)
    without = "checkpoint no modules whose names match; may be repeated"
    parser.add_argument("--not", action="append", default=[], metavar="PATTERN", dest="without", help=without)
    add_output(parser, "write the plan to this file, for --plan and modscope.apply")
    add_page(parser, "draws plans over the run's timeline")
    add_force(parser, "a file that is written")
    parser.add_argument("--greedy", action="store_true", help="do not use HiGHS, even if it is installed")
    add_device(parser)
    add_prediction(parser, of_captures="; of a capture: over how many GPUs it is sharded")


def report(arguments: Namespace, load: Load) -> Report:
    if arguments.report == "-":
        arguments.error("--report needs the name of a file")
    if not arguments.gpu and not arguments.budget:
        arguments.error("give --gpu, --budget or both")
    if arguments.target:
        return _of_script(arguments, load)
    check_ranks(arguments)
    capture = load(arguments.file)
    about: list[str] = []
    if arguments.other is not None:
        job, about = join(Job(arguments.file, arguments.device, capture), Job(arguments.other, arguments.device))
        capture = job.capture
    edits = _over_ranks(arguments, capture)
    made, plan = _make(arguments, arguments.file, capture, edits=edits)
    _write(arguments, plan)
    about += [_ABOUT_RANKS.format(arguments.ranks[0])] if edits else []
    return {
        **file_report(arguments.file, capture),
        **made,
        "script": None,
        "program": program_words(capture.info) or None,
        "notes": [*about, *_about_verdict(made)],
        "output": arguments.output,
        "activation_budgets": None,
    }


def _over_ranks(arguments: Namespace, capture: Capture) -> _plan_page.Edits:
    """What is different on one of as many ranks as were asked for, with FSDP2."""
    if not arguments.ranks:
        return []
    job, ranks = Job(arguments.file, arguments.device, capture), arguments.ranks[0]
    if ranks == 1 or world_of(capture) > 1 or uses_fsdp2(job):
        arguments.error(
            f"--ranks {ranks}: a capture of one process is planned for more ranks with FSDP2. This one is of a rank "
            "already, or there is nothing to divide: leave the option out, or give the script"
        )
    found = sharding_edits(job, ranks)
    if not found:
        raise CaptureError(f"What each of {ranks} ranks takes is not known: {why_not_over(job)}")
    return found


def _judged(made: Report, capture: Capture, gpu: Gpu | None) -> Report:
    """Whether the job fits the GPU with the plan, and whether it is known of which GPU the capture is."""
    if gpu is None:
        return {}
    nccl, spare = nccl_bytes(capture), made["budget"] - made["after"]["reserved"]
    sure = certainty_of(gpu, capture, made["device"], made["after"]["reserved"], nccl)
    found = judge(sure, spare, made["budget"], True, 0, lambda capacity: True)
    other = other_kernels(capture, gpu)
    return {**found.as_json(), "other_kernels": {**other.as_json(), "sentence": other.sentence} if other else None}


def _about_verdict(made: Report) -> list[str]:
    lines = [made["other_kernels"]["sentence"]] if made.get("other_kernels") else []
    if made.get("verdict") == OPEN:
        found = Verdict(made["verdict"], made["margin"], made["why"])
        which = "With the plan it is" if made["checkpoint"] else "It is"
        lines.append(f"{which} {describe(found, made['budget'] - made['after']['reserved'])}")
    return lines


def _make(
    arguments: Namespace, file: str, capture: Capture, verify: Verify | None = None, edits: _plan_page.Edits = ()
) -> tuple[Report, Plan]:
    device = find_device(capture, arguments.device) or capture.main_device
    budget = arguments.budget or may_reserve(arguments.gpu, capture)
    if edits and not arguments.budget:
        budget = max(budget - communicator_bytes(arguments.ranks[0]), 0)
    gpu = None if arguments.budget else arguments.gpu
    limits = PlanLimits(not arguments.whole_modules, tuple(arguments.only), tuple(arguments.without), tuple(edits))
    nccl = communicator_bytes(arguments.ranks[0]) if edits else nccl_bytes(capture)
    page_file = create(arguments.report, PAGE, arguments.force) if arguments.report else nullcontext()
    with page_file as html:
        made, plan = make_plan(arguments.file, capture, device, budget, gpu, not arguments.greedy, verify, limits)
        changes = [point.pop("edits") for point in made["curve"]]
        if html:
            html.write(_page(arguments, file, capture, made, changes))
    judged = _judged(made, capture, gpu)
    return {**made, **judged, "report": arguments.report, "communicator_bytes": nccl}, plan


def _page(arguments: Namespace, file: str, capture: Capture, made: Report, edits: list[_plan_page.Edits]) -> bytes:
    """The capture with its plans and, for a GPU, with what else would help."""
    found = answer(Job(file, made["device"], capture), arguments.gpu) if arguments.gpu else None

    def changes(window: Window) -> Report:
        plans = _plan_page.changes(capture, made, edits, window)
        return {**fit.changes(found, window), **plans} if found else plans

    return page([Source(arguments.file, capture, changes)]).html.encode()


def _write(arguments: Namespace, plan: Plan) -> None:
    if arguments.output:
        with create(arguments.output, PLAN, arguments.force) as file:
            file.write(plan.as_json().encode())


def _of_script(arguments: Namespace, load: Load) -> Report:
    """The script is predicted, and predicted again with the plan that is shown."""
    gpu = arguments.gpu or find_gpu(_GPU)
    check_ranks(arguments)
    if arguments.output:
        check(arguments.output, PLAN, arguments.force)
    with PredictedScript(*records_of(arguments)) as script:
        predicted = script.predict([gpu])
        capture = load(predicted)
        if capture.main_device == "cpu":
            raise CaptureError(f'{script.name} used no GPU: it uses one where its device is "cuda"')

        def verify(plan: Plan) -> Report | None:
            again = load(script.predict([gpu], f"with {counted(len(plan.modules), 'module')} checkpointed", plan=plan))
            return verified_figures(again, again.main_device) if again.phases["recompute"].blocks else None

        budgets = (
            [point._asdict() for point in predict_budgets(script, gpu, predicted)] if is_compiled(predicted) else None
        )
        try:
            made, plan = _make(arguments, predicted, capture, verify)
        except CaptureError as error:
            raise CaptureError(" ".join([str(error), *_budgets_in_words(budgets or [])])) from None
        _write(arguments, plan)
        about = {"script": script.target, "program": script.target, "notes": _about_verdict(made)}
        written = {"output": arguments.output, "activation_budgets": budgets}
        return {**file_report(script.name, capture), **made, **about, **written}


def _budgets_in_words(points: list[Report]) -> list[str]:
    """Where there is no plan."""
    found = [f"{point['budget']:g} reserves {near_size(point['reserved'])}" for point in points[1:]]
    if not found:
        return []
    own = near_size(points[0]["reserved"])
    return [f"{SETTING}, of what torch.compile compiled ({own} as it is): {', '.join(found)}."]


# ---- as text ----


def _more_time(result: Report, figures: Report) -> str:
    return more_time(result["before"]["step_ms"], figures["step_ms"])


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    verb = "allocated" if result["device"] == "cpu" else "reserved"
    out = _beginning(result, verb, screen)
    page_line = page_address(result["report"]) if result["report"] else []
    if not result["checkpoint"]:
        as_it_is = "No module" if result.get("verdict") == OPEN else "It fits as it is: no module"
        out.append(f"{as_it_is} has to be checkpointed.")
        return [*out, *_activation_budgets(result, screen), *notes(result, screen), *page_line]
    out += ["", screen.bold("Checkpoint"), *_groups(result["groups"], screen), ""]
    out += screen.table(("", verb, "time of a step", ""), _before_and_after(result), left=[0])
    solver = _solver(result, screen)
    out += [
        *_verification(result, screen),
        *_uncertainty(result, screen),
        "",
        *solver,
        *[""] * bool(solver),
        *_curve(result, screen),
        *_module_curves(result, screen),
        *_activation_budgets(result, screen),
        *_hints(result, screen, arguments),
    ]
    return out + ["", *_how_to_apply(result, arguments, screen), *notes(result, screen), *page_line]


def _beginning(result: Report, verb: str, screen: Screen) -> list[str]:
    """What was needed and what there is: on one line, or each on its own if that is too long."""
    budget = near_size(result["budget"])
    before = near_size(result["before"]["reserved"])
    needed = (
        f"{clean(result['device'])} {verb} {f'at least {before}' if result['is_lower_bound'] else f'{before} at most'}."
    )
    nccl = f" and about {rough_size(result['communicator_bytes'])} for NCCL" if result.get("communicator_bytes") else ""
    room = (
        f"{clean(gpu_label(result['gpu']))} has {budget} beside the context{nccl}."
        if result["gpu"]
        else f"The budget is {budget}."
    )
    whole = screen.wrap(f"{needed} {room}")
    lines = whole if len(whole) == 1 else [*screen.wrap(needed), *screen.wrap(room)]
    return [*lines, *(line for sentence in result["notes"] for line in screen.wrap(sentence))]


def _groups(groups: list[str], screen: Screen) -> list[str]:
    shown = groups if len(groups) <= _GROUPS else groups[: _GROUPS - 1]
    lines = [f"  {screen.fit(name, screen.width - 2)}" for name in shown]
    return (
        lines
        if len(shown) == len(groups)
        else [*lines, f"  ({len(groups) - len(shown)} more lines; the plan file has all)"]
    )


def _before_and_after(result: Report) -> list[tuple[str, str, str, str]]:
    before, after = result["before"], result["after"]
    return [
        ("before", near_size(before["reserved"]), milliseconds(before["step_ms"]), ""),
        ("after", _reserved(after), milliseconds(after["step_ms"]), _more_time(result, after)),
    ]


def _range(figures: Report) -> tuple[int, int] | None:
    """The least and the most that may be reserved; None: the figure is right within 1 %."""
    least, most = figures.get("reserved_range") or (figures["reserved"], figures["reserved"])
    is_exact = most - figures["reserved"] <= _EXACT * most and figures["reserved"] - least <= _EXACT * least
    return None if is_exact else (least, most)


def _reserved(figures: Report) -> str:
    found = _range(figures)
    return near_size(figures["reserved"]) + (f" ({near_size(found[0])} to {near_size(found[1])})" if found else "")


def _uncertainty(result: Report, screen: Screen) -> list[str]:
    """By how much the plan's figure may be off."""
    found = _range(result["after"])
    if found is None:
        return []
    least, most = found
    reserved, budget = result["after"]["reserved"], result["budget"]
    low, high = 100 * (least / reserved - 1), 100 * (most / reserved - 1)
    above = f", which is {size(most - budget)} more than the budget" if most > budget else ""
    return screen.wrap(
        f"What the script reserves with the plan may be off by {low:+.1f} % to {high:+.1f} %: from {size(least)} to "
        f"{size(most)}{above}. How long Python holds the tensors of checkpointed modules is not in the capture, and "
        f"other lifetimes leave other gaps. The plan of a script is verified (modscope plan "
        f"{clean(script_words(result['program'] or ANY_SCRIPT))}), and so is this one by predicting the script with it "
        "(modscope predict --plan). expandable_segments:True leaves fewer gaps."
    )


def _verification(result: Report, screen: Screen) -> list[str]:
    if not result["is_verified"]:
        return []
    planned = result["planned"]
    return screen.wrap(
        f"Verified: the script was predicted again with the plan. The replay from which it was planned gave "
        f"{size(planned['reserved'])} and {milliseconds(planned['step_ms'])}.{_too_large(result['too_large'])}"
    )


def _too_large(reserved: list[int]) -> str:
    """What plans reserve that were predicted, and not taken. ``reserved``: the least first."""
    if not reserved:
        return ""
    plans = "Another plan reserves" if len(reserved) == 1 else "Other plans reserve"
    least = size(reserved[0]) + (" or more" if len(reserved) > 1 else "")
    return f" {plans} {least} when the script is predicted with {'it' if len(reserved) == 1 else 'them'}: too much."


def _solver(result: Report, screen: Screen) -> list[str]:
    if not result["has_solver"] and result["is_solver_installed"]:
        return screen.wrap(
            "The plan was found greedily, as asked. Without --greedy, HiGHS may find a better one, and gives a bound."
        )
    if not result["has_solver"]:
        return screen.wrap(
            "The plan was found greedily. HiGHS (pip install 'modscope[plan]') may find a better one, and gives a "
            "bound."
        )
    least = _least_time(result)
    if not least:
        return []
    if result["device"] == "cpu":
        return screen.wrap(f"HiGHS: if what modules save adds up, any plan takes about {least} or more.")
    return screen.wrap(
        f"HiGHS: if what modules save adds up, any plan takes about {least} or more, even if the allocator "
        f"reserved no more than is allocated."
    )


def _least_time(result: Report) -> str:
    """ "+1.2 %": what any plan takes. "": that is not known, or says nothing, as it is zero."""
    if result["bound_ms"] is None or not result["before"]["step_ms"]:
        return ""
    more = f"{100 * (result['bound_ms'] / result['before']['step_ms'] - 1):.1f}"
    return f"+{more} %" if float(more) > 0 else ""


def _curve(result: Report, screen: Screen) -> list[str]:
    if len(result["curve"]) < 3:
        return []
    highest = max(point["reserved"] for point in result["curve"])
    rows = []
    for point in result["curve"]:
        bar = screen.bar(point["reserved"] / highest, _BAR)
        marks = [name for name in ("plan", "knee") if point[f"is_{name}"]]
        mark = f" <- the {', '.join(marks)}" if marks else ""
        modules = counted(point["modules"], "module") if point["modules"] else "no plan"
        rows.append((bar, _reserved(point), _more_time(result, point), modules + mark))
    return screen.table(("Other budgets", "", "time", "checkpoint"), rows, left=[0])


def _module_curves(result: Report, screen: Screen) -> list[str]:
    """What modules keep, and how long computing it again takes in a step; the same at the knee."""
    rows = []
    for curve in result["module_curves"][:_MODULES]:
        name = curve["name"] + (f" (each of {curve['count']})" if curve["count"] > 1 else "")
        rows.append((near_size(curve["kept"]), milliseconds(curve["points"][-1]["ms"]), name))
        rows += [
            (near_size(point["kept"]), milliseconds(point["ms"]), f"  {point['keep']}  <- the knee")
            for point in curve["points"]
            if point["is_knee"]
        ]
    return ["", *screen.table(("A module keeps", "all again", "module"), rows)] if rows else []


def _activation_budgets(result: Report, screen: Screen) -> list[str]:
    """What the budgets of torch.compile itself do, each predicted."""
    points = result["activation_budgets"]
    if not points:
        return []
    highest, own = max(point["reserved"] for point in points), points[0]
    rows = []
    for point in points:
        name = "as it is" if point["budget"] is None else f"{point['budget']:g}"
        mark = "" if point["reserved"] <= result["budget"] else "more than the budget"
        rows.append(
            (
                screen.bar(point["reserved"] / highest, _BAR),
                near_size(point["reserved"]),
                more_time(own["step_ms"], point["step_ms"]) if point is not own else "",
                name,
                mark,
            )
        )
    about = screen.wrap(
        "A plan checkpoints modules that are called outside what torch.compile compiled. Inside, PyTorch decides what "
        f"is kept for backward, by {SETTING}. Each budget was predicted; a smaller one need not need less."
    )
    return ["", *screen.table(("Activation budget", "reserved", "time", "", ""), rows, left=[0, 3, 4]), *about]


def _hints(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    lines = []
    if result["times"] == "host" and result["predicted_on"]:
        lines += screen.wrap(
            "The speed of this GPU is not known: take the times as rough. Those of a GPU that is given by its "
            "name are known."
        )
    elif result["times"] == "host":
        lines += screen.wrap(ROUGH_TIMES)
    if result["checkpoint"] and not result["has_operators"] and not arguments.whole_modules:
        lines += screen.wrap(_about_operators(result, arguments))
    if result["steps"] < 2:
        lines += screen.wrap(
            "The capture has one step only. In later steps the state of the optimizer is there from the "
            "beginning: capture 3 steps."
        )
    after = result["after"]
    gaps = after["reserved"] / after["allocated"] - 1 if after["allocated"] else 0.0
    is_said = result["is_verified"] or _range(after) is not None
    if gaps > _MANY_GAPS and result["device"] != "cpu" and not is_said:
        lines += screen.wrap(
            f"The allocator reserves {100 * gaps:.0f} % more than is allocated: it has many gaps, and the script "
            f"may leave others. "
            "Verify the plan by predicting the script with it (modscope predict --plan), or make the plan from "
            "the script "
            f"(modscope plan {clean(script_words(result['program'] or ANY_SCRIPT))}). expandable_segments:True "
            f"leaves fewer gaps."
        )
    return ["", *lines] if lines else []


def _about_operators(result: Report, arguments: Namespace) -> str:
    """Why modules keep no results, and which command makes a plan in which they may."""
    program = result["program"] or ANY_SCRIPT
    room = f"--budget {result['budget']}" if arguments.budget else f"--gpu {arguments.gpu.name}"
    if result["predicted_on"]:
        why = "This prediction does not have the operators of the program"
    else:
        why = "A recording of a real run does not have the places and times of single operators"
    return (
        f"{why}, so modules are checkpointed as a whole. A plan that keeps the results of some operators may cost much "
        f"less time. Record with predict (modscope predict -o predicted.msc {clean(shlex.join(program))}) and plan "
        f"that capture, or give the script (modscope plan {room} {clean(script_words(program))})."
    )


def _how_to_apply(result: Report, arguments: Namespace, screen: Screen) -> list[str]:
    file = result["output"] if result["output"] not in (None, "-") else "plan.json"
    roots = list(result["checkpoint"])
    model = (
        "model"
        if len(roots) == 1
        else "{" + ", ".join(f"{root!r}: {root.partition('#')[0].lower()}" for root in roots) + "}"
    )
    lines = [
        "  import modscope",
        f"  modscope.apply({os.fspath(file)!r}, {model})",
        *screen.wrap(
            f"or, without a change to the script:  modscope run --plan {shlex.quote(file)} "
            f"{shlex.join(result['program'] or ANY_SCRIPT)}"
        ),
    ]
    if not result["output"]:
        lines.append("Write the plan to a file with -o plan.json.")
    return [screen.bold("Apply it"), *map(clean, lines)]


COMMAND = Command(
    (
        "plan run.msc --gpu rtx4090 -o plan.json",
        "plan run.msc --budget 22GiB",
        "plan train.py --gpu rtx4090 -- --batch 8",
    ),
    add_options,
    report,
    text,
    figures="the plan and its figures",
    takes="script or captures",
    usage=("[options] FILE [PREDICTED]", "[options] script.py [-- arguments]"),
    about="A checkpointed module keeps only its input for backward, and runs its forward again there. The modules are "
    "chosen so that the recomputation takes the least time. Options may stand before or after the file. What follows "
    "-- is the script's.",
)
