"""What ``modscope fit`` says, for the page: the verdict, and each lever with the timeline that it would give."""

from __future__ import annotations

from functools import partial

from modscope._fit.edited_timeline import POINTS, Window, describe_difference, lines_of, moments_of
from modscope._fit.levers.registry import Tried
from modscope._fit.text import approximately, cost_of, in_column, notes, verdict, verdict_parts
from modscope._fit.verdict import Answer
from modscope._read.sentence import Sentence
from modscope._read.summary import Report
from modscope._read.text import at_least, clean, describe_moment, size
from modscope._show.pages import Page
from modscope._show.pages.report import Source, page
from modscope._virtual.certainty import FITS, OPEN, describe

_COLUMNS = 160  # A sentence that names a module is not longer.


def source_of(found: Answer) -> Source:
    """The capture with what would make it fit, for a page."""
    return Source(found.job.file, found.job.capture, partial(changes, found))


def page_of(found: Answer) -> Page:
    """The page of the capture, with what would make it fit."""
    return page([source_of(found)])


def changes(found: Answer, window: Window) -> Report:
    job, gpu = found.job, found.gpu
    before = job.curve(POINTS, window)
    return {
        "verdict": _headline(found),
        "fit": {
            "device": job.number,
            "verb": "reserved" if job.caching else "allocated",
            "gpu": clean(gpu.label),
            "capacity": found.capacity,
            "before": found.before.reserved,
            "fits": found.before.fits,
            "answer": in_column(found.verdict),
            "text": " ".join([verdict(found), *map(clean, notes(found))]),
            "moments": moments_of(before),
            "levers": [
                _lever(found, tried, window)
                for tried in found.tried
                if not found.before.fits and (tried.lever.edits or tried.lever.conf)
            ],
        },
    }


def _headline(found: Answer) -> Sentence:
    """The verdict and, if it does not fit, the first change that makes it fit."""
    figures, judged = verdict_parts(found)
    headline: Sentence = [(clean(figures), False), (clean(judged), True)]
    helps = next((tried for tried in found.tried if found.verdict_on(tried).answer == FITS), None)
    if not found.before.fits and helps:
        headline += [(" It fits with ", False), (clean(helps.lever.name), True), (f": {clean(cost_of(helps))}.", False)]
    return headline


def _lever(found: Answer, tried: Tried, window: Window) -> Report:
    lever, outcome = tried.lever, tried.outcome
    return {
        "name": clean(lever.name),
        "reserved": outcome.reserved_on_gpu,
        "is_approximate": tried.is_approximate,
        "fits": outcome.fits,
        "answer": in_column(found.verdict_on(tried)),
        "cost": clean(cost_of(tried)),
        "text": _sentence(found, tried),
        **lines_of(found.job.curve(POINTS, window, lever.edits, lever.conf)),
    }


def _sentence(found: Answer, tried: Tried) -> str:
    job, gpu, outcome = found.job, found.gpu, tried.outcome
    verb = "reserves" if job.caching else "allocates"
    most = at_least(job.is_lower_bound, approximately(tried, size(outcome.reserved)))
    when = describe_moment(*outcome.at, columns=_COLUMNS)
    unlimited = " with unlimited memory" if outcome.reserved_within is not None else ""
    first = (
        f"{job.device} {verb} {most} at most{unlimited}, "
        f"{describe_difference(found.before.reserved, outcome.reserved)}; its peak is then {when}."
    )
    room = (found.capacity if tried.capacity is None else tried.capacity) - outcome.reserved_on_gpu
    judged = found.verdict_on(tried)
    if judged.answer == OPEN:
        fits = f"{describe(judged, room).capitalize()}"
    elif not outcome.fits:
        fits = f"It does not fit {gpu.label}: short by {size(-room)}."
    elif outcome.reserved_within is not None:
        fits = (
            f"It fits {gpu.label}, where it {verb} {size(outcome.reserved_within)} at most, as the allocator "
            f"gives free segments back."
        )
    else:
        fits = f"It fits {gpu.label}, with {size(room)} to spare."
    return clean(f"{first} {fits} Cost: {cost_of(tried)}.")
