"""The virtual device's time: rooflines by hand, the two clocks, and what captures show."""

from __future__ import annotations

import itertools
import textwrap

import modscope
import pytest
from modscope._virtual.gpus import GPUS, find_gpu
from modscope._virtual.time.roofline import KERNEL, Roofline
from virtual_helpers import needs_interception
from virtual_helpers import run as run_on_device

import torch

aten = torch.ops.aten


def roofline(name: str = "h100") -> Roofline:
    gpu = GPUS[name]
    assert gpu.speed is not None
    return Roofline(gpu, gpu.speed)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def spec(tensor: torch.Tensor) -> tuple[object, object, torch.dtype]:
    return (tensor.shape, tensor.stride(), tensor.dtype)


def specs(result: object) -> object:
    if isinstance(result, torch.Tensor):
        return spec(result)
    return [specs(item) for item in result] if isinstance(result, (list, tuple)) else result


def seconds(op, *args: object, gpu: str = "h100", **kwargs: object) -> float:
    return roofline(gpu).seconds(op, args, kwargs, specs(op(*args, **kwargs)))


# ---- rooflines ----


@pytest.mark.parametrize("dtype, peak", [(torch.bfloat16, 989.4e12), (torch.float16, 989.4e12), (torch.float32, 67e12)])
def test_a_large_product_takes_its_operations_at_most_of_the_peak(dtype: torch.dtype, peak: float) -> None:
    n = 8192
    took = seconds(aten.mm.default, meta(n, n, dtype=dtype), meta(n, n, dtype=dtype))
    assert 1.0 < took / (2 * n**3 / peak) < 1.6


def test_products_of_float32_take_tensor_cores_where_tf32_is_allowed() -> None:
    a = meta(4096, 4096)
    slow = seconds(aten.mm.default, a, a)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        fast = seconds(aten.mm.default, a, a)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert 4 < slow / fast < 8  # 67 and 494.7 TFLOP/s
    assert seconds(aten.mm.default, a, a, gpu="v100-16gb") == pytest.approx(2 * 4096**3 / 15.7e12, rel=0.6)


def test_a_product_of_one_row_takes_the_time_to_read_the_matrix() -> None:
    took = seconds(aten.mm.default, meta(1, 8192), meta(8192, 8192))
    assert took == pytest.approx(8192 * 8192 * 4 / 3.35e12, rel=0.4)


def test_an_elementwise_operator_takes_the_time_to_read_and_write() -> None:
    x = meta(1 << 28)
    assert seconds(aten.add.Tensor, x, x) == pytest.approx(3 * (4 << 28) / (3.35e12 * 0.8), rel=0.01)
    assert roofline().seconds(aten.relu_.default, (x,), {}, None) == pytest.approx(
        2 * (4 << 28) / (3.35e12 * 0.8), rel=0.01
    )
    assert roofline().seconds(aten.zero_.default, (x,), {}, None) == pytest.approx(
        (4 << 28) / (3.35e12 * 0.8), rel=0.01
    )


def test_what_an_expanded_tensor_repeats_is_read_once() -> None:
    row = meta(1 << 14)
    rows = meta(1 << 14, 1 << 14)
    expanded = row.expand(1 << 14, 1 << 14)
    assert seconds(aten.add.Tensor, rows, expanded) < 0.7 * seconds(aten.add.Tensor, rows, rows)


def test_views_take_no_time() -> None:
    assert seconds(aten.transpose.int, meta(64, 64), 0, 1) == 0
    assert seconds(aten.view.default, meta(64, 64), [4096]) == 0


def test_a_small_operator_takes_the_time_of_a_kernel() -> None:
    assert KERNEL <= seconds(aten.add.Tensor, meta(8), meta(8)) < 1.1 * KERNEL


def test_a_gather_reads_what_it_returns_and_not_the_whole_table() -> None:
    table, indices = meta(1_000_000, 1024), torch.zeros(64, dtype=torch.long, device="meta")
    assert seconds(aten.embedding.default, table, indices) < 2 * KERNEL


