"""Kinds: what FSDP2 holds equals the sum over FSDP2's own tensors, to the byte, in the middle of forward and backward,
between them, and at the peak. The process group is torch's fake one: rank 0 of 64."""

import gc
from collections.abc import Iterator

import modscope
import pytest
import torch.distributed as dist
from fsdp_helpers import KINDS, Block, cpu_mesh, groups_of, held_by_fsdp, shard_blocks
from helpers import needs_interception, torch_globals
from memory_helpers import CPU, Counted, wrong_sums
from modscope._read.text import size
from modscope._trackers.mem_tracker import ledger_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import torch
from torch import nn

pytestmark = needs_interception
WORLD, WIDTH = 64, 48


@pytest.fixture(autouse=True, scope="module")
def fake_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


def known(mt) -> dict[str, int]:
    """The kinds that the ledger counts now, without a claim pass; inputs are none of FSDP2's."""
    raw = ledger_of(mt).kinds()[0]
    return {kind: value for kind, value in zip(modscope.Kind, raw[1:]) if value and kind in KINDS}


class Checked:
    """Compares the kinds with FSDP2's own tensors, with and without a claim pass."""

    def __init__(self):
        self.mt, self.model, self.seen, self.moments = modscope.MemTracker(), None, set(), 0

    def __call__(self, when):
        if self.model is None:
            return
        expected = held_by_fsdp(self.model)
        assert known(self.mt) == expected, when
        assert {k: v for k, v in self.mt.get_kind_snapshot().get(CPU, {}).items() if k in KINDS} == expected, (
            f"{when}, in a pass"
        )
        self.seen |= set(expected)
        self.moments += 1


def train(model, check, steps=2, x=None):
    x = torch.randn(4, WIDTH) if x is None else x
    opt = torch.optim.Adam(model.parameters())
    check.model = model
    check.mt.track_external(model, opt, x)
    with check.mt:
        check("before")
        for _ in range(steps):
            loss = model(x).square().mean()
            check("after the forward")
            loss.backward()
            check("after the backward")
            opt.step()
            check("after the optimizer step")
            opt.zero_grad()
            del loss
            check("after zero_grad")
        assert wrong_sums(check.mt) == []
    return check


def blocks(check, count=3):
    return nn.Sequential(*[Block(WIDTH, check) for _ in range(count)], nn.Linear(WIDTH, 8))


