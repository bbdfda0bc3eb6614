"""The GPUs that are known, and those that are given by their memory. A small transformer trains on each, and what it
keeps and which kernel it takes is what that GPU, and that version of torch, would."""

from __future__ import annotations

import json
import pathlib

import modscope
import pytest
import warm_python
from modscope._virtual.device.properties import DeviceProperties, gpu_row
from modscope._virtual.gpus import Board, find_gpu, row_of, rules_of
from modscope._virtual.ranks.network import seconds
from modscope._virtual.rules.rules import gpu_and_torch
from modscope._virtual.time.roofline import Roofline
from virtual_helpers import needs_interception

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
        r"as 24GiB, or a JSON file that describes it",
    ):
        find_gpu("rtx409")
    with pytest.raises(ValueError, match="a GPU of 24 is smaller than 1 GiB: give its memory as 24GiB"):
        find_gpu("24")


def test_gpus_of_one_generation_have_the_same_rules():
    same = [("h100", "h200"), ("a100", "a30"), ("rtx3090", "rtx4090"), ("t4", "v100-16gb")]
    assert all(rules_of(modscope.gpus[a]) == rules_of(modscope.gpus[b]) for a, b in same)
    other = [("a100", "rtx4090"), ("h100", "b200"), ("h100", "a100"), ("b200", "rtx5090")]
    assert all(rules_of(modscope.gpus[a]) != rules_of(modscope.gpus[b]) for a, b in other)


# ---- other GPUs than an H200, and the rules of other versions of torch ----


MIB = 1 << 20


SMALL, LARGE = 8_519_680, 32 * MIB  # cuBLAS's workspace


PROGRAM = """
import sys, torch
from torch import nn
from modscope._virtual.device.device import VirtualDevice
from modscope._virtual.gpus import find_gpu
gpu, version, dtype = sys.argv[1], sys.argv[2], getattr(torch, sys.argv[3])
device = VirtualDevice(find_gpu(gpu), version)
device.install()

def attended(x):
    q, k, v = x.view(4, 128, 3, 8, 64).permute(2, 0, 3, 1, 4)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

model = nn.Sequential(nn.Linear(512, 1536), nn.Linear(512, 512)).cuda()
convolution = nn.Conv2d(3, 8, 3).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *convolution.parameters()])
for step in range(2):
    with torch.autocast("cuda", dtype=dtype):
        out = attended(model[0](torch.empty(4, 128, 512, device="cuda")))
        kernel = out.grad_fn.name()
        loss = model[1](out.transpose(1, 2).reshape(4, 128, 512)).float().square().mean()
        loss = loss + convolution(torch.empty(2, 3, 32, 32, device="cuda")).float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del out, loss
held = sum(t.untyped_storage().nbytes() for state in optimizer.state.values() for t in state.values() if t.is_cuda)
held += sum(p.untyped_storage().nbytes() for group in optimizer.param_groups for p in group["params"])
print(kernel, torch.cuda.memory_stats()["requested_bytes.all.current"] - held, torch.cuda.get_device_capability())
"""


def trained(gpu: str, version: str, dtype: str = "bfloat16") -> tuple[str, int]:
    """The kernel of attention, and the bytes that are kept beside parameters and the optimizer's state."""
    ran = warm_python.run(["-W", "ignore", "-c", PROGRAM, gpu, version, dtype])
    assert ran.returncode == 0, ran.stderr
    kernel, kept, *_ = ran.stdout.split()
    return kernel.removeprefix("ScaledDotProduct").removesuffix("Backward0"), int(kept)


