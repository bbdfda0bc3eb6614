"""``MemoryCallback`` for the Trainer of Hugging Face's ``transformers``."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Iterable
from types import FrameType, MethodType
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

_TRAINING = "_inner_training_loop"  # the trainer's method that runs from the first step to the last
_NO_TEXT = frozenset(("mlflow", "dvclive"))  # these reporters warn about every text


def _base() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "modscope.integrations.huggingface needs transformers, which cannot be imported here. "
            "Install it with: pip install 'transformers[torch]'"
        ) from error
    return transformers.TrainerCallback


if TYPE_CHECKING:
    TrainerCallback = object
else:
    TrainerCallback = _base()


class MemoryCallback(TrainerCallback):
    """Logs which categories and modules held the memory at the peak of the training's steps::

        trainer = Trainer(..., callbacks=[MemoryCallback()])

    ``every``: how often to log: "log" (with the trainer's own logs), "step", "epoch", or a number of steps. An entry
    describes the highest peak since the previous entry. ``top``: how many of the largest modules are named.
    ``capture_steps``: the steps whose captures are written, numbered as in the log, from 1; consecutive steps share
    one file. ``capture_path``: the file's name, in which ``{step}`` is the number of the first step; by default
    ``memory-step{step}.msc`` in ``output_dir``.
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
        self._due = False
        self._evaluating = False
        self._extra: LogEntry = {}  # to be logged with the next entry
        self._oom_entry: LogEntry = {}  # the report of a batch that was too large, for the training with a smaller one
        self._trainer: weakref.ref[Any] | None = None
        self._guards = _Guards(self)
        self.last: LogEntry = {}
        """The latest value of each name that was logged."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_guards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guards=_Guards(self))

    # ---- the training's beginning and end ----

    @quietly
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guards.add(self._find_trainer(), _TRAINING, permanent=True)

    @quietly
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._find_trainer()
        self._guards.remove()  # left over if the previous training ended without an event
        if not self._guards.has(trainer, _TRAINING):  # the callback was added after the training began
            self._guards.add(trainer, _TRAINING, permanent=True)
            self._guards.add(trainer, "training_step")
            self._guards.add(trainer, "evaluate")
            self._guards.add(kwargs.get("optimizer"), "step")
        self._due = self._evaluating = False
        self._extra = self._oom_entry if args.auto_find_batch_size else {}  # the log of that training is lost
        self._oom_entry = {}
        environment = Environment(args.device, args.output_dir or ".", args.process_index, args.world_size)
        self._memory.begin(environment, kwargs.get("model"), kwargs.get("optimizer"))

    @quietly
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end(None)

    @quietly
    def end(self, error: BaseException | None) -> None:
        """End the training. It may be called again."""
        if self._memory.active:
            self._memory.end(error)
            self._guards.remove()
            self._note_failure()
            self._oom_entry = {key: value for key, value in self._extra.items() if key == OUT_OF_MEMORY}
            self._evaluating = False
            if self._extra or self._memory.has_entry:
                self._log_now()

    # ---- steps ----

    @quietly
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._memory.step_begins(state.global_step + 1)

    @quietly
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._memory.step_ends(state.global_step)
        self._note_failure()
        self._log_if_due(control, self._memory.due(state.global_step))

    @quietly
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._log_if_due(control, self._memory.settings.every == "epoch")

    @quietly
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluating = True

    @quietly
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluating = False
        held = self._memory.take_peak_between_steps()
        if held is not None:
            self._extra[PREFIX + "eval_peak"] = held

    # ---- logging ----

    def _log_if_due(self, control: Any, due: bool) -> None:
        self._due |= due
        if due and not control.should_log:  # else on_log adds it to the trainer's own log
            self._log_now()

    def _log_now(self) -> None:
        """Log a separate entry, which on_log fills. A subclass of Trainer may add to its logs, so the base class's
        method is called."""
        trainer = self._trainer and self._trainer()
        self._due = True
        if trainer is not None:
            sys.modules["transformers.trainer"].Trainer.log(trainer, {})

    @quietly
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """This callback runs before the reporters (see _find_trainer), so they report what it adds here."""
        final = "train_runtime" in (logs or ())
        if logs is None or self._evaluating or not (self._due or final or self._memory.settings.every == "log"):
            return  # an evaluation's logs are metrics, which may be added up
        entry = {**self._memory.take_entry(), **self._extra}
        self._due, self._extra = False, {}
        if not entry:
            return
        self.last |= entry
        if state.log_history:
            state.log_history[-1].update(entry)
        no_text = bool(_NO_TEXT & {*(args.report_to or ())})
        logs.update({key: value for key, value in entry.items() if not (no_text and isinstance(value, str))})

    def _note_failure(self) -> None:
        report = self._memory.take_oom_report()
        if report is not None:
            self._extra[OUT_OF_MEMORY] = report

    # ---- the trainer ----

    def _find_trainer(self) -> Any:
        """Find the trainer that is calling; callbacks do not get it as an argument. Move this callback behind
        DefaultFlowCallback, which decides when to log, and before the callbacks that report what is logged."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            trainer = frame.f_locals.get("self")
            callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", None)
            if isinstance(callbacks, list) and self in callbacks:
                callbacks.remove(self)
                flow = [type(one).__name__ for one in callbacks].index("DefaultFlowCallback")
                callbacks.insert(flow + 1, self)
                self._trainer = weakref.ref(trainer)
                return trainer
            frame = frame.f_back
        return None


class _Guards:
    """Wraps methods so that the callback learns of exceptions that leave them: the trainer has no event for that."""

    def __init__(self, callback: MemoryCallback) -> None:
        self._callback = callback
        self._added: list[tuple[Any, str, Any, Any]] = []  # to be removed at the end of this training

    @staticmethod
    def has(owner: Any, name: str) -> bool:
        return owner is not None and hasattr(vars(owner).get(name), "_modscope")

    def add(self, owner: Any, name: str, permanent: bool = False) -> None:
        if not hasattr(owner, name) or self.has(owner, name):
            return
        own = vars(owner).get(name)  # a wrapper that somebody else has set on the instance
        function = getattr(type(owner), name) if own is None else own
        callback = self._callback

        def guarded(instance: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return function(instance, *args, **kwargs) if own is None else function(*args, **kwargs)
            except BaseException as error:
                callback.end(error)
                raise

        functools.update_wrapper(guarded, function)
        guarded._modscope = True  # type: ignore[attr-defined]
        method = _bind_weakly(guarded, owner, name) if permanent else MethodType(guarded, owner)
        setattr(owner, name, method)
        if not permanent:
            self._added.append((owner, name, method, own))

    def remove(self) -> None:
        for owner, name, method, own in self._added:
            if vars(owner).get(name) is method:
                delattr(owner, name) if own is None else setattr(owner, name, own)
        self._added.clear()


def _bind_weakly(function: Any, owner: Any, name: str) -> Any:
    """A bound method that does not keep its owner alive, so that a deleted trainer's memory is freed."""
    instance = weakref.ref(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(instance(), *args, **kwargs)

    functools.update_wrapper(call, function)
    call.__signature__ = inspect.signature(getattr(owner, name))  # type: ignore[attr-defined]
    return call
