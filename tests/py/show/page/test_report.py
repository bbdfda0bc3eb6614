"""`modscope report`: what is in the page, and how the command ends. What the page does is for a browser."""

import base64
import hashlib
import html.parser
import json
import os
import pathlib
import random
import re
import subprocess
import sys
from collections import Counter
from importlib import resources

import pytest
from capture_helpers import Capture, train
from modscope.__main__ import main
from modscope._read.load import load
from modscope._show.pages import read_manifest
from modscope._show.pages import report as _report
from report_helpers import packs

MIB = 1 << 20


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(capture, name="x.msc", **end):
    data = capture if isinstance(capture, bytes) else capture.end(**{"how": "finished", "status": "0", **end})
    with open(name, "wb") as file:
        file.write(data)
    return name


def page_of(*names, options=()):
    assert main(["report", *names, "-o", "out.html", "-f", *options]) == 0
    with open("out.html", encoding="utf-8") as file:
        return file.read()


def out_of_memory():
    c = train(4)
    c.step()
    c.where("forward", c.module("GPT.h.3.mlp"))
    c.oom(2 << 30, 100 << 20, 256 << 20, 1)
    return c


def lossy():
    """Events are lost, and what is held after them is partly something else."""
    c = train(3)
    c.flush()
    c.lost += 7
    c.number += 7
    for slot in list(c.held)[:3]:
        del c.held[slot]
    c._begin_chunk()
    c.frame()
    c.step()
    c.add(50 * MIB, 1)
    return c


# ---- what is in it ----


@pytest.mark.parametrize("make", [train, out_of_memory, lossy, lambda: train(5, device="cpu", leak=4000)])
def test_a_page_holds_what_snapshots_say_at_every_moment(make):
    save(make())
    (packed,) = packs(page_of("x.msc"))
    reader = load("x.msc")._reader
    ticks = range(len(packed.pack.times))
    for tick in random.Random(1).sample(ticks, min(60, len(ticks))):
        snapshot = reader.snapshot(packed.pack.moment(tick))
        assert snapshot.time == packed.pack.times[tick]
        blocks = (size, on, category, path, phase, outside) = (0, 1, 2, 3, 4, 7)
        wanted = Counter(tuple(block[i] for i in blocks) for block in snapshot.blocks())
        assert packed.pack.held(tick) == wanted, (tick, size, on, category, path, phase, outside)


def test_the_sentence_has_the_figures_of_the_summary():
    save(train(3))
    (packed,) = packs(page_of("x.msc"))
    peak = load("x.msc").peaks["cuda:0"]
    assert peak.bytes == 176_000_000 and peak.reserved == 256 * MIB
    assert packed.sentence.startswith(
        "The peak is 167.85 MiB on cuda:0, in step 2, backward of GPT.h.3.mlp, at 0.175 s: "
    )
    assert "41% Activation, 36% Optstate, 20% Parameter, 2% Gradient. " in packed.sentence
    assert "Most of it is in GPT.h.*.mlp (83.92 MiB in 4 modules), " in packed.sentence
    assert packed.sentence.endswith("The allocator had reserved 256.00 MiB, 88.15 MiB more.")


def test_the_sentence_of_a_run_that_ran_out_of_memory_says_what_failed_and_what_was_allocated():
    save(out_of_memory(), how="exception", error="OutOfMemoryError: no")
    (packed,) = packs(page_of("x.msc"))
    assert packed.sentence.startswith(
        "Out of memory: an allocation of 2.00 GiB failed on cuda:0, in step 5, forward of GPT.h.3.mlp, at "
    )
    assert "when 95.37 MiB was allocated and 256.00 MiB reserved: 64% Optstate, 36% Parameter. " in packed.sentence
    assert "Ended by an exception: OutOfMemoryError: no" in packed.metadata["facts"]
    assert packed.metadata["devices"][packed.metadata["main"]] == "cuda:0"


