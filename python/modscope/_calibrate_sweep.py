"""The operators that ``modscope calibrate`` measures without a script: small differentiable programs over common shapes and
types, in a fixed order. Their backward operators are measured with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Case", "cases"]

Run = Callable[[], Any]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT_AND_BFLOAT16 = (torch.float32, torch.bfloat16)
LAST = torch.channels_last


class Case(NamedTuple):
    name: str
    make: Callable[[], Run]
    """Makes the tensors, and returns the function that is measured."""


def _new(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> torch.Tensor:
    return torch.rand(shape, device=device, dtype=dtype)


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


def _with_module(module: nn.Module, x: torch.Tensor, channels_last: bool = False) -> Run:
    module = module.to("cuda", x.dtype)
    if channels_last:
        module, x = module.to(memory_format=LAST), x.contiguous(memory_format=LAST)  # type: ignore[call-overload]
    return _with_gradient(lambda x, *_: module(x), x, *module.parameters())


# ---- one function for each family of operators ----


def _linear() -> Iterator[Case]:
    widths = [(256, 256), (512, 512), (512, 2048), (768, 768), (768, 2304), (768, 3072), (3072, 768), (1024, 1024), (1024, 4096)]
    widths += [(4096, 1024), (2048, 2048), (2048, 5632), (5632, 2048), (4096, 4096), (4096, 11008), (768, 32000), (1024, 50257)]
    for dtype, (a, b), rows, bias in itertools.product(FLOATS, widths, (128, 1024, 4096, 16384), (True, False)):
        def make(a: int = a, b: int = b, rows: int = rows, dtype: torch.dtype = dtype, bias: bool = bias) -> Run:
            tensors = [_new(rows, a, dtype=dtype), _new(b, a, dtype=dtype)] + [_new(b, dtype=dtype)] * bias
            return _with_gradient(F.linear, *tensors)

        yield Case(f"linear {rows} {a} {b} bias={bias} {dtype}", make)


def _batched_products() -> Iterator[Case]:
    for dtype, batch, length, width in itertools.product(FLOATS, (16, 96, 256), (128, 512, 1024), (64, 128)):
        def make(n: int = batch, s: int = length, d: int = width, dtype: torch.dtype = dtype) -> Run:
            return _with_gradient(torch.bmm, _new(n, s, d, dtype=dtype), _new(n, d, s, dtype=dtype))

        yield Case(f"bmm {batch} {length} {width} {dtype}", make)


def _convolutions() -> Iterator[Case]:
    # channels in, channels out, size of the image, kernel, stride, groups
    layers = [(3, 64, 224, 7, 2, 1), (3, 96, 224, 4, 4, 1), (3, 768, 224, 16, 16, 1), (3, 32, 224, 3, 2, 1)]
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        layers += [(channels, channels, size, 3, 1, 1), (channels, 4 * channels, size, 1, 1, 1)]
        layers += [(4 * channels, channels, size, 1, 1, 1), (channels, 2 * channels, size, 3, 2, 1)]
        layers += [(channels, 2 * channels, size, 1, 2, 1), (channels, channels, size, 7, 1, channels)]
        layers += [(channels, channels, size, 3, 1, channels), (channels, channels, size, 3, 1, 32)]
    for size in (256, 128, 64):
        layers += [(16384 // size, 16384 // size, size, 3, 1, 1)]
    for dtype, last, batch, layer in itertools.product(FLOAT_AND_BFLOAT16, (False, True), (8, 32), layers):
        def make(layer: Any = layer, batch: int = batch, last: bool = last, dtype: torch.dtype = dtype) -> Run:
            a, b, size, kernel, stride, groups = layer
            padding = kernel // 2 if stride < kernel else 0
            module = nn.Conv2d(a, b, kernel, stride, padding, groups=groups, bias=size == 224)
            return _with_module(module, _new(batch, a, size, size, dtype=dtype), last)

        yield Case(f"conv2d {batch} {layer} last={last} {dtype}", make)


def _other_convolutions() -> Iterator[Case]:
    modules: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "conv_transpose2d 256 128": (lambda: nn.ConvTranspose2d(256, 128, 2, 2), (8, 256, 64, 64)),
        "conv_transpose2d 128 64": (lambda: nn.ConvTranspose2d(128, 64, 4, 2, 1), (8, 128, 64, 64)),
        "conv1d 80 384": (lambda: nn.Conv1d(80, 384, 3, padding=1), (8, 80, 3000)),
        "conv1d 384 384": (lambda: nn.Conv1d(384, 384, 3, 2, padding=1), (8, 384, 3000)),
        "conv1d 512 512": (lambda: nn.Conv1d(512, 512, 3, 2), (8, 512, 4000)),
        "conv3d 3 64": (lambda: nn.Conv3d(3, 64, 3, padding=1), (4, 3, 16, 56, 56)),
        "conv3d 64 64": (lambda: nn.Conv3d(64, 64, 3, padding=1), (4, 64, 16, 28, 28)),
    }
    for dtype, (name, (module, shape)) in itertools.product(FLOAT_AND_BFLOAT16, modules.items()):
        yield Case(f"{name} {dtype}", lambda m=module, s=shape, t=dtype: _with_module(m(), _new(*s, dtype=t)))  # type: ignore[misc]


def _norms() -> Iterator[Case]:
    for dtype, rows, width in itertools.product(FLOATS, (512, 4096, 16384), (256, 512, 768, 1024, 2048, 4096)):
        for name, module in (("layer_norm", nn.LayerNorm), ("rms_norm", nn.RMSNorm)):
            def make(m: Any = module, rows: int = rows, width: int = width, dtype: torch.dtype = dtype) -> Run:
                return _with_module(m(width), _new(8, rows // 8, width, dtype=dtype))

            yield Case(f"{name} {rows} {width} {dtype}", make)
    images = ((64, 112), (64, 56), (256, 56), (128, 28), (512, 28), (1024, 14), (2048, 7))
    for dtype, last, batch, (channels, size) in itertools.product(FLOAT_AND_BFLOAT16, (False, True), (8, 64), images):
        for name, norm in (("batch_norm", nn.BatchNorm2d), ("group_norm", lambda c: nn.GroupNorm(32, c))):
            def make_2d(m: Any = norm, b: int = batch, c: int = channels, s: int = size, last: bool = last, t: Any = dtype) -> Run:
                return _with_module(m(c), _new(b, c, s, s, dtype=t), last)

            yield Case(f"{name} {batch} {channels} {size} last={last} {dtype}", make_2d)


def _reductions() -> Iterator[Case]:
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
    widths = (10, 64, 768, 2048, 32000)
    for dtype, rows, width, (name, function) in itertools.product(FLOATS, (64, 1024, 4096, 16384), widths, functions.items()):
        if rows * width <= 1 << 27:
            def make(f: Any = function, rows: int = rows, width: int = width, dtype: torch.dtype = dtype) -> Run:
                return _with_gradient(f, _new(rows, width, dtype=dtype))

            yield Case(f"{name} {rows} {width} {dtype}", make)


def _embeddings_and_losses() -> Iterator[Case]:
    for dtype, vocabulary, width, tokens in itertools.product(FLOAT_AND_BFLOAT16, (2, 1024, 32000, 50257), (256, 768, 2048), (512, 4096, 16384)):
        def make(v: int = vocabulary, w: int = width, n: int = tokens, dtype: torch.dtype = dtype) -> Run:
            ids = torch.randint(0, v, (8, n // 8), device="cuda")
            return _with_gradient(lambda weight: F.embedding(ids, weight), _new(v, w, dtype=dtype))

        yield Case(f"embedding {vocabulary} {width} {tokens} {dtype}", make)
    for dtype, classes, rows in itertools.product(FLOAT_AND_BFLOAT16, (10, 1000, 32000, 50257), (64, 1024, 4096)):
        def make_loss(classes: int = classes, rows: int = rows, dtype: torch.dtype = dtype) -> Run:
            target = torch.randint(0, classes, (rows,), device="cuda")
            return _with_gradient(lambda x: F.cross_entropy(x, target), _new(rows, classes, dtype=dtype))

        yield Case(f"cross_entropy {rows} {classes} {dtype}", make_loss)


def _sorts_and_indexing() -> Iterator[Case]:
    for rows, width in itertools.product((1, 64, 1024), (128, 4096, 32000)):
        functions: dict[str, Callable[[torch.Tensor], Any]] = {
            "sort": lambda x: x.sort(-1)[0],
            "topk": lambda x: x.topk(8, -1)[0],
            "argmax": lambda x: x.argmax(-1),
            "argsort": lambda x: x.argsort(-1),
            "multinomial": lambda x: torch.multinomial(x.float(), 1),
            "unique": lambda x: x.unique(),
            "nonzero": lambda x: (x > 0.5).nonzero(),
            "masked_select": lambda x: x[x > 0.5],
            "index_select": lambda x: x[:, :64],
            "roll": lambda x: x.roll(1, -1),
            "flip": lambda x: x.flip(-1),
        }
        for name, function in functions.items():
            def make(f: Any = function, rows: int = rows, width: int = width) -> Run:
                x = _new(rows, width)
                return lambda: f(x)

            yield Case(f"{name} {rows} {width}", make)
        def make_index(rows: int = rows, width: int = width) -> Run:
            index = torch.randint(0, rows, (2 * rows,), device="cuda")
            return _with_gradient(lambda x: x[index], _new(rows, width))

        yield Case(f"index {rows} {width}", make_index)


def _attention() -> Iterator[Case]:
    shapes = ((8, 12, 512, 64), (16, 12, 256, 64), (2, 32, 1024, 64), (4, 16, 1024, 64), (32, 12, 197, 64), (2, 16, 2048, 128), (64, 3, 49, 32))
    for dtype, shape, kind in itertools.product(FLOATS, shapes, ("plain", "causal", "mask", "dropout")):
        def make(shape: tuple[int, ...] = shape, kind: str = kind, dtype: torch.dtype = dtype) -> Run:
            mask = torch.zeros(shape[0], 1, shape[2], shape[2], device="cuda", dtype=dtype) if kind == "mask" else None
            dropout = 0.1 if kind == "dropout" else 0.0

            def attend(x: torch.Tensor) -> torch.Tensor:
                q, k, v = x.view(shape[0], shape[2], 3, shape[1], shape[3]).permute(2, 0, 3, 1, 4)
                return F.scaled_dot_product_attention(q, k, v, mask, dropout, kind == "causal")

            return _with_gradient(attend, _new(shape[0], shape[2], 3 * shape[1] * shape[3], dtype=dtype))

        yield Case(f"attention {shape} {kind} {dtype}", make)


def _recurrent() -> Iterator[Case]:
    kinds: tuple[Any, ...] = (nn.LSTM, nn.GRU, nn.RNN)
    for dtype, kind, width, layers, both in itertools.product(FLOAT_AND_BFLOAT16, kinds, (256, 512, 1024), (1, 2), (False, True)):
        def make(kind: Any = kind, width: int = width, layers: int = layers, both: bool = both, dtype: torch.dtype = dtype) -> Run:
            module = kind(width, width, layers, batch_first=True, bidirectional=both)
            return _with_module(module, _new(32, 128, width, dtype=dtype))

        yield Case(f"{kind.__name__} {width} {layers} both={both} {dtype}", make)


def _pooling() -> Iterator[Case]:
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool2d 2": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "interpolate nearest": lambda x: F.interpolate(x, scale_factor=2),
        "interpolate bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    }
    for dtype, last, (channels, size) in itertools.product(FLOAT_AND_BFLOAT16, (False, True), ((64, 112), (256, 56), (2048, 7))):
        for name, function in functions.items():
            def make(f: Any = function, c: int = channels, s: int = size, last: bool = last, dtype: torch.dtype = dtype) -> Run:
                x = _new(32, c, s, s, dtype=dtype)
                return _with_gradient(f, x.contiguous(memory_format=LAST) if last else x)

            yield Case(f"{name} {channels} {size} last={last} {dtype}", make)


def _elementwise() -> Iterator[Case]:
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
        "to float": lambda x: x.float() if x.dtype != torch.float32 else x.bfloat16(),
    }
    for dtype, elements, (name, function) in itertools.product(FLOATS, (1 << 12, 1 << 18, 1 << 22, 1 << 25), functions.items()):
        def make(f: Any = function, elements: int = elements, dtype: torch.dtype = dtype) -> Run:
            return _with_gradient(f, _new(elements // 1024, 1024, dtype=dtype))

        yield Case(f"{name} {elements} {dtype}", make)


def _optimizers() -> Iterator[Case]:
    kinds: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "AdamW": lambda p: torch.optim.AdamW(p),
        "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
        "Adam": lambda p: torch.optim.Adam(p),
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "RMSprop": lambda p: torch.optim.RMSprop(p),
    }
    for dtype, width, (name, kind) in itertools.product(FLOAT_AND_BFLOAT16, (256, 1024), kinds.items()):
        def make(kind: Any = kind, width: int = width, dtype: torch.dtype = dtype) -> Run:
            parameters = [p for _ in range(24) for p in (_new(width, width, dtype=dtype), _new(width, dtype=dtype))]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer = kind([parameter.requires_grad_() for parameter in parameters])

            def run() -> None:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()

            return run

        yield Case(f"{name} {width} {dtype}", make)


def cases() -> Iterator[Case]:
    """All cases, those of which most depends first."""
    families = [_linear, _convolutions, _norms, _attention, _reductions, _embeddings_and_losses, _elementwise]
    families += [_batched_products, _other_convolutions, _recurrent, _pooling, _sorts_and_indexing, _optimizers]
    for family in families:
        yield from family()
