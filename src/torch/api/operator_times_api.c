/* operator_times_api.c - the type through which Python records the times of operators and reads them. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"

#include <stdlib.h>

/* ---- recording ---- */

static bool is_passed_on(const mst_operator_times *self, PyObject *types)
{
    PyObject *fast = self->passed_on == Py_None ? NULL : PySequence_Fast(types, "types must be a sequence");
    bool found = false;
    for (Py_ssize_t i = 0; fast && i < PySequence_Fast_GET_SIZE(fast) && !found; i++)
        found = PySequence_Fast_GET_ITEM(fast, i) == self->passed_on;
    Py_XDECREF(fast);
    PyErr_Clear();
    return found;
}

static PyObject *times_run(mst_operator_times *self, PyObject *const *given, Py_ssize_t count)
{
    if (count < 4 || count > 5 || !PyTuple_Check(given[3])) {
        PyErr_SetString(PyExc_TypeError,
                        "run takes a mode, an operator, types, a tuple of arguments and a dict or None");
        return NULL;
    }
    if (is_passed_on(self, given[2]))
        Py_RETURN_NOTIMPLEMENTED;
    return mst_times_run(self, given[1], given[3], count > 4 && given[4] != Py_None ? given[4] : NULL);
}

static PyObject *forward_begins(mst_operator_times *self, PyObject *const *given, Py_ssize_t count)
{
    mst_times_note_call(self, MST_PRE_FW, given, count);
    Py_RETURN_NONE;
}

static PyObject *forward_ends(mst_operator_times *self, PyObject *const *given, Py_ssize_t count)
{
    mst_times_note_call(self, MST_POST_FW, given, count);
    Py_RETURN_NONE;
}

static PyObject *backward_begins(mst_operator_times *self, PyObject *const *given, Py_ssize_t count)
{
    mst_times_note_call(self, MST_PRE_BW, given, count);
    Py_RETURN_NONE;
}

static PyObject *backward_ends(mst_operator_times *self, PyObject *const *given, Py_ssize_t count)
{
    mst_times_note_call(self, MST_POST_BW, given, count);
    Py_RETURN_NONE;
}

static PyObject *times_saved(mst_operator_times *self, PyObject *tensor)
{
    mst_times_note_saved(self, tensor);
    return Py_NewRef(tensor);
}

/* ---- reading ---- */
static PyObject *times_runtimes(mst_operator_times *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(self->names); i++) {
        PyObject *pair = Py_BuildValue("(dd)", self->sums[i][0], self->sums[i][1]);
        if (!pair || PyDict_SetItem(found, PyList_GET_ITEM(self->names, i), pair) != 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
    }
    return found;
}

static PyObject *times_calls(mst_operator_times *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i < self->call_count; i++) {
        const struct mst_estimated_call call = self->calls[i];
        PyObject *name = PyList_GET_ITEM(self->names, call.name);
        PyObject *row = call.has_ended ? Py_BuildValue("(nOnnO)", (Py_ssize_t)i, name, (Py_ssize_t)call.first,
                                                       (Py_ssize_t)call.end, call.has_tensor ? Py_True : Py_False)
                                       : NULL;
        if (call.has_ended && mst_append_new(found, row) != 0)
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *times_operators(mst_operator_times *self, PyObject *number)
{
    size_t at = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    if (at >= self->call_count || !self->calls[at].has_ended) {
        PyErr_SetString(PyExc_IndexError, "there is no call with this number");
        return NULL;
    }
    return mst_times_of_call(self, &self->calls[at]);
}

static PyObject *get_total(mst_operator_times *self, void *unused)
{
    (void)unused;
    return PyFloat_FromDouble(self->total);
}

static PyObject *get_times_lost(mst_operator_times *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->lost);
}

static PyObject *get_orders(mst_operator_times *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->orders);
}

static PyObject *get_times_recording(mst_operator_times *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->recording);
}

static int set_times_recording(mst_operator_times *self, PyObject *value, void *unused)
{
    (void)unused;
    int is_on = value ? PyObject_IsTrue(value) : 0;
    if (is_on >= 0)
        self->recording = is_on;
    return is_on < 0 ? -1 : 0;
}