def sentence_of(**held: int) -> str:
    """The page's sentence on modules that hold so many MiB each; _ in their names is a dot."""
    c = Capture()
    for name, mebibytes in held.items():
        c.where("forward", c.module(name.replace("_", ".")))
        c.add(mebibytes * MIB)
    save(c)
    (packed,) = packs(page_of("x.msc"))
    return packed.sentence


def test_modules_that_are_alike_are_one_in_the_sentence_but_not_the_members_of_a_sequence():
    sentence = sentence_of(Net_0=5, Net_2=4, Net_h_0_mlp=1, Net_h_1_mlp=2)
    assert "Net.0 (5.00 MiB), Net.2 (4.00 MiB) and Net.h.*.mlp (3.00 MiB in 2 modules)" in sentence


def test_the_layers_of_a_module_list_are_one_in_the_sentence():
    sentence = sentence_of(Net_h_0=4, Net_h_1=3, Net_h_0_mlp=1, Net_h_1_mlp=1, Net_x_0=1, Net_x_1=1)
    assert (
        "Net.h.* (7.00 MiB in 2 modules), Net.h.*.mlp (2.00 MiB in 2 modules) and Net.x.* (2.00 MiB in 2 modules)"
        in sentence
    )


def test_where_something_is_lost_figures_are_at_least():
    save(lossy(), lost="7")
    page = page_of("x.msc")
    (packed,) = packs(page)
    assert "The peak is at least " in packed.sentence
    assert packed.metadata["notes"] == ['7 events could not be written: every figure is "at least".']
    assert "every figure is &quot;at least&quot;" in page
    assert len(packed.pack.jumps) == 2 and not packed.metadata["is_lower_bound_at_first"]


def test_survivors_are_those_of_leaks(capsys):
    save(train(6, leak=3 * MIB))
    (packed,) = packs(page_of("x.msc"))
    capsys.readouterr()
    assert main(["leaks", "x.msc", "--json"]) == 0
    assert packed.metadata["leaks"]["groups"] == json.loads(capsys.readouterr().out)["groups"] != []


def test_several_captures_have_titles_that_tell_them_apart():
    os.mkdir("a")
    os.mkdir("b")
    names = [save(train(2), "a/x.msc"), save(train(3), "b/x.msc"), save(train(2), "y.msc")]
    found = packs(page_of(*names))
    assert [packed.title for packed in found] == ["a/x.msc", "b/x.msc", "y.msc"]
    beside = found[0].metadata["all"]
    assert [one["title"] for one in beside] == ["a/x.msc", "b/x.msc", "y.msc"]
    assert all(packed.metadata["all"] == beside for packed in found)
    peaks = {peak["device"]: peak["bytes"] for peak in beside[1]["peaks"]}
    assert peaks == {name: peak.bytes for name, peak in load("b/x.msc").peaks.items()}


# ---- one file that needs nothing else, and in which names are only names ----


class Elements(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.scripts = Counter(), [], "", []
        self.inside = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside in ("script", "style"):
            self.scripts.append((self.inside, data))
        else:
            self.text += data


def test_a_page_names_no_other_place():
    save(train(2))
    page = page_of("x.msc")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page)
    found = Elements(page)
    assert not {"link", "img", "iframe", "object", "base"} & set(found.tags)
    assert not any(name in ("src", "srcset", "action") or name.startswith("on") for name, _ in found.attributes)


def test_only_the_page_s_own_script_and_style_are_allowed():
    save(train(2))
    page = page_of("x.msc")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    own = [(tag, text) for tag, text in Elements(page).scripts if tag == "style" or "class Page" in text]
    assert len(own) == 2
    for tag, text in own:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


HOSTILE = [
    "</script><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "--><!--<b>",
    "\"'`${alert(1)}\\",
    "{script}{data}{policy}",
    "evil\u202egnp.exe\u2066",
    "\u05d0\u05d1\u05d2.\u0627\u0628",
    "ctl\x07\x1b[31m\r\n\tname\x85\u2028",
    "very." * 3000 + "long",
    "L" * 100_000,
    "a\ud800b",
    "",
    "..",
]


