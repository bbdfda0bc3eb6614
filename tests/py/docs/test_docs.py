"""The documents and the comments name files and make targets that exist; links lead to pages and headings that
exist."""

import pathlib
import re
import subprocess
import sys

import pytest
from modscope._cli.main import COMMANDS

ROOT = pathlib.Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGES.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = ("include", "src", "python", "tests", "tools", "docs", "bench", "examples")
PATH = re.compile(rf"\b(?:{'|'.join(TOP)})/[\w./*-]*[\w*/]")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w./<*-])([a-z_]\w*\.(?:c|h|py|pyi|js|css|md|mk))\b(?!\.)")
TARGET = re.compile(r"`make ([a-z0-9-]+)")


def page_names() -> list[str]:
    return [str(page.relative_to(ROOT)) for page in PAGES]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def anchors_of(page: pathlib.Path) -> set[str]:
    return {
        anchor_of(line.lstrip("#")) for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    }


@pytest.mark.parametrize("name", page_names())
def test_every_path_that_a_page_names_exists(name):
    missing = {path for path in PATH.findall(text_of(name)) if not [*ROOT.glob(path.rstrip("/"))]}
    assert not missing


@pytest.mark.parametrize("name", page_names())
def test_every_link_of_a_page_leads_somewhere(name):
    page = ROOT / name
    for link in LINK.findall(text_of(name)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


def test_the_tables_of_options_are_what_the_parsers_say():
    words = [sys.executable, str(ROOT / "tools/option_tables.py"), "--check"]
    checked = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (checked.returncode, checked.stderr) == (0, "")
    tables = re.findall(r"<!-- options: ([a-z ]+) -->\n\| option", "".join(map(text_of, page_names())))
    assert sorted(" ".join(tables).split()) == sorted({*COMMANDS} - {"doctor", "help"})


def test_every_make_target_that_a_page_names_exists():
    rules = "".join(text_of(str(rule.relative_to(ROOT))) for rule in [ROOT / "Makefile", *ROOT.glob("tools/*.mk")])
    known = {target for line in re.findall(r"^([a-z][a-z0-9 -]*):(?!=)", rules, re.M) for target in line.split()}
    named = {target for name in page_names() for target in TARGET.findall(text_of(name))}
    assert named and not named - known


def test_every_file_that_a_comment_names_exists():
    sources = [path for top in ("include", "src") for path in sorted((ROOT / top).rglob("*.[ch]"))]
    known = {path.name for top in TOP for path in (ROOT / top).rglob("*.*")} | {"Python.h"}
    for source in sources:
        comments = " ".join(re.findall(r"/\*.*?\*/", source.read_text(encoding="utf-8"), re.S))
        missing = {name for name in FILE.findall(comments) if name not in known}
        assert not missing, source.relative_to(ROOT)