@needs_interception
@pytest.mark.parametrize(
    ("gpu", "version", "kernel", "kept"),
    [
        ("t4", "2.11", "math", 2 * SMALL + MIB),
        ("rtx4090", "2.8", "FlashAttention", 2 * SMALL),
        ("a100", "2.13", "FlashAttention", 2 * SMALL),
        ("h100", "2.8", "FlashAttention", 2 * LARGE),
        ("h100", "2.11", "CudnnAttention", 2 * LARGE + MIB),
        ("b200", "2.11", "CudnnAttention", 2 * SMALL + MIB),
        ("b200", "2.13", "CudnnAttention", 2 * LARGE),
        ("rtx5090", "2.13", "FlashAttention", 2 * LARGE),
        ("h200", "2.15", "CudnnAttention", 0),
    ],
)
def test_bfloat16_trains_as_on_that_gpu(gpu: str, version: str, kernel: str, kept: int) -> None:
    chosen, bytes = trained(gpu, version)
    assert bytes == kept
    assert chosen == kernel if kernel != "math" else "ScaledDotProduct" not in chosen and "Attention" not in chosen


@needs_interception
def test_float16_on_a_turing_gpu_takes_the_memory_efficient_kernel() -> None:
    assert trained("t4", "2.11", "float16") == ("EfficientAttention", 2 * SMALL + MIB)


# ---- a GPU that a file describes ----


ROW = row_of(modscope.gpus["rtx4090"])


def described(folder: pathlib.Path, change: dict[str, object]) -> str:
    row = {key: value for key, value in {**ROW, **change}.items() if value != "absent"}
    (folder / "mine.json").write_text(json.dumps(row))
    return str(folder / "mine.json")


def test_a_gpu_by_a_file(tmp_path: pathlib.Path) -> None:
    name = described(tmp_path, {"memory": 20 * GIB, "title": "NVIDIA GeForce RTX 4070 Ti"})
    gpu = find_gpu(name)
    assert gpu == modscope.gpus["rtx4090"]._replace(
        name=name, memory=20 * GIB, title="NVIDIA GeForce RTX 4070 Ti", context=gpu.context
    )
    assert find_gpu(gpu.name) == gpu and gpu.label == "RTX 4070 Ti"
    plain = find_gpu(described(tmp_path, dict.fromkeys(("speed", "board", "nvlink", "network", "context"), "absent")))
    assert plain.speed is None and plain.capability == (8, 9)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"memory": "absent"}, "the file has no memory"),
        ({"memory": 12}, "memory must be a number from 1073741824 to 4398046511104, not 12"),
        ({"memory": True}, "memory must be a number from .*, not True"),
        ({"processors": "many"}, "processors must be a number from 1 to 1024, not 'many'"),
        ({"capability": 8.9}, r"capability must be two numbers, such as \[8, 9\]"),
        ({"capability": [8, 9, 1]}, r"capability must be two numbers, such as \[8, 9\]"),
        ({"title": ""}, "title must be the GPU's name, as torch gives it"),
        ({"cores": 5}, "the file has 'cores', which is none of name, title, memory"),
        ({"speed": {"float32": 80}}, "speed has no float64"),
        ({"speed": [1, 2]}, "speed must be an object with float64, float32"),
        ({"speed": {**ROW["speed"], "bandwidth": 9000}}, "bandwidth is 9000, and bus and memory_clock make 1008"),
        ({"memory": GIB, "context": 2 * GIB}, "context must be less than memory"),
    ],
)
def test_a_file_that_describes_no_gpu_says_why(tmp_path: pathlib.Path, change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"mine.json: {why}"):
        find_gpu(described(tmp_path, change))


def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="none.json: No such file or directory"):
        find_gpu(str(tmp_path / "none.json"))
    for content in (b"{", b"\xff\xfe", b"[" * 60_000, b""):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(ValueError, match="bad.json is not JSON"):
            find_gpu(str(tmp_path / "bad.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="list.json: the file must be an object with title, memory"):
        find_gpu(str(tmp_path / "list.json"))


def test_the_row_of_this_machine_s_gpu_is_what_a_file_describes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.cuda.is_available() or gpu_row() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: DeviceProperties(modscope.gpus["a100"]))
    (tmp_path / "mine.json").write_text(json.dumps(gpu_row()))
    found, known = find_gpu(str(tmp_path / "mine.json")), modscope.gpus["a100"]
    assert (found.title, found.memory, found.capability, found.processors, found.board) == (
        known.title, known.memory, known.capability, known.processors, known.board
    )  # fmt: skip
    assert found.speed is None
