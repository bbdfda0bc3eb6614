"""What would help, on the page: the levers of fit and the plans, drawn over the timeline of the run."""

from __future__ import annotations

import json

import modscope
import pytest
from fit_runs import Net
from modscope._fit.job import Job
from modscope._fit.verdict import answer, as_json
from modscope._read.text import size
from modscope._show.pages.fit import page_of
from modscope._virtual.gpus import Gpu
from page_helpers import modscope as command
from torch.utils.checkpoint import checkpoint

import torch

MIB = 1 << 20


def tiny(capacity):
    return Gpu("tiny", "Tiny GPU", capacity, (9, 0), 1, context=0)


def net(path, checkpointed=False, fail_in=0, kind=Net):
    """Three steps on the CPU."""
    torch.manual_seed(0)
    model = kind(6)
    for block in model.h if checkpointed else ():
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2048, 64)
    try:
        with modscope.record(path):
            for step in range(1, 4):
                out = model(x)
                if step == fail_in:
                    raise ZeroDivisionError
                out.sum().backward()
                del out
                optimizer.step()
                optimizer.zero_grad()
    except ZeroDivisionError:
        pass


@pytest.fixture(scope="module")
def net_capture(pages):
    path = pages.folder / "net.msc"
    if not path.exists():
        net(path)
    return path


def fit_page(pages, name, capture, capacity):
    """A page with what would help, and what fit says."""
    path = pages.folder / f"{name}.html"
    found = answer(Job(str(capture)), tiny(capacity))
    made = page_of(found)
    assert all("at least" in note for note in made.notes)  # of a capture with losses
    path.write_text(made.html, encoding="utf-8", newline="")
    return as_json(found)


@pytest.fixture
def gpu(shown, pages):
    """A run on a GPU that does not fit, and what fit says of it."""
    said = fit_page(pages, "fit-cuda", pages.capture("cuda"), 180 * MIB)
    shown.open("fit-cuda")
    return shown, said


@pytest.fixture
def cpu(shown, pages, net_capture):
    peak = modscope.load(net_capture).peaks["cpu"].bytes
    said = fit_page(pages, "fit-net", net_capture, round(0.8 * peak))
    shown.open("fit-net")
    return shown, said


def drawn(page):
    """The highest figures of the chosen change that are drawn."""
    script = (
        "const of = window.modscope.timeline.editedColumns; return of && [Math.max(...of.reserved), "
        "Math.max(...of.allocated)]"
    )
    return page.browser.run(script)


def choose(page, key):
    page.browser.click_on(f'#levers tr[data-key="{key}"] label')
    page.browser.settle()
    assert page.state["change"] == key


# ---- levers ----


def test_the_table_is_what_fit_says(gpu):
    page, said = gpu
    rows = page.browser.data("#levers tbody tr")
    # over 2 it would need more
    assert len(said["levers"]) >= 3 and "FSDP2 over 8 GPUs" in [each["name"] for each in said["levers"]]
    assert [(row["name"], int(row["bytes"]), row["fits"] == "true") for row in rows] == [
        ("as it is", said["reserved_peak"], False),
        *((each["name"], each["reserved_peak"], each["fits"]) for each in said["levers"]),
    ]
    texts = page.browser.texts("#levers tbody tr")
    assert all(each["cost"] in text for each, text in zip(said["levers"], texts[1:]))
    assert page.browser.text("#fit-text").startswith("cuda:0 reserved ") and "Tiny GPU has" in page.browser.text(
        "#fit-text"
    )
    assert page.state["change"] == "none" and not page.browser.visible("#edited")


def test_a_lever_is_drawn_over_the_run(gpu):
    page, said = gpu
    before = page.picture_of("#timeline-base")
    pictures = {before}
    for number, lever in enumerate(said["levers"]):
        choose(page, f"fit-{number}")
        assert drawn(page) == [lever["reserved_peak"], lever["allocated_peak"]]
        pictures.add(page.picture_of("#timeline-base"))
        text = page.browser.text("#edited")
        about = "about " if lever["is_approximate"] else ""
        assert text.startswith(f"With {lever['name']}: cuda:0 reserves {about}{size(lever['reserved_peak'])} at most, ")
        assert (f"about {size(lever['reserved_peak'])}" in page.browser.texts("#levers tbody tr")[number + 1]) == lever[
            "is_approximate"
        ]
        less = said["reserved_peak"] - lever["reserved_peak"]
        assert f"{size(less)} less than the {size(said['reserved_peak'])} without it" in text
        assert (f"It fits Tiny GPU, with {size(lever['to_spare'])} to spare." in text) == lever["fits"]
        labels = page.browser.run("return window.modscope.timeline.labels.map((each) => each.text)")
        assert "Tiny GPU 180.00 MiB" in labels and f"with the change: reserved {size(lever['reserved_peak'])}" in labels
    assert len(pictures) == len(said["levers"]) + 1
    assert page.browser.texts("#lines li") == [
        "reserved in the capture",
        "reserved with the change",
        "allocated with the change",
        "what Tiny GPU has",
    ]
    choose(page, "none")
    assert page.picture_of("#timeline-base") == before and drawn(page) is None


