#!/usr/bin/env python3
"""Check that each layer of the C code uses only those below it, by `#include` and by `nm`, and that each room of the
Python package imports only the rooms that ROOMS lists, without cycles, and torch only where it may. Imports in
functions count, but for those of HANDED_ON.

    check_layers.py [ROOT]

    src/torch        may include Python.h; uses the core through include/ alone, and src/base
    src/capture_api  may include Python.h, and uses nothing of torch; uses the core through include/ alone
    src/export       no Python; uses the core through include/ alone, and src/base
    src/replay       no Python; uses the core through include/ alone, and src/base
    src/interpose    ELF; no Python, nothing of src/torch, of the core only include/
    src/core         libc and POSIX headers and include/
    src/base         libc headers
    src/no_driver    nothing; a library of its own, whose names are the driver's
    include          libc headers

All but src/torch and src/interpose call only the functions of PORTABLE, which Linux and macOS have. src/core/system.c
has what they do differently.

Inside src/core, each folder may include the headers of these folders:

    watch            the core's own headers; it reports to the ledger through ledger/call_events.h alone
    ledger           watch; it reports to captures through capture/write/encoder.h alone
    capture          (the file format) the core's own headers
    capture/write    capture, ledger, watch
    capture/read     capture. It links without ledger, watch and capture/write
    capture/pack     capture/read, capture. It links without ledger, watch and capture/write
    allocator        the core's own headers; it links alone

Nothing includes a header of torch. Every name that base, core and interpose export begins with ms_. No two static
functions of a folder share a name. Each folder of src/torch has one header, named after it.
Prints `layers: ok`, or what is wrong, and then exits with 1. Uses $CC (default: cc) and $NM.
"""

import ast
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile

CORE = "src/core"
WATCH, LEDGER, CAPTURE = f"{CORE}/watch", f"{CORE}/ledger", f"{CORE}/capture"
ALLOCATOR = f"{CORE}/allocator"
WRITE, READ, PACK = f"{CAPTURE}/write", f"{CAPTURE}/read", f"{CAPTURE}/pack"
LAYERS = {
    # layer: (layers whose headers it may include; may it include Python.h). A nested folder is listed before its
    # parent.
    "include": ({"include"}, False),
    "src/base": ({"src/base"}, False),
    "src/no_driver": (set(), False),
    PACK: ({"include", CORE, CAPTURE, READ, PACK}, False),
    READ: ({"include", CORE, CAPTURE, READ}, False),
    WRITE: ({"include", CORE, CAPTURE, WATCH, LEDGER, WRITE}, False),
    CAPTURE: ({"include", CORE, CAPTURE}, False),
    LEDGER: ({"include", CORE, WATCH, LEDGER}, False),
    WATCH: ({"include", CORE, WATCH}, False),
    ALLOCATOR: ({"include", CORE, ALLOCATOR}, False),
    CORE: ({"include", CORE}, False),
    "src/interpose": ({"include", "src/interpose"}, False),
    "src/torch": ({"include", "src/base", "src/interpose", "src/torch"}, True),
    "src/export": ({"include", "src/base", "src/export"}, False),
    "src/replay": ({"include", "src/base", "src/replay"}, False),
    "src/capture_api": ({"include", "src/base", "src/export", "src/replay", "src/capture_api"}, True),
}
LAYERS_WITH_PYTHON = {layer for layer, (_, python) in LAYERS.items() if python}
# The two headers through which a lower folder of the core reports to a higher one.
REPORTS = {(WATCH, f"{LEDGER}/call_events.h"), (LEDGER, f"{WRITE}/encoder.h")}
# What reading a capture must do without, whichever function it calls.
READING = (READ, PACK, CAPTURE)
NOT_FOR_READING = (WATCH, LEDGER, WRITE)
LIBC_ONLY = {layer for layer in LAYERS if layer in ("include", "src/base") or layer.startswith(CORE)}
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
# Functions of ISO C and POSIX that macOS has as well. glibc's headers give some of them other names.
PORTABLE = set(
    """
    calloc free malloc memchr memcmp memcpy memmove memset qsort realloc snprintf sscanf strchr strcmp strlen strtod
    strtoull vsnprintf assert errno
    access clock_gettime close fcntl fstat ftruncate nanosleep open pread pwrite read readlink sched_yield sigfillset
    stat sysconf
    pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal pthread_cond_wait pthread_create
    pthread_join pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock pthread_once
    pthread_sigmask
""".split()
)
GLIBC_NAMES = {"__errno_location": "errno", "__assert_fail": "assert"}
GLIBC_AFFIX = re.compile(r"^__(isoc\d+_)?|_chk$|64$")
# Fields and constants that macOS lacks, or calls otherwise.
LINUX_ONLY = re.compile(
    r"\b(st_[acm]tim|CLOCK_(?:BOOTTIME|\w+_COARSE)|O_(?:TMPFILE|PATH)|MAP_POPULATE|SYS_\w+|_GNU_SOURCE|environ)\b"
)
NOT_PORTABLE = ("src/torch", "src/interpose")
SYSTEM = f"{CORE}/system.c"


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
                yield f"{where}: only src/torch and src/capture_api include <{header}>"
        elif quote == '"':
            yield f'{where}: "{header}" is not in the tree'
        elif layer in LIBC_ONLY and header.removesuffix(".h") not in LIBC_HEADERS:
            yield f"{where}: {layer} may include libc and POSIX headers only, not <{header}>"
    if layer not in NOT_PORTABLE and name.as_posix() != SYSTEM:
        for found in LINUX_ONLY.finditer(text):
            where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
            yield f"{where}: macOS has no {found.group()}: use it in {SYSTEM}"


