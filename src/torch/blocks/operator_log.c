/* operator_log.c - which operators ran, in which module, and how much memory was in use after each of them.
 *
 * A TorchDispatchMode gives each operator to `run`, on every thread that has the mode: that of the
 * program, and autograd's threads while they work for it. A record is a row of numbers; names are made
 * when figures are read.
 *
 *     records   [ position name nth allocated active reserved | ... ]      count <= room
 *     positions [ "", "layers.0.forward", "layers.0.backward", "optimizer", ... ]
 *     names     [ "addmm.default", "t.default", ... ]     counts [ how many of each ]
 *
 * The name of a record is "POSITION.NAME_NTH", as in torch's MemoryTracker. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdlib.h>

static const char *const figure_names[MST_FIGURE_COUNT] = {"allocated_bytes", "active_bytes", "reserved_bytes"};

/* ---- the position of an operator: a module and a phase ---- */

/* Calls are "forward" in every phase that runs a module's forward, as in torch's MemoryTracker. */
static const char *word_of_phase(ms_phase phase)
{
    switch (phase) {
    case MS_FORWARD:
    case MS_RECOMPUTE:
    case MS_EVALUATION:
        return "forward";
    case MS_BACKWARD:
        return "backward";
    case MS_OPTIMIZER:
        return "optimizer";
    default:
        return "";
    }
}

static PyObject *name_position(mst_operator_log *self, ms_path path, ms_phase phase)
{
    const char *word = word_of_phase(phase);
    if (path == MS_GLOBAL || phase == MS_IDLE || phase == MS_OPTIMIZER)
        return PyUnicode_FromString(phase == MS_BACKWARD || phase == MS_OPTIMIZER ? word : "");
    const struct mst_module *known = mst.registry ? mst_module_at(path) : NULL;
    PyObject *module = Py_NewRef(known ? known->module : Py_None);
    PyObject *fqn = mst_path_fqn(path);
    PyObject *name = fqn ? PyObject_CallFunctionObjArgs(self->name_in, module, fqn, NULL) : NULL;
    Py_DECREF(module);
    PyObject *position = name ? PyUnicode_FromFormat("%S.%s", name, word) : NULL;
    Py_XDECREF(name);
    return position;
}

static uint64_t key_of_position(ms_path path, ms_phase phase)
{
    return (uint64_t)path << 8 | phase;
}

/* Returns -1 with an error set. */
static int add_position(mst_operator_log *self, ms_path path, ms_phase phase)
{
    PyObject *callback = mst_dynamo_disable();
    PyObject *position = name_position(self, path, phase);
    mst_dynamo_restore(callback);
    int error = position ? PyList_Append(self->positions, position) : -1;
    Py_XDECREF(position);
    if (!error &&
        !ms__map_set(&self->by_position, key_of_position(path, phase), (uint64_t)PyList_GET_SIZE(self->positions) - 1))
        return PyErr_NoMemory(), -1;
    return error;
}

/* While memory is tracked, a gradient is accumulated at the path that its parameter's owner was expected to have before
 * it was called, which is no path of a call if it was called elsewhere. The path of its calls is wanted. */
static ms_path find_called_path(ms_path path)
{
    if (path <= MS_UNKNOWN || !mst.registry || mst_module_at(path))
        return path;
    ms_path called = mst_path_of_running_node();
    return called > MS_UNKNOWN && mst_module_at(called) ? called : path;
}

/* The phase that trackers show: where optimizer steps are not intercepted, the frames tell whether one runs. */
static ms_path position_of_operator(ms_phase *phase)
{
    ms_path path = mst_position_innermost(phase);
    if (*phase == MS_BACKWARD)
        return find_called_path(path);
    if (*phase == MS_OPTIMIZER && mst_steps_intercepted())
        return path;
    if (*phase == MS_IDLE || *phase == MS_OPTIMIZER)
        *phase = mst_in_optimizer_step() ? MS_OPTIMIZER : MS_IDLE;
    return path;
}

Py_ssize_t mst_operator_position(mst_operator_log *self)
{
    ms_phase phase;
    ms_path path = position_of_operator(&phase);
    uint64_t found = ms__map_get(&self->by_position, key_of_position(path, phase));
    if (LIKELY(found != MS__MAP_NONE))
        return (Py_ssize_t)found;
    if (add_position(self, path, phase) != 0)
        return -1;
    return PyList_GET_SIZE(self->positions) - 1;
}

/* ---- the name of an operator ---- */

