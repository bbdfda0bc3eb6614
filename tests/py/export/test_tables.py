"""`modscope export --format csv` and `json`, read by Python's own modules: the figures are those of the capture."""

import csv
import json
import math

import pytest
from capture_helpers import Capture
from export_helpers import BY_HAND, REAL, export, held, held_by_tree, load, moments, tree

CATEGORIES = ("Parameter", "Buffer", "Gradient", "Activation", "Temp", "Optstate", "Other")
COLUMNS = "event time kind thread device bytes category module phase step block held reserved is_lower_bound block_kind".split()
COLUMNS += ["file", "line", "function", "operator"]
MODULE_COLUMNS = ["moment", "time", "step", "device", "module", *CATEGORIES, "own", "subtree", "is_lower_bound"]
csv.field_size_limit(1 << 30)


@pytest.fixture(params=[*REAL, *BY_HAND])
def capture(request, export_folder):
    return export_folder / f"{request.param}.msc"


def csv_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
    return reader.fieldnames, rows


def json_rows(path):
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def as_text(value):
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, bool) else f"{value:.6f}" if isinstance(value, float) else str(value)


def play(rows):
    """What is held after each row: device, module and category to bytes."""
    blocks, sums = {}, {}

    def change(block, sign):
        key = block["device"], block["module"], block["category"]
        sums[key] = sums.get(key, 0) + sign * int(block["bytes"])
        if not sums[key]:
            del sums[key]

    for row in rows:
        if row["kind"] in ("add", "held"):
            assert row["block"] not in blocks
        if row["kind"] in ("claim", "drop", "gone"):
            change(blocks.pop(row["block"]), -1)
        if row["kind"] in ("add", "held", "claim"):
            blocks[row["block"]] = row
            change(row, 1)
        yield row, sums


def test_rows_add_up_to_what_is_held_at_any_moment(capture):
    loaded = load(capture)
    _, rows = csv_rows(export(capture, "csv"))
    waiting, sums = moments(loaded), {}
    for row, after in play(rows):
        # A moment is after the events with lower numbers; what only a key frame tells is so at its moment.
        before = int(row["event"]) - (row["kind"] in ("held", "gone"))
        while waiting and waiting[0] <= before:
            assert sums == held(loaded.snapshot(waiting.pop(0)))
        sums = dict(after)
    assert waiting[-1] == loaded.snapshot(loaded.event_count).moment
    assert all(sums == held(loaded.snapshot(moment)) for moment in waiting)


def test_held_and_reserved_of_each_row_are_the_devices(capture):
    loaded = load(capture)
    _, rows = csv_rows(export(capture, "csv"))
    wanted = set(moments(loaded))
    checked = 0
    for row, following in zip(rows, [*rows[1:], None]):
        moment = int(row["event"]) + 1
        last_of_it = following is None or following["event"] != row["event"]
        if row["device"] and moment in wanted and last_of_it and row["kind"] not in ("held", "gone"):
            snapshot = loaded.snapshot(moment)
            assert int(row["held"]) == snapshot.totals[row["device"]]["Total"]
            assert int(row["reserved"]) == snapshot.reserved[row["device"]]
            assert bool(int(row["is_lower_bound"])) == snapshot.is_lower_bound
            checked += 1
    assert checked
    peaks = {}
    for row in rows:
        if row["device"]:
            peaks[row["device"]] = max(peaks.get(row["device"], 0), int(row["held"]))
    assert {device: peak for device, peak in peaks.items() if peak} == {
        device: peak.bytes for device, peak in loaded.peaks.items()
    }


def test_json_has_the_same_rows(capture):
    names, rows = csv_rows(export(capture, "csv"))
    objects = json_rows(export(capture, "json"))
    assert names == COLUMNS and all(list(found) == COLUMNS for found in objects)
    assert [{key: as_text(value) for key, value in found.items()} for found in objects] == rows


def test_a_row_an_event(capture):
    loaded = load(capture)
    rows = json_rows(export(capture, "json"))
    claims = sum(1 for event in loaded.events("claim") if event.from_now_on)
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in ("add", "drop", "position", "step", "oom")}
    assert counts == {kind: loaded._survey["events"][kind] for kind in counts}
    assert sum(row["kind"] == "claim" for row in rows) <= claims
    for event, row in zip(
        loaded.events("position", "oom"), [row for row in rows if row["kind"] in ("position", "oom")]
    ):
        assert (row["event"], row["thread"], row["phase"]) == (event.number, event.thread, event.phase)
        assert row["module"] == event.module and math.isclose(row["time"], event.time, abs_tol=1e-7)


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("at", ["peak", "step:1", "time:0.05"])
def test_modules_at_a_moment_are_those_of_the_tree(capture, capsys, format, at):
    loaded = load(capture)
    if at == "time:0.05" and loaded.duration < 0.05 or at == "step:1" and not loaded.last_step:
        pytest.skip("the capture has no such moment")
    found = export(capture, format, "--at", at)
    names, rows = csv_rows(found) if format == "csv" else (MODULE_COLUMNS, json_rows(found))
    devices = list(dict.fromkeys(row["device"] for row in rows))
    assert names == MODULE_COLUMNS and (at != "peak" or set(devices) == set(loaded.peaks))
    for device in devices:
        report = tree(capture, capsys, "--at", at, "--device", device)
        mine = [row for row in rows if row["device"] == device]
        assert {int(row["moment"]) for row in mine} == {report["moment"]}
        assert {bool(int(row["is_lower_bound"])) for row in mine} == {report["is_lower_bound"]}
        assert {
            (device, row["module"], word): int(row[word]) for row in mine for word in CATEGORIES if int(row[word])
        } == held_by_tree(report["tree"], device)
        assert sum(int(row["own"]) for row in mine) == report["total"]
        roots = {node["fqn"]: node["subtree"]["Total"] for node in report["tree"]}
        assert {row["module"]: int(row["subtree"]) for row in mine if row["module"] in roots} == roots


def test_one_device_at_a_moment(export_folder):
    rows = json_rows(export(export_folder / "train.msc", "json", "--at", "step:2", "--device", "cuda"))
    assert {row["device"] for row in rows} == {"cuda:0"}


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("x","y")']


@pytest.mark.parametrize("at", [None, "peak"])
def test_a_spreadsheet_takes_no_name_for_a_formula(tmp_path, at):
    made = Capture(("=cmd",))
    for name in FORMULAS:
        made.where("forward", made.module(name))
        made.add(1000)
    (tmp_path / "x.msc").write_bytes(made.end(how="finished"))
    _, rows = csv_rows(export(tmp_path / "x.msc", "csv", *([] if at is None else ["--at", at])))
    cells = {row[column] for row in rows for column in ("module", "device")}
    assert {"'" + name for name in FORMULAS} | {"'=cmd"} <= cells
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
