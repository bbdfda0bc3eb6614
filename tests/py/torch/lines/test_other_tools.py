"""Lines while debuggers and coverage watch the program, with frames of C between those of Python, and in files of all
encodings. Every stack is compared with traceback.extract_stack()."""

import ctypes
import functools
import importlib.util
import io
import itertools
import json
import operator
import os
import pdb
import re
import signal
import sys
import threading
import traceback
import weakref
from typing import Any

import modscope
import pytest
from helpers import INTERCEPTION
from line_helpers import need_extra
from modscope._read.lines import Frame, Place
from modscope._trackers import mem_tracker

import torch

pytestmark = pytest.mark.skipif(not INTERCEPTION, reason="without interception there are no lines")


def many_forms(probe) -> None:
    """Code in which lines are easily wrong."""

    def generate():
        for _ in range(2):
            yield probe()

    with_default = (lambda value=None: probe(value))()
    sums = [probe() + probe(
        1
    ) for _ in range(2)]  # fmt: skip
    try:
        assert not probe(), "always"
    except AssertionError:
        probe()
    finally:
        probe()
    assert with_default and sums and list(generate())
    while probe():
        break


# ---- tools that trace ----


@pytest.mark.parametrize("command", ["step", "next", "until"])
def test_pdb_that_steps_through_the_program(probe, command):
    before = sys.gettrace()
    shown = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(f"{command}\n" * 60 + "continue\n"), stdout=shown, nosigint=True, readrc=False)
    try:
        debugger.runcall(many_forms, probe)
    finally:
        sys.settrace(before)
    assert shown.getvalue().count("(Pdb)") > 5
    assert probe.probes > 5


def test_pdb_that_jumps_and_evaluates(probe):
    def jumped() -> None:
        probe()
        probe()
        probe()

    before, first = sys.gettrace(), jumped.__code__.co_firstlineno
    commands = f"next\nnext\np probe()\njump {first + 1}\nnext\n!probe()\ncontinue\n"
    try:
        pdb.Pdb(stdin=io.StringIO(commands), stdout=io.StringIO(), nosigint=True, readrc=False).runcall(jumped)
    finally:
        sys.settrace(before)
    assert probe.probes == 7  # one is evaluated, one executed, and two lines run twice


def test_pdb_after_an_exception(probe):
    def fail() -> None:
        probe()
        raise KeyError

    try:
        fail()
    except KeyError as error:
        debugger = pdb.Pdb(stdin=io.StringIO("p probe()\nup\np probe()\nquit\n"), stdout=io.StringIO(), readrc=False)
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
    assert probe.probes == 3


@pytest.fixture
def coverage():
    need_extra("coverage")
    return importlib.import_module("coverage")


needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")


@pytest.mark.parametrize("core", ["pytrace", "ctrace", pytest.param("sysmon", marks=needs_monitoring)])
def test_coverage_is_active(coverage, probe, core):
    before = sys.gettrace()
    measured = coverage.Coverage(data_file=None, config_file=False, branch=core == "ctrace", include=[__file__])
    measured.set_option("run:core", core)
    measured.start()
    try:
        many_forms(probe)
        thread = threading.Thread(target=many_forms, args=(probe,))
        thread.start()
        thread.join()
    finally:
        measured.stop()
        sys.settrace(before)
    lines = measured.get_data().lines(__file__)
    assert lines and many_forms.__code__.co_firstlineno + 8 in lines  # coverage was there
    assert probe.probes > 15


def test_a_profiler_is_active(probe):
    import cProfile

    profile = cProfile.Profile()
    profile.runcall(many_forms, probe)
    sys.setprofile(lambda frame, event, argument: None)
    try:
        many_forms(probe)
    finally:
        sys.setprofile(None)


# ---- frames of C in between ----


class Object:
    """Its methods are called by C."""

    def __init__(self, probe: Any) -> None:
        self.probe = probe

    def __lt__(self, other: object) -> bool:
        return bool(self.probe())

    def __getattr__(self, name: str) -> int:
        return self.probe()  # type: ignore[no-any-return]

    def __call__(self, *ignored: Any) -> int:
        return self.probe()  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return self.probe()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return str(self.probe())

    def __del__(self) -> None:
        self.probe()


def test_functions_that_c_calls(probe):
    given = Object(probe)
    functools.partial(functools.partial(probe, 1), 2)()
    functools.reduce(lambda one, other: probe(), range(3))
    functools.lru_cache(lambda value: probe())(1)
    list(map(lambda value: probe(), range(2)))  # noqa: C417
    list(filter(lambda value: probe(), range(2)))
    list(itertools.starmap(lambda one, other: probe(), [(1, 2)]))
    list(itertools.groupby([1, 2], lambda value: probe()))
    sorted([2, 1], key=lambda value: probe())
    sorted([given, given])
    max([1, 2], key=functools.cmp_to_key(lambda one, other: probe()))
    operator.methodcaller("__call__")(given)
    operator.attrgetter("anything")(given)
    re.sub("a", lambda match: str(probe()), "aa")
    json.loads("{}", object_hook=lambda value: probe())
    assert {given: 1} and f"{given!r}" and given.missing and type("Made", (), {"f": property(probe)})().f
    next(iter(lambda: probe(), 2))
    weakref.ref(Temporary(), lambda reference: probe())
    del given
    assert probe.probes > 25


