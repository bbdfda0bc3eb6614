"""The GPUs that are known, and those that are given by their memory."""

import modscope
import pytest
from modscope._virtual.device.properties import DeviceProperties
from modscope._virtual.gpus import Board, find_gpu, rules_of
from modscope._virtual.ranks.network import seconds
from modscope._virtual.rules.rules import gpu_and_torch
from modscope._virtual.time.roofline import Roofline

import torch

GIB = 1 << 30


def test_what_is_known_of_a_gpu():
    gpu = modscope.gpus["rtx4090"]
    assert (gpu.name, gpu.title, gpu.label, gpu.capability) == (
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        "RTX 4090",
        (8, 9),
    )
    assert gpu.capacity == gpu.memory - gpu.context and 23 * GIB < gpu.capacity < gpu.memory < 24 * GIB
    assert all(name == each.name and each.capacity < each.memory for name, each in modscope.gpus.items())
    assert isinstance(gpu, modscope.Gpu)
    with pytest.raises(TypeError):
        modscope.gpus["mine"] = gpu


@pytest.mark.parametrize("name", modscope.gpus)
def test_the_figures_of_a_gpu_agree_with_each_other(name):
    gpu = modscope.gpus[name]
    assert gpu.speed.bandwidth * 1e9 == pytest.approx(2 * gpu.board.bus / 8 * gpu.board.memory_clock * 1e6, rel=0.005)
    assert gpu.speed.float32 <= gpu.speed.float16 <= gpu.speed.float8 or not gpu.speed.float8


def test_what_torch_says_and_how_long_operators_take_come_from_the_table():
    known = modscope.gpus["rtx4090"]
    other = known._replace(
        capability=(7, 5),
        speed=known.speed._replace(bandwidth=known.speed.bandwidth / 2),
        board=Board(5, 384, 7001, 1000),
        nvlink=100.0,
    )
    said = DeviceProperties(other)
    assert (said.L2_cache_size, said.memory_bus_width, said.memory_clock_rate) == (5 << 20, 384, 7_001_000)
    assert (said.clock_rate, said.max_threads_per_multi_processor) == (1_000_000, 1024)
    assert gpu_and_torch(other, "2.13").threads_per_processor == 1024
    tensor = torch.empty(1 << 28, device="meta")
    spec = (tensor.shape, tensor.stride(), tensor.dtype)
    times = [
        Roofline(gpu, gpu.speed).seconds(torch.ops.aten.neg.default, (tensor,), {}, spec) for gpu in (known, other)
    ]
    assert times[1] / times[0] == pytest.approx(2, rel=0.01)
    assert seconds(other, "send", 1 << 30, (0, 1), 8) < seconds(known, "send", 1 << 30, (0, 1), 8)


@pytest.mark.parametrize("name", ["rtx4090", "RTX 4090", "4090", "rtx_4090", "RTX-4090"])
def test_a_name_may_be_written_as_people_write_it(name):
    assert find_gpu(name) is modscope.gpus["rtx4090"]


@pytest.mark.parametrize(
    "text, memory", [("24GiB", 24 * GIB), ("16 GB", 16 * 10**9), ("1.5GiB", 3 * GIB // 2), (str(8 * GIB), 8 * GIB)]
)
def test_a_gpu_by_its_memory(text, memory):
    assert find_gpu(text).memory == memory


def test_wrong_names():
    with pytest.raises(
        ValueError,
        match=r"'rtx409' is not a GPU that is known \(did you mean rtx4090\?\): use one of t4, .*, or its memory "
        r"as 24GiB",
    ):
        find_gpu("rtx409")
    with pytest.raises(ValueError, match="a GPU of 24 is smaller than 1 GiB: give its memory as 24GiB"):
        find_gpu("24")


def test_gpus_of_one_generation_have_the_same_rules():
    same = [("h100", "h200"), ("a100", "a30"), ("rtx3090", "rtx4090"), ("t4", "v100-16gb")]
    assert all(rules_of(modscope.gpus[a]) == rules_of(modscope.gpus[b]) for a, b in same)
    other = [("a100", "rtx4090"), ("h100", "b200"), ("h100", "a100"), ("b200", "rtx5090")]
    assert all(rules_of(modscope.gpus[a]) != rules_of(modscope.gpus[b]) for a, b in other)
