"""Models of very many modules, nested or side by side: names and captures grow with the model, not faster."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import modscope
import pytest

import torch
from torch import nn


class Nest(nn.Module):
    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        return x if self.inner is None else self.inner(x)


def nested(depth: int) -> nn.Module:
    model = Nest(None)
    for _ in range(depth - 1):
        model = Nest(model)
    return model


@pytest.fixture
def deep_calls() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Run a function whose calls nest deeply."""

    def run(program: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def target() -> None:
            try:
                program()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    limit, stack = sys.getrecursionlimit(), threading.stack_size(512 << 20)
    sys.setrecursionlimit(100_000)
    yield run
    sys.setrecursionlimit(limit)
    threading.stack_size(stack)


def test_a_module_that_is_nested_deeply_has_one_path(tmp_path: Path, deep_calls: Callable[..., None]) -> None:
    depth = 700

    def program() -> None:
        model = nested(depth)
        with modscope.record(str(tmp_path / "deep.msc")):
            model(torch.ones(4)).sum().backward()

    deep_calls(program)
    capture = modscope.load(str(tmp_path / "deep.msc"))
    names = [name for name in capture.modules if name.startswith("Nest") and "(" not in name]
    assert len(names) == len(set(names)) == depth
    assert max(names, key=len) == "Nest" + ".inner" * (depth - 1)
    held = capture.snapshot("peak").by_module()["cpu"]
    assert all(held[name]["Parameter"] == 16 for name in names)


def test_modules_that_hold_each_other_in_a_circle_have_short_names(tmp_path: Path) -> None:
    with modscope.record(str(tmp_path / "circle.msc")):
        first, second = Nest(None), Nest(None)
        first.there, second.back = second, first
        optimizer = torch.optim.SGD([*first.parameters()], 0.1)
        Nest(None)(torch.ones(4)).sum().backward()
        optimizer.step()
    names = [name for name in modscope.load(str(tmp_path / "circle.msc")).modules if "there" in name or "back" in name]
    assert 0 < len(names) < 10 and max(map(len, names)) < 50


def first_call_seconds(count: int) -> float:
    model = nn.Sequential(*(nn.Identity() for _ in range(count)))
    with modscope.MemTracker():
        began = time.process_time()
        model(torch.ones(2))
        return time.process_time() - began


@pytest.mark.slow
def test_the_first_call_of_a_module_with_many_children_takes_time_in_proportion_to_them() -> None:
    """Eight times as many children took 40 times as long when each was searched among all of them."""
    first_call_seconds(10)
    few = min(first_call_seconds(4000) for _ in range(2))
    assert first_call_seconds(32_000) < 20 * few
