"""What a page shows of a moment is what `modscope tree`, `blocks`, `summary` and `leaks` say of it, to the byte."""

import random
import re
import warnings
from collections import Counter

import modscope
import pytest
import torch.distributed as dist
from helpers import LONG
from modscope._read.text import size
from page_helpers import bytes_by_category

import torch
from torch import nn

NAMES = ["mlp", "gpt", "oom", "million", "cuda-oom", "mixed", "lossy", "lost", "damaged", "hostile"]
NAMES += ["cnn", "rank1", "cuda"] * LONG  # runs like others of these


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    """All tests of one capture come together, on a page that is opened once."""
    return request.param


def without_zeros(sums):
    return {word: value for word, value in sums.items() if value and word != "Total"}


def of_tree(nodes):
    """For each module what it holds itself, and with all below it."""
    found = {}
    for node in nodes:
        found[node["fqn"]] = without_zeros(node["own"]), without_zeros(node["subtree"])
        found |= of_tree(node["children"])
    return found


def moments_of(capture, chance):
    """As `--at` takes them: the peak, ends of steps, any times, where memory ran out."""
    steps = range(capture.last_step + 1)
    some = sorted({*chance.sample(steps, min(3, len(steps))), capture.last_step})
    times = [f"time:{chance.uniform(0, capture.duration):.6f}" for _ in range(3)]
    times.append(f"time:{capture.duration:.6f}")
    return ["peak", *(f"step:{step}" for step in some), *times, *["oom"] * bool(capture.oom_count)]


def check_moment(shown, said, is_lower_bound=None):
    """The page shows of the moment what `tree --json` told of it; ``is_lower_bound``: whether it says "at least"."""
    is_lower_bound = said["is_lower_bound"] if is_lower_bound is None else is_lower_bound
    seen = shown.look(said["moment"])
    assert int(seen.state["moment"]) == said["moment"]
    assert seen.state["device"] == said["device"]
    assert int(seen.state["time"]) == round(said["time"] * 1e6)
    assert int(seen.state["total"]) == said["total"]
    assert int(seen.state["reserved"]) == said["reserved"]
    assert (seen.state["isLowerBound"] == "true") is is_lower_bound
    assert seen.rows == of_tree(said["tree"])
    assert seen.legend == added_up(node["subtree"] for node in said["tree"])
    assert size(said["total"]) in seen.title and ("at least" in seen.title) is is_lower_bound


def added_up(all_sums):
    total = Counter()
    for sums in all_sums:
        total.update(without_zeros(sums))
    return dict(total)


def test_a_moment_is_as_the_tree_tells_it(shown, pages, name):
    chance = random.Random(name)
    device = shown.keep(name).state["device"]
    for at in moments_of(pages.load(name), chance):
        said = pages.figures("tree", name, "--at", at, "--device", device)
        # A key frame lets `tree` leap over what is damaged, and not see it.
        check_moment(shown, said, is_lower_bound=at == "peak" or said["moment"] >= 660 if name == "damaged" else None)


def test_any_moment_is_as_it_was_read(shown, pages, name):
    """Moments that no word of `--at` names."""
    chance = random.Random(name)
    capture = pages.load(name)
    device = shown.keep(name).state["device"]
    for wanted in [0, capture.event_count, *(chance.randrange(capture.event_count) for _ in range(6))]:
        seen, snapshot = shown.look(wanted), capture.snapshot(wanted)
        assert int(seen.state["moment"]) == snapshot.moment
        owned = {fqn: own for fqn, (own, _) in seen.rows.items() if own}
        held = snapshot.by_module().get(device, {})
        assert owned == {fqn: without_zeros(sums) for fqn, sums in held.items()}


@pytest.mark.parametrize("which", ["cuda", "cuda-oom", "mixed", "lost"])
def test_each_device_at_its_peak(shown, pages, which):
    shown.open(which)
    capture = pages.load(which)
    buttons = shown.browser.texts("#devices button")
    assert sorted(buttons) == sorted(capture.peaks)
    for i, device in enumerate(buttons):
        shown.browser.click_on(f"#devices button:nth-child({i + 1})")
        said = pages.figures("tree", which, "--at", "peak", "--device", device)
        assert shown.moment == said["moment"] or capture.oom_count
        check_moment(shown, said)
        assert int(shown.state["peak"]) == capture.peaks[device].bytes
        assert int(shown.state["peakMoment"]) == capture.peaks[device].moment


