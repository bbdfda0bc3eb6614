"""``modscope predict --ranks``: what it prints, and what it refuses."""

import inspect
import json
import pathlib
import re
import subprocess

import pytest
import warm_python
from helpers import INTERCEPTION
from modscope import load
from modscope.__main__ import main
from modscope._job.job import find_job
from modscope._job.read import read_ranks
from torch.distributed.pipelining import stage

PROGRAMS = pathlib.Path(__file__).parent / "programs"
needs_virtual_gpu = pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")


def predict(folder: pathlib.Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return warm_python.run(["-m", "modscope", "predict", *words], folder)


@needs_virtual_gpu
@pytest.mark.slow
def test_one_rank_says_which_it_is_and_what_nccl_takes(tmp_path: pathlib.Path) -> None:
    ran = predict(
        tmp_path,
        "--gpu",
        "h100",
        "--seconds",
        "0",
        "--ranks",
        "8",
        "--rank",
        "5",
        "--json",
        "x.json",
        str(PROGRAMS / "ddp.py"),
    )
    assert ran.returncode == 0, ran.stderr
    assert "predicted 3 steps as rank 5 of 8 in" in ran.stderr
    assert "0.5 GiB of it for the CUDA context and about 0.7 GiB for 1 communicator of NCCL: it fits" in ran.stderr
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["ranks"]["size"] == 8 and result["ranks"]["rank"] == 5 and result["ranks"]["communicators"] == 1
    assert result["may_reserve"] == result["memory"] - result["context"] - result["ranks"]["communicator_bytes"]
    assert result["ranks"]["collective_bytes"]["all_reduce"] >= 3 * 10 * 4 * 1024 * 1025


@needs_virtual_gpu
@pytest.mark.slow
def test_the_stages_of_a_pipeline_differ(tmp_path: pathlib.Path) -> None:
    words = ["--gpu", "h100", "--seconds", "0", "--ranks", "2", "--all-ranks", "--json", "x.json", "-o", "."]
    ran = predict(tmp_path, *words, str(PROGRAMS / "pipeline.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "rank 0\n"  # the others print nothing
    ranks = json.loads((tmp_path / "x.json").read_text())["ranks"]
    assert [rank["ranks"]["rank"] for rank in ranks] == [0, 1]
    allocated = [rank["allocated_peak"] for rank in ranks]
    # The first stage has most microbatches in flight. From torch 2.15 on it drops their outputs when they are sent.
    assert allocated[0] > allocated[1] if "fwd_cache" in inspect.getsource(stage) else allocated[0] != allocated[1]
    reserved = [rank["reserved_peak"] for rank in ranks]
    most, least = reserved.index(max(reserved)), reserved.index(min(reserved))
    said = rf"^Rank {most} reserves most, .* and rank {least} least, .*: a spread of .*\.$"
    assert most != least and re.search(said, ran.stderr, re.MULTILINE)
    assert_captures_are_a_job(tmp_path, [rank["capture"] for rank in ranks], allocated)
    assert (
        "See them as one job:  modscope summary ./modscope-pipeline.rank0.msc ./modscope-pipeline.rank1.msc"
        in ran.stderr
    )
    again = predict(tmp_path, *words, str(PROGRAMS / "pipeline.py"))
    assert (
        again.returncode == 1 and "rank0.msc exists already: choose another name, or overwrite it (-f)" in again.stderr
    )


def assert_captures_are_a_job(folder: pathlib.Path, names: list[str], peaks: list[int]) -> None:
    """As modscope summary and report read the captures of a real job's ranks."""
    assert [pathlib.Path(name).name for name in names] == [
        f"modscope-pipeline.rank{rank}.msc" for rank in range(len(peaks))
    ]
    assert len(list(folder.glob("*.msc"))) == len(peaks)
    ranks = read_ranks([str(folder / name) for name in names])
    job = find_job(ranks)
    assert (job.world, job.missing, job.left_out) == (len(peaks), [], [])
    assert [rank.bytes for rank in job.ranks] == peaks
    assert [rank.identity.local_rank for rank in job.ranks if rank.identity] == list(range(len(peaks)))


@needs_virtual_gpu
@pytest.mark.slow
def test_several_numbers_of_ranks_are_a_table(tmp_path: pathlib.Path) -> None:
    ran = predict(tmp_path, "--gpu", "l4", "--seconds", "0", "--ranks", "1,2", "-o", "x.msc", str(PROGRAMS / "ddp.py"))
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    assert lines[0].startswith("[modscope] predicted 3 steps as rank 0 of 1 and 2 ranks on L4 in")
    rows = [line.split() for line in lines if re.match(r"[12] ", line)]
    assert [row[0] for row in rows] == ["1", "2"] and all(row[-1] == "fits" for row in rows)
    assert lines[-1] == "Compare two:  modscope diff x.1ranks.rank0.msc x.2ranks.rank0.msc"
    assert [load(tmp_path / f"x.{ranks}ranks.rank0.msc").info["world"] for ranks in (1, 2)] == ["1", "2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "8,1000000"], "1000000 ranks are too many: give 131072 or fewer"),
        (["--ranks", "0"], "'0' is not a number of ranks: give 64, or several such as 8,16,32,64"),
        (["--rank", "1"], "need --ranks, such as --ranks 64"),
        (["--ranks", "8", "--rank", "8"], "--rank 8: of 8 ranks the last one is 7"),
        (["--ranks", "8,16", "--all-ranks", "--gpu", "h100"], "--all-ranks needs one number of --ranks"),
        (["--ranks", "8,16"], "a table of ranks needs one GPU, such as --gpu h100"),
        (["--ranks", "8,16", "--gpu", "h100", "-f"], "add -o NAME.msc, or -o FOLDER"),
        (["--ranks", "8", "--check"], "leave --ranks out"),
        (
            ["--ranks", "8", "--gpu", "h100", "-m", "torch.distributed.run"],
            "give the script itself, without torch.distributed.run",
        ),
        (
            ["--ranks", "8", "--gpu", "h100", "/usr/bin/torchrun"],
            "give the script itself, without torchrun: each rank is simulated here",
        ),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["predict", *words, "train.py"])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
