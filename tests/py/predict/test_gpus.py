"""The GPUs that are known, and those that are given by their memory."""

import pytest

import modscope
from modscope._virtual.gpus import find_gpu, rules_of

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
        match=r"'rtx409' is not a GPU that is known \(did you mean rtx4090\?\): use one of t4, .*, or its memory as 24GiB",
    ):
        find_gpu("rtx409")
    with pytest.raises(ValueError, match="a GPU of 24 is smaller than 1 GiB: give its memory as 24GiB"):
        find_gpu("24")


def test_gpus_of_one_generation_have_the_same_rules():
    same = [("h100", "h200"), ("a100", "a30"), ("rtx3090", "rtx4090"), ("t4", "v100-16gb")]
    assert all(rules_of(modscope.gpus[a]) == rules_of(modscope.gpus[b]) for a, b in same)
    other = [("a100", "rtx4090"), ("h100", "b200"), ("h100", "a100"), ("b200", "rtx5090")]
    assert all(rules_of(modscope.gpus[a]) != rules_of(modscope.gpus[b]) for a, b in other)
