"""What modscope plan prints and writes, and the curves of memory against time."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from argparse import Namespace

import modscope
import pytest
from modscope._cli import plan as _commands_plan
from modscope._plan.curves import curves_of_modules, knee_of
from modscope._plan.file import load_plan
from modscope._plan.plan import parse_bytes
from modscope._plan.problem import Problem
from modscope._read.groups import describe_groups
from modscope._read.script_arguments import program_words
from modscope._show.terminal import Screen
from plan_models import Net
from test_plan import planned, train


def command(folder: pathlib.Path, *words: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "modscope", "plan", *words],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
        env=environment,
    )


def test_the_command_prints_the_plan_and_writes_it(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    report, _ = planned(tmp_path / "run.msc", 0.6)
    budget = str(report["budget"])
    ran = command(tmp_path, "run.msc", "--budget", budget, "-o", "plan.json")
    assert ran.returncode == 0, ran.stderr
    for words in (
        "cpu allocated",
        "Checkpoint",
        "before",
        "after",
        "Other budgets",
        "<- the plan",
        "modscope.apply('plan.json', model)",
        "--plan plan.json",
    ):
        assert words in ran.stdout, ran.stdout
    plan = load_plan(tmp_path / "plan.json")
    modscope.apply(plan, Net(4, 32))
    assert plan.facts["reserved"]["after"] <= int(budget) < plan.facts["reserved"]["before"]

    assert "plan.json exists already" in command(tmp_path, "run.msc", "--budget", budget, "-o", "plan.json").stderr
    again = command(tmp_path, "run.msc", "--budget", budget, "-o", "plan.json", "-f", seed="77")
    assert again.stdout == ran.stdout and load_plan(tmp_path / "plan.json") == plan

    given = json.loads(command(tmp_path, "run.msc", "--budget", budget, "--json", "--greedy").stdout)
    assert given["command"] == "plan" and given["has_solver"] is False and given["bound_ms"] is None
    asked = command(tmp_path, "run.msc", "--budget", budget, "--greedy").stdout
    is_installed = importlib.util.find_spec("highspy") is not None
    assert ("found greedily, as asked" in asked) == is_installed and ("pip install" not in asked) == is_installed
    assert all(line == line.rstrip() for line in asked.splitlines())
    assert given["module_curves"][0]["name"] == "Net.h.*" and "Net.h.* (each of 4)" in asked
    assert [point["reserved"] for point in given["curve"]] == sorted(
        (point["reserved"] for point in given["curve"]), reverse=True
    )


def test_the_text_fits_a_narrow_terminal() -> None:
    figures = {"reserved": 30 << 30, "step_ms": 100.0}
    after = {"reserved": 20 << 30, "allocated": 14 << 30, "step_ms": 114.7}
    groups = [f"GPT2.h.{i}.attention.projection" for i in range(4)]
    curve = [
        {**figures, "modules": 0, "is_plan": False, "is_knee": False},
        {**after, "modules": 4, "is_plan": True, "is_knee": False},
        {**after, "modules": 1, "is_plan": False, "is_knee": True},
    ]
    result = {
        "device": "cuda:0",
        "budget": 23 << 30,
        "gpu": "NVIDIA GeForce RTX 4090",
        "before": figures,
        "after": after,
        "curve": curve,
        "module_curves": [],
        "activation_budgets": None,
    }
    result |= {
        "has_operators": True,
        "keep": {},
        "checkpoint": {"GPT2": ["h.0"]},
        "groups": groups,
        "has_solver": True,
        "bound_ms": 113.0,
        "times": "device",
        "steps": 3,
    }
    result |= {
        "is_verified": False,
        "planned": after,
        "too_large": [24 << 30, 25 << 30],
        "is_solver_installed": True,
        "script": None,
        "program": ["one.py", "--name", "my run\x1b[2J"],
        "notes": [],
        "predicted_on": None,
    }
    result |= {"is_lower_bound": False, "lost": 0, "damaged": 0, "output": None, "report": None}
    lines = _commands_plan.text(result, Screen(80), Namespace())
    assert lines[0] == "cuda:0 reserved 30.0 GiB at most. RTX 4090 has 23.0 GiB beside the context."
    assert [line.split("%  ")[1] for line in lines if "%  " in line] == [
        "no plan",
        "4 modules <- the plan",
        "1 module <- the knee",
    ]
    assert any(
        line.startswith("HiGHS: if what modules save adds up, any plan takes about +13.0 % or more") for line in lines
    )
    for colour in (False, True):
        said = "\n".join(_commands_plan.text(result, Screen(80, colour), Namespace()))
        assert (
            "modscope run --plan plan.json one.py --name 'my run" in said
            and "modscope plan one.py -- --name 'my" in said.replace("\n", " ")
        )
        assert "\x1b[2J" not in said and "train.py" not in said
    assert (
        "modscope run --plan plan.json train.py"
        in _commands_plan.text({**result, "program": None}, Screen(80), Namespace())[-2]
    )
    for bound in (None, 100.0, 100.04):
        lines = _commands_plan.text({**result, "bound_ms": bound}, Screen(80), Namespace())
        assert not any("any plan takes" in line for line in lines) and ("", "") not in zip(lines, lines[1:])
    assert _commands_plan.text({**result, "is_lower_bound": True}, Screen(60), Namespace())[:2] == [
        "cuda:0 reserved at least 30.0 GiB.",
        "RTX 4090 has 23.0 GiB beside the context.",
    ]

    said = " ".join(" ".join(_commands_plan.text({**result, "is_verified": True}, Screen(80), Namespace())).split())
    assert "Other plans reserve 24.00 GiB or more when the script is predicted with them: too much." in said

    # ---- a plan that may be off ----
    uncertain = {**result, "after": {**after, "reserved_range": [19 << 30, 24 << 30]}}
    said = " ".join(_commands_plan.text(uncertain, Screen(80), Namespace()))
    assert "20.0 GiB (19.0 GiB to 24.0 GiB)" in said
    assert "may be off by -5.0 % to +20.0 %: from 19.00 GiB to 24.00 GiB, which is 1.00 GiB more than" in said
    certain = {**result, "after": {**after, "reserved_range": [20 << 30, (20 << 30) + (100 << 20)]}}
    assert "may be off" not in " ".join(_commands_plan.text(certain, Screen(80), Namespace()))


def test_a_run_that_fits_needs_no_plan(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(2, 32)], 32)
    ran = command(tmp_path, "run.msc", "--gpu", "rtx4090")
    assert ran.returncode == 0 and "It fits as it is" in ran.stdout


@pytest.mark.parametrize(
    "words, why",
    [
        (["--budget", "many"], "is not an amount of memory: give it as 22GiB"),
        (["--budget", "0"], "is not an amount of memory"),
        (["--gpu", "abacus"], "is not a GPU that is known"),
        ([], "give --gpu, --budget or both"),
    ],
)
def test_wrong_arguments(words: list[str], why: str, tmp_path: pathlib.Path) -> None:
    ran = command(tmp_path, "run.msc", *words)
    assert ran.returncode == 2 and why in ran.stderr


# ---- curves ----


def test_the_knee_is_where_memory_is_cheapest() -> None:
    assert knee_of([(100, 0.0), (40, 1.0), (20, 5.0), (0, 10.0)]) == 1
    assert knee_of([(100, 0.0), (80, 1.0), (20, 2.0), (0, 10.0)]) == 2
    for points in ([(100, 0.0), (0, 1.0)], [(100, 0.0), (50, 9.0), (0, 10.0)], [(9, 0.0), (9, 1.0), (9, 2.0)]):
        assert knee_of(points) is None


def test_equal_modules_have_one_curve(tmp_path: pathlib.Path) -> None:
    train(tmp_path / "run.msc", [Net(4, 32)], 32)
    problem = Problem(modscope.load(tmp_path / "run.msc"), "cpu")
    (blocks,) = [curve for curve in curves_of_modules(problem) if curve["name"] == "Net.h.*"]
    of_block = [each for each in problem.candidates if each.name.count(".") == 2]
    assert blocks["count"] == len(of_block) == 4 and blocks["kept"] == max(each.kept for each in of_block)
    everything, only_input = blocks["points"]
    assert (everything["keep"], everything["kept"], everything["ms"]) == ("everything", blocks["kept"], 0.0)
    assert (only_input["keep"], only_input["kept"]) == ("only its input", 0)
    assert only_input["ms"] in [1e3 * each.seconds for each in of_block]


# ---- parts ----


def test_a_capture_names_the_program_to_run_again() -> None:
    assert program_words({"program": "one.py", "arguments": "--lr\n3\nmy run"}) == ["one.py", "--lr", "3", "my run"]
    assert program_words({"program": "src/one.py", "arguments": ""}) == ["src/one.py"]
    assert program_words({"program": "tools.train", "arguments": "3"}) == ["-m", "tools.train", "3"]
    for program in ("python", "pytest/__main__.py", "bin/pytest", "", "-"):
        assert program_words({"program": program, "arguments": "3"}) == []
    assert program_words({}) == []


def test_names_in_groups() -> None:
    names = [f"G.h.{i}" for i in (0, 1, 2, 5, 10)] + ["G.h.3.mlp", "G.head"]
    assert describe_groups(names) == ["G.h.{0-2,5,10}", "G.h.3.mlp", "G.head"]
    among = [f"G.h.{i}" for i in range(12)] + ["G.h.3.mlp", "G.h.4.mlp", "G.head"]
    assert describe_groups(names, among) == ["G.h.{0-2,5,10} (5 of 12)", "G.h.3.mlp", "G.head"]
    assert describe_groups([f"G.h.{i}" for i in range(12)], among) == ["G.h.* (12 of 12)"]
    assert describe_groups(["S.0.a.1", "S.0.a.2", "S.1.a.1"]) == ["S.0.a.{1-2}", "S.1.a.1"]


@pytest.mark.parametrize(
    "text, value", [("22GiB", 22 * 2**30), ("1.5 kb", 1500), ("900MB", 900 * 10**6), ("77", 77), ("2 TiB", 2**41)]
)
def test_amounts_of_memory(text: str, value: int) -> None:
    assert parse_bytes(text) == value
