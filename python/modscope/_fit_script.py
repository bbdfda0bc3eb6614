"""``modscope fit`` of a script: predict it with unlimited memory, replay what it did with each lever, and predict it again
with the allocator's settings that are shown."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from modscope import _fit, _predict_process, _run
from modscope._capture import Allocator
from modscope._fit_answer import Answer, answer
from modscope._fit_job import Job
from modscope._fit_levers import Tried
from modscope._load import CaptureError
from modscope._predict_script import CAPTURE
from modscope._text import clean
from modscope._virtual.environment import allocator_settings
from modscope._virtual.gpus import GPUS, Gpu, rules_of

_CONF = "PYTORCH_CUDA_ALLOC_CONF"


def fit(options: argparse.Namespace, target: list[str]) -> int:
    """``target``: the script, or -m and a module, with its arguments. Returns an exit status."""
    options.module = target[0] == "-m"
    options.target = target[1:] if options.module else target
    options.table, options.plan, options.selected = None, None, 0.5
    options.follow_fork, options.no_capture = False, False
    try:
        if not options.target:
            raise CaptureError("-m needs the name of a module")
        Allocator(options.torch, allocator_settings())  # ValueError: the model does not know the version or a setting
        _run.check_target(options)
    except (_run.Refused, ValueError, CaptureError) as error:
        print(f"modscope: {clean(str(error))}", file=sys.stderr)
        return 2
    gpus: list[Gpu] = options.gpu or list(GPUS.values())
    answers: dict[Gpu, Answer] = {}
    with tempfile.TemporaryDirectory(prefix="modscope-") as folder:
        for number, kind in enumerate(_kinds(gpus)):
            job = _predict(options, os.path.join(folder, str(number)), kind, silent=number > 0)
            for gpu in kind:
                answers[gpu] = answer(job, gpu)
        if len(gpus) == 1:
            answers[gpus[0]] = _verify(options, folder, answers[gpus[0]])
        _fit.show([answers[gpu] for gpu in gpus], options.json, options.report, options.target[:1])
    return 0


def _kinds(gpus: list[Gpu]) -> list[list[Gpu]]:
    """GPUs of equal rules: the script is predicted once for them."""
    kinds: dict[object, list[Gpu]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        kinds.setdefault(rules_of(gpu), []).append(gpu)
    return list(kinds.values())


def _predict(options: argparse.Namespace, part: str, kind: list[Gpu], silent: bool) -> Job:
    os.mkdir(part)
    status = _predict_process.run(options, part, kind, silent)
    path = os.path.join(part, CAPTURE)
    if not os.path.isfile(path):
        raise CaptureError(f"{options.target[0]} ended with status {status}, and nothing could be predicted")
    job = Job(path)
    if job.device == "cpu":
        raise CaptureError(f'{options.target[0]} used no GPU: it uses one where its device is "cuda"')
    job.file = options.target[0]
    return job


# ---- verification ----


@contextlib.contextmanager
def _settings(conf: str) -> Iterator[None]:
    before = os.environ.get(_CONF)
    os.environ[_CONF] = conf
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONF]
        else:
            os.environ[_CONF] = before


def _verify(options: argparse.Namespace, folder: str, found: Answer) -> Answer:
    """The rows that change only settings, with the figures of another prediction."""
    rows = []
    for number, tried in enumerate(found.tried):
        if tried.lever.conf and not tried.lever.edits:
            conf = ",".join(filter(None, (allocator_settings(), tried.lever.conf)))
            with _settings(conf):
                job = _predict(options, os.path.join(folder, f"verified-{number}"), [found.gpu], silent=True)
            tried = Tried(tried.lever, job.replay(capacity=found.gpu.capacity))
        rows.append(tried)
    return found._replace(tried=rows)
