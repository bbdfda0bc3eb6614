"""Recurrent layers on the virtual device: they take cuDNN's kernels, as on a GPU.

The order of what is allocated follows torch's aten/src/ATen/native/cudnn/RNN.cpp. cuDNN's own sizes were measured on an
H200 (torch 2.11, cuDNN 9.19): the formulas give all of 696 calls to the byte, of four shapes of LSTM, GRU and tanh,
of one to three layers in one and two directions, in float32, float16 and bfloat16. Of packed sequences one shape was
measured; inference, float64 and other GPUs were not."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from modscope import _native
from modscope._virtual.operators import operators, same_device
from modscope._virtual.operators.operators import Workspace, WorkspaceEvent
from modscope._virtual.rules.rules import GpuAndTorch, argument, doubt, rule

__all__ = ["COMPOSED", "KERNELS", "acceptable", "cudnn_mode"]

_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
_LSTM, _GRU = 2, 3
_GATES = {0: 1, 1: 1, _LSTM: 4, _GRU: 3}
_DTYPES = (torch.float16, torch.float32, torch.float64)
_MIB = 1 << 20


def cudnn_mode(mode: str) -> int:
    """The number that cuDNN gives to a kind of layer."""
    if mode not in _MODES:
        raise ValueError(f"Unknown mode: {mode}")
    return _MODES[mode]


def acceptable(tensor: torch.Tensor) -> bool:
    """What torch.backends.cudnn.is_acceptable answers: weights of this type become views of one buffer."""
    return bool(torch._C._get_cudnn_enabled()) and tensor.is_cuda and tensor.dtype in _DTYPES


def _takes_cudnn(data: torch.Tensor) -> bool:
    return (
        acceptable(data) or (data.dtype == torch.bfloat16 and bool(torch._C._get_cudnn_enabled())) and data.numel() > 0
    )


# ---- sizes ----


class _RecurrentLayers(NamedTuple):
    """What decides about the memory of a call."""

    mode: int
    inputs: int
    hidden: int
    out: int
    """Elements of the output for each direction: the projection's or the hidden state's."""
    layers: int
    directions: int
    steps: int
    batch: int
    rows: int
    """Rows of the input over all steps: fewer than steps times batch where sequences are packed."""
    dtype: torch.dtype
    packed: bool = False

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def persistent(self, gpu: GpuAndTorch, backward: bool) -> bool:
        """cuDNN takes a persistent kernel: torch asks for it (RNN.cpp: get_algo), and its type is not bfloat16."""
        if self.packed or self.out != self.hidden:
            return False
        plain = self.mode not in (_LSTM, _GRU)
        small = (256 if plain else 128) if backward else (384 if plain else 192)
        if self.hidden <= small:
            return self.dtype in (torch.float16, torch.float32)
        large_gpu = gpu.capability == (7, 0) or (gpu.processors >= 98 and gpu.capability not in ((7, 5), (8, 6)))
        one = self.mode != _GRU and self.layers == self.directions == 1
        sizes = self.hidden <= 1024 and self.hidden % 128 == 0 and self.inputs % 128 == 0
        rows = self.batch % 8 == 0 and self.batch <= (88 if plain and self.hidden >= 896 else 128)
        return large_gpu and one and sizes and rows and self.dtype == torch.float16


def _layers(args: Any, kwargs: Any, offset: int) -> _RecurrentLayers:
    """The layers of ``_cudnn_rnn``, or of its backward with an ``offset`` of its arguments."""
    data, hx = args[0], args[4]
    mode, hidden, proj, layers, batch_first = args[6 + offset : 11 + offset]
    directions = 2 if argument(args, kwargs, 13 + offset, "bidirectional") else 1
    batch_sizes = argument(args, kwargs, 14 + offset, "batch_sizes", ())
    if batch_sizes:
        steps, batch, rows = len(batch_sizes), int(batch_sizes[0]), data.size(0)
    else:
        batch, steps = (data.size(0), data.size(1)) if batch_first else (data.size(1), data.size(0))
        rows = batch * steps
    out = proj or hidden
    return _RecurrentLayers(
        mode, data.size(-1), hidden, out, layers, directions, steps, batch, rows, hx.dtype, bool(batch_sizes)
    )


def _reserve_bytes(shape: _RecurrentLayers, dropout: float) -> int:
    """What a forward keeps for its backward: the gates and states of each step, and the masks of dropout between
    layers."""
    state = shape.rows * shape.hidden * shape.directions
    gates = {_LSTM: 5, _GRU: 6}.get(shape.mode, 1)
    elements = (gates * shape.layers + shape.layers - 1) * state
    if shape.out != shape.hidden:
        elements += shape.layers * shape.rows * shape.directions * (shape.hidden + shape.out)
    masks = (shape.layers - 1) * shape.rows * shape.out * shape.directions**2 // 8 if dropout > 0 else 0
    return elements * shape.itemsize + masks + 256


def _weight_bytes(shape: _RecurrentLayers) -> int:
    """The matrices, without the biases."""
    of_first = shape.inputs + shape.out
    of_others = (shape.layers - 1) * (shape.out * shape.directions + shape.out)
    gates = _GATES[shape.mode] * shape.hidden * (of_first + of_others)
    projections = shape.layers * shape.hidden * shape.out if shape.out != shape.hidden else 0
    return (gates + projections) * shape.directions * shape.itemsize


def _workspace_bytes(shape: _RecurrentLayers, dropout: float, persistent: bool) -> int:
    """A copy of the weights, 8 MiB for the products of matrices of each layer and direction, and states.

    "state" is the hidden state of one step, "states" that of all steps. The larger of two needs decides: that of the
    gates, and that of the products with the inputs. In one direction the layers above the first can make the products
    for some steps at a time, of 4,096 elements for each sequence; cuDNN does so where that is less. Of inputs and
    outputs that are not packed, cuDNN makes packed copies."""
    layers, lstm, two = shape.layers, shape.mode == _LSTM, shape.directions == 2
    above, projected = layers > 1, shape.out != shape.hidden
    state, states, inputs = shape.batch * shape.hidden, shape.rows * shape.hidden, shape.rows * shape.inputs
    copies = 0 if shape.packed else inputs + shape.directions * shape.rows * shape.out
    if not lstm:
        each = (14 if two else 5 + persistent) * state
    elif persistent:
        each = (18 if two else 8) * state
    else:
        each = 2 * ((10 if two else 4) * state + shape.directions * shape.batch * shape.out)
        each -= 4 * shape.directions * state if shape.packed else 0
    of_gates = 2 * _GATES[shape.mode] + 4 if two else _GATES[shape.mode] + (above and dropout > 0)
    gates = (of_gates + projected * shape.directions) * states
    of_products = 8 + 2 * above if two else 3 + (above and persistent and not lstm)
    products = of_products * states + inputs + (lstm and not above) * state
    if above and not two and not persistent:
        products = min(products, 2 * states + inputs + 8 * state + layers * 4096 * shape.batch)
    if persistent:
        gates = gates + 16 * states if lstm else 0
        products += (14 if shape.mode == _GRU else 9) * states
    elements = max(gates, products) + copies + layers * each
    of_products_bytes = layers * shape.directions * 8 * _MIB
    return elements * shape.itemsize + _weight_bytes(shape) + of_products_bytes + 8 * shape.batch + 256


# ---- rules ----


def _workspace_of(gpu: GpuAndTorch, shape: _RecurrentLayers, dropout: float, backward: bool) -> int:
    bytes = _workspace_bytes(shape, dropout, shape.persistent(gpu, backward))
    doubt("recurrent", bytes)
    return bytes


def _copied(tensor: torch.Tensor, transposed: bool) -> list[WorkspaceEvent]:
    """A copy of a tensor in cuDNN's order, where it does not have that order."""
    contiguous = (tensor.transpose(0, 1) if transposed else tensor).is_contiguous()
    return [] if contiguous else [("temporary", tensor.nbytes)]


