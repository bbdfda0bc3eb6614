"""All of `modscope summary`, `tree`, `blocks`, `diff`, `leaks` on all captures: how wide, how harmless, and what of
damaged files."""

import pathlib
import random
import re
import unicodedata

import pytest
from capture_helpers import payloads, seal
from command_helpers import CAPTURES, COMMANDS, columns_of
from odd_captures import out_of_memory


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
@pytest.mark.parametrize("name", [name for name in CAPTURES if name != "empty"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_line_fits_and_is_harmless(text, command, name, columns):
    out = text(command.format(name + ".msc"), columns)
    *lines, rule, following = out.rstrip("\n").split("\n")
    for line in [*lines, rule]:
        assert columns_of(line) <= columns, line
        assert line == line.rstrip(), repr(line)
        assert all(char.isprintable() for char in line), repr(line)
        assert not any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in line), repr(line)
    assert rule == "" and re.match(r"[A-Z].*:  modscope \w+ \w+\.msc", following)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", CAPTURES)
def test_a_summary_is_one_screen(text, name, columns):
    assert len(text(f"summary {name}.msc", columns).splitlines()) <= 42


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != "empty"])
@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_json(figures, command, name):
    report = figures(command.format(name + ".msc"))
    assert report["command"] == command.split()[0]
    assert isinstance(report["is_lower_bound"], bool)


def keys_of(value: object) -> set[str]:
    """The keys of a report. Categories, phases, devices and what programs say of themselves are data."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    data = {"info", "end", "own", "subtree", "others"}
    below = [
        each for key, each in value.items() if key not in data and not (key == "categories" and isinstance(each, dict))
    ]
    below = [list(each.values()) if each is value.get("phases") and isinstance(each, dict) else each for each in below]
    return {*value, *keys_of(below)}


@pytest.mark.parametrize(
    "line",
    [
        "summary oom.msc",
        "tree train.msc",
        "flame train.msc",
        "blocks train.msc",
        "diff train.msc leaky.msc",
        "leaks leaky.msc",
    ],
)
def test_the_docs_list_the_keys(figures, line):
    docs = (pathlib.Path(__file__).parents[3] / "docs" / "reading.md").read_text(encoding="utf-8")
    table = docs[docs.index("## JSON") :]
    (row,) = re.findall(rf"^\| `{line.split()[0]}` \|(.*)", table, re.M)
    everywhere = re.findall(r"`(\w+)`", table[: table.index("| `summary`")])
    tree = re.findall(r"^\| `tree` \|(.*)", table, re.M)[0] if "`tree`" in row or "the same keys" in row else ""
    assert keys_of(figures(line)) <= {*everywhere, *re.findall(r"`(\w+)`", row), *re.findall(r"`(\w+)`", tree)}


@pytest.mark.parametrize("command", ["summary", "tree", "flame", "blocks", "leaks"])
def test_figures_say_at_least_when_something_was_lost(text, figures, command):
    out = text(f"{command} lossy.msc")
    assert "at least" in out and "12 events" in out
    assert figures(f"{command} lossy.msc")["is_lower_bound"] is True and figures(f"{command} lossy.msc")["lost"] == 12
    assert "at least" not in text(f"{command} train.msc")


def test_what_is_damaged_says_so(text):
    for command in ("summary", "tree", "flame", "blocks"):
        out = text(f"{command} damaged.msc")
        assert "at least" in out and "of the file cannot be read" in out
    assert "at least" not in text("summary cut.msc")


@pytest.mark.parametrize("seed", range(60))
def test_a_wrong_file_never_breaks_a_command(modscope, captures, seed):
    """Bytes changed at random, in half of them with checksums that fit; some are cut short."""
    chance = random.Random(seed)
    data = bytearray(out_of_memory().end(how="finished"))
    places = [i for place in payloads(data) for i in place] if seed % 2 else range(16, len(data))
    for _ in range(chance.choice((1, 2, 5, 20))):
        data[chance.choice(places)] = chance.randrange(256)
    wrong = seal(data) if seed % 2 else bytes(data)[: chance.randrange(len(data) // 2, 2 * len(data))]
    (captures / "wrong.msc").write_bytes(wrong)
    for command in [
        *COMMANDS,
        "tree {} --at oom",
        "blocks {} --at step:2",
        "tree {} --at time:0.2",
        "summary {} --json",
    ]:
        status, out, err = modscope(command.format("wrong.msc"))
        assert status in (0, 1) and bool(out) == (status == 0) and err.startswith("modscope: ") == (status == 1)


def test_the_following_command_works(text):
    seen, line = [], "summary oom.msc"
    for _ in range(4):
        following = text(line).splitlines()[-1].partition(":  modscope ")[2]
        assert following
        seen.append(following.split()[0])
        line = following
    assert seen[:3] == ["tree", "blocks", "leaks"]


# ---- devices without names ----


@pytest.mark.parametrize(
    "line",
    [
        "report",
        "export --format perfetto",
        "export --format speedscope",
        "export --format torch-snapshot",
        "export --format csv",
        "export --format csv --at peak",
        "export --format json",
    ],
)
def test_files_of_a_capture_whose_device_names_are_damaged(modscope, line):
    name = f"nameless.{line.split()[-1]}"
    status, out, err = modscope(f"{line} nameless.msc -f -o {name}")
    assert status == 0 and out.startswith(f"Wrote {name} (")
    assert ("cannot be read" in err) == (line == "report") and "cannot be read" in out + err


def test_a_notebook_shows_a_capture_whose_device_names_are_damaged(captures):
    from modscope._read.load import load

    capture = load(str(captures / "nameless.msc"))
    assert "device 1" in capture._repr_html_() and "device 1" in capture.snapshot("peak")._repr_html_()
