"""A virtual GPU that is full: torch's own exception, our report, and scripts that go on."""

import json

import modscope
import pytest
from modscope._virtual.device.memory import out_of_memory_message
from predict_helpers import needs_virtual_gpu, predict, predict_json, training

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

MIB, GIB = 1 << 20, 1 << 30
HALVE = """
    batch = 1 << 22
    while True:
        try:
            step(batch)
            break
        except torch.OutOfMemoryError as error:
            print("halved", batch)
            batch //= 2
"""


def test_the_script_gets_torch_s_exception_and_our_report(tmp_path):
    ran = predict(tmp_path, "--gpu", "8GiB", "--json", "x.json", training(tmp_path, "step(1 << 20)"))
    before, _, error = ran.err.partition("Traceback ")
    assert (
        ran.status == 1
        and "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has a " in error
    )
    assert before.startswith(
        "[modscope] out of memory: an allocation of 16.00 GiB on cuda:0 failed, in step 1, forward of Net.up\n"
    )
    assert ran.err.count("out of memory: an allocation") == 1 and "\n  largest owners, by their own bytes:\n" in before
    first, second, third = ran.said
    assert (
        ", until memory ran out. " in first
        and " it does not fit: an allocation of 16.00 GiB failed in step 1, forward of Net.up, when 4.0" in second
    )
    (path,) = tmp_path.glob("*.msc")
    assert third == f"wrote {path.name}. See it:  modscope tree {path.name} --at oom"
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["fits"] is False and result["to_spare"] is None and result["ended"] == "exception"
    failed = result["out_of_memory"]
    assert (failed["requested"], failed["module"], failed["phase"], failed["step"]) == (
        16 * GIB,
        "Net.up",
        "forward",
        1,
    )
    assert 4 * GIB < failed["allocated"] <= failed["reserved"] <= 8 * GIB - 512 * MIB
    assert modscope.load(path).last_oom.bytes == 16 * GIB


def test_a_script_that_halves_its_batch_goes_on(tmp_path):
    script = training(tmp_path, HALVE)
    ran = predict(tmp_path, "--gpu", "8GiB", "--json", "x.json", script)
    count = len(ran.out.splitlines())
    # a thread of autograd may free the failed step's tensors after the next began
    assert ran.status == 0 and count in (6, 7)
    assert ran.out.splitlines() == [f"halved {1 << n}" for n in range(22, 22 - count, -1)]
    assert f" after {count} allocations failed and the script went on." in ran.said[1]
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["fits"] is True and result["out_of_memory"]["count"] == count and result["steps"] == 1


def test_a_script_that_catches_it_and_gives_up_does_not_fit(tmp_path):
    text = """
        step()
        try:
            step(1 << 20)
        except torch.OutOfMemoryError:
            print("too large")
    """
    ran = predict(tmp_path, "--gpu", "8GiB", "--json", "x.json", training(tmp_path, text))
    assert (ran.status, ran.out) == (0, "too large\n") and " it does not fit: " in ran.said[1]
    assert json.loads((tmp_path / "x.json").read_text())["fits"] is False


def test_cached_memory_is_given_back_before_a_request_fails(tmp_path):
    """The verdict is the simulation's: the sum of what was ever reserved is more than the GPU has."""
    text = """
        for size in (3, 4, 5):
            torch.empty(size << 30, dtype=torch.uint8, device="cuda")
    """
    result = predict_json(tmp_path, "--gpu", "8GiB", "-q", training(tmp_path, text))
    assert result["fits"] is True and 5 * GIB <= result["reserved_peak"] < 8 * GIB


def test_the_message_names_the_segment_as_torch_does():
    words = out_of_memory_message(3 * MIB, 5 * GIB, 6 * GIB, 512 * MIB, 100, 8 * GIB)
    assert words.startswith(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 100 "
        "bytes is free. "
        "Including non-PyTorch memory, this process has 6.50 GiB memory in use. Of the allocated memory 5.00 GiB "
        "is allocated by "
        "PyTorch, and 1024.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting "
    )
    sizes = [out_of_memory_message(size, 0, 0, 0, 0, 0).split(".")[1:3] for size in (1, MIB, 10 * MIB + 1, 3 * GIB)]
    assert [" ".join(part).split("allocate ")[1] for part in sizes] == ["2 00 MiB", "2 00 MiB", "12 00 MiB", "3 00 GiB"]


# ---- a fraction of the memory ----


GPU = modscope.gpus["rtx4090"]


def test_a_fraction_of_the_environment_limits_what_is_to_spare(tmp_path):
    script = training(tmp_path, "step()")
    result = predict_json(
        tmp_path, "--gpu", "rtx4090", script, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.5"
    )
    assert result["fits"] is True and result["may_reserve"] == GPU.memory // 2
    assert result["to_spare"] == GPU.memory // 2 - result["reserved_peak"] > 0


def test_a_fraction_that_the_script_sets_limits_what_is_to_spare(tmp_path):
    script = training(tmp_path, "torch.cuda.set_per_process_memory_fraction(0.25)\nstep()")
    result = predict_json(tmp_path, "--gpu", "rtx4090", script)
    assert result["may_reserve"] == GPU.memory // 4 and result["to_spare"] == GPU.memory // 4 - result["reserved_peak"]


def test_a_fraction_that_the_script_sets_holds_for_several_gpus(tmp_path):
    script = training(tmp_path, "torch.cuda.set_per_process_memory_fraction(0.005)\nstep()")
    ran = predict(tmp_path, "--json", "result.json", "--gpu", "rtx4090,h200", script)
    small, large = json.loads((tmp_path / "result.json").read_text())["gpus"]
    assert (small["fits"], large["fits"]) == (False, True), ran.err
    assert large["to_spare"] == int(0.005 * modscope.gpus["h200"].memory) - large["reserved_peak"]


def test_a_fraction_takes_nothing_of_the_context():
    assert GPU.may_reserve(1) == GPU.may_reserve(0.999) == GPU.capacity
    assert GPU.may_reserve(0.5) == GPU.memory // 2
