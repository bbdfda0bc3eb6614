"""Total and its peak equal the sum of the CPU allocator's own events, to the byte and after every operation. The
events are recorded by torch's profiler, independently of modscope."""

import warnings

import pytest
from helpers import Boom, make, mlp, needs_interception
from memory_helpers import CPU, Counted, now, wrong_sums
from modscope import MemTracker
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = needs_interception


class Watched:
    """An active tracker and an independent count. At the end both must have the same figures."""

    def __init__(self, *known, marks=1):
        self.known, self.marks = known, marks

    def __enter__(self):
        self.mt = MemTracker("allocator")
        self.mt.track_external(*self.known)
        self.mt.__enter__()
        self.count = Counted(self.mt)
        self.count.__enter__()
        return self.count.mark

    def __exit__(self, *exc):
        self.count.__exit__(*exc)
        sums = wrong_sums(self.mt)
        self.mt.__exit__(*exc)
        if exc[0] is None:
            assert len(self.count.counted) > self.marks
            assert self.count.tracked == self.count.counted
            assert sums == []


def training(mod, x, opt, mark, steps=3):
    for _ in range(steps):
        out = mod(x)
        mark()
        loss = out.square().mean()
        mark()
        loss.backward()
        mark()
        opt.step()
        mark()
        del out, loss
        opt.zero_grad()
        mark()


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_training(kind, foreach):
    mod, x = mlp(3, 16), torch.randn(8, 16)
    opt = getattr(torch.optim, kind)(mod.parameters(), lr=1e-3, foreach=foreach)
    with Watched(mod, opt, x, marks=15) as mark:
        training(mod, x, opt, mark)


def test_lbfgs():
    mod, x = mlp(2, 8), torch.randn(4, 8)
    opt = torch.optim.LBFGS(mod.parameters(), max_iter=5, history_size=3, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        loss = mod(x).square().sum()
        loss.backward()
        return loss

    with Watched(mod, opt, x, marks=3) as mark:
        for _ in range(3):
            opt.step(closure)
            mark()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    blocks = nn.ModuleList(mlp(2, 16) for _ in range(3))
    x = torch.randn(8, 16, requires_grad=True)

    def body(m, x):
        for block in m.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    mod = make("Deep", body, blocks=blocks)
    opt = torch.optim.Adam(mod.parameters())
    with Watched(mod, opt, x, marks=15) as mark:
        training(mod, x, opt, mark)
        x.grad = None


def test_autocast():
    mod, x = mlp(3, 32), torch.randn(8, 32)
    opt = torch.optim.Adam(mod.parameters())
    with Watched(mod, opt, x, marks=8) as mark:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = mod(x)
                mark()
                loss = out.square().mean()
            mark()
            loss.backward()
            mark()
            opt.step()
            opt.zero_grad()
            del out, loss
            mark()


def test_convolutions():
    mod = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
    )
    x = torch.randn(2, 3, 16, 16)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1, momentum=0.9)
    with Watched(mod, opt, x, marks=15) as mark:
        training(mod, x, opt, mark)


