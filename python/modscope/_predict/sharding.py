"""What a script asks of FSDP2's fully_shard on virtual ranks, and what it gets instead where that is asked: ``modscope
predict --reshard`` and ``--shard-over``. Only the two arguments are replaced; FSDP2 itself is torch's own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from modscope._predict.result import ShardingFacts


class Sharding:
    """Installed before the script imports fully_shard from torch.distributed.fsdp."""

    def __init__(self, reshard: str = "", over: int = 0) -> None:
        """``reshard``: yes, no or "". ``over``: how many ranks hold one copy; 0: as the script's mesh says."""
        self._reshard, self._over = reshard, over
        self._meshes: dict[str, Any] = {}
        self._calls = 0
        self._resharding: set[bool] = set()
        """Whether modules are resharded after their forward, as it was done."""
        self._sizes: set[int] = set()
        """How many ranks hold one copy, as it was done."""
        self._other_meshes = 0

    def facts(self) -> ShardingFacts | None:
        """What a result says of it; None: the script does not use fully_shard."""
        if not self._calls:
            return None
        return {"calls": self._calls, "reshards": sorted(self._resharding), "over": sorted(self._sizes)}

    def notes(self) -> list[str]:
        asked = " and ".join(filter(None, ("--reshard" if self._reshard else "", "--shard-over" if self._over else "")))
        if asked and not self._calls:
            return [f"The script does not call torch.distributed.fsdp.fully_shard: {asked} changed nothing."]
        if self._other_meshes:
            return [
                "--shard-over changed nothing where the mesh of fully_shard is a part of the ranks, as with "
                "tensor parallelism."
            ]
        return []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        import torch.distributed

        if not torch.distributed.is_available():
            yield
            return
        from torch.distributed import fsdp

        original = fsdp.fully_shard

        @functools.wraps(original)
        def fully_shard(module: Any, **options: Any) -> Any:
            self._replace(options)
            result = original(module, **options)
            self._note(options)
            return result

        setattr(fsdp, "fully_shard", fully_shard)
        try:
            yield
        finally:
            setattr(fsdp, "fully_shard", original)

    def _replace(self, options: dict[str, Any]) -> None:
        """None for reshard_after_forward is FSDP2's own choice: every module is resharded but the outermost one."""
        if self._reshard:
            options["reshard_after_forward"] = False if self._reshard == "no" else None
        if self._over:
            options["mesh"] = self._mesh(options)

    def _mesh(self, options: dict[str, Any]) -> Any:
        import torch.distributed
        from torch.distributed.device_mesh import init_device_mesh

        given, world = options.get("mesh"), torch.distributed.get_world_size()
        if options.get("dp_mesh_dims") is not None or given is not None and given.size() != world or world % self._over:
            self._other_meshes += 1
            return given
        device = given.device_type if given is not None else "cuda"
        if device not in self._meshes:
            shape, names = (
                ((world,), ("shard",))
                if self._over == world
                else ((world // self._over, self._over), ("replicate", "shard"))
            )
            self._meshes[device] = init_device_mesh(device, shape, mesh_dim_names=names)
        return self._meshes[device]

    def _note(self, options: dict[str, Any]) -> None:
        import torch.distributed

        mesh = options.get("mesh")
        self._calls += 1
        self._resharding.add(options.get("reshard_after_forward") is None or bool(options["reshard_after_forward"]))
        self._sizes.add(torch.distributed.get_world_size() if mesh is None else int(mesh.shape[-1]))