def test_the_first_of_equal_peaks_is_shown(shown, pages):
    said = pages.figures("tree", "twice", "--at", "peak")
    assert shown.open("twice").moment == said["moment"]
    check_moment(shown, said)


def test_out_of_memory_comes_first(shown, pages):
    for which in ("oom", "cuda-oom"):
        said = pages.figures("tree", which, "--at", "oom")
        assert shown.open(which).moment == said["moment"]
        check_moment(shown, said)
        (told,) = shown.browser.data("#oom")
        assert int(told["requested"]) == said["requested"] and int(told["held"]) == said["total"]
        assert size(said["requested"]) in shown.browser.text("#oom") and size(said["total"]) in shown.browser.text(
            "#oom"
        )


# ---- blocks ----


WORDS = ("bytes", "category", "fqn", "phase", "step", "outside", "age")


def of_rows(rows):
    return [tuple(float(row[word]) if word == "age" else row[word] for word in WORDS) for row in rows]


def of_blocks(blocks):
    words = [{**block, "fqn": block["module"], "outside": int(block["outside"])} for block in blocks]
    return [tuple(each[word] if word == "age" else str(each[word]) for word in WORDS) for each in words]


def test_the_largest_blocks_are_as_blocks_tells_them(shown, pages, name):
    chance = random.Random(name)
    device = shown.keep(name).state["device"]
    for at in moments_of(pages.load(name), chance)[::2]:
        said = pages.figures("blocks", name, "--at", at, "--device", device)
        assert of_rows(shown.look(said["moment"]).blocks) == of_blocks(said["blocks"])


def test_all_blocks_can_be_seen(shown, pages):
    said = pages.figures("blocks", "gpt", "-n", "0")
    shown.open("gpt").show_each_layer()
    assert f"{len(said['blocks'])} blocks" in shown.browser.text("#blocks-more")
    for _ in range(2):
        shown.browser.click_on("#blocks-more")
    assert not shown.browser.visible("#blocks-more")
    assert of_rows(shown.browser.data("#blocks tbody tr")) == of_blocks(said["blocks"])


def test_blocks_of_a_chosen_module_only(shown, pages):
    shown.open("gpt").show_each_layer().choose("GPT.blocks.1")
    said = pages.figures("blocks", "gpt", "--at", "peak", "-n", "0")
    below = [block["bytes"] for block in said["blocks"] if block["module"].startswith("GPT.blocks.1.")]
    own = [block["bytes"] for block in said["blocks"] if block["module"] == "GPT.blocks.1"]
    rows = shown.browser.data("#blocks tbody tr")
    assert [int(row["bytes"]) for row in rows] == sorted(below + own, reverse=True)[:20]
    assert all(row["fqn"].startswith("GPT.blocks.1") for row in rows)


# ---- what is told once ----


def test_the_sentence_and_the_facts_are_of_the_summary(shown, pages, name):
    said = pages.figures("summary", name)
    shown.keep(name)
    sentence = shown.browser.text("#sentence")
    assert size(said["devices"][0]["peak"]["bytes"]) in sentence
    if said["last_oom"]:
        assert sentence.startswith("Out of memory") and size(said["last_oom"]["requested"]) in sentence
    else:
        assert sentence.startswith("The peak is ")
        assert f"{said['devices'][0]['peak']['time']:.3f} s" in sentence
    facts = shown.browser.text("#facts")
    assert f"{said['events']:,} events" in facts and f"{said['steps']} step" in facts