def test_the_keyboard_chooses_a_lever(gpu):
    page, said = gpu
    page.browser.give_focus('#levers tr[data-key="none"] input')
    page.browser.press("ArrowDown")
    page.browser.settle()
    assert page.state["change"] == "fit-0"
    page.browser.press("ArrowUp")
    page.browser.settle()
    assert page.state["change"] == "none"
    page.browser.give_focus("#timeline")
    seen = []
    for _ in range(len(said["levers"]) + 1):
        page.browser.press("w")
        page.browser.settle()
        seen.append(page.state["change"])
    assert seen == [*(f"fit-{i}" for i in range(len(said["levers"]))), "none"]


def test_the_address_keeps_the_lever(gpu):
    page, said = gpu
    choose(page, "fit-1")
    page.reload()
    assert page.state["change"] == "fit-1" and drawn(page)[0] == said["levers"][1]["reserved_peak"]
    page.open("fit-cuda", "#change=fit-99")
    assert page.state["change"] == "none"


def test_a_lever_belongs_to_its_device(gpu):
    page, said = gpu
    choose(page, "fit-0")
    page.browser.click_on('#devices button[data-device="0"]')
    page.browser.settle()
    assert page.state["device"] == "cpu" and drawn(page) is None
    assert "it is of all modules of cuda:0" in page.browser.text("#edited") and not page.browser.visible("#lines")
    choose(page, "fit-1")
    assert page.state["device"] == "cuda:0" and drawn(page)[0] == said["levers"][1]["reserved_peak"]


def test_a_tooltip_tells_both(gpu):
    page, _ = gpu
    choose(page, "fit-0")
    page.browser.move(*page.on_timeline(0.6))
    page.browser.settle()
    assert "With the change: " in page.browser.text("#tip") and " reserved, " in page.browser.text("#tip .edited")


def test_narrow_and_dark(gpu):
    page, _ = gpu
    page.browser.screen(400, 800)
    choose(page, "fit-1")
    assert page.browser.run("return document.documentElement.scrollWidth") <= 400
    light = page.picture_of("#timeline-base")
    page.browser.press("t")
    page.browser.settle()
    assert page.picture_of("#timeline-base") != light


# ---- the horizontal axis ----


def test_the_curve_of_no_change_is_the_run(net_capture):
    """Moment by moment, where each point stands for one event."""
    job = Job(str(net_capture))
    curve = job.curve(1 << 30, (0, None))
    assert len(curve) == job.stream.events
    checked = 0
    for before, (number, _, _, allocated) in zip(curve, curve[1:]):
        now = job.capture.snapshot(number + 1).totals["cpu"]["Total"]
        if now >= before[3]:  # a point has the higher one of what is held before its event and after it
            assert allocated == now
            checked += 1
    assert checked > 100


def test_a_recomputation_is_at_the_first_node_that_needs_what_was_saved(net_capture):
    """The last operator of the module, an addition, saves nothing. That before it is a product."""
    job = Job(str(net_capture))
    calls = [call for call in job.calls if job.modules[call.path] == "Net.h.3"]
    assert len(calls) == 3
    curve = job.curve(1 << 30, (0, None), [("checkpoint", call.number) for call in calls])
    real = job.curve(1 << 30, (0, None))
    modules = {event.number: event.module for event in job.capture.events("position") if event.phase == "backward"}
    for call in calls:
        at = next(i for i in range(call.backward, len(curve)) if modules.get(curve[i][0]) == "Net.h.3.narrow")
        most = 0.8 * call.kept  # without its input, which stays, and its output
        assert curve[at][3] >= curve[at - 1][3] + most, "what it keeps is made again there"
        assert curve[at - 1][3] <= real[at - 1][3] - most, "and was not held before"


def test_the_line_reaches_what_a_checkpointed_run_needs(cpu, pages):
    """The run has torch's own checkpoint around each block."""
    page, said = cpu
    number = next(i for i, lever in enumerate(said["levers"]) if lever["name"] == "checkpoint Net.h.*")
    choose(page, f"fit-{number}")
    highest = said["levers"][number]["allocated_peak"]
    assert drawn(page)[1] == highest
    real = pages.folder / "net-checkpointed.msc"
    net(real, checkpointed=True)
    assert highest == pytest.approx(modscope.load(real).peaks["cpu"].bytes, rel=0.02)


