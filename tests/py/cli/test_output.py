"""Where the output of a command goes: closed pipes, full disks, and what --json prints and writes."""

import json
import os
import pathlib
import pty
import re
import shlex
import subprocess
import sys

import pytest
import warm_python
from command_helpers import apart, columns_of
from helpers import INTERCEPTION
from modscope.__main__ import main

import torch

LINES = [
    "--help",
    "--version",
    "help moments",
    *(f"{name} --help" for name in ("run", "predict", "plan", "batch", "calibrate")),
    "tree names.msc --all --depth 9",
    "summary names.msc --json",
    "fit train.msc",
    "export train.msc --format csv -o -",
    "report train.msc -o -",
    pytest.param("doctor", marks=pytest.mark.slow),
    pytest.param("doctor --json", marks=pytest.mark.slow),
]


def ends(line: str, folder: pathlib.Path, stdout: int) -> tuple[int, str]:
    """The status of a command whose stdout is this descriptor, and what it prints on stderr."""
    words = [sys.executable, "-m", "modscope", *line.split()]
    start = warm_python.Popen if line.startswith("doctor") else subprocess.Popen  # the others do not import torch
    process = start(words, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True)
    os.close(stdout)
    _, err = process.communicate(timeout=600)
    return process.returncode, err


@pytest.mark.parametrize("line", LINES)
def test_a_closed_pipe_ends_quietly(captures, line):
    reader, writer = os.pipe()
    os.close(reader)
    assert ends(line, captures, writer) == (0, "")


@pytest.mark.parametrize("line", LINES)
def test_a_full_disk_is_told(captures, line):
    says = "modscope: The output cannot be written: No space left on device\n"
    assert ends(line, captures, os.open("/dev/full", os.O_WRONLY)) == (1, says)


@pytest.mark.parametrize(
    "line, status, err",
    [
        ("tree names.msc >&-", 0, "modscope: There is no stdout to write to\n"),
        ("fit train.msc >&-", 0, "modscope: There is no stdout to write to\n"),
        ("tree names.msc >&- 2>&-", 0, ""),
        ("tree none.msc 2>&-", 1, ""),
        ("tree none.msc 2> /dev/full", 1, ""),
        ("tree 2> /dev/full", 2, ""),
    ],
)
def test_closed_streams(captures, line, status, err):
    program = f"{shlex.quote(sys.executable)} -m modscope {line}"
    done = subprocess.run(program, shell=True, capture_output=True, text=True, timeout=600, cwd=captures)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", err)


# ---- --json of commands that read captures ----


@pytest.mark.parametrize(
    "line",
    [
        "summary train.msc",
        "summary train.msc train.msc",
        "tree train.msc --depth 1",
        "tree train.msc --depth 1 --by line",
        "flame train.msc --depth 1",
        "blocks train.msc -n 2",
        "diff train.msc leaky.msc",
        "leaks leaky.msc",
        "fit train.msc --gpu t4",
        "fit train.msc --gpu t4,h100",
    ],
)
def test_json_is_printed_instead_of_the_text_or_written_beside_it(modscope, captures, line, tmp_path):
    status, text, err = modscope(line)
    if status != 0:  # two captures of one rank
        assert modscope(f"{line} --json") == (status, "", err)
        return
    _, printed, _ = modscope(f"{line} --json")
    for option in (f"--json={tmp_path}/x.json", f"--json {tmp_path}/x.json"):  # the second one replaces the first
        assert modscope(f"{line} {option}") == (0, text, "")
        assert (tmp_path / "x.json").read_text() == printed
    assert next(iter(json.loads(printed).items())) == ("command", line.split()[0])


def test_json_replaces_nothing_but_json_of_ours(modscope, captures, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"mine": 1}')
    status, out, err = modscope(f"tree train.msc --json={mine}", 200)
    assert (status, out) == (1, "") and "mine.json exists already: choose another name" in err
    assert mine.read_text() == '{"mine": 1}'
    for wrong in ("train.msc", ".", "none/x.json", ""):
        assert modscope(f"tree train.msc --json={wrong}")[:2] == (2, "")


