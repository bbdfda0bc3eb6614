"""Reading values of the virtual device, and operators whose results' sizes depend on values.

A tensor of the virtual device has no values and is read as zeros, except for what is known (known.py). Where a size
depends on values that are not known, elements are taken to be selected, spread or distinct as each function here says.
"""

from __future__ import annotations

from typing import Any

import torch
from modscope._virtual.operators import fakes, known, operators
from modscope._virtual.operators.operators import WorkspaceEvent
from modscope._virtual.rules import sorting
from modscope._virtual.rules.rules import contiguous_copy, note_doubt

__all__ = ["KERNELS"]

# ---- workspaces ----


def _copy_workspace(to: torch.Tensor, of: torch.Tensor) -> list[WorkspaceEvent]:
    """The copy on the GPU through which a tensor goes that cannot be copied at once (Copy.cu:
    copy_requires_temporaries)."""
    if to.dtype == of.dtype and to.shape == of.shape and to.stride() == of.stride():
        return []
    return contiguous_copy(to) if to.is_cuda else contiguous_copy(of)


def _mask_workspace(count: int, dimensions: int) -> list[WorkspaceEvent]:
    """A mask becomes indices before it selects (TensorAdvancedIndexing.cpp: masked_select_out_impl, expandTensors)."""
    return [("temporary", max(count * max(dimensions, 1) * 8, 1))]


# ---- reading ----


def local_scalar_dense(self: torch.Tensor) -> bool | float | int | complex:
    values = known.values_of(self)
    return torch.zeros((), dtype=self.dtype).item() if values is None else values.item()


