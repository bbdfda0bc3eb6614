"""DistributedDataParallel of one rank on a virtual GPU: its memory without its communication.

torch's own reads which buckets the ranks agreed on from the GPU, where there are no values. Like it, this one has a
bucket of all gradients in the first step, and smaller ones from the second on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from modscope import _native

_MIB = 1 << 20
_FIRST, _CAP = 1 * _MIB, 25  # the first bucket in bytes, the others in MiB, unless the program says otherwise


class _Buckets:
    """The buffers into which gradients are copied to be reduced."""

    def __init__(self, model: Any, cap: float | None) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._limits = [_FIRST, _CAP * _MIB] if cap is None else [int(cap * _MIB)]
        self._forwards = 0
        self.buffers = self._allocate([sys.maxsize])

    def _allocate(self, limits: list[int]) -> list[Any]:
        import torch

        assign: Any = getattr(torch.distributed, "_compute_bucket_assignment_by_size")
        parameters = self._parameters[::-1]  # about in the order in which their gradients are ready
        assigned, _ = assign(parameters, limits, [False] * len(parameters))
        buffers = [
            torch.empty(
                sum(parameters[i].numel() for i in bucket),
                dtype=parameters[bucket[0]].dtype,
                device=parameters[bucket[0]].device,
            )
            for bucket in assigned
        ]
        _native.claim_buckets(buffers)
        return buffers

    def forward_begins(self) -> None:
        self._forwards += 1
        if self._forwards == 2:
            self.buffers = []
            self.buffers = self._allocate(self._limits)


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """While this is entered, DistributedDataParallel has one rank."""
    from torch.nn.parallel import DistributedDataParallel as Parallel

    import torch

    original = {name: getattr(Parallel, name) for name in ("__init__", "forward", "register_comm_hook")}

    def initialize(self: Any, module: Any, device_ids: Any = None, *args: Any, **options: Any) -> None:
        torch.nn.Module.__init__(self)
        self.module = module
        self.device_ids = device_ids
        self.device = next((parameter.device for parameter in module.parameters()), torch.device("cuda", 0))
        self.require_backward_grad_sync = True
        self.gradient_as_bucket_view = bool(options.get("gradient_as_bucket_view"))
        self.static_graph = bool(options.get("static_graph"))
        self.find_unused_parameters = bool(options.get("find_unused_parameters"))
        self._modscope_buckets = (
            None if self.gradient_as_bucket_view else _Buckets(module, options.get("bucket_cap_mb"))
        )

    def forward(self: Any, *inputs: Any, **options: Any) -> Any:
        if self._modscope_buckets is not None and torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._modscope_buckets.forward_begins()
        if self.device_ids and self.device.type == "cuda":
            from torch.distributed.utils import _to_kwargs

            moved, named = _to_kwargs(inputs, options, self.device, False)
            inputs, options = moved[0], named[0]
        return self.module(*inputs, **options)

    mine = {"__init__": initialize, "forward": forward, "register_comm_hook": lambda *_: None}
    for name, value in mine.items():
        setattr(Parallel, name, value)
    try:
        yield
    finally:
        for name, value in original.items():
            setattr(Parallel, name, value)
