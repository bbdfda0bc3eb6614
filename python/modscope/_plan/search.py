"""Find a plan: the choice of modules that fits a budget and whose recomputation takes the least time.

The search assumes that the savings of modules add up (Row), which is nearly so for allocated bytes. How much more is
reserved is known from replays only: where the replay of a choice needs more than the budget, the search is repeated
with a lower target. Less memory is not always reserved with more modules, so that choices which save much are looked at
as well. Every choice that is returned was replayed. The same problem always gives the same choice."""

from __future__ import annotations

import bisect
import functools
from typing import NamedTuple

from modscope._capture import Cover
from modscope._plan import highs as _plan_highs
from modscope._plan.problem import LARGE, Choice, Problem, Row
from modscope._read.groups import merge_numbers

_TRIES = 16
_SOLUTIONS = 5
_LINES = 3  # of a choice, from which on a simpler one is searched for
_SIMPLER = 5e-3  # of a step: what a simpler choice may cost more
_NEARLY = 1e-3  # of a step: by so little a better choice is not searched for
_LEAST_STEP = 1 << 20  # bytes by which a target is lowered
_CALL_SECONDS = 2e-5
"""What the search adds to the time of a call, so that one module is preferred to many small ones that save as much."""

EMPTY: Choice = frozenset()


class Found(NamedTuple):
    choice: Choice
    how: str
    """greedy, or highs."""
    bound: float | None
    """Seconds that any choice takes at least if savings add up, about (see _bound); None: it is not known."""


