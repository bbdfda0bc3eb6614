"""Asking cuDNN for plans: libraries that misbehave, answers on disk, and cuDNN itself where it is installed."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from modscope._virtual.rules import convolution, plans
from modscope._virtual.rules.rules import GpuAndTorch, all_rules
from truth_entries import temporaries
from virtual_helpers import needs_interception

import torch

pytestmark = needs_interception

H200, A100 = GpuAndTorch((9, 0), 132), GpuAndTorch((8, 0), 108)
RTX4090, T4 = GpuAndTorch((8, 9), 128), GpuAndTorch((7, 5), 40)
ASKED = plans.Asked(0, 0, 0, (64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56), (1, 1), (1, 1), (1, 1))
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
LIBRARY = next(
    (path for folder in sys.path if (path := pathlib.Path(folder, "nvidia/cudnn/lib/libcudnn.so.9")).is_file()), None
)
needs_cudnn = pytest.mark.skipif(LIBRARY is None, reason="cuDNN is not installed")

# A library with cuDNN's functions. Each version is one way to be: what it answers follows from WORKSPACE.
SOURCE = r"""
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char one;
#ifdef KNOBS /* of tile, depth of a sum, whole sums, rows and columns of a cluster */
static const int64_t values[] = {KNOBS};
static const int kinds[] = {2, 13, 25, 27, 28};
static char knobs[16];
static int made;
#endif
size_t cudnnGetVersion(void) { return VERSION; }
int cudnnBackendCreateDescriptor(int kind, void **descriptor)
{
    *descriptor = &one;
#ifdef KNOBS
    if (kind == 7)
        *descriptor = &knobs[made++ % 16];
#endif
    return 0;
}
int cudnnBackendDestroyDescriptor(void *any) { return 0; }
int cudnnBackendFinalize(void *any) { return 0; }
int cudnnBackendSetAttribute(void *to, int name, int type, int64_t count, const void *values)
{
    if (name == 2702 && REFUSES)
        return 2000;
    if (name == 902 && *(const int64_t *)values == 13) /* tensors of 13 images */
        AT_13;
    return 0;
}
#ifndef LACKS
int cudnnBackendGetAttribute(void *of, int name, int type, int64_t most, int64_t *count, void *values_)
{
    *count = name == 1303 || name == 302 ? 0 : 1;
#ifdef KNOBS
    if (name == 302)
        *count = 5;
    if (name == 600)
        *(int *)values_ = kinds[(char *)of - knobs];
    if (name == 601)
        *(int64_t *)values_ = values[(char *)of - knobs];
#endif
    if (values_ && name == 402)
        *(int64_t *)values_ = WORKSPACE;
    return 0;
}
#endif
int cudnnSetCallback(unsigned mask, void *data, void *function) { return 0; }
"""


@pytest.fixture(autouse=True)
def answers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plans._answers.clear()
    yield
    plans._answers.clear()


@pytest.fixture
def library(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pathlib.Path]:
    def make(name: str = "libcudnn.so.9", **settings: str | int) -> pathlib.Path:
        settings = {"VERSION": 91900, "WORKSPACE": 4096, "REFUSES": 0, "AT_13": ";", **settings}
        (tmp_path / "source.c").write_text(SOURCE)
        options = [f"-D{name}={value}" for name, value in settings.items()]
        subprocess.run(
            ["cc", "-O1", "-w", "-shared", "-fPIC", *options, "-o", tmp_path / name, tmp_path / "source.c"], check=True
        )
        monkeypatch.setenv("MODSCOPE_CUDNN", str(tmp_path / name))
        return tmp_path / name

    return make


def files(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(tmp_path.glob("cache/modscope/*"))


# ---- libraries that misbehave ----


def test_no_library_is_asked_where_the_variable_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSCOPE_CUDNN", "0")
    assert plans.ask(A100, ASKED) is None and plans.note() == "" and plans.version(A100) == 0


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"VERSION": 90701}, "it is cuDNN 9.7, and modscope knows how to ask 9.8 and later versions of 9"),
        ({"VERSION": 8907}, "it is cuDNN 8.9, and modscope knows how to ask 9.8 and later versions of 9"),
        ({"VERSION": 100000}, "it is cuDNN 10.0, and modscope knows how to ask 9.8 and later versions of 9"),
        ({"LACKS": 1}, "it has no cudnnBackendGetAttribute"),
        ({"REFUSES": 1}, "it does not know such a GPU"),
    ],
)
def test_library_that_cannot_be_asked_says_why(
    library: Callable[..., pathlib.Path], settings: dict[str, int], why: str
) -> None:
    library(**settings)
    assert plans.ask(A100, ASKED) is None and plans.ask(A100, ASKED._replace(what=1)) is None
    assert plans.note() == f"Workspaces of convolutions: by measurements of an H200. cuDNN was not asked: {why}."


def test_damaged_library_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcudnn.so.9").write_bytes(b"\x7fELF" + bytes(100))
    monkeypatch.setenv("MODSCOPE_CUDNN", str(tmp_path / "libcudnn.so.9"))
    assert plans.ask(A100, ASKED) is None
    assert "it cannot be loaded: " in plans.note()
    monkeypatch.setenv("MODSCOPE_CUDNN", str(tmp_path / "none.so"))
    plans._answers.clear()
    assert plans.ask(A100, ASKED) is None
    assert "none.so: cannot open shared object file" in plans.note()


@needs_compiler
@pytest.mark.parametrize("way", ["abort()", "raise(SIGFPE)", "_exit(0)"])
def test_library_that_ends_its_process_leaves_the_program_and_the_other_answers(
    library: Callable[..., pathlib.Path], way: str
) -> None:
    library(AT_13=way)
    bad = ASKED._replace(input=(13, 64, 56, 56), output=(13, 64, 56, 56))
    assert plans.ask(A100, bad) is None
    assert "the process that asks it ended" in plans.note()
    assert plans.ask(A100, ASKED) == plans.LibraryPlan(plans.PLANNED, plans.ask(A100, ASKED).engine, 4096)  # type: ignore[union-attr]
    for _ in range(5):
        assert plans.ask(A100, bad) is None  # it is not asked again
    assert plans._answers[A100]._starts == 2
    server = plans._answers[A100]._server
    assert server is None or f"PPid:\t{os.getpid()}\n" not in _status(server._pid)  # no child of the program


@needs_compiler
def test_library_that_hangs_is_given_up(library: Callable[..., pathlib.Path], monkeypatch: pytest.MonkeyPatch) -> None:
    library(AT_13="sleep(1000)")
    monkeypatch.setattr(plans, "_MOST_SECONDS", 2.0)
    assert plans.ask(A100, ASKED) is not None
    pid = plans._answers[A100]._server._pid  # type: ignore[union-attr]
    assert plans.ask(A100, ASKED._replace(input=(13, 64, 56, 56))) is None
    assert plans._answers[A100].refusal == "it did not answer within 2 s"
    until = time.monotonic() + 20
    while (status := _status(pid)) and "State:\tZ" not in status and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until  # it was ended
    assert plans.ask(A100, ASKED._replace(what=2)) is not None


def _status(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


# ---- answers on disk ----


@needs_compiler
def test_answers_are_kept_by_library_and_gpu(library: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    library()
    assert plans.ask(A100, ASKED).bytes == 4096  # type: ignore[union-attr]
    plans._answers.clear()
    assert plans.ask(A100, ASKED).bytes == 4096  # type: ignore[union-attr]
    assert plans._answers[A100]._starts == 0 and plans.version(A100) == 91900  # nothing was started for that
    plans.ask(T4, ASKED)
    assert [file.name.rsplit("-", 2)[1:] for file in files(tmp_path)] == [["sm75", "40.txt"], ["sm80", "108.txt"]]
    library(WORKSPACE=8192, VERSION=92600)  # another library in its place
    plans._answers.clear()
    assert plans.ask(A100, ASKED).bytes == 8192 and plans.version(A100) == 92600  # type: ignore[union-attr]


@needs_compiler
@pytest.mark.parametrize(
    "text", ["", "cuDNN 919", "\0\xff" * 50, "cuDNN 91900\n1,2=0 1 77\n{key}=0 1\n{key}=9 1 77\n{ke"]
)
def test_damaged_answers_are_asked_again(
    library: Callable[..., pathlib.Path], tmp_path: pathlib.Path, text: str
) -> None:
    library()
    plans.ask(A100, ASKED)
    key = ",".join(map(str, ASKED.numbers()))
    files(tmp_path)[0].write_text(text.replace("{key}", key))
    plans._answers.clear()
    assert plans.ask(A100, ASKED).bytes == 4096  # type: ignore[union-attr]


@needs_compiler
def test_folder_that_cannot_be_written_is_no_obstacle(
    library: Callable[..., pathlib.Path], tmp_path: pathlib.Path
) -> None:
    library()
    (tmp_path / "cache").write_text("a file")
    assert plans.ask(A100, ASKED).bytes == 4096  # type: ignore[union-attr]


@needs_compiler
def test_two_processes_may_fill_it_at_once(library: Callable[..., pathlib.Path], tmp_path: pathlib.Path) -> None:
    library()
    asked = [ASKED._replace(padding=(number, 1)) for number in range(60)]
    processes = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            found = [plans.ask(A100, one) for one in asked]
            os._exit(0 if all(plan and plan.bytes == 4096 for plan in found) else 1)
        processes.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in processes] == [0, 0]
    version, known = plans._read_cache(files(tmp_path)[0])
    assert version == 91900 and len(known) == 60 and {plan.bytes for plan in known.values()} == {4096}


# ---- Hopper's kernels ----

# Answers of cuDNN 9.19 for the description of an H200, and on one, of the 94 % that are found to the byte: pass, type, channels last, images, channels before and
# after, height, width, kernel, stride, padding; knobs; bytes without and with the GPU.
ON_HOPPER = [
    ((2, 0, 1, 64, 64, 64, 56, 56, 3, 1, 1), "5, 0, 0, 1, 1", 295107, 2065047),
    ((2, 0, 0, 4, 80, 512, 8, 8, 5, 1, 2), "1, 0, 0, 1, 2", 4702355, 4702224),
    ((2, 1, 1, 8, 64, 640, 160, 120, 5, 1, 2), "1, 1, 0, 2, 4", 524483, 3146079),
    ((0, 0, 0, 32, 384, 192, 32, 32, 5, 1, 2), "0, 0, 0, 8, 1", 82870419, 89162291),
    ((1, 0, 0, 3, 112, 1280, 160, 120, 5, 1, 2), "0, 0, 0, 4, 1", 336101603, 335052947),
    ((1, 2, 0, 64, 64, 64, 7, 5, 3, 1, 1), "5, 1, 1, 4, 1", 647315, 647184),
    ((2, 1, 0, 2, 64, 768, 96, 96, 3, 1, 1), "1, 1, 0, 1, 3", 31555731, 35094919),
    ((2, 2, 0, 64, 192, 40, 128, 128, 3, 1, 1), "7, 1, 0, 1, 6", 486677520, 489627231),
    ((1, 0, 0, 4, 448, 160, 160, 160, 3, 1, 1), "3, 0, 0, 1, 2", 251617427, 268395123),
    ((0, 0, 1, 96, 64, 384, 96, 72, 3, 1, 1), "0, 0, 0, 1, 2", 131, 1573075),
]


@needs_compiler
@pytest.mark.parametrize(("shape", "knobs", "described", "real"), ON_HOPPER)
def test_partial_sums_of_hopper_are_those_of_its_multiprocessors(
    library: Callable[..., pathlib.Path], shape: tuple[int, ...], knobs: str, described: int, real: int
) -> None:
    library(KNOBS=knobs, WORKSPACE=described)
    what, dtype, last, images, before, after, height, width, kernel, stride, padding = shape
    sizes = [(size + 2 * padding - kernel) // stride + 1 for size in (height, width)]
    asked = plans.Asked(
        what, dtype, last, (images, before, height, width), (after, before, kernel, kernel), (images, after, *sizes),
        (padding, padding), (stride, stride), (1, 1),
    )  # fmt: skip
    assert plans.ask(H200, asked).bytes == real  # type: ignore[union-attr]
    assert plans.ask(A100, asked).bytes == described  # type: ignore[union-attr]


@needs_compiler
def test_knobs_that_are_not_known_leave_the_answer(library: Callable[..., pathlib.Path]) -> None:
    for knobs in ("99, 0, 0, 1, 1", "0, 9, 0, 1, 1", "0, 0, 0, 7, 7", "-1, 0, 0, 1, 1", "17, 0, 0, 1, 1"):
        library(KNOBS=knobs, WORKSPACE=131)
        plans._answers.clear()
        assert plans.ask(H200, ASKED).bytes == 131  # type: ignore[union-attr]


# ---- what rules make of it ----


@needs_compiler
def test_convolution_takes_what_the_library_says(library: Callable[..., pathlib.Path]) -> None:
    library(WORKSPACE=12345)
    forward = all_rules()["aten.convolution.default"].function
    x, weight = torch.empty(2, 3, 9, 9, device="meta"), torch.empty(5, 3, 3, 3, device="meta")
    args = (x, weight, None, [1], [1], [1], False, [0], 1)
    specs = convolution.INFERENCES[torch.ops.aten.convolution.default](args, {})
    assert temporaries(forward(A100, args, {}, specs)) == [12800]  # as the allocator rounds it
    assert plans.note() == "Workspaces of convolutions: as cuDNN 9.19.0 plans them for this GPU."


def test_a_convolution_is_asked_for_as_torch_does() -> None:
    weight = torch.empty(8, 4, 3, device="meta", dtype=torch.bfloat16)
    asked = convolution._asked(0, (2, 8, 50), weight, (2, 4, 101), ([2], [0], [1]), True, False)
    # one dimension becomes two; a transposed convolution is the gradient of an ordinary one's input
    assert asked == plans.Asked(1, 1, 0, (2, 4, 1, 101), (8, 4, 1, 3), (2, 8, 1, 50), (0, 0), (1, 2), (1, 1))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        assert convolution._asked(0, (2, 8, 50), weight, (2, 4, 101), ([2], [0], [1]), False, True).flags == 7


@pytest.mark.parametrize(
    ("call", "bytes"),
    [
        (convolution.Convolution(0, 0, 0, 2, 1, 32, 256, 64, 3136, 3136, 1, 1, 1), 0),
        (convolution.Convolution(2, 0, 0, 2, 1, 32, 256, 64, 3136, 3136, 1, 1, 1), 32 * 256 * 64 * 4),
        (convolution.Convolution(2, 0, 1, 2, 1, 32, 128, 128, 784, 784, 1, 1, 1), 66 * 128 * 128 * 4 + 256),
        (convolution.Convolution(2, 0, 1, 2, 1, 32, 2048, 512, 49, 49, 1, 1, 1), 16 * (1 << 20) + 256),
    ],
)
def test_products_of_matrices_take_what_was_measured(call: convolution.Convolution, bytes: int) -> None:
    """Measured on an H200, but for the last, where cuBLAS takes less than it may."""
    assert convolution._of_product(call, 132).bytes == bytes


# ---- cuDNN itself ----


@needs_cudnn
def test_cudnn_answers_for_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODSCOPE_CUDNN", str(LIBRARY))
    found = [plans.ask(gpu, ASKED) for gpu in (H200, A100, RTX4090, T4)]
    assert all(plan is not None and plan.result == plans.PLANNED for plan in found)
    # on an RTX 4090 and an A100 the tensors are copied in half the size of an H200, on a T4 not at all
    assert found[1].bytes == found[2].bytes == 51527696 and found[3].bytes < 1 << 20  # type: ignore[union-attr]
    if plans.version(H200) in convolution._LIKE_MEASURED:
        assert found[0].bytes == 102908051  # type: ignore[union-attr]
    pointwise = ASKED._replace(weight=(64, 64, 1, 1), padding=(0, 0))
    assert plans.ask(H200, pointwise).result == plans.PRODUCT  # type: ignore[union-attr]
    double = plans.ask(A100, ASKED._replace(dtype=3))
    assert double is not None and double.result == plans.PLANNED
    solid = plans.Asked(2, 2, 1, (2, 16, 8, 8, 8), (32, 16, 3, 3, 3), (2, 32, 8, 8, 8), (1, 1, 1), (1, 1, 1), (1, 1, 1))
    assert plans.ask(A100, solid).result == plans.PLANNED  # type: ignore[union-attr]


@needs_cudnn
@pytest.mark.slow
def test_answers_agree_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the convolutions of 3 by 3 that were measured on an H200 (32 images, float32)."""
    monkeypatch.setenv("MODSCOPE_CUDNN", str(LIBRARY))
    if plans.version(H200) not in convolution._LIKE_MEASURED:
        pytest.skip("this version of cuDNN chooses other kernels")
    right = near = count = 0
    for family in convolution._measured().values():
        for call, _, measured in family:
            side = round(call.input_area**0.5)
            if call[3:6] != (2, 1, 32) or call.kernel_area != 9 or call.stride != 1 or call.dilation != 1:
                continue
            if call.dtype or call.input_area != call.output_area or side * side != call.input_area:
                continue
            image = (side, side)
            asked = plans.Asked(
                call.what, 0, call.channels_last, (32, call.inputs, *image), (call.outputs, call.inputs, 3, 3),
                (32, call.outputs, *image), (1, 1), (1, 1), (1, 1),
            )  # fmt: skip
            planned, _ = convolution._planned(H200, call, asked)
            assert planned is not None
            count, right = count + 1, right + (planned.bytes == measured)
            near += abs(planned.bytes - measured) <= planned.more
    assert count > 100 and right > 0.9 * count and near > 0.97 * count
