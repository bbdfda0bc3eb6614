"""On a GPU: Total and its peak equal torch.cuda.memory_stats() to the byte, after every operation, as differences
since the tracker was entered."""

import gc
import threading

import pytest
from helpers import Boom, make, mlp, needs_interception
from memory_helpers import SOURCES, every_source, now, of_module, reading, wrong_sums
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

ALLOCATED = "allocated_bytes.all"


def device():
    return torch.device("cuda", torch.cuda.current_device())


def rounded(*tensors):
    """The bytes that the caching allocator reserves for them: multiples of 512, each storage once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(-(-size // 512) * 512 for size in storages.values())


@pytest.fixture(autouse=True)
def workspaces():
    """cuBLAS and cuDNN allocate their workspaces at first use and keep them."""
    with torch.no_grad():
        nn.Linear(8, 8, device="cuda")(torch.zeros(1, 8, device="cuda"))
    gc.collect()
    torch.cuda.synchronize()


class Beside:
    """An active tracker and torch's statistics; both must be equal at every mark."""

    def __init__(self, *known):
        self.mt = MemTracker("allocator")
        self.mt.track_external(*known)
        self.wrong, self.marks = [], 0

    def __enter__(self):
        gc.collect()
        self.mt.__enter__()
        torch.cuda.reset_peak_memory_stats()
        self.mt.reset_peak()
        stats = torch.cuda.memory_stats()
        self.allocated, self.held = stats[f"{ALLOCATED}.current"], now(self.mt, device=device())
        return self

    def mark(self, where=""):
        stats = torch.cuda.memory_stats()
        expected = [stats[f"{ALLOCATED}.{when}"] - self.allocated for when in ("current", "peak")]
        ours = [reading(self.mt, when, device())["Total"] - self.held for when in ("current", "peak")]
        self.marks += 1
        if expected != ours:
            self.wrong.append((self.marks, where, expected, ours))
        self.wrong += wrong_sums(self.mt)

    def __exit__(self, *exc):
        self.mark("end")
        self.mt.__exit__(*exc)
        if exc[0] is None:
            assert self.marks > 1 and self.wrong == []


def training(beside, mod, x, opt, steps=3, forward=None):
    for _ in range(steps):
        out = mod(x) if forward is None else forward(x)
        beside.mark("forward")
        loss = out.float().square().mean()
        loss.backward()
        beside.mark("backward")
        del out, loss
        opt.step()
        beside.mark("step")
        opt.zero_grad()
        beside.mark("zero")


@needs_interception
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_adam(options):
    mod, x = mlp(4, 256).cuda(), torch.randn(32, 256, device="cuda")
    opt = torch.optim.Adam(mod.parameters(), **options)
    with Beside(mod, opt, x) as beside:
        training(beside, mod, x, opt)


@needs_interception
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    blocks = nn.ModuleList(mlp(2, 128) for _ in range(4))

    def body(m, x):
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    mod = make("Deep", body, blocks=blocks).cuda()
    x = torch.randn(64, 128, device="cuda", requires_grad=True)
    opt = torch.optim.Adam(mod.parameters())
    with Beside(mod, opt, x) as beside:
        training(beside, mod, x, opt)
        x.grad = None


@needs_interception
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    mod, x = mlp(4, 128).cuda(), torch.randn(64, 128, device="cuda")
    opt = torch.optim.Adam(mod.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    with Beside(mod, opt, x) as beside:
        for _ in range(3):
            with torch.autocast("cuda", dtype=dtype):
                loss = mod(x).square().mean()
            beside.mark("forward")
            scaler.scale(loss).backward()
            beside.mark("backward")
            scaler.step(opt)
            scaler.update()
            beside.mark("step")
            opt.zero_grad()
            del loss


@needs_interception
@pytest.mark.parametrize("cudnn_benchmark", [False, True])
def test_convolutions_with_workspaces(cudnn_benchmark):
    first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True))
    mod = nn.Sequential(first, nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.MaxPool2d(2)).cuda()
    x = torch.randn(8, 3, 64, 64, device="cuda")
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    # Not set permanently: torch's own test helpers forbid that once they are imported.
    with torch.backends.cudnn.flags(benchmark=cudnn_benchmark), Beside(mod, opt, x) as beside:
        training(beside, mod, x, opt)


@needs_interception
def test_attention():
    mod = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).cuda()
    x = torch.randn(8, 32, 128, device="cuda")
    opt = torch.optim.AdamW(mod.parameters())
    with Beside(mod, opt, x) as beside:
        training(beside, mod, x, opt)


@needs_interception
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_without_gradients(without):
    mod, x = mlp(4, 128).cuda().eval(), torch.randn(64, 128, device="cuda")
    with Beside(mod, x) as beside, without():
        for _ in range(3):
            out = mod(x)
            beside.mark()
        del out


@needs_interception
def test_in_place_resizing_and_views():
    with Beside() as beside:
        t = torch.empty(1000, device="cuda")
        beside.mark("made")
        t.resize_(100_000)
        beside.mark("resized")
        t.untyped_storage().resize_(0)
        beside.mark("emptied")
        t.untyped_storage().resize_(4000)
        beside.mark("filled")
        view = t[:10].view(2, 5).t()
        del t
        beside.mark("a view")
        del view
        beside.mark("gone")


