"""Pages of `modscope report` that are shown in a browser. Their captures are made when first asked for."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import re
from typing import Any, NamedTuple

from browser import Browser
from modscope import load
from modscope.__main__ import main
from page_by_hand import BY_HAND
from page_runs import REAL

READY = "window.modscopeReady !== undefined || window.modscopeError !== undefined"


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

    def show_each_layer(self) -> Shown:
        """Show modules that are alike one by one."""
        if self.browser.attribute("#together", "aria-pressed") == "true":
            self.browser.run("document.getElementById('together').click()")
            self.browser.settle()
        return self

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
