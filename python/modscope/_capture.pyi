import builtins
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NotRequired, Self, TypedDict, final, type_check_only

version: str

class FormatError(ValueError): ...

def read_source(file: str, /) -> tuple[int, int, int] | None: ...

@type_check_only
class Survey(TypedDict):
    """What one reading of the whole file finds. Times are in microseconds."""

    is_lower_bound: bool
    peaks: list[tuple[int, int, int, int, str, int, int] | None]
    """By device: bytes, moment, time, step, phase, path, reserved; None if it never held anything."""
    reserved: list[int]
    phases: dict[str, tuple[int, int, int]]
    """By phase: its time, and how many blocks and bytes were allocated in it."""
    steps: int
    optimizer_steps: int
    oom_count: int
    last_oom: int | None

@final
class Reader:
    def __new__(cls, fd: int) -> Self: ...
    @property
    def info(self) -> dict[str, str]: ...
    @property
    def end(self) -> dict[str, str] | None: ...
    @property
    def devices(self) -> list[str]: ...
    @property
    def paths(self) -> list[tuple[str, int, int]]: ...
    @property
    def stacks(self) -> list[tuple[str | None, str, int, int, int, int, int] | None]: ...
    @property
    def forward_stacks(self) -> dict[int, int]: ...
    @property
    def model_frames(self) -> set[int]: ...
    @property
    def called(self) -> dict[int, str]: ...
    @property
    def sources(self) -> dict[str, tuple[int, int, int]]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def damaged(self) -> int: ...
    @property
    def event_count(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def duration(self) -> int: ...
    def survey(self, progress: Callable[[float], object] | None = None) -> Survey: ...
    def moment_at_time(self, microseconds: int, /) -> int: ...
    def moment_at_step(self, step: int, /) -> int: ...
    def snapshot(self, moment: int, /) -> RawSnapshot: ...
    def events(
        self, ops: int = 511, first: int = 0, last: int | None = None
    ) -> Iterator[
        tuple[int, str, int, int, int, int, int, str | None, str | None, int, tuple[int, int] | bool | None]
    ]: ...
    def collectives(
        self,
    ) -> tuple[
        list[tuple[int, int, int, str, int, int, int, int, int, str, str]], list[tuple[int, str, str, str, int]]
    ]: ...
    def collective_totals(
        self,
    ) -> tuple[list[tuple[str, int, int, str, bool, int, int, int]], list[tuple[int, str, str, str, int]]]: ...
    def collective_sums(
        self,
    ) -> tuple[
        list[tuple[int, int, int, list[tuple[str, int, int, int, int]]]], list[tuple[int, str, str, str, int]]
    ]: ...
    def notes(self) -> list[tuple[int, str, int, int]]: ...
    def peaks(self, first: int = 0, last: int | None = None) -> list[int]: ...
    def times(self, first: int = 0, last: int | None = None) -> list[tuple[int, str, int]]: ...
    def step_times(self) -> builtins.bytes: ...
    def has_call_times(self) -> bool: ...
    def series(self, device: int, bounds: builtins.bytes, /) -> builtins.bytes: ...
    def pack(self, first: int = 0, last: int | None = None) -> tuple[builtins.bytes, list[int]]: ...
    def export(
        self,
        format: str,
        write: Callable[[builtins.bytes], object],
        *,
        modules: list[builtins.bytes],
        devices: list[builtins.bytes],
        places: list[tuple[builtins.bytes | None, int, builtins.bytes | None, builtins.bytes | None]],
        order: list[int],
        title: builtins.bytes = b"",
        pid: int = 0,
        began: int = 0,
        last: int | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None: ...

@final
class RawSnapshot:
    @property
    def moment(self) -> int: ...
    @property
    def time(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def optimizer_steps(self) -> int: ...
    @property
    def is_lower_bound(self) -> bool: ...
    @property
    def count(self) -> int: ...
    def totals(self) -> list[tuple[int, ...]]: ...
    def reserved(self) -> list[int]: ...
    def outside(self) -> list[int]: ...
    def modules(self) -> list[tuple[int, int, tuple[int, ...]]]: ...
    def blocks(
        self, limit: int | None = None, device: int | None = None
    ) -> list[tuple[int, int, str, int, str, int, int, bool, int, str | None]]: ...
    def kinds(self) -> list[tuple[int, ...]]: ...
    def module_kinds(self) -> list[tuple[int, int, tuple[int, ...]]]: ...
    def block_stacks(self, device: int, /) -> list[int]: ...
    def stacks(self) -> list[tuple[int, int, tuple[int, ...]]]: ...
    def alike(self) -> list[tuple[int, int, int, str, str | None, int]]: ...
    def threads(self) -> list[tuple[int, int, str, int]]: ...

@final
class Allocator:
    def __new__(
        cls,
        version: str | None = None,
        conf: str | None = None,
        capacity: int | None = None,
        total_memory: int | None = None,
    ) -> Self: ...
    def malloc(self, id: object, bytes: int, stream: int = 0, /) -> int | None: ...
    def free(self, id: object, /) -> None: ...
    def record_stream(self, id: object, stream: int, /) -> None: ...
    def empty_cache(self) -> None: ...
    def replay(self, log: builtins.bytes, /) -> tuple[int, int] | None: ...
    def place_next(self, address: int, /) -> None: ...
    def segment_changes(self) -> list[tuple[str, int, int, int]]: ...
    def stats(self) -> dict[str, Any]: ...
    def check(self) -> None: ...

_Bytes = builtins.bytes | array[int] | array[float]

@type_check_only
class EpochFacts(TypedDict):
    variants: int
    lag: int
    blocks: int
    varying: int
    inexact: int
    inexact_bytes: int
    bytes: int

@type_check_only
class EpochReplay(TypedDict):
    reserved_peak: int
    allocated_peak: int
    reserved_at: int
    allocated_at: int
    reserved_end: int
    failures: int
    first_failure: int | None
    failed_before: bool
    requested: int
    operator: int
    allocated: int
    reserved: int
    retries: int
    replayed: int
    reserved_by_batch: NotRequired[bytearray]
    allocated_by_batch: NotRequired[bytearray]
    failed_by_batch: NotRequired[bytearray]

@final
class Epoch:
    def __new__(
        cls,
        log: _Bytes,
        marks: _Bytes,
        shapes: _Bytes,
        kinds: _Bytes,
        features: _Bytes,
        first: int,
        shape_count: int,
        width: int,
    ) -> Self: ...
    def facts(self) -> EpochFacts: ...
    def requests_before(self, step: int, /) -> int: ...
    def operators(self, count: int, /) -> bytes: ...
    def replay(
        self,
        shapes: _Bytes,
        kinds: _Bytes,
        version: str | None = None,
        conf: str | None = None,
        capacity: int | None = None,
        total_memory: int | None = None,
        first_only: bool = False,
        with_curves: bool = False,
    ) -> EpochReplay: ...

@final
class Cover:
    def __new__(
        cls, costs: list[float], rows: list[tuple[int, tuple[int, ...]]], around: list[frozenset[int]]
    ) -> Self: ...
    def choose(self, target: int, /) -> list[int] | None: ...

_Position = tuple[int, int, int, str, int]
"""An event: its number, its time, the step, the phase and the path that runs."""

@type_check_only
class Replay(TypedDict):
    reserved_peak: int
    reserved_range: tuple[int, int]
    """The lowest and highest peak of all variants; without variants the peak."""
    allocated_peak: int
    reserved_at: _Position
    allocated_at: _Position
    requests: int
    replayed: int
    """How many events were replayed."""
    retries: int
    disagreements: int
    failure: tuple[int, _Position] | None
    """The bytes that were requested in vain, and when."""
    curve: list[tuple[int, int, int, int]]
    """Of each part the number and the time of its first event, reserved and allocated bytes."""

@type_check_only
class Match(TypedDict):
    matched: int
    here: tuple[int, int, tuple[int, str, int] | None]
    """Of blocks that only this stream has: count, bytes, and the path, the phase and the bytes of the first."""
    there: tuple[int, int, tuple[int, str, int] | None]
    ratio: float

@final
class Stream:
    def __new__(cls, reader: Reader) -> Self: ...
    @property
    def events(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def is_lower_bound(self) -> bool: ...
    def calls(
        self, device: int, /
    ) -> list[tuple[int, int | None, int, int | None, int | None, int, int, int, int, int, int, int]]: ...
    def operators(self, call: int, device: int, /) -> list[tuple[int, str, int, int, int, int, int, int]]: ...
    @property
    def has_operators(self) -> bool: ...
    def fold(self, /, *others: Stream) -> None: ...
    def log(
        self, device: int, adds: _Bytes, operators: _Bytes, edits: Iterable[tuple[Any, ...]] | None = None, /
    ) -> tuple[bytes, bytes]: ...
    def match(self, other: Stream, paths: list[int | None], device: int, partial_limit: int = 0, /) -> Match: ...
    def steps(self) -> list[tuple[int, int, int]]: ...
    def owners(
        self, selection: tuple[int, int, int | None, int, int] | tuple[int, int, int | None, int, int, int], /
    ) -> list[tuple[int, int]]: ...
    def changes(self, edits: Iterable[tuple[Any, ...]], /) -> int: ...
    def sum(
        self, selection: tuple[int, int, int | None, int, int] | tuple[int, int, int | None, int, int, int], /
    ) -> tuple[int, int, int]: ...
    @property
    def has_gpu_times(self) -> bool: ...
    def layout(self, device: int, *, version: str | None = None, conf: str | None = None) -> bytes: ...
    def replay(
        self,
        device: int,
        edits: Iterable[tuple[Any, ...]] | None = None,
        *,
        caching: bool = True,
        version: str | None = None,
        conf: str | None = None,
        capacity: int | None = None,
        total_memory: int | None = None,
        points: int = 0,
        first: int = 0,
        last: int | None = None,
        folded: bool = False,
        variants: int = 0,
    ) -> Replay: ...

@final
class Live:
    def __new__(cls, reader: Reader) -> Live: ...
    def update(self, events: int, /) -> bool: ...
    def status(self) -> tuple[int, int, int, int, int, str, str]: ...
    def device(self, number: int, /) -> tuple[int, int, int, int, int, int]: ...
    def modules(self, device: int, /) -> list[tuple[str, str, int, int, int]]: ...
    def lines(self, device: int, /) -> list[tuple[str | None, str, int, bool, int, int, int]]: ...
