/* generated_code.c - functions that a compiler generated: which module owns what they allocate, and which line of the
 * program asked for it. What is not known of them is the caller's, as ever.
 *
 * A function is looked up by its code object, and its places by instruction:
 *
 *     table   code -> of_unit   [ 0 0 1 1 1 2 2 0 3 ... ]     a place for each code unit; 0: none
 *                     places    [ line 12, line 13, ... ]
 *                     callers   the path of a caller -> the owner of each place; several layers of a model may share
 *                               one function, and each is a caller of its own
 *
 * The tables only grow, so that allocators' reports read them without the GIL and without a lock. */
#include "torch/lines/lines.h"
#include "torch/names/names.h"

#include <stdlib.h>

enum { SLOTS = 4096, MOST_FUNCTIONS = SLOTS / 2, NEAREST_FRAMES = 24 };

struct caller {
    ms_path path;
    struct caller *next;
    ms_path owners[]; /* of each place */
};

struct generated {
    PyCodeObject *code; /* owned: no other code object has its address */
    PyObject *places;   /* a tuple, whose texts are read: (file or None, function, line, what is called) */
    Py_ssize_t units;
    _Atomic(struct caller *) callers;
    uint16_t of_unit[];
};

_Atomic uint32_t mst_generated_count;
static _Atomic(struct generated *) table[SLOTS];

static _Atomic(struct generated *) *find_slot(const PyCodeObject *code)
{
    size_t at = (size_t)((uintptr_t)code * UINT64_C(0x9E3779B97F4A7C15) >> 40);
    struct generated *found;
    while ((found = atomic_load_explicit(&table[at % SLOTS], memory_order_acquire)) && found->code != code)
        at++;
    return &table[at % SLOTS];
}

static inline const struct generated *find_generated(const PyCodeObject *code)
{
    if (LIKELY(!atomic_load_explicit(&mst_generated_count, memory_order_relaxed)))
        return NULL;
    return atomic_load_explicit(find_slot(code), memory_order_acquire);
}

/* The index of a place, or -1. */
static Py_ssize_t find_generated_place(const struct generated *function, const void *instruction)
{
    ptrdiff_t offset = (const char *)instruction - (const char *)mst_code_instruction(function->code, 0);
    Py_ssize_t unit = offset / MST_CODE_UNIT;
    return offset >= 0 && unit < function->units ? (Py_ssize_t)function->of_unit[unit] - 1 : -1;
}

bool mst_is_generated(const PyCodeObject *code)
{
    return find_generated(code) != NULL;
}

bool mst_generated_describe(const PyCodeObject *code, const void *instruction, ms_frame *frame)
{
    const struct generated *function = find_generated(code);
    Py_ssize_t place = function ? find_generated_place(function, instruction) : -1;
    if (place < 0)
        return false;
    PyObject *of = PyTuple_GET_ITEM(function->places, place);
    *frame = (ms_frame){.file = PyUnicode_AsUTF8(PyTuple_GET_ITEM(of, 0)),
                        .function = PyUnicode_AsUTF8(PyTuple_GET_ITEM(of, 1)),
                        .line = (uint32_t)PyLong_AsLong(PyTuple_GET_ITEM(of, 2)),
                        .called = PyUnicode_AsUTF8(PyTuple_GET_ITEM(of, 3))};
    return true;
}

ms_path mst_generated_owner(ms_path here)
{
    const void *at = mst_frame_innermost();
    struct mst_frame frame;
    const struct generated *function = NULL;
    for (int i = 0; at && !function && i < NEAREST_FRAMES; i++, at = frame.next) {
        frame = mst_frame_read(at);
        function = frame.is_shim ? NULL : find_generated(frame.code);
    }
    Py_ssize_t place = function ? find_generated_place(function, frame.instruction) : -1;
    if (place < 0)
        return here;
    const struct caller *caller = atomic_load_explicit(&function->callers, memory_order_acquire);
    while (caller && caller->path != here)
        caller = caller->next;
    return caller && caller->owners[place] != MS_GLOBAL ? caller->owners[place] : here;
}

/* ---- from Python ---- */

static bool are_places(PyObject *places)
{
    if (!PyTuple_Check(places) || PyTuple_GET_SIZE(places) >= UINT16_MAX)
        return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        PyObject *of = PyTuple_GET_ITEM(places, i);
        if (!PyTuple_Check(of) || PyTuple_GET_SIZE(of) != 4 || !PyLong_Check(PyTuple_GET_ITEM(of, 2)))
            return false;
        for (int text = 0; text < 4; text++) /* their UTF-8 is kept in the strings from now on */
            if (text != 2 &&
                !(PyUnicode_Check(PyTuple_GET_ITEM(of, text)) && PyUnicode_AsUTF8(PyTuple_GET_ITEM(of, text))))
                return false;
    }
    return true;
}