def copy_(self: torch.Tensor, src: torch.Tensor | complex, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(src, torch.Tensor):  # torch passes a number as a number
        src = torch.tensor(src)
    values = known.values_of(src)
    if self.device.type != "cpu":
        if values is None:
            known.copy_distribution(src, self)
        else:
            known.tell(self, values.expand(self.shape))
    elif values is None:
        self.zero_()
    elif values.numel():
        self.copy_(values)
    if self.is_cuda != src.is_cuda:
        operators.take_and_give_back(_copy_workspace(self, src))
    return self


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(dst, self, non_blocking)


def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the tensors are one and the same, or their values are known and equal."""
    if self.shape != other.shape:
        return False
    if self.data_ptr() == other.data_ptr() and self.stride() == other.stride():
        return True
    ours, theirs = known.values_of(self), known.values_of(other)
    return ours is not None and theirs is not None and torch.equal(ours, theirs)


def is_all_true(self: torch.Tensor) -> torch.Tensor:
    """True. Programs such as torch.distributions check their arguments with it, and these are assumed to be right."""
    result = operators.make((), (), torch.bool)
    known.tell(result, torch.tensor(True))
    return result


def check(*_: Any, **__: Any) -> None:
    """Do nothing: a condition that is checked on the device is assumed to hold."""


# ---- how many elements are selected ----


def _count_selected(mask: torch.Tensor, bytes: int) -> int:
    """``bytes``: what each selected element takes in the result."""
    values = known.values_of(mask)
    if values is not None:
        return int(values.count_nonzero())
    fraction = known.fraction_of(mask)
    if fraction is None:
        note_doubt("selected", mask.numel() * bytes)
    return round(mask.numel() * (fakes.selected() if fraction is None else fraction))


def nonzero(self: torch.Tensor) -> torch.Tensor:
    values = known.values_of(self)
    count = _count_selected(self, 8 * self.dim())
    result = operators.make((count, self.dim()), (1, max(count, 1)), torch.int64)
    if values is not None:
        known.tell(result, values.nonzero())
    elif self.dim() == 1 and count:
        known.tell_classes(result, self.size(0))
    return result


def masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    each = shape.numel() // max(mask.numel(), 1)
    count = _count_selected(mask, each * self.dtype.itemsize) * shape.numel() // max(mask.numel(), 1)
    with operators.taken(_mask_workspace(count, len(shape))):
        return operators.make((count,), (1,), self.dtype)


_MASKS = (torch.bool, torch.uint8)


def _expand_masks(indices: Any) -> list[torch.Tensor | None]:
    """Indices in place of masks, as torch makes them before it indexes."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            expanded.append(index)
        else:
            positions = torch.nonzero(index)
            expanded.extend(positions.select(1, dim) for dim in range(index.dim()))
    return expanded


def index(self: torch.Tensor, indices: Any) -> torch.Tensor:
    return known.run(torch.ops.aten.index.Tensor, self, _expand_masks(indices))  # type: ignore[no-any-return]


def _fills_by_mask(indices: Any, values: torch.Tensor, accumulate: bool) -> bool:
    """torch fills instead of indexing when one number is written where one mask says."""
    given = [index for index in indices if index is not None]
    return values.numel() == 1 and not accumulate and len(given) == 1 and given[0].dtype in _MASKS


def index_put_(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    if not _fills_by_mask(indices, values, accumulate):
        indices = _expand_masks(indices)
    known.run(torch.ops.aten._index_put_impl_.default, self, indices, values, accumulate, unsafe)
    return self


# ---- how many elements are distinct: as many as there are classes, else all of them ----


def _count_distinct(tensor: torch.Tensor) -> int:
    classes = known.classes_of(tensor)
    return min(tensor.numel(), classes) if classes else tensor.numel()


def _make_unique(
    self: torch.Tensor, counted: torch.Tensor | int, inverse: Any, with_inverse: bool, with_counts: bool
) -> Any:
    """The three results of the operators: values, the position of each element among them, how often each occurs."""
    count = counted if isinstance(counted, int) else counted.size(0)
    positions = (
        operators.make(inverse, operators.contiguous_strides(inverse), torch.int64) if with_inverse else _nothing()
    )
    occurrences = operators.make((count,), (1,), torch.int64) if with_counts else _nothing()
    if with_counts:
        known.spread(self.numel(), occurrences)
    if with_inverse and count:
        known.tell_classes(positions, count)
    return positions, occurrences


def _nothing() -> torch.Tensor:
    return operators.make((0,), (1,), torch.int64)


def _unique(self: torch.Tensor, computed: Any, with_inverse: bool, with_counts: bool) -> Any:
    """``computed`` finds the results from values that are known."""
    values = known.values_of(self)
    if values is not None:
        results = []
        for host in computed(values):
            results.append(operators.make(host.shape, host.stride(), host.dtype))
            known.tell(results[-1], host)
        return tuple(results)
    count = _count_distinct(self)
    distinct = operators.make((count,), (1,), self.dtype)
    return (distinct, *_make_unique(self, count, self.shape, with_inverse, with_counts))


def unique2(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    op = torch.ops.aten._unique2.default
    with operators.taken(sorting.unique_events(self)):
        return _unique(
            self, lambda host: op(host, sorted, return_inverse, return_counts), return_inverse, return_counts
        )


def unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    return unique2(self, sorted, return_inverse)[:2]


def unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    if dim is not None:
        return unique_dim(self, dim, True, return_inverse, return_counts)
    op = torch.ops.aten.unique_consecutive.default
    return _unique(self, lambda host: op(host, return_inverse, return_counts), return_inverse, return_counts)


def unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    distinct = operators.make(self.shape, operators.contiguous_strides(self.shape), self.dtype)
    return (distinct, *_make_unique(self, self.size(dim), (self.size(dim),), return_inverse, return_counts))


def unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    return unique_dim(self, dim, True, return_inverse, return_counts)


# ---- counts ----


def bincount(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Each class has equally many of values that are not known. Without classes and ``minlength`` all are zero."""
    values = known.values_of(self)
    length = int(values.max()) + 1 if values is not None and values.numel() else known.classes_of(self) or 1
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    result = operators.make((max(length, minlength),), (1,), dtype)
    if weights is None and values is not None:
        known.tell(result, torch.bincount(values, minlength=minlength))
    elif weights is None:
        known.spread(self.numel(), result)
    return result


def histc(self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> torch.Tensor:
    """Each bin has equally many of values that are not known."""
    result = known.run(torch.ops.aten.histc.default, self, bins, min, max)
    if known.values_of(result) is None:
        known.spread(self.numel(), result)
    return result  # type: ignore[no-any-return]


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Each element is repeated once where the counts are not known."""
    values = known.values_of(repeats)
    size = output_size
    if size is None:
        size = repeats.numel() if values is None else int(values.sum())
    result = operators.make((size,), (1,), repeats.dtype)
    if values is not None:
        known.tell(result, torch.repeat_interleave(values))
    return result


KERNELS = {
    "_local_scalar_dense": local_scalar_dense,
    "copy_": copy_,
    "_copy_from": copy_from,
    "equal": equal,
    "_is_all_true": is_all_true,
    "_assert_async": check,
    "_assert_async.msg": check,
    "nonzero": nonzero,
    "masked_select": masked_select,
    "index.Tensor": index,
    "_index_put_impl_": index_put_,
    "_unique2": unique2,
    "_unique": unique,
    "unique_consecutive": unique_consecutive,
    "unique_dim": unique_dim,
    "unique_dim_consecutive": unique_dim_consecutive,
    "bincount": bincount,
    "histc": histc,
    "repeat_interleave.Tensor": repeat_interleave,
}
