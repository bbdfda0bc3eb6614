"""Pages of `modscope report` to look at: captures of real runs and some written by hand, made when first asked for."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import os
import pathlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from browser import Browser
from capture_helpers import Capture, mixed, train
from odd_captures import damaged, damaged_to_the_end, huge, lossy, out_of_memory
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from modscope import load, record
from modscope.__main__ import main

MIB = 1 << 20
READY = "window.modscopeReady !== undefined || window.modscopeError !== undefined"

# ---- programs ----


def mlp() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@functools.cache
def example() -> Any:
    """examples/gpt.py"""
    path = pathlib.Path(__file__).parents[3] / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("example_gpt", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpt(batch: int = 4, steps: int = 4, layers: int = 4, width: int = 64, length: int = 64) -> None:
    torch.manual_seed(0)
    words = 200
    model = example().GPT(words, length, width, 4, layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        text = example().make_text(words, batch, length, "cpu")
        F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(4)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False)
        return self.head(x.mean((2, 3)))


def cnn() -> None:
    """Checkpointed, and it keeps something of every step."""
    kept = []
    model = CNN()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        out = model(torch.ones(8, 3, 32, 32))
        kept.append(out)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def dies() -> None:
    """As examples/gpt.py --out-of-memory does: of the last batch."""
    torch.manual_seed(0)
    model = example().GPT(200, 64, 64, 4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (4, 4, 10**9):
        text = example().make_text(200, 4, 64, "cpu")[:1].expand(batch, -1)
        F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


LINES = '''\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        hidden = torch.relu(self.inner(x).sin())
        return mix(hidden, hidden.mT)


def mix(a, b):
    return a @ b


def main():
    kept = []
    net = Net()
    for _ in range(6):
        kept.append(torch.zeros(1000))
        net(torch.ones(128, 256)).sum().backward()
        net.zero_grad()
'''


def recorded_lines(path: pathlib.Path) -> None:
    """A program in a file of its own, beside the capture, with all its frames. It was written before it ran, and keeps
    something of every step."""
    script = path.with_suffix(".py")
    script.write_text(LINES)
    os.utime(script, (1e9, 1e9))
    names: dict[str, Any] = {}
    exec(compile(LINES, str(script), "exec"), names)
    recorded(path, names["main"], stacks=8)


def recorded_hostile_lines(path: pathlib.Path) -> None:
    """Files and functions with the names of HOSTILE."""
    runs = []
    for name in HOSTILE[:8]:
        names: dict[str, Any] = {"torch": torch}
        exec(compile("def made():\n    return torch.zeros(1000)\n", name.replace("\0", "0"), "exec"), names)
        names["made"].__code__ = names["made"].__code__.replace(co_qualname=name)
        runs.append(names["made"])
    kept: list[torch.Tensor] = []
    recorded(path, lambda: kept.extend(run() for run in runs))


class Busy(nn.Module):
    """Makes blocks of many sizes, each time others, and drops them sooner or later."""

    def __init__(self, blocks: int, seed: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.chance = random.Random(seed)
        self.sizes = [self.chance.choice((1, 3, 16, 50)) * self.chance.randrange(1, 500) for _ in range(20_000)]
        self.places = [self.chance.randrange(32) for _ in range(20_000)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: list[torch.Tensor | None] = [None] * 32
        first = self.chance.randrange(20_000 - self.blocks)
        last = first + self.blocks
        empty = torch.empty
        for size, place in zip(self.sizes[first:last], self.places[first:last]):
            held[place] = empty(size)
        return x


def million() -> None:
    """A million events: 100 steps of 20 modules that make 250 blocks each, and drop them."""
    layers = [nn.Sequential(Busy(250, 2 * i), Busy(250, 2 * i + 1)) for i in range(10)]
    model = nn.Sequential(nn.Linear(8, 8), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- captures ----


@functools.cache
def warm() -> None:
    """The first step of a process takes seconds: torch imports more of itself."""
    mlp()


def recorded(path: pathlib.Path, run: Callable[[], None], stacks: int = 1) -> None:
    warm()
    try:
        with record(path, stacks=stacks):
            run()
    except RuntimeError as error:
        assert "alloc" in str(error), error


@contextlib.contextmanager
def as_rank(number: int) -> Iterator[None]:
    before = {word: os.environ.get(word) for word in ("RANK", "WORLD_SIZE")}
    os.environ.update(RANK=str(number), WORLD_SIZE="2")
    try:
        yield
    finally:
        for word, value in before.items():
            os.environ.pop(word) if value is None else os.environ.update({word: value})


def recorded_as_rank(path: pathlib.Path, number: int) -> None:
    with as_rank(number):
        recorded(path, lambda: gpt(batch=2 + 2 * number, steps=3, layers=2 + number))


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>&lt;b&gt;&amp;",
    "Evil.\u202egnitide\u202c.\u2066x",
    "\u05d0\u05d1\u05d2.\u0627\u0628",
    "Control\x00\x07\x1b[2J\r\n\tName\x85",
    "L" * 10_000,
    "deep." * 2_000 + "end",
    "javascript:alert(4)",
    "{script}{data}${alert(5)}`",
    "<!--",
    "__proto__.constructor",
    "\ud800lone",
    "",
    ".",
    "\U0001f525.\u6a21\u578b",
]


def hostile() -> bytes:
    evil = "</script><script>alert(6)</script><img src=x onerror=alert(7)>"
    c = Capture((evil, "cu\x1bda\u202e:0"), program=f"{evil}\u202e.py", arguments=f"{evil}\n\"'&", torch=evil)
    for device in (0, 1):
        c.step()
        for i, name in enumerate(HOSTILE):
            c.wait(1_000)
            c.where("forward", c.module(name))
            c.add((10 + i) * MIB, device)
    c.oom(1 << 40, 1, 1 << 30, 0)
    return c.end(how=evil, error=evil, status=evil)


def lost_in_the_middle() -> bytes:
    """Events are missing between two key frames; after them there is less."""
    c = train(3)
    c.lost = 40
    for slot in sorted(c.held)[-4:]:
        del c.held[slot]
        c.free.append(slot)
    c.wait(30_000)
    c.frame()
    c.step()
    c.where("forward", c.module("GPT.h.0.mlp"))
    slots = [c.add(9_000_000, 1) for _ in range(4)]
    c.wait(20_000)
    c.drop(*slots)
    return c.end(how="finished")


def wide() -> bytes:
    """Five hundred modules side by side."""
    c = Capture()
    for i in range(500):
        c.where("forward", c.module(f"Wide.{i}"))
        c.add(1000 + i)
    return c.end(how="finished")


def one_event() -> bytes:
    c = Capture()
    c.add(1)
    return c.end(how="finished")


def same_peak_twice() -> bytes:
    c = Capture()
    for _ in range(2):
        slot = c.add(1000)
        c.wait(10)
        c.drop(slot)
    return c.end(how="finished")


SECOND = 1_000_000


def started(before: float, during: float = 2.0, peak_before: bool = False, steps: int = 4) -> Capture:
    """A run that takes ``before`` seconds to build its model, and ``during`` seconds for its steps."""
    c = Capture(("cuda:0",), program="train.py")
    c.wait(round(before * SECOND / 2))
    c.claim(c.add(64 * MIB), "Parameter", c.module("Net.layer"))
    if peak_before:
        c.drop(c.add(512 * MIB))
    c.wait(round(before * SECOND / 2))
    for _ in range(steps):
        c.step()
        for phase in ("forward", "backward"):
            c.where(phase, c.module("Net.layer"))
            slot = c.add(32 * MIB)
            c.wait(round(during * SECOND / steps / 2))
            c.drop(slot)
        c.where()
    return c


def out_at_the_peak() -> Capture:
    """The peak, a failed allocation and the line of reserved memory are all in the upper right corner."""
    c = started(0.01, steps=3)
    c.step()
    c.where("forward", c.module("Net.layer"))
    c.add(300 * MIB)
    c.reserve(380 * MIB)
    c.oom(1 << 30, 364 * MIB, 380 * MIB)
    return c


def peak_in(part: float, reserved: int = 0, ooms: int = 0) -> Capture:
    """The peak is in this part of the run's time, below a line of reserved memory; then allocations fail."""
    c = Capture(("cuda:0",))
    c.where("forward", c.module("Net.layer"))
    c.add(100 * MIB)
    c.reserve(reserved * MIB)
    for _ in range(10):
        c.step()
        c.wait(round(part * SECOND / 10))
    slot = c.add(200 * MIB)
    c.wait(1)
    c.drop(slot)
    for _ in range(ooms):
        c.wait(1_000)
        c.oom(24 * MIB, 100 * MIB, reserved * MIB)
    c.wait(round((1 - part) * SECOND))
    return c