/* A range is (begin, end, place), in bytes of bytecode. */
static bool set_ranges(struct generated *function, PyObject *ranges)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ranges); i++) {
        Py_ssize_t begin, end, place;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(ranges, i), "nnn", &begin, &end, &place))
            return false;
        bool is_good = begin >= 0 && end / MST_CODE_UNIT <= function->units && place >= 0 &&
                       place < PyTuple_GET_SIZE(function->places);
        for (Py_ssize_t unit = begin / MST_CODE_UNIT; is_good && unit < end / MST_CODE_UNIT; unit++)
            function->of_unit[unit] = (uint16_t)(place + 1);
    }
    return true;
}

static struct generated *add_function(PyCodeObject *code, PyObject *ranges, PyObject *places)
{
    if (atomic_load(&mst_generated_count) >= MOST_FUNCTIONS)
        return NULL;
    Py_ssize_t units = Py_SIZE(code);
    struct generated *function = calloc(1, sizeof *function + (size_t)units * sizeof *function->of_unit);
    if (!function) {
        PyErr_NoMemory();
        return NULL;
    }
    function->code = code;
    function->places = places;
    function->units = units;
    if (!set_ranges(function, ranges)) {
        free(function);
        return NULL;
    }
    Py_INCREF(code);
    Py_INCREF(places);
    atomic_store_explicit(find_slot(code), function, memory_order_release);
    atomic_fetch_add(&mst_generated_count, 1);
    return function;
}

static bool add_caller(struct generated *function, PyObject *of)
{
    unsigned path;
    PyObject *owners;
    if (!PyArg_ParseTuple(of, "IO!", &path, &PyList_Type, &owners) ||
        PyList_GET_SIZE(owners) != PyTuple_GET_SIZE(function->places))
        return false;
    size_t count = (size_t)PyList_GET_SIZE(owners);
    struct caller *caller = malloc(sizeof *caller + count * sizeof *caller->owners);
    for (size_t i = 0; caller && i < count; i++) {
        unsigned long owner = PyLong_AsUnsignedLong(PyList_GET_ITEM(owners, (Py_ssize_t)i));
        caller->owners[i] = owner < ms_path_count(mst.watch) ? (ms_path)owner : MS_GLOBAL;
    }
    if (!caller || PyErr_Occurred()) {
        free(caller);
        return false;
    }
    caller->path = path;
    caller->next = atomic_load(&function->callers);
    atomic_store_explicit(&function->callers, caller, memory_order_release);
    return true;
}

static PyObject *add_generated_code(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *code, *ranges, *places, *callers;
    if (!PyArg_ParseTuple(args, "O!O!OO!", &PyCode_Type, &code, &PyList_Type, &ranges, &places, &PyList_Type, &callers))
        return NULL;
    if (!are_places(places)) {
        PyErr_SetString(PyExc_ValueError, "places must be a tuple of tuples (file, function, line, called)");
        return NULL;
    }
    struct generated *function = atomic_load(find_slot((PyCodeObject *)code));
    if (!function)
        function = add_function((PyCodeObject *)code, ranges, places);
    for (Py_ssize_t i = 0; function && i < PyList_GET_SIZE(callers) && !PyErr_Occurred(); i++)
        add_caller(function, PyList_GET_ITEM(callers, i));
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(function != NULL);
}

static PyObject *path_of_module(PyObject *self, PyObject *module)
{
    (void)self;
    bool gc_enabled = mst_gc_pause();
    struct mst_module *known = mst.registry ? mst_registry_add(mst.registry, module) : NULL;
    ms_path path = known ? mst_path_of_module(known) : MS_GLOBAL;
    mst_gc_resume(gc_enabled);
    mst_clear_error();
    return PyLong_FromUnsignedLong(path > MS_UNKNOWN ? path : MS_GLOBAL);
}

static PyObject *known_instances(PyObject *self, PyObject *type)
{
    (void)self;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && mst.registry && i < mst.registry->count; i++) {
        const struct mst_module *known = mst.registry->all[i];
        if (mst_module_is_alive(known) && (PyObject *)Py_TYPE(known->module) == type &&
            PyList_Append(list, known->module) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *path_here(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLong(mst_this_thread ? ms_thread_path(mst_this_thread) : MS_GLOBAL);
}

PyMethodDef mst_generated_code_methods[] = {
    {"add_generated_code", add_generated_code, METH_VARARGS,
     "add_generated_code(code, [(begin, end, place)], ((file, function, line, called), ...), [(path, [owner])]): what\n"
     "these instructions allocate belongs to the owner of their place for the caller with that path; 0: to the "
     "caller.\n"
     "False: there are too many functions."},
    {"path_of_module", path_of_module, METH_O, "The number of the path under which a module owns memory; 0: none."},
    {"known_instances", known_instances, METH_O, "The modules of exactly this class that trackers have seen."},
    {"path_here", path_here, METH_NOARGS, "The number of the innermost path of this thread; 0: none."},
    {NULL, NULL, 0, NULL},
};