def hostile(name):
    c = Capture(("cpu", name), program=name, arguments=f"{name}\n{name}", torch=name)
    c.step()
    c.where("forward", c.module(name))
    c.add(MIB)
    c.add(2 * MIB, 1)
    c.oom(MIB, 1, 2, 1)
    return c


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(name):
    save(train(2), "plain.msc")
    usual = page_of("plain.msc")
    plain = Elements(usual)
    text = name.replace("\0", "")
    save(hostile(text), error=text)
    os.rename("x.msc", "<b>x&\"'.msc")
    page = page_of("<b>x&\"'.msc")
    found = Elements(page)
    extra = found.tags - plain.tags
    layouts = usual.count('<script type="application/octet-stream" data-layout=')  # of a torch that is known
    assert set(extra) <= {"strong", "li"} and found.tags["script"] == plain.tags["script"] - layouts
    assert len(page) < 400_000
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", found.text)
    (packed,) = packs(page)
    kept = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert kept in packed.metadata["names"]
    assert "{sentence}" not in found.text and "{facts}" not in found.text


# ---- a part of a long run ----


def test_steps_choose_a_part():
    save(train(6))
    page = page_of("x.msc", options=["--steps", "2:4"])
    (packed,) = packs(page)
    note = "Only steps 2 to 4 of 6 are shown, as asked for."
    assert packed.metadata["notes"] == [note] and note in page
    steps = [number for _, number in packed.pack.steps]
    assert steps == [1, 2, 3, 4]  # at its first moment step 2 has not begun
    begun = {event.bytes: event.number for event in load("x.msc").events("step")}
    assert packed.pack.moment(0) == begun[2]
    assert packed.pack.moment(len(packed.pack.times) - 1) == begun[5]
    assert "The peak is 167.85 MiB on cuda:0, in step 2" in packed.sentence  # of the whole run


@pytest.mark.parametrize("steps, shown", [("3", [2, 3]), ("5:", [4, 5, 6]), (":1", [0, 1]), ("0:99", range(7))])
def test_steps_may_be_open(steps, shown):
    save(train(6))
    (packed,) = packs(page_of("x.msc", options=["--steps", steps]))
    assert [number for _, number in packed.pack.steps] == [*shown]


@pytest.mark.parametrize("make, word", [(lambda: train(60), "the peak"), (out_of_memory, "where memory ran out")])
def test_of_a_long_run_some_steps_are_shown(make, word, monkeypatch, capsys):
    save(make())
    capture = load("x.msc")
    monkeypatch.setattr(_report, "MOST_EVENTS", 150)
    monkeypatch.setattr(_report, "_FEWEST_EVENTS", 10)
    (packed,) = packs(page_of("x.msc"))
    assert len(packed.pack.times) <= 151
    (note,) = packed.metadata["notes"]
    assert re.match(
        rf"Only steps? \d+( to \d+)? of \d+ are shown, around {word}, because the run has {capture.event_count:,} ",
        note,
    )
    assert " ".join(note.split()) in " ".join(capsys.readouterr().err.split())
    centre = capture.moment("oom" if capture.oom_count else "peak")
    assert packed.pack.moment(0) <= centre <= packed.pack.moment(len(packed.pack.times) - 1)


def test_of_a_long_step_some_events_are_shown(monkeypatch):
    c = Capture()
    for _ in range(500):
        c.drop(c.add(MIB))
    c.add(5 * MIB)
    for _ in range(500):
        c.drop(c.add(MIB))
    save(c)
    monkeypatch.setattr(_report, "MOST_EVENTS", 100)
    monkeypatch.setattr(_report, "_FEWEST_EVENTS", 10)
    (packed,) = packs(page_of("x.msc"))
    assert 100 <= len(packed.pack.times) <= 101
    assert packed.metadata["notes"][0].startswith("Only 100 events are shown, around the peak")


# ---- how it ends ----


def refused(*words):
    return main(["report", *words])


def test_no_capture(capsys):
    assert refused("nowhere.msc", "-o", "out.html") == 1
    assert capsys.readouterr().err == "modscope: There is no file nowhere.msc\n"
    with open("text.msc", "w") as file:
        file.write("no capture at all, this is")
    assert refused("text.msc", "-o", "out.html") == 1
    assert capsys.readouterr().err == "modscope: text.msc: this file is not a modscope capture\n"
    assert os.listdir() == ["text.msc"]


