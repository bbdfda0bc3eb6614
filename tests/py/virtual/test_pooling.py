"""The workspace of pooling."""

from __future__ import annotations

from typing import Any

from modscope._virtual.rules.rules import GpuAndTorch, Rules

import torch

H200 = GpuAndTorch((9, 0), 132)
aten = torch.ops.aten


def taken(op: Any, *args: Any) -> list[int]:
    specs = op(*args)
    listed = [(t.shape, t.stride(), t.dtype) for t in (specs if isinstance(specs, tuple) else (specs,))]
    events: Any = Rules(H200).events(op, args, {}, listed if len(listed) > 1 else listed[0])
    return [bytes for what, bytes in events or () if what == "temporary"]


def images(*shape: int, last: bool = False) -> torch.Tensor:
    return torch.empty(shape, device="meta").to(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_dense_images_are_pooled_without_copies() -> None:
    """Measured on an H200, in both layouts."""
    for last in (False, True):
        x = images(8, 30, 56, 56, last=last)
        out, indices = aten.max_pool2d_with_indices.default(x, [2, 2])
        window = ([2, 2], [2, 2], [0, 0])
        assert taken(aten.max_pool2d_with_indices.default, x, [2, 2]) == []
        assert taken(aten.max_pool2d_with_indices_backward.default, out, x, *window, [1, 1], False, indices) == []
        assert taken(aten.avg_pool2d.default, x, [2, 2]) == taken(aten._adaptive_avg_pool2d.default, x, [7, 7]) == []


def test_what_is_not_dense_in_the_input_s_layout_is_copied() -> None:
    x = images(8, 60, 56, 56)[:, ::2]
    assert taken(aten.max_pool2d_with_indices.default, x, [2, 2]) == [8 * 30 * 56 * 56 * 4]
    dense = images(8, 32, 56, 56, last=True)
    out, indices = aten.max_pool2d_with_indices.default(dense, [2, 2])
    grad = images(8, 32, 28, 28)
    args = (grad, dense, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    assert taken(aten.max_pool2d_with_indices_backward.default, *args) == [8 * 32 * 28 * 28 * 4]
    args = (grad, dense, [2, 2], [2, 2], [0, 0], False, True, None)
    assert taken(aten.avg_pool2d_backward.default, *args) == [8 * 32 * 28 * 28 * 4]