STATIC = re.compile(r"^static (?:inline |const |struct |enum )*\w+ \**(\w+)\(", re.M)


def static_faults(files, root):
    homes = {}
    for path in files:
        for name in set(STATIC.findall(path.read_text(encoding="utf-8"))):
            homes.setdefault((path.parent.relative_to(root), name), set()).add(path.name)
    for (folder, name), found in homes.items():
        if len(found) > 1:
            yield f"{folder}: {name}() is static in {' and '.join(sorted(found))}: give each a name of its own"


def names(arguments):
    """(type, name) of each symbol that nm lists, without its version."""
    nm = shlex.split(os.environ.get("NM", "nm"))
    out = subprocess.run([*nm, "-P", *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in out.splitlines())
    return [(row[1], row[0].split("@")[0]) for row in rows if len(row) >= 2]


def compile_layer(sources, root, folder, cc):
    """(source, its object file or None, what the compiler said) of each source."""
    flags = ["-std=c11", "-O1", "-fPIC", "-fexceptions", f"-I{root / 'include'}", f"-I{root / 'src'}"]
    flags += ["-isystem", sysconfig.get_path("include")]

    def compile_one(source):
        item = pathlib.Path(folder) / f"{'_'.join(source.relative_to(root).parts)}.o"
        done = subprocess.run([*cc, *flags, "-c", str(source), "-o", str(item)], capture_output=True, text=True)
        return source, None if done.returncode else item, done.stderr

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(compile_one, sources)


def fault_of_symbol(layer, kind, symbol):
    """What is wrong with a symbol of an object file, or None."""
    if kind not in "Uw":
        is_public = kind.isupper() and layer not in LAYERS_WITH_PYTHON and not symbol.startswith("ms_")
        return f"exports {symbol}; public names begin with ms_" if is_public else None
    if symbol.startswith(("Py", "_Py")):
        is_allowed = layer in LAYERS_WITH_PYTHON
        return None if is_allowed else f"uses {symbol}; only src/torch and src/capture_api may use Python"
    if symbol.startswith("ms__") and layer == "src/interpose":
        return f"uses {symbol}, which is internal to the core"
    if layer in NOT_PORTABLE or COMPILER.match(symbol) or symbol.startswith(("ms_", "msr_")):
        return None
    if GLIBC_AFFIX.sub("", GLIBC_NAMES.get(symbol, symbol)) not in PORTABLE:
        return f"uses {symbol}, which is not in PORTABLE: add it there if macOS has it, or use it in {SYSTEM}"
    return None


def symbol_faults(root):
    cc = shlex.split(os.environ.get("CC", "cc"))
    home, uses = {}, []  # symbol -> the core's folder that defines it; (source, its layer, a symbol it uses)
    with tempfile.TemporaryDirectory() as folder:
        sources = sorted(
            path
            for path in (root / "src").rglob("*.c")
            if layer_of(path, root) not in (None, "src/torch", "src/no_driver")
        )
        for source, item, complaint in compile_layer(sources, root, folder, cc):
            name, layer = source.relative_to(root), layer_of(source, root)
            if item is None:
                yield f"{name}: does not compile:\n{complaint}"
                continue
            for kind, symbol in names([item]):
                if name.as_posix() != SYSTEM and (fault := fault_of_symbol(layer, kind, symbol)):
                    yield f"{name}: {fault}"
                if kind in "Uw":
                    uses.append((name, layer, symbol))
                else:
                    home[symbol] = layer
    for name, layer, symbol in uses:
        if layer in READING and home.get(symbol) in NOT_FOR_READING:
            yield f"{name}: uses {symbol} of {home[symbol]}; reading a capture needs nothing of it"


# The rooms of python/modscope: which others the modules of each may import, at the top of a file or in a function.
ROOMS = {
    "_torch": {"_read"},
    "_virtual": {"_read", "_torch"},
    "_read": set(),
    "_trackers": {"_plan", "_read", "_torch", "_virtual"},
    "_record": {"_torch", "_read", "_trackers", "_virtual"},
    "_job": {"_read"},
    "_export": {"_read"},
    "_show": {"_job", "_read"},
    "_show.pages": {"_fit", "_job", "_plan", "_predict", "_read", "_virtual"},
    "_plan": {"_read", "_virtual"},
    "_predict": {"_plan", "_read", "_record", "_show", "_torch", "_virtual"},
    "_fit": {"_plan", "_predict", "_read", "_virtual"},
    "integrations": {"_predict", "_read", "_record", "_torch", "_trackers", "_virtual"},
    "_cli": {
        "_export", "_fit", "_job", "_plan", "_predict", "_read", "_record", "_show", "_show.pages", "_torch", "_virtual"
    },
    "__main__": {"_cli"},
}  # fmt: skip
# The imports in functions that lead upwards, because a program comes in through the lower room and is handed on there.
# No other import in a function may lead upwards, or close a cycle.
HANDED_ON = {
    # a notebook asks an object for its HTML
    ("_read.load", "_show.notebook"),
    ("_read.snapshot", "_show.notebook"),
    ("_trackers.mem_tracker", "_show.notebook"),
    # to_dict() says what a report says, which is made of the object
    ("_read.load", "_read.summary"),
    ("_read.snapshot", "_read.summary"),
    # the process of a script starts in _record, whatever it was started for; it says how it ended
    ("_record.in_process", "_plan.in_script"),
    ("_record.in_process", "_predict.recording"),
    ("_record.in_process", "_show.output_file"),
    ("_record.in_process", "_show.terminal"),
    ("_record.last_line", "_show.terminal"),
    ("_record.run", "_show.terminal"),
    # the doctor tries everything that relies on torch
    ("_torch.doctor", "_trackers.mem_tracker"),
    ("_torch.doctor", "_virtual.device.device"),
}
# Importing a module of these rooms imports no torch, whatever else it imports.
NO_TORCH = {"_read", "_job", "_export", "_plan", "_fit", "_show", "_show.pages", "_cli", "__main__"}
TORCH_IN_PLAN = ("_plan.apply", "_plan.selective")
EXTENSIONS = {"_capture", "_native"}


def imports_of(node, modules, in_functions):
    """(module, whether it is imported in a function) of each import that is not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((name.name, in_functions) for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for name in child.names:
                inner = f"{child.module}.{name.name}"
                yield (inner if inner in modules else child.module), in_functions
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports_of(child, modules, in_functions or is_function)


def python_graphs(root):
    """Two graphs of the package, module -> modules: of what each imports when it is imported itself, and of what its
    functions import besides. Names are without "modscope."; the package itself is "", and torch is "torch"."""
    package = root / "python" / "modscope"
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = ("modscope", *path.relative_to(package).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    at_once, in_functions = {}, {}
    for name, path in modules.items():
        short = name.partition(".")[2]
        found = set(imports_of(ast.parse(path.read_text(encoding="utf-8")), modules, False))
        ours = {(item, later) for item, later in found if item.split(".")[0] in ("modscope", "torch")}
        names = {(item if item.startswith("torch") else item.partition(".")[2], later) for item, later in ours}
        at_once[short] = {item for item, later in names if not later}
        in_functions[short] = {item for item, later in names if later} - at_once[short]
    return at_once, in_functions


def room_of(module):
    inner = ".".join(module.split(".")[:2])
    return inner if inner in ROOMS else module.split(".")[0]


def reaches_torch(module, graph, seen):
    if module.split(".")[0] == "torch":
        return True
    if module in seen:
        return False
    seen.add(module)
    return any(reaches_torch(item, graph, seen) for item in graph.get(module, ()))


def cycles(graph):
    """Each cycle of imports once, as the modules along it."""
    done, path = set(), []

    def visit(module):
        if module in path:
            yield [*path[path.index(module) :], module]
        elif module not in done and module in graph:
            path.append(module)
            for item in sorted(graph[module]):
                yield from visit(item)
            path.pop()
            done.add(module)

    for module in sorted(graph):
        yield from visit(module)


def python_faults(root):
    at_once, in_functions = python_graphs(root)
    graph, used = {}, set()  # all imports but those of HANDED_ON; (room, another that it uses)
    for module in at_once:
        room = room_of(module)
        if module and room not in ROOMS:
            yield f"{module}: in no room (known: {', '.join(ROOMS)})"
            continue
        inner = (at_once[module] | {item for item in in_functions[module] if (module, item) not in HANDED_ON}) - {""}
        graph[module] = inner if module else set()
        for item in sorted(inner if module else ()):
            other = room_of(item)
            used.add((room, other))
            if not item.startswith("torch") and other not in ROOMS[room] | EXTENSIONS | {room}:
                yield f"{module}: {room} must not import {item}"
        if room in NO_TORCH and module not in TORCH_IN_PLAN and reaches_torch(module, at_once, set()):
            yield f"{module}: importing it imports torch"
    yield from (f"imports in a cycle: {' -> '.join(cycle)}" for cycle in cycles(graph))
    yield from (f"rooms in a cycle: {' -> '.join(cycle)}" for cycle in cycles(ROOMS))
    for room, others in ROOMS.items():
        yield from (f"ROOMS: {room} does not import {other}" for other in sorted(others) if (room, other) not in used)
    for module, item in sorted(HANDED_ON):
        if item not in in_functions.get(module, ()):
            yield f"HANDED_ON: {module} does not import {item} in a function"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = [path for top in ("include", "src") for path in sorted((root / top).rglob("*.[ch]"))]
    if not files:
        sys.exit(f"layers: no C files under {root}")
    faults = [fault for path in files for fault in include_faults(path, root)]
    faults += [
        f"{path.relative_to(root)}: a folder of src/torch has one header, named after it"
        for path in files
        if path.suffix == ".h" and path.parents[1] == root / "src/torch" and path.stem != path.parent.name
    ]
    faults += static_faults([path for path in files if path.suffix == ".c"], root)
    faults += symbol_faults(root)
    faults += python_faults(root)
    if faults:
        print("layers: wrong", *faults, sep="\n  ")
        sys.exit(1)
    print("layers: ok")


if __name__ == "__main__":
    main()
