"""Unusual tensors and unusual ways to run modules: nothing breaks, and exactly what has memory is counted."""

import collections

import pytest
from helpers import make, mlp, needs_interception, run_python
from memory_helpers import CPU, Counted, bytes_of, every_source, held, held_by, nonzero, now, reading, wrong_sums
from modscope import MemTracker
from torch.utils import _pytree as pytree

import torch
from torch import nn

# torch warns that many of these are new or deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# ---- tensors ----


@every_source
def test_meta_tensors_have_no_bytes_on_any_real_device(source):
    mod = nn.Linear(1000, 1000, device="meta")
    mt = MemTracker(source)
    mt.track_external(mod, torch.empty(10, device="meta"))
    with mt:
        mod(torch.empty(2, 1000, device="meta")).sum().backward()
        assert now(mt) == 0
        mod.to_empty(device="cpu")
        assert now(mt, "Parameter") == 4 * (1000 * 1000 + 1000)


@every_source
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors_count_with_their_parts(source, layout):
    dense = torch.eye(4)
    given = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    parts = (
        (given._indices(), given._values())
        if layout == "coo"
        else (given.crow_indices(), given.col_indices(), given.values())
    )
    mod = nn.Module()
    mod.register_buffer("pattern", given)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        assert nonzero(reading(mt)) == {"Buffer": bytes_of(*parts), "Total": bytes_of(*parts)}


