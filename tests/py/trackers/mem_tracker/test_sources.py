"""The two sources agree on what the dispatcher can see, the dispatcher works with fake tensors, and for neither
the work per operator grows with the size of the model."""

import pytest
from helpers import make, mlp, needs_interception, run_python
from memory_helpers import SOURCES, nonzero, now, of_module, python_calls, reading, wrong_sums
from modscope import MemTracker
from modscope._trackers.mem_tracker import ledger_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

# ---- agreement ----


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


MODELS = {
    "mlp": lambda: (mlp(3, 16), torch.randn(8, 16)),
    "attention": lambda: (nn.Sequential(Attends(), Attends()), torch.randn(2, 5, 16)),
    "convolution": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.randn(2, 3, 8, 8)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)), torch.arange(6).view(2, 3)),
    "checkpoint": lambda: (
        make(
            "Mod",
            lambda m, x: checkpoint(m.a, m.b(x), use_reentrant=False, preserve_rng_state=False),
            a=mlp(2, 16),
            b=nn.Linear(16, 16),
        ),
        torch.randn(8, 16),
    ),
}


def train_and_read(source, kind):
    """The readings of a tracker at each point of two training steps."""
    torch.manual_seed(0)
    mod, x = MODELS[kind]()
    opt = torch.optim.Adam(mod.parameters())
    mt = MemTracker(source)
    mt.track_external(mod, opt, x)
    readings = []
    with mt:
        for _ in range(2):
            loss = mod(x).square().sum()
            readings.append(("forward", reading(mt), mt.get_module_snapshot()))
            loss.backward()
            del loss
            readings.append(("backward", reading(mt), mt.get_module_snapshot()))
            opt.step()
            readings.append(("step", reading(mt), mt.get_module_snapshot()))
            opt.zero_grad()
            readings.append(("zero", reading(mt), mt.get_module_snapshot()))
    return readings


@needs_interception
@pytest.mark.parametrize("kind", MODELS)
def test_both_sources_have_the_same_figures(kind):
    assert train_and_read("allocator", kind) == train_and_read("dispatcher", kind)


@needs_interception
@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_both_sources_see_the_same_peak_of_forward(kind):
    peaks = []
    for source in SOURCES:
        torch.manual_seed(0)
        mod, x = MODELS[kind]()
        mt = MemTracker(source)
        mt.track_external(mod, x)
        with mt, torch.no_grad():
            mod(x)
        peaks.append((reading(mt, "peak"), mt.get_module_snapshot("peak"), mt.peak))
    assert peaks[0] == peaks[1]


@needs_interception
def test_both_sources_keep_the_same_entries():
    stories = []
    for source in SOURCES:
        mod, x = mlp(2, 8), torch.randn(4, 8)
        mt = MemTracker(source)
        mt.track_external(mod, x)
        with mt:
            mod(x).sum().backward()
        stories.append(
            {
                stats.mod_fqn: (
                    stats.parameter_mem,
                    stats.input_mem,
                    stats.output_mem,
                    {state: stats.snapshots[state] for state in ("Pre-Forward", "Post-Forward", "Peak-Forward")},
                )
                for stats in mt.memory_tracking.values()
            }
        )
    assert stories[0] == stories[1]


# ---- fake tensors ----


def fake_step(mt, mod, x, opt=None):
    loss = mod(x).square().sum()
    activation = now(mt, "Activation")
    loss.backward()
    del loss
    if opt is not None:
        opt.step()
    return activation


def test_fake_tensors_have_the_bytes_of_real_ones():
    real = MemTracker()
    mod, x = mlp(3, 16), torch.randn(8, 16)
    opt = torch.optim.Adam(mod.parameters())
    real.track_external(mod, opt, x)
    with real:
        fake_step(real, mod, x, opt)
    with FakeTensorMode():
        mod, x = mlp(3, 16), torch.randn(8, 16)
        opt = torch.optim.Adam(mod.parameters())
        fake = MemTracker()
        fake.track_external(mod, opt, x)
        with fake:
            fake_step(fake, mod, x, opt)
    assert reading(fake) == reading(real)
    assert fake.get_module_snapshot() == real.get_module_snapshot()