def test_a_part_of_the_run_has_a_curve_of_its_own(shown, pages):
    status, out, err = command(
        "report",
        str(pages.capture("cuda")),
        "--steps",
        "3:4",
        "--gpu",
        "1GiB",
        "-o",
        str(pages.folder / "part.html"),
        "-f",
    )
    assert status == 0, err
    job = Job(str(pages.capture("cuda")))
    steps = [event.number for event in job.capture.events("step")]
    curve = job.curve(50, (steps[2], steps[4]))
    assert len(curve) == 50 and curve[0][0] >= steps[2] and curve[-1][0] < steps[4]
    whole = job.curve(1 << 30, (0, None))
    inside = [point for point in whole if steps[2] <= point[0] < steps[4]]
    assert max(point[2] for point in curve) == max(point[2] for point in inside)
    assert max(point[3] for point in curve) == max(point[3] for point in inside)
    shown.open("part")
    assert "it fits" in shown.browser.text("#fit-text") and not shown.browser.visible("#levers")
    labels = shown.browser.run("return window.modscope.timeline.labels.map((each) => each.text)")
    assert "↑ GPU of 1GiB 512.00 MiB" in labels


def test_the_step_in_which_a_run_died_is_not_drawn(shown, pages):
    capture = pages.folder / "died.msc"
    net(capture, fail_in=3)
    peak = modscope.load(capture).peaks["cpu"].bytes
    said = fit_page(pages, "fit-died", capture, round(0.8 * peak))
    assert said["died"] and said["levers"]
    shown.open("fit-died")
    choose(shown, "fit-0")
    last = shown.browser.run("return window.modscope.timeline.editedColumns.reserved.at(-1)")
    assert last is None, "NaN: there is no line at the right end"
    assert (
        shown.browser.run("return window.modscope.timeline.edited.end")
        <= shown.browser.run("return window.modscope.capture.stepTicks.at(-1)") + 2
    )
    assert drawn_somewhere(shown) == said["levers"][0]["reserved_peak"]


def drawn_somewhere(page):
    return page.browser.run(
        "return Math.max(...window.modscope.timeline.editedColumns.reserved.filter((each) => each > 0))"
    )


# ---- plans ----


@pytest.fixture
def plans(shown, pages, net_capture):
    page = pages.folder / "plans.html"
    budget = round(0.75 * modscope.load(net_capture).peaks["cpu"].bytes)
    status, out, err = command(
        "plan", str(net_capture), "--budget", str(budget), "--greedy", "--json", "--report", str(page), "-f"
    )
    assert (status, err) == (0, ""), err
    shown.open("plans")
    return shown, json.loads(out)


def test_the_plot_has_the_points_that_plan_prints(plans):
    page, said = plans
    assert len(said["curve"]) >= 3 and all("calls" not in point for point in said["curve"])
    points = page.browser.data("#plan-plot .point")
    assert [(int(point["bytes"]), float(point["ms"])) for point in points] == [
        (each["reserved"], each["step_ms"]) for each in said["curve"]
    ]
    (chosen,) = [i for i, each in enumerate(said["curve"]) if each["is_plan"]]
    assert page.state["change"] == f"plan-{chosen}", "the plan is chosen at first"
    assert page.browser.run("return document.querySelector('#plan-plot .is-plan').textContent").startswith("the plan")
    assert [row.split(" (each")[0] for row in page.browser.texts("#plan-modules td.fqn")] == [
        curve["name"] for curve in said["module_curves"]
    ]
    dots = page.browser.run("return document.querySelectorAll('.module-curve circle').length")
    assert dots == sum(len(curve["points"]) for curve in said["module_curves"])
    assert drawn(page)[0] == said["after"]["reserved"]
    assert page.browser.texts("#plan-groups li") == said["groups"]
    assert not page.browser.visible("#fit")


def test_hovering_a_point_shows_its_plan(plans):
    page, said = plans
    number = len(said["curve"]) - 1
    box = page.browser.box(f'#plan-plot .point[data-index="{number}"] .dot')
    page.browser.move(box.x + box.width / 2, box.y + box.height / 2)
    page.browser.settle()
    text = page.browser.text("#tip")
    assert size(said["curve"][number]["reserved"]) in text and all(
        group in text for group in said["curve"][number]["groups"]
    )


def test_arrow_keys_choose_a_point(plans):
    page, said = plans
    page.browser.give_focus('#plan-plot .point[aria-checked="true"]')
    for _ in said["curve"]:
        page.browser.press("ArrowLeft")
        page.browser.settle()
    last = len(said["curve"]) - 1
    assert page.state["change"] == f"plan-{last}" and drawn(page)[0] == said["curve"][last]["reserved"]
    assert size(said["curve"][last]["reserved"]) in page.browser.text("#tip"), "focus shows the plan too"
    for _ in said["curve"]:
        page.browser.press("ArrowRight")
        page.browser.settle()
    assert page.state["change"] == "none" and page.browser.texts("#plan-groups li") == ["nothing is checkpointed"]


