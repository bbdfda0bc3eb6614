"""`modscope export`: what it says, what it does to files, and how it ends."""

import contextlib
import json
import os
import pathlib
import pty
import random
import shlex
import subprocess
import sys
import unicodedata

import pytest
from capture_helpers import Capture, header, payloads, seal, train
from export_helpers import mixed
from modscope.__main__ import main
from modscope._read.own_files import EXPORT
from odd_captures import hostile, lossy

FORMATS = ["perfetto", "speedscope", "torch-snapshot", "csv", "json"]


@pytest.fixture
def modscope(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with captures; its status, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    pathlib.Path("run.msc").write_bytes(train(3).end(how="finished"))

    def run(line: str):
        try:
            status = main(line.split())
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return run


# ---- what it writes ----


@pytest.mark.parametrize("format", FORMATS)
def test_it_says_what_it_wrote_and_where_to_look(modscope, format):
    status, out, err = modscope(f"export run.msc --format {format} -o out")
    assert (status, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first.startswith("Wrote out (") and ("peak" if format == "speedscope" else " events") in first
    assert last.startswith("Open it:  ") and pathlib.Path("out").stat().st_size


@pytest.mark.parametrize(
    "name, format",
    [
        ("x.pftrace", "perfetto"),
        ("x.perfetto-trace", "perfetto"),
        ("x.speedscope.json", "speedscope"),
        ("x.pickle", "torch-snapshot"),
        ("x.csv", "csv"),
        ("X.CSV", "csv"),
        ("x.json", "json"),
        ("x.jsonl", "json"),
    ],
)
def test_the_extension_tells_the_format(modscope, name, format):
    assert modscope(f"export run.msc -o {name}")[0] == 0
    assert modscope(f"export run.msc --format {format} -o out")[0] == 0
    assert pathlib.Path(name).read_bytes() == pathlib.Path("out").read_bytes()


@pytest.mark.parametrize(
    "name, format", [("x.txt", "csv"), ("x.pkl", "torch-snapshot"), ("x.json", "speedscope"), ("csv", "json")]
)
def test_a_format_that_is_asked_for_wins(modscope, name, format):
    _, out, _ = modscope(f"export run.msc --format {format} -o {name} --json")
    assert json.loads(out)["format"] == format


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("-o x.txt", "The extension of x.txt is not known: add --format, or use another extension. "),
        ("-o -", "The format is not known: with -o - add --format. "),
        (
            "-o x.csv --format perfetto",
            "x.csv has the extension of csv, but --format says perfetto: change one of them. ",
        ),
        (
            "-o x.speedscope.json --format json",
            "x.speedscope.json has the extension of speedscope, but --format says json: change one of them. ",
        ),
    ],
)
def test_an_extension_that_does_not_tell_or_tells_another_is_refused(modscope, words, sentence):
    status, out, err = modscope(f"export run.msc {words}")
    assert (status, out) == (2, "") and sentence in err and os.listdir() == ["run.msc"]
    assert all(
        extension in err
        for extension in (".pftrace", ".perfetto-trace", ".speedscope.json", ".pickle", ".csv", ".json")
    )


@pytest.mark.parametrize("format", FORMATS)
def test_json_tells_of_the_file(modscope, format):
    status, out, _ = modscope(f"export run.msc --format {format} -o out --json")
    report = json.loads(out)
    assert status == 0 and report["command"] == "export" and report["format"] == format
    assert report["bytes"] == pathlib.Path("out").stat().st_size and report["output"] == "out"


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_again(modscope, format):
    modscope(f"export run.msc --format {format} -o a")
    modscope(f"export run.msc --format {format} -o b")
    assert pathlib.Path("a").read_bytes() == pathlib.Path("b").read_bytes()


