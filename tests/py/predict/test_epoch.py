"""`modscope predict --epoch`: the batches of a script's DataLoader, read ahead, and a replay of the whole epoch."""

import json
import sys
import textwrap
from pathlib import Path

import pytest
import warm_python
from predict_helpers import needs_virtual_gpu, predict, predict_json, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

sys.path.append(str(Path(__file__).parents[3] / "bench"))

SCRIPT = """
    import random
    import sys

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    LENGTHS = [random.Random(index).randrange(8, 400) for index in range(160)]
    LENGTHS[77] = 2000

    class Texts(Dataset):
        def __len__(self):
            return len(LENGTHS)
        def __getitem__(self, index):
            return torch.full((LENGTHS[index],), index % 50)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(50, 1024), nn.Linear(1024, 8192)
        def forward(self, ids):
            return self.out(torch.relu(self.embed(ids))).float().logsumexp(-1).mean()

    def padded(samples):
        return nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def train(loader, every=1):
        net = Net().cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for number, batch in enumerate(loader):
            net(batch.cuda()).backward()
            if number % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
            seen(batch)

    def seen(batch):
        pass
    torch.manual_seed(1)
    random.seed(1)
"""
LOADER = "DataLoader(Texts(), batch_size=4, shuffle=True, collate_fn=padded)"
MIB = 1 << 20


def script(folder, text, name="train.py"):
    return write(folder, textwrap.dedent(SCRIPT) + textwrap.dedent(text), name)


def epoch(folder, *words, **env):
    return predict_json(folder, "--epoch", *words, **env)


def whole(folder, gpu, name):
    predict(folder, "--json", "whole.json", "--gpu", gpu, "--steps", "1000", "--seconds", "0", name)
    return json.loads((folder / "whole.json").read_text())


def test_the_epoch_is_as_if_each_batch_had_run(tmp_path):
    name = script(tmp_path, f"train({LOADER})")
    gpu = f"{1024 + 512}MiB"
    ran = predict(tmp_path, "--epoch", "--json=found.json", "--gpu", f"{gpu},80GiB", name)
    found, exhaustive = json.loads((tmp_path / "found.json").read_text()), whole(tmp_path, "80GiB", name)
    little, plenty = found["gpus"]
    assert found["command"] == "predict"
    assert found["batches"] == 40 == found["batches_of_loader"] and found["is_whole_epoch"]
    assert plenty["reserved_peak"] == exhaustive["reserved_peak"] and plenty["fits"]
    assert plenty["allocated_peak"] == exhaustive["allocated_peak"]
    died = whole(tmp_path, gpu, name)["out_of_memory"]
    assert little["failure"]["step"] == died["step"] and little["failure"]["requested"] == died["requested"]
    assert little["failure"]["shape"] == [4, 2000] and little["failure"]["unit"] == "tokens"
    assert little["failure"]["longest_sample"] == found["longest_sample"] == 77
    assert found["loader"].startswith("train.py:") and found["predicted_shapes"] < found["shapes"]
    cap = little["cap"]
    assert 400 < cap["value"] < 2000 and cap["shape"] == [4, cap["value"]]
    assert cap["reserved_peak"] <= little["may_reserve"] and cap["was"] == 2000 and cap["cut"] == 1
    said = " ".join(line.strip() for line in ran.err.replace("[modscope] ", "").splitlines())
    assert ran.status == 0
    assert "40 batches of the DataLoader at train.py:" in said and "4 x 2,000 tokens." in said
    assert "would run out of memory: 4 x 2,000 tokens need" in said and "Up to 4 x 1," in said
    assert "Sample 77 of the dataset is the longest of that batch. Cap the length at 1," in said


def test_levers_are_judged_by_the_worst_of_the_epoch(tmp_path, monkeypatch, capsys):
    """What fit says is what a prediction of the epoch with the change says."""
    from modscope._cli.main import main

    script(tmp_path, f"train({LOADER})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.Popen", warm_python.Popen)
    assert main(["fit", "--epoch", "--gpu", "1536MiB", "--json=fit.json", "train.py"]) == 0
    (found,) = json.loads((tmp_path / "fit.json").read_text())["gpus"]
    row = found["epoch"]["on_gpu"]
    assert found["reserved_peak"] == row["reserved_peak"] and found["epoch"]["batches"] == 40
    assert found["failure"]["step"] == row["failure"]["step"] and found["failure"]["module"] == "Net"
    levers = {lever["kinds"][0]: lever for lever in found["levers"] if len(lever["kinds"]) == 1}
    assert levers["allocator"]["is_verified"]
    assert levers["allocator"]["reserved_peak"] == row["expandable"]["reserved_peak"]
    assert levers["cap"]["fits"] and levers["cap"]["reserved_peak"] == row["cap"]["reserved_peak"]
    said = " ".join(capsys.readouterr().out.split())
    assert "Memory would run out with batch" in said and "instead of 2,000" in said


