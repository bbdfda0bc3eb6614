"""The shape of a batch: the lengths of its tensors, as numbers with names, and which of these numbers matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from modscope._read.shapes import main_input, shape_text, unit_of

_MOST_DEPTH = 6
_MOST_APART = 3
"""A list of at most so many items is a tuple of different things; the order of a longer one says nothing."""
MOST_FEATURES = 4
"""As many as MS_EPOCH_MOST_FEATURES."""
_TOKENS = ("input_ids", "tokens", "ids")

Features = dict[str, int]


class Leaf(NamedTuple):
    """A tensor of a batch."""

    path: str
    """Where it is, with * for the items of a long list."""
    dims: tuple[int, ...]
    elements: str
    """ "integer", "float", or "" of others."""


class Shape(NamedTuple):
    """The shape of a batch, as it is compared and shown."""

    features: Features
    dims: list[int]
    """Of the tensor that stands for the batch."""
    unit: str
    """What that tensor's elements are, such as tokens; "": that is not known."""

    def __str__(self) -> str:
        return shape_text(self.dims, self.unit)


def leaves(batch: Any) -> Iterator[Leaf]:
    """The tensors and arrays of a batch, in their order."""
    return _leaves(batch, "", 0)


def _leaves(item: Any, path: str, depth: int) -> Iterator[Leaf]:
    dims = _dims_of(item)
    if dims is not None:
        yield Leaf(path, dims, _elements_of(item))
        return
    if depth >= _MOST_DEPTH or isinstance(item, (str, bytes)):
        return
    for name, value in _items(item):
        yield from _leaves(value, f"{path}.{name}" if path else name, depth + 1)


def _dims_of(item: Any) -> tuple[int, ...] | None:
    """None: it is no tensor. A tensor that has no shape of its own, such as a nested one, has that of its values."""
    if not hasattr(item, "dtype") or not hasattr(item, "shape"):
        return None
    try:
        return tuple(int(dim) for dim in item.shape)
    except (TypeError, ValueError, RuntimeError):
        values = getattr(item, "_values", None)
        return _dims_of(values()) if callable(values) else None


def _elements_of(item: Any) -> str:
    dtype = str(item.dtype)
    return "integer" if "int" in dtype else "float" if "float" in dtype else ""


def _items(item: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(item, Mapping):
        return [(str(name), value) for name, value in item.items()]
    if isinstance(item, (list, tuple)):
        if len(item) <= _MOST_APART or hasattr(item, "_fields"):
            return [(str(number), value) for number, value in enumerate(item)]
        return [("*", value) for value in item]
    data = getattr(item, "data", None)
    if isinstance(data, Mapping):  # a BatchEncoding
        return _items(data)
    return [(name, value) for name, value in getattr(item, "__dict__", {}).items() if not name.startswith("_")]


def shape_of(batch: Any) -> Shape:
    features: Features = {}
    found = [*leaves(batch)]
    for leaf in found:
        if "*" in leaf.path:
            _add_up(features, leaf)
        else:
            features.update({f"{leaf.path}#{number}": dim for number, dim in enumerate(leaf.dims)})
    return Shape(features, *_label_of(found))


def _add_up(features: Features, leaf: Leaf) -> None:
    """Of tensors whose order says nothing: how many there are, the longest of each dimension, and all elements."""
    elements = 1
    for number, dim in enumerate(leaf.dims):
        name = f"{leaf.path}#{number}"
        features[name] = max(features.get(name, 0), dim)
        elements *= dim
    for name, value in ((f"{leaf.path}+count", 1), (f"{leaf.path}+elements", elements)):
        features[name] = features.get(name, 0) + value


def _label_of(found: Sequence[Leaf]) -> tuple[list[int], str]:
    named = [leaf for leaf in found if leaf.path.rpartition(".")[2] in _TOKENS]
    if not found:
        return [], ""
    leaf = named[0] if named else main_input(found, lambda leaf: (leaf.dims, leaf.elements))
    return [*leaf.dims], unit_of(leaf.dims, leaf.elements)


# ---- which numbers matter ----


class ShapeTable(NamedTuple):
    """The shapes of an epoch as rows of numbers."""

    names: list[str]
    rows: list[list[float]]
    left_out: int
    """So many features vary in a way of their own, and are left out because there are too many."""

    def volume(self, shape: int) -> float:
        product = 1.0
        for value in self.rows[shape]:
            product *= value
        return product


def table_of(shapes: Sequence[Features]) -> ShapeTable:
    """The features that vary, without those that follow from another one."""
    names = list(dict.fromkeys(name for features in shapes for name in features))
    kept: list[tuple[str, list[float]]] = []
    for name in sorted(names, key=lambda name: "+" in name):
        column = [float(features.get(name, 0)) for features in shapes]
        if min(column) < max(column) and not any(_follows(column, other) for _, other in kept):
            kept.append((name, column))
    most = sorted(kept, key=lambda item: min(item[1]) / max(item[1]))[:MOST_FEATURES]
    chosen = [item for item in kept if item in most]
    rows = [[column[shape] for _, column in chosen] for shape in range(len(shapes))]
    return ShapeTable([name for name, _ in chosen], rows, len(kept) - len(chosen))


def _follows(column: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one is a line in the other."""
    low, high = other.index(min(other)), other.index(max(other))
    slope = (column[high] - column[low]) / (other[high] - other[low])
    return all(abs(column[low] + slope * (x - other[low]) - y) < 1e-6 for x, y in zip(other, column))