def deep_names() -> Capture:
    """A model as deep as real ones, a chain of one child each besides, and something outside any module."""
    c = Capture()
    c.add(3 * MIB)
    for i in (0, 11):
        for part in ("attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1", "norm2"):
            c.where("forward", c.module(f"GPT.blocks.{i}.{part}"))
            c.add((i + 1) * 100_000)
    c.where("forward", c.module("GPT.position_embedding"))
    c.add(500_000)
    return c


REAL: dict[str, Callable[[pathlib.Path], None]] = {
    "mlp": lambda path: recorded(path, mlp),
    "gpt": lambda path: recorded(path, gpt),
    "cnn": lambda path: recorded(path, cnn),
    "oom": lambda path: recorded(path, dies),
    "lines": recorded_lines,
    "hostile-lines": recorded_hostile_lines,
    "no-lines": lambda path: recorded(path, mlp, stacks=0),
    "rank0": lambda path: recorded_as_rank(path, 0),
    "rank1": lambda path: recorded_as_rank(path, 1),
    "million": lambda path: recorded(path, million),
}
BY_HAND: dict[str, Callable[[], bytes]] = {
    "cuda": lambda: train(6, leak=1_000_000).end(how="finished", status="0"),
    "cuda-oom": lambda: out_of_memory().end(how="exception", error="OutOfMemoryError", status="1"),
    "mixed": lambda: mixed(oom=False).end(how="finished"),
    "lossy": lambda: lossy().end(how="finished"),
    "lost": lost_in_the_middle,
    "damaged": damaged,
    "damaged_end": damaged_to_the_end,
    "hostile": hostile,
    "huge": lambda: huge().end(how="stopped"),
    "wide": wide,
    "one": one_event,
    "twice": same_peak_twice,
    "empty": lambda: Capture().end(how="finished"),
    "slow-start": lambda: started(8.2).end(how="finished"),
    "quick-start": lambda: started(0.1).end(how="finished"),
    "early-peak": lambda: started(8.2, peak_before=True).end(how="finished"),
    "no-step": lambda: started(8.2, steps=0).end(how="finished"),
    "out-at-the-peak": lambda: out_at_the_peak().end(how="exception"),
    "peak-at-the-end": lambda: peak_in(1.0, reserved=304).end(how="finished"),
    "peak-at-the-start": lambda: peak_in(0.001, reserved=304).end(how="finished"),
    "peak-in-the-middle": lambda: peak_in(0.5, reserved=330).end(how="finished"),
    "many-failures": lambda: peak_in(0.9, reserved=301, ooms=12).end(how="finished"),
    "deep": lambda: deep_names().end(how="finished"),
}


