/* operator_log_api.c - the type through which Python records operators and reads the records. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"

#include <stdlib.h>

static const double BYTES_PER_MIB = 1024 * 1024;

/* ---- recording ---- */
static PyObject *log_run(mst_operator_log *self, PyObject *const *given, Py_ssize_t count)
{
    if (count < 4 || count > 5 || !PyTuple_Check(given[3])) {
        PyErr_SetString(PyExc_TypeError,
                        "run takes a mode, an operator, types, a tuple of arguments and a dict or None");
        return NULL;
    }
    return mst_operator_run(self, given[1], given[3], count > 4 && given[4] != Py_None ? given[4] : NULL);
}

static PyObject *log_call_begins(mst_operator_log *self, PyObject *const *given, Py_ssize_t count)
{
    if (count)
        mst_operator_mark(self, given[0], "fw_start");
    Py_RETURN_NONE;
}

static PyObject *log_call_ends(mst_operator_log *self, PyObject *const *given, Py_ssize_t count)
{
    if (count)
        mst_operator_mark(self, given[0], "fw_bw_boundary");
    Py_RETURN_NONE;
}

/* ---- reading ---- */

/* Returns 0, or -1 with an error set. */
static int add_row(const mst_operator_log *self, size_t at, PyObject *const *dicts)
{
    struct mst_operator_record record = self->records[at];
    PyObject *index = PyLong_FromSize_t(at);
    PyObject *name = PyUnicode_FromFormat("%U.%U_%u", PyList_GET_ITEM(self->positions, record.position),
                                          PyList_GET_ITEM(self->names, record.name), record.nth);
    int error = index && name ? 0 : -1;
    for (int i = 0; !error && i < MST_FIGURE_COUNT; i++) {
        PyObject *row = Py_BuildValue("(Od)", name, (double)record.figures[i] / BYTES_PER_MIB);
        error = row ? PyDict_SetItem(dicts[i], index, row) : -1;
        Py_XDECREF(row);
    }
    Py_XDECREF(index);
    Py_XDECREF(name);
    return error;
}

static PyObject *log_read(mst_operator_log *self, PyObject *args)
{
    Py_ssize_t since;
    PyObject *dicts[MST_FIGURE_COUNT];
    if (!PyArg_ParseTuple(args, "nO!O!O!", &since, &PyDict_Type, &dicts[MST_ALLOCATED], &PyDict_Type,
                          &dicts[MST_ACTIVE], &PyDict_Type, &dicts[MST_RESERVED]))
        return NULL;
    size_t at = since > 0 ? (size_t)since : 0;
    for (; at < self->count; at++)
        if (add_row(self, at, dicts) != 0)
            return NULL;
    return PyLong_FromSize_t(at);
}

static PyObject *log_counts(mst_operator_log *self, PyObject *unused)
{
    (void)unused;
    PyObject *counts = PyDict_New();
    for (Py_ssize_t i = 0; counts && i < PyList_GET_SIZE(self->names); i++) {
        PyObject *count = self->counts[i] ? PyLong_FromUnsignedLong(self->counts[i]) : NULL;
        if (self->counts[i] && (!count || PyDict_SetItem(counts, PyList_GET_ITEM(self->names, i), count) != 0))
            Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

static PyObject *log_figures(mst_operator_log *self, PyObject *unused)
{
    (void)unused;
    int64_t figures[MST_FIGURE_COUNT];
    if (mst_operator_figures(self, figures) != 0)
        return NULL;
    return Py_BuildValue("(ddd)", (double)figures[MST_ALLOCATED] / BYTES_PER_MIB,
                         (double)figures[MST_ACTIVE] / BYTES_PER_MIB, (double)figures[MST_RESERVED] / BYTES_PER_MIB);
}

static PyObject *log_position(mst_operator_log *self, PyObject *unused)
{
    (void)unused;
    Py_ssize_t position = mst_operator_position(self);
    return position >= 0 ? Py_NewRef(PyList_GET_ITEM(self->positions, position)) : NULL;
}

static PyObject *get_count(mst_operator_log *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(self->count);
}

static PyObject *get_lost(mst_operator_log *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->lost);
}

static PyObject *get_markers(mst_operator_log *self, void *unused)
{
    (void)unused;
    return PyDict_Copy(self->markers);
}

static PyObject *get_recording(mst_operator_log *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->recording);
}

