"""Plan files: written, read again, and refused with a reason."""

from __future__ import annotations

import json
import pathlib
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
        ({"version": 2}, "a plan of version 2, and this modscope reads version 1: update modscope"),
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