@every_source
def test_tensors_whose_storage_cannot_be_asked_for(source):
    """What is not a storage is not counted as one; the allocator's blocks are counted, whatever holds them."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("no mkldnn here")
    opaque = torch.randn(4, 4).to_mkldnn()
    mod = make("Mod", lambda m, x: x.to_dense() + 1)
    mt = MemTracker(source)
    mt.track_external(opaque)
    with mt:
        out = mod(opaque)
        assert mt.memory_tracking[mod].output_mem == out.nbytes
        assert wrong_sums(mt) == []


@every_source
def test_nested_and_quantized_tensors(source):
    with MemTracker(source) as mt:
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
        quantized = torch.quantize_per_tensor(torch.zeros(10), 0.1, 0, torch.qint8)
        mod = make("Mod", lambda m, *args: args)
        mod(nested, [quantized])
        assert now(mt) >= 10
        assert wrong_sums(mt) == []
        del nested, quantized
        assert now(mt) == 0


@every_source
def test_a_subclass_of_tensor(source):
    class Mine(torch.Tensor):
        pass

    given = torch.zeros(10).as_subclass(Mine)
    mt = MemTracker(source)
    mt.track_external(given)
    with mt:
        out = make("Mod", lambda m, x: x + 1)(given)
        assert type(out) is Mine
        assert nonzero(reading(mt)) == {"Other": 40, "Activation": 40, "Total": 80}


@every_source
def test_a_parameter_whose_data_is_replaced(source):
    mod = nn.Linear(8, 8, bias=False)
    mt = MemTracker(source)
    mt.track_external(mod)
    with mt:
        mod.weight.data = torch.zeros(16, 8)
        assert nonzero(reading(mt)) == {"Parameter": 512, "Total": 512}


# ---- arguments ----


Pair = collections.namedtuple("Pair", "a b")


class Box:
    def __init__(self, inner):
        self.inner = inner


pytree.register_pytree_node(Box, lambda box: ([box.inner], None), lambda children, _: Box(children[0]))


WRAPPED = {
    "named tuple": lambda a, b: Pair(a, [b]),
    "registered type": lambda a, b: Box((a, b)),
    "ordered dict": lambda a, b: collections.OrderedDict(x=a, y={"z": b}),
}


@every_source
@pytest.mark.parametrize("kind", WRAPPED)
def test_containers_of_other_types_go_in_and_out(source, kind):
    mod = make("Mod", lambda m, x: x)
    with MemTracker(source) as mt:
        given = WRAPPED[kind](torch.zeros(10), torch.zeros(5))
        mod(given)
        stats = mt.memory_tracking[mod]
    assert (stats.input_mem, stats.output_mem) == (60, 60)
    del given


@every_source
def test_a_registered_type_may_raise(source):
    class Bad:
        pass

    def throw(bad):
        raise ZeroDivisionError

    pytree.register_pytree_node(Bad, throw, lambda children, _: Bad())
    mod = make("Mod", lambda m, x, bad: x + 1)
    with MemTracker(source) as mt:
        out = mod(torch.zeros(10), Bad())
        assert out.sum() == 10
        assert now(mt, "Activation") == 40


@every_source
def test_what_is_no_tensor_weighs_nothing(source):
    mod = make("Mod", lambda m, *args, **kwargs: object())
    with MemTracker(source) as mt:
        mod(1, "a", None, object(), [], {}, torch.Size([3]), torch.float32, key=3)
        stats = mt.memory_tracking[mod]
    assert (stats.input_mem, stats.output_mem) == (0, 0)


@every_source
def test_one_storage_going_in_twice_counts_as_torchs_own_counts_it(source):
    theirs = pytest.importorskip("torch.distributed._tools.mem_tracker", reason="this torch has no MemTracker")
    found = []
    for mt in (MemTracker(source), theirs.MemTracker()):
        mod = make("Mod", lambda m, *args: (args[0], args[1]))
        with mt:
            x = torch.zeros(10)
            mod(x, x[:5])
            found.append((mt.memory_tracking[mod].input_mem, mt.memory_tracking[mod].output_mem))
    assert found[0] in (found[1], (40, 40))


# ---- ways to run ----


@every_source
def test_function_transforms(source):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    parameters = dict(mod.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(mod, parameters, (x,)).sum()

    plain = torch.func.grad(loss)(parameters, x)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        grads = torch.func.grad(loss)(parameters, x)
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        torch.func.jvp(lambda x: loss(parameters, x), (x,), (torch.ones_like(x),))
        assert held(mt) == held_by([mod])
        assert now(mt) >= bytes_of(list(parameters.values()), list(grads.values()), list(each.values()))
        assert wrong_sums(mt) == []
    assert all(torch.equal(grads[name], plain[name]) for name in plain)


@every_source
def test_tracing(source):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x).relu()

    mod, x = Net(), torch.randn(2, 4)
    plain = mod(x)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt, torch.no_grad():
        assert torch.equal(torch.fx.symbolic_trace(mod)(x), plain)
        assert torch.equal(torch.export.export(mod, (x,)).module()(x), plain)
        assert now(mt, "Parameter") == 80
        assert wrong_sums(mt) == []


@every_source
def test_saving_and_loading(source, tmp_path):
    mod, x = mlp(2, 8), torch.randn(4, 8)
    mt = MemTracker(source)
    mt.track_external(mod, x)
    with mt:
        torch.save(mod.state_dict(), tmp_path / "weights.pt")
        mod.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
        assert nonzero(reading(mt)) == {"Parameter": 576, "Other": 128, "Total": 704}


@needs_interception
def test_saving_and_loading_is_exact(tmp_path):
    mod = mlp(2, 8)
    with MemTracker("allocator") as mt:
        with Counted(mt) as count:
            torch.save(mod.state_dict(), tmp_path / "weights.pt")
            count.mark()
            state = torch.load(tmp_path / "weights.pt", weights_only=True)
            count.mark()
            del state
        assert count.tracked == count.counted


@every_source
def test_an_interrupt_in_the_middle(source):
    def throw(m, x):
        raise KeyboardInterrupt

    mod = nn.Sequential(nn.Linear(4, 4), make("Raise", throw))
    with MemTracker(source) as mt:
        with pytest.raises(KeyboardInterrupt):
            mod(torch.zeros(1, 4))
        made = torch.zeros(10)
        assert mt.get_module_snapshot()[CPU]["Global"]["Other"] == 40
    del made


@pytest.mark.slow
@pytest.mark.parametrize("way", ["entered", "left"])
def test_the_interpreter_may_end_at_any_time(way):
    done = run_python(
        f"""
        import torch
        from helpers import mlp
        from modscope import MemTracker
        mod, x = mlp(2, 8), torch.randn(4, 8)
        kept = []
        mt = MemTracker()
        mt.__enter__()
        kept.append(mod(x).sum())
        if {way!r} == "left":
            mt.__exit__(None, None, None)
        print("fine", mt.get_tracker_snapshot()[torch.device("cpu")]["Parameter"])
        """
    )
    assert done.returncode == 0 and done.stdout == "fine 576\n", done.stdout + done.stderr