WRITING = {
    "report train.msc -o": "page",
    "export train.msc --format csv -o": "csv",
    "export train.msc --format perfetto -o": "trace",
    "plan train.msc --budget 1GiB --report": "page",
    "fit train.msc --gpu t4 --report": "page",
    "plan train.msc --budget 1GiB -o": "plan",
    "tree train.msc --json": "tree.json",
    "fit train.msc --gpu t4 --json": "fit.json",
}
EXPORTS = {"csv", "rows.csv", "jsonl", "rows.jsonl", "trace", "speedscope", "snapshot"}


@pytest.fixture(scope="module")
def written(captures, tmp_path_factory):
    """What each command writes, and a script, by name."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "script").write_text("import torch\n")
    (folder / "capture").write_bytes((captures / "train.msc").read_bytes())
    export = f"export {folder}/capture --format"
    for line in (
        f"report {folder}/capture -o {folder}/page",
        f"plan {folder}/capture --budget 1GiB -o {folder}/plan",
        f"{export} csv -o {folder}/csv",
        f"{export} csv --at peak -o {folder}/rows.csv",
        f"{export} json -o {folder}/jsonl",
        f"{export} json --at peak -o {folder}/rows.jsonl",
        f"{export} perfetto -o {folder}/trace",
        f"{export} speedscope -o {folder}/speedscope",
        f"{export} torch-snapshot -o {folder}/snapshot",
        f"tree {folder}/capture --json={folder}/tree.json",
        f"fit {folder}/capture --gpu t4 --json={folder}/fit.json",
    ):
        assert main(line.split()) == 0
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("line", WRITING)
def test_each_command_replaces_only_what_it_writes_itself(modscope, captures, written, line, tmp_path):
    file = tmp_path / ("x.json" if line.endswith("--json") else "x")
    own = EXPORTS if line.startswith("export") else {WRITING[line]}
    force = [] if line.startswith("tree") else ["-f"]
    for name, content in written.items():
        file.write_bytes(content)
        words = [*line.split(), str(file), *force]
        status, _, err = modscope(" ".join(words))
        assert (status == 0) == (name in own), (name, err)
        assert name in own or "exists already: choose another name. It is not " in " ".join(err.split())
        assert name in own or file.read_bytes() == content
    assert os.listdir(tmp_path) == [file.name]


def test_older_figures_do_not_stay_if_the_command_fails(modscope, captures, tmp_path):
    file = tmp_path / "x.json"
    assert modscope(f"tree train.msc --json={file}")[0] == 0 and file.exists()
    assert modscope(f"tree train.msc --at step:99 --json={file}")[0] == 1 and not file.exists()


# ---- --json of commands that run a script ----

SCRIPT = """
import sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
print("out", sys.argv[1:])
net = torch.nn.Linear(100, 100).to(device)
opt = torch.optim.Adam(net.parameters())
for _ in range(5):
    net(torch.ones(10, 100, device=device)).sum().backward()
    opt.step()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_json_of_run_is_all_of_stdout(script):
    ran = warm_python.run(["-m", "modscope", "run", "--steps", "2", "--json", "-o", "x.msc", "train.py", "-q"], script)
    figures = json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, "out ['-q']\n")
    assert figures["command"] == "run" and figures["capture"] == str(script / "x.msc")
    assert figures["bytes"] == os.path.getsize(script / "x.msc")
    assert (figures["ended"], figures["status"], figures["processes"]) == ("stopped", "0", [])
    assert figures["peaks"]["cpu"]["bytes"] > 2 * 4 * 10_100
    beside = warm_python.run(["-m", "modscope", "run", "--json=x.json", "--no-capture", "train.py"], script)
    assert beside.stdout == "out []\n" and beside.stderr.startswith("[modscope] Peak ")
    assert json.loads((script / "x.json").read_text())["capture"] is None


def test_json_of_run_says_how_a_script_failed(script):
    (script / "train.py").write_text("import torch\nx = torch.ones(9)\nraise ValueError('no')\n")
    ran = warm_python.run(["-m", "modscope", "run", "--json", "train.py"], script)
    figures = json.loads(ran.stdout)
    assert ran.returncode == 1 and (figures["ended"], figures["error"]) == ("exception", "ValueError: no")
    (script / "train.py").write_text("print('no torch')\n")
    ran = warm_python.run(["-m", "modscope", "run", "--json", "train.py"], script)
    assert (ran.returncode, json.loads(ran.stdout)["peaks"]) == (0, {})


