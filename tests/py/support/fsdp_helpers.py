"""FSDP2 models for the tests, and what FSDP2's own objects hold, read in Python and independently of modscope."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import torch
from torch import nn

KINDS = ("Sharded Param", "Unsharded Param", "Sharded Grad", "Unsharded Grad", "All Gather", "Reduce Scatter")
"""Without All Reduce, which only HSDP has, where gradients are reduced in another type."""


class Block(nn.Module):
    """Two layers, with a hole for a check in the forward, and one in the backward."""

    def __init__(self, width: int, check: Callable[[str], None] = lambda when: None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.check = check

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.up(x))
        self.check("forward")
        if y.requires_grad:
            y.register_hook(lambda grad: self.check("backward"))
        return x + self.down(y)


def cpu_mesh() -> DeviceMesh:
    """All ranks, on the CPU: without a mesh, FSDP2 moves a model to the GPU where there is one."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def shard_blocks(model: nn.Sequential, **options: Any) -> nn.Sequential:
    options.setdefault("mesh", cpu_mesh())
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def _groups_of_state(state: Any) -> list[Any]:
    """A state of torch 2.11 has at most one group."""
    several = getattr(state, "_fsdp_param_groups", None)
    return several if several is not None else [group for group in [state._fsdp_param_group] if group is not None]


def _reductions_of(context: Any) -> list[Any]:
    """The reductions that are under way; torch 2.11 has at most one."""
    several = getattr(context, "reduce_scatter_states", None)
    return (
        several
        if several is not None
        else [one for one in [getattr(context, "reduce_scatter_state", None)] if one is not None]
    )


def groups_of(model: nn.Module) -> Iterator[Any]:
    seen = set()
    for module in model.modules():
        state = module._get_fsdp_state() if isinstance(module, FSDPModule) else None
        for group in _groups_of_state(state) if state else ():
            if id(group) not in seen:
                seen.add(id(group))
                yield group


def block_bytes(bytes: int, device: torch.device) -> int:
    """The size of the block for so many bytes, at most 1 MiB: CUDA's allocator rounds them up to 512."""
    return -(-bytes // 512) * 512 if device.type == "cuda" else bytes


def _address_of(tensor: torch.Tensor) -> int:
    return getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr()


def held_by_fsdp(model: nn.Module, device: torch.device = torch.device("cpu")) -> dict[str, int]:
    """Bytes of blocks on a device by kind; kinds that hold nothing are left out."""

    def _bytes_of(tensors: Iterable[torch.Tensor | None]) -> int:
        """The bytes of the tensors' storages, each counted once."""
        storages = {}
        for tensor in tensors:
            if tensor is None:
                continue
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            if storage.nbytes() and storage.device == device:
                storages[storage.data_ptr()] = block_bytes(storage.nbytes(), device)
        return sum(storages.values())

    groups = list(groups_of(model))
    params = [param for group in groups for param in group.fsdp_params]
    contexts = {id(group.comm_ctx): group.comm_ctx for group in groups}.values()
    gathers = [group._all_gather_result for group in groups]
    gathers += [getattr(getattr(ctx, "all_gather_state", None), "all_gather_result", None) for ctx in contexts]
    unsharded = [getattr(param, "_unsharded_param", None) for param in params]
    found = {
        "Sharded Param": _bytes_of(
            tensor
            for param in params
            for tensor in (param._sharded_param_data, getattr(param, "_sharded_post_forward_param_data", None))
        ),
        "Unsharded Param": _bytes_of(output for param in params for output in param.all_gather_outputs),
        "Sharded Grad": _bytes_of(
            [*(param.sharded_param.grad for param in params), *(group._partial_reduce_output for group in groups)]
        ),
        "Unsharded Grad": _bytes_of(
            [
                *(param.grad for param in unsharded if param is not None),
                *(param.unsharded_accumulated_grad for param in params),
            ]
        ),
        "All Gather": _bytes_of(gather.all_gather_output for gather in gathers if gather is not None),
        "Reduce Scatter": _bytes_of(state.reduce_scatter_input for ctx in contexts for state in _reductions_of(ctx)),
    }
    gradients = {_address_of(param.sharded_param.grad) for param in params if param.sharded_param.grad is not None}
    all_reduced = [state[0] for group in groups if (state := getattr(group, "_all_reduce_state", None)) is not None]
    found["All Reduce"] = _bytes_of(tensor for tensor in all_reduced if _address_of(tensor) not in gradients)
    return {kind: value for kind, value in found.items() if value}