def test_points_say_whether_they_fit(plans):
    page, said = plans
    for i, point in enumerate(said["curve"]):
        page.browser.run("window.modscope.plans.choose(arguments[0])", i)
        page.browser.settle()
        if point["modules"]:
            assert ("It fits the budget, with " in page.browser.text("#edited")) == (
                point["reserved"] <= said["budget"]
            )


# ---- odd captures ----


@pytest.mark.parametrize("name", ["mixed", "lossy", "damaged", "one", "cuda-oom", "lost", "huge"])
def test_every_capture_has_a_page(shown, pages, name):
    """For a GPU that is too small for most; whatever is drawn, the page complains about nothing."""
    fit_page(pages, f"fit-{name}", pages.capture(name), 40 * MIB)
    shown.open(f"fit-{name}")
    assert shown.browser.text("#fit-text")
    for _ in shown.browser.data("#levers tbody tr"):
        shown.browser.press("w")
        shown.browser.settle()
    assert shown.browser.dialog() is None


def test_names_of_modules_are_only_text(shown, pages):
    evil = "</script><img src=x onerror=alert(1)>\u202e"
    capture = pages.folder / "evil.msc"
    net(capture, kind=type(evil, (Net,), {}))
    budget = round(0.8 * modscope.load(capture).peaks["cpu"].bytes)
    said = fit_page(pages, "fit-evil", capture, budget)
    status, _, err = command(
        "plan",
        str(capture),
        "--budget",
        str(budget),
        "--greedy",
        "--report",
        str(pages.folder / "plan-evil.html"),
        "-f",
    )
    assert status == 0, err
    assert any(evil in lever["name"] for lever in said["levers"])
    for name, key in (("fit-evil", "#change=fit-0"), ("plan-evil", "")):
        shown.open(name, key)
        assert "</script><img src=x onerror=alert(1)>\\u202e.h." in shown.browser.text("#edited")
        assert (
            shown.browser.dialog() is None and shown.browser.run("return document.querySelectorAll('img').length") == 0
        )


def test_a_capture_of_an_unknown_torch_is_refused(tmp_path):
    from capture_helpers import Capture

    c = Capture(("cuda:0",), torch="someday")
    c.step()
    c.add(MIB)
    c.optimizer_step()
    (tmp_path / "run.msc").write_bytes(c.end(how="finished"))
    for words in (["fit"], ["plan"], ["report", "-o", str(tmp_path / "page.html")]):
        status, _, err = command(*words, str(tmp_path / "run.msc"), "--gpu", "1GiB")
        assert status == 1 and "cannot be replayed: 'someday' is not a version of torch" in err
    assert not (tmp_path / "page.html").exists()


# ---- the commands ----


def test_wrong_arguments(pages, net_capture, tmp_path):
    file, page = str(net_capture), str(tmp_path / "page.html")
    status, _, err = command("fit", file, "--report", page)
    assert status == 2 and "--report needs one GPU" in err
    status, _, err = command("fit", file, "--gpu", "t4", "--report", str(tmp_path / "none" / "page.html"))
    assert status == 1 and "There is no folder" in err
    copy = tmp_path / "copy.msc"
    copy.write_bytes(net_capture.read_bytes())
    status, _, err = command("fit", str(copy), "--gpu", "t4", "--report", str(copy))
    assert status == 1 and "is not a page that modscope wrote" in err and copy.read_bytes() == net_capture.read_bytes()
    status, _, err = command("plan", file, "--budget", "1TiB", "--report", "-")
    assert status == 2 and "needs the name of a file" in err
    (tmp_path / "page.html").write_text("mine")
    status, _, err = command("plan", file, "--budget", "1TiB", "--report", page)
    assert status == 1 and "exists already" in err and (tmp_path / "page.html").read_text() == "mine"


def test_fit_writes_a_page(net_capture, tmp_path):
    page = tmp_path / "page.html"
    status, out, err = command("fit", str(net_capture), "--gpu", "t4", "--report", str(page))
    assert (status, err) == (0, "") and page.as_uri() in out and "<!doctype html>" in page.read_text()[:20]
    before = page.read_text()
    status, out, err = command("fit", str(net_capture), "--gpu", "t4", "--report", str(page))
    assert (status, out) == (1, "") and "exists already" in err and "(-f)" in err and page.read_text() == before
    status, _, err = command("fit", str(net_capture), "-f", "--gpu", "t4", "--report", str(page))
    assert (status, err) == (0, "") and "<!doctype html>" in page.read_text()[:20]
