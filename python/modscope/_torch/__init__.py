"""Where modscope meets torch: interception points and their verification, hooks, devices, lines, collectives."""


def check_torch() -> None:
    """ImportError, with what to do, if this modscope only reads captures, or torch cannot be imported or is too old."""
    import importlib.util
    import platform
    import re

    if importlib.util.find_spec("modscope._native") is None:
        raise ImportError(
            f"modscope only reads captures on {platform.system()} ({platform.machine()}): it was built without what "
            "tracks programs, which needs Linux. Record there, and copy the captures here"
        )
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "modscope tracks PyTorch programs, and torch cannot be imported here. Install it with: pip install torch"
        ) from error
    version = str(getattr(torch, "__version__", "of no version"))
    if [int(part) for part in re.findall(r"\d+", version)[:2]] < [2, 5]:
        raise ImportError(
            f"modscope needs torch 2.5 or newer, and this is torch {version}. "
            "Install a newer one with: pip install --upgrade torch"
        )
