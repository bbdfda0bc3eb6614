"""pytest's plugin: what tests on a virtual GPU and with limits report. Each run is a pytest of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import warm_python
from helpers import INTERCEPTION

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")

BEGIN = """
import pytest, torch, unittest
from torch import nn

WIDTH = 1024

@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()

def step(model):
    model(torch.ones(256, WIDTH, device="cuda")).sum().backward()
"""


def run(folder: Path, tests: str = "", *options: str) -> tuple[int, str, dict[str, str]]:
    """Run pytest on a file of tests; "": the one of the previous run. Returns its status, its output, and what became of
    each test."""
    if tests:
        (folder / "test_it.py").write_text(BEGIN + textwrap.dedent(tests))
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-rA", "-v", "--color=no", *options, "test_it.py"]
    ran = warm_python.run(words, folder, COLUMNS="200")
    became = dict(re.findall(r"^test_it\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", ran.stdout, re.M))
    return ran.returncode, ran.stdout + ran.stderr, became


def part(output: str, name: str) -> str:
    """What pytest says of a failure."""
    found = re.search(
        rf"^_+ (?:ERROR at setup of )?{re.escape(name)} _+$(.*?)(?=^(?:_{{3,}}|={{3,}}) )", output, re.M | re.S
    )
    assert found, output
    return found[1]


@pytest.mark.slow
def test_a_test_on_a_virtual_gpu_fails_by_its_limit_and_says_where_the_memory_is(tmp_path):
    status, output, became = run(
        tmp_path,
        """
        @pytest.mark.gpu_memory("rtx4090", max="100 MiB")
        def test_within(model):
            assert torch.cuda.get_device_name() == "NVIDIA GeForce RTX 4090"
            step(model)

        @pytest.mark.gpu_memory("rtx4090", max="10 MB")
        def test_above(model):
            step(model)

        @pytest.mark.gpu_memory("t4")
        def test_does_not_fit():
            try:
                torch.ones(5 << 30, device="cuda")
            except torch.OutOfMemoryError:
                pass

        @pytest.mark.gpu_memory("t4")
        def test_uses_no_gpu():
            step(nn.Linear(4, 4)) if torch.cuda.device_count() > 1 else None

        @pytest.mark.gpu_memory("t4")
        def test_raises(model):
            step(model)
            assert model is None

        @pytest.mark.xfail(strict=True)
        @pytest.mark.gpu_memory("t4", max="1 B")
        def test_expected(model):
            pass

        @pytest.mark.gpu_memory("t4", max="100 MiB")
        @pytest.mark.parametrize("count", [1, 64])
        def test_parametrized(count):
            torch.ones(count << 20, device="cuda")

        class TestCase(unittest.TestCase):
            def setUp(self):
                self.x = torch.ones(1 << 20, device="cuda")

            @pytest.mark.gpu_memory("h100", max="1 GiB")
            def test_within(self):
                assert self.x.is_cuda

            @pytest.mark.gpu_memory("h100", max="1 MiB")
            def test_above(self):
                assert self.x.is_cuda

            @pytest.mark.gpu_memory("h100", max="1 MiB")
            def test_fails_itself(self):
                self.assertEqual(1, 2)

        @pytest.fixture
        def cleaned(model):
            yield model
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() > 0
            torch.cuda.empty_cache()

        @pytest.mark.gpu_memory("t4", max="100 MiB")
        def test_a_fixture_that_cleans_up(cleaned):
            torch.set_default_device("cuda")

        @pytest.fixture
        def raises_at_end():
            yield torch.ones(4, device="cuda")
            raise ValueError("at its end")

        @pytest.mark.gpu_memory("t4")
        def test_a_fixture_that_raises_at_its_end(raises_at_end):
            pass

        @pytest.mark.gpu_memory("t4")
        def test_out_of_memory():
            nn.Linear(1 << 16, 1 << 17, device="cuda")

        @pytest.mark.gpu_memory(str((1 << 30) + (3 << 20)))
        def test_too_close():
            torch.ones(1 << 29, dtype=torch.uint8, device="cuda")

        def test_after_all_that():
            torch.ones(3, requires_grad=True).sum().backward()
            assert not torch.cuda.is_available()

        def test_the_fixture(gpu_memory):
            with gpu_memory("t4") as gpu:
                torch.ones(1 << 20, device="cuda")
            assert gpu.peak_allocated == 4 << 20 and gpu.fits
        """,
    )
    assert became == {
        "test_within": "PASSED",
        "test_above": "FAILED",
        "test_does_not_fit": "FAILED",
        "test_uses_no_gpu": "FAILED",
        "test_raises": "FAILED",
        "test_expected": "XFAIL",
        "test_parametrized[1]": "PASSED",
        "test_parametrized[64]": "FAILED",
        "TestCase::test_within": "PASSED",
        "TestCase::test_above": "FAILED",
        "TestCase::test_fails_itself": "FAILED",
        "test_a_fixture_that_cleans_up": "PASSED",
        "test_a_fixture_that_raises_at_its_end": "ERROR",
        "test_out_of_memory": "FAILED",
        "test_too_close": "FAILED",
        "test_after_all_that": "PASSED",
        "test_the_fixture": "PASSED",
    } and (status == 1)
    above = part(output, "test_above")
    assert "The test reserves " in above and "more than its limit of 10.00 MiB. The peak is " in above
    assert "Sequential.1" in above and "test_it.py in step: model(torch.ones(256, WIDTH" in above
    assert (
        part(output, "test_does_not_fit")
        .strip()
        .startswith(
            "The test does not fit the T4: an allocation of 20.00 GiB failed before the first step, outside any module, when 0 B"
        )
    )
    assert part(output, "test_uses_no_gpu").strip().startswith("The test used no GPU: put its model and its data on")
    assert "site-packages/modscope/" not in part(output, "test_out_of_memory") and "nn.Linear(1 << 16" in part(
        output, "test_out_of_memory"
    )
    assert "It is too close to tell whether the test fits the GPU of " in part(output, "test_too_close")
    assert "assert model is None" in part(output, "test_raises")
    assert "AssertionError: 1 != 2" in part(output, "TestCase.test_fails_itself")
    assert "1 MiB" not in part(output, "TestCase.test_fails_itself").split("AssertionError")[1].split("modscope")[0]


@pytest.mark.slow
def test_limits_of_real_memory_and_wrong_markers(tmp_path):
    status, output, became = run(
        tmp_path,
        """
        kept = []

        def grow():
            kept.append(torch.ones(1000, 1000))

        @pytest.mark.limit_memory("4 MB")
        def test_holds_little():
            torch.ones(1000, 1000)

        @pytest.mark.limit_memory("4 MB")
        def test_holds_much():
            torch.ones(1000, 1000) + torch.ones(1000, 1000)

        @pytest.mark.limit_leaks("1 MB")
        def test_leaves_little():
            torch.ones(1000, 1000)
            kept.append(torch.ones(8))

        @pytest.mark.limit_leaks("1 MB")
        def test_leaves_much():
            grow()

        @pytest.mark.limit_leaks(location_limit="1 MB", current_thread_only=False, filter_fn=lambda leak: leak.frames[0].function != "grow")
        def test_leaves_what_is_allowed():
            grow()

        @pytest.mark.gpu_memory("t44")
        def test_unknown_gpu(): pass

        @pytest.mark.gpu_memory("t4", max="lots")
        def test_no_size(): pass

        @pytest.mark.limit_memory("1 MB", least=3)
        def test_wrong_argument(): pass

        @pytest.mark.limit_memory("1 MB", current_thread_only=True)
        def test_one_thread(): pass

        @pytest.mark.gpu_memory("t4")
        @pytest.mark.limit_memory("1 MB")
        def test_both(): pass
        """,
        "--strict-markers",
    )
    passed = ("test_holds_little", "test_leaves_little", "test_leaves_what_is_allowed")
    assert {name for name, how in became.items() if how == "PASSED"} == {*passed} and status == 1
    assert "Torch held 11.44 MiB on cpu while the test ran, 7.44 MiB more than its limit of 4.00 MiB." in part(
        output, "test_holds_much"
    )
    assert re.search(r"3\.81 MiB, allocated at test_it\.py:\d+ in grow, for Global", part(output, "test_leaves_much"))
    errors = {
        "test_unknown_gpu": "'t44' is not a GPU that is known (did you mean t4?)",
        "test_no_size": "'lots' is not an amount of memory: give one such as '200 MB' or '1.5 GiB'",
        "test_wrong_argument": "limit_memory does not take these arguments. Write it as  @pytest.mark.limit_memory(",
        "test_one_thread": "limit_memory counts the tensors of all threads: leave current_thread_only out",
        "test_both": "gpu_memory counts on a virtual GPU",
    }
    for name, sentence in errors.items():
        assert became[name] == "ERROR" and part(output, name).strip().startswith(sentence)


STEP = """
@pytest.mark.gpu_memory("rtx4090")
def test_step(model):
    step(model)
