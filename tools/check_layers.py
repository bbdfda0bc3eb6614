#!/usr/bin/env python3
"""Check that each layer of the C code uses only those below it, by `#include` and by `nm`.

    check_layers.py [ROOT]

    src/torch        knows Python; sees the core through include/ alone
    src/reading      knows Python, and nothing of torch; sees the core through include/ alone
    src/export       no Python; sees the core through include/ alone
    src/interpose    ELF; no Python, nothing of src/torch, of the core only modscope.h
    src/core         libc and POSIX headers, modscope.h and its own internal.h; no dl*
    include          libc headers
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

LAYERS = {
    # layer: (layers whose headers it may include, its own included; may it see Python.h)
    "include": ({"include"}, False),
    "src/core": ({"include", "src/core"}, False),
    "src/interpose": ({"include", "src/interpose"}, False),
    "src/torch": ({"include", "src/interpose", "src/torch"}, True),
    "src/export": ({"include", "src/export"}, False),
    "src/reading": ({"include", "src/export", "src/reading"}, True),
}
LIBC_ONLY = {"include", "src/core"}
LIBC_HEADERS = set("""
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype
    fcntl poll pthread sched semaphore strings unistd
    sys/mman sys/resource sys/stat sys/time sys/types sys/uio sys/wait
""".split())
PYTHON_HEADER = re.compile(r"(Python|structmember|frameobject|pythread|pyconfig|datetime)\.h$|^(cpython|internal)/")
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# What the compiler itself may call, whatever the source says.
COMPILER = re.compile(r"_GLOBAL_OFFSET_TABLE_$|_Unwind_|__gcc_personality_|__stack_chk_|__tls_get_addr$|___tls_get_addr$")


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
            if other not in allowed:
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


def symbol_faults(root):
    cc = shlex.split(os.environ.get("CC", "cc"))
    libc = libc_names(cc)
    for layer in ("src/core", "src/interpose"):
        with tempfile.TemporaryDirectory() as folder:
            for source in sorted((root / layer).glob("*.c")):
                name = source.relative_to(root)
                item = pathlib.Path(folder) / (source.stem + ".o")
                flags = ["-std=c11", "-O1", "-fPIC", "-fexceptions", f"-I{root / 'include'}", f"-I{root / 'src'}"]
                done = subprocess.run([*cc, *flags, "-c", str(source), "-o", str(item)], capture_output=True, text=True)
                if done.returncode:
                    yield f"{name}: does not compile:\n{done.stderr}"
                    continue
                for kind, symbol in names([item]):
                    if kind not in "Uw":
                        if kind.isupper() and not symbol.startswith("ms_"):
                            yield f"{name}: exports {symbol}; public names begin with ms_"
                    elif symbol.startswith(("Py", "_Py")):
                        yield f"{name}: uses {symbol}; only src/torch and src/reading know Python"
                    elif layer == "src/interpose" and symbol.startswith("ms__"):
                        yield f"{name}: uses {symbol}, which is internal to the core"
                    elif layer == "src/core" and symbol.startswith("dl"):
                        yield f"{name}: uses {symbol}; the core looks nothing up at run time"
                    elif layer == "src/core" and not symbol.startswith("ms_") and not COMPILER.match(symbol):
                        if libc is not None and symbol not in libc:
                            yield f"{name}: uses {symbol}, which is not in the C library"


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
