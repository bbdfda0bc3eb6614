"""Compiled programs: what torch.compile compiles for the virtual GPU, and what is said of it."""

import importlib.util
import json
import os
import types

import pytest
import warm_python
from predict_helpers import needs_virtual_gpu, predict, write

pytestmark = [
    pytest.mark.slow,
    needs_virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Inductor generates code for Triton"),
]

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)
        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x))))
    net = nn.Sequential(*[Block() for _ in range(3)]).cuda()
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    def train(function, steps=3, batch=4096):
        for _ in range(steps):
            function(torch.ones(batch, 512, device="cuda")).square().mean().backward()
            opt.step()
            opt.zero_grad()
"""


def run(folder, text, *options, **environment):
    """What came of a script, and its result."""
    script = write(folder, MODEL + text)
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), **environment}
    ran = predict(
        folder, "--gpu", "h100", "--json", "x.json", "--steps", "99", "--seconds", "0", *options, script, **environment
    )
    return ran, json.loads((folder / "x.json").read_text())


# This test comes first, before the process that forks its program has imported Inductor.
def test_without_triton_the_program_runs_uncompiled_and_says_how_to_compile_it(tmp_path):
    text = """
    train(torch.compile(net), 2)
    print(type(torch.compile(net)).__name__)
    """
    (tmp_path / "hide.py").write_text("")
    hide = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'triton' else f(n, *a)"
    )
    write(tmp_path, hide + MODEL.replace("\n    ", "\n") + text.replace("\n    ", "\n"))
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = predict(
        tmp_path, "--gpu", "h100", "--json", "x.json", "--steps", "99", "--seconds", "0", "script.py", **environment
    )
    assert ran.status == 0 and ran.out == "OptimizedModule\n", ran.err
    why = json.loads((tmp_path / "x.json").read_text())["compiled"]["why_uncompiled"]
    assert "pip install triton" in why and any("uncompiled, it fits" in line for line in ran.said)


@pytest.fixture(scope="module")
def inductor():
    warm_python.import_first("torch._inductor.compile_fx")


@pytest.mark.usefixtures("inductor")
def test_a_compiled_model_takes_what_its_generated_code_allocates(tmp_path):
    text = """
    train(torch.compile(net))
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0, ran.err
    assert result["compiled"] == {
        "graphs": 1,
        "uncompiled_graphs": 0,
        "graph_breaks": [],
        "recompiles": 0,
        "why_uncompiled": None,
    }
    assert "compiled: 1 graph." in ran.said and "uncompiled" not in ran.err
    again, same = run(tmp_path, text)  # with a warm cache
    assert (same["allocated_peak"], same["reserved_peak"]) == (result["allocated_peak"], result["reserved_peak"])
    uncompiled, other = run(tmp_path, text, "--no-compile")
    assert other["compiled"]["why_uncompiled"] == "The program ran uncompiled, as --no-compile says."
    assert any("uncompiled, it fits" in line for line in uncompiled.said)
    assert other["allocated_peak"] > result["allocated_peak"]
    assert (tmp_path / "cache" / "modscope" / "compiled").is_dir()