def test_an_operator_on_lists_takes_the_time_of_all_tensors_and_few_kernels() -> None:
    tensors = [meta(1 << 20) for _ in range(100)]
    took = roofline().seconds(aten._foreach_mul_.Scalar, (tensors, 2.0), {}, None)
    one = roofline().seconds(aten.mul_.Scalar, (tensors[0], 2.0), {}, None)
    assert 100 * 8 * (1 << 20) / 3.35e12 < took < 100 * one


def conv(x: torch.Tensor, weight: torch.Tensor, groups: int = 1, gpu: str = "h100") -> float:
    return seconds(aten.convolution.default, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, gpu=gpu)


def test_convolutions_use_tf32_unless_it_is_forbidden() -> None:
    x, weight = meta(64, 256, 56, 56), meta(256, 256, 3, 3)
    operations = 2 * 64 * 56 * 56 * 256 * 256 * 9
    assert 1 < conv(x, weight) / (operations / 494.7e12) < 3.5
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert 1 < conv(x, weight) / (operations / 67e12) < 1.7
    finally:
        torch.backends.cudnn.allow_tf32 = True


def test_channels_last_spares_a_convolution_its_copies() -> None:
    x, weight = meta(64, 64, 56, 56, dtype=torch.bfloat16), meta(64, 64, 3, 3, dtype=torch.bfloat16)
    last = conv(x.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last))
    assert last < 0.7 * conv(x, weight)


def test_a_depthwise_convolution_is_far_from_the_peak() -> None:
    x, weight = meta(64, 256, 56, 56), meta(256, 1, 3, 3)
    assert conv(x, weight, groups=256) > 10 * 2 * 64 * 56 * 56 * 256 * 9 / 67e12


def test_attention_takes_its_operations_and_causal_attention_about_half() -> None:
    q = meta(8, 32, 4096, 128, dtype=torch.bfloat16)
    op = aten._scaled_dot_product_flash_attention.default
    operations = 4 * 8 * 32 * 4096 * 4096 * 128
    full, causal = seconds(op, q, q, q, 0.0, False, False), seconds(op, q, q, q, 0.0, True, False)
    assert 2 < full / (operations / 989.4e12) < 5
    assert 0.5 <= causal / full < 0.6


def test_no_operator_is_faster_than_its_gpu() -> None:
    for name, dtype, (m, n, k) in itertools.product(
        ("t4", "a100", "h200"),
        (torch.float32, torch.float16),
        [(64, 64, 64), (4096, 768, 3072), (1, 4096, 4096), (8000, 10, 50)],
    ):
        speed = GPUS[name].speed
        assert speed is not None
        took = seconds(aten.mm.default, meta(m, k, dtype=dtype), meta(k, n, dtype=dtype), gpu=name)
        peak = (speed.float16 if dtype == torch.float16 else speed.float32) * 1e12
        bytes = (m * k + k * n + m * n) * dtype.itemsize
        assert took > max(2 * m * n * k / peak, bytes / (speed.bandwidth * 1e9))


def test_products_never_get_faster_as_they_grow() -> None:
    for m in (128, 1024, 4096):
        times = [seconds(aten.mm.default, meta(m, k), meta(k, 1024)) for k in (256, 1024, 4096, 16384)]
        assert times == sorted(times)


def test_every_gpu_has_a_speed_and_a_gpu_given_by_its_memory_has_none() -> None:
    assert all(gpu.speed is not None and gpu.speed.bandwidth > 0 and gpu.speed.float32 > 0 for gpu in GPUS.values())
    assert find_gpu("24GiB").speed is None


# ---- the clocks: programs in processes of their own ----


def run(program: str) -> list[str]:
    return run_on_device("from modscope._virtual.time import times\n" + textwrap.dedent(program))


@needs_interception
def test_the_host_runs_ahead_of_the_device_until_it_waits() -> None:
    out = run("""
        a = torch.zeros(8192, 8192, device="cuda")
        times.wait()
        began = times.now()
        a @ a
        host, device = _native.virtual_clock_read()
        print(host - began < 0.001, 0.015 < device - began < 0.03)
        torch.cuda.synchronize()
        host, device = _native.virtual_clock_read()
        print(host == device)
        a @ a
        (a.sum() * 2).item()
        host, device = _native.virtual_clock_read()
        print(host == device)
        a @ a
        a[0].cpu()
        host, device = _native.virtual_clock_read()
        print(host == device)
    """)
    assert out == ["True True", "True", "True", "True"]


