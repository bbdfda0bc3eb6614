"""`modscope export --format perfetto`, read by Perfetto's protos and by its trace processor."""

import pytest
from export_helpers import BY_HAND, REAL, export, load
from perfetto_readers import READ

pytestmark = pytest.mark.slow  # two readers of each trace
EXACT = 1 << 53  # the trace processor counts in doubles


@pytest.fixture(scope="module")
def traces():
    return {}


@pytest.fixture(params=READ)
def read(request, traces):
    def once(capture):
        key = request.param, capture
        if key not in traces:
            traces[key] = READ[request.param](export(capture, "perfetto"))
        return traces[key]

    return once


@pytest.fixture(params=[*REAL, *BY_HAND])
def capture(request, export_folder):
    return export_folder / f"{request.param}.msc"


def counters_of(snapshot):
    """As the trace has them, without those that say 0."""
    found = {}
    for device, sums in snapshot.totals.items():
        found |= {f"{device} {'held' if word == 'Total' else word}": value for word, value in sums.items()}
        found[f"{device} reserved"] = snapshot.reserved[device]
        found |= {f"{device} {kind}": value for kind, value in snapshot.kinds.get(device, {}).items()}
    return {name: value for name, value in found.items() if value}


def same(found, expected):
    exact = max(expected.values(), default=0) < EXACT
    return found == expected if exact else found == {name: pytest.approx(value) for name, value in expected.items()}


def test_counters_at_the_peaks(capture, read):
    loaded, trace = load(capture), read(capture)
    marks = {mark.name: mark for mark in trace.on("peaks")}
    assert len(marks) == len(loaded.peaks)
    for device, peak in loaded.peaks.items():
        mark = marks[f"peak of {device}" + (" (at least)" if loaded.is_lower_bound else "")]
        assert (mark.args["bytes"], mark.args["moment"], mark.args["step"]) == (peak.bytes, peak.moment, peak.step)
        assert (mark.args["phase"], mark.args["module"]) == (peak.phase, peak.module)
        assert same(trace.at(mark.ts), counters_of(loaded.snapshot("peak", device)))
        assert same({"held": max(value for _, value in trace.counters[f"{device} held"])}, {"held": peak.bytes})


def test_counters_at_the_end_of_each_step(capture, read):
    loaded, trace = load(capture), read(capture)
    steps = [slice for slice in trace.on("steps") if slice.name.startswith("step ")]
    # One that goes on after a loss is begun again there.
    begun = {slice.args["step"]: slice for slice in reversed(steps)}
    numbers = sorted(begun)
    for number in numbers[:: max(1, len(numbers) // 8)]:
        event = next(loaded.events("step", first=0), None) if number == 1 else None
        snapshot = loaded.snapshot(f"step:{number}")
        after = [slice.ts for slice in steps if slice.ts > begun[number].ts and slice.args["step"] != number]
        if after and not snapshot.is_lower_bound:
            assert same(trace.at(min(after) - 1), counters_of(snapshot))
        assert event is None or begun[1].ts // 1000 == round(event.time * 1e6)
    assert set(numbers) >= {event.bytes for event in loaded.events("step")}


def test_counters_at_the_end(capture, read):
    loaded, trace = load(capture), read(capture)
    assert same(trace.at(1 << 63), counters_of(loaded.snapshot(loaded.event_count)))


def test_slices_are_where_each_thread_was(capture, read):
    loaded, trace = load(capture), read(capture)
    paths = loaded._reader.paths
    chains = {}

    def chain(path):
        """The names of the modules around it, outermost first."""
        if path not in chains:
            name, parent, _ = paths[path]
            chains[path] = [*chain(parent), name] if path else []
        return chains[path]

    threads = [track for track in {slice.track for slice in trace.slices} if isinstance(track, int)]
    on = {track: sorted(trace.on(track), key=lambda slice: slice.ts) for track in threads}
    wheres = [raw for raw in loaded._reader.events(1 << 3) if raw[3]]
    for raw in wheres[:: max(1, len(wheres) // 200)]:
        _, _, time, thread, _, _, path, _, phase, *_ = raw
        later = [other[2] for other in wheres if other[3] == thread and other[0] > raw[0]]
        if later and later[0] == time:
            continue  # it was there for no time at all
        ts = time * 1000 + 999
        open_then = [slice for slice in on[thread] if slice.ts <= ts < slice.ts + slice.dur]
        if later:
            assert [slice.name for slice in sorted(open_then, key=lambda slice: slice.depth)] == chain(path)
            assert {slice.category for slice in open_then} <= {phase}


def test_phases_take_as_long_as_in_the_summary(export_folder, read):
    for name in ("mlp", "checkpointed", "transformer", "train"):
        loaded, trace = load(export_folder / f"{name}.msc"), read(export_folder / f"{name}.msc")
        for phase in ("forward", "recompute", "backward", "optimizer"):
            found = sum(slice.dur for slice in trace.on("phase") if slice.name == phase)
            assert found / 1e9 == pytest.approx(loaded.phases[phase].time, abs=1e-3), (name, phase)
        assert {slice.category for slice in trace.on("phase")} == {"phase"}


def test_each_thread_has_its_slices(export_folder, read):
    capture = export_folder / "threads.msc"
    loaded, trace = load(capture), read(capture)
    ran = {raw[3] for raw in loaded._reader.events(1 << 3)}
    assert len(ran) >= 3 and ran <= trace.threads.keys()
    assert all(trace.threads[thread] == f"thread {thread}" and trace.on(thread) for thread in ran)


def test_the_process_is_the_program(export_folder, read):
    assert read(export_folder / "mixed.msc").process == (77, "mixed.py")
    assert read(export_folder / "train.msc").process == (4242, "train.py")


def test_failures_are_marked(capture, read):
    loaded, trace = load(capture), read(capture)
    marks = [slice for slice in trace.slices if slice.name.startswith("out of memory on ")]
    assert len(marks) == loaded.oom_count
    if loaded.last_oom:
        last, args = loaded.last_oom, marks[-1].args
        assert (args["requested"], args["allocated"], args["reserved"]) == (last.bytes, last.allocated, last.reserved)
        assert (args["device"], args["module"], args["phase"]) == (last.device, last.module, last.phase)
        assert marks[-1].ts // 1000 == round(last.time * 1e6)


def test_losses_are_said(capture, read):
    loaded, trace = load(capture), read(capture)
    said = any("at least" in slice.name for slice in trace.on("notes"))
    # What is damaged is known once it was read; what is cut off at the end has nothing after it.
    assert said == (loaded.is_lower_bound and loaded.snapshot(loaded.event_count).is_lower_bound)


def test_optimizer_steps_are_marked(export_folder, read):
    trace = read(export_folder / "mlp.msc")
    assert (
        sum(slice.name == "optimizer step ended" for slice in trace.on("steps"))
        == load(export_folder / "mlp.msc").optimizer_steps
    )


def test_names_come_through_as_they_are(export_folder, read):
    capture = export_folder / "hostile.msc"
    names = {slice.name for slice in read(capture).slices if isinstance(slice.track, int)}
    modules = {module for module, _, _ in load(capture)._reader.paths[2:]}
    assert {name for name in modules if 0 < len(name) < 10_000} <= names