def test_cuda_graphs_keep_the_memory_of_activations_in_their_pool(tmp_path):
    text = """
    def in_pools():
        torch.cuda.empty_cache()
        return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0))
    for mode in (None, "reduce-overhead"):
        function = torch.compile(net, mode=mode)
        train(function, 4)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        train(function, 1)
        print(mode, in_pools() >> 20, torch.cuda.memory_stats()["allocation.all.allocated"] - before)
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0, ran.err
    (_, without, plain), (_, kept, replayed) = (line.split() for line in ran.out.splitlines())
    assert int(without) == 0 and int(kept) > 100  # MiB of activations
    assert 0 < int(replayed) < int(plain)
    assert result["compiled"]["graphs"] == 2


def test_graph_breaks_and_recompiles_are_counted_and_errors_are_the_programs_own(tmp_path):
    text = """
    @torch.compile
    def broken(x):
        y = net(x)
        print("in between")
        return y + 1
    train(broken, 1)
    grown = torch.compile(lambda x: F.relu(x) + 1)
    for size in (3, 5, 7):
        grown(torch.ones(size, 4, device="cuda"))
    @torch.compile(fullgraph=True)
    def whole(x):
        print("here")
        return x
    try:
        whole(torch.ones(3, device="cuda"))
    except torch._dynamo.exc.Unsupported:
        print("unsupported, as on a GPU")
    @torch.compile
    def fails(x):
        raise ValueError("mine")
    fails(torch.ones(3, device="cuda"))
    """
    ran, result = run(tmp_path, text)
    assert ran.out.splitlines() == ["in between", "unsupported, as on a GPU"]
    assert ran.status == 1 and "ValueError: mine" in ran.err
    compiled = result["compiled"]
    line = next(
        i for i, line in enumerate((tmp_path / "script.py").read_text().splitlines(), 1) if "in between" in line
    )
    places = {(os.path.basename(each["file"]), each["line"]) for each in compiled["graph_breaks"]}
    assert ("script.py", line) in places
    assert compiled["recompiles"] == 1 and compiled["uncompiled_graphs"] == 0
    assert any(f" at script.py:{line}" in said and "1 recompile" in said for said in ran.said), ran.err


def test_other_ways_to_compile(tmp_path):
    text = """
    torch.compile(nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.1)).cuda(), mode="max-autotune")(
        torch.ones(4, 512, device="cuda")
    ).sum().backward()
    sizes = []
    def mine(graph, inputs):
        sizes.append(len(inputs))
        return graph.forward
    torch.compile(lambda x: x + 1, backend=mine)(torch.ones(3, device="cuda"))
    torch.compile(lambda x: x * 2, backend="aot_eager")(torch.ones(3, device="cuda"))
    print(sizes)
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0 and ran.out == "[1]\n", ran.err
    assert result["compiled"]["uncompiled_graphs"] == 0 and result["compiled"]["why_uncompiled"] is None
    assert result["compiled"]["graphs"] == 3
    assert any("compiled with max-autotune, and taken to use the kernels" in note for note in result["notes"])


def test_what_was_assumed_is_said_of_graphs_that_come_from_the_cache(tmp_path, monkeypatch):
    from modscope._virtual.compiled import assumed

    monkeypatch.setattr(assumed.caches, "folder", lambda: str(tmp_path))
    graph = types.SimpleNamespace(_fx_graph_cache_key="key")
    first, second = assumed.Assumptions(), assumed.Assumptions()
    first.begin()
    first.add(padded=2)
    first.add(autotuned=1)
    first.end(graph)
    for _ in range(2):
        first.count(graph)
    second.begin()  # it comes from the cache
    second.end(graph)
    second.count(graph)
    assert first.notes() == second.notes() and "pad 2 matrix products" in first.notes()[0]
    assert first.notes()[1].startswith("1 graph was compiled with max-autotune")


