"""What a script gets instead of compilers, process groups and kernels of its own."""

import json

import pytest
from predict_helpers import needs_virtual_gpu, predict, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]


def test_functions_run_uncompiled_where_that_is_asked_for(tmp_path):
    text = """
        @torch.compile
        def one(x):
            return x + 1
        @torch.compile(mode="max-autotune", fullgraph=True)
        def two(x):
            return x + 1
        net = torch.compile(net, dynamic=True)
        layer = nn.Linear(1024, 1024).cuda()
        layer.compile()
        print(type(net).__name__, isinstance(net._orig_mod, Net), sorted(net.state_dict())[0])
        one(two(torch.ones(3, device="cuda"))), layer(torch.ones(1, 1024, device="cuda"))
        for _ in range(9):
            step()
    """
    ran = predict(tmp_path, "--gpu", "h100", "--no-compile", training(tmp_path, text))
    assert ran.status == 0 and ran.out == "OptimizedModule True _orig_mod.down.bias\n"
    assert ran.said[2] == (
        "The program ran uncompiled, as --no-compile says. On the GPU a compiled one needs other memory, and less time."
    )


def test_a_process_group_has_one_rank(tmp_path):
    text = """
        import torch.distributed as dist
        dist.init_process_group("nccl", rank=3, world_size=8, init_method="tcp://10.0.0.1:1234")
        print(dist.get_rank(), dist.get_world_size())
        on_cpu, on_gpu = torch.ones(2), torch.ones(2, device="cuda")
        dist.all_reduce(on_cpu), dist.all_reduce(on_gpu), dist.barrier()
        print(on_cpu.tolist())
        weights = sum(p.numel() for p in net.parameters()) * 4
        before = torch.cuda.memory_allocated()
        net = nn.parallel.DistributedDataParallel(net, device_ids=[0])
        print(isinstance(net.module, Net), torch.cuda.memory_allocated() - before >= weights)
        net(torch.ones(1, 1024))
        with net.no_sync():
            net(torch.ones(1, 1024, device="cuda")).sum().backward()
        for _ in range(9):
            step()
    """
    ran = predict(tmp_path, "--gpu", "h100", "--json", "x.json", training(tmp_path, text), RANK="3", WORLD_SIZE="8")
    assert ran.status == 0 and ran.out.splitlines() == ["0 1", "[1.0, 1.0]", "True True"], ran.err
    sentence = "The process group has one rank instead of 8: what other ranks would hold or send is not predicted."
    assert json.loads((tmp_path / "x.json").read_text())["notes"] == [sentence] and sentence in ran.said


OPERATORS = """
    import torch
    @torch.library.custom_op("mine::known", mutates_args=(), device_types="cuda")
    def known(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the kernel ran")
    @known.register_fake
    def _(x):
        return x.new_empty(2 * x.shape[0])
    @torch.library.custom_op("mine::unknown", mutates_args=(), device_types="cuda")
    def unknown(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the kernel ran")
    library = torch.library.Library("other", "DEF")
    library.define("raw(Tensor x) -> Tensor")
    library.impl("raw", lambda x: 1 / 0, "CUDA")
    import flash_attn_2_cuda
    x = torch.empty(1000, device="cuda")
    print(known(x).shape)
    for kernel in (unknown, torch.ops.other.raw, flash_attn_2_cuda.fwd):
        try:
            kernel(x)
        except RuntimeError as error:
            print(error)
"""


def test_operators_of_extensions_need_a_fake_kernel(tmp_path):
    ran = predict(tmp_path, "--gpu", "h100", write(tmp_path, OPERATORS))
    first, *refused = ran.out.splitlines()
    assert first == "torch.Size([2000])"
    assert [line.split()[0] for line in refused] == ["mine::unknown", "other::raw", "flash_attn_2_cuda.fwd"]
    assert all(
        " is a CUDA kernel of an extension, and " in line and "torch.library.register_fake" in line for line in refused
    )


def test_triton_kernels_are_not_launched(tmp_path):
    """A kernel allocates nothing itself, so the memory is right."""
    (tmp_path / "triton" / "runtime").mkdir(parents=True)
    write(tmp_path, "", "triton/__init__.py")
    write(tmp_path, "", "triton/runtime/__init__.py")
    write(
        tmp_path,
        """
        class JITFunction:
            def __init__(self, fn):
                self.fn = fn
            def run(self, *args, **options):
                raise RuntimeError("0 active drivers")
            def __getitem__(self, grid):
                return lambda *args, **options: self.run(*args, grid=grid, **options)
        """,
        "triton/runtime/jit.py",
    )
    script = write(
        tmp_path,
        """
        import torch
        from triton.runtime.jit import JITFunction
        def add_kernel(a, b):
            pass
        add_kernel = JITFunction(add_kernel)
        x = torch.empty(1000, device="cuda")
        add_kernel[(1,)](x, x)
    """,
    )
    ran = predict(tmp_path, "--gpu", "h100", script)
    assert (
        ran.status == 0 and ran.said[2] == "Triton kernels were not launched (add_kernel): their time is not counted."
    )