def test_what_survives_is_what_leaks_tells(shown, pages, name):
    said = pages.figures("leaks", name)
    shown.keep(name)
    data = shown.browser.data("#survivors tbody tr")
    rows = [(int(row["bytes"]), row["category"], row["fqn"], row["device"]) for row in data]
    assert rows == [(each["bytes"], each["category"], each["module"], each["device"]) for each in said["groups"]]
    assert shown.browser.visible("#survivors") is bool(rows)
    if name in ("cnn", "cuda"):
        assert rows


def test_a_tip_is_as_the_tree_tells_it(shown, pages):
    """What hovering shows, at many places, with and without zoom."""
    capture = pages.load("gpt")
    shown.open("gpt")
    for zoomed in (False, True):
        if zoomed:
            shown.browser.wheel(*shown.on_timeline(0.3), down=-600)
        for part in (0.0, 0.13, 0.31, 0.47, 0.6, 0.99):
            x, y = shown.on_timeline(part)
            shown.browser.move(x, y)
            totals = capture.snapshot(shown.moment_at(x)).totals["cpu"]
            assert bytes_by_category(shown.browser.data("#tip tr")) == without_zeros(totals)
            assert size(totals["Total"]) in shown.browser.text("#tip .total")


# ---- kinds: beside the categories, and in the table of blocks ----


def record_ddp(path):
    """A rank of DDP: the only kind is Bucket. The buckets are made in the recording, and rebuilt in the second step."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with modscope.record(path), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.parallel.DistributedDataParallel(
                nn.Sequential(*[nn.Linear(96, 96) for _ in range(3)]), bucket_cap_mb=0.05
            )
            for _ in range(3):
                model(torch.randn(2, 96)).sum().backward()
                model.zero_grad()
            del model
    finally:
        dist.destroy_process_group()


@pytest.fixture
def ddp(shown, pages):
    if not (pages.folder / "ddp.msc").exists():
        record_ddp(pages.folder / "ddp.msc")
    return shown.open("ddp")


@pytest.mark.slow
def test_the_page_has_the_kinds_of_a_moment(ddp, pages):
    capture = pages.load("ddp")
    seen = set()
    for moment in range(0, capture.event_count + 1, max(1, capture.event_count // 25)):
        expected = capture.snapshot(moment)
        ddp.go(moment)
        legend = {each["kind"]: int(each["bytes"]) for each in ddp.browser.data("#legend .kind")}
        assert legend == expected.kinds.get("cpu", {})
        rows = [(int(row["bytes"]), row["kind"]) for row in ddp.browser.data("#blocks tbody tr[data-kind]")]
        shown_rows = len(ddp.browser.data("#blocks tbody tr"))
        assert rows == [(block.bytes, block.kind) for block in expected.blocks(shown_rows, "cpu") if block.kind]
        seen.add(len(rows))
    assert seen >= {0, 1} and max(seen) > 1  # before, one bucket, several


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_are_readable(ddp, pages, scheme):
    ddp.browser.media(**{"prefers-color-scheme": scheme})
    ddp.go(pages.load("ddp").peaks["cpu"].moment)
    words = ddp.browser.run("return document.querySelector('#legend .kind').innerText")
    assert words.startswith("Bucket ")
    colour, paper = ddp.browser.run(
        "return [document.querySelector('#legend .kind'), document.body].map((e, i) => getComputedStyle(e)[i ? "
        "'backgroundColor' : 'color'])"
    )
    assert colour != paper


def test_the_out_of_memory_box_says_what_the_report_on_stderr_says(shown, pages):
    """The line that requested the memory, and the lines that made most of what was held."""
    end = pages.load("oom").end
    assert re.search(r"gpt[.]py:[0-9]+ in GPT[.]forward", end["requested_by"])
    shown.open("oom")
    text = shown.browser.text("#oom-figures")
    assert f"requested by\n{end['requested_by']}" in text
    said = pages.figures("tree", "oom", "--by", "line", "--at", "oom")
    assert shown.browser.data("#oom")[0]["held"] and said
    buttons = shown.browser.texts("#oom-figures button")
    assert len(buttons) == 4 and all(re.search(r"[.]py:[0-9]+ in ", text) for text in buttons)
    shown.browser.click_on("#oom-figures button")
    assert shown.state["group"].startswith("line:")
