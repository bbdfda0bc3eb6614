"""`modscope export --format speedscope`. Its JSON schema is not available from PyPI or Debian: what its published
specification (file-format-spec.ts of speedscope) says that a file must have is checked here by hand."""

import json

import pytest
from export_helpers import BY_HAND, REAL, export, held_by_tree, load, tree

CATEGORIES = ("Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other")


@pytest.fixture(params=[*REAL, *BY_HAND])
def capture(request, export_folder):
    return export_folder / f"{request.param}.msc"


def read(capture, *words):
    return json.loads(export(capture, "speedscope", *words).read_bytes())


def check_by_the_specification(file):
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert isinstance(file["name"], str) and isinstance(file["exporter"], str)
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])
    frames = file["shared"]["frames"]
    assert all(isinstance(frame["name"], str) and frame.keys() <= {"name", "file", "line", "col"} for frame in frames)
    for profile in file["profiles"]:
        assert profile.keys() == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled" and profile["unit"] == "bytes" and isinstance(profile["name"], str)
        assert type(profile["startValue"]) is type(profile["endValue"]) is int
        assert 0 == profile["startValue"] <= profile["endValue"]
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(type(weight) is int and weight > 0 for weight in profile["weights"])
        assert all(type(frame) is int and 0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)


def held_by(file, profile, device):
    """Device, module and category to bytes; a stack begins with a name's beginnings, and ends with a category."""
    found, seen = {}, set()
    for stack, weight in zip(profile["samples"], profile["weights"]):
        assert tuple(stack) not in seen
        seen.add(tuple(stack))
        (first, *inner), category = stack[:-1], file["shared"]["frames"][stack[-1]]["name"]
        module = file["shared"]["frames"][first]["name"]
        module = "" if module == '""' else module
        for frame in inner:
            name = file["shared"]["frames"][frame]["name"]
            if "file" in file["shared"]["frames"][frame] or not name.startswith(module + "."):
                break
            module = name
        assert category in CATEGORIES
        found[device, module, category] = found.get((device, module, category), 0) + weight
    return found


def test_it_is_as_the_specification_says(capture):
    check_by_the_specification(read(capture))


def test_each_device_at_its_own_peak_as_in_the_tree(capture, capsys):
    loaded, file = load(capture), read(capture)
    assert len(file["profiles"]) == len(loaded.peaks)
    assert file["profiles"][0]["name"].startswith(loaded.main_device)
    for profile in file["profiles"]:
        device = profile["name"].partition(" at its peak: ")[0]
        report = tree(capture, capsys, "--device", device)
        assert held_by(file, profile, device) == held_by_tree(report["tree"], device)
        assert profile["endValue"] == sum(profile["weights"]) == report["total"] == loaded.peaks[device].bytes
        at_least = "at least " if report["is_lower_bound"] else ""
        assert f": {at_least}{report['total']} bytes (step {report['step']}, {report['phase']} of" in profile["name"]


@pytest.mark.parametrize("at", ["oom", "last step", "time:0.02"])
def test_any_moment_as_in_the_tree(capture, capsys, at):
    loaded = load(capture)
    if at == "oom" and not loaded.oom_count or at == "last step" and not loaded.last_step or loaded.duration < 0.02:
        pytest.skip("the capture has no such moment")
    at = f"step:{loaded.last_step}" if at == "last step" else at  # the begins of other steps may be lost
    file = read(capture, "--at", at)
    check_by_the_specification(file)
    holding = {device for device, sums in loaded.snapshot(at).totals.items() if sums["Total"]}
    for profile in file["profiles"]:
        device = profile["name"].partition(f" at {at}: ")[0]
        report = tree(capture, capsys, "--at", at, "--device", device)
        assert held_by(file, profile, device) == held_by_tree(report["tree"], device)
        assert profile["endValue"] == report["total"]
        holding.discard(device)
    assert not holding


def test_a_category_and_a_line_are_one_frame_wherever_they_are(export_folder):
    frames = read(export_folder / "transformer.msc")["shared"]["frames"]
    assert len({tuple(frame.items()) for frame in frames}) == len(frames)
    assert [frame["name"] for frame in frames[:7]] == list(CATEGORIES)


def test_one_device(export_folder):
    (profile,) = read(export_folder / "mixed.msc", "--device", "cuda:1")["profiles"]
    assert profile["name"].startswith("cuda:1 at its peak: ")
