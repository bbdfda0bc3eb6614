"""Which line makes each block: what C needs to read the threads' Python frames (src/torch/lines/block_stacks.c).

``test`` verifies at start that C reads the frames as ``traceback`` does; ``keep`` says how many frames are kept.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from modscope import _native
from modscope._torch.probes import CloneFunction, make_leaf, undisturbed

MOST = 64
DEFAULT = 1

_usable = False


def checked(stacks: int) -> int:
    """The number of frames as an int from 0 to 64, else an error that says so."""
    if isinstance(stacks, bool) or not isinstance(stacks, int) or not 0 <= stacks <= MOST:
        raise ValueError(f"stacks is how many frames are kept for each block, 0 to {MOST}; not {stacks!r}")
    return stacks


def keep(depth: int) -> None:
    """Keep so many frames for each block from now on; 0 keeps none."""
    _native.set_stack_depth(depth if _usable else 0)


# ---- whose files they are ----


def _folder(path: str | None) -> list[str]:
    """The folder as file names have it, and as it is without symbolic links."""
    return [] if not path else [os.path.join(form, "") for form in {os.path.abspath(path), os.path.realpath(path)}]


def _set_folders() -> None:
    paths = sysconfig.get_paths()
    installed = [*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"]]
    installed += [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    libraries = [form for path in installed for form in _folder(path)]
    torchs, ours = _folder(os.path.dirname(torch.__file__)), _folder(os.path.dirname(os.path.dirname(__file__)))
    # The standard library's folder usually contains site-packages: an installed library is not the standard library.
    standard = [form for path in (paths["stdlib"], paths["platstdlib"]) for form in _folder(path)]
    encoded = [[os.fsencode(path) for path in dict.fromkeys(group)] for group in (libraries + standard, torchs, ours)]
    _native.set_stack_folders(*encoded)


# ---- verification ----

_FrameLine = tuple[str, str, int]


def frames_by_traceback(depth: int = 1) -> list[_FrameLine]:
    """File, function and line of the frames around the one that is ``depth`` above this one, innermost first."""
    frames = [(frame, line) for frame, line in traceback.walk_stack(sys._getframe(depth))]
    return [(frame.f_code.co_filename, frame.f_code.co_qualname, line) for frame, line in frames]


def _compare() -> str | None:
    """Say what C reads otherwise than Python; None if they agree."""
    read, expected = _native.read_frames(), frames_by_traceback()  # both in this line
    for (file, function, line, *_), want in zip(read, expected, strict=False):
        if (file, function, line) != want:
            return f"{want[1]} in line {want[2]} of {want[0]} was read as {function} in line {line} of {file}"
    return None if len(read) == len(expected) else f"{len(expected)} frames were read as {len(read)}"


def _generate() -> Iterator[str | None]:
    yield _compare()
    yield (lambda: _compare())()


def _recurse(depth: int, then: Callable[[], str | None]) -> str | None:
    return _recurse(depth - 1, then) if depth else then()


def _handle() -> str | None:
    try:
        raise KeyError
    except KeyError:
        return _compare()


def _freed(number: int) -> str | None:
    """Code that is freed afterwards: its address is used again by the next."""
    names: dict[str, Any] = {"compare": _compare}
    exec(compile("\n" * number + "def made():\n    return compare()\n", f"<modscope {number}>", "exec"), names)
    wrong: str | None = names["made"]()
    return wrong


def _run_tests() -> str | None:
    found = [_compare(), *_generate(), *[_compare() for _ in range(2)], _recurse(20, _compare), _handle()]
    found += [_freed(number) for number in range(5)]
    return next((wrong for wrong in found if wrong), None)


def _test_in_thread() -> str | None:
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(_run_tests()))
    thread.start()
    thread.join()
    return found[0] if found else "a thread could not be started"


def _make_block(ledger: _native.Ledger) -> str | None:
    """Make a block in code that counts as the program's, and compare its line."""
    names: dict[str, Any] = {"torch": torch}
    source = "def make():\n    return torch.empty(12345, device='cpu', dtype=torch.uint8)\n"
    exec(compile(source, "<modscope makes a block>", "exec"), names)
    block = names["make"]()
    stack = ledger.stack(block.data_ptr())
    expected = ("<modscope makes a block>", "make", 2)
    return None if stack and stack[0][:3] == expected else f"a block made by {expected} has the stack {stack[:1]}"


def test_forward() -> str | None:
    """Create nodes, and compare the lines that created them. Returns None, or what is wrong. Where it fails, what
    backward allocates has no line of the forward."""
    wrong = _native.find_number_slots() if _usable else "Python lines cannot be read"
    if wrong is None:
        _native.set_created_interception(True)
        try:
            _native.set_stack_depth(MOST)
            with undisturbed():
                wrong = _create_nodes()
        finally:
            _native.set_stack_depth(0)
            if wrong is None and _native.created_intercepted():
                wrong = "the original pointer was not restored after the test"
            _native.set_created_interception(wrong is None)
    return wrong


def _create_nodes() -> str | None:
    """Create nodes in code that counts as the program's, one of them a custom function's, and compare their lines."""
    names: dict[str, Any] = {"apply": CloneFunction.apply}
    source = "def create(x):\n    y = x * 2\n    z = apply(y)\n    return y, z, z.view(-1)\n"
    exec(compile(source, "<modscope creates nodes>", "exec"), names)
    made = names["create"](make_leaf())
    for tensor, line in zip(made, (2, 3, 4), strict=True):
        stack = _native.created_node_stack(tensor.grad_fn._sequence_nr())
        expected = ("<modscope creates nodes>", "create", line)
        if not stack or stack[0][:3] != expected:
            return f"a node created by {expected} has the stack {stack[:1]}"
    return None


def test() -> str | None:
    """Read frames in several kinds of code and threads, and make a block. Returns None, or what is wrong. Where it
    fails, stacks are not read from then on."""
    global _usable
    _usable = False
    wrong = _native.why_no_stacks()
    if wrong is None:
        _set_folders()
        wrong = _run_tests() or _test_in_thread()
    if wrong is None:
        ledger = _native.Ledger()
        ledger.begin(False, None)
        try:
            _native.set_stack_depth(MOST)
            with undisturbed():
                wrong = _make_block(ledger)
        finally:
            _native.set_stack_depth(0)
            ledger.end()
    _usable = wrong is None
    return wrong
