"""The commands in blocks of the pages: all are parsed, and what is printed below those that can run here is what they
print. "..." in a page stands for anything, and lines may be wrapped otherwise. Figures that depend on the machine
are masked: seconds, sizes of files, process numbers, losses."""

import glob
import importlib
import os
import pathlib
import re
import shlex
import shutil

import pytest
import warm_python
from helpers import INTERCEPTION
from modscope._cli.command import parse
from modscope._cli.main import COMMANDS

import torch

ROOT = pathlib.Path(__file__).parents[3]
PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
STARTS = re.compile(r"(?:\$ )?((?:modscope|torchrun) .*)")
OF_THE_READER = {"train.py", "train_fsdp2.py", "run.msc", "small.msc", "large.msc", "died.msc", "leaky.msc", "FILE"}
"""Files that a page does not have: a command that names one is parsed only."""
BEFORE = {
    "docs/reading.md": ("run -q -o gpt.msc examples/gpt.py", "run -q -o wide.msc examples/gpt.py --width 320"),
    "docs/export.md": ("run -q -o gpt.msc examples/gpt.py",),
}
"""What a page's text says was run before."""
LONG = re.compile(r"examples/fsdp2\.py$|eight\.rank0|--by line$|uneven|pipeline\.py")
"""Commands that take long, or read what those wrote: they are parsed only, or run by other tests."""
MASKS = (
    (r", ([\d.]+ to )?[\d.]+ m?s a step", ""),
    (r"\d+ events", "EVENTS"),
    (r"\d+(\.\d+)? (s|ms|µs)\b( +\d+%)?", "TIME"),
    (r"(wrote|Wrote) (\S+) \([\d.]+ [KM]iB\)", r"\1 \2 (SIZE)"),
    (r"\.\d+\.msc", ".PID.msc"),
    (r"loss \d+\.\d+", "loss"),
    (r"\[modscope\] ", ""),
    (r"\s+", " "),
)


def blocks(page):
    """The lines of each block of code, which is not a program."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block.splitlines() for block in re.findall(r"^```\n(.*?)^```", text, re.M | re.S)]


def commands(page):
    """Each command of a page with the lines below it; None: the page does not show its output."""
    for lines in blocks(page):
        starts = [i for i, line in enumerate(lines) if STARTS.match(line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
            output = lines[start + 1 : end] if lines[start].startswith("$ ") else []
            yield STARTS.match(lines[start])[1], output or None


def words_of(command):
    """The words after "modscope", of a command that may be torchrun's."""
    words = shlex.split(command.split(">")[0].split("&&")[0], comments=True)
    return words[words.index("modscope") + 1 :] if "modscope" in words else []


def is_usage(command):
    return "[" in command or " top  " in command or "| flame" in command


ALL = [(page, command) for page in PAGES for command, _ in commands(page) if not is_usage(command)]


def test_the_pages_have_commands():
    assert len(ALL) > 40


@pytest.mark.parametrize(("page", "command"), sorted(set(ALL)), ids=lambda each: each)
def test_a_command_has_the_options_that_a_page_gives_it(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *words = words_of(command)
    for word in words:
        if word.endswith((".gz", ".json")):
            pathlib.Path(word).touch()
    parsed = parse(name, "is parsed", importlib.import_module(f"modscope._cli.{name}").COMMAND, words)
    assert name in COMMANDS and parsed


# ---- outputs ----


def shown(page):
    """The commands of a page that are run, and what the page shows of each; None: nothing."""
    for command, output in commands(page):
        words = words_of(command)
        if words and not is_usage(command) and not OF_THE_READER & {*words} and not LONG.search(command):
            yield command, words, output


def masked(text):
    for pattern, by in MASKS:
        text = re.sub(pattern, by, text)
    return text.strip()


def pattern_of(lines):
    """A regular expression for these lines of a page, however they are wrapped."""
    parts = "\n".join(lines).replace("the script's own output...", "").split("...")
    return ".*?".join(re.escape(masked(part)) for part in parts)


def run(words, folder):
    expanded = [name for word in words for name in (sorted(glob.glob(word, root_dir=folder)) or [word])]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if "--small" in words else []
    # two ranks need two GPUs, or none
    ran = warm_python.run([*launcher, "-m", "modscope", *expanded], folder, CUDA_VISIBLE_DEVICES="")
    return ran.stdout + ran.stderr.replace(f"{folder}/", "")


OUTPUTS = [page for page in PAGES if any(output for _, _, output in shown(page))]


def test_these_pages_are_compared():
    assert {"README.md", "docs/tutorial.md", "docs/reading.md", "docs/prediction.md"} <= {*OUTPUTS}


@pytest.mark.slow
@pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the pages show what torch 2.13 does")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer takes address space")
@pytest.mark.parametrize("page", OUTPUTS)
def test_commands_print_what_a_page_shows(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for command in BEFORE.get(page, ()):
        run(command.split(), tmp_path)
    for command, words, output in shown(page):
        printed = run(words, tmp_path)
        assert not output or re.fullmatch(pattern_of(output), masked(printed)), f"{command}\n{printed}"
