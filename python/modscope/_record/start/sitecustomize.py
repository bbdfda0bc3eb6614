"""Python imports a module of this name before any script. `modscope run` puts this folder first in PYTHONPATH.

Afterwards the environment, sys.path and the installation's own sitecustomize are as without modscope. The script may
start another version of Python, even 2.7: it must be able to read this file, and is left alone.
"""

import os
import sys

_here = os.path.dirname(__file__)
if _here in sys.path:
    sys.path.remove(_here)
sys.path_importer_cache.pop(_here, None)
del sys.modules["sitecustomize"]

if os.environ.get("MODSCOPE_RUN", "").split(" ")[0] == "%d.%d" % sys.version_info[:2]:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(_here))))
    try:
        from modscope._record import in_process
    finally:
        del sys.path[0]
    in_process.enter()
else:
    os.environ.pop("MODSCOPE_RUN", None)
    _path = [name for name in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if name != _here]
    if _path:
        os.environ["PYTHONPATH"] = os.pathsep.join(_path)

__import__("sitecustomize")  # the installation's own; if it has none, Python expects the ImportError
