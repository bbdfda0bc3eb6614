"""The lines and operators that made blocks, in the reports of the commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from modscope._read.categories import TOTAL, Sums
from modscope._read.lines import Place, describe_model_frame, library_file, shown_file
from modscope._read.summary import Report
from modscope._read.text import clean

_WHEN_RECORDED = (
    "They are recorded by default, but not with --stacks 0 (in Python, stacks=0), nor where modscope "
    "doctor says that blocks have no lines."
)
NO_LINES = f"No lines were recorded. {_WHEN_RECORDED}"
_NONE_HERE = "Nothing that is shown here has a line: it was made before the recording began, or not by Python code."
UNKNOWN_NAMES = ("(line not known)", "(operator not known)")
_Made = Iterable[tuple[Place | None, Sums]]


def short_line(block: Report, wide: bool) -> str:
    """A line in few columns: "train.py:41". In backward it is that of the forward, if it is known, with the node if
    there is room (``wide``), except what the program's own code allocates in the backward of a custom Function; else
    the operator if there is no line. Of a model in a library it is the model's line."""
    model = (
        clean(f"{os.path.basename(block['model_file'])}:{block['model_line'] or '?'}")
        if block.get("model_file")
        else ""
    )
    if block["forward_file"] is not None and not block.get("in_custom_backward"):
        line = model or clean(f"{os.path.basename(block['forward_file'])}:{block['forward_line'] or '?'}")
        return f"{block['node']}, forward at {line}" if wide else line
    if model:
        return model
    if block["file"] is None:
        return str(block["operator"] or "")
    return clean(f"{os.path.basename(block['file'])}:{block['line'] or '?'}")


def describe_line(line: Mapping[str, Any]) -> str:
    return clean(f"{library_file(line['file'])}:{line['line']} in {line['function']}")


def line_label(place: Place | None) -> str:
    """What a line is called in a table: "train.py:41 in forward"; of a model in a library
    "transformers/models/gpt2/modeling_gpt2.py:345 in GPT2MLP.forward (train.py:41)"."""
    if place is not None and place.attributed is not place:
        return f"{line_label(place.attributed)}, {place.node}"
    if place is None or place.lost or not place.frames:
        return words_without_line(place)
    if place.model:
        return clean(f"{describe_model_frame(place.model[0])} ({os.path.basename(place.frames[0].file)}:{place.line})")
    return clean(f"{shown_file(place.frames[0].file)}:{place.line or '?'} in {place.function}")


def words_without_line(place: Place | None) -> str:
    if place is not None and place.lost:
        return "(line lost: the table of lines was full)"
    return "(no Python line)" if place is not None else "(line not known)"


def why_no_lines(result: Report) -> str:
    """Say why nothing has a line at the moment of a report."""
    return _NONE_HERE if result["has_lines"] else NO_LINES


def sides_without_lines(result: Report) -> str:
    """Say which of two compared captures have no lines; "" if both have lines."""
    without = [side.upper() for side in ("a", "b") if not result[side]["has_lines"]]
    if len(without) == 2:
        return NO_LINES
    return f"{without[0]} has no lines, so the lines of the two cannot be compared. {_WHEN_RECORDED}" if without else ""


# ---- trees ----


def _level(
    made: _Made, key: Callable[[Place | None], str], below: Callable[[list[tuple[Place | None, Sums]]], list[Report]]
) -> list[Report]:
    groups: dict[str, list[tuple[Place | None, Sums]]] = {}
    for place, sums in made:
        groups.setdefault(key(place), []).append((place, sums))
    rows = []
    for name, members in groups.items():
        subtree: Sums = {}
        for _, sums in members:
            for word, value in sums.items():
                subtree[word] = subtree.get(word, 0) + value
        children, own = below(members), dict(subtree)
        for child in children:
            own = {word: value - child["subtree"].get(word, 0) for word, value in own.items()}
        rows.append({"name": name, "fqn": None, "own": own, "subtree": subtree, "children": children})
    return sorted(rows, key=lambda row: -int(row["subtree"][TOTAL]))


def _nothing(members: list[tuple[Place | None, Sums]]) -> list[Report]:
    return []


def _models_of(members: list[tuple[Place | None, Sums]]) -> list[Report]:
    """The lines of models that ran inside a line, and what it allocated itself."""
    inside = [(place, sums) for place, sums in members if place is not None and place.attributed.model]
    own = [(place, sums) for place, sums in members if place is None or not place.attributed.model]
    rows = _level(inside, _model_line_of, _nodes_of) + _nodes_of(own)
    return sorted(rows, key=lambda row: -int(row["subtree"][TOTAL]))


def _model_line_of(place: Place | None) -> str:
    assert place is not None
    frame = place.attributed.model[0]
    text = place.source_of(frame)
    return describe_model_frame(frame) + (f": {text}" if text else "")


def _nodes_of(members: list[tuple[Place | None, Sums]]) -> list[Report]:
    """What backward allocated for a line of the forward, by node."""
    in_backward = [(place, sums) for place, sums in members if place is not None and place.forward]
    return _level(in_backward, lambda place: f"{place.node} in backward" if place else "", _nothing)


def _file_of(place: Place | None) -> str:
    at = place.attributed if place is not None else None
    return shown_file(at.frames[0].file) if at is not None and at.frames else words_without_line(place)


def _source_of(place: Place | None) -> str:
    """The line's number and its text, or why there is none."""
    assert place is not None
    at = place.attributed
    number = f"line {at.line or '?'}"
    if at.source_note:
        return f"{number} ({at.source_note})"
    return f"{number}: {at.source}" if at.source else number


def tree_of_lines(made: _Made) -> list[Report]:
    """Files, in them functions, in them lines, in them those of a model that is in a library; below a line of the
    forward the nodes that allocated for it in backward."""

    def functions(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        place = members[0][0]
        has_line = place is not None and bool(place.attributed.frames)
        if not has_line:
            return []
        return _level(members, lambda place: f"in {place.attributed.function}" if place else "", lines)

    def lines(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        return _level(members, _source_of, _models_of)

    return _level(made, _file_of, functions)


def tree_of_operators(made: _Made) -> list[Report]:
    """Operators: the node in backward, the function called in forward; in them the lines."""

    def operator_of(place: Place | None) -> str:
        return (place.operator if place is not None else None) or "(operator not known)"

    def lines(members: list[tuple[Place | None, Sums]]) -> list[Report]:
        return _level(members, lambda place: line_label(place and place.attributed), _nothing)

    return _level(made, operator_of, lines)
