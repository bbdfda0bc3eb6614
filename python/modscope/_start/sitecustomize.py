"""Python imports a module of this name before any script. `modscope run` puts this folder first in PYTHONPATH.

Afterwards the environment, sys.path and the installation's own sitecustomize are as without modscope.
"""

import os
import sys

_here = os.path.dirname(__file__)
sys.path.remove(_here)
sys.path_importer_cache.pop(_here, None)
del sys.modules["sitecustomize"]

sys.path.insert(0, os.path.dirname(os.path.dirname(_here)))
try:
    from modscope import _run_recording
finally:
    del sys.path[0]
_run_recording.enter()

__import__("sitecustomize")  # the installation's own; if it has none, Python expects the ImportError
