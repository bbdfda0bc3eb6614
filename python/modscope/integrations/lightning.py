"""``MemoryCallback`` for Lightning's Trainer, of the package ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from modscope.integrations._common import PREFIX, STORY, Entry, Place, Watch, quietly, settings_of

__all__ = ["MemoryCallback"]


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base() -> Any:
    """Of the package that the program uses; of both, if it does."""
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
            "modscope.integrations.lightning is a callback for Lightning, which is not installed here. "
            "Install it with: pip install lightning"
        )
    return used[0] if len(used) == 1 else type("Callback", tuple(used), {})


if TYPE_CHECKING:
    Callback = object
else:
    Callback = _base()


class MemoryCallback(Callback):
    """Logs which category and module held the memory at the peak of the training's steps::

        trainer = Trainer(callbacks=[MemoryCallback()])

    ``every``: "log" (as often as the trainer logs), "step", "epoch", or a number of steps; an entry is of the
    highest peak since the last one. ``top``: how many of the largest modules to name. ``capture_steps``: the steps
    to write captures of, numbered as in the log, from 0; steps in a row go to one file. ``capture_path``: its name,
    in which ``{step}`` is the first step's number; by default ``memory-step{step}.msc`` in the logger's folder.
    """

    def __init__(
        self,
        every: str | int = "log",
        capture_steps: Iterable[int] | int | None = None,
        capture_path: str | os.PathLike[str] | None = None,
        top: int = 1,
    ) -> None:
        super().__init__()
        self._watch = Watch(settings_of(every, capture_steps, capture_path, top))
        self._stepped = 0
        self.last: Entry = {}
        """The latest of each figure that was logged."""

    # ---- from the beginning to the end, whichever it is ----

    @quietly
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        place = Place(trainer.strategy.root_device, _folder(trainer), trainer.global_rank, trainer.world_size)
        self._watch.begin(place, pl_module)

    @quietly
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._watch.end(exception)
        self._write(trainer, self._watch.take())
        self._tell_failure(trainer)

    @quietly
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._watch.end()

    # ---- training ----

    @quietly
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stepped = trainer.global_step
        self._watch.give(*trainer.optimizers)

    @quietly
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._watch.step_begins(_step(trainer))

    @quietly
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._watch.batch_ends()
        if trainer.global_step == self._stepped:
            return  # gradients are being accumulated
        self._stepped = trainer.global_step
        step = _step(trainer)
        self._watch.step_ends(step)
        self._tell_failure(trainer)
        logs = self._watch.settings.every == "log" and (step + 1) % max(trainer.log_every_n_steps, 1) == 0
        if logs or self._watch.due(step + 1):
            self._write(trainer, self._watch.take())

    @quietly
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._watch.settings.every == "epoch":
            self._write(trainer, self._watch.take())

    @quietly
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._write(trainer, self._watch.take())

    # ---- evaluation ----

    @quietly
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.since()

    @quietly
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._tell_evaluation(trainer, "validation")

    @quietly
    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.since()

    @quietly
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._tell_evaluation(trainer, "test")

    # ---- to the loggers ----

    def _tell_evaluation(self, trainer: Any, word: str) -> None:
        held = self._watch.since()
        if held is not None:
            self._write(trainer, {f"{PREFIX}{word}_peak": held})

    def _tell_failure(self, trainer: Any) -> None:
        story = self._watch.story()
        if story is not None:
            self._write(trainer, {STORY: story})

    def _write(self, trainer: Any, entry: Entry) -> None:
        if not entry:
            return
        self.last |= entry
        for logger in trainer.loggers:
            try:
                _log(logger, entry, _step(trainer))
            except Exception as error:  # the other loggers have theirs all the same
                self._watch.trouble(error)


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


def _log(logger: Any, entry: Entry, step: int) -> None:
    """Figures to every logger, text to those that take it."""
    kinds = {kind.__name__ for kind in type(logger).__mro__}
    if kinds & {"CSVLogger", "WandbLogger"}:
        logger.log_metrics(entry, step=step)
        return
    figures = {key: value for key, value in entry.items() if not isinstance(value, str)}
    if figures:
        logger.log_metrics(figures, step=step)
    for key, value in entry.items():
        if isinstance(value, str) and hasattr(logger.experiment, "add_text"):
            text = textwrap.indent(value, "    ") if "\n" in value else value  # as it is, in TensorBoard's Markdown
            logger.experiment.add_text(key, text, step)