MESH = {
    "plain": dict,
    "kept after forward": lambda: {"reshard_after_forward": False},
    "mixed precision": lambda: {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "resharded over 8": lambda: {"reshard_after_forward": 8},
    "CPU offload": lambda: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "HSDP": lambda: {"mesh": init_device_mesh("cpu", (8, 8), mesh_dim_names=("replicate", "shard"))},
}


@pytest.mark.parametrize("options", MESH)
def test_every_kind_equals_fsdp_s_own_tensors(options):
    check = Checked()
    given = MESH[options]()
    given.setdefault("mesh", init_device_mesh("cpu", (WORLD,)))
    train(shard_blocks(blocks(check), **given), check)
    assert check.moments > 20
    assert set(KINDS) <= check.seen


def test_modules_that_are_sharded_together():
    check = Checked()
    model = blocks(check)
    fully_shard([model[0], model[1]], mesh=cpu_mesh())
    fully_shard([model[2], model[3]], mesh=cpu_mesh())
    fully_shard(model, mesh=cpu_mesh())
    train(model, check)
    assert set(KINDS) <= check.seen


def test_a_module_with_two_groups():
    placement = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_common")
    if not hasattr(placement, "ShardPlacementResult"):
        pytest.skip("this torch has one group for each module")
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    from torch.distributed.tensor import Shard

    check = Checked()
    model = blocks(check)
    whole, small = init_device_mesh("cpu", (WORLD,)), init_device_mesh("cpu", (8, 8), mesh_dim_names=("a", "b"))["b"]
    infos = {True: FSDPMeshInfo(whole, 0), False: FSDPMeshInfo(small, 0)}
    for layer in model:
        wide = {id(parameter) for parameter in layer.parameters() if parameter.dim() > 1}
        fully_shard(
            layer,
            mesh=whole,
            shard_placement_fn=lambda p, wide=wide: ShardPlacementResult(Shard(0), infos[id(p) in wide]),
        )
    fully_shard(model, mesh=whole)
    assert max(len(layer._get_fsdp_state()._fsdp_param_groups) for layer in model) == 2
    train(model, check)
    assert set(KINDS) <= check.seen


@pytest.mark.parametrize("reduce_dtype", [None, torch.float32])
def test_gradients_that_are_accumulated_without_a_reduction(reduce_dtype):
    check = Checked()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    model = shard_blocks(blocks(check), mp_policy=policy)
    x = torch.randn(4, WIDTH)
    check.model = model
    check.mt.track_external(model)
    with check.mt:
        for last in (False, False, True):
            model.set_requires_gradient_sync(last)
            model(x).sum().backward()
            check("after a backward")
            assert ("Unsharded Grad" in held_by_fsdp(model)) is not last
    assert check.moments > 10


def test_checkpointed_blocks():
    check = Checked()

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Block(WIDTH, check)

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    model = shard_blocks(nn.Sequential(*[Checkpointed() for _ in range(3)]))
    train(model, check, x=torch.randn(4, WIDTH, requires_grad=True))
    assert set(KINDS) <= check.seen


@pytest.mark.slow
def test_compiled_blocks():
    check = Checked()
    model = nn.Sequential(*[Block(WIDTH) for _ in range(2)], nn.Linear(WIDTH, 8))
    for block in model[:2]:
        block.compile(backend="eager")
    shard_blocks(model)
    train(model, check)
    assert check.moments == 9


def test_a_leaf_module_is_unsharded_between_its_own_hooks():
    """Nothing is intercepted between the pre-forward and the post-forward of a module without children, except
    FSDP2."""
    mt = modscope.MemTracker()
    model = fully_shard(nn.Linear(512, 512, bias=False), mesh=cpu_mesh())
    whole = 512 * 512 * 4
    with mt, torch.no_grad():
        mt.track_external(model)
        model(torch.randn(1, 512))
        mt.reset_peak()
        model.reshard()
        model(torch.randn(1, 512))
    peak = mt.get_kind_snapshot("peak")[CPU]
    assert peak["Unsharded Param"] == whole and peak["All Gather"] == whole


def test_at_the_peak_unsharded_gradients_are_not_temp():
    """PyTorch's own tracker calls them Temp until they are reduced."""
    mt = modscope.MemTracker()
    model = shard_blocks(blocks(lambda when: None))
    x = torch.randn(1, WIDTH)
    mt.track_external(model, x)
    with mt:
        for _ in range(2):
            model(x).sum().backward()
            model.zero_grad()
    peak, kinds = mt.get_tracker_snapshot("peak")[CPU], mt.get_kind_snapshot("peak")[CPU]
    assert mt.peak[CPU].phase == "backward"
    one = sum(p.numel() * 4 for p in Block(WIDTH).parameters())
    gathered = 64 * 4 * sum(-(-p.shape[0] // 64) * p[0].numel() for p in Block(WIDTH).parameters())
    assert kinds["Unsharded Grad"] == one
    assert kinds["Unsharded Param"] == kinds["All Gather"] == kinds["Reduce Scatter"] == gathered
    by_module = mt.get_module_kinds("peak")[CPU]
    for kind in kinds:
        assert sum(of.get(kind, 0) for of in by_module.values()) == kinds[kind]
    assert peak["Temp"] - kinds["All Gather"] - kinds["Reduce Scatter"] < 4 * WIDTH * 4 * 10


def test_the_total_equals_the_allocator_s_own_events():
    mt = modscope.MemTracker("allocator")
    model = shard_blocks(blocks(lambda when: None))
    opt, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, WIDTH)
    mt.track_external(model, opt, x)
    with mt, Counted(mt) as count:
        for _ in range(2):
            model(x).sum().backward()
            count.mark()
            opt.step()
            opt.zero_grad()
            count.mark()
    assert len(count.counted) > 2 and count.tracked == count.counted


def test_nothing_stays_on_the_model_or_in_torch():
    def state():
        return [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()]

    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group

    model = shard_blocks(blocks(lambda when: None))
    x = torch.randn(4, WIDTH)
    model(x).sum().backward()
    before, names = state(), torch_globals()
    attributes = [dict(vars(group)) for group in groups_of(model)]
    with modscope.MemTracker():
        model(x).sum().backward()
        inside = state()
        assert modscope._native.fsdp_intercepted()
    assert before == inside == state()
    assert names == torch_globals()
    assert [set(vars(group)) for group in groups_of(model)] == [set(one) for one in attributes]
    assert not modscope._native.fsdp_intercepted()
    assert _fsdp_param_group.foreach_reduce is _fsdp_collectives.foreach_reduce
    model(x).sum().backward()


def test_results_are_the_same_to_the_bit():
    def run(tracked):
        torch.manual_seed(1)
        model = shard_blocks(blocks(lambda when: None))
        opt, x = torch.optim.Adam(model.parameters()), torch.randn(4, WIDTH)
        for _ in range(3):
            if tracked:
                with modscope.MemTracker():
                    model(x).sum().backward()
                    opt.step()
            else:
                model(x).sum().backward()
                opt.step()
        return [p._local_tensor.clone() for p in model.parameters()]

    def are_equal(left, right):
        return all(torch.equal(one, other) for one, other in zip(left, right))

    untracked = run(False)
    if not are_equal(untracked, run(False)):
        pytest.skip("this torch's fake process group does not fill the tensors that it gathers")
    assert are_equal(untracked, run(True))


def test_models_are_not_kept_alive():
    import weakref

    model = shard_blocks(blocks(lambda when: None))
    with modscope.MemTracker():
        model(torch.randn(4, WIDTH)).sum().backward()
        ref = weakref.ref(model[0])
        del model
        gc.collect()
        assert ref() is None


# ---- captures ----


def test_captures_have_the_kinds_at_every_moment(tmp_path):
    model = shard_blocks(blocks(lambda when: None))
    opt, x = torch.optim.Adam(model.parameters()), torch.randn(4, WIDTH)
    mt = modscope.MemTracker()
    mt.track_external(model, opt, x)
    with mt, modscope.record(tmp_path / "run.msc"):
        for _ in range(3):
            model(x).sum().backward()
            opt.step()
            opt.zero_grad()
        peak, by_module = mt.get_kind_snapshot("peak")[CPU], mt.get_module_kinds("peak")[CPU]
        assert mt.peak[CPU].phase == "backward"
    capture = modscope.load(tmp_path / "run.msc")
    snapshot = capture.snapshot("peak")
    assert snapshot.kinds["cpu"] == peak
    assert snapshot.kinds_by_module()["cpu"] == by_module
    shown = f"All Gather {size(peak['All Gather'])}"
    assert shown in snapshot._repr_html_() and shown in capture._repr_html_() and shown in mt._repr_html_()
    seen = [block for block in snapshot.blocks() if block.kind is not None]
    assert sum(block.bytes for block in seen) == sum(peak.values())
    assert {block.kind for block in seen} == set(KINDS)
    categories = {"Param": "Parameter", "Grad": "Gradient", "Gather": "Temp", "Scatter": "Temp"}
    assert all(categories[block.kind.split()[1]] == block.category for block in seen)


def test_names_of_kinds_are_the_same_in_c_and_python(tmp_path):
    header = (__import__("pathlib").Path(__file__).parents[4] / "include/modscope_ledger.h").read_text()
    import re

    rows = re.findall(r'X\((\w+), "([^"]+)", (\w+)\)', header)
    assert [text for _, text, _ in rows] == list(modscope.Kind)
    from modscope._read.categories import category_of

    assert [category_of(modscope.Kind(text)).upper() for _, text, _ in rows] == [category for _, _, category in rows]
    page = (__import__("pathlib").Path(modscope.__file__).parent / "_show/page/text.js").read_text()
    shown = re.findall(r'\["(\w[\w ]*)", (\d)\]', page[page.index("const KINDS") : page.index("const UNITS")])
    categories = list(modscope.Category)
    assert [(text, categories[int(number)]) for text, number in shown] == [
        (str(kind), category_of(kind)) for kind in modscope.Kind
    ]
