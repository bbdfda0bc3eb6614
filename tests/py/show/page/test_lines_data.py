"""The lines and operators in the data of a page are those that `modscope blocks` and snapshots tell."""

import linecache
import random
from collections import Counter

import pytest
from helpers import INTERCEPTION
from modscope._read.lines import Frame, Place
from modscope._show.pages import lines as _lines_page
from page_helpers import attributed_line, modscope
from report_helpers import packs

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")


def data_of(pages, name):
    (packed,) = packs(pages[name].read_text(encoding="utf-8"))
    return packed


def told(stacks, number):
    """What `blocks --json` would tell of a stack, by the page."""
    row = (stacks or {"rows": {}})["rows"].get(str(number))
    if row is None:
        return None, ()
    frames = tuple((stacks["files"][file], line, stacks["functions"][name]) for file, name, line in row["frames"])
    return (stacks["operators"][row["operator"]] if row["operator"] >= 0 else None), frames


def read(place):
    return (
        (place.operator, tuple((each.file, each.line, each.function) for each in place.attributed.frames))
        if place
        else (None, ())
    )


@pytest.mark.parametrize("name", ["lines", "gpt", "no-lines"])
def test_a_page_tells_of_every_block_what_blocks_tells(pages, name):
    packed, capture = data_of(pages, name), pages.load(name)
    stacks = packed.metadata.get("stacks")
    peak = pages.figures("blocks", name, "--at", "peak", "-n", "0")
    ticks = [random.Random(name).randrange(len(packed.pack.times)) for _ in range(20)]
    ticks.append(next(tick for tick in range(len(packed.pack.times)) if packed.pack.moment(tick) == peak["moment"]))
    for tick in ticks:
        shown = Counter((size, *told(stacks, stack)) for size, stack in packed.pack.stacks(tick).elements())
        held = capture.snapshot(packed.pack.moment(tick)).blocks()
        assert shown == Counter((block.bytes, *read(block.place)) for block in held)
    assert Counter(
        (size, operator, *(frames[:1] or [(None,) * 3])) for size, operator, frames in shown.elements()
    ) == Counter((each["bytes"], each["operator"], attributed_line(each)) for each in peak["blocks"])


def test_only_the_shown_steps_stacks_are_in_the_page(pages, tmp_path):
    page = tmp_path / "part.html"
    assert modscope("report", str(pages.capture("lines")), "-o", str(page), "--steps", "0")[0] == 0
    (part,) = packs(page.read_text(encoding="utf-8"))
    whole = data_of(pages, "lines")
    used = {str(stack) for stack in part.pack.columns["stack"]} - {"0", "1"}
    assert set(part.metadata["stacks"]["rows"]) == used < set(whole.metadata["stacks"]["rows"])


def test_a_page_has_the_source_text_around_its_lines(pages):
    stacks = data_of(pages, "lines").metadata["stacks"]
    script = pages.capture("lines").with_suffix(".py")
    source = stacks["sources"][str(stacks["files"].index(str(script)))]
    text = script.read_text().splitlines()
    used = {
        line
        for row in stacks["rows"].values()
        for file, _, line in row["frames"]
        if stacks["files"][file] == str(script)
    }
    assert text.index("    return a @ b") + 1 in used
    around = {line for each in used for line in range(each - 3, each + 4) if 1 <= line <= len(text)}
    assert source == {"note": None, "lines": {str(line): text[line - 1] for line in around}}


def test_source_text_can_be_left_out(pages, tmp_path):
    page = tmp_path / "bare.html"
    assert modscope("report", str(pages.capture("lines")), "-o", str(page), "--no-source")[0] == 0
    (packed,) = packs(page.read_text(encoding="utf-8"))
    bare, full = packed.metadata["stacks"], data_of(pages, "lines").metadata["stacks"]
    assert all(source == {"note": "source left out", "lines": {}} for source in bare["sources"].values())
    assert bare["rows"] == full["rows"] and bare["files"] == full["files"]
    assert "source" not in {
        key for group in packed.metadata["leaks"]["groups"] for line in group["lines"] for key in line
    }


def test_a_capture_without_stacks_has_nothing_of_lines(pages):
    packed = data_of(pages, "no-lines")
    assert packed.pack.columns["stack"] == [] and "stacks" not in packed.metadata


# ---- source text that cannot be shown ----


class Table:
    """As Places of a capture."""

    def __init__(self, *files, began=None):
        self.files, self.began = files, began

    def find(self, stack):
        return Place((Frame(str(self.files[stack - 2]), "f", 2),), None, self.began)

    def source_lines(self, file):
        return linecache.getlines(file)


def notes(places, *stacks):
    shown = _lines_page.lines_of_page(places, stacks)
    return [shown["sources"][i]["note"] for i in range(len(shown["files"]))], shown


def test_source_text_that_is_gone_or_newer_or_too_long_is_left_out(tmp_path, monkeypatch):
    short, long = tmp_path / "short.py", tmp_path / "long.py"
    short.write_text("a\nb\nc\n")
    long.write_text("x = 1\n" + "y" * 5000 + "\n")
    found, shown = notes(Table(tmp_path / "gone.py", short, long, "<string>", began=4e9), 2, 3, 4, 5)
    assert found == ["source not found", None, None, "source not found"]
    assert shown["sources"][1]["lines"] == {1: "a", 2: "b", 3: "c"}
    assert len(shown["sources"][2]["lines"][2]) == 300
    assert notes(Table(short, began=1.0), 2)[0] == ["changed since"]
    monkeypatch.setattr(_lines_page, "_MOST_TEXT", 3)
    assert notes(Table(short, long, began=4e9), 2, 3)[0] == [None, "source left out"]


def test_files_below_the_present_folder_are_shown_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _lines_page.lines_of_page(Table(tmp_path / "a.py", "/b.py"), [2, 3])["folder"] == f"{tmp_path}/"
    assert _lines_page.lines_of_page(Table("/b.py"), [2])["folder"] == ""