class Temporary:
    pass


def test_a_callback_of_ctypes(probe):
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    values = (ctypes.c_int * 4)(4, 3, 2, 1)
    qsort = ctypes.CDLL(None).qsort
    qsort(values, len(values), ctypes.sizeof(ctypes.c_int), compare(lambda one, other: probe()))
    assert probe.probes >= 3


def test_a_signals_handler(probe):
    before = signal.signal(signal.SIGUSR1, lambda number, frame: probe() and None)
    try:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert probe.probes == 3


def test_functions_that_torch_calls(probe):
    from torch.utils.checkpoint import checkpoint

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            probe()
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            probe()
            return grad * 2

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            probe()
            return Custom.apply(x).exp()  # type: ignore[no-any-return]

    net, x = Net(), torch.ones(300, requires_grad=True)
    net.register_forward_pre_hook(lambda *ignored: probe() and None)
    net.register_forward_hook(lambda *ignored: probe() and None)
    y = checkpoint(net, x, use_reentrant=False)
    y.register_hook(lambda grad: probe() and None)
    probe.in_hook = True
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: probe() and tensor, lambda tensor: probe() and tensor):
        (y * y).sum().backward()
    assert probe.probes > 8


# ---- files ----

SOURCE = """\
import torch
grüße = "é è ü"


def größe(probe):
    a = "ä"; kept = torch.relu(torch.zeros(300)); probe(kept)
    return ("日本" if probe is None else "ö", probe(), torch.zeros(301) + kept[:1].sum())[1:]
"""


def encoded(name: str) -> bytes:
    source = SOURCE.replace("日本", "ß") if name.startswith("latin") else SOURCE
    if name == "latin-1":
        return b"# -*- coding: latin-1 -*-\n" + source.encode("latin-1")
    if name == "latin-1 vim":
        return b"#!/usr/bin/python\n# vim: set fileencoding=iso-8859-1 :\n" + source.encode("latin-1")
    if name == "gb18030":
        return b"# coding: gb18030\n" + source.encode("gb18030")
    if name == "BOM":
        return b"\xef\xbb\xbf" + source.encode()
    if name == "CRLF":
        return source.replace("\n", "\r\n").encode()
    if name == "form feed":
        return source.replace("\n\n", "\n\f\n").encode()
    return source.encode()


@pytest.mark.parametrize(
    "name", ["utf-8 größe 模型😀", "latin-1", "latin-1 vim", "gb18030", "BOM", "CRLF", "form feed"]
)
def test_files_of_all_names_and_encodings(tmp_path, name):
    file = tmp_path / "ordner ü" / f"{name}.py"
    file.parent.mkdir()
    file.write_bytes(encoded(name))
    spec = importlib.util.spec_from_file_location("made", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with modscope.MemTracker(stacks=4) as tracker:
        ledger = mem_tracker.ledger_of(tracker)
        found = []

        def probe(*tensors: torch.Tensor) -> int:
            line = traceback.extract_stack()[-2].lineno
            found.extend((line, ledger.stack(tensor.data_ptr())[0]) for tensor in tensors)
            return 1

        _, last = module.größe(probe)
        found.append((found[0][0] + 1, ledger.stack(last.data_ptr())[0]))
    assert [frame[2] for _, frame in found] == [line for line, _ in found]
    places = [Place((Frame(raw[0], raw[1], *raw[2:]),), None, None) for _, raw in found]
    assert {(place.file, place.function) for place in places} == {(str(file), "größe")}
    assert [place.operator for place in places] == ["torch.relu", "add"]
    assert places[0].source == 'a = "ä"; kept = torch.relu(torch.zeros(300)); probe(kept)'


@pytest.mark.parametrize("name", ["/no/such/ü.py", "<string>", "", "a\nb.py", "C:\\x.py", "relative.py", "x" * 3000])
def test_files_that_do_not_exist(probe, name):
    names: dict[str, Any] = {"probe": probe}
    exec(compile("\n\ndef made():\n    return [probe()\n        for _ in range(2)]\nmade()\n", name, "exec"), names)
    assert eval(compile("\n(\nprobe())", name, "eval"), names)


@pytest.mark.parametrize("name", ["\udcff.py", "x" * 5000, "a\x1b[2J.py"])
def test_names_that_cannot_be_kept_as_they_are_keep_their_lines(name):
    with modscope.MemTracker(stacks=4) as tracker:
        names: dict[str, Any] = {"torch": torch}
        exec(compile("\n\nkept = torch.zeros(300)", name, "exec"), names)
        file, function, line, *_ = mem_tracker.ledger_of(tracker).stack(names["kept"].data_ptr())[0]
    assert (function, line) == ("<module>", 3) and file.encode() and len(file) <= 4096
