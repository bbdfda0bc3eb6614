"""The MemoryCallback of transformers, with the real package: what is in the trainer's log, and that the training
continues when the callback fails."""

import copy
import gc
import json
import pickle
import sys
import weakref

import pytest
from helpers import Boom, needs_interception
from modscope import MemTracker, load
from trainer_helpers import CATEGORIES, TOO_MUCH, Net, balanced, left_behind, parameter_bytes  # noqa: F401

import torch
from torch import nn

pytest.importorskip("accelerate", reason="accelerate is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from modscope.integrations import huggingface as ours  # noqa: E402
from modscope.integrations.huggingface import MemoryCallback  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore")
DATA = [{"x": torch.ones(32), "labels": torch.ones(1)} for _ in range(40)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x, labels=None):
        y = self.net(x)
        return {"loss": (y - labels).pow(2).mean(), "logits": y}


class Reporter(TrainerCallback):
    """A reporter like TensorBoard's: it keeps what is logged to it."""

    def __init__(self) -> None:
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append((state.global_step, dict(logs)))


def arguments(folder, **options):
    usual = {"max_steps": 6, "logging_steps": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 8}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    return TrainingArguments(str(folder), **{**quiet, **usual, **options})


def trainer(folder, *callbacks, model=None, kind=Trainer, **options):
    model = model or Model()
    return kind(
        model, arguments(folder, **options), train_dataset=DATA, eval_dataset=DATA[:8], callbacks=list(callbacks)
    )


def rows(trained, key="memory/peak"):
    return [row for row in trained.state.log_history if key in row]


def steps(found):
    return [row["step"] for row in found]


# ---- what is logged ----


def test_the_trainers_logs_have_the_peak_by_category_and_the_top_module(tmp_path):
    trained = trainer(tmp_path, MemoryCallback())
    with MemTracker() as mt:
        trained.train()
    found = rows(trained)
    assert steps(found) == [2, 4, 6] and all("loss" in row for row in found)
    for row in found:
        assert row["memory/peak"] == sum(row["memory/" + word] for word in CATEGORIES)
        assert row["memory/parameter"] == row["memory/gradient"] == parameter_bytes(trained.model)
        assert row["memory/optstate"] >= 2 * parameter_bytes(trained.model)
        assert row["memory/module_1"] == "Model.net.body.0" and row["memory/module_1_bytes"] >= 4 * 33 * 64 * 4
    highest = max(found, key=lambda row: row["memory/peak"])
    sums = mt.get_tracker_snapshot("peak")[CPU]
    assert {word: highest["memory/" + word] for word in CATEGORIES} == {
        word.lower(): held for word, held in sums.items() if word != "Total"
    }


@pytest.mark.parametrize("late", [False, True])
def test_reporters_see_them_too(tmp_path, late):
    class Board(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.callback_handler.callbacks.insert(1, reporter)  # where the trainer has its own

    reporter, callback = Reporter(), MemoryCallback()
    trained = trainer(tmp_path, *([] if late else [callback]), kind=Board)
    if late:
        trained.add_callback(callback)
    trained.train()
    assert [step for step, logs in reporter.seen if "memory/peak" in logs] == [2, 4, 6]
    for step, logs in reporter.seen:
        (row,) = [
            row for row in trained.state.log_history if row["step"] == step and ("loss" in row) == ("loss" in logs)
        ]
        assert {**logs, "step": step, **({"total_flos": 0.0} if "train_runtime" in row else {})} == row


def test_every_step_has_an_entry_and_the_trainers_own_come_as_often_as_before(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(every="step"))
    trained.train()
    assert steps(rows(trained)) == [1, 2, 3, 4, 5, 6] and steps(rows(trained, "loss")) == [2, 4, 6]
    assert len(trained.state.log_history) == 7  # one for each step, and the summary


def test_every_so_many_steps_and_the_rest_with_the_summary(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(every=4))
    trained.train()
    assert steps(rows(trained)) == [4, 6]
    assert "train_runtime" in rows(trained)[-1]


def test_every_epoch(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(every="epoch"), max_steps=-1, num_train_epochs=2)
    trained.train()
    assert steps(rows(trained)) == [10, 20]


def test_where_the_trainer_logs_by_epochs_so_do_we(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(), max_steps=-1, num_train_epochs=2, logging_strategy="epoch")
    trained.train()
    assert steps(rows(trained)) == steps(rows(trained, "loss")) == [10, 20]


def test_a_step_is_the_optimizers_where_gradients_are_accumulated(tmp_path):
    options = {"gradient_accumulation_steps": 2, "max_steps": 3, "logging_steps": 1}
    trained = trainer(tmp_path, MemoryCallback(capture_steps=[2]), **options)
    trained.train()
    assert steps(rows(trained)) == [1, 2, 3]
    assert load(tmp_path / "memory-step2.msc").optimizer_steps == 1


def test_an_evaluations_peak_comes_with_the_next_entry_and_its_metrics_are_its_own(tmp_path):
    class Larger(Trainer):
        def prediction_step(self, model, inputs, *args, **kwargs):
            return super().prediction_step(model, {k: v.repeat(200, 1) for k, v in inputs.items()}, *args, **kwargs)

    trained = trainer(tmp_path, MemoryCallback(), kind=Larger, eval_strategy="steps", eval_steps=3, logging_steps=1)
    trained.train()
    assert steps(rows(trained, "memory/eval_peak")) == [4, 6]
    assert "train_runtime" in rows(trained, "memory/eval_peak")[-1]
    most = max(row["memory/peak"] for row in rows(trained))
    assert all(row["memory/eval_peak"] > most + 1600 * 64 * 4 for row in rows(trained, "memory/eval_peak"))
    assert not [key for row in rows(trained, "eval_loss") for key in row if "memory" in key]
    assert not [key for key in trained.evaluate() if "memory" in key]


def test_a_trainer_that_adds_to_its_logs_adds_to_its_own_only(tmp_path):
    class Adding(Trainer):
        def log(self, logs, *args):
            super().log({**logs, "added": 1}, *args)

    trained = trainer(tmp_path, MemoryCallback(every="step"), kind=Adding)
    trained.train()
    assert steps(rows(trained, "added")) == [2, 4, 6, 6] and steps(rows(trained)) == [1, 2, 3, 4, 5, 6]


def test_several_modules_are_named_and_none(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(top=2), max_steps=2)
    trained.train()
    assert rows(trained)[0]["memory/module_2_bytes"] <= rows(trained)[0]["memory/module_1_bytes"]
    trained = trainer(tmp_path, MemoryCallback(top=0), max_steps=2)
    trained.train()
    assert not [key for key in rows(trained)[0] if "module" in key]


def test_reporters_that_take_no_text_get_none(tmp_path):
    reporter = Reporter()
    trained = trainer(tmp_path, MemoryCallback(), reporter, max_steps=2)
    trained.args.report_to = ["mlflow"]
    trained.train()
    assert "memory/module_1" in rows(trained)[0]
    _, logs = reporter.seen[0]
    assert "memory/module_1" not in logs and logs["memory/module_1_bytes"] > 0


def test_the_state_can_be_saved(tmp_path):
    trained = trainer(tmp_path, MemoryCallback(), save_strategy="steps", save_steps=2)
    trained.train()
    with open(tmp_path / "checkpoint-4/trainer_state.json") as file:
        history = json.load(file)["log_history"]
    assert history[0] == trained.state.log_history[0]


# ---- captures ----


def test_chosen_steps_are_captured_those_in_a_row_in_one_file(tmp_path):
    callback = MemoryCallback(every="step", capture_steps=[2, 3, 5], capture_path=tmp_path / "new/at-{step}.msc")
    trained = trainer(tmp_path, callback)
    trained.train()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["at-2.msc", "at-5.msc"]
    two, one = load(tmp_path / "new/at-2.msc"), load(tmp_path / "new/at-5.msc")
    assert (two.optimizer_steps, one.optimizer_steps) == (2, 1) and one.end["how"] == "finished"
    assert one.peaks["cpu"].bytes == rows(trained)[4]["memory/peak"]


# ---- endings ----


@needs_interception
@pytest.mark.parametrize("late", [False, True])
def test_the_oom_report_is_in_the_log_and_the_exception(tmp_path, caplog, capfd, late):
    callback, model = MemoryCallback(capture_steps=[3]), Model()
    model.net.at = {3: TOO_MUCH}
    trained = trainer(tmp_path, *([] if late else [callback]), model=model)
    if late:
        trained.add_callback(callback)
    with pytest.raises(RuntimeError, match="memory") as caught:
        trained.train()
    (note,) = caught.value.__notes__
    assert "1.00 PiB on cpu failed" in note and "forward of Model.net" in note
    last = trained.state.log_history[-1]
    assert last["memory/out_of_memory"] == note and last["memory/peak"] > 0 and last["step"] == 2
    assert note in caplog.text
    capture = load(tmp_path / "memory-step3.msc")
    assert capture.end["how"] == "exception" and capture.oom_count == 1


@needs_interception
@pytest.mark.parametrize("late", [False, True])
def test_an_optimizer_that_runs_out_of_memory_has_a_report_too(tmp_path, capfd, late):
    class Hungry(torch.optim.SGD):
        def step(self, closure=None):
            torch.empty(TOO_MUCH, dtype=torch.uint8)

    model, callback = Model(), MemoryCallback()
    optimizers = (Hungry(model.parameters(), lr=0.1), None)
    callbacks = [] if late else [callback]
    trained = Trainer(model, arguments(tmp_path), train_dataset=DATA, optimizers=optimizers, callbacks=callbacks)
    if late:
        trained.add_callback(callback)
    with pytest.raises(RuntimeError, match="memory"):
        trained.train()
    assert "optimizer" in trained.state.log_history[-1]["memory/out_of_memory"]


@needs_interception
@pytest.mark.parametrize("late", [False, True])
def test_so_has_an_evaluation(tmp_path, capfd, late):
    model, callback = Model(), MemoryCallback()
    model.net.at = {4: TOO_MUCH}
    trained = trainer(tmp_path, *([] if late else [callback]), model=model, eval_strategy="steps", eval_steps=3)
    if late:
        trained.add_callback(callback)
    with pytest.raises(RuntimeError, match="memory"):
        trained.train()
    assert steps(rows(trained, "memory/out_of_memory")) == [3]


@needs_interception
def test_a_smaller_batch_is_tried_and_the_report_of_the_larger_is_in_the_log(tmp_path, capfd):
    class Picky(Model):
        def forward(self, x, labels=None):
            if len(x) > 2:
                torch.empty(TOO_MUCH, dtype=torch.uint8)
            return super().forward(x, labels)

    class Trying(Trainer):
        def training_step(self, *args, **kwargs):
            try:
                return super().training_step(*args, **kwargs)
            except RuntimeError as error:
                raise RuntimeError("CUDA out of memory.") from error  # the trainer recognizes this text

    trained = trainer(tmp_path, MemoryCallback(), model=Picky(), kind=Trying, auto_find_batch_size=True)
    trained.train()
    assert trained.state.global_step == 6 and steps(rows(trained, "loss")) == [2, 4, 6]
    assert steps(rows(trained)) == [2, 4, 6] and steps(rows(trained, "memory/out_of_memory")) == [2]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [Boom("x"), KeyboardInterrupt()])
def test_any_other_exception_passes_as_it_is_and_everything_is_left(tmp_path, late, error):
    model, callback = Model(), MemoryCallback(capture_steps=range(9))
    model.net.at = {3: error}
    trained = trainer(tmp_path, *([] if late else [callback]), model=model)
    if late:
        trained.add_callback(callback)
    with pytest.raises(type(error)) as caught:
        trained.train()
    assert not hasattr(caught.value, "__notes__")
    assert load(tmp_path / "memory-step1.msc").end["how"] == "exception"
    assert steps(rows(trained)) == [2, 2]  # and the step that the error ended
    assert "training_step" not in vars(trained) and not hasattr(trained.optimizer.step, "_modscope")


def test_an_exception_of_another_callback_leaves_everything(tmp_path):
    class Failing(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raise Boom

    with pytest.raises(Boom):
        trainer(tmp_path, MemoryCallback(), Failing()).train()


def test_a_late_callback_whose_training_failed_unnoticed_ends_with_the_next_or_with_itself(tmp_path):
    class Failing(TrainerCallback):
        failing = True

        def on_step_end(self, *args, **kwargs):
            if self.failing:
                raise Boom

    failing = Failing()
    trained = trainer(tmp_path, failing)
    trained.add_callback(MemoryCallback())
    with pytest.raises(Boom):
        trained.train()
    assert left_behind()  # a callback that is added late cannot notice how the first training ended
    failing.failing = False
    trained.train()
    assert not left_behind() and steps(rows(trained)) == [2, 4, 6]

    trained = trainer(tmp_path, Failing())
    trained.add_callback(MemoryCallback())
    with pytest.raises(Boom):
        trained.train()
    del trained
    gc.collect()
    assert not left_behind()


def test_a_training_that_goes_on_from_a_checkpoint_is_numbered_on(tmp_path):
    callback = MemoryCallback(every="step")
    trainer(tmp_path, callback, max_steps=2, save_strategy="steps", save_steps=2).train()
    trained = trainer(tmp_path, callback, max_steps=4)
    trained.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert steps(rows(trained)) == [1, 2, 3, 4]
    assert all(row["memory/optstate"] > 0 for row in rows(trained))


def test_one_trainer_trains_many_times(tmp_path):
    trained = trainer(tmp_path, MemoryCallback())
    for _ in range(3):
        trained.train()
        assert steps(rows(trained)) == [2, 4, 6]
    kinds = [type(callback).__name__ for callback in trained.callback_handler.callbacks]
    assert kinds.count("MemoryCallback") == 1


# ---- the training is not affected ----


def test_a_deleted_trainer_is_freed_at_once(tmp_path):
    trained = trainer(tmp_path, MemoryCallback())
    trained.train()
    gc.collect()
    gc.disable()
    try:
        known = weakref.ref(trained)
        del trained
        assert known() is None
    finally:
        gc.enable()


def test_an_error_of_the_callback_is_logged_and_nothing_else_happens(tmp_path, caplog, monkeypatch):
    def fail(*args):
        raise OSError("the disk is full")

    callback = MemoryCallback()
    monkeypatch.setattr(callback._memory, "step_ends", fail)
    trained = trainer(tmp_path, callback)
    trained.train()
    assert trained.state.global_step == 6 and caplog.text.count("the disk is full") == 1


@needs_interception
def test_a_tracker_of_the_program_with_another_source_is_given_way(tmp_path, caplog):
    class Own(Trainer):
        def training_step(self, *args, **kwargs):
            with MemTracker(source="dispatcher"):
                return super().training_step(*args, **kwargs)

    trained = trainer(tmp_path, MemoryCallback("step", range(9)), kind=Own)
    trained.train()
    assert trained.state.global_step == 6 and "another source" in caplog.text


def test_it_can_be_copied_and_pickled(tmp_path):
    callback = MemoryCallback(every=2, capture_steps=[0], top=3)
    trainer(tmp_path, callback).train()
    for one in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert one._memory.settings == callback._memory.settings
        trained = trainer(tmp_path, one)
        trained.train()
        assert steps(rows(trained)) == [2, 4, 6]


def test_without_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'transformers\[torch\]'"):
        ours._base()
