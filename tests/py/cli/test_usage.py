"""What the reading commands do with wrong arguments, files and pipes, and what their help says."""

import argparse
import importlib
import os
import re
import subprocess
import sys

import pytest
from capture_helpers import header, train
from command_helpers import CAPTURES, COMMANDS, apart
from modscope import load
from modscope._cli import main, summary
from modscope._cli.command import parse, parser_of
from modscope._read.summary import summarize
from modscope._show.terminal import Screen

# ---- how they end ----


@pytest.mark.parametrize(
    "line,says",
    [
        ("summary none.msc", "no file none.msc"),
        ("summary .", "folder: give the name of a capture"),
        ("summary script.py", "To run and record a script:  modscope run script.py"),
        ("summary no_capture.msc", "no_capture.msc"),
        ("summary newer.msc", "newer"),
        ("summary /dev/null", "not a file"),
        ("diff train.msc none.msc", "no file none.msc"),
        ("tree train.msc --at step:99", "no step 99: the last is 6"),
        ("tree train.msc --at time:99", "ends at"),
        ("tree train.msc --at oom", "no allocation failed"),
        ("tree train.msc --device xpu", "no device 'xpu'. It has: cpu, cuda:0"),
        ("tree empty.msc", "no peak"),
        ("blocks empty.msc", "no peak"),
        ("leaks train.msc --device xpu", "no device"),
        ("diff train.msc train.msc --at time:0 --device xpu", "no device"),
    ],
)
def test_what_is_not_there(modscope, captures, line, says):
    for name in ("no_capture.msc", "script.py"):
        (captures / name).write_text("import torch\n")
    (captures / "newer.msc").write_bytes(header(major=9))
    status, out, err = modscope(line, 200)
    assert (status, out) == (1, "")
    assert err.startswith("modscope: ") and says in err and err.count("\n") == 1
    assert all(len(each) <= 80 for each in modscope(line)[2].splitlines())


def test_a_hostile_file_name(modscope):
    status, _, err = modscope("summary no\x1b[2J\u202ene.msc")
    assert status == 1 and "\x1b" not in err and "\u202e" not in err


@pytest.mark.parametrize(
    "line",
    [
        "summary",
        "diff train.msc",
        "tree train.msc --at foo",
        "tree train.msc --at step:x",
        "tree train.msc --depth 0",
        "tree train.msc --by colour",
        "blocks train.msc -n few",
        "blocks train.msc -n -1",
        "report train.msc --steps few",
        "tree train.msc --what",
    ],
)
def test_bad_usage(modscope, line):
    status, out, err = modscope(line)
    assert (status, out) == (2, "") and err.startswith(f"usage: modscope {line.split()[0]} ")


def test_a_wrong_number_is_answered_with_the_right_ones(modscope):
    assert "-n: must be a number, 0 or more, not '-1'" in modscope("blocks train.msc -n -1", 200)[2]
    assert "--depth: must be a number, 1 or more, not '0'" in modscope("tree train.msc --depth 0", 200)[2]
    assert (
        "--only-steps: must be A:B, A:, :B or A, such as 2:4, not 'x'"
        in modscope("report train.msc --only-steps x", 200)[2]
    )


def test_an_option_without_a_command(modscope):
    status, out, err = modscope("--what")
    assert (status, out) == (2, "") and "unrecognized arguments: --what" in err


# ---- help ----


WORDS = [
    "run",
    "predict",
    "top",
    "fit",
    "batch",
    "plan",
    "summary",
    "tree",
    "flame",
    "blocks",
    "diff",
    "leaks",
    "report",
    "export",
    "calibrate",
    "doctor",
    "help",
]


def test_the_version(modscope):
    from modscope import __version__

    assert modscope("--version") == (0, f"modscope {__version__}\n", "")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("word", ["", *WORDS])
def test_every_help_ends_with_an_example_and_fits(modscope, word, columns):
    status, out, err = modscope(f"{word} --help", columns)
    assert (status, err) == (0, "") and "Example" in out
    assert out.splitlines()[-1].startswith("  modscope ")
    assert all(len(line) < columns for line in out.splitlines())
    assert "docs/" not in out and ".md" not in out, "pip installs no docs"


