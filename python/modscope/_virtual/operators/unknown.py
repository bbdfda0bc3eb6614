"""Kernels of which nothing is known."""

from __future__ import annotations

__all__ = [
    "KernelError",
    "no_rendezvous",
    "other_rank_spawned",
    "sparse_collective",
    "unknown_backend",
    "unknown_collective",
    "unknown_kernel",
    "unknown_objects",
    "unknown_symmetric_memory",
]


class KernelError(RuntimeError):
    """Only a GPU can run a kernel, and nothing says what it returns. The text names the kernel, and says what to do."""


def unknown_kernel(name: str) -> KernelError:
    if name.startswith("aten::"):
        return KernelError(
            f"torch does not say what {name} returns (it has no meta kernel), so it cannot run on a virtual GPU. "
            f"Compute the "
            "result with other operators of PyTorch, or report the operator to modscope's authors"
        )
    return KernelError(
        f"{name} is a CUDA kernel of an extension, and a virtual GPU does not know what it returns. Put it in an "
        f"operator "
        "(torch.library.custom_op) and register a fake kernel, which only makes its results "
        "(torch.library.register_fake); "
        "or choose an implementation made of PyTorch's own operators"
    )


def unknown_collective(name: str) -> KernelError:
    """The error of a collective that virtual ranks do not have."""
    return KernelError(
        f"{name} is a collective that virtual ranks do not have, so that the memory that it takes is not known. "
        "Leave it out when you predict, or replace it by one of torch.distributed's usual collectives"
    )


def sparse_collective() -> KernelError:
    """As NCCL's process group raises it."""
    return KernelError(
        "NCCL does not support all_reduce with sparse tensors. Make the gradients dense (sparse=False of "
        "nn.Embedding), or "
        "reduce them on the CPU over gloo"
    )


def unknown_objects(name: str) -> KernelError:
    """The error of a rank that gets objects which only another rank has."""
    return KernelError(
        f"torch.distributed.{name} would get objects from another rank, and a rank that is predicted alone does "
        f"not know what "
        "they are. Predict all ranks together, with --all-ranks, or make the objects on this rank when you predict"
    )


def unknown_symmetric_memory(name: str) -> KernelError:
    """``name``: of a function of torch.distributed._symmetric_memory, or of an operator that uses such memory."""
    return KernelError(
        f"{name} needs symmetric memory, which other GPUs read and write directly, and virtual ranks do not have "
        f"it. When you "
        "predict, use ordinary tensors and torch.distributed's usual collectives instead"
    )


def unknown_backend(name: str) -> KernelError:
    return KernelError(
        f"init_process_group was asked for the backend {name!r}, and virtual ranks have nccl and gloo only. "
        f"Choose one of these "
        "when you predict, such as init_process_group('nccl')"
    )


def no_rendezvous() -> KernelError:
    return KernelError(
        "torch.distributed.rendezvous, which torch.distributed.rpc uses too, would wait for other ranks, and "
        "virtual ranks run alone. "
        "Call torch.distributed.init_process_group instead, and leave RPC out when you predict"
    )


def other_rank_spawned(rank: int) -> KernelError:
    return KernelError(
        f"torch.multiprocessing.spawn is predicted as rank 0 only, and this is rank {rank}: its function takes a "
        f"GPU by its number, and a "
        "virtual rank has one. Leave --rank and --all-ranks out, or call the function with RANK of the "
        "environment, as scripts for torchrun do"
    )
