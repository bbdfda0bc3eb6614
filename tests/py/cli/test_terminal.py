"""Colour and progress, which are shown on a terminal only."""

import os
import pty
import re
import subprocess
import sys

from command_helpers import apart


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
    progress = terminal.Progress()
    progress(0.1)
    assert capsys.readouterr().err == ""
    progress(0.5)
    progress.clear()
    progress.clear()
    assert capsys.readouterr() == ("", "\r\x1b[Kreading: 50%\r\x1b[K")


def test_no_progress_elsewhere(monkeypatch, capsys):
    from modscope._show import terminal

    progress = terminal.Progress()
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