/* ---- the type ---- */
static PyObject *times_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *words[] = {"estimate", "flags_of", "is_random", "passed_on", NULL};
    PyObject *estimate, *flags_of, *is_random, *passed_on;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OOOO:OperatorTimes", words, &estimate, &flags_of, &is_random,
                                     &passed_on))
        return NULL;
    mst_operator_times *self = (mst_operator_times *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->estimate = Py_NewRef(estimate);
    self->flags_of = Py_NewRef(flags_of);
    self->is_random = Py_NewRef(is_random);
    self->passed_on = Py_NewRef(passed_on);
    self->operators = PyList_New(0);
    self->names = PyList_New(0);
    self->numbers = PyDict_New();
    self->orders = Py_BuildValue("([][][][])");
    if (!self->operators || !self->names || !self->numbers || !self->orders)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int times_traverse(mst_operator_times *self, visitproc visit, void *arg)
{
    Py_VISIT(self->estimate);
    Py_VISIT(self->flags_of);
    Py_VISIT(self->is_random);
    Py_VISIT(self->passed_on);
    Py_VISIT(self->operators);
    return 0;
}

/* Only what may be part of a cycle, and what methods can do without: nothing is recorded from now on. */
static int times_clear(mst_operator_times *self)
{
    self->recording = false;
    Py_XSETREF(self->estimate, Py_NewRef(Py_None));
    return 0;
}

static void times_dealloc(mst_operator_times *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->estimate);
    Py_XDECREF(self->flags_of);
    Py_XDECREF(self->is_random);
    Py_XDECREF(self->passed_on);
    Py_XDECREF(self->operators);
    Py_XDECREF(self->names);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->orders);
    ms__map_clear(&self->by_operator);
    ms__map_clear(&self->by_path);
    ms__map_clear(&self->by_storage);
    free(self->sums);
    free(self->flags);
    free(self->rows);
    free(self->storages);
    free(self->calls);
    free(self->results);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef times_methods[] = {
    {"run", (PyCFunction)(void (*)(void))times_run, METH_FASTCALL,
     "run(mode, operator, types, args, kwargs): run an operator and record it. A mode's __torch_dispatch__."},
    {"forward_begins", (PyCFunction)(void (*)(void))forward_begins, METH_FASTCALL, "A hook: pre_fw_hook."},
    {"forward_ends", (PyCFunction)(void (*)(void))forward_ends, METH_FASTCALL, "A hook: post_fw_hook."},
    {"backward_begins", (PyCFunction)(void (*)(void))backward_begins, METH_FASTCALL, "A hook: pre_bw_hook."},
    {"backward_ends", (PyCFunction)(void (*)(void))backward_ends, METH_FASTCALL, "A hook: post_bw_hook."},
    {"saved", (PyCFunction)times_saved, METH_O, "saved(tensor): autograd saves a tensor. Returns it."},
    {"runtimes", (PyCFunction)times_runtimes, METH_NOARGS, "{fqn: (ms of forward, ms of backward)}."},
    {"calls", (PyCFunction)times_calls, METH_NOARGS,
     "[(number, fqn, first, end, has_tensor)]: the calls of modules with submodules that have ended, in the order in "
     "which they began. `first` and `end` say which calls lie in which."},
    {"operators", (PyCFunction)times_operators, METH_O,
     "operators(number): of a call, ([operator], [ms], [bytes], [flags], [index of the operator whose result it "
     "changes in place, or -1])."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef times_attributes[] = {
    {"total", (getter)get_total, NULL, "Milliseconds of all operators.", NULL},
    {"lost", (getter)get_times_lost, NULL, "How many operators and calls could not be recorded.", NULL},
    {"orders", (getter)get_orders, NULL, "Four lists of fqns: pre-forward, post-forward, pre-backward, post-backward.",
     NULL},
    {"recording", (getter)get_times_recording, (setter)set_times_recording, "Whether operators are recorded.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject mst_operator_times_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.OperatorTimes",
    .tp_doc = "How long operators took, by module, and what each call of a module ran.",
    .tp_basicsize = sizeof(mst_operator_times),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = times_new,
    .tp_dealloc = (destructor)times_dealloc,
    .tp_traverse = (traverseproc)times_traverse,
    .tp_clear = (inquiry)times_clear,
    .tp_methods = times_methods,
    .tp_getset = times_attributes,
};