"""


@pytest.mark.slow
def test_a_baseline_notices_what_grows(tmp_path):
    file = tmp_path / "memory.json"
    assert (
        "There is no baseline memory.json: write it with --modscope-update"
        in run(tmp_path, STEP, "--modscope-baseline=memory.json")[1]
    )
    status, output, _ = run(tmp_path, "", "--modscope-baseline=memory.json", "--modscope-update")
    assert status == 0 and f"modscope: wrote the figures of 1 test to {file}" in output
    written = json.loads(file.read_text())["tests"]["test_it.py::test_step"]
    assert written["gpu"] == "rtx4090" and written["allocated"] == sum(written["modules"].values())
    assert run(tmp_path, "", "--modscope-baseline=memory.json")[2] == {"test_step": "PASSED"}
    wider = STEP + "\nWIDTH = 1025\n"
    status, output, became = run(tmp_path, wider, "--modscope-baseline=memory.json")
    assert became == {"test_step": "FAILED"} and status == 1
    said = part(output, "test_step")
    assert re.search(r"more memory than its baseline says: it allocates \S+ MiB \(was \S+ MiB, \+\S+ [KM]iB\)", said)
    assert re.search(r"\+\S+ KiB  Sequential\.\*$", said, re.M) and "Lines that allocated more of it:" in said
    narrower = STEP + "\nWIDTH = 512\n" + STEP.replace("test_step", "test_new")
    status, output, _ = run(tmp_path, narrower, "--modscope-baseline=memory.json")
    assert status == 0 and "the baseline has no test_it.py::test_new: add it with --modscope-update" in output
    assert "modscope: 1 test took less than the baseline says: lower it with --modscope-update" in output
    other = json.loads(file.read_text())
    other["tests"]["test_it.py::test_step"]["torch"] = "2.5.0"
    file.write_text(json.dumps(other))
    assert (
        "is of rtx4090 with torch 2.5.0, and this is rtx4090 with torch"
        in run(tmp_path, STEP, "--modscope-baseline=memory.json")[1]
    )


def test_files_that_are_no_baseline_are_refused(tmp_path):
    sentences = {
        "[1]": "memory.json is no baseline of modscope: give another name",
        '{"modscope_baseline": 99}': "memory.json is a baseline of another version of modscope",
        '{"modscope_baseline": 1, "tests": {"a": 3}}': "memory.json is no baseline of modscope",
        "": "memory.json is no baseline of modscope",
    }
    for text, sentence in sentences.items():
        (tmp_path / "memory.json").write_text(text)
        for update in ((), ("--modscope-update",)):
            status, output, _ = run(tmp_path, STEP, "--modscope-baseline=memory.json", *update)
            assert sentence in output and status == 4 and (tmp_path / "memory.json").read_text() == text
    assert "add --modscope-baseline FILE" in run(tmp_path, STEP, "--modscope-update")[1]


@pytest.mark.slow
def test_workers_compare_and_the_first_process_writes(tmp_path):
    pytest.importorskip("xdist")
    status, output, _ = run(tmp_path, STEP, "-n1", "--modscope-baseline=memory.json", "--modscope-update")
    assert status == 0 and "modscope: wrote the figures of 1 test to" in output
    assert "test_it.py::test_step" in json.loads((tmp_path / "memory.json").read_text())["tests"]
    status, output, _ = run(tmp_path, STEP + "\nWIDTH = 1025\n", "-n1", "--modscope-baseline=memory.json")
    assert status == 1 and "The test needs more memory than its baseline says" in output


def test_a_run_without_such_tests_imports_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    found = {module.__name__ for name, module in sys.modules.items() if name.startswith(('modscope', 'torch'))}\n"
        "    assert found == {'modscope', 'modscope.integrations', 'modscope.integrations.pytest_plugin'}\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
