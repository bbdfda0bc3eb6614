"""The closing lines, word by word."""

import pytest
from modscope._predict.text import closing, describe_failure, step_time
from modscope._read.text import rough_size
from modscope._show.terminal import Screen, as_lines

GIB = 1 << 30
RESULT = {
    "gpu": "rtx4090",
    "device": "cuda:0",
    "memory": 24_176 << 20,
    "context": 512 << 20,
    "reserved_peak": int(18.42 * GIB),
    "allocated_peak": int(16.9 * GIB),
    "fits": True,
    "to_spare": int(4.69 * GIB),
    "step_ms": 212.4,
    "seconds": 4.2,
    "steps": 3,
    "peak": {"step": 2, "phase": "backward", "module": "GPT2.h.11.mlp"},
    "reserved_moment": None,
    "out_of_memory": None,
    "ended": "stopped",
    "timed_out": None,
    "error": "",
    "status": "0",
    "bytes_without_rule": None,
    "notes": [],
}
FAILED = {
    "count": 2,
    "requested": 2 * GIB,
    "allocated": 22 * GIB,
    "reserved": 23 * GIB,
    "step": 1,
    "phase": "forward",
    "module": "GPT.head",
}


def lines(**changes):
    return closing({**RESULT, **changes}, "modscope-train.4242.msc", None, False)


def test_as_the_issue_has_them():
    assert as_lines(lines(), Screen(wraps=False)) == [
        "[modscope] predicted 3 steps in 4 s. cuda:0 reserves 18.42 GiB at most (16.90 GiB allocated), in step 2, "
        "backward of GPT2.h.11.mlp.",
        "           RTX 4090: 23.6 GiB, 0.5 GiB of it for the CUDA context: it fits, with 4.7 GiB to spare. About "
        "212 ms a step.",
        "           wrote modscope-train.4242.msc. See it:  modscope summary modscope-train.4242.msc",
    ]


def test_in_a_terminal_lines_are_wrapped_and_commands_are_whole():
    assert as_lines(lines(), Screen(60)) == [
        "[modscope] predicted 3 steps in 4 s. cuda:0 reserves 18.42",
        "           GiB at most (16.90 GiB allocated), in step 2,",
        "           backward of GPT2.h.11.mlp.",
        "           RTX 4090: 23.6 GiB, 0.5 GiB of it for the CUDA",
        "           context: it fits, with 4.7 GiB to spare. About",
        "           212 ms a step.",
        "           wrote modscope-train.4242.msc. See it:",
        "           modscope summary modscope-train.4242.msc",
    ]


def test_without_a_time():
    assert lines(step_ms=None)[1].endswith(" to spare.") and lines(step_ms=0.0)[1].endswith(" to spare.")


def test_reserved_and_allocated_peak_at_different_moments():
    moment = {"step": 1, "phase": "optimizer", "module": "Global"}
    assert lines(reserved_moment=moment)[0].endswith(
        "cuda:0 reserves 18.42 GiB at most, in step 1, in the optimizer's step, and allocates 16.90 GiB at most, "
        "in step 2, "
        "backward of GPT2.h.11.mlp."
    )


def test_it_does_not_fit():
    first, second, third = lines(
        fits=False, to_spare=None, out_of_memory=FAILED, steps=0, ended="exception", step_ms=None
    )
    assert first.startswith("predicted the script in 4 s, until memory ran out. cuda:0 ")
    assert second == (
        "RTX 4090: 23.6 GiB, 0.5 GiB of it for the CUDA context: it does not fit: an allocation of 2.00 GiB "
        "failed in step 1, "
        "forward of GPT.head, when 22.00 GiB was allocated and 23.00 GiB reserved."
    )
    assert third.endswith("modscope tree modscope-train.4242.msc --at oom")
    assert describe_failure(FAILED) in second


