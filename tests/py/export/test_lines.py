"""Lines, operators and kinds in the exports: those that the capture says its blocks have."""

import csv
import json
import os
import pathlib
import pickle

import pytest
from capture_helpers import Capture
from export_helpers import BY_HAND, export, load
from helpers import needs_interception
from modscope import record
from perfetto_readers import READ, read_heap_profiles

import torch
from torch import nn

pytestmark = needs_interception

SCRIPT = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        return torch.zeros(50000)[:1] + hidden @ x.mT

def main(kept):
    net = Net()
    for size in range(100):
        kept.append(torch.zeros(1000 + size))
    for _ in range(2):
        net(torch.ones(32, 64)).sum().backward()
"""


def run_script(path: pathlib.Path) -> None:
    script = path.with_name("größe.py")
    script.write_text(SCRIPT, encoding="utf-8")
    os.utime(script, (1e9, 1e9))  # it was not changed since the run
    names: dict[str, object] = {}
    exec(compile(SCRIPT, str(script), "exec"), names)
    with record(path, stacks=8):
        names["main"](kept := [])  # type: ignore[operator]
    assert kept


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "run.msc"
    run_script(path)
    return path


def known(block):
    place = block.place
    return (place.file, place.line, place.function, place.operator) if place else (None,) * 4


# ---- speedscope ----


def test_speedscope_has_the_lines_and_operators_of_each_block(capture):
    file = json.loads(export(capture, "speedscope").read_bytes())
    frames = file["shared"]["frames"]
    (profile,) = file["profiles"]
    found = {}
    for stack, weight in zip(profile["samples"], profile["weights"]):
        lines = [(frames[i]["file"], frames[i]["line"], frames[i]["name"]) for i in stack if "file" in frames[i]]
        operator = frames[stack[-2]]["name"] if "file" not in frames[stack[-2]] else None
        key = tuple(lines), operator
        found[key] = found.get(key, 0) + weight
    expected = {}
    for block in load(capture).snapshot("peak").blocks():
        lines = [
            (frame.file, frame.line, f"{frame.function} ({pathlib.Path(frame.file).name}:{frame.line})")
            for frame in reversed(block.place.frames)
        ]
        key = tuple(lines), block.place.operator
        expected[key] = expected.get(key, 0) + block.bytes
    assert found == expected
    script = str(capture.with_name("größe.py"))
    assert any(
        lines and lines[-1] == (script, 9, "Net.forward (größe.py:9)") and operator == "torch.relu"
        for lines, operator in found
    )


# ---- rows ----


@pytest.mark.parametrize("format", ["csv", "json"])
def test_the_first_row_of_a_block_has_its_line_and_operator(capture, format):
    text = export(capture, format).read_text("utf-8")
    rows = (
        list(csv.DictReader(text.splitlines())) if format == "csv" else [json.loads(row) for row in text.splitlines()]
    )
    peak, made, held_then = load(capture).peaks["cpu"].moment, {}, {}
    for row in rows:
        where = (
            row["file"] or None,
            int(row["line"]) if row["line"] else None,
            row["function"] or None,
            row["operator"] or None,
        )
        if row["kind"] in ("add", "held"):
            made[row["block"]] = where, int(row["bytes"])
        else:
            assert where == (None,) * 4
        if row["kind"] == "drop":
            del made[row["block"]]
        if int(row["event"]) < peak:
            held_then = dict(made)
    found, expected = {}, {}
    for where, size in held_then.values():
        found[where] = found.get(where, 0) + size
    for block in load(capture).snapshot("peak").blocks():
        expected[known(block)] = expected.get(known(block), 0) + block.bytes
    assert found == expected and len(found) > 3


# ---- torch-snapshot ----


def test_torchs_frames_have_the_operator_called(capture):
    snapshot = pickle.loads(export(capture, "torch-snapshot").read_bytes())
    stacks = [entry["frames"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    found = {}
    for frames in stacks:
        operators = [frame["name"] for frame in frames if frame["filename"] == "operator"]
        assert len(operators) <= 1
        line = next(((frame["name"], frame["line"]) for frame in frames if frame["filename"].endswith(".py")), None)
        found.setdefault(operators[0] if operators else None, set()).add(line)
    assert found["torch.relu"] == {("Net.forward", 9)} and found["torch.zeros"] == {("main", 15), ("Net.forward", 10)}
    assert any(name and name.endswith("Backward0") for name in found)


# ---- Perfetto ----


@pytest.mark.slow
@pytest.mark.parametrize("reader", READ)
def test_perfetto_has_slices_of_the_largest_blocks_at_the_peak(capture, reader):
    loaded, trace = load(capture), READ[reader](export(capture, "perfetto"))
    slices = list(trace.on("largest blocks at the peak"))
    wanted = list(loaded.snapshot("peak").blocks(64))
    assert len(slices) == len(wanted) == 64
    names = ("bytes", "category", "module", "phase", "step", "file", "line", "function", "operator")
    found = sorted((slice.ts // 1000, *(slice.args.get(name) for name in names)) for slice in slices)
    expected = [
        (round(block.made_at * 1e6), block.bytes, block.category, block.module, block.phase, block.step, *known(block))
        for block in wanted
    ]
    assert found == sorted(expected)
    (mark,) = trace.on("peaks")
    assert all(slice.ts <= mark.ts <= slice.ts + slice.dur for slice in slices)
    (relu,) = [slice for slice in slices if slice.args.get("operator") == "torch.relu"]
    (block,) = [block for block in wanted if known(block)[3] == "torch.relu"]
    drop = next(event for event in loaded.events("drop", first=loaded.peaks["cpu"].moment) if event.slot == block.slot)
    assert relu.name == "Activation of Net" and (relu.ts + relu.dur) // 1000 == round(drop.time * 1e6)


def expected_profile(capture, device):
    """By the frames from the owner on: bytes and blocks."""
    found = {}
    for block in load(capture).snapshot("peak", device).blocks(device=device):
        frames, operator = (block.place.frames, block.place.operator) if block.place else ((), None)
        lines = [
            (f"{frame.function} ({pathlib.Path(frame.file).name}:{frame.line})", frame.file, frame.line)
            for frame in reversed(frames)
        ]
        words = [(word, "", 0) for word in (operator, block.kind, block.category) if word]
        key = (block.module, "", 0), *lines, *words
        size, count = found.get(key, (0, 0))
        found[key] = size + block.bytes, count + 1
    return found


def check_profile(capture, device, held):
    expected, found = expected_profile(capture, device), {}
    for one in held:
        # the modules around it come before it
        owner = max(i for i in range(len(one.frames)) if one.frames[i:] in expected)
        assert all(mapping == "" for _, mapping, _ in one.frames[:owner])
        size, count = found.get(one.frames[owner:], (0, 0))
        found[one.frames[owner:]] = size + one.bytes, count + one.count
    assert found == expected


@pytest.mark.slow
def test_perfetto_has_a_heap_profile_of_the_peak(capture, sharded, tmp_path):
    for path in (capture, sharded):
        check_profile(path, "cpu", read_heap_profiles(export(path, "perfetto")))


@pytest.mark.slow
def test_each_device_has_a_heap_profile_of_its_own_peak(tmp_path):
    path = tmp_path / "mixed.msc"
    path.write_bytes(BY_HAND["mixed"]())
    held = read_heap_profiles(export(path, "perfetto"))
    peaks = load(path).peaks
    assert {one.heap for one in held} == set(peaks) and len(peaks) > 1
    for device, peak in peaks.items():
        check_profile(path, device, [one for one in held if one.heap == device])
        assert sum(one.bytes for one in held if one.heap == device) == peak.bytes


@pytest.mark.slow
def test_a_heap_profile_has_a_bound(tmp_path):
    made = Capture()
    for number in range(5000):
        made.where("forward", made.module(f"M{number}"))
        made.add(1000 + number)
    (tmp_path / "many.msc").write_bytes(made.end())
    held = read_heap_profiles(export(tmp_path / "many.msc", "perfetto"))
    (rest,) = [one for one in held if one.frames[-1][0] == "(all that hold less)"]
    assert len(held) == 4097 and (rest.count, rest.bytes) == (904, sum(range(1000, 1904)))
    assert sum(one.bytes for one in held) == load(tmp_path / "many.msc").peaks["cpu"].bytes


# ---- kinds ----


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A capture of a model that FSDP2 shards, with all of its kinds."""
    import torch.distributed as dist
    from fsdp_helpers import shard_blocks
    from torch.testing._internal.distributed.fake_pg import FakeStore

    path = tmp_path_factory.mktemp("kinds") / "run.msc"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        model = shard_blocks(
            nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), mesh=dist.init_device_mesh("cpu", (4,))
        )
        optimizer = torch.optim.Adam(model.parameters())
        with record(path):
            for _ in range(3):
                model(torch.ones(4, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        dist.destroy_process_group()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("reader", READ)
def test_perfetto_has_a_counter_for_each_kind(sharded, reader):
    loaded, trace = load(sharded), READ[reader](export(sharded, "perfetto"))
    # the last of each time
    moments = {round(event.time * 1e6) * 1000 + 999: event.number + 1 for event in loaded.events()}
    seen = set()
    for time, moment in moments.items():
        kinds = {f"cpu {kind}": size for kind, size in loaded.snapshot(moment).kinds.get("cpu", {}).items()}
        counters = trace.at(time)
        assert {name: counters.get(name, 0) for name in kinds} == kinds
        seen |= kinds.keys()
    assert {"cpu Unsharded Param", "cpu All Gather", "cpu Sharded Param"} <= seen <= trace.counters.keys()


def test_speedscope_and_torch_have_frames_of_kinds(sharded):
    expected = load(sharded).snapshot("peak").kinds["cpu"]
    file = json.loads(export(sharded, "speedscope").read_bytes())
    names, (profile,) = [frame["name"] for frame in file["shared"]["frames"]], file["profiles"]
    found = {}
    for stack, weight in zip(profile["samples"], profile["weights"]):
        if names[stack[-2]] in expected:
            found[names[stack[-2]]] = found.get(names[stack[-2]], 0) + weight
    assert found == expected and len(expected) >= 4
    snapshot = pickle.loads(export(sharded, "torch-snapshot", "--at", "peak").read_bytes())
    found = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            for frame in block.get("frames", ()):
                if frame["filename"] == "kind":
                    found[frame["name"]] = found.get(frame["name"], 0) + block["requested_size"]
    assert found == expected
