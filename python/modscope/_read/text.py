"""Figures and moments in words. The terminal, the page, the notebook and the line at the end of a run take their text
from here. The page says the same in JavaScript, and tests/py/show/test_text.py compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}

_DIGITS = re.compile(r"[0-9]+")
_WIDEST_NUMBER = 10  # digits; larger numbers in names are sorted like words
_MOST_CHARACTERS = 4096  # The middle of a longer name is left out.


# ---- figures ----


def size(value: int) -> str:
    """Bytes in the largest unit that they fill: "1.50 MiB", "900 B"."""
    for unit, bytes_per_unit in reversed(UNITS.items()):
        if abs(value) >= bytes_per_unit > 1:
            return f"{value / bytes_per_unit:.2f} {unit}"
    return f"{value} B"


def parse_size(text: str, kilo: int = 1000) -> int | None:
    """The bytes of "24GiB", "1.5 GB" or "512"; ``kilo``: how many bytes a KB has. None: it is no amount of memory."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(?:B?|([KMGTP])(I?)B)", re.sub(r"[\s_]", "", text.upper()), re.ASCII)
    if found is None:
        return None
    unit = 1024 if found[3] else kilo
    return int(float(found[1]) * unit ** ("KMGTP".index(found[2]) + 1 if found[2] else 0))


def rough_size(value: int) -> str:
    """Bytes in GiB with one digit, as people compare the memory of GPUs: "23.6 GiB"; less than a tenth as ``size`` has
    it."""
    return f"{value / 2**30:.1f} GiB" if abs(value) >= 0.1 * 2**30 else size(value)


def near_size(value: int) -> str:
    """Bytes like rough_size has them, but exact enough for figures below 1 GiB to differ: "774.00 MiB"."""
    return rough_size(value) if abs(value) >= 2**30 else size(value)


def gpu_label(title: str) -> str:
    """The title of a GPU without its maker's name: "RTX 4090"."""
    return re.sub(r"^(NVIDIA |GeForce |Tesla )+", "", title)


def bytes_per(unit: str) -> int:
    """How many bytes a unit has. ValueError, with the list of units, if there is no such unit."""
    try:
        return UNITS[unit]
    except (KeyError, TypeError):
        raise ValueError(f"Unsupported unit: {unit!r}. Supported units are: {', '.join(UNITS)}") from None


def size_in(value: int, unit: str) -> str:
    """Bytes in a given unit: "0.01 GiB"."""
    return f"{value} B" if unit == "B" else f"{value / bytes_per(unit):.2f} {unit}"


def change(value: int) -> str:
    return ("+" if value > 0 else "") + size(value)


def at_least(is_lower_bound: bool, text: str) -> str:
    return f"at least {text}" if is_lower_bound else text


