"""The capture's file: its name, what is in its way, and what cannot be run at all."""

import os
import stat
import subprocess
import sys

import pytest
from modscope._record import capture_file
from run_helpers import RUN, captures, run, start_warm, training, write

SCRIPT = "print('ran')"
root = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


# ---- names ----


@pytest.mark.parametrize(
    "output, rank, world, name",
    [
        (None, None, None, "modscope-train.{pid}.msc"),
        (None, "0", "1", "modscope-train.{pid}.msc"),
        (None, "3", "8", "modscope-train.rank3.{pid}.msc"),
        (None, "3", None, "modscope-train.{pid}.msc"),
        (None, "x/y", "8", "modscope-train.{pid}.msc"),
        ("out/a.b.msc", None, None, "out/a.b.msc"),
        ("out/a.b.msc", "3", "8", "out/a.b.rank3.msc"),
        ("out.d/a", "3", "8", "out.d/a.rank3"),
    ],
)
def test_names(monkeypatch, output, rank, world, name):
    for key, value in (("RANK", rank), ("WORLD_SIZE", world)):
        monkeypatch.delenv(key, raising=False) if value is None else monkeypatch.setenv(key, value)
    made = capture_file.name_for(output, "train")
    assert (made.plain() if output else made.numbered()) == name.format(pid=os.getpid())


@pytest.mark.parametrize(
    "words, stem", [(["a.b.py"], "a.b"), (["sub/x.py"], "x"), (["sub"], "sub"), (["-m", "sub.x"], "sub.x")]
)
def test_a_capture_is_called_after_its_script(tmp_path, words, stem):
    (tmp_path / "sub").mkdir()
    for name in ("a.b.py", "sub/x.py", "sub/__main__.py"):
        write(tmp_path, "import glob; print(glob.glob('*.msc'))", name)
    ran = run(tmp_path, *words)
    assert ran.status == 0 and ran.out.startswith(f"['modscope-{stem}.".encode()) and ran.out.endswith(b".msc']\n")


# ---- making it ----


def test_a_new_file_is_empty_and_out_of_the_way(tmp_path):
    fd = capture_file.create(str(tmp_path / "x.msc"))
    try:
        assert fd > 2 and not os.get_inheritable(fd) and os.fstat(fd).st_size == 0
    finally:
        os.close(fd)


def test_overwriting_leaves_the_old_file_to_who_has_it_open(tmp_path):
    path = tmp_path / "x.msc"
    path.write_text("MODSCOPE")
    with open(path) as old:
        file = capture_file.prepare(str(path), overwrite=True)
        assert path.read_text() == "MODSCOPE"
        file.publish()
        os.close(file.fd)
        assert path.read_text() == "" and old.read() == "MODSCOPE" and os.listdir(tmp_path) == ["x.msc"]


@pytest.mark.parametrize("target", ["other", "missing"])
def test_overwriting_replaces_a_link_and_not_its_target(tmp_path, target):
    path, other = tmp_path / "x.msc", tmp_path / "other"
    other.write_text("MODSCOPE")
    path.symlink_to(target)
    with pytest.raises(FileExistsError):
        capture_file.create(str(path))
    file = capture_file.prepare(str(path), overwrite=True)
    file.publish()
    os.close(file.fd)
    assert (
        not path.is_symlink()
        and path.read_text() == ""
        and other.read_text() == "MODSCOPE"
        and len(os.listdir(tmp_path)) == 2
    )


def test_the_old_capture_stays_where_nothing_is_recorded(tmp_path):
    write(tmp_path, SCRIPT)
    (tmp_path / "x.msc").write_text("MODSCOPE")
    ran = run(tmp_path, "-f", "-o", "x.msc", "script.py")
    assert ran.status == 0 and "no capture was written" in ran.said
    assert (tmp_path / "x.msc").read_text() == "MODSCOPE" and sorted(os.listdir(tmp_path)) == ["script.py", "x.msc"]


def test_only_an_empty_file_that_was_made_is_removed(tmp_path):
    path = tmp_path / "x.msc"
    fd = capture_file.create(str(path))
    os.write(fd, b"something")
    capture_file.remove_empty(str(path), fd)
    assert path.exists()
    os.truncate(fd, 0)
    os.rename(path, tmp_path / "y.msc")
    path.write_text("")
    capture_file.remove_empty(str(path), fd)
    assert path.exists()
    capture_file.remove_empty(str(tmp_path / "y.msc"), fd)
    assert captures(tmp_path) == [path]
    os.close(fd)


def refused(ran, *parts, status=1):
    """A plain sentence, and nothing ran."""
    assert ran.status == status and ran.out == b"", ran
    text = ran.err.decode()
    assert text.startswith("modscope: ") and text.count("\n") == 1 and "Traceback" not in text and "Errno" not in text
    assert all(part in text for part in parts), text


def test_a_capture_that_exists(tmp_path):
    write(tmp_path, SCRIPT)
    (tmp_path / "x.msc").write_text("MODSCOPE")
    refused(run(tmp_path, "-o", "x.msc", "script.py"), "x.msc exists already", "-f")
    assert (tmp_path / "x.msc").read_text() == "MODSCOPE"