/* Index into names; -1 with an error set. Different operators may have the same name. */
static Py_ssize_t find_name(mst_operator_log *self, PyObject *name)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->names); i++)
        if (PyUnicode_Compare(PyList_GET_ITEM(self->names, i), name) == 0)
            return i;
    Py_ssize_t index = PyList_GET_SIZE(self->names);
    if (!MS__ARRAY_GROW(self->counts, self->counts_room, (size_t)index + 1))
        return PyErr_NoMemory(), -1;
    self->counts[index] = 0;
    return PyList_Append(self->names, name) == 0 ? index : -1;
}

static Py_ssize_t add_operator(mst_operator_log *self, PyObject *op)
{
    PyObject *name = PyObject_GetAttrString(op, "__name__");
    if (!name || !PyUnicode_Check(name)) {
        PyErr_Clear();
        Py_XSETREF(name, PyObject_Str(op));
    }
    Py_ssize_t index = name ? find_name(self, name) : -1;
    Py_XDECREF(name);
    if (index < 0 || PyList_Append(self->operators, op) != 0)
        return -1;
    if (!ms__map_set(&self->by_operator, (uintptr_t)op, (uint64_t)index))
        return PyErr_NoMemory(), -1;
    return index;
}

static Py_ssize_t find_operator(mst_operator_log *self, PyObject *op)
{
    uint64_t found = ms__map_get(&self->by_operator, (uintptr_t)op);
    return LIKELY(found != MS__MAP_NONE) ? (Py_ssize_t)found : add_operator(self, op);
}

/* ---- the figures ---- */

/* The number stats[name]["all"]["current"]; 0 where there is none. */
static int64_t current_of(PyObject *stats, const char *name)
{
    PyObject *all = PyDict_Check(stats) ? PyDict_GetItemString(stats, name) : NULL;
    PyObject *parts = all && PyDict_Check(all) ? PyDict_GetItemString(all, "all") : NULL;
    PyObject *current = parts && PyDict_Check(parts) ? PyDict_GetItemString(parts, "current") : NULL;
    int64_t value = current && PyLong_Check(current) ? PyLong_AsLongLong(current) : 0;
    PyErr_Clear();
    return value;
}

/* Returns -1 with an error set. */
static int read_statistics(mst_operator_log *self, int64_t *figures)
{
    PyObject *callback = mst_dynamo_disable();
    PyObject *stats = PyObject_CallOneArg(self->stats, self->device);
    mst_dynamo_restore(callback);
    for (int i = 0; stats && i < MST_FIGURE_COUNT; i++)
        figures[i] = current_of(stats, figure_names[i]);
    Py_XDECREF(stats);
    return stats ? 0 : -1;
}

/* Memory that is not cached is in use as long as it is allocated, and no more than that is reserved. */
static void read_ledger(const mst_operator_log *self, int64_t *figures)
{
    ms_sums sums = ms_ledger_now(mst_target_ledger(), self->ledger_device);
    int64_t total = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        total += sums.of[i];
    for (int i = 0; i < MST_FIGURE_COUNT; i++)
        figures[i] = total;
}

int mst_operator_figures(mst_operator_log *self, int64_t *figures)
{
    if (self->stats != Py_None)
        return read_statistics(self, figures);
    read_ledger(self, figures);
    return 0;
}

/* ---- recording ---- */
/* The program's operator has succeeded, so nothing here may raise. Other threads may run while Python code does: the
 * record is added after that. */
static void record_operator(mst_operator_log *self, PyObject *op)
{
    int64_t figures[MST_FIGURE_COUNT];
    Py_ssize_t position = mst_operator_position(self);
    Py_ssize_t name = position >= 0 ? find_operator(self, op) : -1;
    if (name < 0 || mst_operator_figures(self, figures) != 0 ||
        !MS__ARRAY_GROW(self->records, self->room, self->count + 1)) {
        mst_clear_error();
        self->lost++;
        return;
    }
    struct mst_operator_record *record = &self->records[self->count++];
    *record = (struct mst_operator_record){(uint32_t)position, (uint32_t)name, self->counts[name]++, {0}};
    memcpy(record->figures, figures, sizeof figures);
}

PyObject *mst_operator_run(mst_operator_log *self, PyObject *op, PyObject *args, PyObject *named)
{
    PyObject *result = PyObject_Call(op, args, named);
    if (result && self->recording && op != self->ignored)
        record_operator(self, op);
    return result;
}

/* ---- markers ---- */
void mst_operator_mark(mst_operator_log *self, PyObject *module, const char *marker)
{
    ms_phase phase;
    if (!self->recording || ((PyWeakReference *)self->root)->wr_object != module)
        return;
    mst_position_innermost(&phase);
    PyObject *count = phase != MS_RECOMPUTE ? PyLong_FromSize_t(self->count) : NULL;
    if (count)
        PyDict_SetItemString(self->markers, marker, count);
    Py_XDECREF(count);
    mst_clear_error();
}