def modscope(*words: str) -> tuple[int, str, str]:
    """What a command says: its status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(words))
        except SystemExit as left:
            status = int(left.code or 0)
    return status, out.getvalue(), err.getvalue()


class Pages:
    """By the names of captures; "rank0+rank1" is of both."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def capture(self, name: str) -> pathlib.Path:
        path = self.folder / f"{name}.msc"
        if not path.exists():
            if name in REAL:
                REAL[name](path)
            else:
                path.write_bytes(BY_HAND[name]())
        return path

    def load(self, name: str) -> Any:
        return load(self.capture(name))

    def __getitem__(self, names: str) -> pathlib.Path:
        page = self.folder / f"{names}.html"
        if not page.exists():
            files = [str(self.capture(name)) for name in names.split("+")]
            status, _, err = modscope("report", *files, "-o", str(page), "--side-by-side")
            # What is missing in a capture is said where the page is written too.
            assert status == 0 and (not err or "at least" in err), err
        return page

    def figures(self, command: str, name: str, *words: str) -> dict[str, Any]:
        """What a command says in JSON."""
        status, out, err = modscope(command, str(self.capture(name)), "--json", *words)
        assert (status, err) == (0, ""), err
        report: dict[str, Any] = json.loads(out)
        return report


class Moment(NamedTuple):
    """What a page shows of a moment."""

    state: dict[str, str]
    rows: dict[str, tuple[dict[str, int], dict[str, int]]]
    """Of each module what it holds itself, and with all below it, by category."""
    legend: dict[str, int]
    blocks: list[dict[str, str]]
    title: str


_LOOK = """(async (moment) => {
    const drawn = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
    const data = (selector) => [...document.querySelectorAll(selector)].map((each) => ({ ...each.dataset }));
    window.modscope.selectMoment(moment);
    await drawn();
    for (const id of ["open-all", "tree-more"]) document.getElementById(id).click();
    return { state: { ...document.body.dataset }, rows: data("#rows .row"), legend: data("#legend li"),
             blocks: data("#blocks tbody tr"), title: document.getElementById("moment-title").innerText };
})(arguments[0])"""


