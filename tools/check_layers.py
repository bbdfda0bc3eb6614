#!/usr/bin/env python3
"""Check that each layer of the C code uses only those below it, by `#include` and by `nm`.

    check_layers.py [ROOT]

    src/torch        may include Python.h; uses the core through include/ alone
    src/reading      may include Python.h, and uses nothing of torch; uses the core through include/ alone
    src/export       no Python; uses the core through include/ alone
    src/plan         no Python; uses nothing of the others
    src/replay       no Python; uses the core through include/ alone
    src/interpose    ELF; no Python, nothing of src/torch, of the core only include/
    src/core         libc and POSIX headers and include/; no dl*
    include          libc headers

Inside src/core, each folder may include the headers of these folders:

    watch            the core's own headers; it reports to the ledger through ledger/call_events.h alone
    ledger           watch; it reports to captures through capture/write/encoder.h alone
    capture          (the file format) the core's own headers
    capture/write    capture, ledger, watch
    capture/read     capture. It links without ledger, watch and capture/write
    capture/pack     capture/read, capture. It links without ledger, watch and capture/write
    allocator        the core's own headers; it links alone

Nothing includes a header of torch. Every name that core and interpose export begins with ms_.
Prints `layers: ok`, or what is wrong, and then exits with 1. Uses $CC (default: cc) and $NM.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

CORE = "src/core"
WATCH, LEDGER, CAPTURE = f"{CORE}/watch", f"{CORE}/ledger", f"{CORE}/capture"
ALLOCATOR = f"{CORE}/allocator"
WRITE, READ, PACK = f"{CAPTURE}/write", f"{CAPTURE}/read", f"{CAPTURE}/pack"
LAYERS = {
    # layer: (layers whose headers it may include; may it include Python.h). A nested folder is listed before its parent.
    "include": ({"include"}, False),
    PACK: ({"include", CORE, CAPTURE, READ, PACK}, False),
    READ: ({"include", CORE, CAPTURE, READ}, False),
    WRITE: ({"include", CORE, CAPTURE, WATCH, LEDGER, WRITE}, False),
    CAPTURE: ({"include", CORE, CAPTURE}, False),
    LEDGER: ({"include", CORE, WATCH, LEDGER}, False),
    WATCH: ({"include", CORE, WATCH}, False),
    ALLOCATOR: ({"include", CORE, ALLOCATOR}, False),
    CORE: ({"include", CORE}, False),
    "src/interpose": ({"include", "src/interpose"}, False),
    "src/torch": ({"include", "src/interpose", "src/torch"}, True),
    "src/export": ({"include", "src/export"}, False),
    "src/plan": ({"src/plan"}, False),
    "src/replay": ({"include", "src/replay"}, False),
    "src/reading": ({"include", "src/export", "src/plan", "src/replay", "src/reading"}, True),
}
# The two headers through which a lower folder of the core reports to a higher one.
REPORTS = {(WATCH, f"{LEDGER}/call_events.h"), (LEDGER, f"{WRITE}/encoder.h")}
# What reading a capture must do without, whichever function it calls.
READING = (READ, PACK, CAPTURE)
NOT_FOR_READING = (WATCH, LEDGER, WRITE)
LIBC_ONLY = {layer for layer in LAYERS if layer == "include" or layer.startswith(CORE)}
LIBC_HEADERS = set(
    """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype
    fcntl poll pthread sched semaphore strings unistd
    sys/mman sys/resource sys/stat sys/time sys/types sys/uio sys/wait
