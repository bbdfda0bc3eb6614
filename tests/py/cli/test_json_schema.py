"""``modscope help json --schema``: the schema of what --json prints, and the outputs of all commands against it.

What each command prints in other tests is checked by tests/py/conftest.py (support/described_json.py)."""

import copy
import importlib
import json
import pathlib
import pkgutil
import textwrap
import types
import typing

import fit_runs
import modscope
import pytest
import warm_python
from command_helpers import CAPTURES
from described_json import check, described
from helpers import INTERCEPTION
from modscope.__main__ import main
from modscope._cli import calibrate as _calibrate
from modscope._cli.json_schema import schema
from modscope._cli.main import COMMANDS
from modscope._fit import activation_budget
from modscope._predict import calibrate_measure
from modscope._predict import check as _predict_check
from modscope._show.output_file import SCHEMA
from rank_files import MIB, rank_capture

import torch

CORPUS = pathlib.Path(__file__).parents[2] / "corpus" / "capture"
EITHER = """
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batch = 1 << 15 if device == "cuda" else 8
    for i in range(3):
        model(torch.ones(batch, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
EPOCH = """
    import torch
    from torch.utils.data import DataLoader
    lengths = [1 << 12] * 6 + [1 << 16, 1 << 14, 1 << 13]
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    for batch in DataLoader(lengths, batch_size=1, collate_fn=lambda samples: torch.ones(samples[0])):
        model(torch.ones(len(batch), 1024, device="cuda")).sum().backward()
        optimizer.step()
"""
SHARDED = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    fully_shard(model)
    optimizer = torch.optim.Adam(model.cuda().parameters())
    for i in range(3):
        model(torch.ones(64, 256, device="cuda")).sum().backward()
        optimizer.step()
"""
PARTS = """
    import torch
    from torch.nn import GELU, Linear, Sequential, Tanh
    model = Sequential(*(Sequential(Linear(512, 512), GELU(), Linear(512, 512), Tanh()) for _ in range(4))).cuda()
    for i in range(2):
        model(torch.ones(32768, 512, device="cuda")).sum().backward()
"""
COMPILED = """
    import torch
    @torch.compile(backend="eager")
    def function(x):
        y = x + 1
        print("here")
        return y * 2
    function(torch.ones(3, device="cuda"))
"""
COMPILED_TRAINING = """
    import torch
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        torch.compile(net, backend="aot_eager")(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FORKS = """
    import os, torch
    kept = torch.ones(1000)
    if child := os.fork():
        os.waitpid(child, 0)
    more = torch.ones(1000)