def test_fake_bytes_by_hand():
    with FakeTensorMode():
        mod, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(32, 8)
        mt = MemTracker()
        mt.track_external(mod, x)
        with mt:
            y = mod(x)
            assert nonzero(reading(mt)) == {"Parameter": 848, "Other": 1024, "Activation": 2560, "Total": 4432}
            assert reading(mt, "peak")["Activation"] == 4096
            y.sum().backward()
            assert now(mt, "Gradient") == 848
            assert of_module(mt, "Sequential.0")["Gradient"] == 576
        assert wrong_sums(mt) == []


def test_nothing_is_allocated_for_fake_tensors():
    """A model of 4 TB."""
    with FakeTensorMode():
        mod = nn.Linear(1 << 20, 1 << 20, bias=False)
        mt = MemTracker()
        mt.track_external(mod)
        with mt:
            mod(torch.randn(1, 1 << 20)).sum().backward()
            assert now(mt, "Parameter") == now(mt, "Gradient") == 1 << 42


def test_auto_is_the_dispatcher_inside_a_fake_mode():
    with FakeTensorMode(), MemTracker() as mt:
        assert mt.source == "dispatcher"


def test_auto_is_the_dispatcher_where_a_fake_tensor_was_given():
    with FakeTensorMode():
        mod = mlp(1, 8)
    for given in (mod, [next(mod.parameters()).detach()]):
        mt = MemTracker()
        mt.track_external(given)
        with mt:
            assert mt.source == "dispatcher"
            assert now(mt) > 0


def test_auto_chooses_anew_each_time():
    mt = MemTracker()
    with FakeTensorMode(), mt:
        assert mt.source == "dispatcher"
    with mt:
        assert mt.source == SOURCES[0]


@needs_interception
def test_fake_tensors_are_not_the_allocators():
    """Their storages have a size but no memory; the allocator source counts only real memory."""
    with FakeTensorMode(), MemTracker("allocator") as mt:
        kept = torch.zeros(1000)
        assert now(mt) == 0
    del kept


