"""Sparse tensors of the virtual device, as gradients of embeddings are: indices and values are tensors of the device.

torch's kernels for sparse tensors on the CPU and on CUDA are the same C++ functions where they only handle indices and
values; others are here. Which indices are equal is not known: all are taken to be distinct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FROM_DENSE", "KERNELS"]

_aten = torch.ops.aten


def _shared(name: str, key: Any = torch._C.DispatchKey.SparseCPU) -> Callable[..., Any]:
    """The kernel of the CPU, which is also that of CUDA."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(_aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(key)
    return lambda *args, **kwargs: op.redispatch(keys, *args, **kwargs)


def _make(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor, coalesced: bool) -> torch.Tensor:
    made: torch.Tensor = _aten._sparse_coo_tensor_with_dims_and_tensors.default(
        like.sparse_dim(),
        like.dense_dim(),
        like.shape,
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
    )
    return made._coalesced_(coalesced)


def coalesce(self: torch.Tensor) -> torch.Tensor:
    return _make(torch.empty_like(self._indices()), torch.empty_like(self._values()), self, True)


def add_out(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor) -> torch.Tensor:
    """Into a dense tensor nothing is made; the sum of sparse ones has the indices of both."""
    if out.is_sparse and self.is_sparse and other.is_sparse:
        indices = torch.cat([self._indices(), other._indices()], 1)
        values = torch.cat([self._values(), other._values()])
        _aten.copy_sparse_to_sparse_.default(out, _make(indices, values, self, False))
    return out


def mul_out(self: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """A product has the indices of its sparse factor."""
    factor = self if self.is_sparse else other
    made = _make(factor._indices().clone(), torch.empty_like(factor._values()), factor, factor.is_coalesced())
    _aten.copy_sparse_to_sparse_.default(out, made)
    return out


def addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    return torch.empty((mat1.size(0), mat2.size(1)), dtype=mat2.dtype, device=mat2.device)


def addmm_out(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1, out: torch.Tensor
) -> Any:
    return out.resize_((mat1.size(0), mat2.size(1)))


_SHARED = """
    _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors sparse_resize_ sparse_resize_and_clear_
    sparse_mask _sparse_mask_projection _to_dense sparse_dim _dimI dense_dim _dimV _nnz is_coalesced _indices _values
    _coalesced_ indices values copy_sparse_to_sparse_ resize_as_sparse_ empty.memory_format empty_like clone zero_
    copy_ cat permute unsqueeze neg neg_ abs abs_ sgn sgn_ add.Tensor add_.Tensor sub.Tensor sub_.Tensor mul.Tensor
    mul_.Tensor div.Tensor div_.Tensor div.out mm mm.out mv sqrt sqrt_ isnan isinf pow.Tensor_Scalar sum
    sum.dim_IntList native_norm norm.ScalarOpt_dim_dtype norm.ScalarOpt_dim _sparse_broadcast_to relu relu_ tanh any
""".split()

KERNELS: dict[str, Callable[..., Any]] = {
    **{name: _shared(name) for name in _SHARED},
    "_coalesce": coalesce,
    "add.out": add_out,
    "mul.out": mul_out,
    "addmm": addmm,
    "addmm.out": addmm_out,
}
"""To be registered for the dispatch key SparseCUDA."""

FROM_DENSE = {name: _shared(name, torch._C.DispatchKey.CPU) for name in ("_to_sparse", "_to_sparse.sparse_dim")}
