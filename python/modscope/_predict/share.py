"""``modscope predict --check --share ROW``: what a reader with a GPU can contribute: a prediction beside the real run,
with nothing that tells whose job it was. Names of the script, of its modules, files and lines, and its arguments never
get here: a row has numbers, versions, and names of classes that can be imported from torch."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from modscope._read.load import CaptureError, load
from modscope._read.own_files import ROW
from modscope._show.output_file import create
from modscope._virtual.gpus import GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_VERSION = 1
_FIGURES = ("allocated_peak", "reserved_peak", "step_ms")
_LIBRARIES = (
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "diffusers",
    "flash_attn",
    "lightning",
    "numpy",
    "peft",
    "timm",
    "torchvision",
    "transformers",
    "triton",
    "trl",
)
_OF_TORCH = ("OutOfMemoryError", "AcceleratorError")


def row_of(predicted: Mapping[str, Any], real: Mapping[str, Any], errors: Mapping[str, float]) -> dict[str, Any]:
    """The row of a prediction and of the real run that followed it. Both are as _predict/check.py has them."""
    return {
        "kind": "modscope row",
        "version": _VERSION,
        **real["machine"],
        "modscope": _version_of("modscope"),
        "predicted_on": predicted["gpu"] if predicted["gpu"] in GPUS else "",
        "rules": _public(predicted["torch"]),
        "allocator": predicted["allocator"],
        "verdict": predicted["verdict"],
        "bytes_without_rule": predicted["bytes_without_rule"],
        "steps": real["steps"],
        "error": _name_of(real["error"]),
        "predicted": {key: predicted[key] for key in _FIGURES},
        "measured": {key: real[key] for key in _FIGURES},
        "errors": dict(errors),
        "categories": _categories(predicted),
        "job": real["job"],
    }


def write(path: str, row: Mapping[str, Any], overwrite: bool) -> str:
    """Write the row. Returns a sentence that says what it holds. OSError says why it cannot be written."""
    with create(path, ROW, overwrite) as file:
        file.write(f"{json.dumps(row, indent=2)}\n".encode())
    return (
        f"wrote {path}: the GPU, versions, the peaks and their errors, and what the job is made of (categories, "
        "parameters by type, torch's classes). It has no name, argument, path or line of yours. Read it, and open an "
        "issue with it."
    )


def _categories(predicted: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by category at the predicted peak; none where there is no capture."""
    with contextlib.suppress(OSError, CaptureError):
        if predicted["capture"]:
            return dict(load(predicted["capture"]).snapshot("peak").totals[predicted["device"]])
    return {}


def _name_of(error: str) -> str:
    """The class of an exception that Python or torch has; of any other one only that there was one."""
    name = error.partition(":")[0]
    return name if not name or hasattr(builtins, name) or name in _OF_TORCH else "an exception of the script"


def _public(version: str) -> str:
    """Without the part after +, which whoever builds a package chooses."""
    return version.partition("+")[0]


def _version_of(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return _public(importlib.metadata.version(package))
    return ""


# ---- in the process on the real GPU ----


def machine() -> dict[str, Any]:
    """The GPU and the versions of this process."""
    import torch

    gpu = torch.cuda.get_device_properties() if torch.cuda.is_initialized() else None
    loaded = (name for name in _LIBRARIES if name in sys.modules)
    return {
        "gpu": gpu.name if gpu else "",
        "memory": gpu.total_memory if gpu else 0,
        "capability": [gpu.major, gpu.minor] if gpu else [],
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _public(torch.__version__),
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or "") if gpu else "",
        "libraries": {name: version for name in loaded if (version := _version_of(name))},
        "settings": {
            "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
            "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
    }


def job() -> dict[str, Any]:
    """What this process's modules, parameters and optimizers are. Classes that are not torch's own have no names."""
    from torch.nn.parameter import is_lazy

    import torch

    found = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module | torch.optim.Optimizer)]
    modules = [each for each in found if isinstance(each, torch.nn.Module)]
    parameters: Counter[str] = Counter()
    for parameter in {id(each): each for each in _parameters(modules) if not is_lazy(each)}.values():
        with contextlib.suppress(Exception):  # a class of somebody's, that may have neither
            parameters[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return {
        "modules": _classes(modules),
        "optimizers": _classes(each for each in found if not isinstance(each, torch.nn.Module)),
        "parameters": dict(parameters),
    }


def _parameters(modules: list[Any]) -> Iterator[Any]:
    return (each for module in modules for each in vars(module).get("_parameters", {}).values() if each is not None)


def _classes(objects: Iterable[object]) -> dict[str, int]:
    return dict(Counter(_class_name(type(each)) for each in objects).most_common())


def _class_name(kind: type) -> str:
    """A class that torch makes of one of the program's, as fully_shard does, has a name made of the program's name. It
    cannot be imported by that name."""
    module = sys.modules.get(kind.__module__)
    is_torch = kind.__module__.partition(".")[0] == "torch" and getattr(module, kind.__name__, None) is kind
    return kind.__name__ if is_torch else "others"