def test_what_is_no_capture_is_not_replaced(tmp_path):
    write(tmp_path, SCRIPT)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("script.py")
    (tmp_path / "link-to-folder").symlink_to("folder")
    for name in ("script.py", "link"):
        refused(run(tmp_path, "-f", "-o", name, "script.py"), f"{name} exists already", "It is not a capture")
    assert (tmp_path / "script.py").read_text() == (tmp_path / "link").read_text() != ""
    refused(run(tmp_path, "-f", "-o", "link-to-folder", "script.py"), "link-to-folder is a folder")
    assert (tmp_path / "link-to-folder").is_symlink()
    with pytest.raises(FileExistsError, match="It is not a capture, so it is not replaced"):
        capture_file.prepare(str(tmp_path / "script.py"), overwrite=True)


def test_what_takes_the_name_before_the_recording_begins_is_not_replaced(tmp_path):
    path = tmp_path / "x.msc"
    path.write_text("MODSCOPE")
    file = capture_file.prepare(str(path), overwrite=True)
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="It is not a capture"):
        file.publish()
    os.close(file.fd)
    assert path.read_text() == "precious" and os.listdir(tmp_path) == ["x.msc"]


def test_a_folder_that_is_not_there(tmp_path):
    write(tmp_path, SCRIPT)
    refused(run(tmp_path, "-o", "no/x.msc", "script.py"), "no folder no")


def test_a_folder_for_a_file(tmp_path):
    write(tmp_path, SCRIPT)
    (tmp_path / "dir").mkdir()
    for words in (["-o", "dir"], ["-f", "-o", "dir"]):
        refused(run(tmp_path, *words, "script.py"), "dir is a folder")


def test_a_device_for_a_file(tmp_path):
    write(tmp_path, SCRIPT)
    refused(run(tmp_path, "-f", "-o", "/dev/null", "script.py"), "/dev/null is a device")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@root
def test_a_folder_that_cannot_be_written(tmp_path):
    write(tmp_path, SCRIPT)
    tmp_path.chmod(0o500)
    try:
        refused(run(tmp_path, "script.py"), "cannot be written", "Permission denied")
    finally:
        tmp_path.chmod(0o700)


def test_a_file_system_that_takes_no_files(tmp_path):
    write(tmp_path, SCRIPT)
    refused(run(tmp_path, "-o", "/proc/x.msc", "script.py"), "/proc")


@pytest.mark.slow
def test_two_at_once_in_one_folder(tmp_path):
    name = training(tmp_path, "step(); print('ready', flush=True); sys.stdin.readline()")
    both = [start_warm(tmp_path, name) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in both] == [b"ready\n"] * 2
        assert [process.communicate(b"\n", timeout=600)[1].count(b"[modscope] wrote") for process in both] == [1, 1]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert [path.name for path in captures(tmp_path)] == sorted(f"modscope-train.{process.pid}.msc" for process in both)


# ---- what cannot be run ----


def test_no_such_script(tmp_path):
    refused(run(tmp_path, "gone.py"), "There is no script gone.py", status=2)
    refused(run(tmp_path, "gone.py/x.py"), "no script", status=2)


def test_a_folder_without_main(tmp_path):
    (tmp_path / "dir").mkdir()
    refused(run(tmp_path, "dir"), "dir is a folder", "__main__.py")


def test_a_binary(tmp_path):
    refused(run(tmp_path, os.path.realpath(sys.executable)), "is not a Python script")


@root
def test_a_script_that_cannot_be_read(tmp_path):
    write(tmp_path, SCRIPT)
    (tmp_path / "script.py").chmod(0)
    refused(run(tmp_path, "script.py"), "script.py cannot be read: Permission denied", status=2)


@pytest.mark.parametrize(
    "words, part",
    [
        ([], "no script is given"),
        (["-m"], "no script is given"),
        (["-o"], "expected one argument"),
        (["--steps", "0", "x.py"], "1 or more"),
        (["--steps", "two", "x.py"], "1 or more"),
        (["--out", "x", "x.py"], "unrecognized"),
        (["-o", "", "x.py"], "name"),
        (["--no-capture", "-o", "x.msc", "x.py"], "--no-capture"),
    ],
)
def test_wrong_options(tmp_path, words, part):
    ran = run(tmp_path, *words)
    assert ran.status == 2 and ran.out == b"" and b"Traceback" not in ran.err
    assert part in ran.err.decode() and ran.err.startswith(b"usage: modscope run ")
    assert captures(tmp_path) == []


def test_help(tmp_path):
    ran = run(tmp_path, "--help")
    assert ran.status == 0 and all(word in ran.out for word in (b"--steps", b"--follow-fork", b"-m "))


# ---- streams that are not there ----


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/full", ">&- 2>&-", "<&-"])
def test_streams_that_are_closed_or_full(tmp_path, how):
    """Our line goes nowhere then, and nothing of a capture goes there instead."""
    name = write(
        tmp_path, "import os, sys; open('seen', 'w').write(repr([sys.stdin is None, sys.stderr is None])); sys.exit(3)"
    )
    done = subprocess.run(
        ["sh", "-c", f'"$@" {how}', "sh", *RUN, name], cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 3 and done.stdout == b"" and captures(tmp_path) == []
    assert (tmp_path / "seen").read_text() == repr([how == "<&-", "2>&-" in how])
