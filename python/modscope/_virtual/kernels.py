"""Operators of the virtual device that are not computed from the meta device alone."""

from __future__ import annotations

from typing import Any

import torch

from modscope._virtual import (
    attention,
    batch_norm,
    convolution,
    encoder,
    losses,
    recurrent,
    sorting,
    sparse,
    values,
    views,
)

KERNELS = {
    **views.KERNELS,
    **values.KERNELS,
    **sparse.FROM_DENSE,
    **attention.KERNELS,
    **encoder.KERNELS,
    **recurrent.KERNELS,
    **losses.KERNELS,
    **sorting.KERNELS,
}
INFERENCES = {**attention.INFERENCES, **convolution.INFERENCES}

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


_NO_KERNEL_FOR_CPU = (
    "aten::_foreach_norm.Scalar",
    "aten::_fused_rms_norm",
    "aten::_grouped_mm",
    "aten::split_with_sizes_copy.out",
    "aten::_chunk_cat",
    "aten::_chunk_cat.out",
)
"""Operators with a CUDA kernel that torch composes of others on the CPU."""


def _overload(name: str) -> Any:
    """The operator ``aten::name.overload``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def from_meta() -> dict[str, Any]:
    """Operators that a CUDA build has a kernel for, although they can also be composed of others.

    torch composes them where that kernel is missing, with other memory and more launches. A kernel for the CPU tells that
    there is one for CUDA. So does the name of an operator on lists of tensors. Convolutions ask for libraries that are not
    there; a few have no kernel for the CPU.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = ["aten::convolution", "aten::convolution_backward", *_NO_KERNEL_FOR_CPU]
    for name in torch._C._dispatch_get_all_op_names():
        for_lists = name.startswith("aten::_foreach_") and not name.endswith("out")
        if name.startswith("aten::") and (for_lists or has(name, "CPU")) and not has(name, "CUDA"):
            if any(has(name, key) for key in _COMPOSITE):
                names.append(name)
    return {name.removeprefix("aten::"): _overload(name) for name in names}


COMPOSED = {**attention.COMPOSED, **batch_norm.COMPOSED, **recurrent.COMPOSED}
"""Operators made of differentiable ones."""