@rule("aten._cudnn_rnn.default", source="ATen/native/cudnn/RNN.cpp; sizes: measured on an H200 (cuDNN 9.19)")
def _forward_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    shape = _layers(args, kwargs, 0)
    transposed = args[10] and not argument(args, kwargs, 14, "batch_sizes", ())
    results: list[WorkspaceEvent] = [("result", 0), ("result", 0), ("result", 0)]
    if args[3] is None:
        results.append(("result", 0))
    return [
        *_copied(args[0], transposed),
        *results,
        ("temporary", _workspace_of(gpu, shape, args[11], False)),
        ("result", 0),
    ]


@rule("aten._cudnn_rnn_backward.default", source="ATen/native/cudnn/RNN.cpp; sizes: measured on an H200 (cuDNN 9.19)")
def _backward_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    shape = _layers(args, kwargs, 4)
    data, hx, cx, output, grads = args[0], args[4], args[5], args[6], args[7:10]
    transposed = args[14] and not argument(args, kwargs, 18, "batch_sizes", ())
    events: list[WorkspaceEvent] = []
    for grad, like in zip(grads, (output, hx, cx), strict=True):
        if grad is None and like is not None:
            events.append(("temporary", like.nbytes))
    x = _copied(data, transposed)
    dy = _copied(grads[0], transposed) if grads[0] is not None else []
    workspace = _workspace_of(gpu, shape, args[15], True)
    events += [*x, *dy, ("result", 0), ("result", 0), ("result", 0)]
    events += [("temporary", workspace), ("temporary", -workspace)]
    events += [("temporary", -bytes) for _, bytes in (*x, *dy)]
    return [*events, *x, ("result", 0), ("temporary", workspace)]