@needs_interception
def test_two_streams():
    mod, x = mlp(2, 256).cuda(), torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    with Beside(mod, x) as beside:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = mod(x)
            beside.mark("beside")
        torch.cuda.current_stream().wait_stream(side)
        out.record_stream(torch.cuda.current_stream())
        loss = out.sum()
        loss.backward()
        beside.mark("backward")
        del out, loss
        torch.cuda.synchronize()
        mod.zero_grad()
        beside.mark("waited for")
        made = torch.empty(10, device="cuda")  # here the allocator frees the blocks that streams no longer use
        beside.mark("taken back")
        del made


@needs_interception
def test_tensors_freed_by_another_thread():
    with Beside() as beside:
        kept = [torch.zeros(1000, device="cuda") for _ in range(10)]
        beside.mark("made")
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        beside.mark("freed")


@needs_interception
def test_models_of_several_threads():
    """Figures are compared when all threads are done."""
    mods = [mlp(2, 64).cuda() for _ in range(4)]
    x = torch.randn(8, 64, device="cuda")

    def train(mod):
        for _ in range(10):
            mod(x).sum().backward()

    with Beside(mods, x) as beside:
        threads = [threading.Thread(target=train, args=(mod,)) for mod in mods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        torch.cuda.synchronize()
        beside.mark("all done")
        assert now(beside.mt, "Gradient", device()) == rounded(*(p.grad for mod in mods for p in mod.parameters()))


@needs_interception
def test_an_allocation_that_fails():
    with Beside() as beside:
        kept = torch.empty(1000, device="cuda")
        for _ in range(2):
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(1 << 50, device="cuda", dtype=torch.uint8)
            beside.mark("refused")
        del kept


@needs_interception
def test_an_error_in_the_middle():
    def throw(m, x):
        raise Boom

    mod = nn.Sequential(nn.Linear(64, 64), make("Raise", throw)).cuda()
    x = torch.randn(8, 64, device="cuda")
    with Beside(mod, x) as beside:
        for _ in range(2):
            try:
                mod(x)
            except Boom:
                pass
            beside.mark()


@needs_interception
def test_emptying_the_cache_changes_nothing():
    with Beside() as beside:
        kept = torch.empty(10_000_000, device="cuda")
        torch.empty(50_000_000, device="cuda")
        torch.cuda.empty_cache()
        beside.mark()
        del kept


@every_source
def test_what_is_what(source):
    mod = mlp(2, 100)
    mod.append(nn.BatchNorm1d(100))
    mod.cuda()
    opt = torch.optim.Adam(mod.parameters(), foreach=True)
    x = torch.randn(8, 100, device="cuda")
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    with mt:
        for _ in range(2):
            mod(x).sum().backward()
            opt.step()
            found = reading(mt, "current", device())
            assert found["Parameter"] == rounded(*mod.parameters())
            assert found["Buffer"] == rounded(*mod.buffers())
            assert found["Gradient"] == rounded(*(p.grad for p in mod.parameters()))
            state = [value for of in opt.state.values() for value in of.values() if value.is_cuda]
            assert found["Optstate"] == rounded(*state)
            assert found["Other"] == rounded(x)
            opt.zero_grad()
        assert of_module(mt, "Sequential.0", device=device())["Parameter"] == rounded(mod[0].weight, mod[0].bias)
        assert wrong_sums(mt) == []


@every_source
def test_both_devices_have_figures_of_their_own(source):
    with MemTracker(source) as mt:
        a, b = torch.zeros(100), torch.zeros(100, device="cuda")
        assert now(mt) == 400
        assert now(mt, device=device()) == 512
        assert set(mt.peak) == {torch.device("cpu"), device()}
    del a, b


@needs_interception
def test_both_sources_agree():
    runs = []
    for source in SOURCES:
        torch.manual_seed(0)
        mod, x = mlp(3, 64).cuda(), torch.randn(16, 64, device="cuda")
        opt = torch.optim.Adam(mod.parameters())
        mt = MemTracker(source)
        mt.track_external(mod, opt, x)
        readings = []
        with mt:
            for _ in range(2):
                loss = mod(x).sum()
                readings.append(reading(mt, "current", device()))
                loss.backward()
                del loss
                opt.step()
                readings.append(reading(mt, "current", device()))
                opt.zero_grad()
        runs.append(readings)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["plain", "checkpoint"])
def test_results_are_the_same_to_the_bit(kind):
    def train(mt):
        torch.manual_seed(0)
        mod = mlp(3, 64).cuda()
        opt = torch.optim.AdamW(mod.parameters())
        if mt is not None:
            mt.__enter__()
        for _ in range(3):
            x = torch.randn(8, 64, device="cuda", requires_grad=True)
            out = checkpoint(mod, x, use_reentrant=False) if kind == "checkpoint" else mod(x)
            out.square().sum().backward()
            opt.step()
            opt.zero_grad()
        if mt is not None:
            mt.__exit__(None, None, None)
        return [p.detach() for p in mod.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(None), train(MemTracker())))
