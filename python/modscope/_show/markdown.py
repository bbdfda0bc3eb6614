"""The comparison of two captures as Markdown, for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from modscope._read.summary import Report
from modscope._read.text import at_least, change, clean, counted, describe_moment, label, percent, size

_MOST_ROWS = 10
_LONG = 2_000  # characters of a name


def comparison(
    result: Report, modules: Sequence[Report], lines: Sequence[Report] | None, remarks: Sequence[str]
) -> list[str]:
    """``result``: what ``modscope diff --json`` prints. ``modules``, ``lines``: the rows that changed, most first;
    None: they cannot be compared. ``remarks``: sentences on what must be known of the figures."""
    a, b = result["a"], result["b"]
    grown = b["total"] - a["total"] if result["below"] is None else result["change"]
    share = f" ({'+' if grown > 0 else ''}{percent(grown, a['total'])})" if a["total"] and grown else ""
    of = "memory" if result["below"] is None else f"memory of {_code(result['below'])}"
    title = f"{change(grown)} of {of}" if grown else f"No change of {of}"
    out = [f"### {title}{share if result['below'] is None else ''}{_where(a, b)}", ""]
    for remark in remarks:
        out += [f"> {_text(remark)}", ""]
    out += ["| | before | after | change |", "|---|--:|--:|--:|"]
    out.append(_figures("allocated", a["total"], b["total"], result["is_lower_bound"]))
    if a["reserved"] and b["reserved"]:
        out.append(_figures("reserved", a["reserved"], b["reserved"], result["is_lower_bound"]))
    out += ["", f"Compared {_moments(a, b)}."]
    if modules:
        first = modules[0]
        out[-1] += (
            f" The largest change: {change(first['change'])} {first['category']} of {_code(label(first['module']))}."
        )
    out += [*_table("module", modules), *(_table("line", lines) if lines is not None else [])]
    return [*out, "", f"<sub>By modscope diff. A, before: {_code(a['file'])}. B, after: {_code(b['file'])}.</sub>"]


def _where(a: Report, b: Report) -> str:
    """The device, and the GPU if it was a virtual one; both of each if they differ."""
    before, after = (
        f"{_code(one['device'])}" + (f", predicted on {_text(one['predicted_on'])}" if one["predicted_on"] else "")
        for one in (a, b)
    )
    return f" on {after}" + ("" if before == after else f" (before: on {before})")


def _figures(word: str, before: int, after: int, is_lower_bound: bool) -> str:
    shown = (at_least(is_lower_bound, size(value)) for value in (before, after))
    return f"| {word} | {' | '.join(shown)} | {change(after - before)} |"


def _moments(a: Report, b: Report) -> str:
    before, after = (_moment(side) for side in (a, b))
    at = {"peak": "at the peak", "oom": "where memory ran out"}.get(str(b["at"]), f"at {clean(str(b['at']))}")
    return f"{at}, which is {after}" + ("" if before == after else f" (before: {before})")


def _moment(side: Report) -> str:
    return _text(describe_moment(side["step"], side["phase"], side["module"]))


def _table(word: str, rows: Sequence[Report]) -> list[str]:
    """A table that is folded until one clicks on it."""
    if not rows:
        return ["", f"No {word} holds more or less."]
    shown = rows[:_MOST_ROWS]
    which = (
        f"the {len(shown)} of {len(rows)} rows that changed most"
        if len(shown) < len(rows)
        else counted(len(rows), "row")
    )
    out = ["", f"<details><summary>By {word}: {which}</summary>", "", "| change | before | after | category | |"]
    out.append("|--:|--:|--:|---|---|")
    for row in shown:
        name = _code(label(row["module"]) + row.get("alike", ""))
        out.append(f"| {change(row['change'])} | {size(row['a'])} | {size(row['b'])} | {row['category']} | {name} |")
    return [*out, "", "</details>"]


# ---- what a name may not break ----


def _code(text: str) -> str:
    """A name as code, also if it has backticks, and in a cell of a table."""
    text = clean(text)[:_LONG]
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}".replace("|", "\\|")


def _text(text: str) -> str:
    """Escape words so that nothing in them is markup."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~@])", r"\\\1", clean(text)[:_LONG])