""".split()
)
PYTHON_HEADER = re.compile(r"(Python|structmember|frameobject|pythread|pyconfig|datetime)\.h$|^(cpython|internal)/")
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# What the compiler itself may call, whatever the source says.
COMPILER = re.compile(
    r"_GLOBAL_OFFSET_TABLE_$|_Unwind_|__gcc_personality_|__stack_chk_|__tls_get_addr$|___tls_get_addr$"
)


def layer_of(path, root):
    relative = path.relative_to(root).as_posix()
    return next((layer for layer in LAYERS if relative.startswith(layer + "/")), None)


def blank_comments(text):
    """The text without its comments, each line where it was."""
    return COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)


def include_faults(path, root):
    layer = layer_of(path, root)
    name = path.relative_to(root)
    if layer is None:
        yield f"{name}: in no layer (known: {', '.join(LAYERS)})"
        return
    allowed, python = LAYERS[layer]
    text = blank_comments(path.read_text(encoding="utf-8"))
    for found in INCLUDE.finditer(text):
        quote, header = found.groups()
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        # <modscope.h> is found by -I as well as "modscope.h" is.
        folders = ([path.parent] if quote == '"' else []) + [root / "include", root / "src"]
        own = next((folder / header for folder in folders if (folder / header).is_file()), None)
        if own:
            other = layer_of(own.resolve(), root)
            if other not in allowed and (layer, own.resolve().relative_to(root).as_posix()) not in REPORTS:
                yield f'{where}: {layer} must not include "{header}" of {other}'
        elif TORCH_HEADER.search(header):
            yield f"{where}: <{header}>: nothing is compiled against torch"
        elif PYTHON_HEADER.search(header):
            if not python:
                yield f"{where}: only src/torch and src/reading include <{header}>"
        elif quote == '"':
            yield f'{where}: "{header}" is not in the tree'
        elif layer in LIBC_ONLY and header.removesuffix(".h") not in LIBC_HEADERS:
            yield f"{where}: {layer} may include libc and POSIX headers only, not <{header}>"


def names(arguments):
    """(type, name) of each symbol that nm lists, without its version."""
    nm = shlex.split(os.environ.get("NM", "nm"))
    out = subprocess.run([*nm, "-P", *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in out.splitlines())
    return [(row[1], row[0].split("@")[0]) for row in rows if len(row) >= 2]


def libc_names(cc):
    """Every name that the C library exports, or None where it cannot be asked."""
    found = set()
    for library in ("libc.so.6", "libpthread.so.0"):
        path = subprocess.run([*cc, f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()
        if os.path.isabs(path):
            found |= {name for kind, name in names(["-D", path]) if kind not in "Uw"}
    return found or None


def compile_layer(sources, root, folder, cc):
    """(source, its object file or None, what the compiler said) of each source."""
    flags = ["-std=c11", "-O1", "-fPIC", "-fexceptions", f"-I{root / 'include'}", f"-I{root / 'src'}"]
    for number, source in enumerate(sources):
        item = pathlib.Path(folder) / f"{number}.o"
        done = subprocess.run([*cc, *flags, "-c", str(source), "-o", str(item)], capture_output=True, text=True)
        yield source, None if done.returncode else item, done.stderr


def fault_of_symbol(layer, kind, symbol, libc):
    """What is wrong with a symbol of an object file, or None."""
    in_core = layer.startswith(CORE)
    if kind not in "Uw":
        exported = kind.isupper() and not symbol.startswith("ms_")
        return f"exports {symbol}; public names begin with ms_" if exported else None
    if symbol.startswith(("Py", "_Py")):
        return f"uses {symbol}; only src/torch and src/reading may use Python"
    if not in_core:
        return f"uses {symbol}, which is internal to the core" if symbol.startswith("ms__") else None
    if symbol.startswith("dl"):
        return f"uses {symbol}; the core looks nothing up at run time"
    if not symbol.startswith("ms_") and not COMPILER.match(symbol) and libc is not None and symbol not in libc:
        return f"uses {symbol}, which is not in the C library"
    return None


def symbol_faults(root):
    cc = shlex.split(os.environ.get("CC", "cc"))
    libc = libc_names(cc)
    home, uses = {}, []  # symbol -> the core's folder that defines it; (source, its layer, a symbol it uses)
    with tempfile.TemporaryDirectory() as folder:
        sources = [path for top in (CORE, "src/interpose") for path in sorted((root / top).rglob("*.c"))]
        for source, item, complaint in compile_layer(sources, root, folder, cc):
            name, layer = source.relative_to(root), layer_of(source, root)
            if item is None:
                yield f"{name}: does not compile:\n{complaint}"
                continue
            for kind, symbol in names([item]):
                if fault := fault_of_symbol(layer, kind, symbol, libc):
                    yield f"{name}: {fault}"
                if kind in "Uw":
                    uses.append((name, layer, symbol))
                else:
                    home[symbol] = layer
    for name, layer, symbol in uses:
        if layer in READING and home.get(symbol) in NOT_FOR_READING:
            yield f"{name}: uses {symbol} of {home[symbol]}; reading a capture needs nothing of it"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = [path for top in ("include", "src") for path in sorted((root / top).rglob("*.[ch]"))]
    if not files:
        sys.exit(f"layers: no C files under {root}")
    faults = [fault for path in files for fault in include_faults(path, root)]
    faults += symbol_faults(root)
    if faults:
        print("layers: wrong", *faults, sep="\n  ")
        sys.exit(1)
    print("layers: ok")


if __name__ == "__main__":
    main()