class Search:
    """``is_careful``: the most that may be reserved with a choice has to fit, rather than what its replay reserves."""

    def __init__(
        self, problem: Problem, use_highs: bool = True, is_careful: bool = False, keeps_results: bool = True
    ) -> None:
        self._problem = problem
        self._is_careful = is_careful
        self._use_highs = use_highs
        results = [bool(each.results.at) for each in problem.candidates]
        self._has_results = keeps_results and any(results)
        self._rows = problem.rows
        if any(results) and not keeps_results:  # what saves nothing is never chosen
            self._rows = [
                Row(row.needed, tuple(0 if keeps else saved for keeps, saved in zip(results, row.saved)))
                for row in problem.rows
            ]
        self.has_highs = use_highs and _plan_highs.is_available()
        count = len(results) - (0 if keeps_results else sum(results))
        self._solutions = _SOLUTIONS if count <= LARGE else 0 if is_careful else 1
        # Among equal modules those that run first are best: their recomputation comes last, when little memory is left.
        count = max(len(problem.candidates), 1)
        self._costs = [
            (problem.cost(i) + _CALL_SECONDS * candidate.all_calls / max(problem.steps, 1)) * (1 + 1e-4 * i / count)
            for i, candidate in enumerate(problem.candidates)
        ]
        around = [problem.around(i) for i in range(len(problem.candidates))]
        self._greedily = Cover(self._costs, list(self._rows), around)

    def find(self, budget: int) -> Found | None:
        """The best choice found whose replay stays within the budget; None: none was found."""
        if self._problem.reserved(EMPTY) <= budget:
            return Found(EMPTY, "greedy", 0.0)
        found = self._find(budget)
        whole = self._of_whole_modules.find(budget) if self._has_results else None
        if whole is None or (found is not None and self._seconds(found.choice) <= self._seconds(whole.choice)):
            return found
        return whole._replace(bound=found.bound if found else None)

    @functools.cached_property
    def _of_whole_modules(self) -> Search:
        """The search among whole modules: with fewer candidates, it may happen to find a faster choice."""
        return Search(self._problem, self._use_highs, self._is_careful, keeps_results=False)

    def _find(self, budget: int) -> Found | None:
        found = self._greedy(budget)
        if not self.has_highs or not self._costs or not self._solutions:
            return self._simpler(Found(found, "greedy", None), budget) if found is not None else None
        better, bound = self._optimum(budget, found)
        if better is not None and (found is None or self._seconds(better) < self._seconds(found)):
            return self._simpler(Found(better, "highs", bound), budget)
        return self._simpler(Found(found, "greedy", bound), budget) if found is not None else None

    def _simpler(self, found: Found, budget: int) -> Found:
        """The choice, or one that is said in a line and makes a step hardly longer: the first modules of a group, which
        keep the same results."""
        if len(self._problem.groups(found.choice)) <= _LINES:
            return found
        most = self._seconds(found.choice) + _SIMPLER * self._problem.step.total
        choices = [choice for members in self._siblings if (choice := self._fewest(members, budget, most))]
        best = min(choices, key=self._seconds, default=None)
        return found if best is None else Found(best, "greedy", found.bound)

    @functools.cached_property
    def _siblings(self) -> list[list[int]]:
        """Candidates that keep the same results, of modules whose names differ only in numbers."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, each in enumerate(self._problem.candidates):
            if each.results.at and not self._has_results:
                continue
            groups.setdefault((merge_numbers(each.name), each.results.places), []).append(i)
        return [members for members in groups.values() if len(members) > 1]

    def _fewest(self, members: list[int], budget: int, most: float) -> Choice | None:
        """The fewest first of them that fit, if a step takes no longer with them than ``most``."""

        def fits(count: int) -> bool:
            return self._fits(frozenset(members[:count]), budget)

        if not fits(len(members)):
            return None
        count = 1 + bisect.bisect_left(range(1, len(members)), True, key=fits)
        choice = frozenset(members[:count])
        return choice if self._seconds(choice) <= most and fits(count) else None

    def _fits(self, choice: Choice, budget: int) -> bool:
        return self._problem.fits(choice, budget, self._is_careful)

    def _needed(self, choice: Choice, budget: int) -> int:
        """What has to fit the budget."""
        reserved = self._problem.reserved(choice)
        if reserved > budget or not self._is_careful:
            return reserved
        return self._problem.range_of(choice)[1]

    def _seconds(self, choice: Choice) -> float:
        return self._problem.seconds(choice)

    def _cost(self, choice: Choice) -> float:
        return sum(self._costs[i] for i in sorted(choice))

    # ---- greedy ----

    def _greedy(self, budget: int) -> Choice | None:
        target = budget
        for _ in range(_TRIES):
            choice = self._cover(target)
            if choice is None:
                break
            pruned = self._prune(choice, budget)
            if pruned is not None:
                return self._cheapest(pruned, budget)
            target -= max(self._needed(choice, budget) - budget, _LEAST_STEP)
        return self._cheapest(None, budget)

    def _cheapest(self, found: Choice | None, budget: int) -> Choice | None:
        """What was found, or what is left of a choice that saves much and costs less even as a whole."""
        for choice in self.deep_choices:
            is_cheaper = found is None or self._cost(choice) < self._cost(found)
            if is_cheaper and (pruned := self._prune(choice, budget)) is not None:
                found = pruned
        return found

    def _cover(self, target: int) -> Choice | None:
        """Add the candidate that saves most for its time in rows above the target, until no row is above it. None: no
        candidate saves anything in those that are left."""
        chosen = self._greedily.choose(target)
        return None if chosen is None else frozenset(chosen)

    def _prune(self, choice: Choice, budget: int) -> Choice | None:
        """Leave out what is not needed, the most expensive first. None: the choice does not fit.

        What may be reserved at most takes many replays. So it is asked of what is left at the end first, and then of
        half as much less, until it fits."""
        order = sorted(choice, key=lambda i: (-self._costs[i], -i))
        if not self._problem.fits(choice, budget):
            return None
        left = [(choice, 0)]  # after the first ones of the order were tried
        for tried, i in enumerate(order, 1):
            without = left[-1][0] - {i}
            if self._problem.fits(without, budget):
                left.append((without, tried))
        if not self._is_careful:
            return left[-1][0]
        fitting, not_fitting, at = -1, len(left), len(left) - 1
        while not_fitting - fitting > 1:
            fitting, not_fitting = (at, not_fitting) if self._fits(left[at][0], budget) else (fitting, at)
            at = (fitting + not_fitting) // 2
        if fitting < 0:
            return None
        choice, tried = left[fitting]
        for i in order[tried:]:
            if self._fits(choice - {i}, budget):
                choice -= {i}
        return choice

    def least(self) -> Choice:
        """The choice that reserves least, as far as is known."""
        best, best_reserved = EMPTY, self._problem.reserved(EMPTY)
        for choice in self.deep_choices:
            reserved = self._problem.reserved(choice)
            if reserved < best_reserved:
                best, best_reserved = choice, reserved
        return best

    @functools.cached_property
    def deep_choices(self) -> list[Choice]:
        """Choices that save much: all candidates of one depth of the names, and those that meet the lowest targets."""
        found: list[Choice] = []
        whole = [(i, each.name) for i, each in enumerate(self._problem.candidates) if not each.results.at]
        for depth in sorted({name.count(".") for _, name in whole}):
            found.append(self._independent([i for i, name in whole if name.count(".") == depth]))
            found.append(self._independent([i for i, name in whole if name.count(".") <= depth][::-1]))
        for depth in sorted({name.count(".") for _, name in whole}):
            found += [self._independent(each) for each in self._alike(depth)] if self._has_results else []
        low, high = 0, max((row.needed for row in self._rows), default=0)
        for _ in range(12):  # the lowest target that can be met
            target = (low + high) // 2
            choice = self._cover(target)
            if choice is None:
                low = target
            else:
                high = target
                found.append(choice)
        return found

    def _alike(self, depth: int) -> list[list[int]]:
        """For each set of results: all modules of this depth that can keep it, and the others of it as a whole."""
        of_depth = [(i, each) for i, each in enumerate(self._problem.candidates) if each.name.count(".") == depth]
        found = []
        for places in dict.fromkeys(each.results.places for _, each in of_depth if each.results.at):
            alike = [i for i, each in of_depth if each.results.places == places]
            found.append([*alike, *(i for i, each in of_depth if not each.results.at)])
        return found

    def _independent(self, candidates: list[int]) -> Choice:
        """As many of them as do not lie in each other, in their order."""
        chosen: set[int] = set()
        for i in candidates:
            if self._problem.around(i).isdisjoint(chosen) and not self._problem.inside(i, chosen):
                chosen.add(i)
        return frozenset(chosen)

    # ---- HiGHS ----

    def _optimum(self, budget: int, found: Choice | None) -> tuple[Choice | None, float | None]:
        """The best choice that HiGHS finds and the replay verifies, and the bound of the budget itself."""
        rows, chains = self._rows, self._problem.chains()
        first = _plan_highs.solve(self._costs, rows, chains, budget)
        if first is None:
            return None, None
        if found is not None and self._is_nearly(found, first):
            return None, self._bound(first)
        best: Choice | None = None
        low, high = 0, budget + 1  # a target that is met, if there is a best choice, and one that was not
        target = budget if found is None else min(budget, budget - self._excess(found))
        for _ in range(self._solutions):
            solution = first if target >= budget else _plan_highs.solve(self._costs, rows, chains, target)
            pruned = None if solution is None else self._prune(solution.choice, budget)
            if pruned is not None:
                best = self._cheaper(pruned, best)
                low = target
            else:
                high = target
            lower = 0
            if solution is not None and best is None:
                lower = target - max(self._needed(solution.choice, budget) - budget, _LEAST_STEP)
            target = (low + high) // 2 if best is not None else lower
            if target <= 0 or high - low < _LEAST_STEP or (best is not None and self._is_nearly(best, first)):
                break
        return best, self._bound(first)

    def _is_nearly(self, choice: Choice, solution: _plan_highs.Solution) -> bool:
        """Whether no choice makes a step much shorter than this one."""
        return self._cost(choice) - solution.bound <= _NEARLY * self._problem.step.total

    def _excess(self, choice: Choice) -> int:
        """How much more is reserved than the sums of savings say."""
        allocated = max(row.needed - sum(row.saved[i] for i in choice) for row in self._rows)
        return max(self._problem.reserved(choice) - allocated, 0)

    def _cheaper(self, choice: Choice, other: Choice | None) -> Choice:
        return choice if other is None or self._cost(choice) < self._cost(other) else other

    def _bound(self, solution: _plan_highs.Solution) -> float:
        """In seconds of recomputation: without what the search adds to the calls of this solution. A choice of more
        calls may take less time than that, as its own addition is larger."""
        added = solution.cost - self._problem.seconds(solution.choice)
        return max(solution.bound - added, 0.0)