def percent(part: int | float, whole: int | float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes = int(seconds / 60)
    return f"{minutes} min {seconds % 60:.0f} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def more_time(before: float, after: float) -> str:
    """How much longer something takes: "+6.7 %". Of no time it is unknown."""
    return f"+{100 * (after / before - 1):.1f} %" if before else "unknown"


def counted(number: int, word: str) -> str:
    """A number with its word, in the plural if needed: "1 block", "3339 blocks"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# ---- names ----


def label(fqn: str) -> str:
    """A module's name as people read it."""
    return "Global (outside any module)" if fqn == "Global" else fqn or '""'


def natural_key(name: str) -> str:
    """A key for sorting that puts ``layers.2`` before ``layers.10``. Upper and lower case count alike."""
    return _DIGITS.sub(lambda found: found[0].lstrip("0").rjust(_WIDEST_NUMBER, "0"), name.lower())


def clean(text: str) -> str:
    """Replace every character that could move the cursor or reverse the line by an escape."""
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[: _MOST_CHARACTERS // 2]}...{text[-_MOST_CHARACTERS // 2 :]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if _is_harmless(char) else escape(char) for char in text)


def _is_harmless(char: str) -> bool:
    import unicodedata

    return (
        char.isprintable()
        and not unicodedata.category(char).startswith("M")
        and unicodedata.bidirectional(char) not in ("R", "AL", "AN")
    )


def escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width_of(text: str) -> int:
    """How many columns of a terminal a clean text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _beginning(text: str, columns: int) -> str:
    """The beginning of the text, as much of it as fits into the columns."""
    taken = used = 0
    for char in text:
        used += width_of(char)
        if used > columns:
            break
        taken += 1
    return text[:taken]


def shorten_middle(text: str, columns: int, dots: str = "…", begin_share: float = 1 / 3) -> str:
    """A clean text that fits. More is kept of its end: the end of a module's name says more than the beginning."""
    text = clean(text)
    if width_of(text) <= columns:
        return text
    room = max(columns - width_of(dots), 2)
    begin = _beginning(text, int(room * begin_share))
    end = _beginning(text[::-1], room - width_of(begin))[::-1]
    return begin + dots + end


def shorten_end(text: str, columns: int, dots: str = "…") -> str:
    """A clean text that fits, without its end."""
    text = clean(text)
    return text if width_of(text) <= columns else _beginning(text, columns - width_of(dots)) + dots


_SOURCE_LINE = re.compile(r"line [0-9?]+: ")
_FOLDERS = re.compile(r"(?<![^ (])/?(?:[^ /]+/)+(?=[^ /]+:[0-9?])")  # the folders before a file with a line's number
_FILE_AND_LINE = re.compile(r"[^ /]+:[0-9?]+(?: \((?:was|only in) [^)]*\))?")

_FUNCTION_BEFORE_NODE = re.compile(r" in [^,]*(, \w+)$")


def shorten_line(text: str, columns: int, dots: str = "…") -> str | None:
    """The name of a line of a program, without what says least about it: "line 41: x = torch…" without the end of its
    text, "train.py:41 in forward" without its folders. None: the text is not the name of a line."""
    text = clean(text)
    if _SOURCE_LINE.match(text):
        return shorten_end(text, columns, dots)
    if width_of(text) <= columns:
        return text
    text = _FOLDERS.sub("", text)
    at = _FILE_AND_LINE.match(text)
    if at is None:
        return None
    if width_of(text) > columns:  # What a node is called says more than the function that created it.
        text = at[0] + _FUNCTION_BEFORE_NODE.sub(r"\1", text[at.end() :])
    rest = columns - width_of(at[0]) - width_of(dots)
    return shorten_middle(text, columns, dots) if rest < 4 else _keep_beginning(at[0], text[at.end() :], columns, dots)


def _keep_beginning(begin: str, rest: str, columns: int, dots: str) -> str:
    room = columns - width_of(begin)
    return begin + (rest if width_of(rest) <= room else shorten_middle(rest, room, dots, 0.0))


def shorten_alike(texts: Sequence[str], columns: Sequence[int], dots: str = "…") -> list[str]:
    """Clean names of modules that fit, each into its columns. Names that differ stay different where that is possible:
    what they all begin with is left out first."""
    cleaned = [clean(text) for text in texts]
    long = {text for text, room in zip(cleaned, columns) if width_of(text) > room}
    if not long:
        return cleaned
    shorter = [{text: dots + text[len(prefix) :] for text in long} for prefix in _common_beginnings(long)] + [
        _distinct_parts(long, dots)
    ]
    tried = [[names.get(text, text) for text in cleaned] for names in shorter]
    tried = [texts for texts in tried if all(width_of(text) <= room for text, room in zip(texts, columns))][:1]
    tried += [
        [shorten_middle(text, room, dots, share) for text, room in zip(cleaned, columns)]
        for share in (1 / 3, 1 / 2, 2 / 3)
    ]
    return max(tried, key=lambda texts: len(set(texts)))


def _common_beginnings(names: Collection[str]) -> Iterator[str]:
    """The modules with which all names begin: "Model", then "Model.encoder"..."""
    common = ""
    for same in zip(*(name.split(".")[:-1] for name in names)):
        if len(set(same)) > 1:
            break
        common += same[0]
        yield common
        common += "."


def _distinct_parts(names: Collection[str], dots: str) -> dict[str, str]:
    """Each name with its last part and those that are not the same in all names."""
    split = {name: name.split(".") for name in names}
    columns = list(zip(*split.values()))
    kept = [i + 1 == len(columns) or len(set(same)) > 1 for i, same in enumerate(columns)]
    if len(set(map(len, split.values()))) > 1:
        return {}
    joined = {
        name: ".".join(part if keep else dots for part, keep in zip(parts, kept)) for name, parts in split.items()
    }
    return {name: re.sub(rf"({re.escape(dots)}\.)+", f"{dots}.", text) for name, text in joined.items()}


# ---- moments ----


def describe_position(phase: str, module: str) -> str:
    """What was running, in words: "backward of GPT2.h.11.mlp"."""
    if phase == "optimizer":
        return "in the optimizer's step" + ("" if module == "Global" else f" in {module}")
    if phase in ("idle", "evaluation"):
        return "outside any module" if module == "Global" else f"in {module}"
    return f"{phase} outside any module" if module == "Global" else f"{phase} of {module}"


def _describe_step(step: int, phase: str) -> str:
    if phase == "evaluation":
        return f"in evaluation after step {step}" if step else "in evaluation"
    return f"in step {step}" if step else "before the first step"


def describe_moment(
    step: int, phase: str, module: str, time: float | None = None, columns: int | None = None, dots: str = "…"
) -> str:
    """A moment in words: "in step 2, backward of GPT2.h.11.mlp, at 1.531 s". Where ``columns`` are given, the module's
    name is shortened until the sentence fits."""

    def sentence(name: str) -> str:
        end = "" if time is None else f", at {time:.3f} s"
        return f"{_describe_step(step, phase)}, {describe_position(phase, name)}{end}"

    name = clean(module)
    if columns is None:
        return sentence(name)
    excess = width_of(sentence(name)) - columns
    if excess > 0:
        name = shorten_middle(name, max(width_of(name) - excess, 12), dots)
    return shorten_end(sentence(name), columns, dots)
