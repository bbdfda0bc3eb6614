"""Recurrent layers on the virtual device: they take cuDNN's kernels, as on a GPU.

The order of what is allocated follows torch's aten/src/ATen/native/cudnn/RNN.cpp. cuDNN's own sizes were measured on an
H200 (torch 2.11, cuDNN 9.19)."""

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

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def persistent(self) -> bool:
        """torch asks for cuDNN's persistent kernel (RNN.cpp: use_persist_common_heuristics)."""
        one = self.mode == _LSTM and self.layers == self.directions == 1 and self.rows == self.steps * self.batch
        sizes = self.hidden <= 1024 and self.hidden % 128 == 0 and self.inputs % 128 == 0
        return one and sizes and self.dtype == torch.float16 and self.batch % 8 == 0 and self.batch <= 128


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
    return _RecurrentLayers(mode, data.size(-1), hidden, out, layers, directions, steps, batch, rows, hx.dtype)


def _reserve_bytes(shape: _RecurrentLayers, dropout: float) -> int:
    """What a forward keeps for its backward: the gates and states of each step, and the masks of dropout between
    layers."""
    state = shape.rows * shape.hidden * shape.directions
    gates = {_LSTM: 5, _GRU: 6}.get(shape.mode, 1)
    elements = (gates * shape.layers + shape.layers - 1) * state
    if shape.out != shape.hidden:
        elements += shape.layers * shape.rows * shape.directions * (shape.hidden + shape.out)
    masks = (shape.layers - 1) * state * shape.directions // 8 if dropout > 0 else 0
    return elements * shape.itemsize + masks + 256


def _weight_bytes(shape: _RecurrentLayers) -> int:
    of_first = shape.inputs + shape.out
    of_others = (shape.layers - 1) * (shape.out * shape.directions + shape.out)
    return _GATES[shape.mode] * shape.hidden * (of_first + of_others) * shape.directions * shape.itemsize


def _workspace_bytes(shape: _RecurrentLayers) -> int:
    """Fitted to 222 measurements. A small call copies the weights and gives its products of matrices 8 or 24 MiB; a
    large call of several layers uses the memory of the steps for that."""
    step, row = shape.batch * shape.hidden * shape.itemsize, shape.rows * shape.itemsize
    states = row * shape.hidden
    gates, layers, directions = _GATES[shape.mode], shape.layers, shape.directions
    weights = _weight_bytes(shape)
    small = weights + (8 if directions == 1 and not shape.persistent else 24) * _MIB + 256
    inputs = row * shape.inputs
    if gates == 1:
        per_state = 10 if shape.hidden < 512 else 3
        return int(((layers + 1) + per_state) * directions * states + inputs + small)
    steps = (10 if shape.mode == _LSTM else 6) * layers * directions * step
    of_states = (gates * layers + 1) * directions
    if layers == 1 or states < 4 * _MIB:
        return int(of_states * states + (1 if shape.mode == _LSTM else 2) * inputs + steps + small)
    if shape.mode == _GRU:
        large = (of_states + 0.67) * states + inputs
    else:
        large = (of_states - (4 if directions == 2 else 0)) * states + inputs + steps
    return int(max(large, 1.5 * weights + 8 * _MIB)) + 256


# ---- rules ----


def _workspace_of(shape: _RecurrentLayers) -> int:
    bytes = _workspace_bytes(shape)
    doubt("recurrent", bytes)
    return bytes


def _copied(tensor: torch.Tensor, transposed: bool) -> list[WorkspaceEvent]:
    """A copy of a tensor in cuDNN's order, where it does not have that order."""
    contiguous = (tensor.transpose(0, 1) if transposed else tensor).is_contiguous()
    return [] if contiguous else [("temporary", tensor.nbytes)]


@rule("aten._cudnn_rnn.default", source="ATen/native/cudnn/RNN.cpp; sizes: measured")
def _forward_events(gpu: GpuAndTorch, args: Any, kwargs: Any, specs: Any) -> Workspace:
    shape = _layers(args, kwargs, 0)
    transposed = args[10] and not argument(args, kwargs, 14, "batch_sizes", ())
    results: list[WorkspaceEvent] = [("result", 0), ("result", 0), ("result", 0)]
    if args[3] is None:
        results.append(("result", 0))
    return [*_copied(args[0], transposed), *results, ("temporary", _workspace_of(shape)), ("result", 0)]


@rule("aten._cudnn_rnn_backward.default", source="ATen/native/cudnn/RNN.cpp; sizes: measured")
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
    workspace = _workspace_of(shape)
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