def test_a_graph_that_inductor_cannot_compile_runs_operator_by_operator(tmp_path):
    text = """
    from torch._inductor import lowering
    def refuse(*args, **options):
        raise RuntimeError("cannot lower this")
    for overload in list(lowering.lowerings):
        if "erfinv" in str(overload):
            lowering.lowerings[overload] = refuse
    torch.compile(lambda x: torch.erfinv(x))(torch.ones(1024, device="cuda"))
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0, ran.err
    assert result["compiled"]["uncompiled_graphs"] == 1 and "cannot lower this" in result["compiled"]["why_uncompiled"]
    assert any("1 graph ran uncompiled, as Inductor failed" in line for line in ran.said)


def test_torch_is_as_found_afterwards_and_compiles_for_real(tmp_path):
    program = """
    import os, torch, modscope
    from torch._inductor import config
    from torch._inductor.runtime import cache_dir_utils, triton_heuristics
    before = (torch.compile, cache_dir_utils.cache_dir, triton_heuristics.CachingAutotuner.run, config.compile_threads,
              dict(os.environ), torch._C._dynamo.guards._empty_strided_cuda)
    @torch.compile
    def function(x):
        return (x * 2 + 1).sum(-1)
    with modscope.virtual_gpu("h100") as gpu:
        assert function(torch.ones(3, 4, device="cuda")).shape == (3,)
    assert gpu.result["compiled"]["graphs"] == 1 and gpu.result["compiled"]["why_uncompiled"] is None
    after = (torch.compile, cache_dir_utils.cache_dir, triton_heuristics.CachingAutotuner.run, config.compile_threads,
             dict(os.environ), torch._C._dynamo.guards._empty_strided_cuda)
    assert before == after, (before, after)
    assert function(torch.ones(3, 4)).tolist() == [12.0, 12.0, 12.0]
    with modscope.virtual_gpu("a100") as gpu:
        assert function(torch.ones(3, 4, device="cuda")).shape == (3,)
    assert gpu.result["compiled"]["graphs"] == 1
    """
    write(tmp_path, program)
    folders = {"XDG_CACHE_HOME": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "theirs")}
    ran = warm_python.run(["-W", "ignore", "script.py"], tmp_path, **folders)
    assert ran.returncode == 0, ran.stderr
    generated = [path.read_text() for path in (tmp_path / "theirs").rglob("*.py")]
    assert generated and not any("triton_heuristics" in text for text in generated)
    assert any("triton_heuristics" in path.read_text() for path in (tmp_path / "ours").rglob("*.py"))


def test_compiled_programs_of_several_ranks(tmp_path):
    text = """
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    train(torch.compile(nn.parallel.DistributedDataParallel(net, device_ids=[dist.get_rank()])), 2)
    net = nn.Sequential(*[Block() for _ in range(3)]).cuda()
    for block in net:
        block.compile()
        fully_shard(block)
    opt = torch.optim.AdamW(fully_shard(net).parameters())
    train(net, 2)
    """
    for _ in range(2):  # with a warm cache torch does more with its process groups
        ran, result = run(tmp_path, text, "--ranks", "4", "-f", "-o", "x.msc")
        assert ran.status == 0, ran.err
        assert result["compiled"]["uncompiled_graphs"] == 0 and result["compiled"]["graphs"] >= 2
        assert not result["compiled"]["graph_breaks"]


def test_bodies_of_custom_operators_run(tmp_path):
    text = """
    def other_strides(x):
        return torch.empty(x.shape[1], x.shape[0], device=x.device).t()
    @torch.library.custom_op("mine::allocates", mutates_args=())
    def allocates(x: torch.Tensor) -> torch.Tensor:
        beside = torch.empty(64 << 20, dtype=torch.uint8, device=x.device)
        return other_strides(x)
    @torch.library.custom_op("mine::cannot", mutates_args=())
    def cannot(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no driver")
    for operator in (allocates, cannot):
        operator.register_fake(torch.empty_like)
    x = torch.ones(256, 128, device="cuda")
    before = torch.cuda.memory_allocated()
    y = torch.compile(lambda x: allocates(x + 1))(x)
    print(torch.cuda.max_memory_allocated() - before >= 64 << 20, y.stride())
    print(cannot(x).shape == x.shape)
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0 and ran.out == "True (128, 1)\nTrue\n", ran.err
    assert [note for note in result["notes"] if "fake kernel" in note] == [
        "The fake kernel of a custom operator ran (mine::cannot), as the body cannot run here (RuntimeError: no driver): "
        "what bodies allocate beside their results is not counted."
    ]


def test_random_operators_in_what_is_computed_again(tmp_path):
    text = """
    from torch.utils.checkpoint import checkpoint
    heads = torch.ones(1, 2, 64, 64, device="cuda", requires_grad=True)
    attention = lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
    torch.compile(lambda x: checkpoint(attention, x, use_reentrant=False))(heads).sum().backward()
    print(heads.grad.shape)
    """
    ran, result = run(tmp_path, text)
    assert ran.status == 0 and ran.out == "torch.Size([1, 2, 64, 64])\n", ran.err
    assert result["compiled"]["uncompiled_graphs"] == 0
