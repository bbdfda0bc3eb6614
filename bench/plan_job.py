"""Train one job for some steps on the GPU: ``plan_job.py JOBS.py NAME [STEPS]``. It knows nothing of modscope."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
spec = importlib.util.spec_from_file_location("jobs", sys.argv[1])
assert spec and spec.loader
jobs = importlib.util.module_from_spec(spec)
sys.modules["jobs"] = jobs
spec.loader.exec_module(jobs)
job = jobs.JOBS[sys.argv[2]]()
with torch.device("cuda"):
    model = job.make()
optimizer = job.optimizer(model)
batch = job.batch("cuda")
for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):
    job.step(model, optimizer, batch)