def test_an_empty_capture(capsys):
    save(Capture(), "empty.msc")
    assert refused("empty.msc", "-o", "out.html") == 1
    assert capsys.readouterr().err == "modscope: There is nothing to show: empty.msc has no memory in it\n"
    assert os.listdir() == ["empty.msc"]
    save(train(2))
    found = packs(page_of("empty.msc", "x.msc"))
    assert [packed.title for packed in found] == ["x.msc"]
    assert "empty.msc is left out: it has no memory in it" in capsys.readouterr().err


def test_an_output_that_exists_stays_unless_it_is_forced(capsys):
    save(train(2))
    page_of("x.msc")
    with open("out.html") as file:
        written = file.read()
    capsys.readouterr()
    assert refused("x.msc", "-o", "out.html") == 1
    assert capsys.readouterr().err == "modscope: out.html exists already: choose another name, or overwrite it (-f)\n"
    with open("out.html") as file:
        assert file.read() == written
    assert packs(page_of("x.msc"))


def test_a_capture_is_never_overwritten(capsys):
    save(train(2))
    save(train(3), "y.msc")
    assert refused("x.msc", "y.msc", "-o", "y.msc", "-f") == 1
    says = "y.msc exists already: choose another name. It is not a page that modscope wrote, so it is not replaced"
    assert capsys.readouterr().err == f"modscope: {says}\n"
    assert load("y.msc").last_step == 3


def test_outputs_that_cannot_be(capsys):
    save(train(2))
    os.mkdir("folder")
    assert refused("x.msc", "-o", "folder", "-f") == 1
    assert "folder is a folder" in capsys.readouterr().err
    assert refused("x.msc", "-o", "none/out.html") == 1
    assert "no folder none" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["folder", "x.msc"]


def test_without_an_output_the_page_is_called_like_the_capture(capsys):
    os.mkdir("runs")
    save(train(2), "runs/first.msc")
    assert refused("runs/first.msc") == 0
    out = capsys.readouterr().out
    assert out.startswith("Wrote first.html (") and "file:///" in out
    assert os.path.exists("first.html")


def test_steps_that_are_not_there(capsys):
    save(train(2))
    assert refused("x.msc", "-o", "out.html", "--steps", "7:9") == 1
    assert capsys.readouterr().err == "modscope: There is no step 7: the last is 2\n"
    for wrong in ("5:3", ":", "x", "-1"):
        with pytest.raises(SystemExit) as ended:
            refused("x.msc", f"--steps={wrong}")
        assert ended.value.code == 2
    assert os.listdir() == ["x.msc"]


def test_json_tells_what_was_written(capsys):
    save(train(2))
    assert refused("x.msc", "-o", "out.html", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["command"] == "report" and told["output"] == "out.html"
    assert told["bytes"] == os.path.getsize("out.html")
    assert told["events"] == [load("x.msc").event_count]


def test_a_page_goes_to_stdout(capfd):
    save(train(2))
    assert refused("x.msc", "-o", "-") == 0
    assert packs(capfd.readouterr().out)


def test_a_report_needs_no_torch():
    save(train(2))
    code = "import sys; from modscope.__main__ import main; main(['report', 'x.msc']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- its size, and its files ----


def test_events_cost_a_page_few_bytes():
    save(train(3))
    own = len(page_of("x.msc"))
    c = train(600, blocks=12)
    save(c)
    page = page_of("x.msc")
    assert c.number > 40_000
    assert len(page) - own < 2 * c.number


def test_all_files_of_the_page_are_installed_and_used():
    page = pathlib.Path(str(resources.files("modscope"))) / "_show/page"
    files = {str(file.relative_to(page)) for file in page.rglob("*.*")}
    pages = read_manifest().values()
    used = {file for page in pages for file in (page["template"], *page["styles"], *page["scripts"])}
    assert files == {*used, "manifest.json"}