@pytest.mark.parametrize("format", FORMATS)
def test_without_torch(tmp_path, format):
    (tmp_path / "run.msc").write_bytes(train(2).end(how="finished"))
    script = f"""
import sys
from modscope.__main__ import main
assert main(["export", "run.msc", "--format", {format!r}, "-o", "out"]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_names_say_nothing_to_the_terminal(modscope, format):
    pathlib.Path("evil.msc").write_bytes(hostile().end(how="\x1b[2J"))
    name = "\x1b[31m\u202eout"
    status, out, err = modscope(f"export evil.msc --format {format} -o {name}")
    assert status == 0 and err == "" and "\x1b" not in out and "\u202e" not in out
    assert pathlib.Path(name).exists()


@pytest.mark.parametrize("format", FORMATS)
def test_losses_are_told(modscope, format):
    pathlib.Path("lossy.msc").write_bytes(lossy().end(how="finished"))
    status, out, _ = modscope(f"export lossy.msc --format {format} -o out")
    assert status == 0 and '12 events could not be written: every figure is "at least".' in out
    _, out, _ = modscope(f"export lossy.msc --format {format} -o again --json")
    assert json.loads(out)["is_lower_bound"] and json.loads(out)["lost"] == 12


# ---- stdout, pipes and devices ----


@pytest.mark.parametrize("format", FORMATS)
def test_to_stdout(modscope, tmp_path, format):
    modscope(f"export run.msc --format {format} -o out")
    words = [sys.executable, "-m", "modscope", "export", "run.msc", "--format", format, "-o", "-"]
    done = subprocess.run(words, capture_output=True)
    assert done.returncode == 0 and done.stderr == b"" and done.stdout == (tmp_path / "out").read_bytes()


def test_whoever_reads_may_have_seen_enough(modscope):
    pathlib.Path("long.msc").write_bytes(train(150, blocks=12).end(how="finished"))
    line = f"{shlex.quote(sys.executable)} -m modscope export long.msc --format json -o - | head -c 100; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout) == 100


def test_a_device_is_written_to_and_stays(modscope):
    assert modscope("export run.msc --format csv -o /dev/null")[0] == 0
    assert not os.path.isfile("/dev/null")
    status, _, err = modscope("export run.msc --format csv -o /dev/full")
    assert status == 1 and err == "modscope: /dev/full cannot be written: No space left on device\n"


def test_a_terminal_is_not_given_what_is_no_text(tmp_path):
    (tmp_path / "run.msc").write_bytes(train(1).end(how="finished"))
    words = [sys.executable, "-m", "modscope", "export", "run.msc", "--format", "perfetto", "-o", "-"]
    ours, theirs = os.openpty()
    done = subprocess.run(words, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    os.close(ours)
    assert (
        done.returncode == 2
        and "perfetto is binary and cannot be shown in a terminal: give a file with -o" in done.stderr
    )


@pytest.mark.parametrize("options", ["--format csv", "--format csv --at peak", "--format json", "--format speedscope"])
def test_a_terminal_is_given_no_control_characters(tmp_path, options):
    (tmp_path / "run.msc").write_bytes(hostile().end(how="finished"))
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "modscope", "export", "run.msc", *options.split(), "-o", "-"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.communicate(timeout=600)[1] == b"" and process.returncode == 0 and b"Evil" in shown
    text = shown.decode().replace("\r\n", "\n")
    assert not [char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf")]


# ---- files that are there ----


def test_what_exists_stays(modscope):
    pathlib.Path("out").write_text("dear")
    status, out, err = modscope("export run.msc --format csv -o out")
    assert (status, out) == (1, "")
    says = "modscope: out exists already: choose another name. It is not a file of modscope export, so it is not replaced\n"
    assert err == says and modscope("export run.msc --format csv -o out -f") == (1, "", says)
    assert pathlib.Path("out").read_text() == "dear"


def test_it_is_replaced_when_that_is_wanted(modscope):
    assert modscope("export run.msc --format json -o out")[0] == 0
    again = modscope("export run.msc --format csv -o out")
    assert again == (1, "", "modscope: out exists already: choose another name, or overwrite it (-f)\n")
    assert modscope("export run.msc --format csv -o out -f")[0] == 0
    assert pathlib.Path("out").read_text().startswith("event,time,")


@pytest.mark.parametrize("command", ["export run.msc --format csv -o link", "report run.msc -o link"])
@pytest.mark.parametrize("target", ["real", "missing", "pipe"])
def test_a_link_is_replaced_and_not_its_target(modscope, command, target):
    """Somebody else may have made it in a folder where all may write."""
    pathlib.Path("real").touch()
    os.mkfifo("pipe")
    os.symlink(target, "link")
    status, _, err = modscope(command)
    assert status == 1 and err == "modscope: link exists already: choose another name, or overwrite it (-f)\n"
    assert modscope(f"{command} -f")[0] == 0
    assert not os.path.islink("link") and os.path.getsize("link") > 1000
    assert pathlib.Path("real").read_text() == "" and sorted(os.listdir()) == ["link", "pipe", "real", "run.msc"]


def test_a_file_that_appears_meanwhile_stays(tmp_path):
    from modscope._show.output_file import create

    path = tmp_path / "out"
    with pytest.raises(OSError, match="out exists already"), create(str(path), EXPORT, False) as file:
        file.write(b"ours")
        path.write_text("theirs")
    assert path.read_text() == "theirs" and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full"), MemoryError])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, error):
    from modscope._show.output_file import create

    path = tmp_path / "out"
    path.write_text("event,time,kind,thread,device,")
    with pytest.raises(BaseException), create(str(path), EXPORT, True) as file:
        file.write(b"new")
        raise error
    assert path.read_text() == "event,time,kind,thread,device," and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("force", ["", " -f"])
def test_the_capture_is_never_replaced(modscope, force):
    before = pathlib.Path("run.msc").read_bytes()
    status, _, err = modscope(f"export run.msc --format csv -o ./run.msc{force}")
    assert status == 1 and "It is not a file of modscope export" in err
    assert pathlib.Path("run.msc").read_bytes() == before


def test_nothing_is_left_of_what_failed(modscope, monkeypatch):
    from modscope._export import tables

    def fail(capture, format, put, asked):
        put(b"half")
        raise MemoryError

    monkeypatch.setattr(tables, "write", fail)
    pathlib.Path("out").write_text("event,time,kind,thread,device,")
    status, _, err = modscope("export run.msc --format csv -o out -f")
    assert (status, err) == (1, "modscope: There is not enough memory to read this capture\n")
    assert sorted(os.listdir()) == ["out", "run.msc"]
    assert pathlib.Path("out").read_text() == "event,time,kind,thread,device,"


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("-o there", "there is a folder: give the name of a file"),
        ("-o no/where", "There is no folder no: make it first"),
        ("-o there/", "there/ is a folder: give the name of a file"),
        ("-o run.msc/out", "There is no folder run.msc: make it first"),
        (f"-o {'x' * 300}", f"{'x' * 300} cannot be written: File name too long"),
    ],
)
def test_places_that_cannot_be(modscope, line, sentence):
    os.mkdir("there")
    status, out, err = modscope(f"export run.msc --format csv {line}")
    assert (status, out) == (1, "") and " ".join(err.split()) == f"modscope: {sentence}"


# ---- bad input ----


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "data, sentence",
    [
        (None, "There is no file x.msc"),
        (
            b"",
            "x.msc: this file is not a modscope capture. It is empty: its recording was ended before it wrote "
            "anything, or the disk is full. Record the run again",
        ),
        (
            b"modscope",
            "x.msc: this file is not a modscope capture. It is only 8 bytes long: if a recording wrote it, it was "
            "cut short. Record the run again",
        ),
        (b"something else entirely, and long enough", "x.msc: this file is not a modscope capture"),
        (
            header(major=2) + bytes(100),
            "x.msc: this capture was written by a newer version of modscope: upgrade modscope to read it",
        ),
        (header(), "There is nothing to export: x.msc has no events in it"),
        (Capture().end(how="finished"), "There is nothing to export: x.msc has no events in it"),
    ],
)
def test_no_capture(modscope, format, data, sentence):
    if data is not None:
        pathlib.Path("x.msc").write_bytes(data)
    status, out, err = modscope(f"export x.msc --format {format} -o out")
    assert (status, out, err) == (1, "", f"modscope: {sentence}\n") and not os.path.exists("out")


@pytest.mark.parametrize(
    "words, sentence",
    [
        (
            "--format xml -o out",
            "There is no format 'xml'. The formats are: perfetto, speedscope, torch-snapshot, csv, json",
        ),
        ("--format csv", "the following arguments are required: -o/--output"),
        (
            "-o out",
            "The extension of out is not known: add --format, or use another extension. The formats and their "
            "extensions are perfetto (.pf",
        ),
        ("--format csv -o out --at noon", "There is no moment 'noon': use peak, oom, step:N or time:SECONDS"),
        (
            "--format perfetto -o out --at peak",
            "perfetto always shows the whole run: leave out --at, or use speedscope, torch-snapshot",
        ),
        ("--format perfetto -o out --device cpu", "The events in perfetto are of all devices: leave out --device"),
        ("--format json -o out --device cpu", "The events in json are of all devices: leave out --device, or add --at"),
        (
            "--format csv -o - --json",
            "--json describes the file that was written, so it needs a file: give one with -o",
        ),
    ],
)
def test_words_that_make_no_sense(modscope, words, sentence):
    status, out, err = modscope(f"export run.msc {words}")
    assert (status, out) == (2, "") and sentence in err and not os.path.exists("out")


@pytest.mark.parametrize("format", ["speedscope", "torch-snapshot", "csv", "json"])
@pytest.mark.parametrize(
    "words, sentence",
    [
        ("--at oom", "There is no moment oom: no allocation failed in this capture"),
        ("--at step:99", "There is no step 99: the last is 3"),
        ("--at time:1e6", "There is no moment at 1e+06 s: the capture ends at "),
        ("--at peak --device cuda:7", "The capture has no device 'cuda:7'. It has: cpu, cuda:0"),
        ("--at step:2 --device cuda:7", "The capture has no device 'cuda:7'. It has: cpu, cuda:0"),
    ],
)
def test_what_the_capture_does_not_have(modscope, format, words, sentence):
    status, out, err = modscope(f"export run.msc --format {format} -o out {words}")
    assert (status, out) == (1, "") and err.startswith(f"modscope: {sentence}")
    assert os.listdir() == ["run.msc"]


def test_no_peak_where_nothing_was_held(modscope):
    c = Capture()
    c.where("forward", c.module("Net"))
    pathlib.Path("bare.msc").write_bytes(c.end(how="finished"))
    status, _, err = modscope("export bare.msc --format speedscope -o out")
    assert (status, err) == (1, "modscope: There is no peak: the capture has no memory in it\n")
    assert all(
        modscope(f"export bare.msc --format {name} -o {name}")[0] == 0 for name in FORMATS if name != "speedscope"
    )


def test_blocks_that_have_no_addresses_left(modscope):
    c = Capture()
    for i in range(5):
        c.drop(c.add(2**61 + i))
    pathlib.Path("vast.msc").write_bytes(c.end(how="finished"))
    status, _, err = modscope("export vast.msc --format torch-snapshot -o out")
    assert (status, err) == (1, "modscope: The blocks of this capture are too large for torch-snapshot\n")
    assert modscope("export vast.msc --format perfetto -o out")[0] == 0


@pytest.mark.slow
def test_forged_captures_are_exported_or_refused(modscope):
    """Bytes are changed at random, with checksums that fit."""
    originals = [train(3).end(how="finished"), lossy().end(how="finished"), mixed().end(how="finished")]
    chance = random.Random(6)
    for i in range(90):
        data = bytearray(originals[i % 3])
        places = payloads(data)
        for _ in range(chance.choice((1, 3, 20))):
            place = chance.choice(places)
            if place:
                data[chance.choice(place)] = chance.randrange(256)
        pathlib.Path("forged.msc").write_bytes(seal(data))
        for format in FORMATS:
            status, _, err = modscope(f"export forged.msc --format {format} -o out -f")
            assert status == 0 or status == 1 and err.startswith("modscope: ")
        if os.path.exists("out"):
            os.unlink("out")
