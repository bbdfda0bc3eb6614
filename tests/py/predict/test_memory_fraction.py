"""A program that may use only a fraction of the GPU's memory."""

import json

import modscope
from predict_helpers import needs_virtual_gpu, predict, predict_json, training

pytestmark = needs_virtual_gpu
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