# ---- kernels ----


def _made(like: torch.Tensor, size: list[int], transposed: bool = False) -> torch.Tensor:
    """A new tensor, or one of ``size`` whose first two dimensions lie in memory in the other order."""
    if not transposed:
        return operators.make(size, operators.contiguous_strides(size), like.dtype)
    stride = operators.contiguous_strides([size[1], size[0], *size[2:]])
    return operators.make(size, [stride[1], stride[0], *stride[2:]], like.dtype)


def _cudnn_rnn(*args: Any, **kwargs: Any) -> Any:
    data, weight, weight_buf, hx, cx, batch_first, train = (
        args[0],
        args[1],
        args[3],
        args[4],
        args[5],
        args[10],
        args[12],
    )
    shape = _layers(args, kwargs, 0)
    packed = bool(argument(args, kwargs, 14, "batch_sizes", ()))
    width = shape.out * shape.directions
    beside = operators.start(torch.ops.aten._cudnn_rnn.default, args, kwargs)
    beside.before_result()
    size = [shape.rows, width] if packed else [data.size(0), data.size(1), width]
    output = _made(data, size, transposed=batch_first and not packed)
    states = shape.layers * shape.directions
    beside.before_result()
    hy = _made(hx, [states, shape.batch, shape.out])
    beside.before_result()
    cy = _made(hx, [states, shape.batch, shape.hidden] if cx is not None else [0])
    if weight_buf is None:
        beside.before_result()
        weight_buf = _made(data, [sum(w.numel() for w in weight)])
    beside.before_result()
    reserve = operators.make((_reserve_bytes(shape, args[11]) if train else 0,), (1,), torch.uint8)
    beside.end()
    return output, hy, cy, reserve, weight_buf


def _views(flat: torch.Tensor, weights: Any) -> list[torch.Tensor]:
    """Each weight's part of the flat buffer of all weights."""
    views, offset = [], flat.storage_offset()
    for weight in weights:
        views.append(_native.virtual_alias(flat, weight.shape, operators.contiguous_strides(weight.shape), offset))
        offset += weight.numel()
    return views


def _cudnn_rnn_backward(*args: Any, **kwargs: Any) -> Any:
    data, weight, weight_buf, hx, cx = args[0], args[1], args[3], args[4], args[5]
    if args[7] is None and args[8] is None and args[9] is None:
        return None, None, None, [None] * len(weight)
    mask = argument(args, kwargs, 21, "output_mask")
    packed = bool(argument(args, kwargs, 18, "batch_sizes", ()))
    beside = operators.start(torch.ops.aten._cudnn_rnn_backward.default, args, kwargs)
    beside.before_result()
    dx = _made(data, list(data.shape), transposed=args[14] and not packed)
    beside.before_result()
    dhx = _made(hx, list(hx.shape))
    beside.before_result()
    dcx = None if cx is None else _made(cx, list(cx.shape))
    dw: list[Any] = [None] * len(weight)
    if mask[3]:
        beside.before_result()
        dw = _views(_made(weight_buf, list(weight_buf.shape)), weight)
    beside.end()
    return dx, dhx, dcx, dw


