"""``RuntimeEstimator``: how long a program's operators would take on a GPU, by module."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Self

from modscope._trackers import operator_times
from modscope._trackers.operator_times import COST_MODEL, Estimation, check_mode

__all__ = ["RuntimeEstimator"]


def is_shown(fqn: str, depth: int) -> bool:
    return fqn.count(".") < depth


class RuntimeEstimator:
    """Estimates how many milliseconds operators take on a GPU, in sum and by module.

    A drop-in for ``torch.distributed._tools.runtime_estimator.RuntimeEstimator``::

        estimator = RuntimeEstimator()
        with FakeTensorMode():
            ...  # the model, the optimizer, a batch
            with estimator("operator-level-cost-model"):
                model(batch).sum().backward()
                optimizer.step()
            estimator.display_modulewise_stats()

    It is entered under a ``FakeTensorMode``, or inside ``modscope.virtual_gpu``. ``gpu_type`` is the GPU: a name of
    ``modscope.gpus``; by default the virtual or real GPU of this process, else an H100. ``"operator-level-benchmark"``
    runs each operator on the GPU of this machine, which must be there.
    """

    def __init__(self, gpu_type: str | None = None) -> None:
        self._gpu_type = gpu_type
        self._mode = COST_MODEL
        self._estimation: Estimation | None = None
        self._is_active = False

    def __call__(self, estimate_mode_type: str) -> Self:
        """Choose how times are found: ``"operator-level-cost-model"`` or ``"operator-level-benchmark"``.
        NotImplementedError for another one."""
        self._mode = check_mode(estimate_mode_type)
        return self

    def __enter__(self) -> Self:
        if self._is_active:
            raise RuntimeError("this RuntimeEstimator is active already: use another one, or leave it first")
        estimation = Estimation(self._mode, self._gpu_type)
        estimation.enter()
        self._estimation, self._is_active = estimation, True
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._estimation is None or not self._is_active:
            return
        self._is_active = False
        self._estimation.leave()
        more = f", at least: {self.lost} operators were lost" if self.lost else ""
        print(f"Estimated ({self._mode}) total_time: {self.total_runtime:.3f} ms on {self._estimation.gpu.title}{more}")
        if self._estimation.not_measured:
            print("Not measured, but computed, as they cannot run alone:", *sorted(self._estimation.not_measured))

    # ---- what torch's own estimators call by this class's name, where a program has them from before ``drop_in`` ----

    @classmethod
    def _roofline_estimate(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        result = func(*args, **(kwargs or {}))
        return result, operator_times.milliseconds(COST_MODEL, func, args, kwargs, result)

    @classmethod
    def _benchmark_estimate(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        result = func(*args, **(kwargs or {}))
        return result, operator_times.milliseconds(operator_times.BENCHMARK, func, args, kwargs, result)

    # ---- figures ----

    @property
    def lost(self) -> int:
        """How many operators could not be recorded. If not 0, every figure is a lower bound."""
        return self._estimation.log.lost if self._estimation else 0

    @property
    def total_runtime(self) -> float:
        """Milliseconds of all operators, one after another."""
        return self._estimation.log.total if self._estimation else 0.0

    @property
    def mod_runtimes(self) -> dict[str, dict[str, float]]:
        """By fqn, the milliseconds of the operators that ran in forwards (``"fw"``) and in backwards (``"bw"``) of the
        module and of those in it. ``"Global"`` has all operators. What a checkpoint runs again counts as backward."""
        runtimes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for fqn, (forward, backward) in self._estimation.log.runtimes().items() if self._estimation else ():
            runtimes[fqn] = defaultdict(float, fw=forward, bw=backward)
        return runtimes

    def _order(self, number: int) -> list[str]:
        return self._estimation.log.orders[number] if self._estimation else []

    @property
    def mod_fw_pre_order(self) -> list[str]:
        """The fqns in the order in which forwards began. A module that is called twice is there twice."""
        return self._order(0)

    @property
    def mod_fw_post_order(self) -> list[str]:
        """In the order in which forwards ended."""
        return self._order(1)

    @property
    def mod_bw_pre_order(self) -> list[str]:
        """In the order in which backwards began."""
        return self._order(2)

    @property
    def mod_bw_post_order(self) -> list[str]:
        """In the order in which backwards ended."""
        return self._order(3)

    def display_modulewise_stats(self, depth: int = 2) -> None:
        """Print the orders of forward and backward, and the milliseconds of each module whose name has at most
        ``depth`` parts."""
        for title, order in (("Forward", self.mod_fw_pre_order), ("Backward", self.mod_bw_pre_order)):
            print(f"Pre-{title} Execution Order: ")
            for fqn in order:
                if is_shown(fqn, depth):
                    print(fqn)
        for fqn, times in self.mod_runtimes.items():
            if is_shown(fqn, depth):
                print(f"{fqn} fw: {times['fw']:.3f}ms bw: {times['bw']:.3f}ms")
