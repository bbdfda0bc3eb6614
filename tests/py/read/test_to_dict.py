"""``to_dict()`` of what ``load`` returns: plain JSON types, and the objects that the commands print."""

import json

import pytest
from capture_helpers import mixed, train
from described_json import check_part
from modscope import load
from modscope.__main__ import main
from modscope._read.lines import Frame, Place
from odd_captures import damaged, hostile, lossy, nameless_devices, out_of_memory

CAPTURES = {
    "train": lambda: train(4, leak=4000).end(how="finished"),
    "oom": lambda: out_of_memory().end(how="exception"),
    "kinds": lambda: mixed().end(how="finished"),
    "lossy": lambda: lossy().end(how="finished"),
    "damaged": damaged,
    "nameless": nameless_devices,
    "cut": lambda: train(9).killed()[:-100],
    "hostile": lambda: hostile().end(how="finished"),
}


@pytest.fixture(params=CAPTURES)
def file(request, tmp_path):
    path = tmp_path / f"{request.param}.msc"
    path.write_bytes(CAPTURES[request.param]())
    return str(path)


def is_plain(value: object) -> bool:
    """Whether it is made of JSON's own types, and not of subclasses of them."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def test_a_capture_has_the_figures_of_its_summary(file, capsys):
    found = load(file).to_dict()
    assert is_plain(found)
    check_part(found, "Capture")
    assert main(["summary", file, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for device in found["devices"]:
        device["modules"] = device["modules"][:10]
    assert {"command": "summary", "schema": 1, **found} == printed


def test_a_tree_is_that_of_the_command(file, capsys):
    found = [branch.to_dict() for branch in load(file).snapshot().tree()]
    assert is_plain(found) and main(["tree", file, "--json"]) == 0
    assert found == json.loads(capsys.readouterr().out)["tree"]


def test_blocks_are_those_of_the_command_with_their_device_and_without_their_age(file, capsys):
    capture = load(file)
    found = [block.to_dict() for block in capture.snapshot().blocks(device=capture.main_device)]
    assert is_plain(found) and main(["blocks", file, "-n", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["blocks"]
    for block, row in zip(found, printed, strict=True):
        check_part(block, "Block", is_open=True)
        assert block.keys() - row.keys() == {"device", "slot"} and row.keys() - block.keys() == {"age"}
        assert all(block[key] == value for key, value in row.items() if key != "age")


def test_a_snapshot_has_all_its_figures(file):
    snapshot = load(file).snapshot()
    found = snapshot.to_dict()
    assert is_plain(found)
    check_part(found, "Moment", is_open=True)
    assert (found["totals"], found["modules"]) == (snapshot.totals, snapshot.by_module())
    assert (found["kinds"], found["reserved"], found["outside"]) == (
        snapshot.kinds,
        snapshot.reserved,
        snapshot.outside,
    )
    assert (found["step"], found["block_count"]) == (snapshot.step, snapshot.block_count)
    assert (found["phase"], found["module"]) == snapshot.running
    assert found["is_lower_bound"] is snapshot.is_lower_bound


def test_whatever_else_is_read_has_its_fields(file):
    capture = load(file)
    rows = [*capture.peaks.values(), *capture.phases.values(), *capture.steps(), *capture.step_times()]
    rows += [*capture.events(), *capture.collectives(), *filter(None, [capture.last_oom])]
    for row in rows:
        assert is_plain(row.to_dict()) and list(row.to_dict()) == list(row._fields)
        assert json.loads(json.dumps(row.to_dict())) == row.to_dict()
    for peak in capture.peaks.values():
        check_part(peak.to_dict(), "Peak", is_open=True)
    for phase in capture.phases.values():
        check_part(phase.to_dict(), "PhaseSums")


def test_collectives_have_their_group(tmp_path):
    c = train(2)
    c.group(1, 4, "default_pg", "0-3")
    c.collective("all_reduce", 8)
    (tmp_path / "x.msc").write_bytes(c.end(how="finished"))
    (collective,) = load(tmp_path / "x.msc").collectives()
    assert is_plain(collective.to_dict()) and collective.to_dict()["kind"] == "all_reduce"
    check_part(collective.to_dict()["group"], "CollectiveGroup")


def test_a_place_has_its_line_and_that_of_the_forward():
    made, created = Frame("a.py", "step", 7), Frame("b.py", "forward", 9)
    found = Place((made, created), "MulBackward0", None, forward=(created,)).to_dict()
    assert is_plain(found)
    check_part(found, "MadeAt")
    assert (found["file"], found["line"], found["operator"]) == ("a.py", 7, "MulBackward0")
    assert (found["forward_file"], found["forward_line"], len(found["stack"])) == ("b.py", 9, 2)


def test_a_capture_knows_its_file(tmp_path):
    path = tmp_path / "x.msc"
    path.write_bytes(train(1).end(how="finished"))
    with open(path, "rb") as file:
        assert load(path).file == load(str(path)).file == load(file).file == str(path)
