"""Where a virtual GPU can be installed, and that nothing of it stays."""

from __future__ import annotations

import textwrap

import pytest
import warm_python
from helpers import run_python
from virtual_helpers import BEGIN, needs_interception, run, run_bare

import torch

REMOVED = """
        import modscope
        device.remove()
        places = (torch._C, torch.cuda, torch.cuda.streams, torch.cuda.graphs, torch.cuda.memory, torch.cuda.nvtx, torch.backends.cudnn.m,
                  torch.version, torch.UntypedStorage, torch.accelerator, torch.cuda.amp.common)
        def state():
            return [{name: id(value) for name, value in vars(place).items() if type(value) is not type(torch)} for place in places]
        def registered():
            names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
            return sorted(name for name in names if name.startswith("aten::")), [torch._C._dispatch_dump(name) for name in ("aten::add.Tensor", "aten::empty.memory_format", "aten::set_")]
        before, kernels = state(), registered()
        device = VirtualDevice(find_gpu("h100"))
        device.install()
        assert state() != before and registered() != kernels
        model = nn.Linear(3, 3).cuda()
        model(torch.ones(2, 3).pin_memory().cuda()).sum().backward()
        with torch.cuda.stream(torch.cuda.Stream()):
            outlives = torch.ones(1000, device="cuda")
        device.remove()
        assert state() == before
        assert registered() == kernels
"""


@needs_interception
def test_nothing_of_it_stays() -> None:
    run(
        REMOVED
        + """
        assert ("aten::add.Tensor" in kernels[0]) == torch.backends.cuda.is_built()
        refused = error(torch.ones, 1, device="cuda")
        assert torch.cuda.is_available() or refused.startswith(("AssertionError: Torch not compiled with CUDA", "RuntimeError: Found no NVIDIA", "AcceleratorError: CUDA error")), refused
        del outlives, model
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        optimizer = torch.optim.AdamW(model.parameters())
        with modscope.MemTracker() as tracker:
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        assert tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"] > 0
        assert torch.ones(3).untyped_storage().resize_(40).nbytes() == 40
    """
    )


@needs_interception
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_real_gpu_works_afterwards() -> None:
    run(
        REMOVED
        + """
        assert torch.cuda.is_available() and not torch.cuda.is_initialized()
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        loss = (x @ x).square().sum()
        loss.backward()
        assert loss.item() > 0 and x.grad.abs().sum().item() > 0
        assert torch.ones(4).pin_memory().is_pinned() and torch.cuda.memory_allocated() > 0
        generator = torch.Generator(device="cuda").manual_seed(3)
        assert torch.rand(3, device="cuda", generator=generator).sum().item() > 0
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = torch.ones(5, device="cuda") + 1
        stream.synchronize()
        assert y.tolist() == [2.0] * 5 and torch.cuda.get_device_properties(0).name
    """
    )


@needs_interception
def test_it_is_refused_after_a_backward_if_torch_cannot_start_a_thread_for_the_device() -> None:
    program = (
        "import torch; torch.ones(1, requires_grad=True).sum().backward()\n"
        "from modscope import _native\n"
        "from modscope._virtual.device.device import VirtualDevice; from modscope._virtual.gpus import find_gpu\n"
        "_native.virtual_start_backward_threads = lambda: False\n"
        "try: VirtualDevice(find_gpu('h100')).install()\n"
        "except RuntimeError as error: print(error)\n"
        "print(hasattr(torch._C, '_cuda_getDeviceCount') == torch.backends.cuda.is_built(), torch.ones(2).sum().item())"
    )
    out = run_bare(program)
    assert out[-1] == "True 2.0"
    if not torch.cuda.is_available():  # else autograd has counted a device, the real one
        assert out[0].startswith("a backward has run in this process")


@needs_interception
@pytest.mark.slow
def test_finalizers_may_use_it_while_the_interpreter_ends() -> None:
    """Python's modules are gone then, and torch cannot free Python objects of tensors that C++ has. Python 3.13 with
    torch 2.15 finalizes the second one neither here nor on the CPU."""
    ran = run_python(
        BEGIN.format(gpu="h100", version="2.13")
        + textwrap.dedent("""
        class Late:
            def __init__(self):
                self.x = torch.ones(4, device="cuda")

            def __del__(self):
                y = torch.ones(2, 4, device="cuda") + self.x.view(1, 4)
                z = nn.functional.linear(y, torch.cat([y, y])) * torch.ones(())
                print(z.device, list(z.cpu().shape), flush=True)

        sys.modules["late"] = Late()
        cycle = Late()
        cycle.itself = cycle
        """)
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout in ("cuda:0 [2, 4]\n" * 2, "cuda:0 [2, 4]\n")


@needs_interception
def test_a_torch_that_is_not_known_is_tried_in_another_process_first() -> None:
    program = (
        "import os, torch; from modscope._virtual.device import device; from modscope._virtual.gpus import find_gpu\n"
        "device._SEEN_TO_WORK = ('0.1',)\n"
        "virtual = device.VirtualDevice(find_gpu('h100'))\n"
        "test, device._test, this = device._test, lambda memory: os.abort() if os.getpid() != this else "
        "test(memory), os.getpid()\n"
        "try: virtual.install()\n"
        "except RuntimeError as error: print(error)\n"
        "device._test = test; virtual.install(); print(torch.ones(3, device='cuda').device); virtual.remove()\n"
        "virtual.install(); print(torch.ones(3, device='cuda').device); virtual.remove()\n"
        "print(torch.ones(2).sum().item())"
    )
    assert run_bare(program) == ["the process that tried it ended without an answer", "cuda:0", "cuda:0", "2.0"]


def test_it_is_refused_without_interception() -> None:
    program = (
        "from modscope._virtual.device.device import VirtualDevice; from modscope._virtual.gpus import find_gpu\n"
        "try: VirtualDevice(find_gpu('h100')).install()\n"
        "except RuntimeError as error: print(error)"
    )
    assert run_bare(program, MODSCOPE_INTERPOSE="0") == [
        "a virtual GPU needs modscope's interception: unset MODSCOPE_INTERPOSE"
    ]


@needs_interception
def test_doctor_says_whether_it_can_be_installed() -> None:
    def lines(**environment: str) -> str:
        return warm_python.run(["-m", "modscope", "doctor"], **environment).stdout

    assert "Virtual GPU:\n  cuda:0          can be installed\n" in lines()
    assert "cannot be installed: a virtual GPU needs modscope's interception: unset MODSCOPE_INTERPOSE" in lines(
        MODSCOPE_INTERPOSE="0"
    )
