"""Recurrent layers on the virtual device: they take cuDNN's path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from modscope._virtual.rules import recurrent
from modscope._virtual.rules.recurrent import _RecurrentLayers
from truth_entries import FOLDER, needs_truth
from virtual_helpers import needs_interception, run_on_h200

import torch

LSTM, GRU, TANH = 2, 3, 1
MIB = 1 << 20


def layers(mode: int, **changes: Any) -> _RecurrentLayers:
    base = _RecurrentLayers(mode, 256, 256, 256, 1, 1, 64, 32, 64 * 32, torch.float32)
    changed = base._replace(**changes)
    return changed if "rows" in changes else changed._replace(rows=changed.steps * changed.batch)


@pytest.mark.parametrize(
    ("shape", "dropout", "bytes"),
    [
        (layers(LSTM), 0.0, 10486016),
        (layers(LSTM, layers=3), 0.0, 35651840),
        (layers(LSTM, layers=2, directions=2), 0.0, 46137600),
        (layers(LSTM, layers=2), 0.2, 23134464),
        (layers(LSTM, rows=1552), 0.0, 7946496),
        (layers(LSTM, layers=2, out=128), 0.0, 29360384),
        (layers(LSTM, inputs=40, hidden=320, out=320, layers=3, directions=2, batch=24, steps=300), 0.3, 315648256),
        (layers(GRU, layers=3), 0.0, 41943296),
        (layers(TANH, layers=3), 0.0, 10486016),
        (layers(LSTM, dtype=torch.float16), 0.0, 5243136),
    ],
)
def test_reserve_is_what_cudnn_asked_for_on_an_h200(shape: _RecurrentLayers, dropout: float, bytes: int) -> None:
    assert recurrent._reserve_bytes(shape, dropout) == bytes


@pytest.mark.parametrize(
    ("shape", "bytes"),
    [
        (layers(LSTM, steps=512), 111510016),
        (layers(LSTM, hidden=1024, out=1024), 74711552),
        (layers(LSTM, batch=128), 62260480),
        (layers(LSTM, layers=3), 45023744),
        (layers(LSTM, layers=2, directions=2), 77070848),
        (layers(LSTM, inputs=1024, hidden=1024, out=1024, layers=4, batch=16, steps=100), 209715584),
        (layers(GRU, steps=512), 110789120),
        (layers(GRU, inputs=1024, hidden=1024, out=1024, layers=2, batch=48, steps=100), 170525312),
    ],
)
def test_workspace_is_near_what_cudnn_asked_for_on_an_h200(shape: _RecurrentLayers, bytes: int) -> None:
    assert recurrent._workspace_bytes(shape) == pytest.approx(bytes, rel=0.03)


@needs_interception
def test_weights_are_views_of_one_buffer_and_results_lie_as_cudnn_leaves_them() -> None:
    out = run_on_h200("""
        lstm = nn.LSTM(64, 128, 2, batch_first=True).cuda()
        storages = {p.untyped_storage().data_ptr() for p in lstm.parameters()}
        print(len(storages), lstm.weight_ih_l0.untyped_storage().nbytes() == 4 * sum(p.numel() for p in lstm.parameters()))
        x = torch.empty(8, 20, 64, device="cuda", requires_grad=True)
        out, (h, c) = lstm(x)
        print(out.grad_fn.name(), out.stride(), tuple(h.shape), tuple(c.shape))
        out.sum().backward()
        grads = {p.grad.untyped_storage().data_ptr() for p in lstm.parameters()}
        print(len(grads), lstm.weight_hh_l1.grad.shape == lstm.weight_hh_l1.shape)
        with torch.device("cuda"):
            print(len({p.untyped_storage().data_ptr() for p in nn.GRU(8, 8).parameters()}))
    """)
    assert out == ["1 True", "CudnnRnnBackward0 (128, 1024, 1) (2, 8, 128) (2, 8, 128)", "1 True", "1"]


@needs_interception
def test_kinds_of_layers_and_inputs() -> None:
    out = run_on_h200("""
        pack = nn.utils.rnn.pack_padded_sequence
        x = torch.empty(6, 4, 16, device="cuda", requires_grad=True)
        for layer in (nn.GRU(16, 8, bidirectional=True), nn.RNN(16, 8, 2, dropout=0.5), nn.LSTM(16, 8, proj_size=4)):
            layer = layer.cuda()
            out, _ = layer(pack(x, [6, 5, 5, 2]))
            out.data.sum().backward()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                half, _ = layer(x)
            half.float().sum().backward()
            with torch.no_grad():
                padded, _ = layer.eval()(x)
            print(tuple(out.data.shape), half.dtype, tuple(padded.shape), padded.stride())
        brain, _ = nn.LSTM(16, 8, device="cuda", dtype=torch.bfloat16)(x.bfloat16())
        with torch.backends.cudnn.flags(enabled=False):
            native, _ = nn.LSTM(16, 8, device="cuda")(x)
        print(brain.grad_fn.name(), native.grad_fn.name())
    """)
    assert out == [
        "(18, 16) torch.float16 (6, 4, 16) (64, 16, 1)",
        "(18, 8) torch.float16 (6, 4, 8) (32, 8, 1)",
        "(18, 4) torch.float16 (6, 4, 4) (16, 4, 1)",
        "CudnnRnnBackward0 CatBackward0",
    ]


@needs_truth
@needs_interception
def test_lstm_takes_what_it_took_on_an_h200() -> None:
    """The blocks of the measured forward: a copy of the input, the output, the states, the workspace and the
    reserve."""
    measured = [
        [bytes for _, bytes in events if bytes > 0]
        for name, _, _, events, times in json.loads((FOLDER / "lstm.ops.json").read_text())
        if name == "aten._cudnn_rnn.default" and times[1] == 1
    ]
    out = run_on_h200("""
        from modscope import _native
        from modscope._virtual.operators import operators
        from modscope._virtual.rules import recurrent
        from modscope._virtual.rules.rules import GpuAndTorch, all_rules
        class Rules(operators.OperatorCosts):
            def events(self, op, args, kwargs, specs):
                known = all_rules().get(str(op))
                return known.function(GpuAndTorch((9, 0), 132), args, kwargs, specs) if known else None
        operators.costs = Rules()
        taken, empty, take = [], _native.virtual_empty, _native.virtual_take
        lstm = nn.LSTM(512, 512, 2, batch_first=True).cuda()
        x, state = torch.empty(32, 128, 512, device="cuda"), torch.empty(2, 32, 512, device="cuda")
        _native.virtual_empty = lambda size, *rest: taken.append(torch.Size(size).numel() * rest[-1]) or empty(size, *rest)
        _native.virtual_take = lambda bytes: taken.append(bytes) or take(bytes)
        lstm(x, (state, state))
        print([-(-bytes // 512) * 512 for bytes in taken])
    """)
    assert [json.loads(out[0])] == measured
