"""The line that `modscope run` ends with."""

import pytest
from modscope import Peak
from modscope._record.last_line import closing_after_sigterm, last_line
from modscope._record.record import RecordingResult

GPU = Peak(3 * 2**30 + 2**28, 2, "backward", "GPT2.h.11.mlp", "GPT2.h.11")
CPU = Peak(100 * 2**20, 0, "idle", "Global", "Global")


def outcome(bytes=1_900_000, lost=0, error=None, peaks=None, out_of_memory=0):
    return RecordingResult(bytes, 1000, lost, error, {"cuda:0": GPU} if peaks is None else peaks, out_of_memory)


@pytest.mark.parametrize(
    "name, how, result, line",
    [
        (
            "a.msc",
            "finished",
            outcome(),
            "wrote a.msc (1.81 MiB). Peak 3.25 GiB on cuda:0 in step 2, backward of GPT2.h.11.mlp. See it:  "
            "modscope summary a.msc",
        ),
        (
            "my run.msc",
            "exception",
            outcome(bytes=900, peaks={"cpu": CPU, "cuda:0": GPU, "cuda:1": GPU}),
            "wrote 'my run.msc' (900 B). Peak 3.25 GiB on cuda:0 in step 2, backward of GPT2.h.11.mlp; 3.25 GiB "
            "on cuda:1; "
            "100.00 MiB on cpu. See it:  modscope summary 'my run.msc'",
        ),
        (
            "a.msc",
            "exception",
            outcome(bytes=2048, peaks={"cpu": CPU}, out_of_memory=1),
            "wrote a.msc (2.00 KiB). Peak 100.00 MiB on cpu before the first step, outside any module. "
            "See it:  modscope tree a.msc --at oom",
        ),
        (
            "a.msc",
            "exception",
            outcome(bytes=2048, peaks={}, out_of_memory=1)._replace(
                inputs="step 8 had 2 x 9; the largest before was 2"
            ),
            "wrote a.msc (2.00 KiB). Nothing was allocated. Step 8 had 2 x 9; the largest before was 2. "
            "See it:  modscope tree a.msc --at oom",
        ),
        (
            "a.msc",
            "finished",
            outcome(lost=12345, error="No space left on device", peaks={}, out_of_memory=1),
            'wrote a.msc (1.81 MiB). 12,345 events are not in it (No space left on device): every figure is "at '
            'least". '
            "Nothing was allocated. See it:  modscope summary a.msc",
        ),
        (
            "a.msc",
            "finished",
            outcome(bytes=0, error="No space left on device", peaks={"cpu": CPU}),
            "could not write a.msc: No space left on device. Peak 100.00 MiB on cpu before the first step, "
            "outside any module.",
        ),
        (
            "",
            "finished",
            outcome(bytes=0, peaks={"cpu": Peak(2000, 3, "optimizer", "Global", "Global")}),
            "Peak 1.95 KiB on cpu in step 3, in the optimizer's step.",
        ),
    ],
)
def test_lines(name, how, result, line):
    assert last_line(name, result, how) == line


def test_the_line_after_sigterm_fits_the_terminal_whatever_the_size(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    before, after = closing_after_sigterm("a run.msc")
    lines = f"{before}1023.99 MiB{after}".splitlines()
    assert lines == [
        "[modscope] wrote 'a run.msc' (1023.99 MiB). SIGTERM ended",
        "           the program. See it:",
        "           modscope summary 'a run.msc'",
    ]
