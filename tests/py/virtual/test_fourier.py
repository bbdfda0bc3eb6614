"""Fourier transforms on the virtual device: torch's copies, cuFFT's scratch memory, and views as the other type."""

from __future__ import annotations

import json

from virtual_helpers import needs_interception, run_on_h200


@needs_interception
def test_transforms_take_what_they_took_on_an_h200() -> None:
    """The result first, then copies and scratch memory; a fourth dimension makes a second result."""
    out = run_on_h200("""
        from modscope import _native
        from modscope._virtual.operators import operators
        from modscope._virtual.rules.rules import GpuAndTorch, Rules
        operators.costs = Rules(GpuAndTorch((9, 0), 132))
        def real(*size): return torch.empty(size, device="cuda")
        def both(*size): return torch.empty(size, device="cuda", dtype=torch.complex64)
        calls = [
            (torch.fft.rfft2, real(16, 32, 128, 128)), (torch.fft.irfft2, both(16, 32, 128, 65)),
            (torch.fft.fft, both(64, 1000)), (torch.fft.rfft, real(64, 16000)), (torch.fft.irfft, both(64, 8001)),
            (lambda x: torch.fft.fftn(x, dim=(1, 2, 3)), real(4, 64, 64, 64)), (torch.fft.rfft2, real(4, 3, 100, 101)),
            (lambda x: torch.fft.rfft(x, dim=1), real(8, 512, 64)), (torch.fft.ifft2, both(16, 32, 128, 128)),
            (torch.fft.fftn, both(8, 16, 16, 16)), (lambda x: torch.fft.rfftn(x, dim=(0, 1)), real(8, 16, 16)),
        ]
        taken, empty, take = [], _native.virtual_empty, _native.virtual_take
        _native.virtual_empty = lambda size, *rest: taken.append(torch.Size(size).numel() * rest[-1]) or empty(size, *rest)
        _native.virtual_take = lambda bytes, source=0: taken.append(bytes) or take(bytes, source)
        for call, data in calls:
            call(data)
            print(taken)
            taken.clear()
    """)
    assert [json.loads(line) for line in out] == [
        [34078720],
        [33554432, 34078720],
        [512000],
        [4096512, 4096000],
        [4096000, 4096512, 4096000],
        [8388608, 8388608, 8388608],
        [489600],
        [1052672, 1048576],
        [67108864],
        [262144, 262144, 262144],  # this and the next one follow torch's source
        [9216, 8192, 9216],
    ]


@needs_interception
def test_views_as_the_other_type_take_no_memory() -> None:
    out = run_on_h200("""
        x = torch.empty(4, 6, 8, device="cuda", dtype=torch.complex64)
        before = torch.cuda.memory_allocated()
        real = torch.view_as_real(x[:, ::2, 3:])
        back = torch.view_as_complex(real)
        print(real.data_ptr() - x.data_ptr(), tuple(real.shape), real.stride(), real.dtype)
        print(back.data_ptr() - x.data_ptr(), tuple(back.shape), back.stride(), back.dtype)
        print(torch.cuda.memory_allocated() - before, x.imag.data_ptr() - x.data_ptr())
        pairs = torch.empty(3, 2, device="cuda", requires_grad=True)
        torch.view_as_complex(pairs).real.sum().backward()
        print(tuple(pairs.grad.shape))
    """)
    assert out == [
        "24 (4, 3, 5, 2) (96, 32, 2, 1) torch.float32",
        "24 (4, 3, 5) (48, 16, 1) torch.complex64",
        "0 4",
        "(3, 2)",
    ]
