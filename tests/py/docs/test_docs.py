"""The documents and the comments name files and make targets that exist; links lead to pages and headings that
exist; and the commands of a tutorial do what it says."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import warm_python
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


# ---- the tutorial of FSDP2 ----


TUTORIAL = [
    shlex.split(line[2:])
    for line in (ROOT / "docs" / "tutorial-fsdp2.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("$ ")
]


def modscope_part(words: list[str]) -> list[str]:
    """The words after "modscope", of a command that may be torchrun's."""
    return words[words.index("modscope") + 1 :]


@pytest.mark.parametrize("words", TUTORIAL, ids=" ".join)
def test_every_command_of_the_tutorial_has_its_options(words, capsys):
    from modscope.__main__ import main

    command, *rest = modscope_part(words)
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert not ended.code
    known = capsys.readouterr().out
    script = next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest))
    for option in (word for word in rest[:script] if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known), option
    example = (ROOT / "examples" / "fsdp2.py").read_text(encoding="utf-8")
    assert all(f'"{word}"' in example for word in rest[script + 1 :])


def test_every_file_of_the_tutorial_exists_or_was_written_before():
    written: set[str] = set()
    assert len(TUTORIAL) > 5
    for words in TUTORIAL:
        for word in words:
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), word
            elif word.endswith(".msc") and words[words.index(word) - 1] != "-o":
                assert word in written, word
        rest = modscope_part(words)
        if words[0] == "torchrun":
            count = int(words[words.index("--nproc-per-node") + 1])
            written |= {f"modscope-fsdp2.rank{rank}.msc" for rank in range(count)}
        elif "-o" in rest and "--ranks" in rest:
            written.add(rest[rest.index("-o") + 1].replace(".msc", ".rank0.msc"))


@pytest.mark.slow
def test_the_example_runs_on_two_ranks_over_gloo(tmp_path):
    import modscope

    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "modscope",
        "run",
        str(ROOT / "examples" / "fsdp2.py"),
    ]
    # two ranks need two GPUs, or none
    ran = warm_python.run([*words, "--small", "--steps", "1"], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 0, ran.stderr
    captures = [modscope.load(str(tmp_path / f"modscope-fsdp2.rank{rank}.msc")) for rank in range(2)]
    assert [capture.info["world"] for capture in captures] == ["2", "2"]
    # parameters in float32: embedding and head, layers, norms
    whole = 4 * (2 * 1024 * 256 + 4 * (4 + 9) * 256 * 256 + 9 * 256)
    for capture in captures:
        assert capture.snapshot("peak").kinds["cpu"]["Sharded Param"] == whole // 2
