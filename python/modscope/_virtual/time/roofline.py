"""How long an operator keeps the device busy: the time for its arithmetic or for its memory traffic, whichever is
longer, and a fixed time for each kernel that it launches. The fractions of the peaks that operators reach are
at the top."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils import flop_counter

import torch
from modscope._virtual.gpus import Gpu, Speed
from modscope._virtual.time.products import AttentionSizes, ConvolutionSizes, Product, Products

__all__ = ["KERNEL", "Roofline", "recurrent_steps"]

# ---- the fractions of a GPU's peaks that classes of operators reach ----
#
# They were measured over many shapes on an H200, and are taken to be the same on other GPUs. They are typical for a
# class of operators, not for one operator with one shape.

KERNEL = 2.5e-6
"""Seconds of a kernel that does next to nothing, with the gap before the next one."""
STRIDED = 0.5
"""The fraction of the bandwidth that is reached where the elements of a tensor are not read in their order in
memory."""
ATTENTION = {"flash": (0.30, 0.22), "cudnn": (0.45, 0.33), "efficient": (0.14, 0.11)}
"""The fraction of the tensor cores' peak that attention reaches in 16 bits with wide heads, forward and backward."""
ATTENTION_FLOAT32 = (0.60, 0.42)
"""The fraction of the peak without tensor cores that attention reaches in float32."""
WIDE_HEAD = 96
"""Elements of a wide head. With narrower heads, the fraction is smaller in proportion."""


class OperatorClass(NamedTuple):
    """A class of operators that move memory."""

    of_bandwidth: float = 0.80
    """The fraction of the bandwidth that it reaches, for its arguments and results moved once."""
    kernels: float = 1
    per_row: float = 0.0
    """Seconds that a multiprocessor takes for a row at least: a row is what is normalized or summed together."""


