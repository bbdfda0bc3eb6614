"""Where Python may not keep what it compiles beside torch (PYTHONDONTWRITEBYTECODE, an installation that cannot be
written), the script's process would compile torch's compiler each time, for seconds: it keeps that in a folder of
modscope's own."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["keep"]


def keep() -> None:
    """Called before torch is imported. The script's own modules are kept there too."""
    if sys.pycache_prefix is None and "torch" not in sys.modules and _is_never_kept():
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(base, "modscope", "bytecode")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError:
            return
        sys.pycache_prefix = folder
        sys.dont_write_bytecode = False


def _is_never_kept() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return False
    source = os.path.join(os.path.dirname(spec.origin), "_dynamo", "__init__.py")
    if os.path.exists(importlib.util.cache_from_source(source)):
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(source), os.W_OK)