@pytest.mark.parametrize("way", ["given", "made inside"])
def test_fake_cuda_is_refused_by_a_torch_without_cuda(way, monkeypatch):
    """There autograd would abort the process."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with FakeTensorMode(), pytest.raises(RuntimeError, match="(?i)cuda"):
        mt = MemTracker()
        if way == "given":
            mt.track_external(torch.empty(10, device="cuda"))
        with mt:
            torch.empty(10, device="cuda")
    with MemTracker() as mt:
        assert now(mt) == 0


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's backward of fake tensors needs a GPU")


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no CUDA")
@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=needs_gpu)])
def test_fake_cuda_tensors_are_rounded_as_the_allocator_does(backward):
    """400 and 40 bytes of parameters, 120 of input, each in blocks of 512."""
    with FakeTensorMode():
        mod, x = nn.Linear(10, 10, device="cuda"), torch.randn(3, 10, device="cuda")
        mt = MemTracker()
        mt.track_external(mod, x)
        with mt:
            assert mt.source == "dispatcher"
            loss = mod(x).sum()
            if backward:
                loss.backward()
            del loss
            found = mt.get_tracker_snapshot()[x.device]
            assert (found["Parameter"], found["Gradient"], found["Other"]) == (1024, 1024 * backward, 512)


# ---- where the allocator cannot be intercepted ----


@pytest.fixture(scope="module")
def without_interception():
    """What a new interpreter prints: the source that "auto" chooses, and the error for "allocator"."""
    done = run_python(
        """
        from modscope import MemTracker
        with MemTracker() as mt:
            print(mt.source)
        try:
            MemTracker("allocator").__enter__()
        except RuntimeError as error:
            print(error)
        """,
        MODSCOPE_INTERPOSE="0",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_without_interception_auto_is_the_dispatcher(without_interception):
    assert without_interception[0] == "dispatcher"


@pytest.mark.slow
def test_without_interception_the_allocator_is_refused_with_a_reason(without_interception):
    assert "MODSCOPE_INTERPOSE" in without_interception[1] and "dispatcher" in without_interception[1]


# ---- storages that change without an operator, and operators that change their arguments ----


def resized(x):
    storage = x.untyped_storage()
    yield storage.resize_(0)
    yield storage.resize_(8000)
    yield storage.resize_(400)
    yield x._typed_storage()._resize_(25)


def grown_by_operators(x):
    empty = torch.empty(0)
    yield torch.add(x, x, out=empty)
    yield empty.resize_(5000)
    yield empty.set_()
    yield torch.tensor([1.0, 2.0, 3.0])


CHANGES = {"resized": resized, "grown by operators": grown_by_operators}


@pytest.mark.parametrize("way", [pytest.param("resized", marks=needs_interception), "grown by operators"])
@pytest.mark.parametrize("made_before", [False, True])
def test_storages_that_grow_and_shrink_are_seen_at_once(way, made_before):
    """Without reading figures in between, which would update them."""
    found = []
    for source in SOURCES:
        x = torch.zeros(1000)
        mt = MemTracker(source)
        if made_before:
            mt.track_external(x)
        with mt:
            x = x if made_before else torch.zeros(1000)
            totals = []
            for _ in CHANGES[way](x):
                totals.append(sum(ledger_of(mt).now()[0]))
            found.append((totals, now(mt)))
    assert len(found) == 1 or found[0] == found[1]
    assert found[-1][0][0] != found[-1][0][1]


@needs_interception
def test_the_size_of_what_was_not_tracked_counts_when_it_grows():
    x, out = torch.zeros(1000), torch.empty(0)
    with FakeTensorMode():
        fake = torch.zeros(0)
    with MemTracker("dispatcher") as mt:
        assert now(mt) == 0
        x.untyped_storage().resize_(8000)
        assert now(mt) == 8000
        torch.neg(x, out=out)
        assert now(mt) == 12000
    with fake.fake_mode, MemTracker() as mt:
        fake.untyped_storage().resize_(400)
        fake.sum()  # tells its device
        assert now(mt) == 400 and mt.peak[torch.device("cpu")].bytes == 404


@needs_interception
def test_torch_s_method_is_as_it_was_after_the_last_tracker():
    method = torch.UntypedStorage.resize_
    for source in ("dispatcher", *SOURCES, "dispatcher"):
        with MemTracker(source) as mt:
            kept = torch.zeros(100)
            kept.untyped_storage().resize_(40)
            assert sum(ledger_of(mt).now()[0]) == 40
            assert torch.UntypedStorage.resize_ is method


@needs_interception
def test_another_tool_may_replace_torch_s_method():
    original = torch.UntypedStorage.resize_
    with MemTracker("dispatcher") as mt:
        torch.UntypedStorage.resize_ = lambda storage, size: original(storage, size)
        kept = torch.zeros(100)
        kept.untyped_storage().resize_(40)
        assert sum(ledger_of(mt).now()[0]) == 40
        del torch.UntypedStorage.resize_


# ---- work ----


def steps(mod, x, opt=None):
    def step():
        mod(x).sum().backward()
        if opt is not None:
            opt.step()
        mod.zero_grad()

    return step


def test_the_dispatcher_is_not_quadratic():
    """Twice the modules need twice the function calls; if every operator visited every module, it would be four
    times."""
    counts = []
    for layers in (10, 20, 40, 80):
        mod, x = mlp(layers, 4), torch.randn(2, 4)
        step = steps(mod, x)
        with MemTracker("dispatcher"):
            step()
            counts.append(python_calls(step))
    growth = [b / a for a, b in zip(counts, counts[1:])]
    assert max(growth) < 2.2, counts


def test_the_dispatcher_does_not_slow_down_with_what_is_alive():
    mod, x = mlp(4, 4), torch.randn(2, 4)
    step = steps(mod, x)
    with MemTracker("dispatcher"):
        step()
        few = python_calls(step)
        kept = [torch.zeros(1) for _ in range(2000)]
        step()
        assert python_calls(step) <= few * 1.1
    del kept


@needs_interception
def test_no_python_runs_while_the_allocator_is_the_source():
    """No Python function is called beyond those of the step itself: none per allocation, operator, call or node."""
    mod, x = mlp(4, 8), torch.randn(2, 8)
    opt = torch.optim.SGD(mod.parameters(), lr=0.1)
    step = steps(mod, x)
    stepping = steps(mod, x, opt)
    step(), stepping()
    plain, plain_stepping = python_calls(step), python_calls(stepping)
    with MemTracker("allocator"):
        step(), stepping()
        assert python_calls(step) == plain
        assert python_calls(stepping) <= plain_stepping + 30  # a few for a step, however many parameters


def test_higher_order_operators_run_under_the_dispatcher():
    cond = pytest.importorskip("torch._higher_order_ops.cond").cond_op
    with MemTracker("dispatcher") as mt:
        out = cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1000),))
    assert out.sum() == 2000 and mt.peak[torch.device("cpu")].bytes >= 4000
