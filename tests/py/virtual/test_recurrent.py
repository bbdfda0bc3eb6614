"""Recurrent layers on the virtual device: they take cuDNN's path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from modscope._virtual.rules import recurrent
from modscope._virtual.rules.recurrent import _RecurrentLayers
from modscope._virtual.rules.rules import GpuAndTorch
from truth_entries import FOLDER, needs_truth
from virtual_helpers import needs_interception, run_on_h200

import torch

LSTM, GRU, TANH = 2, 3, 1
SMALL = {"inputs": 64, "hidden": 128, "batch": 8, "steps": 40}
MIDDLE = {"inputs": 256, "hidden": 512, "batch": 32, "steps": 128}
LONG = {"inputs": 256, "hidden": 512, "batch": 48, "steps": 150}
LARGE = {"inputs": 256, "hidden": 1024, "batch": 64, "steps": 100}


def layers(mode: int, **changes: Any) -> _RecurrentLayers:
    base = _RecurrentLayers(mode, 256, 256, 256, 1, 1, 64, 32, 64 * 32, torch.float32)
    changed = base._replace(**changes)
    changed = changed if "out" in changes else changed._replace(out=changed.hidden)
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
        (layers(LSTM, inputs=40, hidden=320, layers=3, directions=2, batch=24, steps=300), 0.3, 315648256),
        (layers(GRU, layers=3), 0.0, 41943296),
        (layers(TANH, layers=3), 0.0, 10486016),
        (layers(LSTM, dtype=torch.float16), 0.0, 5243136),
        (layers(LSTM, **MIDDLE, layers=3, directions=2, out=64), 0.2, 342098176),
    ],
)
def test_reserve_is_what_cudnn_asked_for_on_an_h200(shape: _RecurrentLayers, dropout: float, bytes: int) -> None:
    assert recurrent._reserve_bytes(shape, dropout) == bytes


@pytest.mark.parametrize(
    ("shape", "dropout", "bytes"),
    [
        (layers(LSTM, steps=512), 0.0, 111510016),
        (layers(LSTM, hidden=1024), 0.0, 74711552),
        (layers(LSTM, batch=128), 0.0, 62260480),
        (layers(LSTM, layers=3), 0.0, 45023744),
        (layers(LSTM, layers=2, directions=2), 0.0, 77070848),
        (layers(LSTM, inputs=1024, hidden=1024, layers=4, batch=16, steps=100), 0.0, 209715584),
        (layers(GRU, steps=512), 0.0, 110789120),
        (layers(GRU, inputs=1024, hidden=1024, layers=2, batch=48, steps=100), 0.0, 170525312),
        (layers(LSTM, **SMALL), 0.0, 12337472),
        (layers(LSTM, **MIDDLE, dtype=torch.float16), 0.0, 101974528),
        (layers(LSTM, **LONG, layers=2, dtype=torch.bfloat16), 0.2, 73024128),
        (layers(LSTM, **SMALL, layers=3, directions=2, dtype=torch.float16), 0.0, 54907200),
        (layers(LSTM, **LARGE, layers=3, directions=2), 0.0, 686031616),
        (layers(LSTM, **MIDDLE, layers=3, out=64), 0.2, 87474688),
        (layers(LSTM, **LONG, layers=2, directions=2, dtype=torch.float16, out=64), 0.0, 148775552),
        (layers(GRU, **LONG), 0.0, 87327360),
        (layers(GRU, **SMALL, layers=3, dtype=torch.float16), 0.0, 27382080),
        (layers(GRU, **SMALL, layers=2, dtype=torch.bfloat16), 0.0, 17551680),
        (layers(GRU, **LONG, layers=3), 0.2, 125043328),
        (layers(GRU, **MIDDLE, layers=2, directions=2), 0.0, 172753408),
        (layers(GRU, **SMALL, directions=2, dtype=torch.float16), 0.0, 19149120),
        (layers(TANH, **LARGE, dtype=torch.float16), 0.0, 188744448),
        (layers(TANH, **LONG, layers=3), 0.0, 94536320),
        (layers(TANH, **SMALL, layers=2), 0.0, 19513664),
        (layers(TANH, **MIDDLE, directions=2, dtype=torch.bfloat16), 0.0, 64946688),
        (layers(TANH, **SMALL, layers=2, directions=2, dtype=torch.float16), 0.0, 35709248),
        (layers(LSTM, **MIDDLE, layers=2, rows=2112, packed=True), 0.0, 49545728),
    ],
)
def test_workspace_is_what_cudnn_asked_for_on_an_h200(shape: _RecurrentLayers, dropout: float, bytes: int) -> None:
    persistent = {shape.persistent(GpuAndTorch((9, 0), 132), backward) for backward in (False, True)}
    assert {recurrent._workspace_bytes(shape, dropout, one) for one in persistent} == {bytes}


def test_persistent_kernels_are_taken_where_torch_asks_for_them() -> None:
    h100, a6000, t4 = GpuAndTorch((9, 0), 132), GpuAndTorch((8, 6), 84), GpuAndTorch((7, 5), 40)
    half = layers(LSTM, **MIDDLE, dtype=torch.float16)
    assert [half.persistent(gpu, False) for gpu in (h100, a6000, t4)] == [True, False, False]
    between = layers(GRU, hidden=192)
    assert [between.persistent(h100, backward) for backward in (False, True)] == [True, False]
    assert not between._replace(packed=True).persistent(h100, False)
    plain = layers(TANH, hidden=896, batch=96, dtype=torch.float16)
    assert [plain._replace(batch=batch).persistent(h100, False) for batch in (88, 96)] == [True, False]


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
        _native.virtual_take = lambda bytes, source=0: taken.append(bytes) or take(bytes, source)
        lstm(x, (state, state))
        print([-(-bytes // 512) * 512 for bytes in taken])
    """)
    assert [json.loads(out[0])] == measured
