"""Plan files: written, read again, and refused with a reason."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import modscope
import pytest
from modscope._plan.file import load_plan, parse_plan, plan_of

GOOD: dict[str, Any] = {"kind": "modscope plan", "version": 1, "checkpoint": {"Net": ["h.0"]}}


def test_a_plan_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    plan = plan_of(["Net.h.0", "other.x", "Net.h.1"], {"budget": 5})
    plan.write(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert plan.checkpoint == {"Net": ["h.0", "h.1"], "other": ["x"]}
    assert plan.modules == ["Net.h.0", "Net.h.1", "other.x"]
    text = (tmp_path / "plan.json").read_text()
    assert json.loads(text) == {"kind": "modscope plan", "version": 1, "checkpoint": plan.checkpoint, "budget": 5}


@pytest.mark.parametrize(
    "change, why",
    [
        ({"version": 3}, "a plan of version 3, and this modscope reads versions 1 and 2: update modscope"),
        ({"version": True}, "a plan of version True"),
        ({"kind": "other"}, "not a plan of modscope"),
        ({"checkpoint": ["h.0"]}, "not an object with a list"),
        ({"checkpoint": {"Net": ["h..0"]}}, "not an object with a list"),
        ({"checkpoint": {"Net": [""]}}, "not an object with a list"),
        ({"checkpoint": {"Net": ["h.0", "h.0"]}}, "names a module of Net twice"),
        ({"checkpoint": {"Net": ["h.0", "h", "h.01"]}}, r"Net\.h\.0 lies in Net\.h, which"),
    ],
)
def test_a_wrong_plan_says_what_is_wrong(change: dict[str, Any], why: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(modscope.PlanError, match=rf"plan\.json: .*{why}"):
        load_plan(tmp_path / "plan.json")


def test_what_is_not_json(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\x00 no")
    with pytest.raises(modscope.PlanError, match="is not a plan: it is not JSON"):
        load_plan(tmp_path / "plan.json")
    assert parse_plan(GOOD).modules == ["Net.h.0"]


def test_a_root_module_cannot_be_in_a_plan() -> None:
    with pytest.raises(modscope.PlanError, match="Net is a root module"):
        plan_of(["Net"])


def test_json_that_is_nested_deeply_is_no_plan(tmp_path: pathlib.Path) -> None:
    for text in (
        "[" * 200_000,
        '{"a":' * 200_000,
        json.dumps(GOOD)[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(modscope.PlanError, match="is not a plan: (its JSON is nested too deeply|it is not JSON)"):
            load_plan(tmp_path / "plan.json")


def test_a_path_of_very_many_modules_is_read_at_once() -> None:
    """The time grew with the square of the length: a minute for these."""
    deep = ".".join(["x"] * 300_000)
    assert parse_plan({**GOOD, "checkpoint": {"Net": [deep, f"{deep[:-1]}y"]}}).modules[0] == f"Net.{deep}"
    with pytest.raises(modscope.PlanError, match=r"^Net\.x[x.…]+ lies in Net\.x[x.…]+, which") as refused:
        parse_plan({**GOOD, "checkpoint": {"Net": [deep, "y", f"{deep}.x"]}})
    assert len(str(refused.value)) < 500


def test_names_in_errors_cannot_control_the_terminal() -> None:
    hostile = "h\x1b]0;title\x07\u202e"
    with pytest.raises(modscope.PlanError) as refused:
        parse_plan({**GOOD, "checkpoint": {"Net\x9b2J": [hostile, f"{hostile}.0"]}})
    assert "h\\x1b]0;title\\x07\\u202e.0 lies in" in str(refused.value) and str(refused.value).isprintable()


def mutated(text: str, chance: random.Random) -> str:
    """Some pieces replaced by others that JSON knows."""
    pieces = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "null",
        "true",
        "-1",
        "1e999",
        "9" * 5000,
        '"h.0"',
        '"a."',
        "\\ud800",
        "\x00",
    ]
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(pieces) + text[at + chance.randrange(4) :]
    return text


def test_any_text_is_a_plan_or_refused(tmp_path: pathlib.Path) -> None:
    chance = random.Random(1)
    good = json.dumps({**GOOD, "checkpoint": {"Net": ["h.0", "h.1"], "Other": ["x"]}, "budget": 5})
    read = 0
    for _ in range(500):
        (tmp_path / "plan.json").write_text(mutated(good, chance))
        try:
            read += bool(load_plan(tmp_path / "plan.json").modules)
        except modscope.PlanError as error:
            assert str(error).isprintable()
    assert read
