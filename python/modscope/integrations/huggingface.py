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

from modscope.integrations._common import PREFIX, STORY, Entry, Place, Watch, quietly, settings_of

__all__ = ["MemoryCallback"]

_WHOLE = "_inner_training_loop"  # of the trainer: from the first step to the last
_NO_TEXT = frozenset(("mlflow", "dvclive"))  # they warn of every text


def _base() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "modscope.integrations.huggingface is a callback for transformers, which cannot be imported here. "
            "Install it with: pip install 'transformers[torch]'"
        ) from error
    return transformers.TrainerCallback


if TYPE_CHECKING:
    TrainerCallback = object
else:
    TrainerCallback = _base()


class MemoryCallback(TrainerCallback):
    """Logs which category and module held the memory at the peak of the training's steps::

        trainer = Trainer(..., callbacks=[MemoryCallback()])

    ``every``: "log" (in the trainer's own logs), "step", "epoch", or a number of steps; an entry is of the
    highest peak since the last one. ``top``: how many of the largest modules to name. ``capture_steps``: the steps
    to write captures of, numbered as in the log, from 1; steps in a row go to one file. ``capture_path``: its name,
    in which ``{step}`` is the first step's number; by default ``memory-step{step}.msc`` in ``output_dir``.
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
        self._due = False
        self._evaluating = False
        self._extra: Entry = {}  # to be logged with the next entry
        self._untold: Entry = {}  # the story of a batch that was too large, for the log of the smaller one
        self._trainer: weakref.ref[Any] | None = None
        self._guards = _Guards(self)
        self.last: Entry = {}
        """The latest of each figure that was logged."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_guards": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _guards=_Guards(self))

    # ---- from the beginning to the end, whichever it is ----

    @quietly
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guards.put(self._find_trainer(), _WHOLE, for_good=True)

    @quietly
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._find_trainer()
        self._guards.remove()  # should the last one have died unseen
        if not self._guards.has(trainer, _WHOLE):  # the callback came late, and the training is under way
            self._guards.put(trainer, _WHOLE, for_good=True)
            self._guards.put(trainer, "training_step")
            self._guards.put(trainer, "evaluate")
            self._guards.put(kwargs.get("optimizer"), "step")
        self._due = self._evaluating = False
        self._extra = self._untold if args.auto_find_batch_size else {}  # else the smaller batch's log knows nothing
        self._untold = {}
        place = Place(args.device, args.output_dir or ".", args.process_index, args.world_size)
        self._watch.begin(place, kwargs.get("model"), kwargs.get("optimizer"))

    @quietly
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end(None)

    @quietly
    def end(self, error: BaseException | None) -> None:
        """The training is over. May be called again."""
        if self._watch.active:
            self._watch.end(error)
            self._guards.remove()
            self._note_failure()
            self._untold = {key: value for key, value in self._extra.items() if key == STORY}
            self._evaluating = False
            if self._extra or self._watch.pending:
                self._log_now()

    # ---- steps ----

    @quietly
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.step_begins(state.global_step + 1)

    @quietly
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.step_ends(state.global_step)
        self._note_failure()
        self._fall_due(control, self._watch.due(state.global_step))

    @quietly
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fall_due(control, self._watch.settings.every == "epoch")

    @quietly
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluating = True

    @quietly
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluating = False
        held = self._watch.since()
        if held is not None:
            self._extra[PREFIX + "eval_peak"] = held

    # ---- to the log ----

    def _fall_due(self, control: Any, due: bool) -> None:
        self._due |= due
        if due and not control.should_log:  # else the trainer's own log takes it along
            self._log_now()

    def _log_now(self) -> None:
        """An entry of its own, past what a kind of trainer adds to its logs. on_log fills it in."""
        trainer = self._trainer and self._trainer()
        self._due = True
        if trainer is not None:
            sys.modules["transformers.trainer"].Trainer.log(trainer, {})

    @quietly
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """We come before the reporters, so that they see what is added here."""
        final = "train_runtime" in (logs or ())
        if logs is None or self._evaluating or not (self._due or final or self._watch.settings.every == "log"):
            return  # an evaluation's logs are its metrics, which may be summed up
        entry = {**self._watch.take(), **self._extra}
        self._due, self._extra = False, {}
        if not entry:
            return
        self.last |= entry
        if state.log_history:
            state.log_history[-1].update(entry)
        no_text = bool(_NO_TEXT & {*(args.report_to or ())})
        logs.update({key: value for key, value in entry.items() if not (no_text and isinstance(value, str))})

    def _note_failure(self) -> None:
        story = self._watch.story()
        if story is not None:
            self._extra[STORY] = story

    # ---- the trainer ----

    def _find_trainer(self) -> Any:
        """The one that is calling; a callback is not told. It then calls us right after its own control of the flow,
        which decides when to log, and before those that report what is logged."""
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
    """Methods that tell a callback of the exception that leaves them: the trainer has no event for it."""

    def __init__(self, callback: MemoryCallback) -> None:
        self._callback = callback
        self._put: list[tuple[Any, str, Any, Any]] = []  # until the end of this training

    @staticmethod
    def has(owner: Any, name: str) -> bool:
        return owner is not None and hasattr(vars(owner).get(name), "_modscope")

    def put(self, owner: Any, name: str, for_good: bool = False) -> None:
        if not hasattr(owner, name) or self.has(owner, name):
            return
        own = vars(owner).get(name)  # somebody else's guard
        function = getattr(type(owner), name) if own is None else own
        callback = self._callback

        def guarded(whose: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return function(whose, *args, **kwargs) if own is None else function(*args, **kwargs)
            except BaseException as error:
                callback.end(error)
                raise

        functools.update_wrapper(guarded, function)
        guarded._modscope = True  # type: ignore[attr-defined]
        put = _unbound(guarded, owner, name) if for_good else MethodType(guarded, owner)
        setattr(owner, name, put)
        if not for_good:
            self._put.append((owner, name, put, own))

    def remove(self) -> None:
        for owner, name, put, own in self._put:
            if vars(owner).get(name) is put:
                delattr(owner, name) if own is None else setattr(owner, name, own)
        self._put.clear()


def _unbound(function: Any, owner: Any, name: str) -> Any:
    """A method that does not keep its owner alive: a trainer's memory goes when the trainer is let go."""
    kept = weakref.ref(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(kept(), *args, **kwargs)

    functools.update_wrapper(call, function)
    call.__signature__ = inspect.signature(getattr(owner, name))  # type: ignore[attr-defined]
    return call
