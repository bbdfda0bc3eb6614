"""Install the virtual device in torch, and remove it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from modscope import _native
from modscope._torch import interception as _interception
from modscope._torch.probes import undisturbed
from modscope._virtual import outside
from modscope._virtual.device import cuda_functions, graphs, probes, storages
from modscope._virtual.device.environment import allocator_settings
from modscope._virtual.device.memory import Memory
from modscope._virtual.device.registration import INFERENCES, fakes_preferred, kernels_registered
from modscope._virtual.gpus import Gpu, find_gpu
from modscope._virtual.operators import bodies, known, operators
from modscope._virtual.ranks import traffic
from modscope._virtual.rules import attention, plans, recurrent, rules
from modscope._virtual.time import times
from modscope._virtual.time.table import Table

__all__ = ["VirtualDevice", "try_in_fork"]

_UNLIMITED = 1 << 50  # bytes
_FORK_LIMIT = 20_000  # milliseconds
_SEEN_TO_WORK = ("2.8.", "2.11.", "2.13.", "2.15.")
"""Versions of torch in which the device has been tested. In any other version it is first installed in a forked
process, because torch's internals may differ there in a way that ends the process."""
_CAN_BE_INSTALLED = "it can be installed"
_THREADS = 16  # of autograd, for as many devices
_HAS_RUN_BACKWARD = (
    "a backward has run in this process when it had fewer devices, and torch counts them when the first one runs: "
    "in a notebook, restart the kernel, or run  !modscope predict script.py"
)


