"""Partial results of reductions with other batches: they stop growing where the GPU is full. Captures are synthetic."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from capture_helpers import Capture
from modscope._fit.job import Job
from modscope._fit.two_captures import Batches

MIB = 1 << 20
FULL = {"gpu_processors": "32", "gpu_threads": "2048"}
"""A GPU on which 512 blocks of 128 threads run at once: partial results have 32 MiB at most."""
NEVER = 1 << 20


def job(
    path: pathlib.Path, batch: int, *limits: int, gpu: str = "", extra: int = 0, end: dict[str, str] | None = None
) -> Job:
    """A run in whose backward, for each of ``limits``, a reduction has a MiB of partial results for each of the batch,
    up to the limit. ``extra``: bytes of a workspace that an operator takes in each forward."""
    c = Capture(("cpu", "cuda:0"), torch="2.13.0", **({"gpu": gpu} if gpu else {}))
    net = c.module("Net")
    parameters = [c.add(4 * MIB, 1, "Parameter", net) for _ in range(2)]
    for _ in range(3):
        c.step()
        c.where("forward", net)
        kept = [c.add(batch * MIB // 4, 1) for _ in range(8)]
        if extra:
            c.drop(c.add(extra, 1))
        c.where("backward", net)
        for limit in limits:
            result = c.add(4096, 1)
            partial = c.add(min(batch, limit) * MIB, 1)
            semaphores = c.add(512, 1)
            c.drop(semaphores, partial, result)
        c.drop(*kept)
        c.where("optimizer")
        c.optimizer_step()
        c.where()
    c.drop(*parameters)
    path.write_bytes(c.end(how="finished", **(end or {})))
    return Job(str(path))


@pytest.mark.parametrize(
    ("sizes", "limits", "known", "tried"),
    [
        ((4, 8), (32,), {"end": FULL}, (1, 4, 6, 8, 16, 32, 33, 200)),
        ((16, 32), (132,), {"gpu": "h100"}, (8, 16, 32, 100, 132, 400)),  # 132 processors of 2048 threads
        ((32, 64), (40,), {}, (32, 36, 64, 100, 400)),  # the block that did not grow tells it
        ((32, 64), (40, 40), {}, (32, 64, 100)),
        ((4, 8), (NEVER,), {}, (1, 4, 8, 16, 100)),  # nothing tells a limit
        ((8, 16), (12,), {}, (8, 9, 16, 100)),  # a small reduction has a limit of its own
        ((8, 16), (12, 32), {"end": FULL}, (8, 16, 32, 100)),
    ],
)
def test_partial_results_stop_growing(
    tmp_path: pathlib.Path,
    sizes: tuple[int, int],
    limits: tuple[int, ...],
    known: dict[str, Any],
    tried: tuple[int, ...],
) -> None:
    small, large = (job(tmp_path / f"{batch}.msc", batch, *limits, **known) for batch in sizes)
    batches = Batches(small, large, sizes)
    for batch in tried:
        real = job(tmp_path / "real.msc", batch, *limits, **known).replay()
        found = batches.replay(batch)
        assert (batch, found.allocated, found.reserved) == (batch, real.allocated, real.reserved)


def test_what_is_not_a_reduction_grows_on(tmp_path: pathlib.Path) -> None:
    small, large = (job(tmp_path / f"{batch}.msc", batch, end=FULL) for batch in (4, 8))
    assert Batches(small, large, (4, 8)).replay(400).allocated == job(tmp_path / "real.msc", 400).replay().allocated


def test_an_operator_that_works_in_another_way_is_a_sentence(tmp_path: pathlib.Path) -> None:
    small, large = job(tmp_path / "small.msc", 4, 32), job(tmp_path / "large.msc", 8, 32, extra=5 * MIB)
    note = Batches(small, large, (4, 8)).note
    assert note.startswith(
        f"{large.file} has 3 blocks that {small.file} does not have, the first of them 5.00 MiB in forward of Net: "
    )
    assert "an operator works in another way with a larger batch, so figures of other batches are about right." in note
    other = Batches(job(tmp_path / "small.msc", 4, 32, extra=5 * MIB), job(tmp_path / "large.msc", 8, 32), (4, 8)).note
    assert other.startswith(f"{small.file} has 3 blocks that {large.file} does not have")
    assert Batches(job(tmp_path / "small.msc", 4, 32), job(tmp_path / "large.msc", 8, 32), (4, 8)).note == ""
