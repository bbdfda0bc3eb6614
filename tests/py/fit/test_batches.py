"""Other batches, from two captures of one program, against real runs with that batch on the CPU."""

from __future__ import annotations

import pathlib

import pytest
from fit_runs import train
from modscope._fit.job import Job
from modscope._fit.two_captures import Batches
from modscope._read.load import CaptureError


def job(path: pathlib.Path, **options: int) -> Job:
    train(path, **options)  # type: ignore[arg-type]
    return Job(str(path))


@pytest.fixture
def two(tmp_path: pathlib.Path) -> tuple[Job, Job]:
    return job(tmp_path / "small.msc", batch=128), job(tmp_path / "large.msc", batch=256)


def test_the_peak_of_another_batch_to_the_byte(two: tuple[Job, Job], tmp_path: pathlib.Path) -> None:
    batches = Batches(*two, sizes=(128, 256))
    for batch in (64, 192, 1024):
        expected = job(tmp_path / f"{batch}.msc", batch=batch).replay().reserved
        assert batches.large.replay(batches.edits(batch)).reserved == expected


def test_the_largest_batch_that_fits(two: tuple[Job, Job], tmp_path: pathlib.Path) -> None:
    batches = Batches(*two, sizes=(128, 256))
    capacity = job(tmp_path / "300.msc", batch=300).replay().reserved
    assert batches.largest(capacity) == 300
    assert batches.largest(capacity - 1) == 299
    assert batches.largest(1000) is None


def test_without_sizes_the_ratio_is_known(two: tuple[Job, Job]) -> None:
    batches = Batches(*two)
    assert (batches.ratio, batches.is_known, batches.describe(1)) == (2, False, "0.5 times the batch")


def test_batches_that_disagree_with_the_captures_are_refused(two: tuple[Job, Job]) -> None:
    with pytest.raises(CaptureError, match="2 times as large"):
        Batches(*two, sizes=(4, 12))


def test_the_same_batch_twice_is_refused(two: tuple[Job, Job]) -> None:
    with pytest.raises(CaptureError, match="a small and of a larger batch"):
        Batches(two[0], two[0])
    with pytest.raises(CaptureError, match="a small and of a larger batch"):
        Batches(two[1], two[0])


def test_other_programs_are_refused_with_what_differs_first(two: tuple[Job, Job], tmp_path: pathlib.Path) -> None:
    with pytest.raises(CaptureError, match=r"only .*deeper.msc calls Net.h.4$"):
        Batches(two[0], job(tmp_path / "deeper.msc", count=5))
    with pytest.raises(CaptureError, match="3 and 2 steps"):
        Batches(two[0], job(tmp_path / "shorter.msc", steps=2))
    with pytest.raises(CaptureError, match="they call modules"):
        Batches(two[0], job(tmp_path / "micro.msc", micro=2))