static int set_recording(mst_operator_log *self, PyObject *value, void *unused)
{
    (void)unused;
    int is_on = value ? PyObject_IsTrue(value) : 0;
    if (is_on >= 0)
        self->recording = is_on;
    return is_on < 0 ? -1 : 0;
}

/* ---- the type ---- */
static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *words[] = {"root", "name_in", "stats", "device", "ignored", NULL};
    PyObject *root, *name_in, *stats, *device, *ignored;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOOOO:OperatorLog", words, &root, &name_in, &stats, &device,
                                     &ignored))
        return NULL;
    long number = stats == Py_None ? PyLong_AsLong(device) : 0;
    mst_operator_log *self = number < 0 ? NULL : (mst_operator_log *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->ledger_device = (uint32_t)number;
    self->root = PyWeakref_NewRef(root, NULL);
    self->name_in = Py_NewRef(name_in);
    self->stats = Py_NewRef(stats);
    self->device = Py_NewRef(device);
    self->ignored = Py_NewRef(ignored);
    self->positions = PyList_New(0);
    self->names = PyList_New(0);
    self->operators = PyList_New(0);
    self->markers = PyDict_New();
    if (!self->root || !self->positions || !self->names || !self->operators || !self->markers)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int log_traverse(mst_operator_log *self, visitproc visit, void *arg)
{
    Py_VISIT(self->root);
    Py_VISIT(self->name_in);
    Py_VISIT(self->stats);
    Py_VISIT(self->device);
    Py_VISIT(self->ignored);
    Py_VISIT(self->operators);
    return 0;
}

/* Only what may be part of a cycle. The others stay, because methods rely on them. */
static int log_clear(mst_operator_log *self)
{
    self->recording = false;
    Py_CLEAR(self->operators);
    return 0;
}

static void log_dealloc(mst_operator_log *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->operators);
    Py_XDECREF(self->root);
    Py_XDECREF(self->name_in);
    Py_XDECREF(self->stats);
    Py_XDECREF(self->device);
    Py_XDECREF(self->ignored);
    Py_XDECREF(self->positions);
    Py_XDECREF(self->names);
    Py_XDECREF(self->markers);
    ms__map_clear(&self->by_position);
    ms__map_clear(&self->by_operator);
    free(self->counts);
    free(self->records);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef log_methods[] = {
    {"run", (PyCFunction)(void (*)(void))log_run, METH_FASTCALL,
     "run(mode, operator, types, args, kwargs): run an operator and record it. A mode's __torch_dispatch__."},
    {"call_begins", (PyCFunction)(void (*)(void))log_call_begins, METH_FASTCALL,
     "call_begins(module, args): a module's forward begins."},
    {"call_ends", (PyCFunction)(void (*)(void))log_call_ends, METH_FASTCALL,
     "call_ends(module, args, output): it has ended."},
    {"read", (PyCFunction)log_read, METH_VARARGS,
     "read(since, allocated, active, reserved): add the records from number `since` on to the dicts, as "
     "number: (name, MiB). Returns how many records there are."},
    {"counts", (PyCFunction)log_counts, METH_NOARGS, "How many operators of each name were recorded."},
    {"figures", (PyCFunction)log_figures, METH_NOARGS, "(allocated, active, reserved) now, in MiB."},
    {"position", (PyCFunction)log_position, METH_NOARGS, "The module and the phase that this thread is in."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef log_attributes[] = {
    {"count", (getter)get_count, NULL, "How many operators were recorded.", NULL},
    {"lost", (getter)get_lost, NULL, "How many were not, because memory ran out or figures could not be read.", NULL},
    {"markers", (getter)get_markers, NULL, "A dict: fw_start and fw_bw_boundary of the latest call of the root module.",
     NULL},
    {"recording", (getter)get_recording, (setter)set_recording, "Whether operators are recorded.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject mst_operator_log_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.OperatorLog",
    .tp_doc = "The operators that ran, with their modules and the memory in use after each.",
    .tp_basicsize = sizeof(mst_operator_log),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = log_new,
    .tp_dealloc = (destructor)log_dealloc,
    .tp_traverse = (traverseproc)log_traverse,
    .tp_clear = (inquiry)log_clear,
    .tp_methods = log_methods,
    .tp_getset = log_attributes,
};
