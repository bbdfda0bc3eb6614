"""What a tracker, a snapshot and a capture show in a notebook's cell: HTML that is whole, inert, and says what the
figures are."""

import os
import re
from html.parser import HTMLParser

import pytest
from capture_helpers import Capture as Written
from capture_helpers import train
from helpers import needs_interception
from modscope import MemTracker, load, record
from modscope._read import lines as _lines_read

import torch
from torch import nn

VOID = {"path", "rect"}
ALLOWED = {"div", "span", "b", "bdi", "table", "tr", "td", "svg", "path", "rect", "text", "title"}
ATTRIBUTES = {
    "style", "title", "viewbox", "role", "aria-label", "fill", "d", "opacity", "x", "y", "width", "height",
    "text-anchor", "stroke", "stroke-width", "stroke-dasharray",
}  # fmt: skip
HOSTILE = ["</script><script>alert(1)</script>", '"onmouseover="alert(1)', "'><img src=x onerror=alert(1)>", "<b>&amp;"]


class Page(HTMLParser):
    """Fails on what is not closed, and on what could do anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.titles: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ALLOWED, tag
        for name, value in attributes:
            assert name in ATTRIBUTES, name
            if name == "style":
                assert "url(" not in value and "expression" not in value and "<" not in value
            if name == "title":
                self.titles.append(value)
        if not (tag in VOID and self.get_starttag_text().endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(40, 40) for _ in range(12)))
        self.head = nn.Linear(40, 5)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture
def trained(tmp_path):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    tracker = MemTracker()
    tracker.track_external(net, optimizer)
    with record(tmp_path / "x.msc"), tracker:
        for _ in range(3):
            net(torch.ones(20, 40)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return tracker, load(tmp_path / "x.msc")


def exact(page):
    """Category to bytes, from the first bar."""
    found = {}
    for title in page.titles:
        if told := re.fullmatch(r"(\w+): .*\(([\d,]+) bytes\), \d+%", title):
            found.setdefault(told[1], int(told[2].replace(",", "")))
    return found


def held(sums):
    return {word: value for word, value in sums.items() if value and word != "Total"}


def test_a_tracker_shows_its_peak(trained):
    tracker, _ = trained
    page = Page(tracker._repr_html_())
    assert "The peak is" in page.text and "The largest modules" in page.text and "not active" in page.text
    assert exact(page) == held(tracker.get_tracker_snapshot("peak")[torch.device("cpu")])
    assert "Net.body.0" in page.text and "smaller module" in page.text


def test_an_active_tracker_may_be_shown_and_goes_on(trained):
    with MemTracker() as tracker:
        kept = torch.ones(1000)
        assert "active" in Page(tracker._repr_html_()).text
        before = tracker.get_tracker_snapshot()
        tracker._repr_html_()
        assert tracker.get_tracker_snapshot() == before
    del kept


def test_a_tracker_that_saw_nothing_says_so():
    assert "No memory was tracked yet." in Page(MemTracker()._repr_html_()).text


def test_a_capture_shows_its_peak_and_its_timeline(trained):
    _, capture = trained
    html = capture._repr_html_()
    page = Page(html)
    assert exact(page) == held(capture.snapshot("peak").totals["cpu"])
    assert html.count("<svg") == 1 and "What cpu held, by" in page.text and "Finished" in page.text
    assert len(html) < 60_000


def test_a_snapshot_shows_its_moment(trained):
    _, capture = trained
    snapshot = capture.snapshot("step:2")
    page = Page(snapshot._repr_html_())
    assert exact(page) == held(snapshot.totals["cpu"])
    assert "cpu held" in page.text and "in step 2" in page.text and f"{snapshot.block_count} blocks" in page.text


@needs_interception
def test_a_run_that_died_of_it_shows_what_was_asked(tmp_path, capfd):
    with pytest.raises(RuntimeError), record(tmp_path / "x.msc"):
        kept = Net()(torch.ones(20, 40))
        torch.empty(1 << 50, dtype=torch.uint8)
    page = Page(load(tmp_path / "x.msc")._repr_html_())
    assert "Out of memory" in page.text and "failed on cpu" in page.text and "out of memory" in page.text
    del kept


def test_the_timeline_goes_by_time_unless_nothing_happened_most_of_it(tmp_path):
    page = Page(written(tmp_path, train(steps=2).end())._repr_html_())
    assert "held, by time" in page.text
    assert {"forward", "backward", "optimizer"} <= set(re.findall(r"\w+", page.text))
    idle = train(steps=2)
    idle.wait(10_000_000)
    idle.add(1000)
    page = Page(written(tmp_path, idle.end())._repr_html_())
    assert "What cuda:0 held, by event" in page.text and "peak" in page.text


def written(tmp_path, capture):
    (tmp_path / "w.msc").write_bytes(capture)
    return load(tmp_path / "w.msc")


def test_one_without_anything_in_it_says_so(tmp_path):
    capture = written(tmp_path, Written().end())
    assert "No memory was held." in Page(capture._repr_html_()).text
    assert "cpu held" in Page(capture.snapshot(0)._repr_html_()).text


def test_names_are_inert_whatever_they_are():
    class Evil(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in [*HOSTILE, "\u05d0\u05d1\u202egnp", "\x1b[2J\x00", "x" * 5000, "\ud800"]:
                self.add_module(name, nn.Linear(40, 40))

        def forward(self, x):
            for child in self.children():
                x = child(x)
            return x

    evil = type("<i>Evil", (Evil,), {})()
    tracker = MemTracker()
    with tracker:
        evil(torch.ones(4, 40))
    html = tracker._repr_html_()
    page = Page(html)
    assert "alert(1)" in page.text and "\u05d0" not in html and "\u202e" not in html and "\x1b" not in html
    assert "x" * 200 not in page.text
    html.encode()


def test_a_captures_own_words_are_inert_too(tmp_path):
    evil = "</div><script>alert(1)</script>"
    capture = Written(devices=(evil,), program=evil, arguments=evil, world="2", rank=evil)
    capture.where("forward", capture.module(evil))
    capture.wait(1000)
    capture.add(1000)
    read = written(tmp_path, capture.end(how=evil, error=evil))
    assert "alert(1)" in Page(read._repr_html_()).text
    Page(read.snapshot("peak")._repr_html_())


def test_a_device_without_a_name_has_one(tmp_path):
    capture = Written(devices=())
    capture.wait(1000)
    capture.add(1000, device=2)
    assert "on device 2" in Page(written(tmp_path, capture.end())._repr_html_()).text


def test_what_was_lost_is_told(tmp_path):
    capture = Written()
    capture.add(1000)
    capture.lost = 12
    capture.frame()
    assert "at least" in Page(written(tmp_path, capture.end())._repr_html_()).text


# ---- lines ----


@needs_interception
def test_a_capture_shows_the_lines_that_made_most_with_their_source(tmp_path):
    source = tmp_path / "train<b>.py"
    text = "import torch\ndef make(k):\n    k.append(torch.zeros(5000)) #<i>\n    k.append(torch.ones(3000))\n"
    source.write_text(text)
    os.utime(source, (1e9, 1e9))
    names, kept = {}, []
    exec(compile(text, str(source), "exec"), names)
    with record(tmp_path / "run.msc"):
        for _ in range(3):
            names["make"](kept)
    capture = load(tmp_path / "run.msc")
    for shown in (capture, capture.snapshot("peak")):
        page = Page(shown._repr_html_())
        lines = page.text.partition("The lines that made most of it")[2]
        first, second = (
            lines.index("train<b>.py:3 k.append(torch.zeros(5000)) #<i>"),
            lines.index("train<b>.py:4 k.append"),
        )
        assert first < second and "58.59 KiB 62%" in lines[first:second] and "35.16 KiB 38%" in lines[second:]
        assert f"{source}:3 in make" in page.titles
    source.unlink()
    _lines_read._source_note.cache_clear()
    assert "train<b>.py:3 in make" in Page(load(tmp_path / "run.msc")._repr_html_()).text


def test_without_lines_there_is_no_table_of_them(tmp_path):
    (tmp_path / "run.msc").write_bytes(train(2).end())
    assert "The lines" not in load(tmp_path / "run.msc")._repr_html_()