@needs_interception
def test_many_small_operators_take_the_time_of_launching_them() -> None:
    out = run("""
        x = torch.zeros(8, device="cuda")
        times.wait()
        began = times.now()
        for _ in range(100):
            x = x + 1
        print(99 * times.HOST < times.now() - began < 105 * times.HOST)
    """)
    assert out == ["True"]


@needs_interception
def test_the_clock_does_not_go_back() -> None:
    out = run("""
        before = times.now()
        for seconds in (-1.0, float("nan"), float("inf"), 0.0):
            _native.virtual_clock_run(seconds, seconds)
        print(times.now() == before)
        _native.virtual_clock_run(0.0, 0.25)
        print(round(times.now() - before, 6))
        device.remove()
        print(times.now() - before >= 0.25)
        for wrong in ((), (1.0,), ("a", 1.0)):
            try:
                _native.virtual_clock_run(*wrong)
            except TypeError:
                print("refused")
    """)
    assert out == ["True", "0.25", "True", "refused", "refused", "refused"]


TRAIN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.big, self.norm = nn.Linear(4096, 4096), nn.Linear(4096, 16384), nn.LayerNorm(16384)
    def forward(self, x):
        return self.norm(self.big(self.small(x).relu()))

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.zeros(8192, 4096, device="cuda")
times.wait()
def step():
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_interception
def test_a_capture_has_the_predicted_times_of_modules_and_phases(tmp_path) -> None:
    path = tmp_path / "x.msc"
    (took,) = run(
        TRAIN
        + f"""
import modscope
with modscope.record({str(path)!r}):
    began = times.now()
    for _ in range(3):
        step()
    print(times.now() - began)
"""
    )
    capture = modscope.load(path)
    assert capture.duration == pytest.approx(float(took), abs=1e-5)
    own, total = capture.times_by_module(), capture.times_by_module(children=True)
    assert sum(sum(phases.values()) for phases in own.values()) == pytest.approx(capture.duration, abs=1e-5)
    for phase in ("forward", "backward"):
        below = [own[f"Net.{name}"][phase] for name in ("small", "big", "norm")] + [own["Net"][phase]]
        assert total["Net"][phase] == pytest.approx(sum(below), abs=1e-9)
        assert total["Net"][phase] == pytest.approx(capture.phases[phase].time, abs=1e-5)
    product = 2 * 8192 * 4096 * 16384 / 67e12  # of Net.big, without tensor cores
    assert 1 < own["Net.big"]["forward"] / (3 * product) < 1.5
    assert 1 < own["Net.big"]["backward"] / (3 * 2 * product) < 1.5
    small = own["Net.small"]  # the input needs no gradient: one product forward, one backward
    assert small["backward"] == pytest.approx(small["forward"], rel=0.1)
    assert 0 < capture.phases["optimizer"].time < 0.1 * capture.duration
    steps = [step.end - step.begin for step in capture.steps() if step.number]
    assert steps[1] == pytest.approx(steps[2], rel=0.01)


@needs_interception
def test_a_capture_after_the_device_is_removed_has_the_real_time(tmp_path) -> None:
    path = tmp_path / "x.msc"
    run(f"""
        import modscope, time
        device.remove()
        with modscope.record({str(path)!r}):
            time.sleep(0.05)
            torch.ones(10)
    """)
    assert 0.05 <= modscope.load(path).duration < 300


@needs_interception
def test_what_a_checkpoint_computes_again_costs_the_host_as_much_as_forward() -> None:
    out = run("""
        from torch.utils.checkpoint import checkpoint
        layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(50)]).cuda()
        x = torch.zeros(4, 8, device="cuda", requires_grad=True)
        def took(loss):
            times.wait()
            began = times.now()
            loss.backward()
            times.wait()
            return times.now() - began
        layers(x).sum().backward()
        plain, again = took(layers(x).sum()), took(checkpoint(layers, x, use_reentrant=False).sum())
        times.wait(); began = times.now(); layers(x); times.wait()
        print(0.9 < (again - plain) / (times.now() - began) < 1.1)
    """)
    assert out == ["True"]
