"""`modscope predict --fail-unless-fits` and `--fail-above`: which jobs are let through."""

import pytest
from predict_helpers import needs_virtual_gpu, predict, predict_json, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

FAILS = "Status 3: the job "


@pytest.mark.parametrize(
    "options, text, status, said",
    [
        ("--gpu t4 --fail-unless-fits", "step()", 0, ""),
        ("--gpu t4 --fail-above 1GiB", "step()", 0, ""),
        ("--gpu t4 --fail-above 10MiB", "step()", 3, " MiB of the T4, more than 10.00 MiB."),
        ("--gpu t4 --fail-unless-fits", "step(1 << 22)", 3, FAILS + "does not fit the T4."),
        ("--gpu t4", "step(1 << 22)", 1, ""),
        ("--gpu t4 --fail-unless-fits", "step(); sys.exit(7)", 7, ""),
        ("--gpu t4 --fail-above 10MiB", "step(); sys.exit(7)", 3, FAILS + "reserves"),
        ("--gpu t4 --fail-above 10MiB", "import os; step(); os._exit(0)", 3, FAILS + "reserves"),
        ("--gpu t4 --fail-unless-fits", "raise ValueError('no')", 1, ""),
        ("--gpu t4,h100 --fail-above 10MiB --steps 1", "step()", 3, FAILS + "reserves"),
        ("--gpu h100,1GiB --fail-unless-fits --steps 1", "step(1 << 17)", 3, FAILS + "does not fit the GPU of 1GiB."),
        ("--gpu t4 --ranks 2,4 --fail-above 10MiB --steps 1", "step()", 3, FAILS + "reserves"),
    ],
)
def test_the_exit_status(tmp_path, options, text, status, said):
    ran = predict(tmp_path, *options.split(), training(tmp_path, text))
    assert ran.status == status, ran.err
    assert [line for line in ran.err.splitlines() if "Status 3" in line] == [] if not said else said in ran.err


def test_what_used_no_gpu_is_not_let_through(tmp_path):
    for text in ("import torch; torch.ones(3)", "print('no torch')"):
        ran = predict(tmp_path, "--gpu", "t4", "--fail-unless-fits", write(tmp_path, text))
        assert ran.status == 3 and "Status 3: nothing could be predicted" in ran.err, ran.err


def test_what_is_not_known_for_sure_is_not_let_through(tmp_path):
    """The figures fit exactly, and a context that takes a little more would leave too little."""
    script = training(tmp_path, "step(1 << 14)")
    reserved = predict_json(tmp_path, "--gpu", "t4", script)["reserved_peak"]
    gpu = f"--gpu={reserved + (512 << 20) + (1 << 20)}"
    expected = {"--fail-unless-fits": (3, True), "--fail-above=100GiB": (0, False)}
    for option, (status, is_said) in expected.items():
        ran = predict(tmp_path, gpu, option, "-f", "-o", "x.msc", script)
        is_open = "Status 3: it is too close to tell whether the job fits the GPU" in ran.err
        assert (ran.status, is_open) == (status, is_said), ran.err


def test_a_script_that_is_stopped_before_its_first_step_is_not_let_through(tmp_path):
    script = training(tmp_path, "import time; time.sleep(60); step()")
    ran = predict(tmp_path, "--gpu", "t4", "--fail-unless-fits", "--seconds", "1", script)
    assert ran.status == 3 and "Status 3: the script was stopped before its first step ended" in ran.err, ran.err


def test_a_limit_that_is_no_amount(tmp_path):
    ran = predict(tmp_path, "--gpu", "t4", "--fail-above", "lots", write(tmp_path, ""))
    assert ran.status == 2 and "'lots' is not an amount of memory: give one such as 22GiB" in " ".join(ran.err.split())