class Shown:
    """A page that is shown."""

    def __init__(self, browser: Browser, pages: Pages) -> None:
        self.browser = browser
        self.pages = pages

    def open(self, names: str, fragment: str = "", width: int = 1300, height: int = 1000) -> Shown:
        self.browser.screen(width, height)
        self.browser.open(self.pages[names].as_uri() + fragment, READY)
        self.browser.settle()
        assert self.browser.run("return window.modscopeError") is None
        return self

    def keep(self, names: str) -> Shown:
        """Open it, unless it is shown already, with whatever was done to it."""
        shown = self.browser.address().partition("#")[0] == self.pages[names].as_uri()
        return self if shown else self.open(names)

    def resize(self, width: int, height: int = 1000) -> None:
        self.browser.screen(width, height)
        self.browser.until(f"innerWidth === {width}")
        self.browser.settle()

    def reload(self) -> None:
        self.browser.reload(READY)
        self.browser.settle()

    # ---- what it says of itself ----

    @property
    def state(self) -> dict[str, str]:
        return self.browser.data("body")[0]

    @property
    def moment(self) -> int:
        return int(self.state["moment"])

    @property
    def module(self) -> str:
        return self.state["module"]

    @property
    def view(self) -> tuple[float, float]:
        state = self.state
        return float(state["from"]), float(state["to"])

    def rows(self) -> list[dict[str, str]]:
        return self.browser.data("#rows .row")

    def fqns(self) -> list[str]:
        return [row["fqn"] for row in self.rows()]

    def legend(self) -> dict[str, int]:
        return bytes_by_category(self.browser.data("#legend li"))

    def tip(self) -> dict[str, int]:
        return bytes_by_category(self.browser.data("#tip tr"))

    # ---- what is done to it ----

    def go(self, moment: int) -> None:
        self.browser.run("window.modscope.selectMoment(arguments[0])", moment)
        self.browser.settle()

    def look(self, moment: int) -> Moment:
        """Go there, open all rows, and read them and all else that is said of it."""
        found = self.browser.wait(_LOOK, moment)
        rows = {row["fqn"]: (json.loads(row["ownBy"]), json.loads(row["subtreeBy"])) for row in found["rows"]}
        return Moment(found["state"], rows, bytes_by_category(found["legend"]), found["blocks"], found["title"])

    def choose(self, fqn: str) -> None:
        self.browser.run("window.modscope.selectModuleByName(arguments[0])", fqn)
        self.browser.settle()

    def on_timeline(self, part: float) -> tuple[float, float]:
        """A point in the plot, from 0 at its left end to 1."""
        box = self.browser.box("#timeline")
        left, right = self.browser.run("const { left, right } = window.modscope.timeline; return [left, right]")
        return box.x + left + part * (right - left), box.y + box.height / 2

    def moment_at(self, x: float) -> int:
        """The moment that is drawn there."""
        script = (
            "const { timeline, capture } = window.modscope;"
            "const { left } = document.getElementById('timeline').getBoundingClientRect();"
            "return capture.momentOf(timeline.drawnAt(arguments[0] - left))"
        )
        return int(self.browser.run(script, round(x)))

    def row(self, fqn: str) -> str:
        """A selector of a module's row."""
        return f'#rows .row[data-fqn="{fqn}"]'

    def picture_of(self, selector: str) -> str:
        """What a canvas shows, as text to be compared."""
        return str(self.browser.run("return document.querySelector(arguments[0]).toDataURL()", selector))

    def is_quiet(self) -> None:
        """Nothing was said on the console, and nothing asked of the network."""
        assert self.browser.complaints() == []
        assert [address for address in self.browser.requests() if not address.startswith("file://")] == []


def bytes_by_category(data: list[dict[str, str]]) -> dict[str, int]:
    return {each["category"]: int(each["bytes"]) for each in data if int(each["bytes"])}


def key_of(block: Any, by: str) -> str:
    """As grouping.js names what a block belongs to; of modules this is without the layers' numbers."""
    if by == "category":
        return str(block.category)
    if by == "module":
        return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", block.module)
    place = block.place and block.place.attributed
    if by == "operator":
        return (place.operator if place else None) or "(operator not known)"
    if place and place.frames:
        return f"{place.file}:{place.line or '?'} in {place.function}"
    return "(no Python line)" if place else "(line not known)"


def attributed_line(block: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The line of the forward, if the block is of backward and the line is known; else the line that made it."""
    of = "forward_" if block["forward_file"] else ""
    return block[f"{of}file"], block[f"{of}line"], block[f"{of}function"]