def _is_driver_loaded() -> bool:
    """Without it no GPU can be in use, even if torch believes it, as after an earlier virtual device."""
    try:
        ctypes.CDLL("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _refusal() -> str | None:
    """Why no virtual GPU can be installed in this process, as far as that can be told before."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"a virtual GPU needs Linux on x86-64, not {platform.system()} on {platform.machine()}"
    if os.environ.get("MODSCOPE_INTERPOSE") == "0":
        return "a virtual GPU needs modscope's interception: unset MODSCOPE_INTERPOSE"
    if not hasattr(torch, "accelerator"):
        return f"a virtual GPU needs torch 2.6 or newer, not {torch.__version__}"
    if torch.version.hip:
        return "a virtual GPU needs a torch for CUDA or for the CPU, not for ROCm"
    if torch.backends.cuda.is_built() and torch.cuda.is_initialized() and _is_driver_loaded():
        return "CUDA is in use in this process: install the virtual GPU before the first use of CUDA"
    return None


_installed: list[VirtualDevice] = []
"""The installed device, if there is one: it stays installed until it is removed, even if the caller drops it."""


def is_installed() -> bool:
    return bool(_installed)


class VirtualDevice:
    """One virtual GPU, or those of a node. While it is installed, torch reports it in this process."""

    def __init__(
        self,
        gpu: Gpu,
        version: str | None = None,
        unlimited: bool = False,
        table: Table | None = None,
        also: Sequence[Gpu] = (),
        count: int = 1,
        own: int = 0,
    ) -> None:
        """``version``: of the torch whose rules are followed; by default the installed one. ``unlimited``: no
        allocation fails. ``table``: measurements of such a GPU. ``also``: other GPUs whose times are predicted too.
        ``count``: so many devices are there, each as this GPU; ``own``: the index of the one that the program should
        use."""
        self.gpu = gpu
        self._also = [gpu, *also]
        self._unlimited = unlimited
        self._table = table
        self.own = own
        self.memory = Memory(gpu, count)
        self._version = version or str(torch.__version__)
        self._undo = contextlib.ExitStack()

    def install(self) -> None:
        """Install the device. A real GPU is ignored meanwhile. RuntimeError, and nothing is changed, if this torch does
        not allow it."""
        global _was_tried
        why = _refusal()
        if (
            why is None
            and not _was_tried
            and not torch.__version__.startswith(_SEEN_TO_WORK)
            and len(sys._current_frames()) == 1
        ):
            why = try_in_fork()
        if why:
            raise RuntimeError(why)
        with contextlib.ExitStack() as undo:
            self._install_in_torch(undo)
            self._install_answers(undo)
            _test(self.memory)
            _native.virtual_restart()
            undo.callback(torch.cuda._check_bf16_tensor_supported.cache_clear)
            undo.callback(_wait_for_backward_threads)
            self._undo = undo.pop_all()
        _installed.append(self)
        atexit.register(_wait_for_backward_threads)
        _was_tried = True

    def _install_in_torch(self, undo: contextlib.ExitStack) -> None:
        """What torch's C++ code asks, and the kernels."""
        has_cuda = torch.backends.cuda.is_built()
        capacity, memory = (_UNLIMITED, _UNLIMITED) if self._unlimited else (self.gpu.capacity, self.gpu.memory)
        _native.virtual_install(self._version, allocator_settings(), capacity, memory, has_cuda, self.memory.count)
        if has_cuda:
            undo.callback(_initialize_real_cuda)
        undo.callback(_native.virtual_remove)
        undo.enter_context(_replaced(torch.cuda, {"_lazy_init": lambda: None}))
        why = probes.learn(self.memory.count)
        _interception.prepare()  # after the installation: it may run the first backward
        why = why or _native.virtual_find_functions(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA).raw_repr())
        if why:
            raise RuntimeError(f"a virtual GPU needs another torch: {why}")
        undo.enter_context(kernels_registered())
        undo.enter_context(fakes_preferred())

    def _install_answers(self, undo: contextlib.ExitStack) -> None:
        """What torch's Python code asks, and what the kernels need to know of the GPU."""
        for module, values in (
            cuda_functions.replacements(self.gpu, self.memory, self.memory.count) + storages.replacements()
        ):
            undo.enter_context(_replaced(module, values))
        gpu = rules.gpu_and_torch(self.gpu, self._version)
        self._rules = rules.Rules(gpu, self._table)
        answers = {
            "out_of_memory": self.memory.out_of_memory,
            "inferences": INFERENCES,
            "costs": self._rules,
            "device_count": self.memory.count,
        }
        undo.enter_context(_replaced(operators, answers))
        undo.enter_context(_replaced(attention, {"gpu": gpu}))
        undo.enter_context(_cudnn_of_recurrent_layers())
        undo.enter_context(_replaced(torch.autograd, {"_engine_run_backward": _run_backward}))
        undo.enter_context(times.installed(self.gpu, self._also[1:]))

    def bytes_without_rule(self) -> int:
        """How many bytes of results went through operators without a rule for their workspace."""
        return self._rules.bytes_without_rule()

    def libraries(self) -> list[str]:
        """Those that the program uses, of the ones that take memory of the GPU themselves."""
        return outside.libraries_of(self._rules.operators, graphs.has_captured())

    def is_used(self) -> bool:
        """Whether the program has allocated anything."""
        return any(map(self.memory.has_allocated, range(self.memory.count)))

    def set_outside(self, bytes: int) -> None:
        """Something takes memory of the program's GPU beside torch's allocator and the context. An unlimited GPU has
        enough."""
        if not self._unlimited:
            self.memory.set_outside(bytes, self.own)

    def used(self) -> int:
        """The index of the device that the results are about: the one that reserved most."""
        return self.memory.most_used(self.own)

    def notes(self) -> list[str]:
        """Sentences about where sizes come from, what ran by fake kernels, and other GPUs that the program uses."""
        found = plans.note()
        return [*([found] if found else []), *_fake_kernels(), *self._notes_of_others()]

    def _notes_of_others(self) -> list[str]:
        """A sentence if the program does not keep to its own GPU: on a real node, other ranks use the others."""
        used = self.used()
        others = [index for index in range(self.memory.count) if index != self.own and self.memory.has_allocated(index)]
        if not others or "CUDA_VISIBLE_DEVICES" in os.environ:
            return []
        if used == self.own:
            names = ", ".join(f"cuda:{index}" for index in others)
            return [f"The script also uses {names}, which other ranks of its node use: their memory is not counted."]
        return [
            f"The script uses cuda:{used}, the GPU of another rank, and so do all ranks of its node. Choose this rank's"
            f" own, cuda:{self.own}, by LOCAL_RANK: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))."
        ]

    def seconds_on(self, gpu: Gpu) -> float | None:
        """The virtual time on one of the GPUs that were asked for; None if its speed is not known."""
        position = [other.name for other in self._also].index(gpu.name)
        return times.now(position - 1 if position else None) if gpu.speed else None

    def remove(self) -> None:
        self._undo.close()
        if self in _installed:
            _installed.remove(self)
        atexit.unregister(_wait_for_backward_threads)
        operators.forget()
        known.forget_all()
        bodies.forget()


_MOST_NAMES = 3


def _fake_kernels() -> list[str]:
    """A sentence if custom operators ran by their fake kernels, though their bodies are in Python."""
    if not bodies.why_fake:
        return []
    names = sorted(bodies.why_fake)
    more = ", ..." if len(names) > _MOST_NAMES else ""
    which = (
        f"{len(names)} of {len(names) + len(bodies.ran)} custom operators" if len(names) > 1 else "a custom operator"
    )
    named = ", ".join(names[:_MOST_NAMES])
    return [
        f"The fake kernel{'s' if len(names) > 1 else ''} of {which} ran ({named}{more}), as the body cannot run here "
        f"({bodies.why_fake[names[0]]}): what bodies allocate beside their results is not counted."
    ]


