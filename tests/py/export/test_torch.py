"""`modscope export --format torch-snapshot`, read by torch.cuda._memory_viz: its totals are those of the capture."""

import base64
import json
import pickle
import pickletools
import re

import pytest
from export_helpers import BY_HAND, REAL, export, held, load
from helpers import run_python
from torch.cuda import _memory_viz

# What the viewer's own unpickler knows (torch/utils/viz/MemoryViz.js).
VIEWER_OPCODES = """PROTO STOP MARK EMPTY_DICT EMPTY_LIST SETITEMS APPENDS TUPLE2 NEWFALSE BININT BININT1 BININT2 LONG1
    SHORT_BINUNICODE BINUNICODE MEMOIZE BINGET LONG_BINGET""".split()
BATCH = 1000  # what it can append at once


@pytest.fixture(params=[*REAL, *BY_HAND])
def capture(request, export_folder):
    return export_folder / f"{request.param}.msc"


def snapshot_of(capture, *words):
    with open(export(capture, "torch-snapshot", *words), "rb") as file:
        return pickle.load(file)


def part(frames, kind):
    return next((frame["name"] for frame in frames if frame["filename"] == kind), "Global")


def owner(frames):
    return part(frames, "device"), part(frames, "module"), part(frames, "category")


def sums_of(blocks):
    """Owners to bytes."""
    found = {}
    for frames, size in blocks:
        found[owner(frames)] = found.get(owner(frames), 0) + size
    return found