def test_a_script_that_went_on():
    assert "to spare, after 2 allocations failed and the script went on. About" in lines(out_of_memory=FAILED)[1]
    assert (
        "to spare, after an allocation failed and the script went on." in lines(out_of_memory={**FAILED, "count": 1})[1]
    )


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"timed_out": 60.0}, "predicted 3 steps in 4 s, until it was stopped after 60 s, as --seconds says. "),
        ({"ended": "interrupted"}, "predicted 3 steps in 4 s, when it was interrupted. "),
        (
            {"ended": "exception", "error": "ValueError: no\nmore"},
            "predicted 3 steps in 4 s, until the script failed (ValueError: no). ",
        ),
        ({"ended": "finished", "status": "3"}, "predicted 3 steps in 4 s, until the script failed (exit status 3). "),
        (
            {"steps": 0, "timed_out": 9.0},
            "predicted the script in 4 s, until it was stopped after 9 s, as --seconds says. ",
        ),
        ({"steps": 1, "seconds": 0.83}, "predicted 1 step in 0.8 s. "),
        ({"steps": 0}, "predicted the script in 4 s. "),
    ],
)
def test_how_it_ended(changes, sentence):
    assert lines(**changes)[0].startswith(sentence)
    so_far = "ended" in changes or changes.get("timed_out") == 9.0
    assert (" so far it fits, " in lines(**changes)[1]) == so_far


@pytest.mark.parametrize(
    "end", [{"ended": "exception", "error": "ValueError: no", "status": ""}, {"ended": "finished", "status": "3"}]
)
def test_a_script_that_fails_before_its_first_step_is_not_said_to_fit(end):
    error = end.get("error") or "exit status 3"
    assert lines(steps=0, **end) == [
        f"the script failed before its first optimizer step, so whether it fits is not known: {error}.",
        "Until then: cuda:0 reserves 18.42 GiB at most (16.90 GiB allocated), in step 2, backward of GPT2.h.11.mlp.",
        "wrote modscope-train.4242.msc. See it:  modscope summary modscope-train.4242.msc",
    ]
    of_rank = lines(steps=0, ranks={"rank": 3, "size": 8, "communicators": 0}, **end)[0]
    assert of_rank.startswith("the script failed as rank 3 of 8 before its first optimizer step, so ")


def test_a_script_for_several_ranks_is_told_how_to_have_them():
    failed = {"steps": 0, "ended": "exception", "status": ""}
    assert (
        lines(error="KeyError: 'LOCAL_RANK'", **failed)[1]
        == "torchrun would set LOCAL_RANK. Say how many ranks the script is to have, such as --ranks 8."
    )
    mesh = "RuntimeError: Mesh should not be bigger than default world size 8, but found 16 ranks!"
    assert lines(error=mesh, **failed)[1].endswith("Say how many it needs, such as --ranks 64.")
    assert lines(error="KeyError: 'name'", **failed)[1].startswith("Until then: ")
    before_gpu = lines(error="KeyError: 'RANK'", peak=None, reserved_peak=0, allocated_peak=0, **failed)
    assert (
        len(before_gpu) == 2
        and "used no GPU" not in before_gpu[0]
        and before_gpu[1].startswith("torchrun would set RANK.")
    )


def test_operators_without_a_rule_are_mentioned_where_they_matter():
    assert len(lines(bytes_without_rule=GIB // 100)) == 3
    assert lines(bytes_without_rule=GIB)[2].startswith("1.00 GiB went through operators without a rule ")


def test_quiet_and_lost_captures():
    assert closing(RESULT, "x.msc", None, True) == []
    assert (
        closing(RESULT, "x.msc", "was deleted or moved", True)[-1]
        == "the capture x.msc was deleted or moved during the run."
    )
    assert as_lines([], Screen()) == []


def test_a_script_without_a_gpu():
    (line,) = lines(peak=None, reserved_peak=0, allocated_peak=0)
    assert line == 'predicted 3 steps in 4 s. The script used no GPU: it uses one where its device is "cuda".'


def test_figures():
    assert [rough_size(value) for value in (int(23.61 * GIB), GIB // 2, 50 << 20)] == [
        "23.6 GiB",
        "0.5 GiB",
        "50.00 MiB",
    ]
    assert [step_time(value) for value in (8.44, 12.3, 212.4, 9999, 12_345)] == [
        "8.4 ms",
        "12 ms",
        "212 ms",
        "9999 ms",
        "12.3 s",
    ]