BLOCKS = """
    class Deep(Net):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
                                        for _ in range(3))
        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = x + block(x)
            return self.out(x).float().logsumexp(-1).mean()
    Net = Deep
"""


def test_a_checkpoint_is_replayed_over_the_whole_epoch(tmp_path, monkeypatch):
    from modscope._fit.epoch_job import job_of
    from modscope._fit.levers import checkpoints
    from modscope._fit.levers.registry import Case
    from modscope._plan.file import plan_of
    from modscope._predict.capture_of_script import PredictedScript
    from modscope._predict.options import PredictOptions
    from modscope._record.options import ScriptOptions
    from modscope._virtual.gpus import find_gpu

    monkeypatch.setattr("subprocess.Popen", warm_python.Popen)
    name = script(tmp_path, textwrap.dedent(BLOCKS) + f"train({LOADER})")
    gpu = find_gpu("80GiB")
    asked = ScriptOptions(target=[str(tmp_path / name)], steps=3), PredictOptions(epoch=True, seconds=0.0)
    with PredictedScript(*asked) as predicted:
        job = job_of(predicted, predicted.predict([gpu]))
        before = job.replay()
        case = Case(job, gpu, 1 << 40, before)
        tried = case.attempt(checkpoints.checkpoint_all(case)[0])
        again = job_of(predicted, predicted.predict([gpu], plan=plan_of(list(tried.lever.modules)))).replay()
    assert before.reserved == job.epoch.unlimited["reserved_peak"]
    assert tried.outcome.reserved == again.reserved < before.reserved
    assert tried.outcome.allocated == again.allocated


@pytest.mark.parametrize("workers", [0, 2])
def test_training_sees_what_it_would_have_seen(tmp_path, workers):
    """The script notes its first batches, and the random state after each."""
    loader = LOADER.replace("collate_fn", f"num_workers={workers}, collate_fn")
    text = f"""
        notes = open(sys.argv[1], "w")
        count = 0
        def seen(batch):
            global count
            count += 1
            if count <= 2:
                print(batch.tolist(), torch.get_rng_state().sum().item(), random.getstate()[1][:3], file=notes, flush=True)
        train({loader})
    """
    name = script(tmp_path, text.replace("\n        ", "\n"))
    assert predict(tmp_path, "--gpu", "80GiB", "--steps", "3", name, "without").status == 0
    epoch(tmp_path, "--gpu", "80GiB", name, "with")
    assert (tmp_path / "with").read_text() == (tmp_path / "without").read_text() != ""


def test_accumulated_gradients_have_steps_of_several_batches(tmp_path):
    name = script(tmp_path, f"for batch in {LOADER}:\n    break\ntrain({LOADER}, every=4)")
    found, exhaustive = epoch(tmp_path, "--gpu", "80GiB", name), whole(tmp_path, "80GiB", name)
    assert found["batches_per_step"] == 4 and found["batches"] == 40
    assert found["gpus"][0]["reserved_peak"] == pytest.approx(exhaustive["reserved_peak"], rel=0.005)
    assert any("other DataLoaders" in note for note in found["notes"])


STREAM = """
    class Stream(IterableDataset):
        def __iter__(self):
            index = 0
            while True:
                yield torch.full((LENGTHS[index % 160],), 1)
                index += 1
    train(DataLoader(Stream(), batch_size=2, collate_fn=padded))
"""


def test_a_stream_that_never_ends_is_read_as_far_as_was_said(tmp_path):
    found = epoch(tmp_path, "--gpu", "80GiB", "--epoch-batches", "50", script(tmp_path, STREAM))
    assert found["batches"] == 50 and not found["is_whole_epoch"] and found["batches_of_loader"] is None
    limited = epoch(tmp_path, "--gpu", "80GiB", "--seconds", "1", script(tmp_path, STREAM))
    assert limited["batches"] > 50 and not limited["is_whole_epoch"]


