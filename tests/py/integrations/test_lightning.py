"""Lightning's MemoryCallback, with the real package: what is in the loggers, and that the training continues when
the callback fails."""

import copy
import csv
import importlib
import pickle
import signal
import sys

import pytest
from helpers import Boom, needs_interception
from modscope import MemTracker, load
from trainer_helpers import CATEGORIES, TOO_MUCH, Net, balanced, parameter_bytes  # noqa: F401

import torch

L = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from lightning.pytorch.loggers import CSVLogger, Logger  # noqa: E402
from modscope.integrations import lightning as ours  # noqa: E402
from modscope.integrations.lightning import MemoryCallback  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore")


def lit_of(package):
    class Lit(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch, batch_idx):
            loss = self.net(batch).pow(2).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.net(batch)

        def test_step(self, batch, batch_idx):
            self.net(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    return Lit


Lit = lit_of(L)


def batches(count=6, size=4):
    return torch.utils.data.DataLoader(torch.ones(count * size, 32), batch_size=size)


def trainer(folder, *callbacks, package=L, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    usual = {"accelerator": "cpu", "max_epochs": 1, "log_every_n_steps": 1, "logger": CSVLogger(folder, name="csv")}
    return package.Trainer(callbacks=list(callbacks), default_root_dir=folder, **{**quiet, **usual, **options})


def rows(folder, key="memory/peak", version=0):
    """The rows of the CSV logger that the callback wrote."""
    with open(f"{folder}/csv/version_{version}/metrics.csv") as file:
        return [{k: v for k, v in row.items() if v} for row in csv.DictReader(file) if row.get(key)]


def steps(found):
    return [int(row["step"]) for row in found]


# ---- what is logged ----


def test_each_step_has_its_peak_by_category_and_its_top_module(tmp_path):
    lit = Lit()
    with MemTracker() as mt:
        trainer(tmp_path, MemoryCallback(every="step")).fit(lit, batches())
    found = rows(tmp_path)
    assert steps(found) == [0, 1, 2, 3, 4, 5]
    for row in found:
        assert int(row["memory/peak"]) == sum(int(row["memory/" + word]) for word in CATEGORIES)
        assert int(row["memory/parameter"]) == int(row["memory/gradient"]) == parameter_bytes(lit)
        assert int(row["memory/optstate"]) >= 2 * parameter_bytes(lit)
        assert row["memory/module_1"] == "Lit.net.body.0" and int(row["memory/module_1_bytes"]) >= 4 * 33 * 64 * 4
    highest = max(found, key=lambda row: int(row["memory/peak"]))
    sums = mt.get_tracker_snapshot("peak")[CPU]
    assert {word: int(highest["memory/" + word]) for word in CATEGORIES} == {
        word.lower(): held for word, held in sums.items() if word != "Total"
    }


def test_by_default_it_is_logged_as_often_as_the_trainer_logs_and_the_rest_at_the_end(tmp_path):
    trainer(tmp_path, MemoryCallback(), log_every_n_steps=4).fit(Lit(), batches(10))
    assert steps(rows(tmp_path, "loss")) == [3, 7] and steps(rows(tmp_path)) == [3, 7, 10]


def test_every_so_many_steps_is_of_the_highest_peak_since_the_last(tmp_path):
    big = torch.utils.data.DataLoader([torch.ones(400 if i == 1 else 4, 32) for i in range(6)], batch_size=None)
    trainer(tmp_path, MemoryCallback(every=3)).fit(Lit(), big)
    high, low = rows(tmp_path)
    assert steps([high, low]) == [2, 5]
    assert int(high["memory/peak"]) > int(low["memory/peak"]) + 400 * 64 * 4


def test_every_epoch(tmp_path):
    trainer(tmp_path, MemoryCallback(every="epoch"), max_epochs=3).fit(Lit(), batches(2))
    assert len(rows(tmp_path)) == 3


def test_a_step_is_the_optimizers_where_gradients_are_accumulated(tmp_path):
    callback = MemoryCallback(every="step", capture_steps=[1])
    trainer(tmp_path, callback, accumulate_grad_batches=3).fit(Lit(), batches(6))
    assert steps(rows(tmp_path)) == [0, 1]
    assert load(tmp_path / "csv/version_0/memory-step1.msc").optimizer_steps == 1


def test_several_modules_are_named_and_none(tmp_path):
    trainer(tmp_path, MemoryCallback(every="step", top=2)).fit(Lit(), batches(1))
    (row,) = rows(tmp_path)
    assert row["memory/module_2"] and int(row["memory/module_1_bytes"]) >= int(row["memory/module_2_bytes"])
    trainer(tmp_path, MemoryCallback(every="step", top=0)).fit(Lit(), batches(1))
    (row,) = rows(tmp_path, version=1)
    assert not [key for key in row if "module" in key]


def test_validation_has_a_peak_of_its_own_that_is_in_no_step(tmp_path):
    callback = MemoryCallback(every="step")
    trainer(tmp_path, callback, val_check_interval=3).fit(Lit(), batches(6), batches(2, 400))
    assert all(int(row["memory/peak"]) < 400 * 64 * 4 for row in rows(tmp_path))
    found = rows(tmp_path, "memory/validation_peak")
    assert steps(found) == [2, 5] and all(int(row["memory/validation_peak"]) > 400 * 64 * 4 for row in found)
    assert callback.last["memory/validation_peak"] == int(found[-1]["memory/validation_peak"])


def test_a_test_run_has_one_too(tmp_path):
    trainer(tmp_path, MemoryCallback()).test(Lit(), batches(2), verbose=False)
    assert len(rows(tmp_path, "memory/test_peak")) == 1


class Board(Logger):
    """A logger like TensorBoard's: numbers are metrics, text is logged separately."""

    name, version, save_dir = "board", 0, None

    def __init__(self) -> None:
        super().__init__()
        self.figures, self.texts = [], []

    @property
    def experiment(self):
        return self

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step):
        assert not any(isinstance(value, str) for value in metrics.values())
        self.figures.append((step, dict(metrics)))

    def add_text(self, tag, text, step):
        self.texts.append((step, tag, text))


def test_text_goes_where_it_is_taken(tmp_path):
    board = Board()
    trainer(tmp_path, MemoryCallback(every="step"), logger=board).fit(Lit(), batches(2))
    ours = [figures for _, figures in board.figures if "memory/peak" in figures]
    assert len(ours) == 2 and "memory/module_1" not in ours[0] and ours[0]["memory/module_1_bytes"] > 0
    assert board.texts == [(0, "memory/module_1", "Lit.net.body.0"), (1, "memory/module_1", "Lit.net.body.0")]


# ---- captures ----


def test_chosen_steps_are_captured_those_in_a_row_in_one_file(tmp_path):
    callback = MemoryCallback(capture_steps=[1, 2, 5], capture_path=tmp_path / "new/at-{step}.msc")
    trainer(tmp_path, callback).fit(Lit(), batches(8))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["at-1.msc", "at-5.msc"]
    two, one = load(tmp_path / "new/at-1.msc"), load(tmp_path / "new/at-5.msc")
    assert (two.optimizer_steps, one.optimizer_steps) == (2, 1)
    assert two.end["how"] == "finished" and not two.is_lower_bound
    assert "Lit.net.body.0" in two.snapshot("peak").by_module()["cpu"]


def test_a_capture_has_the_peak_that_is_logged(tmp_path):
    trainer(tmp_path, MemoryCallback(every="step", capture_steps=3)).fit(Lit(), batches())
    capture = load(tmp_path / "csv/version_0/memory-step3.msc")
    assert capture.peaks["cpu"].bytes == int(rows(tmp_path)[3]["memory/peak"])


def test_a_capture_that_is_there_already_is_kept(tmp_path):
    for _ in range(2):
        trainer(tmp_path, MemoryCallback(capture_steps=range(2), capture_path=tmp_path / "x.msc")).fit(
            Lit(), batches(3)
        )
    assert {path.name for path in tmp_path.glob("*.msc")} == {"x.msc", "x.2.msc"}


def test_a_capture_that_cannot_be_written_is_logged_and_nothing_else_happens(tmp_path, caplog):
    (tmp_path / "file").touch()
    lit = Lit()
    trainer(tmp_path, MemoryCallback("step", [0], tmp_path / "file/x.msc")).fit(lit, batches(3))
    assert lit.net.calls == 3 and len(rows(tmp_path)) == 3
    assert "memory could not be logged" in caplog.text


# ---- endings ----


@needs_interception
def test_the_oom_report_is_in_the_log_and_the_exception(tmp_path, caplog, capfd):
    lit = Lit()
    lit.net.at = {3: TOO_MUCH}
    with pytest.raises(RuntimeError, match="memory") as caught:
        trainer(tmp_path, MemoryCallback(capture_steps=[2])).fit(lit, batches())
    (note,) = caught.value.__notes__
    assert "1.00 PiB on cpu failed" in note and "forward of Lit.net" in note
    (row,) = rows(tmp_path, "memory/out_of_memory")
    assert row["memory/out_of_memory"] == note and row["step"] == "2"
    assert steps(rows(tmp_path)) == [0, 1, 2]  # also the step that the error ended
    assert note in caplog.text
    capture = load(tmp_path / "csv/version_0/memory-step2.msc")
    assert capture.end["how"] == "exception" and capture.oom_count == 1


@needs_interception
def test_a_failure_that_the_training_survives_is_in_the_log(tmp_path, capfd):
    class Careful(Lit):
        def training_step(self, batch, batch_idx):
            try:
                return super().training_step(batch, batch_idx)
            except RuntimeError:
                return super().training_step(batch[:1], batch_idx)

    lit = Careful()
    lit.net.at = {2: TOO_MUCH}
    trainer(tmp_path, MemoryCallback()).fit(lit, batches(3))
    (row,) = rows(tmp_path, "memory/out_of_memory")
    assert row["step"] == "1" and steps(rows(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("at", [1, 3])
def test_any_other_exception_passes_as_it_is(tmp_path, at):
    lit = Lit()
    lit.net.at = {at: Boom("x")}
    with pytest.raises(Boom) as caught:
        trainer(tmp_path, MemoryCallback(capture_steps=range(9))).fit(lit, batches())
    assert not hasattr(caught.value, "__notes__")
    assert load(tmp_path / "csv/version_0/memory-step0.msc").end["error"] == "Boom: x"


def test_an_interrupt_leaves_everything(tmp_path):
    lit, before = Lit(), signal.getsignal(signal.SIGINT)
    lit.net.at = {3: KeyboardInterrupt()}
    try:
        with pytest.raises(SystemExit):  # Lightning's own way
            trainer(tmp_path, MemoryCallback(capture_steps=range(9))).fit(lit, batches())
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps(rows(tmp_path)) == [0, 1, 2]


def test_a_failure_before_the_first_step_leaves_everything(tmp_path):
    class Unready(Lit):
        def configure_optimizers(self):
            raise Boom

    with pytest.raises(Boom):
        trainer(tmp_path, MemoryCallback()).fit(Unready(), batches())


def test_a_callback_serves_many_trainings_and_one_that_goes_on(tmp_path):
    callback = MemoryCallback(every="step")
    first = trainer(tmp_path, callback)
    first.fit(Lit(), batches(2))
    first.save_checkpoint(tmp_path / "x.ckpt")
    trainer(tmp_path, callback, max_epochs=2).fit(Lit(), batches(2), ckpt_path=tmp_path / "x.ckpt")
    assert steps(rows(tmp_path)) == [0, 1] and steps(rows(tmp_path, version=1)) == [2, 3]
    (row, _) = rows(tmp_path, version=1)
    assert int(row["memory/optstate"]) > 0


# ---- the training is not affected ----


def test_a_logger_that_fails_is_logged_once_and_the_others_get_their_entries(tmp_path, caplog):
    class Broken(Board):
        def log_metrics(self, metrics, step):
            if "memory/peak" in metrics:
                raise OSError("the disk is full")

    lit = Lit()
    trainer(tmp_path, MemoryCallback(every="step"), logger=[Broken(), CSVLogger(tmp_path, name="csv")]).fit(
        lit, batches(4)
    )
    assert lit.net.calls == 4 and len(rows(tmp_path)) == 4
    assert caplog.text.count("the disk is full") == 1


def test_without_a_logger_the_figures_are_in_the_callback(tmp_path):
    callback = MemoryCallback()
    trainer(tmp_path, callback, logger=False).fit(Lit(), batches(2))
    assert callback.last["memory/peak"] > 0


@needs_interception
def test_a_tracker_of_the_program_with_another_source_is_given_way(tmp_path, caplog):
    class Own(Lit):
        def training_step(self, batch, batch_idx):
            with MemTracker(source="dispatcher"):
                return super().training_step(batch, batch_idx)

    lit = Own()
    trainer(tmp_path, MemoryCallback("step", range(9))).fit(lit, batches(3))
    assert lit.net.calls == 3 and "another source" in caplog.text


def test_trackers_of_the_program_with_the_same_source_go_together(tmp_path):
    class Own(Lit):
        def training_step(self, batch, batch_idx):
            with MemTracker():
                return super().training_step(batch, batch_idx)

    trainer(tmp_path, MemoryCallback("step", range(9))).fit(Own(), batches(3))
    assert len(rows(tmp_path)) == 3


def test_it_can_be_copied_and_pickled_and_what_is_under_way_stays(tmp_path):
    callback = MemoryCallback(every=2, capture_steps=[0], top=3)
    copies = [copy.deepcopy(callback)._memory, pickle.loads(pickle.dumps(callback))._memory]

    class Copying(Lit):
        def training_step(self, batch, batch_idx):
            copies.append(copy.deepcopy(callback._memory))
            return super().training_step(batch, batch_idx)

    trainer(tmp_path, callback).fit(Copying(), batches(1))
    assert len(copies) == 3
    for one in copies:
        assert one.settings == callback._memory.settings and not one.active


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"every": "sometimes"}, ValueError),
        ({"every": 0}, ValueError),
        ({"every": 1.5}, TypeError),
        ({"every": True}, TypeError),
        ({"top": -1}, ValueError),
        ({"top": "all"}, TypeError),
        ({"capture_steps": ["first"]}, TypeError),
        ({"capture_path": 3}, TypeError),
    ],
)
def test_wrong_arguments_raise_at_once(options, error):
    with pytest.raises(error):
        MemoryCallback(**options)


# ---- the package ----


def test_it_is_made_for_the_package_that_the_program_uses_or_for_both(monkeypatch):
    other = pytest.importorskip("pytorch_lightning")
    assert {L.Callback, other.Callback} <= {*ours._base().__mro__}
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert ours._base() is other.Callback
    monkeypatch.delitem(sys.modules, "pytorch_lightning")
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    assert ours._base().__module__.startswith("pytorch_lightning")


def test_it_works_with_the_other_package_too(tmp_path, monkeypatch):
    other = pytest.importorskip("pytorch_lightning")
    monkeypatch.delitem(sys.modules, ours.__name__)
    callback = importlib.import_module(ours.__name__).MemoryCallback("step")
    logger = other.loggers.CSVLogger(tmp_path, "csv")
    trainer(tmp_path, callback, package=other, logger=logger).fit(lit_of(other)(), batches(2))
    assert steps(rows(tmp_path)) == [0, 1]


def test_without_either_the_error_says_what_to_install(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install lightning"):
        ours._base()


def test_a_package_that_cannot_be_imported_for_another_reason_says_so(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")

    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(ours.importlib, "import_module", fail)
    with pytest.raises(ImportError, match="torchmetrics"):
        ours._base()
