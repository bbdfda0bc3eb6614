"""Lines of blocks that the cells of a notebook make: read later, in a process without the kernel."""

import json
import re

import modscope
import pytest
from helpers import INTERCEPTION
from line_helpers import run_with_extra
from modscope._read.cells import Cells, describe
from modscope._read.lines import Places

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")

CELLS = [
    "import torch, modscope",
    "def größe(n):\n    return torch.relu(\n        torch.zeros(n))",
    "with modscope.record(FILE, stacks=8):\n    kept = [größe(1000 + i) for i in range(3)]\n    other = torch.ones(77)",
]

IN_SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell, store_history=True).raise_error()
"""

IN_KERNEL = """
import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
try:
    for cell in json.loads(sys.argv[1]):
        reply = client.execute_interactive(cell, timeout=600, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


def frames(block):
    return [(frame.file, frame.line, frame.function) for frame in block.place.frames]


@pytest.mark.slow
@pytest.mark.parametrize("package, program", [("IPython", IN_SHELL), ("ipykernel", IN_KERNEL)])
def test_a_cell_is_shown_by_its_number_and_its_source(package, program, tmp_path):
    from modscope.__main__ import main

    file, cells = tmp_path / "run.msc", [*CELLS]
    cells[2] = cells[2].replace("FILE", repr(str(file)))
    run_with_extra(package, program, json.dumps(cells))
    capture = modscope.load(file)
    blocks = {block.bytes: block for block in capture.snapshot(capture.event_count).blocks()}
    for size in (1000, 1001, 1002):
        inner = [("cell [2]", 2, "größe"), ("cell [3]", 2, "<listcomp>"), ("cell [3]", 2, "<module>")]
        assert [row for row in frames(blocks[4 * size]) if row[0].startswith("cell")] in (inner, [inner[0], inner[2]])
        assert blocks[4 * size].place.operator == "torch.relu" and blocks[4 * size].place.source == "return torch.relu("
    assert blocks[4 * 77].place.describe() == "cell [3]:3 in <module>"
    assert blocks[4 * 77].place.operator == "torch.ones"
    assert main(["export", str(file), "-o", str(tmp_path / "run.csv")]) == 0
    assert re.search(r",cell \[2\],2,größe,torch.relu\n", (tmp_path / "run.csv").read_text())
    assert len(capture.end["cells"]) < sum(map(len, cells)) + 250  # two cells made blocks; each has its text once


OUT_OF_MEMORY = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import torch, modscope", store_history=True)
done = shell.run_cell("with modscope.MemTracker():\\n    torch.empty(1 << 50)", store_history=True)
print(done.error_in_exec.__notes__[0])
"""


@pytest.mark.slow
def test_the_out_of_memory_report_names_the_cell():
    assert "requested by cell [2]:2 in <module>" in run_with_extra("IPython", OUT_OF_MEMORY)


# ---- without IPython ----

TABLE = [None, None, ("/tmp/ipykernel_7/123.py", "f", 2, 2, 4, 17, 0), ("<ipython-input-5-0f0f0f>", "g", 1, 0, 0, 0, 0)]


def test_cells_of_a_process_that_was_killed():
    """The capture has no end, so it has neither numbers nor texts. IPython's own names have the number in them."""
    places = Places(TABLE)
    assert places.find(2).describe() == "cell [?]:2 in f (source not found)"
    assert places.find(3).describe() == "cell [5]:1 in g (source not found)"
    assert places.find(2).operator is None


def test_two_cells_of_one_number_are_told_apart():
    described = json.dumps({TABLE[2][0]: [5, "x = 1\n    torch.ones(3)\n"], TABLE[3][0]: [5, "g()"]})
    places = Places(TABLE, cells=described)
    assert places.find(2).file == "cell [5]" and places.find(2).source == "torch.ones(3)"
    assert places.find(2).operator == "torch.ones"
    assert places.find(3).file == f"cell [5] ({TABLE[3][0]})" and places.find(3).source == "g()"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 1}', '{"a": [1]}', '{"a": ["1", "x"]}', "[" * 100_000])
def test_a_forged_list_of_cells_is_ignored(text):
    assert Cells(text).name("a") == "a" and not Cells(text).is_cell("a")


def test_texts_of_cells_are_bounded(monkeypatch):
    from modscope._read import cells as _cells

    texts = {f"<ipython-input-{number}-abc>": "x" * 100_000 for number in range(5)}
    monkeypatch.setattr(_cells.linecache, "getlines", texts.get)
    kept = json.loads(describe([*texts, "train.py"])["cells"])
    assert [kept[name][1] is not None for name in texts] == [False, False, False, True, True]  # the latest
    assert describe(["train.py", "<string>"]) == {}
