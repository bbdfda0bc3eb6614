"""The page of `modscope report`, taken apart in Python: what its packs say, read straight from modscope_capture.h."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from itertools import accumulate
from typing import Any

from capture_helpers import CATEGORIES, PHASES

COLUMNS = (
    "time jump begin duration template bytes attributes device path stack previous age".split()
    + "running running_phase running_path step reserved oom".split()
)


class Pack:
    """What a pack says of its ticks."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        c = {name: self._column() for name in COLUMNS}
        assert self.at == len(data)
        self.columns = c
        templates, known = list[int](), 0
        for back in c["template"]:
            templates.append(known - back if back else known)
            known += not back
        c["template"] = templates
        self.times = list(accumulate(c["time"]))
        self.begins = list(accumulate(c["begin"]))
        self.jumps = list(zip(accumulate(c["jump"][::2]), c["jump"][1::2]))
        self.steps = list(zip(accumulate(c["step"][::2]), c["step"][1::2]))

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _column(self) -> list[int]:
        size = self._number()
        end, found = self.at + size, []
        while self.at < end:
            found.append(self._number())
        return found

    def moment(self, tick: int) -> int:
        first, moment = max(jump for jump in self.jumps if jump[0] <= tick)
        return moment + tick - first

    def held(self, tick: int) -> Counter[tuple[object, ...]]:
        """(bytes, device, category, path, phase, outside): how many blocks."""
        c, found = self.columns, Counter[tuple[object, ...]]()
        for begin, duration, template in zip(self.begins, c["duration"], c["template"]):
            if begin <= tick and (not duration or tick < begin + duration):
                bits = c["attributes"][template]
                of = CATEGORIES[bits & 7], c["path"][template], PHASES[bits >> 4 & 15], bool(bits & 8)
                found[c["bytes"][template], c["device"][template], *of] += 1
        return found

    def stacks(self, tick: int) -> Counter[tuple[int, int]]:
        """(bytes, stack): how many blocks."""
        c = self.columns
        held = [
            template
            for begin, duration, template in zip(self.begins, c["duration"], c["template"])
            if begin <= tick < begin + (duration or 1 << 32)
        ]
        return Counter((c["bytes"][template], c["stack"][template] if c["stack"] else 0) for template in held)


class Packed:
    """A capture in a page: its title, its metadata, its pack."""

    def __init__(self, title: str, text: str) -> None:
        data = zlib.decompress(base64.b64decode(text, validate=True))
        size = shift = at = 0
        while True:
            byte, at = data[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        self.title = title
        self.metadata: dict[str, Any] = json.loads(data[at : at + size])
        self.pack = Pack(data[at + size :])

    @property
    def sentence(self) -> str:
        return "".join(text for text, _ in self.metadata["sentence"])


def packs(page: str) -> list[Packed]:
    """The captures of a page."""
    found = re.findall(r'<script type="application/octet-stream" data-pack data-title="([^"]*)">([^<]*)</script>', page)
    return [Packed(title, text) for title, text in found]