@pytest.mark.slow
@pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
@pytest.mark.parametrize("gpus", ["h100", "h100,h200"])
def test_json_of_predict_is_all_of_stdout(script, gpus):
    ran = warm_python.run(["-m", "modscope", "predict", "--gpu", gpus, "--json", "train.py", "x.json"], script)
    figures = json.loads(ran.stdout)
    assert ran.returncode == 0 and ran.stderr == "out ['x.json']\n"
    assert figures["command"] == "predict" and ("gpus" in figures) == ("," in gpus)


@pytest.mark.slow
def test_json_of_doctor():
    figures = json.loads(warm_python.run(["-m", "modscope", "doctor", "--json"]).stdout)
    assert figures["command"] == "doctor" and figures["torch"] == torch.__version__ and "calls" in figures


# ---- lines ----


@pytest.mark.parametrize("columns", [60, 80, 160])
@pytest.mark.parametrize("line", ["fit oom.msc --gpu 1GiB", "fit leaky.msc", "help json", "help predictions", "help"])
def test_every_line_fits(modscope, line, columns):
    status, out, err = modscope(line, columns)
    assert (status, err) == (0, "") and all(columns_of(each) <= columns for each in out.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("interpose", ["0", "1"])
def test_every_line_of_doctor_fits(interpose):
    done = warm_python.run(["-m", "modscope", "doctor"], COLUMNS="60", MODSCOPE_INTERPOSE=interpose)
    assert done.returncode == 0 and all(len(each) <= 60 for each in done.stdout.splitlines())


# ---- colour and progress ----


def in_terminal(*words: str, **env: str) -> str:
    """What a command shows in a terminal of 80 columns."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    child = subprocess.Popen([sys.executable, "-m", "modscope", *words], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    out = b""
    try:
        while data := os.read(master, 65536):
            out += data
    except OSError:  # its end
        pass
    os.close(master)
    assert child.wait(600) == 0
    return out.decode()


def test_colour_on_a_terminal_only(captures):
    file = str(captures / "train.msc")
    coloured = in_terminal("tree", file)
    assert "\x1b[32m█" in coloured and "\x1b[1m" in coloured
    for plain in (
        in_terminal("tree", file, NO_COLOR="1"),
        in_terminal("tree", file, TERM="dumb"),
        apart("tree", file).stdout,
    ):
        assert "\x1b" not in plain
    assert "\x1b[32m█" in apart("tree", file, FORCE_COLOR="1", PYTHONIOENCODING="utf-8").stdout
    assert "\x1b" not in apart("tree", file, FORCE_COLOR="1", NO_COLOR="1").stdout
    bare = re.sub(r"\x1b\[\d+m", "", coloured).replace("\r\n", "\n")
    assert bare == apart("tree", file, COLUMNS="80", PYTHONIOENCODING="utf-8").stdout


def test_progress_is_shown_on_a_terminal_when_it_takes_long(monkeypatch, capsys):
    from modscope._show import terminal

    clock = iter([0.0, 0.1, 0.5])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = terminal.ReadingProgress()
    progress(0.1)
    assert capsys.readouterr().err == ""
    progress(0.5)
    progress.clear()
    progress.clear()
    assert capsys.readouterr() == ("", "\r\x1b[Kreading: 50%\r\x1b[K")


def test_no_progress_elsewhere(monkeypatch, capsys):
    from modscope._show import terminal

    progress = terminal.ReadingProgress()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 1e9)
    progress(0.5)
    progress.clear()
    assert capsys.readouterr().err == ""


def test_nothing_that_is_written_controls_the_terminal_but_our_colours(capsys):
    from modscope._show import terminal

    screen = terminal.Screen(colour=True)
    ours = screen.bold("a") + screen.of_category("b", "Activation") + screen.filled("c", "Parameter", True) + "\u2588\n"
    hostile = "\x1b]0;title\x07\x1b[2J\x1b[8m\r\t\x9b31m\u202e\x7f"
    terminal.write(sys.stdout, ours + hostile + "\n")
    escaped = "".join(char if char.isprintable() else terminal.escape(char) for char in hostile)
    assert capsys.readouterr().out == f"{ours}{escaped}\n"
    terminal.complain(f"no {hostile}")
    terminal.say(hostile)
    assert capsys.readouterr().err == f"modscope: no {escaped}\n[modscope] {escaped}\n"
