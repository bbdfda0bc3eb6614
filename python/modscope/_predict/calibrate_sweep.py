"""The operators that ``modscope calibrate`` measures without a script: small differentiable programs over common shapes
and types, in a fixed order. Their backward operators are measured with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

import torch
from torch import nn

__all__ = ["SweepCase", "cases"]

Run = Callable[[], Any]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT_AND_BFLOAT16 = (torch.float32, torch.bfloat16)
LAST = torch.channels_last


class SweepCase(NamedTuple):
    name: str
    make: Callable[[], Run]
    """Makes the tensors, and returns the function that is measured."""


def _case(make: Callable[..., Run], *values: Any) -> SweepCase:
    """A case that is named after the function that makes it and after its values."""
    words = [value.__name__ if callable(value) else str(value).removeprefix("torch.") for value in values]
    return SweepCase(" ".join([make.__name__.removeprefix("_make_"), *words]), partial(make, *values))


def _named(make: Callable[..., Run], name: str, function: Callable[..., Any], *values: Any) -> SweepCase:
    """A case of a function that has no name of its own."""
    return SweepCase(
        " ".join([name, *[str(value).removeprefix("torch.") for value in values]]), partial(make, function, *values)
    )


def _new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, device="cuda", dtype=dtype)


def _with_gradient(function: Callable[..., Any], *tensors: torch.Tensor) -> Run:
    """Run a function forward and backward, for the gradients of all tensors of floats."""
    inputs = [tensor.requires_grad_() for tensor in tensors if tensor.is_floating_point()]
    gradients: list[torch.Tensor] = []

    def run() -> None:
        result = function(*tensors)
        result = result[0] if isinstance(result, tuple) else result
        if not gradients:
            with _disable_current_modes():
                gradients.append(torch.ones_like(result))
        torch.autograd.grad(result, inputs, gradients, allow_unused=True)

    return run


def _with_module(module: nn.Module, x: torch.Tensor, last: bool = False) -> Run:
    module = module.to("cuda", x.dtype)
    if last:
        module, x = module.to(memory_format=LAST), x.contiguous(memory_format=LAST)  # type: ignore[call-overload]
    return _with_gradient(lambda x, *_: module(x), x, *module.parameters())


# ---- products ----


def _make_linear(dtype: torch.dtype, widths: tuple[int, int], rows: int, bias: bool) -> Run:
    a, b = widths
    tensors = [_new(rows, a, dtype=dtype), _new(b, a, dtype=dtype)] + [_new(b, dtype=dtype)] * bias
    return _with_gradient(F.linear, *tensors)


def _linear() -> Iterator[SweepCase]:
    widths = [
        (256, 256),
        (512, 512),
        (512, 2048),
        (768, 768),
        (768, 2304),
        (768, 3072),
        (3072, 768),
        (1024, 1024),
        (1024, 4096),
    ]
    widths += [
        (4096, 1024),
        (2048, 2048),
        (2048, 5632),
        (5632, 2048),
        (4096, 4096),
        (4096, 11008),
        (768, 32000),
        (1024, 50257),
    ]
    for values in product(FLOATS, widths, (128, 1024, 4096, 16384), (True, False)):
        yield _case(_make_linear, *values)


def _make_bmm(dtype: torch.dtype, batch: int, length: int, width: int) -> Run:
    return _with_gradient(torch.bmm, _new(batch, length, width, dtype=dtype), _new(batch, width, length, dtype=dtype))


def _batched_products() -> Iterator[SweepCase]:
    for values in product(FLOATS, (16, 96, 256), (128, 512, 1024), (64, 128)):
        yield _case(_make_bmm, *values)


# ---- convolutions ----


def _make_conv2d(dtype: torch.dtype, last: bool, batch: int, layer: tuple[int, ...]) -> Run:
    a, b, size, kernel, stride, groups = layer
    padding = kernel // 2 if stride < kernel else 0
    module = nn.Conv2d(a, b, kernel, stride, padding, groups=groups, bias=size == 224)
    return _with_module(module, _new(batch, a, size, size, dtype=dtype), last)


def _convolutions() -> Iterator[SweepCase]:
    # channels in, channels out, size of the image, kernel, stride, groups
    layers = [(3, 64, 224, 7, 2, 1), (3, 96, 224, 4, 4, 1), (3, 768, 224, 16, 16, 1), (3, 32, 224, 3, 2, 1)]
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        layers += [(channels, channels, size, 3, 1, 1), (channels, 4 * channels, size, 1, 1, 1)]
        layers += [(4 * channels, channels, size, 1, 1, 1), (channels, 2 * channels, size, 3, 2, 1)]
        layers += [(channels, 2 * channels, size, 1, 2, 1), (channels, channels, size, 7, 1, channels)]
        layers += [(channels, channels, size, 3, 1, channels), (channels, channels, size, 3, 1, 32)]
    layers += [(16384 // size, 16384 // size, size, 3, 1, 1) for size in (256, 128, 64)]
    for values in product(FLOAT_AND_BFLOAT16, (False, True), (8, 32), layers):
        yield _case(_make_conv2d, *values)


def _make_convolution(kind: Any, dtype: torch.dtype, shape: tuple[int, ...], arguments: tuple[int, ...]) -> Run:
    return _with_module(kind(*arguments), _new(*shape, dtype=dtype))


def _other_convolutions() -> Iterator[SweepCase]:
    layers: tuple[tuple[Any, tuple[int, ...], tuple[int, ...]], ...] = (
        (nn.ConvTranspose2d, (8, 256, 64, 64), (256, 128, 2, 2)),
        (nn.ConvTranspose2d, (8, 128, 64, 64), (128, 64, 4, 2, 1)),
        (nn.Conv1d, (8, 80, 3000), (80, 384, 3, 1, 1)),
        (nn.Conv1d, (8, 384, 3000), (384, 384, 3, 2, 1)),
        (nn.Conv1d, (8, 512, 4000), (512, 512, 3, 2)),
        (nn.Conv3d, (4, 3, 16, 56, 56), (3, 64, 3, 1, 1)),
        (nn.Conv3d, (4, 64, 16, 28, 28), (64, 64, 3, 1, 1)),
    )
    for dtype, (kind, shape, arguments) in product(FLOAT_AND_BFLOAT16, layers):
        yield _case(_make_convolution, kind, dtype, shape, arguments)


# ---- norms and reductions ----


def _make_norm(kind: Any, dtype: torch.dtype, rows: int, width: int) -> Run:
    return _with_module(kind(width), _new(8, rows // 8, width, dtype=dtype))


def _make_norm_of_image(kind: Any, dtype: torch.dtype, last: bool, batch: int, channels: int, size: int) -> Run:
    module = kind(channels) if kind is nn.BatchNorm2d else kind(32, channels)
    return _with_module(module, _new(batch, channels, size, size, dtype=dtype), last)


def _norms() -> Iterator[SweepCase]:
    for kind, *values in product(
        (nn.LayerNorm, nn.RMSNorm), FLOATS, (512, 4096, 16384), (256, 512, 768, 1024, 2048, 4096)
    ):
        yield _case(_make_norm, kind, *values)
    images = ((64, 112), (64, 56), (256, 56), (128, 28), (512, 28), (1024, 14), (2048, 7))
    for kind, dtype, last, batch, image in product(
        (nn.BatchNorm2d, nn.GroupNorm), FLOAT_AND_BFLOAT16, (False, True), (8, 64), images
    ):
        yield _case(_make_norm_of_image, kind, dtype, last, batch, *image)


def _make_matrix(function: Callable[..., Any], dtype: torch.dtype, rows: int, width: int) -> Run:
    return _with_gradient(function, _new(rows, width, dtype=dtype))


def _reductions() -> Iterator[SweepCase]:
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "sum": lambda x: x.sum(),
        "sum 0": lambda x: x.sum(0, keepdim=True),
        "sum -1": lambda x: x.sum(-1),
        "mean": lambda x: x.mean(),
        "mean -1": lambda x: x.mean(-1, keepdim=True),
        "amax -1": lambda x: x.amax(-1),
        "max": lambda x: x.max(),
        "max -1": lambda x: x.max(-1)[0],
        "var_mean -1": lambda x: torch.var_mean(x, -1)[0],
        "norm": lambda x: x.norm(),
        "softmax": lambda x: x.softmax(-1),
        "log_softmax": lambda x: x.log_softmax(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "cumsum": lambda x: x.cumsum(-1),
    }
    for dtype, rows, width in product(FLOATS, (64, 1024, 4096, 16384), (10, 64, 768, 2048, 32000)):
        if rows * width <= 1 << 27:
            for name, function in functions.items():
                yield _named(_make_matrix, name, function, dtype, rows, width)


# ---- embeddings, losses, sorts, indexing ----


def _make_embedding(dtype: torch.dtype, vocabulary: int, width: int, tokens: int) -> Run:
    ids = torch.randint(0, vocabulary, (8, tokens // 8), device="cuda")
    return _with_gradient(partial(F.embedding, ids), _new(vocabulary, width, dtype=dtype))


def _make_cross_entropy(dtype: torch.dtype, classes: int, rows: int) -> Run:
    target = torch.randint(0, classes, (rows,), device="cuda")
    return _with_gradient(lambda x: F.cross_entropy(x, target), _new(rows, classes, dtype=dtype))


def _embeddings_and_losses() -> Iterator[SweepCase]:
    for values in product(FLOAT_AND_BFLOAT16, (2, 1024, 32000, 50257), (256, 768, 2048), (512, 4096, 16384)):
        yield _case(_make_embedding, *values)
    for others in product(FLOAT_AND_BFLOAT16, (10, 1000, 32000, 50257), (64, 1024, 4096)):
        yield _case(_make_cross_entropy, *others)


def _make_without_gradient(function: Callable[..., Any], rows: int, width: int) -> Run:
    return partial(function, _new(rows, width))


def _make_index(rows: int, width: int) -> Run:
    index = torch.randint(0, rows, (2 * rows,), device="cuda")
    return _with_gradient(lambda x: x[index], _new(rows, width))


def _sorts_and_indexing() -> Iterator[SweepCase]:
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "sort": lambda x: x.sort(-1),
        "topk": lambda x: x.topk(8, -1),
        "argmax": lambda x: x.argmax(-1),
        "argsort": lambda x: x.argsort(-1),
        "multinomial": lambda x: torch.multinomial(x, 1),
        "unique": lambda x: x.unique(),
        "nonzero": lambda x: (x > 0.5).nonzero(),
        "masked_select": lambda x: x[x > 0.5],
        "roll": lambda x: x.roll(1, -1),
        "flip": lambda x: x.flip(-1),
    }
    for rows, width in product((1, 64, 1024), (128, 4096, 32000)):
        for name, function in functions.items():
            yield _named(_make_without_gradient, name, function, rows, width)
        yield _case(_make_index, rows, width)


# ---- attention and recurrent layers ----


def _make_attention(dtype: torch.dtype, shape: tuple[int, int, int, int], kind: str) -> Run:
    batch, heads, length, width = shape
    mask = torch.zeros(batch, 1, length, length, device="cuda", dtype=dtype) if kind == "mask" else None

    def attend(x: torch.Tensor) -> torch.Tensor:
        query, key, value = x.view(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(
            query, key, value, mask, 0.1 if kind == "dropout" else 0.0, kind == "causal"
        )

    return _with_gradient(attend, _new(batch, length, 3 * heads * width, dtype=dtype))


def _attention() -> Iterator[SweepCase]:
    shapes = [
        (8, 12, 512, 64),
        (16, 12, 256, 64),
        (2, 32, 1024, 64),
        (4, 16, 1024, 64),
        (32, 12, 197, 64),
        (2, 16, 2048, 128),
    ]
    shapes += [(64, 3, 49, 32)]
    for values in product(FLOATS, shapes, ("plain", "causal", "mask", "dropout")):
        yield _case(_make_attention, *values)


def _make_recurrent(kind: Any, dtype: torch.dtype, width: int, layers: int, both: bool) -> Run:
    return _with_module(
        kind(width, width, layers, batch_first=True, bidirectional=both), _new(32, 128, width, dtype=dtype)
    )


def _recurrent() -> Iterator[SweepCase]:
    kinds: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    for values in product(kinds, FLOAT_AND_BFLOAT16, (256, 512, 1024), (1, 2), (False, True)):
        yield _case(_make_recurrent, *values)


# ---- images, elementwise operators, optimizers ----


def _make_image(function: Callable[..., Any], dtype: torch.dtype, last: bool, channels: int, size: int) -> Run:
    x = _new(32, channels, size, size, dtype=dtype)
    return _with_gradient(function, x.contiguous(memory_format=LAST) if last else x)


def _images() -> Iterator[SweepCase]:
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "max_pool2d 3": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool2d 2": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
        "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    }
    for dtype, last, image in product(FLOAT_AND_BFLOAT16, (False, True), ((64, 112), (256, 56), (2048, 7))):
        for name, function in functions.items():
            yield _named(_make_image, name, function, dtype, last, *image)


def _elementwise() -> Iterator[SweepCase]:
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "add": lambda x: x + x,
        "mul": lambda x: x * x,
        "mul number": lambda x: x * 0.3,
        "div": lambda x: x / 3.0,
        "pow": lambda x: x.pow(2),
        "rsqrt": lambda x: x.rsqrt(),
        "exp": lambda x: x.exp(),
        "tanh": lambda x: x.tanh(),
        "sigmoid": lambda x: x.sigmoid(),
        "relu": lambda x: x.relu(),
        "gelu": lambda x: F.gelu(x),
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": lambda x: F.silu(x),
        "dropout": lambda x: F.dropout(x, 0.1),
        "where": lambda x: torch.where(x > 0.5, x, 0.0),
        "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.0),
        "clone": lambda x: x.clone(),
        "transpose": lambda x: x.transpose(0, 1).contiguous(),
        "cat": lambda x: torch.cat([x, x], -1),
        "to another type": lambda x: x.float() if x.dtype != torch.float32 else x.bfloat16(),
    }
    for dtype, elements in product(FLOATS, (1 << 12, 1 << 18, 1 << 22, 1 << 25)):
        for name, function in functions.items():
            yield _named(_make_matrix, name, function, dtype, elements // 1024, 1024)


def _make_optimizer(kind: Any, dtype: torch.dtype, width: int) -> Run:
    parameters = [
        p.requires_grad_() for _ in range(24) for p in (_new(width, width, dtype=dtype), _new(width, dtype=dtype))
    ]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = kind(parameters)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return run


def _optimizers() -> Iterator[SweepCase]:
    kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "AdamW": torch.optim.AdamW,
        "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
        "Adam": torch.optim.Adam,
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "RMSprop": torch.optim.RMSprop,
    }
    for (name, kind), dtype, width in product(kinds.items(), FLOAT_AND_BFLOAT16, (256, 1024)):
        yield _named(_make_optimizer, name, kind, dtype, width)


def cases() -> Iterator[SweepCase]:
    """All cases, those of which most depends first."""
    families = [_linear, _convolutions, _norms, _attention, _reductions, _embeddings_and_losses, _elementwise]
    families += [_batched_products, _other_convolutions, _images, _sorts_and_indexing, _optimizers, _recurrent]
    for family in families:
        yield from family()
