"""The operator of torch's dispatcher that made each block: with the dispatcher as the source, and on a virtual GPU."""

import random
import sys
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION
from modscope._trackers import mem_tracker
from torch.utils._python_dispatch import TorchDispatchMode
from virtual_helpers import needs_interception, run

import torch

needs_lines = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")


class Listing(TorchDispatchMode):
    """Notes which operator made each storage, and in which line of this file. It is entered before modscope's mode,
    so it sees the same operators, and is not on the stack when modscope reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[str, int]] = {}
        self.results: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {tensor.untyped_storage()._cdata for tensor in self.results}
        result = func(*args, **(kwargs or {}))
        for tensor in [result] if isinstance(result, torch.Tensor) else result:
            if tensor.untyped_storage()._cdata not in before:
                self.made[tensor.untyped_storage()._cdata] = func._schema.name, _line_of_this_file()
            self.results.append(tensor)
        return result


def _line_of_this_file() -> int:
    frame = sys._getframe(2)
    while frame.f_code.co_filename != __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_lineno


@needs_lines
def test_each_block_of_the_dispatcher_knows_its_operator_and_its_line() -> None:
    pick = random.Random(0)
    with Listing() as listing, modscope.MemTracker(source="dispatcher", stacks=1) as tracker:
        listing.made.clear()  # entering the first tracker runs a few operators
        x = torch.randn(4, 4, requires_grad=True)
        y = x
        for _ in range(200):
            match pick.randrange(6):
                case 0:
                    y = torch.relu(y)
                case 1:
                    y = y @ x
                case 2:
                    y = y + 1
                case 3:
                    y = y.t()
                case 4:
                    y = torch.nn.functional.linear(y, x, x[0])
                case _:
                    y = torch.stack([y, x]).sum(0)
        y.sum().backward()
        ledger = mem_tracker.ledger_of(tracker)
        found = {storage: ledger.stack(storage) for storage in listing.made}
    assert len(found) > 150
    for storage, (operator, line) in listing.made.items():
        names = [function for file, function, *_ in found[storage] if file is None]
        assert names[0] == operator, (found[storage], operator)
        assert [row[2] for row in found[storage] if row[0] == __file__] == [line]
    nodes = {stack[1][1] for stack in found.values() if stack[1][0] is None}
    assert {"MmBackward0", "ReluBackward0"} <= nodes


@needs_lines
def test_captures_of_fake_tensors_have_operators(tmp_path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), modscope.record(tmp_path / "fake.msc"):
        model = torch.nn.Linear(32, 32)
        kept = model(torch.ones(8, 32)).relu()
        kept.sum().backward()
    made = [block.place for block in modscope.load(tmp_path / "fake.msc").snapshot("peak").blocks() if block.place]
    assert {"aten::ones", "aten::relu"} <= {place.operator for place in made}
    assert {place.file for place in made} == {__file__}
    backward = {(place.operator, place.node) for place in made if place.node}
    assert ("aten::mm", "AddmmBackward0") in backward


@pytest.mark.slow
@needs_interception
def test_blocks_of_a_virtual_gpu_know_their_operators(tmp_path) -> None:
    file = tmp_path / "virtual.msc"
    run(f"""
        import modscope
        from torch.utils._python_dispatch import TorchDispatchMode
        class Listing(TorchDispatchMode):
            seen = set()
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.seen.add(func._schema.name)
                return func(*args, **(kwargs or {{}}))
        with modscope.record({str(file)!r}):
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
            with Listing():
                x = torch.ones(16, 64, device="cuda")
                model(x).sum().backward()
        capture = modscope.load({str(file)!r})
        places = [b.place for b in capture.snapshot("peak").blocks() if b.place and b.device.startswith("cuda")]
        assert len(places) > 8, places
        assert all(place.aten for place in places), places
        extra = {{"aten::empty", "aten::empty_strided"}}  # of which torch composes ones and ones_like
        assert {{place.aten for place in places}} <= Listing.seen | extra, (places, Listing.seen)
        assert {{"aten::addmm", "aten::threshold_backward"}} <= {{place.aten for place in places}}
        assert any(place.node == "AddmmBackward0" and place.aten == "aten::mm" for place in places)
    """)
