"""What captures of a real GPU note: requests, streams, and times of calls. CUDA is two small libraries here, which have
the functions of torch's allocator and of the driver that modscope uses, and a clock that the test sets."""

import json
import pathlib
import shutil
import subprocess

import pytest
from helpers import needs_interception, run_python

import torch

pytestmark = [
    needs_interception,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: test_record_cuda.py tests it"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]

ALLOCATOR = r"""
#include <stddef.h>
#include <stdint.h>
typedef struct { int8_t type, index; } device;
typedef struct { int8_t type, index; int64_t id; } stream;
void report(void *, int64_t, size_t, size_t, device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
void report_oom(int64_t, size_t, size_t, device) __asm__("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");
static size_t reserved, at = 0x7f0000000000;
int64_t current = 0;
static void *take(size_t n)
{
    size_t size = n < 1 << 20 ? (n + 511) / 512 * 512 : (n + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    void *block = (void *)at;
    at += size, reserved += size;
    report(block, (int64_t)size, reserved, reserved, (device){1, 0});
    return block;
}
static void *allocate(void **result, void *self, size_t n)
{
    if (n > (size_t)1 << 40)
        report_oom((int64_t)n, 0, 0, (device){1, 0});
    else
        *result = take(n);
    return result;
}
static void nothing(void) { }
static void *table[8] = {nothing, nothing, allocate, nothing, nothing, nothing, nothing, nothing};
static struct { void **table; } object = {table};
void *allocator __asm__("_ZN3c104cuda20CUDACachingAllocator9allocatorE") = &object;
stream get_stream(int8_t) __asm__("_ZN3c104cuda20getCurrentCUDAStreamEa");
stream get_stream(int8_t index) { return (stream){1, index < 0 ? 0 : index, current}; }
void *handle_of(const stream *) __asm__("_ZNK3c104cuda10CUDAStream6streamEv");
void *handle_of(const stream *s) { return (void *)(s->id * 16); }
void *request(size_t n) /* as torch calls it */
{
    void *result = NULL;
    struct { void **table; } *of = allocator;
    ((void *(*)(void **, void *, size_t))of->table[2])(&result, of, n);
    return result;
}
void *request_raw(size_t n) { return take(n); }
void release(void *block, size_t size) { report(block, -(int64_t)size, reserved, reserved, (device){1, 0}); }
"""

DRIVER = r"""
#include <stdlib.h>
typedef struct { double time; int recorded; } event;
double now, reached; /* milliseconds: of the program's commands on the GPU, and how far the GPU is */
int capturing, failing, records, contexts = 1;
static int mode;
int cuCtxGetCurrent(void **context) { *context = contexts ? &mode : 0; return 0; }
int cuEventCreate(event **e, unsigned flags) { *e = calloc(1, sizeof **e); return 0; }
int cuEventRecord(event *e, void *stream) { e->time = now; e->recorded = 1; records++; return capturing ? 901 : 0; }
int cuEventQuery(event *e) { return failing ? 700 : mode != 2 ? 900 : e->time <= reached ? 0 : 600; }
int cuEventElapsedTime(float *ms, event *a, event *b) { *ms = b->time - a->time; return 0; }
int cuEventDestroy_v2(event *e) { free(e); return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = capturing; return 0; }
int cuThreadExchangeStreamCaptureMode(int *m) { int before = mode; mode = *m; *m = before; return 0; }
"""

BEGIN = """
import ctypes, json, sys
gpu = ctypes.CDLL({allocator!r})  # before torch, whose own library of this name, if it has one, is the second one then
driver = ctypes.CDLL({driver!r})
import torch
from torch import nn
import modscope
from modscope import _capture, _native, load
from modscope._read.types import calls_of
gpu.request.restype = gpu.request_raw.restype = ctypes.c_void_p
gpu.request.argtypes = gpu.request_raw.argtypes = [ctypes.c_size_t]
gpu.release.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
now, reached = (ctypes.c_double.in_dll(driver, name) for name in ("now", "reached"))
stream = ctypes.c_int64.in_dll(gpu, "current")

class Part(nn.Module):
    def __init__(self, milliseconds):
        super().__init__()
        self.milliseconds = milliseconds
        self.weight = nn.Parameter(torch.ones(1))
    def forward(self, x):
        now.value += self.milliseconds
        return x * self.weight

class Last(nn.Module):  # autograd saves nothing in it
    def forward(self, x):
        now.value += 4
        return x + 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Part(2), Part(3), Last()
    def forward(self, x):
        now.value += 1
        return self.c(self.b(self.a(x)))

def notes(file):
    with open(file, "rb") as opened:
        raw = _capture.Reader(opened.fileno()).notes()
    return [(kind, value) for _, kind, _, value in raw if kind in ("requested", "stream")]

def times(file):
    capture = load(file)
    found = {{}}
    for call in calls_of(capture.whole_stream(), 0):
        found.setdefault(capture.module_names[call.path], []).append(call.gpu_nanoseconds)
    return found

def train(steps, net=None):
    net = net or Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(8)).sum().backward()  # saved blocks of at most 16 bytes would count as Python numbers
        optimizer.step()
        reached.value = now.value
"""


PROGRAM = """
file, found = sys.argv[1], {{}}
records, capturing, contexts, failing = (ctypes.c_int.in_dll(driver, name) for name in ("records", "capturing", "contexts", "failing"))

with modscope.record(file, overwrite=True):
    gpu.request(12345), gpu.request(3 * 2**20 + 7)
    stream.value = 7
    gpu.request(1000)
    gpu.request(2**50)  # fails
    gpu.request_raw(600)  # what was requested is not known
    stream.value = 0
    gpu.request(512)
found["requests"] = [_native.cuda_requests(), notes(file)]
gpu.request(99)  # nothing is recorded, so nothing is intercepted
found["not intercepted"] = _native.cuda_requests()

with modscope.record(file, overwrite=True):
    gpu.request(512)
    train(3)
found["times"] = [times(file), _native.cuda_times()]
found["of modules"] = load(file).gpu_times()
found["of a plan"] = [load(file).stream.has_gpu_times, calls_of(load(file).stream, 0)[0].recompute_nanoseconds // 1000]

records.value = 0
with modscope.record(file, overwrite=True):
    gpu.request(512)
    train(50)
of_root = times(file)["Net"]
found["many steps"] = [records.value, len(of_root), min(of_root)]

with modscope.record(file, overwrite=True):
    gpu.request(512)
    train(2)
    net = Net()
    for step in range(2):
        net(torch.ones(1)).sum().backward()  # and the GPU does nothing more
found["behind"] = times(file)["Net"]
reached.value = now.value

records.value = 0
with modscope.record(file, overwrite=True):
    gpu.request(512)
    capturing.value = 1
    train(3)
    capturing.value = 0
    contexts.value = 0
    train(14)
    contexts.value = 1
found["untouched"] = [_native.cuda_times()[0], records.value]

with modscope.record(file, overwrite=True):
    gpu.request(512)
    train(2)
    failing.value = 1
    train(2)
    records.value = 0
    train(20)
found["error"] = [_native.cuda_times()[0], records.value]
json.dump(found, sys.stdout)
"""


def build(folder: pathlib.Path, name: str, text: str, *options: str) -> str:
    (folder / "source.c").write_text(text)
    subprocess.run(
        ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", folder / name, folder / "source.c", *options], check=True
    )
    return str(folder / name)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    allocator = build(
        folder, "libc10_cuda.so", ALLOCATOR, f"-L{libraries}", "-lc10", f"-Wl,-rpath,{libraries}", "-Wl,-z,relro"
    )
    driver = build(folder, "libcuda.so.1", DRIVER)

    ran = run_python(
        (BEGIN + PROGRAM).format(allocator=allocator, driver=driver).replace("sys.argv[1]", repr(str(folder / "x.msc")))
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_capture_has_requests_and_streams(found):
    (why, agreed, disagreed), notes = found["requests"]
    assert (why, agreed, disagreed) == (None, 4, 0)
    assert notes == [
        ["requested", 12345],
        ["requested", 3 * 2**20 + 7],
        ["requested", 1000],
        ["stream", 7],
        ["stream", 0],
    ]


def test_requests_are_not_intercepted_when_nothing_is_recorded(found):
    assert found["not intercepted"] == [None, 4, 0]


def test_a_capture_has_the_times_of_calls_on_the_gpu(found):
    times, (why, timed, missed, pairs) = found["times"]
    assert why is None and (timed, missed, pairs) == (8, 0, 4)  # of two steps; the events are used again
    assert times == {"Net": [10000000] * 3, "Net.a": [2000000] * 3, "Net.b": [3000000] * 3, "Net.c": [4000000] * 3}


def test_modules_and_plans_have_the_times_of_the_gpu(found):
    assert found["of modules"] == {"Net": 0.01, "Net.a": 0.002, "Net.b": 0.003, "Net.c": 0.004}
    assert found["of a plan"] == [True, 6000]  # microseconds: nothing in Net.c is needed for backward


def test_few_steps_of_many_are_timed(found):
    assert found["many steps"] == [2 * 4 * 6, 50, 10000000]  # steps 2, 3, 4, 17, 33 and 49


def test_a_gpu_that_is_behind_is_not_waited_for(found):
    assert found["behind"] == [10000000] * 4


def test_a_graph_that_is_captured_and_a_thread_without_cuda_are_left_alone(found):
    assert found["untouched"] == [None, 0]


def test_after_an_error_of_the_driver_nothing_is_timed(found):
    assert found["error"] == ["the driver reported an error", 0]
