"""The levers of FSDP2 against predictions of the job with the lever applied, on a virtual H100. See ``python
bench/fit.py sharded``.

The job is fit_sharding_job.py. Each of its kinds is predicted on one GPU, as rank 0 of 2 and of 8, of 8 without
resharding, and of 8 in copies of 2. The small models of fit_sharding_models.py, which differ in their shapes, are
predicted on one GPU and as rank 0 of 8."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from modscope._fit import sharding
from modscope._fit.job import Edit, Job
from modscope._predict.capture_of_script import PredictedScript
from modscope._predict.options import PredictOptions, ShardingChange
from modscope._record.options import ScriptOptions
from modscope._virtual.gpus import find_gpu

KINDS = ("float32", "bfloat16", "autocast", "mixed")
SHAPES = ("gpt", "encoder-decoder", "blocks", "linears", "plain", "stages", "wrapped", "sequence")
_JOB = str(pathlib.Path(__file__).with_name("fit_sharding_job.py"))
_SMALL = str(pathlib.Path(__file__).with_name("fit_sharding_models.py"))


class _Row(NamedTuple):
    lever: str
    source: str
    """Of which capture the lever is."""
    found: int
    real: int


def _predicted(*target: str) -> PredictedScript:
    return PredictedScript(ScriptOptions([*target], steps=3), PredictOptions())


def _rows(kind: str) -> Iterator[_Row]:
    gpu = find_gpu("h100")
    with _predicted(_JOB, kind) as script:

        def job(ranks: int, reshard: str = "", over: int = 0) -> Job:
            return Job(
                script.predict(
                    [gpu], f"{kind} on {ranks}", sharding=ShardingChange(ranks, reshard, over) if ranks > 1 else None
                )
            )

        one, two, eight, kept, hybrid = job(1), job(2), job(8), job(8, reshard="no"), job(8, over=2)
        mixed = kind == "mixed"

        def row(lever: str, source: str, of: Job, edits: list[Edit], real: Job) -> _Row:
            return _Row(lever, source, of.replay(edits).reserved, real.replay().reserved)

        yield row("over 2 GPUs", "one GPU", one, sharding.edits(one, 2, mixed), two)
        yield row("over 8 GPUs", "one GPU", one, sharding.edits(one, 8, mixed), eight)
        yield row("over 8 GPUs, kept after forward", "one GPU", one, sharding.edits(one, 8, mixed, keeps=True), kept)
        yield row("over 8 GPUs", "rank 0 of 2", two, sharding.over(two, 2, 8), eight)
        yield row("keep parameters after forward", "rank 0 of 8", eight, sharding.keep(eight), kept)
        yield row("reshard after forward", "rank 0 of 8, kept", kept, sharding.reshard(kept), eight)
        yield row("HSDP: shard over 2 of 8", "rank 0 of 8", eight, sharding.over(eight, 8, 2, in_copies=True), hybrid)
        yield row("shard over all 8 instead of 2", "rank 0 of 8, HSDP", hybrid, sharding.over(hybrid, 2, 8), eight)


def _rows_of_shape(shape: str) -> Iterator[_Row]:
    gpu = find_gpu("h100")
    with _predicted(_SMALL, shape) as script:
        one, eight = Job(script.predict([gpu])), Job(script.predict([gpu], f"{shape} on 8", sharding=ShardingChange(8)))
        real = eight.replay().reserved
        yield _Row("over 8 GPUs", "one GPU", one.replay(sharding.edits(one, 8)).reserved, real)


def main(kinds: list[str], limit: float) -> int:
    """Prints a table; 1 if an error is above the limit."""
    print("| job | lever | of a capture of | predicted, MiB reserved | lever | error |\n|---|---|---|---|---|---|")
    worst = 0.0
    for kind in kinds or (*KINDS, *SHAPES):
        for row in _rows_of_shape(kind) if kind in SHAPES else _rows(kind):
            error = row.found / row.real - 1
            worst = max(worst, abs(error))
            print(
                f"| {kind} | {row.lever} | {row.source} | {row.real >> 20} | {row.found >> 20} "
                f"| {100 * error:+.1f} % |",
                flush=True,
            )
    print(f"worst: {100 * worst:.1f} %", file=sys.stderr)
    return int(worst > limit)