def _flatten_weight(weight_arr: Any, *shape: Any) -> torch.Tensor:
    """Make the weights views of one flat buffer."""
    flat = _made(weight_arr[0], [sum(w.numel() for w in weight_arr)])
    for weight, view in zip(weight_arr, _views(flat, weight_arr), strict=True):
        weight.data = view
    return flat


# ---- layers ----


class _HalfWeights(torch.autograd.Function):
    """Copies of the weights in half precision, as views of one flat buffer: autocast makes them at each call."""

    @staticmethod
    def forward(ctx: Any, *weights: torch.Tensor) -> Any:
        flat = torch.empty(sum(w.numel() for w in weights), dtype=torch.float16, device=weights[0].device)
        ctx.dtypes = [w.dtype for w in weights]
        return tuple(_views(flat, weights))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return tuple(g if g is None else g.to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))


def _flat_buffer(params: Any) -> torch.Tensor | None:
    """The buffer that all weights are views of, if there is one."""
    storage = params[0].untyped_storage()
    count = sum(p.numel() for p in params)
    if storage.nbytes() < count * params[0].dtype.itemsize:
        return None
    if any(p.untyped_storage()._cdata != storage._cdata for p in params):
        return None
    with torch.no_grad():
        return _native.virtual_alias(params[0].detach(), (count,), (1,), 0)


_dropout_states: dict[int, torch.Tensor] = {}
"""By the index of the device."""


def _dropout_state(dropout: float, train: bool) -> torch.Tensor | None:
    """The states of the generators of dropout: made at their first use, and kept."""
    if not train or dropout <= 0:
        return None
    device = _native.virtual_device()
    if device not in _dropout_states:
        _dropout_states[device] = operators.make((_DROPOUT_STATE_BYTES,), (1,), torch.uint8)
    return _dropout_states[device]


_DROPOUT_STATE_BYTES = 6_488_064
"""On a GPU of 132 multiprocessors."""


def forget() -> None:
    _dropout_states.clear()


def _layer(
    mode: int, data: torch.Tensor, hidden: Any, params: Any, options: Any, batch_first: bool, batch_sizes: Any
) -> Any:
    _, num_layers, dropout, train, bidirectional = options
    hx, cx = hidden
    if torch.is_autocast_enabled("cuda"):
        if params[0].dtype != torch.float16:
            params = _HalfWeights.apply(*params)
        hx = hx.to(torch.float16)
        cx = cx if cx is None else cx.to(torch.float16)
        data = data.to(torch.float16)
    hidden_size, proj_size = hx.size(2), 0
    if cx is not None and cx.size(2) != hx.size(2):
        hidden_size, proj_size = cx.size(2), hx.size(2)
    stride = len(params) // (num_layers * (2 if bidirectional else 1))
    return torch.ops.aten._cudnn_rnn(
        data, list(params), stride, _flat_buffer(params), hx, cx, mode, hidden_size, proj_size, num_layers,
        batch_first, dropout, train, bidirectional, batch_sizes, _dropout_state(dropout, train),
    )  # fmt: skip


def _composed(name: str, mode: int) -> dict[str, Any]:
    """The operators of one kind of layer, made of differentiable ones."""
    packet = getattr(torch.ops.aten, name)

    def results(out: Any) -> Any:
        return out[:3] if mode == _LSTM else out[:2]

    def states(hx: Any) -> Any:
        return tuple(hx) if mode == _LSTM else (hx, None)

    def padded(data: torch.Tensor, hx: Any, params: Any, *options: Any) -> Any:
        same_device.check_recurrent(data, states(hx), params)
        if not _takes_cudnn(data):
            return packet.input.decompose(data, hx, params, *options)
        return results(_layer(mode, data, states(hx), params, options[:5], options[5], []))

    def packed(data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: Any, *options: Any) -> Any:
        same_device.check_recurrent(data, states(hx), params)
        if not _takes_cudnn(data):
            return packet.data.decompose(data, batch_sizes, hx, params, *options)
        return results(_layer(mode, data, states(hx), params, options, False, batch_sizes.tolist()))

    return {f"{name}.input": padded, f"{name}.data": packed}


COMPOSED = {
    **_composed("lstm", _LSTM),
    **_composed("gru", _GRU),
    **_composed("rnn_tanh", _MODES["RNN_TANH"]),
    **_composed("rnn_relu", _MODES["RNN_RELU"]),
}
KERNELS = {
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "_cudnn_rnn_flatten_weight": _flatten_weight,
}
