"""What a virtual GPU counts while generated code runs is what that code asks for: it is executed a second time, on meta
tensors whose storages are counted here, and at each of its allocations both have the same bytes."""

import ast
import functools
import gc
import importlib.util
import itertools
import math
import re

import modscope
import pytest
from predict_helpers import needs_virtual_gpu
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = [
    pytest.mark.slow,
    needs_virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Inductor generates code for Triton"),
]


class Block(nn.Module):
    def __init__(self, heads=2, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + functional.dropout(self.out(attended.transpose(1, 2).flatten(2)), self.dropout)
        return x + self.down(functional.gelu(self.up(x)))


# ---- what the virtual GPU counts ----


def requested():
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


class Run:
    """An execution of a generated function on the virtual GPU."""

    def __init__(self, path, args):
        self.path = path
        self.args = [
            (
                each.untyped_storage().data_ptr(),
                each.untyped_storage().nbytes(),
                each.dtype,
                each.shape,
                each.stride(),
                each.storage_offset(),
            )
            if isinstance(each, torch.Tensor) and each.is_cuda
            else each.to("meta")
            if isinstance(each, torch.Tensor)
            else each
            for each in args
        ]
        self.before, self.live = requested(), []
        self.storages = {
            each.untyped_storage().data_ptr(): StorageWeakRef(each.untyped_storage())
            for each in args
            if isinstance(each, torch.Tensor) and each.is_cuda
        }
        self.held = set()
        """Addresses of arguments that are alive afterwards, too."""


class Watch:
    def __init__(self, monkeypatch):
        from torch._inductor.codecache import PyCodeCache

        self.runs, self.running = [], []
        load = PyCodeCache.load_by_key_path.__func__

        def load_by_key_path(cls, key, path, *args, **options):
            module = load(cls, key, path, *args, **options)
            if hasattr(module, "call") and not hasattr(module, "watched"):
                module.watched, module.call = True, self.watching(module.call, path)
            return module

        monkeypatch.setattr(PyCodeCache, "load_by_key_path", classmethod(load_by_key_path))

    def watch_allocations(self, monkeypatch):
        guards = torch._C._dynamo.guards
        allocate = guards._empty_strided_cuda

        def empty_strided(size, stride, dtype):
            made = allocate(size, stride, dtype)
            if self.running:
                self.running[-1].live.append(requested())
            return made

        monkeypatch.setattr(guards, "_empty_strided_cuda", empty_strided)

    def watching(self, call, path):
        def run(args):
            self.running.append(Run(path, args))
            try:
                return call(args)
            finally:
                ended = self.running.pop()
                ended.held = {address for address, storage in ended.storages.items() if not storage.expired()}
                ended.storages.clear()
                self.runs.append(ended)

        return run


# ---- the second execution ----


class Storage:
    """Memory, as long as something refers to it."""

    live = 0

    def __init__(self, size):
        self.size = size
        Storage.live += size

    def __del__(self):
        Storage.live -= self.size


class Mock:
    """A tensor on the meta device, with its memory."""

    def __init__(self, meta, storage=None):
        self.meta = meta
        self.storage = storage or Storage(meta.untyped_storage().nbytes())

    def __getattr__(self, name):
        value = getattr(self.meta, name)
        return calling(value, self) if callable(value) else value

    def __getitem__(self, index):
        return wrapped(self.meta[index], [self])


def mocks(value):
    if isinstance(value, Mock):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from mocks(each)


def unwrapped(value):
    if isinstance(value, (list, tuple)):
        return type(value)(unwrapped(each) for each in value)
    return value.meta if isinstance(value, Mock) else value


def wrapped(value, inputs, has_seeds_on_cpu=False):
    if isinstance(value, (list, tuple)):
        return [wrapped(each, inputs, has_seeds_on_cpu) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    same = [each for each in inputs if each.meta.untyped_storage()._cdata == value.untyped_storage()._cdata]
    is_on_cpu = has_seeds_on_cpu and not value.dtype.is_floating_point
    return Mock(value, same[0].storage if same else Storage(0) if is_on_cpu else None)


def calling(function, *first):
    """A function of torch for mocks."""

    def call(*args, **options):
        inputs = [*mocks([*first, *args, *options.values()])]
        if "out" in options:
            return options["out"]
        if "rng_state" in options:  # another operator runs with this state
            del options["rng_state"]
            return args[0](*args[1:], **options)
        options = {name: unwrapped(value) for name, value in options.items()}
        # Attention that drops nothing has seeds on the CPU, but those of cuDNN.
        has_seeds_on_cpu = re.search("dot_product_(flash|efficient)", str(function)) is not None
        return wrapped(function(*unwrapped(args), **options), inputs, has_seeds_on_cpu)

    return call


class Nothing:
    """Does nothing, whatever is asked of it."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args, **options):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


class Operators:
    """torch.ops, or a part of it."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        real = getattr(self._real, name)
        return calling(real) if isinstance(real, torch._ops.OpOverload) else Operators(real)

    def __call__(self, *args, **options):
        return calling(self._real)(*args, **options)


class Torch:
    ops, cuda = Operators(torch.ops), Nothing()

    def __getattr__(self, name):
        return getattr(torch, name)


class Names(dict):
    def __missing__(self, name):
        if name.startswith(("triton_", "cpp_", "assert_")):
            return Nothing()
        raise KeyError(name)


def execute_again(run):
    """The bytes at each allocation of the function, above those when it began."""
    with open(run.path) as file:
        tree = ast.parse(file.read())
    tree.body = [
        each
        for each in tree.body
        if (isinstance(each, ast.ClassDef) and each.name == "Runner")
        or (
            isinstance(each, ast.FunctionDef)
            and not each.decorator_list
            and each.name.startswith(("call", "partition"))
        )
    ]
    live = []

    def empty_strided(size, stride, dtype):
        made = Mock(torch.empty_strided(size, stride, dtype=dtype, device="meta"))
        live.append(Storage.live)
        return made

    def reinterpret(mock, size, stride, offset):
        return Mock(mock.meta.as_strided(size, stride, mock.meta.storage_offset() + offset), mock.storage)

    names = Names(
        torch=Torch(),
        aten=Operators(torch.ops.aten),
        extern_kernels=Operators(torch.ops.aten),
        inductor_ops=Operators(torch.ops.inductor),
        empty_strided_cuda=empty_strided,
        reinterpret_tensor=reinterpret,
        copy_if_misaligned=lambda mock: mock,
        assert_size_stride=lambda *unused: None,
        assert_alignment=lambda *unused: None,
        get_raw_stream=lambda device: 0,
        device=torch.device,
        math=math,
    )
    exec(compile(tree, run.path, "exec"), names)
    storages, kept, args = {}, [], []
    for each in run.args:
        if not isinstance(each, tuple):
            args.append(each)
            continue
        address, size, dtype, shape, stride, offset = each
        storage = storages.setdefault(address, None) or Storage(size)
        storages[address] = storage
        if address in run.held:
            kept.append(storage)
        room = torch.empty(size // dtype.itemsize, dtype=dtype, device="meta")
        args.append(Mock(room.as_strided(shape, stride, offset), storage))
    del storages, storage
    before = Storage.live
    results = names["Runner"]([names[f"partition_{i}"] for i in range(99) if f"partition_{i}" in dict(names)]).call(
        args
    )
    del results
    return [bytes - before for bytes in live]


# ---- programs ----


def loss(function, x):
    function(x).float().square().mean().backward()


def heads(x):
    return x.view(8, 32, 2, 32).transpose(1, 2)


def in_blocks(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def broken(linear, x):
    x = linear(x).relu()
    torch._dynamo.graph_break()
    return linear(x).sigmoid()


def programs():
    """A name, modules, and a step."""
    x = torch.ones(8, 32, 64, device="cuda")
    mlp = nn.Sequential(nn.Linear(64, 200), nn.GELU(), nn.Linear(200, 64), nn.LayerNorm(64)).cuda()
    yield "whole model", mlp, functools.partial(loss, torch.compile(mlp), x)
    blocks = nn.ModuleList(Block() for _ in range(2)).cuda()
    for block in blocks:
        block.compile()
    yield "blocks", blocks, functools.partial(loss, functools.partial(in_blocks, blocks), x)
    dropping = Block(dropout=0.1).cuda()

    @torch.compile
    def mixed(x):
        with torch.autocast("cuda", torch.bfloat16):
            return checkpoint(dropping, x, use_reentrant=False)

    yield "checkpoint, autocast and dropout inside", dropping, functools.partial(loss, mixed, x)
    linear = nn.Linear(64, 64).cuda()
    yield "graph break", linear, functools.partial(loss, torch.compile(functools.partial(broken, linear)), x)
    grown = torch.compile(nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.LayerNorm(96)).cuda(), dynamic=True)
    sizes = itertools.count(16, 5)
    yield "other shapes", grown, lambda: loss(grown, torch.ones(next(sizes), 64, device="cuda"))
    images = torch.ones(4, 3, 32, 32, device="cuda")
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)).cuda()
    yield "convolutions", convolutions, functools.partial(loss, torch.compile(convolutions), images)
    attention = torch.compile(lambda x: flex_attention(heads(x), heads(x), heads(x)))
    query = nn.Linear(64, 64).cuda()
    yield "FlexAttention", query, functools.partial(loss, lambda x: attention(query(x)), x)
    saving = nn.Sequential(Block(), Block()).cuda()

    def with_budget():
        with torch._functorch.config.patch(activation_memory_budget=0.3):
            loss(save, x)

    save = torch.compile(saving)
    yield "activation budget", saving, with_budget
    words = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 500)).cuda()
    tokens = torch.zeros(8, 32, dtype=torch.int64, device="cuda")
    predict_words = torch.compile(lambda x: functional.cross_entropy(words(x).flatten(0, 1), x.flatten()))
    yield "losses", words, lambda: predict_words(tokens).backward()
    stepped = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(stepped.parameters())
    update = torch.compile(optimizer.step)

    def train():
        loss(stepped, x)
        update()

    yield "optimizer", stepped, train


def test_generated_code_takes_what_it_asks_for(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patched, modscope.virtual_gpu("h100"):
        torch.compile(lambda x: x + 1)(torch.ones(3, device="cuda"))  # replaces what allocates
        watch = Watch(patched)
        watch.watch_allocations(patched)
        counted = {}
        for name, model, train in programs():
            train()  # compiles, and takes cuBLAS's workspace
            model.zero_grad()
            watch.runs.clear()
            gc.collect()
            gc.disable()  # garbage of the first step must not be freed within a run
            try:
                train()
            finally:
                gc.enable()
            runs, watch.runs = watch.runs, []
            for run in runs:
                assert [bytes - run.before for bytes in run.live] == execute_again(run), (name, run.path)
            counted[name] = len(runs), sum(len(run.live) for run in runs)
    functions = {name: count[0] for name, count in counted.items()}
    assert functions == {
        "whole model": 2,
        "blocks": 4,
        "checkpoint, autocast and dropout inside": 2,
        "graph break": 4,
        "other shapes": 2,
        "convolutions": 2,
        "FlexAttention": 2,
        "activation budget": 2,
        "losses": 2,
        "optimizer": 1,
    }
    assert sum(count[1] for count in counted.values()) > 150
