"""torch.cuda.FloatTensor and its like: where torch was built without CUDA, they cannot be called."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["replacements"]

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """A class that makes tensors of a dtype on the device. isinstance() says that such tensors belong to it."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(sizes, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def replacements() -> list[tuple[Any, dict[str, Any]]]:
    if torch.backends.cuda.is_built():
        return []
    made = {}
    for name, dtype in _DTYPES.items():
        made[name] = _TensorType(
            f"torch.cuda.{name}", (), {"dtype": dtype, "is_cuda": True, "__module__": "torch.cuda"}
        )
    return [(torch.cuda, made)]