def test_recurrent_and_attention():
    """Operators with temporaries of their own."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            h, _ = self.lstm(x)
            return self.attention(h, h, h, need_weights=False)[0]

    mod, x = Both(), torch.randn(2, 5, 8)
    opt = torch.optim.Adam(mod.parameters())
    with Watched(mod, opt, x, marks=10) as mark:
        training(mod, x, opt, mark, steps=2)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_without_gradients(without):
    mod, x = mlp(4, 16).eval(), torch.randn(8, 16)
    with Watched(mod, x, marks=3) as mark, without():
        for _ in range(3):
            out = mod(x)
            mark()
        del out


def test_in_place_resizing():
    with Watched(marks=6) as mark:
        t = torch.empty(100)
        mark()
        t.resize_(1000)
        mark()
        t.untyped_storage().resize_(12)
        mark()
        t.untyped_storage().resize_(0)
        mark()
        t.untyped_storage().resize_(400)
        mark()
        t.set_(torch.empty(7).untyped_storage())
        mark()
        del t


def test_views():
    with Watched(marks=5) as mark:
        t = torch.empty(64, 64)
        row = t[3]
        mark()
        part = t.t()[1:5].expand(2, 4, 64).unsqueeze(0)
        del t
        mark()
        copy = part.contiguous()
        mark()
        del row, part
        mark()
        flat = copy.view(-1)[:1]
        del copy
        mark()
        del flat


def test_operators_that_work_in_place():
    x = torch.randn(64, 64)
    with Watched(x, marks=4) as mark:
        x.add_(1).mul_(2).relu_()
        mark()
        out = torch.empty(0)
        torch.mm(x, x, out=out)
        mark()
        x.sort()
        torch.linalg.svd(x[:8, :8])
        mark()
        x.index_put_((torch.tensor([1, 2]),), torch.zeros(64))
        mark()


def test_blocks_that_are_not_used_by_an_operator():
    with Watched(marks=4) as mark:
        storage = torch.UntypedStorage(1234)
        mark()
        rng = torch.get_rng_state()
        mark()
        listed = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        scalar = torch.tensor(5)
        mark()
        empty = torch.empty(0), torch.empty(3, 0)
        mark()
    del storage, rng, listed, scalar, empty


def test_retaining_the_graph():
    mod, x = mlp(2, 16), torch.randn(8, 16)
    with Watched(mod, x, marks=3) as mark:
        loss = mod(x).square().sum()
        loss.backward(retain_graph=True)
        mark()
        loss.backward(retain_graph=True)
        mark()
        loss.backward()
        mark()
        mod.zero_grad(set_to_none=False)


def test_a_gradient_of_a_gradient():
    mod, x = mlp(2, 8), torch.randn(4, 8, requires_grad=True)
    with Watched(mod, x, marks=2) as mark:
        (grad,) = torch.autograd.grad(mod(x).sigmoid().sum(), x, create_graph=True)
        mark()
        grad.square().sum().backward()
        mark()
        x.grad = None
        del grad


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error(where):
    def throw(*args):
        raise Boom

    def body(m, x):
        h = m.a(x)
        if where == "forward":
            throw()
        h.register_hook(throw)
        return m.b(h)

    mod, x = make("Mod", body, a=nn.Linear(16, 16), b=nn.Linear(16, 16)), torch.randn(8, 16)
    with Watched(mod, x, marks=2) as mark:
        for _ in range(2):
            try:
                mod(x).sum().backward()
            except Boom:
                mark()
        mod.zero_grad()


def test_an_allocation_that_fails():
    with Watched(marks=2) as mark:
        t = torch.empty(10)
        with pytest.raises(RuntimeError):
            torch.empty(1 << 60)
        mark()
        with pytest.raises(RuntimeError):
            t.resize_(1 << 60)
        mark()
        del t


def test_copies_between_python_and_torch():
    with Watched(marks=2) as mark:
        t = torch.arange(100.0)
        array = t.numpy()
        del t
        mark()  # the array holds the storage
        back = torch.from_numpy(array)
        mark()
        del back, array


def test_a_block_handed_to_an_outer_reference_cycle():
    """The garbage collector frees it, at no operator."""
    import gc

    class Ring:
        pass

    with Watched(marks=2) as mark:
        ring = Ring()
        ring.self, ring.t = ring, torch.empty(500)
        del ring
        mark()
        gc.collect()
        mark()


def test_a_model_built_and_moved_inside():
    with Watched(marks=4) as mark, warnings.catch_warnings():
        mod = mlp(2, 16)
        mark()
        mod.to(torch.bfloat16)
        mark()
        mod.double()
        mark()
        mod.load_state_dict({name: torch.zeros_like(p) for name, p in mod.state_dict().items()}, assign=True)
        mark()
        del mod


def test_hooks_that_pack_saved_tensors():
    mod, x = mlp(2, 16), torch.randn(8, 16)
    with Watched(mod, x, marks=2) as mark:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
            loss = mod(x).square().sum()
        mark()
        loss.backward()
        mark()
        mod.zero_grad()


def test_around_every_call():
    """The totals before, after and at the peak of each module's forward, compared with the events between hooks."""
    mod, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(2, 5, 16)
    mt = MemTracker("allocator")
    mt.track_external(mod, x)
    with mt, Counted(mt) as count:
        start = now(mt)
        for name, part in mod.named_modules():
            # The first hook to run opens, the last one closes: inside the call itself.
            part.register_forward_pre_hook(lambda m, args, name=name: count.open(name or "root"), prepend=True)
            part.register_forward_hook(lambda m, args, out, name=name: count.close(name or "root"))
        out = mod(x)
        found = {}
        for name, part in mod.named_modules():
            if part in mt.memory_tracking:
                snapshots = mt.memory_tracking[part].snapshots
                states = ("Pre-Forward", "Post-Forward", "Peak-Forward")
                found[name or "root"] = [snapshots[state][0][CPU]["Total"] - start for state in states]
    assert len(found) > 8 and found == count.spans
    del out


def test_the_count_is_not_blind():
    """The count would notice a tracker that counts nothing."""

    class Blind:
        def reset_peak(self):
            pass

        def get_tracker_snapshot(self, type):
            return {}

    with Counted(Blind()) as count:
        a = torch.empty(10)
        b = torch.empty(5)
        del b
    assert count.tracked == [(0, 0)]
    assert count.counted == [(40, 60)]
    del a