"""


# ---- the schema ----


def test_the_command_prints_one_schema(capsys):
    assert main(["help", "json", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema() and printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_it_is_a_schema_of_that_draft():
    validators = pytest.importorskip("jsonschema")
    validators.Draft202012Validator.check_schema(schema())


def test_it_describes_every_command_that_has_json():
    with_figures = {name for name in COMMANDS if importlib.import_module(f"modscope._cli.{name}").COMMAND.figures}
    defined = schema()["$defs"]
    named = [each["$ref"].removeprefix("#/$defs/") for each in schema()["oneOf"]]
    assert {defined[name]["properties"]["command"]["const"] for name in named} == with_figures
    assert {defined[name]["properties"]["schema"]["const"] for name in named} == {SCHEMA}


def test_every_key_is_described_and_every_null_is_explained():
    for name, each in schema()["$defs"].items():
        for key, part in each["properties"].items():
            is_nullable = "null" in json.dumps(part.get("type", part.get("anyOf", "")))
            assert len(part["description"]) > 1 and is_nullable == ("null" in part["description"]), f"{name}.{key}"


ROOMS = ("_read", "_job", "_fit", "_record", "_virtual.certainty", "_show.ranks_text", "_show.collectives")


def test_records_have_the_keys_and_types_that_it_describes():
    """The TypedDicts of these rooms have the names of the schema, with "Report" after one that another class has."""
    defined, seen = schema()["$defs"], set()
    for record in records(*ROOMS):
        name = described_name(record)
        assert name in defined, f"the schema describes no {record.__name__}"
        hints = typing.get_type_hints(record, include_extras=True)
        optional = {key for key, hint in hints.items() if typing.get_origin(hint) is typing.NotRequired}
        own = {key: part for key, part in defined[name]["properties"].items() if "const" not in part}
        wanted = {key: {word: part[word] for word in part if word != "description"} for key, part in own.items()}
        assert {key: part_of(hint) for key, hint in hints.items()} == wanted, name
        assert optional == own.keys() - set(defined[name]["required"]), name
        seen.add(name)
    assert {"Capture", "DeviceSums", "Leaks", "Run", "FitOnGpu", "Lever", "Batch", "SummaryOfJob", "Mismatch"} <= seen


def records(*rooms):
    """The TypedDicts of these packages and modules."""
    for room in rooms:
        module = importlib.import_module(f"modscope.{room}")
        names = [each.name for each in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}.")]
        for each in [module, *map(importlib.import_module, names)]:
            mine = (value for value in vars(each).values() if getattr(value, "__module__", "") == each.__name__)
            yield from filter(typing.is_typeddict, mine)


def described_name(record):
    name = record.__name__
    return name if name in schema()["$defs"] else name.removesuffix("Report")


def part_of(hint):
    """The schema of values of this type."""
    scalars = {int: "integer", float: "number", str: "string", bool: "boolean"}
    if hint in scalars:
        return {"type": scalars[hint]}
    if typing.is_typeddict(hint):
        return {"$ref": f"#/$defs/{described_name(hint)}"}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        one = part_of(next(each for each in inner if each is not type(None)))
        is_scalar = one.get("type") in scalars.values()
        return {"type": [one["type"], "null"]} if is_scalar else {"anyOf": [one, {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": part_of(inner[0])}
    return (
        part_of(inner[0])
        if origin is typing.NotRequired
        else {"type": "object", "additionalProperties": part_of(inner[1])}
    )


def test_it_is_only_about_json(capsys):
    for words in (["help", "--schema"], ["help", "moments", "--schema"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2 and "modscope help json --schema" in capsys.readouterr().err


# ---- what the check finds ----

PAGE = {"command": "report", "schema": 1, "files": ["a"], "output": "x", "bytes": 1, "events": [1], "notes": []}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"more": 1}, "which the schema does not know"),
        ({"bytes": None}, "must be integer"),
        ({"bytes": True}, "must be integer"),
        ({"bytes": "1"}, "must be integer"),
        ({"events": [1, "2"]}, "must be integer"),
        ({"notes": {}}, "must be array"),
        ({"schema": 2}, "schema"),
        ({"command": "reports"}, "no object of the command"),
    ],
)
def test_an_output_that_is_not_as_described_is_an_error(change, why):
    assert ("Report", "bytes") in check(copy.deepcopy(PAGE))
    with pytest.raises(AssertionError, match=why):
        check({**PAGE, **change})


def test_a_key_that_is_missing_is_an_error():
    with pytest.raises(AssertionError, match="lacks"):
        check({key: value for key, value in PAGE.items() if key != "bytes"})


# ---- outputs ----


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.msc")), ids=lambda file: file.stem)
def test_captures_that_are_cut_or_damaged_or_odd(file, tmp_path, monkeypatch, capsys):
    """Where a command prints something of them, it is as the schema says."""
    monkeypatch.chdir(tmp_path)
    statuses = {}
    for words in ("summary", "tree", "flame --find a", "blocks", "leaks", "diff", "export -o x.csv"):
        name, *options = words.split()
        files = [str(file)] * (2 if name == "diff" else 1)
        statuses[name] = main([name, *files, *options, "--json"])
        assert bool(capsys.readouterr().out) == (statuses[name] == 0)
    assert set(statuses.values()) <= {0, 1}


def write_job(folder):
    """Two attempts of four ranks, of which one was killed, one launched other collectives and one has no capture."""
    names = []
    for attempt in ("0", "1"):
        for rank in range(3):
            c = rank_capture(rank, 4, extra=MIB * (rank == 2), attempt=attempt)
            c.group(1, 4, "default_pg", "0-3")
            c.where("backward", c.module("GPT.blocks.0.mlp"))
            c.collective("all_gather", 8 * MIB, nanoseconds=1000)
            c.collective("broadcast" if rank == 2 else "all_reduce", 8)
            if rank == 0:
                c.kind(c.add(MIB, 1), "All Gather")
                c.oom(1 << 30, 1 << 20, 1 << 21, 1)
            name = f"{attempt}.rank{rank}.msc"
            (folder / name).write_bytes(c.killed() if rank == 1 else c.end(how="finished"))
            names.append(name)
    return names


def record_leak(path, size=1000):
    """A run whose blocks have lines, and whose steps keep more and more."""
    kept, net = [], torch.nn.Linear(64, 64)
    with modscope.record(path, stacks=4):
        for step in range(8):
            net(torch.ones(32 + step % 2, 64)).sum().backward()
            grows = torch.zeros(size * step)
            kept.append(torch.zeros(size) if step else grows)


class Nothing:
    """Stands for what measures a GPU."""

    def rows(self):
        return []

    def close(self):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command with --json, in this process or another one (``apart``). What was printed is in ``run.seen``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.Popen", warm_python.Popen)

    def run(line, apart=False):
        words, out = [*line.split(), "--json=out.json"], tmp_path / "out.json"
        words = [words[0], words[-1], *words[1:-1]]
        status = warm_python.run(["-m", "modscope", *words], tmp_path).returncode if apart else main(words)
        assert status == 0, line
        run.seen |= check(json.loads(out.read_text()))
        out.unlink()

    run.seen = set()
    return run


@pytest.mark.slow
@pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
def test_every_key_that_is_described_is_printed_by_some_command(run, tmp_path, monkeypatch):
    scripts = {
        "train": EITHER,
        "sharded": SHARDED,
        "parts": PARTS,
        "compiled": COMPILED,
        "compiled_training": COMPILED_TRAINING,
        "forks": FORKS,
        "epoch": EPOCH,
    }
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    for name in ("train", "oom", "lossy"):
        (tmp_path / f"{name}.msc").write_bytes(CAPTURES[name]())
    fit_runs.train(tmp_path / "small.msc", batch=128)
    fit_runs.train(tmp_path / "large.msc", batch=256)
    record_leak(tmp_path / "leak.msc")
    record_leak(tmp_path / "again.msc", 2000)
    run("predict --gpu h100 compiled.py", apart=True)  # replaces its process
    monkeypatch.setattr(activation_budget, "BUDGETS", ())  # one prediction is enough
    run("plan compiled_training.py --budget 70GiB")
    monkeypatch.setattr(_predict_check, "find_real_gpu", lambda: ("NVIDIA H200", 150_000_000_000))
    pretend_to_measure(monkeypatch)
    budget = modscope.load(tmp_path / "large.msc").peaks["cpu"].bytes * 9 // 10
    for line in (
        "summary oom.msc",
        "summary leak.msc",
        f"summary {' '.join(write_job(tmp_path))}",
        "summary 1.rank0.msc",
        "tree oom.msc --at oom",
        "flame leak.msc --find zeros",
        "blocks leak.msc -n 0",
        "leaks leak.msc",
        "diff leak.msc again.msc --by line --markdown --at step:3",
        "export lossy.msc -o x.csv",
        "report train.msc",
        "calibrate",
        "predict --check -o gpu.msc train.py",
        "predict --gpu h200,1GiB train.py",
        "predict --gpu h100 --ranks 2,4 sharded.py",
        "predict --epoch --gpu 1GiB epoch.py",
        "fit --epoch --gpu 80GiB epoch.py",
        "fit gpu.msc --gpu 1GiB --ranks 8",
        "batch small.msc large.msc --batches 128,256 --gpu t4",
        f"plan large.msc --budget {budget}",
        "plan gpu.msc --gpu t4",
        "plan parts.py --greedy --only ? --budget 950MiB",
    ):
        run(line)
    run("run --follow-fork forks.py", apart=True)
    run("doctor", apart=True)
    not_here = {("Doctor", "requests"), ("Doctor", "times")}  # there is no GPU
    assert not {(name, key) for name, key in described() - run.seen - not_here if name in used()}


def used():
    """The objects that are printed, and not only bases of others."""
    return {reference.split('"')[0] for reference in json.dumps(schema()).split('"#/$defs/')[1:]}


def pretend_to_measure(monkeypatch):
    """Let calibrate measure nothing on a GPU that is not there."""
    monkeypatch.setattr(_calibrate, "_check", lambda arguments: None)
    monkeypatch.setattr(_calibrate, "_measure", lambda arguments, meter: Nothing())
    monkeypatch.setattr(calibrate_measure, "CudaMeter", Nothing)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # calibrate sets it