def blocks_of(snapshot):
    return [
        (block["frames"], block["requested_size"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def play(trace):
    """After each entry: the blocks and the segments that are there, by address. Nothing may overlap, or be outside."""
    blocks, segments = {}, {}
    for entry in trace:
        address, size = entry.get("addr"), entry["size"]
        match entry["action"]:
            case "alloc":
                segment = segments[address]
                assert address not in blocks and size == segment["size"]
                blocks[address] = entry
            case "free_requested":
                assert blocks[address]["size"] == size and blocks[address]["frames"] == entry["frames"]
            case "free_completed":
                del blocks[address]
            case "segment_alloc":
                assert address not in segments
                segments[address] = entry
            case "segment_free":
                assert address not in blocks and segments.pop(address)["size"] == size
        yield entry, blocks, segments


def test_totals_are_the_captures(capture):
    loaded = load(capture)
    snapshot = snapshot_of(capture)
    end = loaded.snapshot(loaded.event_count)
    assert sums_of(blocks_of(snapshot)) == held(end)
    total = sum(sums["Total"] for sums in end.totals.values())
    reserved = sum(max(end.reserved[device], end.totals[device]["Total"]) for device in end.totals)
    if total > 1 << 50:
        return  # segsum makes a list of all pages
    said = _memory_viz.segsum(snapshot)  # checks that each segment is the sum of its blocks
    figures = dict(re.findall(r"total_(\w+): ([\d.]+[KMGTPEZi]*B)", said))
    assert figures["allocated"] == repr(_memory_viz.Bytes(total))
    assert figures["reserved"] == repr(_memory_viz.Bytes(reserved))
    assert sum(map(_memory_viz.calc_active, snapshot["segments"])) == total


@pytest.mark.parametrize("at", ["peak", "last step"])
def test_a_snapshot_of_a_moment(capture, at):
    loaded = load(capture)
    if at == "last step" and not loaded.last_step:
        pytest.skip("the capture has no such moment")
    at = f"step:{loaded.last_step}" if at == "last step" else at  # the begins of other steps may be lost
    moment = loaded.snapshot(at)
    snapshot = snapshot_of(capture, "--at", at)
    assert sums_of(blocks_of(snapshot)) == held(moment)
    for device in range(len(snapshot["device_traces"])):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
        names = {part(frames, "device") for frames, _ in blocks_of({"segments": segments})}
        assert len(names) <= 1
        for name in names:
            sizes = sum(segment["total_size"] for segment in segments)
            assert sizes == max(moment.reserved[name], moment.totals[name]["Total"])


def test_the_flamegraph_of_memory_is_the_tree(capture):
    moment = load(capture).snapshot("peak")
    if any(len(module.splitlines()) != 1 for _, module, _ in held(moment)):
        pytest.skip("a name of several lines is no line of a flamegraph")
    lines = _memory_viz.memory(snapshot_of(capture, "--at", "peak"), format_flamegraph=str)
    found = {}
    for stack, size in re.findall(r"^stream_0;active_allocated;(.*) (\d+)$", lines, re.MULTILINE):
        first, *inner, last = stack.split(";")  # phase, modules, and the Python frames that made the block
        modules = [frame for frame in inner if re.match(r"module:\d+:", frame)]
        module = modules[-1].split(":", 2)[2] if modules else "Global"
        key = first.removeprefix("device:0:"), module, last.removeprefix("category:0:")
        found[key] = found.get(key, 0) + int(size)
    assert found == held(moment)


def test_the_trace_leads_to_the_segments_without_overlap(capture):
    loaded = load(capture)
    snapshot = snapshot_of(capture)
    peaks = {}
    for number, trace in enumerate(snapshot["device_traces"]):
        segments, blocks, total, most, name = {}, {}, 0, 0, None
        for entry, blocks, segments in play(trace):
            if entry["action"] == "alloc":
                total += entry["size"]
                most, name = max(most, total), part(entry["frames"], "device")
            elif entry["action"] == "free_completed":
                total -= entry["size"]
        if most:
            peaks[name] = most
        there = [segment for segment in snapshot["segments"] if segment["device"] == number]
        assert blocks.keys() == {
            segment["address"] for segment in there if segment["blocks"][0]["state"] == "active_allocated"
        }
        assert segments.keys() <= {segment["address"] for segment in there}
        ends = sorted((segment["address"], segment["address"] + segment["total_size"]) for segment in there)
        assert all(first[1] <= second[0] for first, second in zip(ends, ends[1:]))
    assert peaks == {device: peak.bytes for device, peak in loaded.peaks.items()}


@pytest.mark.slow
def test_torchs_other_functions_take_it(capture):
    snapshot = snapshot_of(capture)
    said = _memory_viz.trace(snapshot)
    assert said.count(" = cudaMalloc(") == sum(
        entry["action"] == "segment_alloc" for trace in snapshot["device_traces"] for entry in trace
    )
    assert ("raise OutOfMemoryError" in said) == bool(load(capture).oom_count)
    _memory_viz.segments(snapshot, format_flamegraph=str)
    _memory_viz.compare(snapshot["segments"], snapshot["segments"], format_flamegraph=str)
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.trace_plot(snapshot, plot_segments=True)):
        (files,) = json.loads(re.search(r"const local_files = (.*)\n", page)[1])
        assert pickle.loads(base64.b64decode(files["base64"]))["segments"] == snapshot["segments"]
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)


def test_what_is_left_when_freed_blocks_are_filtered_is_held(capture, capsys):
    snapshot = snapshot_of(capture)
    total = sum(size for _, size in blocks_of(snapshot))
    filtered = _memory_viz.filter_alloc_free_pairs(snapshot)
    left = [entry for trace in filtered["device_traces"] for entry in trace if entry["action"] == "alloc"]
    assert sum(entry["size"] for entry in left) == total
    assert "without" not in capsys.readouterr().out


@pytest.mark.slow
def test_only_opcodes_that_the_viewer_reads(capture):
    data = export(capture, "torch-snapshot").read_bytes()
    batch = 0
    marks = []
    for opcode, argument, _ in pickletools.genops(data):
        assert opcode.name in VIEWER_OPCODES
        if opcode.name == "MARK":
            marks.append(batch)
            batch = 0
        elif opcode.name in ("APPENDS", "SETITEMS"):
            assert batch <= BATCH
            batch = marks.pop()
        batch += opcode.name == "EMPTY_DICT"
        assert opcode.name != "PROTO" or argument == 4


def test_categories_and_times_of_entries(export_folder):
    snapshot = snapshot_of(export_folder / "mixed.msc")
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    assert all(
        part(entry["frames"], "category") == entry["category"] for entry in entries if entry["action"] == "alloc"
    )
    # The viewer fails where there are categories, and none is "unknown".
    assert [entry["action"] for entry in entries if entry.get("category") == "unknown"] == ["snapshot"]
    for trace in snapshot["device_traces"]:
        times = [entry["time_us"] for entry in trace]
        assert times == sorted(times) and times[0] >= 1_700_000_000_250_000


def test_frames_are_the_category_the_modules_that_called_the_phase_and_the_device(export_folder):
    snapshot = snapshot_of(export_folder / "mixed.msc")
    alloc = next(entry for entry in snapshot["device_traces"][1] if part(entry["frames"], "module") == "Net.a")
    assert [(frame["filename"], frame["name"]) for frame in alloc["frames"]] == [
        ("category", "Activation"),
        ("module", "Net.a"),
        ("module", "Net"),
        ("phase", "forward"),
        ("device", "cuda:1"),
    ]


def test_devices_have_torchs_numbers(export_folder):
    names = {}
    for segment in snapshot_of(export_folder / "mixed.msc", "--at", "peak")["segments"]:
        for block in segment["blocks"]:
            names[segment["device"]] = part(block["frames"], "device") if block["frames"] else names[segment["device"]]
    assert names == {0: "cuda:0", 1: "cuda:1", 2: "cpu"}
    (only,) = {
        part(frames, "device") for frames, _ in blocks_of(snapshot_of(export_folder / "mixed.msc", "--device", "cpu"))
    }
    assert only == "cpu"


@pytest.mark.parametrize("name, word", [("lossy", "at least"), ("train", "addresses and segments are made up")])
def test_a_note(export_folder, name, word):
    note = snapshot_of(export_folder / f"{name}.msc")["modscope"]["note"]
    assert word in note and ("at least" in note) == load(export_folder / f"{name}.msc").is_lower_bound


def test_it_is_written_without_torch(export_folder, tmp_path):
    words = [
        "export",
        str(export_folder / "train.msc"),
        "--format",
        "torch-snapshot",
        "-o",
        str(tmp_path / "out.pickle"),
    ]
    done = run_python(f"""
        import sys
        from modscope.__main__ import main
        assert main({words!r}) == 0
        assert "torch" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr
    assert pickle.loads((tmp_path / "out.pickle").read_bytes())["segments"]
