"""``MemoryCallback`` for Lightning's Trainer: of the package ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from modscope.integrations._common import (
    OUT_OF_MEMORY,
    PREFIX,
    Environment,
    LogEntry,
    TrainingMemory,
    options_of,
    quietly,
)

__all__ = ["MemoryCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    """The Callback class of the package that the program has imported, or of both packages."""
    used = [sys.modules[name].Callback for name in _PACKAGES if sys.modules.get(name)]
    for name in _PACKAGES if not used else ():
        try:
            used = [importlib.import_module(name).Callback]
            break
        except ImportError as error:
            if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
                raise
    if not used:
        raise ImportError(
            "modscope.integrations.lightning needs Lightning, which is not installed here. "
            "Install it with: pip install lightning"
        )
    return used[0] if len(used) == 1 else type("Callback", tuple(used), {})


if TYPE_CHECKING:
    Callback = object
else:
    Callback = _base()


class MemoryCallback(Callback):
    """Logs which categories and modules held the memory at the peak of the training's steps::

        trainer = Trainer(callbacks=[MemoryCallback()])

    ``every``: how often to log: "log" (as often as the trainer logs), "step", "epoch", or a number of steps. An entry
    describes the highest peak since the previous entry. ``top``: how many of the largest modules are named.
    ``capture_steps``: the steps whose captures are written, numbered as in the log, from 0; consecutive steps share
    one file. ``capture_path``: the file's name, in which ``{step}`` is the number of the first step; by default
    ``memory-step{step}.msc`` in the logger's folder.
    """

    def __init__(
        self,
        every: str | int = "log",
        capture_steps: Iterable[int] | int | None = None,
        capture_path: str | os.PathLike[str] | None = None,
        top: int = 1,
    ) -> None:
        super().__init__()
        self._memory = TrainingMemory(options_of(every, capture_steps, capture_path, top))
        self._steps_done = 0
        self.last: LogEntry = {}
        """The latest value of each name that was logged."""

    # ---- the training's beginning and end ----

    @quietly
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        device, folder = trainer.strategy.root_device, _folder(trainer)
        self._memory.begin(Environment(device, folder, trainer.global_rank, trainer.world_size), pl_module)

    @quietly
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._memory.end(exception)
        self._log_entry(trainer, self._memory.take_entry())
        self._log_failure(trainer)

    @quietly
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._memory.end()

    # ---- training ----

    @quietly
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps_done = trainer.global_step
        self._memory.give(*trainer.optimizers)

    @quietly
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._memory.step_begins(_step(trainer))

    @quietly
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._memory.batch_ends()
        if trainer.global_step == self._steps_done:
            return  # gradients are being accumulated
        self._steps_done = trainer.global_step
        step = _step(trainer)
        self._memory.step_ends(step)
        self._log_failure(trainer)
        trainer_logs = self._memory.settings.every == "log" and (step + 1) % max(trainer.log_every_n_steps, 1) == 0
        if trainer_logs or self._memory.due(step + 1):
            self._log_entry(trainer, self._memory.take_entry())

    @quietly
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._memory.settings.every == "epoch":
            self._log_entry(trainer, self._memory.take_entry())

    @quietly
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._log_entry(trainer, self._memory.take_entry())

    # ---- evaluation ----

    @quietly
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._memory.take_peak_between_steps()

    @quietly
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log_evaluation(trainer, "validation")

    @quietly
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._memory.take_peak_between_steps()

    @quietly
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._log_evaluation(trainer, "test")

    # ---- logging ----

    def _log_evaluation(self, trainer: Any, kind: str) -> None:
        held = self._memory.take_peak_between_steps()
        if held is not None:
            self._log_entry(trainer, {f"{PREFIX}{kind}_peak": held})

    def _log_failure(self, trainer: Any) -> None:
        report = self._memory.take_oom_report()
        if report is not None:
            self._log_entry(trainer, {OUT_OF_MEMORY: report})

    def _log_entry(self, trainer: Any, entry: LogEntry) -> None:
        if not entry:
            return
        self.last |= entry
        for logger in trainer.loggers:
            try:
                _log_to(logger, entry, _step(trainer))
            except Exception as error:  # the other loggers still get the entry
                self._memory.warn_once(error)


def _step(trainer: Any) -> int:
    """The number under which Lightning logs what happens now."""
    loop = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def _folder(trainer: Any) -> str:
    for logger in trainer.loggers:
        folder = getattr(logger, "log_dir", None) or logger.save_dir
        if isinstance(folder, str | os.PathLike):
            return str(folder)
    return str(trainer.default_root_dir)


def _log_to(logger: Any, entry: LogEntry, step: int) -> None:
    """Log numbers to every logger, and text to the loggers that accept it."""
    kinds = {kind.__name__ for kind in type(logger).__mro__}
    if kinds & {"CSVLogger", "WandbLogger"}:
        logger.log_metrics(entry, step=step)
        return
    figures = {key: value for key, value in entry.items() if not isinstance(value, str)}
    if figures:
        logger.log_metrics(figures, step=step)
    for key, value in entry.items():
        if isinstance(value, str) and hasattr(logger.experiment, "add_text"):
            # TensorBoard shows indented Markdown verbatim
            text = textwrap.indent(value, "    ") if "\n" in value else value
            logger.experiment.add_text(key, text, step)