def test_help_lists_all_commands(modscope):
    status, out, _ = modscope("--help")
    assert status == 0 and all(re.search(rf"^ +{word}\b", out, re.M) for word in WORDS)


def test_no_command_shows_the_help(modscope):
    status, out, err = modscope("")
    assert (status, out) == (2, "") and err == modscope("--help")[1]


def test_the_examples_work(modscope, captures, tmp_path):
    """Examples of scripts and of what is running are left out, and those of fit and batch, which need two batches."""
    for name in ("run", "before", "after"):
        (captures / f"{name}.msc").write_bytes(CAPTURES["train"]())
    for rank in "01":
        (captures / f"rank{rank}.msc").write_bytes(train(4, rank=rank, world="2").end(how="finished"))
    for word in WORDS[5:-3] + ["help"]:
        _, out, _ = modscope(f"{word} --help", 120)
        lines = re.findall(r"^  modscope (.*)", out[out.rindex("Example") :], re.M)
        for line in (line for line in lines if ".py" not in line):
            status, _, err = modscope(line)
            assert status == 0, (line, err)
    for made in ("run.html", "rank0.html", "run.pftrace", "peak.csv"):
        (captures / made).unlink()


def test_help_on_topics(modscope):
    status, out, _ = modscope("help")
    topics = re.findall(r"^  (\w+) ", out, re.M)
    assert status == 0 and "moments" in topics and "steps" in topics
    for topic in topics:
        status, out, err = modscope(f"help {topic}")
        assert (status, err) == (0, "") and len(out.splitlines()) > 2 and max(map(len, out.splitlines())) < 85
    assert modscope("help tree") == modscope("tree --help")
    status, out, err = modscope("help nonsense")
    assert (status, out) == (2, "") and "There is no help on 'nonsense'" in err and "moments" in err


@pytest.mark.parametrize(
    "line, suggestion",
    [
        ("train.py", "modscope run train.py"),
        ("train.py --epochs 3", "modscope run train.py"),
        ("train.msc", "modscope summary train.msc"),
        ("none.msc", "modscope summary none.msc"),
        ("script", "modscope run script"),
        ("ev;il.py", "modscope run 'ev;il.py'"),
        ("sumary train.msc", "modscope summary"),
    ],
)
def test_a_word_that_is_no_command_brings_a_suggestion(modscope, captures, line, suggestion):
    (captures / "script").write_text("print()\n")
    status, out, err = modscope(line, 120)
    assert (status, out) == (2, "") and err.endswith(f":  {suggestion}\n") and err.count("\n") == 1


def test_a_word_that_is_like_no_command_brings_the_list_of_them(modscope):
    status, out, err = modscope("nonsense", 200)
    says = f"modscope: There is no command 'nonsense'. The commands are: {', '.join(WORDS)}\n"
    assert (status, out, err) == (2, "", says)


@pytest.mark.parametrize(
    "line, target, own",
    [
        ("run -qo x.msc train.py --json -o y", ["train.py", "--json", "-o", "y"], {"output": "x.msc", "json": None}),
        ("run -m pkg.train -m", ["-m", "pkg.train", "-m"], {}),
        ("run -- -q.py", ["-q.py"], {"quiet": False}),
        ("run - x", ["-", "x"], {}),
        ("predict --json train.py", ["train.py"], {"json": "-"}),
        ("predict --json=x train.py", ["train.py"], {"json": "x"}),
        ("predict --json x.json train.py x.json2", ["train.py", "x.json2"], {"json": "x.json"}),
        ("predict --steps 5 train.py --steps 7", ["train.py", "--steps", "7"], {"steps": 5}),
        ("fit train.py --steps 5 --lr 1 -- --steps 7", ["train.py", "--lr", "1", "--steps", "7"], {"steps": 5}),
        ("fit --json train.py -f -m x", ["train.py", "-m", "x"], {"json": "-", "force": True}),
        ("fit -m pkg.train --json -- x", ["-m", "pkg.train", "x"], {"json": "-"}),
        ("fit a.msc --json b.msc", [], {"json": "-", "file": "a.msc", "other": "b.msc"}),
        ("fit --json x.json a.msc", [], {"json": "x.json", "file": "a.msc", "other": None}),
        ("calibrate", [], {"steps": 3}),
        ("tree --json x.msc --dep 3", [], {"json": "-", "file": "x.msc", "depth": 3}),
        ("diff --json -- a.msc -b", [], {"file": "a.msc", "other": "-b"}),
    ],
)
def test_our_options_and_those_of_a_script(line, target, own):
    name, *words = line.split()
    module = importlib.import_module(f"modscope._cli.{name}")
    arguments = parse(name, "do something", module.COMMAND, words)
    assert arguments.target == target
    assert {key: getattr(arguments, key) for key in own} == own