def _test(memory: Memory) -> None:
    """Make tensors, and compare what torch and the allocator's model say of them. RuntimeError if they are not
    right."""
    last = memory.count - 1
    with undisturbed():
        tensor = torch.empty((3, 5), dtype=torch.bfloat16, device="cuda")
        view = tensor.t()[1:]
        right = (
            (str(tensor.device), tensor.dtype, tensor.untyped_storage().nbytes()) == ("cuda:0", torch.bfloat16, 30)
            and (view.shape, view.stride(), view.data_ptr() - tensor.data_ptr()) == ((4, 3), (1, 5), 2)
            and torch.empty(2, dtype=torch.complex128, device="cuda").element_size() == 16
            and memory.bytes("allocated_bytes", "current") == 512
            and str(torch.empty(2, device=f"cuda:{last}").t().device) == f"cuda:{last}"
        )
        del tensor, view
        if not right or memory.bytes("allocated_bytes", "current") != 0:
            raise RuntimeError("a virtual GPU needs another torch: a test tensor was not what it should be")
        if not _runs_backward(last):
            # An earlier backward of the process found no device, or fewer; torch can start only all threads at once.
            has_threads = last > 0 and _runs_backward(0)
            if has_threads or not _start_threads() or not _runs_backward(last):
                raise RuntimeError(_HAS_RUN_BACKWARD)


def _start_threads() -> bool:
    _native.virtual_count_at_least(_THREADS)
    try:
        return _native.virtual_start_backward_threads()
    finally:
        _native.virtual_count_at_least(0)


def _runs_backward(device: int) -> bool:
    """Whether autograd has a thread for a device. If this is the process's first backward, it starts enough of them for
    a node: it starts no more later."""
    _native.virtual_count_at_least(_THREADS)
    try:
        torch.ones(2, device=f"cuda:{device}", requires_grad=True).sum().backward()
        return True
    except RuntimeError:
        return False
    finally:
        _native.virtual_count_at_least(0)


def _wait_for_backward_threads() -> None:
    """Wait until this process uses no processor time. A thread of autograd may free tensors after a backward has
    returned, and needs the interpreter for that: if the interpreter ended meanwhile, the process would abort."""
    for _ in range(200):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.001:
            return


def _run_backward(*args: Any, **options: Any) -> Any:
    """torch's function, at whose end the default stream waits for the collectives of gradients; where it fails, wait
    until autograd has freed the graph. The thread in which the backward failed needs the interpreter for that. With
    real kernels the graph is freed at once, so that a program that catches an out-of-memory error has that memory."""
    try:
        result = torch.autograd.graph._engine_run_backward(*args, **options)
    except Exception:
        _wait_for_backward_threads()
        raise
    traffic.wait_for_all()
    return result


def _initialize_real_cuda() -> None:
    """Initialize CUDA for the real GPU, if there is one: torch does that once in a process, and did it with our
    hooks."""
    slot = probes.init_slot()
    if slot is not None and torch._C._cuda_getDeviceCount() > 0:
        _native.virtual_initialize_real(slot)
        probes.forget_init_slot()


_was_tried = False
"""Whether the device was installed in this process before, or this is the forked process of ``try_in_fork``."""


def _describe_installation() -> str:
    global _was_tried
    _was_tried = True
    try:
        device = VirtualDevice(find_gpu("h100"))
        device.install()
        device.remove()
    except Exception as error:
        return str(error)
    return _CAN_BE_INSTALLED


def try_in_fork() -> str | None:
    """None if a virtual GPU can be installed in a process such as this one, else why not. This process does not
    change."""
    why = _refusal()
    if why is None and len(sys._current_frames()) > 1:
        why = "it was not tried, because this process has several threads"
    if why is None:
        why = (
            _native.run_in_fork(_describe_installation, _FORK_LIMIT)
            or "the process that tried it ended without an answer"
        )
    return None if why == _CAN_BE_INSTALLED else why


@contextlib.contextmanager
def _cudnn_of_recurrent_layers() -> Iterator[None]:
    """Make torch.nn.RNNBase.flatten_parameters find cuDNN."""
    import torch.backends.cudnn.rnn

    with (
        _replaced(torch, {"_use_cudnn_rnn_flatten_weight": lambda: True}),
        _replaced(torch.backends.cudnn, {"is_acceptable": recurrent.acceptable}),
        _replaced(torch.backends.cudnn.rnn, {"get_cudnn_mode": recurrent.cudnn_mode}),
    ):
        yield
    recurrent.forget()


# ---- forked processes ----

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    "'spawn' start method"
)


def _refuse(size: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    raise RuntimeError(_BAD_FORK)


def _refuse_in_fork() -> None:
    """Let tensors of the device raise an error in a forked process, as CUDA does where its parent has used it."""
    if _installed and _installed[0].is_used():
        operators.make = _refuse


os.register_at_fork(after_in_child=_refuse_in_fork)


@contextlib.contextmanager
def _replaced(module: Any, values: dict[str, Any]) -> Iterator[None]:
    """Set attributes of a module or class, and restore them in the end."""
    absent = object()
    before = {name: vars(module).get(name, absent) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                delattr(module, name)
            else:
                setattr(module, name, value)
