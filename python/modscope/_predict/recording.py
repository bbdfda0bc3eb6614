"""The recording inside the script's process that ``modscope predict`` starts: that of ``modscope run``, on a virtual
GPU."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NoReturn

from modscope._predict import bytecode
from modscope._predict.in_script import FACTS, Prediction
from modscope._predict.options import PredictOptions
from modscope._predict.result import Result, as_json, failed_early
from modscope._record.in_process import RunRecording, flush
from modscope._record.settings import Settings

if TYPE_CHECKING:
    from modscope._predict.progress import Progress
    from modscope._read.load import Capture
    from modscope._record.child_processes import StartedProcess
    from modscope._record.record import Recording, RecordingResult

_FACTS = "prediction"  # in the end of a capture


def enter(settings: Settings) -> None:
    """Called before the script's first line."""
    asked = PredictOptions(*settings.prediction)
    bytecode.keep()
    if asked.real:
        from modscope._predict.check import RealRun

        RealRun(settings, asked).enter()
    else:
        PredictedRun(settings, asked).enter()


class PredictedRun(RunRecording):
    def __init__(self, settings: Settings, asked: PredictOptions) -> None:
        super().__init__(settings)
        self._asked = asked
        self._prediction = Prediction(asked)

    # ---- the beginning ----

    def _prepare(self) -> None:
        """SystemExit if there can be no virtual GPU: without it, the script would compute everything.

        What the end needs is imported now. To define a NamedTuple, Python runs a string, and then it forgets that
        KeyboardInterrupt ended the script, whose exit status would be another one."""
        from modscope._predict import text  # noqa: F401
        from modscope._read import load as _load  # noqa: F401

        try:
            self._prediction.install()
            if not self._is_child:
                self._prediction.look_ahead(self._stop_epoch)
        except Exception as error:
            self._finished = True
            self._discard()
            self._print(f"the script was not run, because there can be no virtual GPU here: {error}")
            raise SystemExit(1) from None
        if not self._is_child:
            self._prediction.watch_time(self._leave, self._progress())

    def _progress(self) -> Progress | None:
        """None: a process that waits for this one shows how far it is, or nobody wants to know."""
        if self._options.quiet or not self._can_print():
            return None
        from modscope._predict.progress import Progress

        progress = Progress(self._options.program, self._options.steps)
        if progress.is_on:
            progress.share_terminal()
        return progress if progress.is_on and not self._asked.part else None

    def _more_info(self) -> dict[str, str]:
        return self._prediction.info()

    def _began(self) -> None:
        self._prediction.recording_began()

    def _optimizer_step_ended(self) -> None:
        self._prediction.optimizer_step_ended()

    def _step_ended(self) -> None:
        self._prediction.step_ended()

    def _is_enough(self) -> bool:
        return super()._is_enough() and not self._prediction.looks_ahead()

    def _stop_epoch(self) -> NoReturn:
        self._stopped = True
        raise SystemExit(0)

    # ---- the end ----

    def _at_exit(self) -> None:
        self._stopped |= self._prediction.timed_out
        self._prediction.script_ended(by_itself=not self._stopped)
        super()._at_exit()

    def _stopped_by(self) -> str:
        return f"--seconds {self._asked.seconds:g}" if self._prediction.timed_out else super()._stopped_by()

    def _leave(self) -> NoReturn:
        self._stopped = True
        flush()
        os._exit(0 if self._prediction.has_used_gpu() else 1)

    def _tell(self, outcome: RecordingResult, loss: str | None, how: str, end: dict[str, str]) -> None:
        from modscope._predict import text

        facts = self._prediction.facts(self._steps, how, end)
        if self._asked.part:
            self._prediction.write_part(facts, self._file.path if self._file else "")
        elif not self._is_child:
            capture = self._load() if not loss else None
            result = self._prediction.result(facts, capture, self._file.path if self._file else "")
            if capture and not text.used_gpu(result):
                self._drop()
                result["capture"] = ""
            self._close(result, self._shown, loss)

    def _close(self, result: Result, shown: str, loss: str | None = None) -> None:
        """Say what was predicted, and write it as JSON where that was asked for. ``shown``, ``loss``: as text.closing
        has them."""
        from modscope._predict import text

        self._print(*text.closing(result, shown, loss, self._options.quiet))
        self._write_figures(as_json(result))
        self._guard([result])

    def _guard(self, results: list[Result]) -> None:
        """End with another status if the job is not let through."""
        from modscope._predict import guard

        why = guard.why_stopped(self._asked, results)
        if why is not None:
            self._status = guard.STATUS
            self._print(why)

    def _load(self) -> Capture | None:
        from modscope._read.load import load

        return load(self._file.path) if self._file else None

    # ---- a script that only starts others, such as torch.distributed.run ----

    def _end_recording(self, recording: Recording, how: str, end: dict[str, str]) -> None:
        """A process that the script started leaves what the script's own process must know in its capture."""
        if self._is_child:
            end = {**end, _FACTS: json.dumps(self._prediction.facts(self._steps, how, end))}
        super()._end_recording(recording, how, {**end, **self._prediction.end_info()})

    def _end_without_capture(self, what: str) -> None:
        """The script itself used no memory of PyTorch's."""
        if self._prediction.timed_out:
            seconds = self._prediction.seconds_before_use()
            what = f"had not used the GPU after {seconds:g} s (--seconds gives it more, or no limit with 0)"
        if not self._asked.part:
            if not self._tell_of_started() and not self._tell_of_failure():
                super()._end_without_capture(what)
                self._guard([])
        elif not self._is_child and not os.path.exists(os.path.join(self._asked.part, FACTS)):
            facts = {"error": "", "status": "", **self._end, "nothing": what}
            with open(os.path.join(self._asked.part, FACTS), "w", encoding="utf-8") as file:
                json.dump(facts, file)

    def _tell_of_failure(self) -> bool:
        """Whether the script failed, and that was told."""
        result = self._prediction.result(self._prediction.facts(self._steps, self._end["ended"], self._end), None, "")
        if not failed_early(result):
            return False
        self._close(result, "")
        return True

    def _tell_of_started(self) -> bool:
        """Tell the result of the process that needs most of the GPU. False if there is none that uses it."""
        results = [
            result for other in self._started_processes() if (result := self._result_of_started(other)) is not None
        ]
        if not results:
            return False
        from modscope._predict import text

        result = max(results, key=lambda result: (not result["fits"], result["reserved_peak"]))
        result["notes"].append(text.note_of_started(len(results)))
        shown = result.pop("shown")
        self._close(result, shown)
        return True

    def _result_of_started(self, other: StartedProcess) -> Result | None:
        """None if it was killed, or used no GPU."""
        from modscope._predict import text
        from modscope._read.load import load

        if other.error or not other.path:
            return None
        capture = load(other.path)
        facts = json.loads((capture.end or {}).get(_FACTS, "null"))
        result = self._prediction.result(facts, capture, other.path) if facts else None
        return {**result, "shown": other.name} if result and text.used_gpu(result) else None