def test_an_interrupt_ends_quietly(modscope, monkeypatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("modscope._read.load.load", interrupt)
    assert modscope("summary train.msc") == (130, "", "")


def test_reading_imports_no_torch(captures, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for command in COMMANDS:
        words = command.format(captures / "train.msc").replace(" train.msc", f" {captures / 'train.msc'}").split()
        done = apart(*words, PYTHONPATH=path)
        assert (done.returncode, done.stderr) == (0, "")


def test_reading_imports_little(captures):
    """Python starts in 20 ms; what takes as long to import does not belong here."""

    def imported(*words: str) -> set[str]:
        command = [sys.executable, "-X", "importtime", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=captures)
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    ours = imported("-m", "modscope", "tree", "train.msc") - imported("-c", "")
    assert "modscope._read.load" in ours
    assert not ours & {"torch", "numpy", "dataclasses", "inspect", "json", "asyncio", "modscope._native"}


# ---- completion and the man page ----


def test_bash_completes_commands_options_and_gpus(modscope, tmp_path):
    """As bash itself asks for them."""
    script = tmp_path / "modscope.bash"
    script.write_text(modscope("help --completion bash")[1])

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _modscope; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ran = subprocess.run(["bash", "-c", f"source {script}; {ask}"], capture_output=True, text=True, check=True)
        return ran.stdout.split()

    assert completed("modscope", "su") == ["summary"]
    assert completed("modscope", "predict", "--ranks-") == ["--ranks-per-node"]
    assert completed("modscope", "fit", "run.msc", "--gpu", "rtx409") == ["rtx4090"]
    assert completed("modscope", "summary", "run.m") == [], "files are bash's own"


def test_completion_and_the_man_page_have_every_option_of_every_command(modscope):
    fish, zsh, man = (modscope(f"help {words}")[1] for words in ("--completion fish", "--completion zsh", "--man"))
    for name, does in main.COMMANDS.items():
        parser = parser_of(name, does, importlib.import_module(f"modscope._cli.{name}").COMMAND)
        shown = [action for action in parser.actions if action.help != argparse.SUPPRESS]
        options = {option for action in shown for option in action.option_strings if option.startswith("--")}
        of_fish = {line for line in fish.splitlines() if f"__fish_seen_subcommand_from {name}'" in line}
        (words,) = re.findall(rf'    {name}\) words="(.*)" ;;', zsh)
        section = man.split(f".SS {name}\n")[1].split("\n.SS ")[0].replace("\\-", "-")
        for option in options:
            assert any(f"-l {option[2:]} " in line for line in of_fish), (name, option)
            assert option in words.split() and option in section, (name, option)


def test_a_summary_fits_a_low_terminal(captures):
    """Of 24 lines, of which one is the prompt's; a higher one has all of it."""
    result = summarize("train.msc", load(captures / "train.msc"))
    texts = {height: summary.text(result, Screen(80, height=height), argparse.Namespace()) for height in (24, 60, None)}
    assert len(texts[24]) <= 23 < len(texts[None]) and texts[60] == texts[None]
    assert "Time by phase: " in "\n".join(texts[24]) and "By module" in "\n".join(texts[24])