ELEMENTWISE = OperatorClass()
CLASSES = {
    "native_dropout": OperatorClass(0.65),
    "cat": OperatorClass(0.70),
    "masked_fill": OperatorClass(0.45, 2),
    "roll": OperatorClass(0.40),
    "native_layer_norm": OperatorClass(0.70, 1, 0.18e-6),
    "_fused_rms_norm": OperatorClass(0.70, 1, 0.07e-6),
    "native_layer_norm_backward": OperatorClass(0.55, 3, 0.25e-6),
    "_fused_rms_norm_backward": OperatorClass(0.55, 3, 0.25e-6),
    "_log_softmax": OperatorClass(0.50, 1, 0.01e-6),
    "_softmax": OperatorClass(0.60, 1, 0.01e-6),
    "_log_softmax_backward_data": OperatorClass(0.62, 1, 0.01e-6),
    "_softmax_backward_data": OperatorClass(0.62, 1, 0.01e-6),
    "nll_loss_backward": OperatorClass(0.60, 2),
    "embedding_dense_backward": OperatorClass(0.30, 30),
    "_index_put_impl_": OperatorClass(0.20, 12),
    "index_put": OperatorClass(0.20, 12),
    "index_put_": OperatorClass(0.20, 12),
    "index_add_": OperatorClass(0.30),
    "sort": OperatorClass(0.05, 8),
    "topk": OperatorClass(0.10, 4),
    "cumsum": OperatorClass(0.30, 2),
    "max_pool2d_with_indices": OperatorClass(0.40),
    "max_pool2d_with_indices_backward": OperatorClass(0.30),
    "avg_pool2d": OperatorClass(0.35),
    "avg_pool2d_backward": OperatorClass(0.35),
    "_adaptive_avg_pool2d": OperatorClass(0.35),
    "_adaptive_avg_pool2d_backward": OperatorClass(0.15),
    "upsample_bilinear2d": OperatorClass(0.15),
    "upsample_bilinear2d_backward": OperatorClass(0.10),
}
NORMS_BY_CHANNEL = {
    "native_batch_norm": 1.0,
    "_batch_norm_with_update": 1.0,
    "cudnn_batch_norm": 1.8,
    "native_group_norm": 1.0,
}
"""Operators that sum over the elements of a channel or a group in one block of threads, and how many times faster than
torch's own kernel they are."""
CHANNEL_RATE, CHANNEL_RATE_SHARED = 1.1e9, 1.6e9
"""Elements a second that a block of threads sums, alone on a multiprocessor and with others."""
SMALL = {"nll_loss_forward": 2, "nll_loss2d_forward": 3}
"""Operators that look at a few elements, and how many kernels they launch."""
CONVOLUTION_OF_PEAK = 1.0
"""The rate of convolutions, as a fraction of that of matrix products."""
GROUPED_OF_PEAK = 0.4
"""The rate of convolutions with several groups, as a fraction of that of matrix products."""
FEW_CHANNELS, FEW_CHANNELS_RATE = 8, 0.5
"""With fewer channels, or a number of channels that is no multiple of this, tensor cores help little: this fraction of
the peak without them is reached."""
PLANAR = 8
"""Additional bytes that are moved for each element of arguments and results where channels are not the last dimension:
kernels want them last, and copies are made. A product of channels alone (1 by 1) needs none."""
DEPTHWISE = (0.045, 0.10)
"""The fraction of the peak without tensor cores that convolutions with one channel in each group reach: with channels
first, and with channels last."""
DEPTHWISE_WEIGHT = (0.006, 0.012)
"""The fraction that the gradient of their weight reaches, which sums over all places for each of a few numbers."""
RECURRENT_STEP = 8e-6
"""Seconds that cuDNN takes at least for one time step of one layer."""
RECURRENT_OF_PEAK = 0.3
"""The fraction of the peak that its products reach, where they take longer than that."""
COUNTED_OF_PEAK = 0.5
"""The fraction of the peak that other operators reach for which torch counts operations."""
MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""The most tensors that one kernel takes, by how many lists the operator has
(ATen/native/cuda/MultiTensorApply.cuh)."""
MOST_CHUNKS, CHUNK = 320, 65536
"""The most chunks that one kernel takes, and the elements of a chunk (the same file)."""
GATHERS = {"index_select", "index", "gather", "embedding", "take", "_unsafe_index"}
"""They read as much of their first argument as they return."""
SCATTERS = {
    "index_put_",
    "_index_put_impl_",
    "scatter_",
    "scatter_add_",
    "index_add_",
    "index_copy_",
    "scatter_reduce_",
}
"""They write as much of their first argument as the values that they are given."""
OVERWRITES = {"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
"""They do not read the argument that they change."""


# ---- arguments and results ----


def _tensors(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        if argument.device.type != "cpu":
            yield argument
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from _tensors(item)


def _specs(specs: Any) -> Iterator[Any]:
    if isinstance(specs, tuple):
        yield specs
    elif isinstance(specs, list):
        for item in specs:
            yield from _specs(item)


def _bytes(shape: Any, strides: Any, dtype: torch.dtype) -> int:
    """The memory behind a tensor. Elements that an expanded tensor repeats are there once."""
    sizes: list[int] = [size for size, stride in zip(shape, strides, strict=True) if stride or not size]
    return dtype.itemsize * math.prod(sizes)


def _tensor_bytes(tensor: torch.Tensor) -> int:
    return _bytes(tensor.shape, tensor.stride(), tensor.dtype)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether rows of elements lie beside each other in memory, in any order of the dimensions."""
    return tensor.numel() < 2 or any(s == 1 and n > 1 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _order(tensor: torch.Tensor) -> int:
    """The dimension along which elements lie beside each other."""
    strides = tensor.stride()
    sizes = tensor.shape
    found = [d for d in range(tensor.dim()) if strides[d] == 1 and sizes[d] > 1]
    return found[-1] - tensor.dim() if found else -1


def _argument(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """An argument by its name; None if it was not given."""
    names = [argument.name for argument in op._schema.arguments]
    position = names.index(name)
    return args[position] if position < len(args) else kwargs.get(name)


def _name(op: Any) -> str:
    return str(op._schema.name).partition("::")[2]


def _rows(name: str, args: Any) -> float:
    """How many rows an operator normalizes."""
    x = args[0]
    if "norm" in name:
        shape = args[2] if name.endswith("backward") else args[1]
        return float(x.numel() / max(math.prod(shape), 1))
    dim = args[2] if name.endswith("data") else args[1]
    return float(x.numel() / max(x.shape[-1], 1)) if dim in (-1, x.dim() - 1) else 0.0


def recurrent_steps(op: Any, args: Any, kwargs: Any) -> int:
    """How many time steps the layers of a recurrent network take, one after another."""
    layers, both = _argument(op, "num_layers", args, kwargs), _argument(op, "bidirectional", args, kwargs)
    x, lengths = args[0], _argument(op, "batch_sizes", args, kwargs)
    steps = len(lengths) or x.shape[1 if _argument(op, "batch_first", args, kwargs) else 0]
    return int(steps * layers * (2 if both else 1))


class Roofline:
    """Tells how many seconds operators take on one GPU."""

    def __init__(self, gpu: Gpu, speed: Speed) -> None:
        self._speed = speed
        self._gpu = gpu
        self._bandwidth = speed.bandwidth * 1e9
        self._products = Products(gpu, speed)
        self._special: dict[str, Callable[..., float]] = {
            "mm": self._mm,
            "addmm": lambda op, args, kwargs, specs: self._mm(op, args[1:], kwargs, specs),
            "bmm": self._mm,
            "baddbmm": lambda op, args, kwargs, specs: self._mm(op, args[1:], kwargs, specs),
            "convolution": self._convolution,
            "convolution_backward": self._convolution_backward,
            "_cudnn_rnn": self._recurrent,
            "_cudnn_rnn_backward": self._recurrent,
        }

    def seconds(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        """How long the device runs. ``specs``: what the operator returns; None if it returns arguments or nothing."""
        try:
            return self._estimate(op, args, kwargs, specs)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return KERNEL  # its arguments have another form than this version of torch gives them

    def _estimate(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        schema = op._schema
        if schema.returns and all(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return 0.0  # a view
        name = _name(op)
        special = self._special.get(name)
        if special is not None:
            return special(op, args, kwargs, specs)
        if "attention" in name and any(kind in name for kind in ATTENTION):
            return self._attention(op, name, args, kwargs, specs)
        if name in SMALL:
            return SMALL[name] * KERNEL
        if "batch_norm" in name or "group_norm" in name:
            return self._norm(op, name, args, kwargs, specs)
        if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")):
            return self._on_lists(op, args, kwargs, specs)
        seconds = self._memory(op, name, args, kwargs, specs)
        formula = flop_counter.flop_registry.get(getattr(op, "overloadpacket", None))
        if formula is not None:
            seconds = max(seconds, self._counted(formula, args, kwargs, specs))
        return seconds

    def kernel_seconds(self, bytes: float, operations: float, dtype: torch.dtype) -> float:
        """A kernel that was generated for what a program does: it moves these bytes once."""
        rate = self._products.rate(dtype, torch.backends.cuda.matmul.allow_tf32)
        moved = bytes / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        return KERNEL + max(moved, operations / (rate.peak * COUNTED_OF_PEAK))

    # ---- memory ----

    def _moved(self, op: Any, args: Any, kwargs: Any, specs: Any) -> int:
        """How many bytes are read and written."""
        name = _name(op)
        results = sum(_bytes(*spec) for spec in _specs(specs))
        if name in GATHERS:
            return 2 * results + sum(_tensor_bytes(t) for t in _tensors(list(args[1:])))
        if name in SCATTERS:
            return 2 * sum(_tensor_bytes(t) for t in _tensors(list(args[1:])))
        total = results
        for position, argument in enumerate(op._schema.arguments):
            value = kwargs.get(argument.name) if position >= len(args) else args[position]
            if value is None:
                continue
            bytes = sum(_tensor_bytes(t) for t in _tensors(value))
            alias = argument.alias_info
            changed = alias is not None and alias.is_write
            if changed and argument.kwarg_only:  # out=: it is among the results
                continue
            total += bytes * (2 if changed and name not in OVERWRITES else 1)
        return total

    def _in_order(self, args: Any, kwargs: Any) -> bool:
        """Whether all arguments lie in memory in the same order."""
        tensors = [t for t in _tensors([list(args), list(kwargs.values())]) if t.numel() > 1 and t.dim() > 1]
        if not all(_is_dense(t) for t in tensors):
            return False
        largest = max((t.numel() for t in tensors), default=0)
        return len({_order(t) for t in tensors if t.numel() == largest}) < 2

    def _memory(self, op: Any, name: str, args: Any, kwargs: Any, specs: Any) -> float:
        kind = CLASSES.get(name, ELEMENTWISE)
        fraction = kind.of_bandwidth * (1.0 if self._in_order(args, kwargs) else STRIDED)
        rows = kind.per_row * _rows(name, args) / self._gpu.processors if kind.per_row else 0.0
        return kind.kernels * KERNEL + rows + self._moved(op, args, kwargs, specs) / (self._bandwidth * fraction)

    def _norm(self, op: Any, name: str, args: Any, kwargs: Any, specs: Any) -> float:
        """Batch and group norms: each channel or group is summed by one block of threads, then all elements are
        scaled."""
        backward = name.endswith("backward")
        x = args[1] if backward else args[0]
        if "group" in name:
            rows = x.shape[0] * args[8 if backward else 6]
        else:
            rows = x.shape[1] if x.dim() > 1 else 1
        moved = self._moved(op, args, kwargs, specs) / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        faster = NORMS_BY_CHANNEL.get(name.removesuffix("_backward"), 1.0)
        each = x.numel() / max(rows, 1)
        last = x.dim() > 3 and _order(x) == 1 - x.dim()
        alone, shared = each / CHANNEL_RATE, x.numel() / (self._gpu.processors * CHANNEL_RATE_SHARED)
        summed = moved if last else max(alone, shared) / faster
        return (4 if backward else 3) * KERNEL + moved + summed * (1.5 if backward else 1.0)

    def _on_lists(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        lists = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
        sizes = [t.numel() for t in _tensors(lists[0])] if lists else []
        most = MOST_TENSORS.get(len(lists) + (1 if specs else 0), 30)
        chunks = sum(-(-n // CHUNK) for n in sizes)
        kernels = max(-(-len(sizes) // most), -(-chunks // MOST_CHUNKS), 1)
        return kernels * KERNEL + self._moved(op, args, kwargs, specs) / (self._bandwidth * ELEMENTWISE.of_bandwidth)

    # ---- arithmetic ----

    def _mm(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        a, b = args[0], args[1]
        batch = a.shape[0] if a.dim() == 3 else 1
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        per_row = 16 // a.dtype.itemsize
        aligned = all(max(t.stride()[-2:]) % per_row == 0 for t in (a, b)) and n % per_row == 0
        rate = self._products.rate(a.dtype, torch.backends.cuda.matmul.allow_tf32)
        seconds = self._products.seconds(rate, batch, m, n, k, aligned)
        bytes = int(_tensor_bytes(a) + _tensor_bytes(b) + batch * m * n * a.dtype.itemsize)
        return KERNEL + max(seconds, bytes / (self._bandwidth * ELEMENTWISE.of_bandwidth))

    def _counted(self, formula: Any, args: Any, kwargs: Any, specs: Any) -> float:
        """By torch's own count of operations."""
        tensors = list(_tensors(list(args)))
        if not tensors:
            return 0.0
        out = [torch.empty_strided(*spec[:2], dtype=spec[2], device="meta") for spec in _specs(specs)]
        operations = formula(*args, **kwargs, out_val=out[0] if len(out) == 1 else tuple(out))
        rate = self._products.rate(tensors[0].dtype, torch.backends.cuda.matmul.allow_tf32)
        return KERNEL + float(operations) / (rate.peak * COUNTED_OF_PEAK)

    def _attention(self, op: Any, name: str, args: Any, kwargs: Any, specs: Any) -> float:
        backward = name.endswith("backward")
        tensors = args[1:4] if backward else args[:3]
        sizes = AttentionSizes.of(tensors[0], tensors[1], tensors[2], bool(_argument(op, "is_causal", args, kwargs)))
        rate = self._products.rate(tensors[0].dtype, False)
        kind = "efficient" if "efficient" in name else "cudnn" if "cudnn" in name else "flash"
        fraction = (ATTENTION[kind] if rate.by_tensor_cores else ATTENTION_FLOAT32)[backward]
        if rate.by_tensor_cores and kind != "efficient":
            fraction *= min(1.0, sizes.width / WIDE_HEAD)
        bytes = sum(_tensor_bytes(t) for t in _tensors(list(args))) + sum(_bytes(*s) for s in _specs(specs))
        operations = sizes.operations(backward, self._gpu.processors)
        return (4 if backward else 2) * KERNEL + max(
            operations / (rate.peak * fraction), bytes / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        )

    def _convolution(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        x, weight, transposed, groups = args[0], args[1], args[6], args[8]
        y = next(_specs(specs))[0]
        if transposed:
            x_shape, y_shape = y, x.shape
        else:
            x_shape, y_shape = x.shape, y
        sizes = ConvolutionSizes(x_shape, y_shape, weight.shape, groups)
        part = sizes.towards_input if transposed else sizes.forward
        return self._convolve(x, sizes, [part], [x, weight], specs)

    def _convolution_backward(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        dy, x, weight, transposed, groups, mask = args[0], args[1], args[2], args[7], args[9], args[10]
        shapes = (dy.shape, x.shape) if transposed else (x.shape, dy.shape)
        sizes = ConvolutionSizes(*shapes, weight.shape, groups)
        parts = []
        if mask[0]:
            parts.append(sizes.forward if transposed else sizes.towards_input)
        if mask[1]:
            parts.append(sizes.towards_weight)
        seconds = self._convolve(x, sizes, parts, [dy, x, weight], specs)
        if mask[2]:
            seconds += KERNEL + _tensor_bytes(dy) / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        return seconds

    def _convolve(self, x: Any, sizes: ConvolutionSizes, parts: list[Product], read: Any, specs: Any) -> float:
        bytes = sum(_tensor_bytes(t) for t in read) + sum(_bytes(*s) for s in _specs(specs))
        moved = bytes / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        last = any(t.dim() > 3 and _order(t) == 1 - t.dim() for t in read[-2:])  # the input and the weight
        plain = self._products.rate(torch.float32, False).peak
        if sizes.depthwise:
            seconds = [
                2 * math.prod(part) / (plain * (DEPTHWISE_WEIGHT if part is sizes.towards_weight else DEPTHWISE)[last])
                for part in parts
            ]
            return len(parts) * KERNEL + max(moved, sum(seconds))
        rate = self._products.rate(x.dtype, torch.backends.cudnn.allow_tf32)
        if rate.by_tensor_cores and sizes.in_channels % FEW_CHANNELS:
            arithmetic = sum(2 * math.prod(part) for part in parts) / (plain * FEW_CHANNELS_RATE)
        else:
            of_peak = GROUPED_OF_PEAK if sizes.groups > 1 else CONVOLUTION_OF_PEAK
            arithmetic = sum(self._products.seconds(rate, *part, True, of_peak) for part in parts)
        copied = 0.0
        if rate.by_tensor_cores and not last and not sizes.pointwise:
            copied = PLANAR * bytes / x.dtype.itemsize / (self._bandwidth * ELEMENTWISE.of_bandwidth)
        return len(parts) * KERNEL + copied + max(arithmetic, moved)

    def _recurrent(self, op: Any, args: Any, kwargs: Any, specs: Any) -> float:
        x, weights = args[0], args[1]
        backward = _name(op).endswith("backward")
        samples = x.numel() // max(x.shape[-1], 1)
        operations = 2 * samples * sum(w.numel() for w in weights if w.dim() == 2) * (2 if backward else 1)
        rate = self._products.rate(x.dtype, torch.backends.cudnn.allow_tf32)
        waits = recurrent_steps(op, args, kwargs) * RECURRENT_STEP * (2 if backward else 1)
        return float(max(waits, operations / (rate.peak * RECURRENT_OF_PEAK)))
