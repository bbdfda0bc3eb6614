"""Results that checkpointed modules keep: which are chosen, and what a run with them needs."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import modscope
import pytest
import warm_python
from modscope._cli import main
from modscope._plan.curves import curves_of_modules
from modscope._plan.file import KeptOperator, load_plan, plan_of
from modscope._plan.keeping import Operator, describe, find_sets, plain_name
from modscope._plan.plan import make_plan
from modscope._plan.problem import PlanLimits, Problem
from modscope._plan.search import Search
from modscope._read.types import calls_of
from virtual_helpers import needs_interception, run

PROGRAM = """
import json
import modscope
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.dropout(self.mlp(self.norm2(x)))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(1000, 256)
        self.blocks = nn.ModuleList(Block(256) for _ in range(4))
        self.head = nn.Linear(256, 1000)

    def forward(self, x):
        x = self.wte(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = GPT().cuda()
if PLAN:
    modscope.apply(json.loads(PLAN), model)
optimizer = torch.optim.AdamW(model.parameters())
with modscope.record(PATH):
    for _ in range(3):
        x = torch.zeros(8, 8192, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


def train(path: pathlib.Path, plan: modscope.Plan | None = None) -> tuple[int, int]:
    """Train on a virtual GPU. Returns the allocated and the reserved peak."""
    (line,) = run(f"PATH, PLAN = {str(path)!r}, {plan.as_json() if plan else ''!r}\n{PROGRAM}", gpu="a100")
    allocated, reserved = map(int, line.split())
    return allocated, reserved


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("keeping") / "run.msc"
    train(path)
    return path


def operators_of(path: pathlib.Path, module: str) -> list[Operator]:
    loaded = modscope.load(path)
    device = loaded.device_number("cuda:0")
    calls = [call for call in calls_of(loaded.stream, device) if loaded.module_names[call.path] == module]
    return [Operator(*each) for each in loaded.stream.operators(calls[1].number, device)]


@needs_interception
def test_the_operators_of_a_module_are_those_that_selective_checkpointing_sees(capture: pathlib.Path) -> None:
    found = [each for each in operators_of(capture, "GPT.blocks.1") if each.nanoseconds and each.name != "aten::copy_"]
    assert [(each.name, each.call, each.of) for each in found] == [
        ("aten::native_layer_norm", 1, 2),
        ("aten::addmm", 1, 4),
        ("aten::_scaled_dot_product_flash_attention", 1, 1),
        ("aten::addmm", 2, 4),
        ("aten::add.Tensor", 1, 2),
        ("aten::native_layer_norm", 2, 2),
        ("aten::addmm", 3, 4),
        ("aten::gelu", 1, 1),
        ("aten::addmm", 4, 4),
        ("aten::native_dropout", 1, 1),
        ("aten::add.Tensor", 2, 2),
    ]
    by_name = {(each.name, each.call): each for each in found}
    width, rows = 256, 8 * 8192
    assert by_name["aten::addmm", 3].bytes == by_name["aten::addmm", 3].saved == 4 * width * rows * 2
    assert by_name["aten::addmm", 2].saved == 0  # the sum after it saves nothing
    assert by_name["aten::native_dropout", 1].is_random
    assert not by_name["aten::add.Tensor", 2].is_recomputed  # nothing is saved after it


SETS = {
    "attention": [KeptOperator("aten::_scaled_dot_product_flash_attention", 1, 1)],
    "what backward does not need": [KeptOperator("aten::addmm", 2, 4), KeptOperator("aten::add.Tensor", 1, 2)],
    "most": [
        KeptOperator("aten::addmm", 1),
        KeptOperator("aten::addmm", 3),
        KeptOperator("aten::gelu", 1),
        KeptOperator("aten::native_dropout", 1),
    ],
}


@pytest.mark.slow
@needs_interception
@pytest.mark.parametrize("kept", SETS)
def test_a_run_reserves_what_the_replay_says(kept: str, capture: pathlib.Path, tmp_path: pathlib.Path) -> None:
    loaded = modscope.load(capture)
    device = loaded.device_number("cuda:0")
    places = {(place.operator, place.call) for place in SETS[kept]}
    edits: list[Any] = []
    for call in calls_of(loaded.stream, device):
        name = loaded.module_names[call.path]
        if name.startswith("GPT.blocks.") and name.count(".") == 2:
            operators = [Operator(*each) for each in loaded.stream.operators(call.number, device)]
            numbers = tuple(each.number for each in operators if (each.name, each.call) in places)
            assert len(numbers) == len(places)
            edits.append(("checkpoint", call.number, numbers))
    replay = loaded.replay("cuda:0", edits)
    modules = [f"GPT.blocks.{i}" for i in range(4)]
    plan = plan_of(modules, keep=dict.fromkeys(modules, tuple(SETS[kept])))
    allocated, reserved = train(tmp_path / "planned.msc", plan)
    assert abs(replay["allocated_peak"] - allocated) <= 0.001 * allocated
    assert abs(replay["reserved_peak"] - reserved) <= 0.01 * reserved


@needs_interception
def test_a_replay_refuses_operators_that_are_not_in_the_call(capture: pathlib.Path) -> None:
    loaded = modscope.load(capture)
    device = loaded.device_number("cuda:0")
    calls = [call.number for call in calls_of(loaded.stream, device) if loaded.module_names[call.path].endswith("mlp")]
    other = loaded.stream.operators(calls[1], device)[0][0]
    with pytest.raises(ValueError, match="no such call or operator in it"):
        loaded.replay("cuda:0", [("checkpoint", calls[0], (other,))])


@needs_interception
def test_a_plan_keeps_what_is_dear(capture: pathlib.Path) -> None:
    loaded = modscope.load(capture)
    problem = Problem(loaded, "cuda:0")
    before, names = problem.reserved(frozenset()), [each.name for each in problem.candidates]
    whole = [i for i, each in enumerate(problem.candidates) if each.name.count(".") == 2 and not each.results.at]
    lowest = problem.reserved(frozenset(whole))
    assert len(set(names)) < len(names) and lowest < before
    budget = lowest + (before - lowest) // 4
    report, plan = make_plan("x.msc", loaded, "cuda:0", budget, use_highs=False)
    without, _ = make_plan("x.msc", loaded, "cuda:0", budget, use_highs=False, limits=PlanLimits(keeps_results=False))
    assert report["after"]["reserved"] <= budget and not without["keep"]
    added = report["after"]["step_ms"] - report["before"]["step_ms"]
    assert added <= 0.6 * (without["after"]["step_ms"] - without["before"]["step_ms"])
    for part in (1, 2, 3):
        budget = lowest + part * (before - lowest) // 4
        problems = [PlanLimits(keeps_results=keeps) for keeps in (True, False)]
        times = [Search(Problem(loaded, "cuda:0", each), False).find(budget) for each in problems]
        seconds = [
            Problem(loaded, "cuda:0", each).seconds(found.choice) for each, found in zip(problems, times) if found
        ]
        assert len(seconds) == 2 and seconds[0] <= seconds[1]
    assert any("keep" in group and "scaled_dot_product_attention" in group for group in report["groups"])
    assert plan.keep and report["keep"] == plan.keep_as_json()


@needs_interception
def test_modules_that_may_be_checkpointed(capture: pathlib.Path) -> None:
    loaded = modscope.load(capture)

    def names(**limits: Any) -> set[str]:
        return {each.name for each in Problem(loaded, "cuda:0", PlanLimits(**limits)).candidates}

    assert all(name.startswith("GPT.blocks.1") for name in names(only=("GPT.blocks.1*",)))
    assert names(only=("blocks.1",)) == {"GPT.blocks.1"}
    assert not any(".mlp" in name for name in names(without=("*.mlp*",)))


@needs_interception
def test_the_command_says_what_is_kept(capture: pathlib.Path, tmp_path: pathlib.Path, capsys: Any) -> None:
    file = tmp_path / "plan.json"
    loaded = modscope.load(capture)
    problem = Problem(loaded, "cuda:0")
    whole = [i for i, each in enumerate(problem.candidates) if each.name.count(".") == 2 and not each.results.at]
    budget = (problem.reserved(frozenset(whole)) + problem.reserved(frozenset())) // 2
    words = ["plan", str(capture), "--budget", str(budget), "--greedy", "--only", "blocks.?", "-o", str(file)]
    assert main.main(words) == 0
    assert ", keep " in capsys.readouterr().out
    assert load_plan(file).keep
    assert main.main([*words, "--force", "--whole-modules", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keep"] == {}
    assert not load_plan(file).keep


@needs_interception
def test_the_curve_of_equal_blocks_has_a_knee(capture: pathlib.Path) -> None:
    problem = Problem(modscope.load(capture), "cuda:0")
    (blocks,) = [curve for curve in curves_of_modules(problem) if curve["name"] == "GPT.blocks.*"]
    points, kept = blocks["points"], [point["kept"] for point in blocks["points"]]
    assert blocks["count"] == 4 and kept == sorted(kept, reverse=True) and kept[0] == blocks["kept"] > kept[1]
    assert [point["ms"] for point in points] == sorted(point["ms"] for point in points)
    (knee,) = [point for point in points if point["is_knee"]]
    whole = points[-1]
    assert knee["keep"].startswith("scaled_dot_product_attention")
    assert knee["kept"] < 0.3 * blocks["kept"] and knee["ms"] < 0.6 * whole["ms"]


@pytest.mark.slow
@needs_interception
def test_a_lever_of_fit_keeps_what_is_dear(tmp_path: pathlib.Path, capsys: Any) -> None:
    program = PROGRAM.replace("with modscope.record(PATH):", "if True:")
    begin = "import torch\nfrom torch import nn\nPLAN = ''\n"
    (tmp_path / "train.py").write_text(begin + program)
    words = ["-m", "modscope", "predict", "--gpu", "a100", "-o", "run.msc", "train.py"]
    assert warm_python.run(words, tmp_path).returncode == 0
    assert main.main(["fit", str(tmp_path / "run.msc"), "--gpu", "3GiB", "--json"]) == 0
    levers = {each["name"]: each for each in json.loads(capsys.readouterr().out)["gpus"][0]["levers"]}
    kept = next(each for name, each in levers.items() if ", keep " in name)
    assert kept["name"].startswith("checkpoint GPT.blocks.") and "scaled_dot_product_attention" in kept["name"]
    assert kept["time"] < 0.6 * levers["checkpoint GPT.blocks.*"]["time"]


@needs_interception
def test_a_capture_is_planned_for_more_ranks(capture: pathlib.Path, capsys: Any) -> None:
    reserved = modscope.load(capture).reserved["cuda:0"]
    words = ["plan", str(capture), "--budget", str(reserved * 8 // 10), "--greedy"]
    assert main.main([*words, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main.main([*words, "--ranks", "8", "--json"]) == 0
    sharded = json.loads(capsys.readouterr().out)
    assert sharded["before"]["allocated"] < alone["before"]["allocated"]
    assert sharded["after"]["reserved"] <= sharded["budget"]
    assert "each of 8 ranks with FSDP2" in sharded["notes"][0]
    with pytest.raises(SystemExit):
        main.main([*words, "--ranks", "1"])
    assert "--ranks 1: a capture of one process" in capsys.readouterr().err


# ---- sets of results ----


def operator(name: str, call: int, of: int, size: int, time: int, flags: int = 16) -> Operator:
    return Operator(0, f"aten::{name}", call, of, size, size, time, flags)


def test_sets_grow_by_time_for_each_byte() -> None:
    operators = [
        operator("addmm", 1, 2, 100, 50),
        operator("relu_", 1, 1, 0, 10, 17),
        operator("_scaled_dot_product_flash_attention", 1, 1, 100, 900),
        operator("embedding", 1, 1, 100, 40, 24),  # it is changed in place
        operator("addmm", 2, 2, 400, 80),
        operator("addmm", 2, 2, 10, 8000, 0),  # a recomputation stops before
    ]
    found = find_sets(operators, 1000)
    assert [each.label for each in found] == [
        "scaled_dot_product_attention",
        "the 1st linear and scaled_dot_product_attention",
        "the 1st and 2nd linear and scaled_dot_product_attention",
    ]
    assert found[1].places == (
        KeptOperator("aten::addmm", 1, 2),
        KeptOperator("aten::_scaled_dot_product_flash_attention", 1, 1),
    )
    assert [each.bytes for each in found] == [100, 200, 600]
    assert len(find_sets(operators, 200)) == 1  # more would keep as much as without a checkpoint
    quick = operator("all", 1, 1, 1, 1)  # nearly nothing is saved by keeping it, and it costs the program
    assert [each.label for each in find_sets([*operators, quick], 1000)] == [each.label for each in found]


def test_what_draws_random_numbers_is_kept_as_anything_else() -> None:
    dropouts = [operator("native_dropout", i, 2, 100, 500, 20) for i in (1, 2)]
    found = find_sets([dropouts[0], operator("mm", 1, 1, 100, 5), dropouts[1]], 1000)
    assert [each.at for each in found] == [(0,), (0, 2)]
    in_place = [operator("bernoulli_.float", 1, 1, 0, 5, 21), *dropouts]
    assert [each.at for each in find_sets(in_place, 1000)] == [(1,), (1, 2)]


def test_names_as_people_say_them() -> None:
    assert plain_name("aten::_scaled_dot_product_efficient_attention") == "scaled_dot_product_attention"
    assert plain_name("aten::_softmax") == "softmax" and plain_name("mylib::scan.out") == "scan"
    three = [operator("mm", 1, 2, 1, 1), operator("addmm", 1, 1, 1, 1), operator("mm", 2, 2, 1, 1)]
    assert describe(three, (0, 1, 2)) == "every linear"
    assert describe(three, (1,)) == "the 2nd linear"
    assert describe(three, (0, 2)) == "the 1st and 3rd linear"
    many = [operator("mm", i, 9, 1, 1) for i in range(1, 10)]
    assert describe(many, (0, 1, 2, 3, 8)) == "5 of 9 linear operators"


def test_a_capture_without_operators_says_how_to_get_one(tmp_path: pathlib.Path, capsys: Any) -> None:
    from plan_models import Net

    import torch

    model = Net(4, 32)
    with modscope.record(tmp_path / "run.msc"):
        for _ in range(3):
            model(torch.randn(512, 32)).sum().backward()
    loaded = modscope.load(tmp_path / "run.msc")
    budget = int(0.8 * loaded.peaks["cpu"].bytes)
    assert main.main(["plan", str(tmp_path / "run.msc"), "--budget", str(budget), "--greedy"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A recording of a real run does not have the places and times of single operators" in said
    assert "(modscope predict -o predicted.msc train.py)" in said
    assert f"(modscope plan --budget {budget} train.py)" in said