def test_a_dataset_that_fails_says_why(tmp_path):
    failing = "class Bad(Texts):\n    def __getitem__(self, index):\n        if index == 100: raise OSError('gone')\n"
    failing += "        return super().__getitem__(index)\n"
    text = failing + "train(DataLoader(Bad(), batch_size=4, collate_fn=padded))"
    name, page = script(tmp_path, text), tmp_path / "page.html"
    found = epoch(tmp_path, "--gpu", "80GiB", "--report", str(page), name)
    assert found["read_error"] == "OSError: gone" and found["batches"] == 25
    assert sum(each["batches"] for each in found["distribution"]) == 25
    assert 'id="epoch-curve"' in page.read_text() and "<bdi>train.py</bdi>" in page.read_text()
    again = predict(tmp_path, "--epoch", "--gpu", "80GiB", "--report", str(page), name)
    assert again.status == 1 and "page.html" in again.err


def test_batches_that_are_made_on_the_gpu_are_named(tmp_path):
    text = "train(DataLoader(Texts(), batch_size=4, collate_fn=lambda samples: padded(samples).cuda()))"
    ran = predict(tmp_path, "--epoch", "--gpu", "80GiB", script(tmp_path, text))
    assert ran.status == 1 and "Let it make batches on the CPU" in " ".join(ran.err.replace("[modscope]", "").split())


def test_a_worker_that_dies_says_so(tmp_path):
    dying = "import os\nclass Bad(Texts):\n    def __getitem__(self, index):\n        if index == 100: os._exit(1)\n"
    dying += "        return super().__getitem__(index)\n"
    text = dying + "train(DataLoader(Bad(), batch_size=4, num_workers=1, collate_fn=padded))"
    found = epoch(tmp_path, "--gpu", "80GiB", script(tmp_path, text))
    assert "exited unexpectedly" in found["read_error"] and 0 < found["batches"] <= 25


PLAIN = """
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    for number in range(int(sys.argv[1])):
        net(torch.ones(2, 100 + 3000 * (number == 5), dtype=torch.long).cuda()).backward()
        optimizer.step()
"""


def test_without_a_loader_the_own_steps_of_the_script_are_the_batches(tmp_path):
    name = script(tmp_path, PLAIN)
    found = epoch(tmp_path, "--gpu", "80GiB,1GiB", "--steps", "100", name, "8")
    plenty, little = found["gpus"]
    assert found["loader"] == "" and found["batches"] == 8 and found["is_whole_epoch"] and found["shapes"] == 2
    assert plenty["reserved_at"]["step"] == 6 == little["failure"]["step"] and plenty["fits"]
    assert plenty["reserved_at"]["shape"] == [2, 3100] and 100 <= little["cap"]["value"] < 3100
    ran = predict(tmp_path, "--epoch", "--gpu", "80GiB", name, "3")
    assert ran.status == 1 and "there is no epoch to read" in " ".join(ran.err.split())
    name = script(tmp_path, textwrap.dedent(PLAIN) + "    if number == 5:\n        raise ValueError('no more')\n")
    ran = predict(tmp_path, "--epoch", "--gpu", "80GiB", "--steps", "100", "--json=found.json", name, "8")
    found, said = json.loads((tmp_path / "found.json").read_text()), " ".join(ran.err.replace("[modscope]", "").split())
    assert found["read_error"] == "ValueError: no more" and not found["is_whole_epoch"] and found["batches"] == 6
    assert "Its first 6 steps were predicted" in said and "Then the script failed: ValueError: no more." in said
    assert ran.status == 1 and "every batch that was predicted fits" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--epoch-batches", "3"], "--epoch-batches is of --epoch"),
        (["--epoch", "-o", "x.msc", "--gpu", "t4"], "--epoch makes no capture"),
        (["--epoch", "--check"], "--epoch predicts one rank"),
        (["--report", "x.html"], "--report draws an epoch: add --epoch"),
        (["--epoch", "--report", "x.html", "--gpu", "t4,h100"], "--report needs one GPU"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, words, why):
    ran = predict(tmp_path, *words, script(tmp_path, ""))
    assert ran.status == 2 and why in " ".join(ran.err.split())


def test_the_jobs_of_the_bench(tmp_path, monkeypatch):
    import epoch as bench

    def predict_here(kind, gpu, options, batches):
        job = str(Path(bench.__file__).with_name("epoch_job.py"))
        predict(tmp_path, "--json", "figures.json", "--gpu", gpu, *options, job, kind, EPOCH_BATCHES=str(batches))
        return {**json.loads((tmp_path / "figures.json").read_text()), "used": 0.0}

    monkeypatch.setattr(bench, "predict", predict_here)
    found = bench.compare("seq2seq", 40, 0.95)
    assert abs(found.error) < 0.5 and found.epoch_fails.failed_step == found.whole_fails.failed_step is not None
