/* peak_tracker_api.c - the type through which Python reads peaks. */
#include "torch/api/api.h"
#include "torch/names/names.h"

typedef struct peak_tracker {
    PyObject_HEAD
    ms_peak_tracker *tracker;
    PyObject *ledger; /* a Ledger */
} peak_tracker;

static PyObject *peak_tracker_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"ledger", "by_module", NULL};
    PyObject *ledger;
    int by_module = true;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!|p:PeakTracker", names, &mst_ledger_type, &ledger, &by_module))
        return NULL;
    peak_tracker *self = (peak_tracker *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->ledger = Py_NewRef(ledger);
    self->tracker = by_module ? ms_peak_tracker_open(mst_ledger_of(ledger))
                              : ms_peak_tracker_open_without_paths(mst_ledger_of(ledger));
    if (!self->tracker) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void peak_tracker_dealloc(peak_tracker *self)
{
    ms_peak_tracker_close(self->tracker);
    Py_XDECREF(self->ledger);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *peak_tracker_reset(peak_tracker *self, PyObject *unused)
{
    (void)unused;
    ms_peak_tracker_reset(self->tracker);
    Py_RETURN_NONE;
}

static PyObject *peak_tracker_peaks(peak_tracker *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(mst_ledger_of(self->ledger));
    for (uint32_t device = 0; list && device < count; device++) {
        ms_peak peak = ms_peak_tracker_peak(self->tracker, device);
        PyObject *running = mst_path_shown(peak.running), *owner = running ? mst_path_shown(peak.owner) : NULL;
        if (!owner || mst_append_new(list, Py_BuildValue("(NKsNN)", mst_tuple_of_sums(&peak.sums), peak.step,
                                                         ms_phase_name(peak.phase), running, owner)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *peak_tracker_modules(peak_tracker *self, PyObject *unused)
{
    (void)unused;
    return mst_sums_by_path(mst_ledger_of(self->ledger), self->tracker);
}

static PyObject *peak_tracker_kinds(peak_tracker *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(mst_ledger_of(self->ledger));
    for (uint32_t device = 0; list && device < count; device++) {
        ms_kind_sums kinds = ms_peak_tracker_kinds(self->tracker, device);
        if (mst_append_new(list, mst_tuple_of_kinds(&kinds)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *peak_tracker_module_kinds(peak_tracker *self, PyObject *unused)
{
    (void)unused;
    return mst_kinds_by_path(mst_ledger_of(self->ledger), self->tracker);
}

static PyMethodDef peak_tracker_methods[] = {
    {"reset", (PyCFunction)peak_tracker_reset, METH_NOARGS, "Reset the peak to what is held now."},
    {"peaks", (PyCFunction)peak_tracker_peaks, METH_NOARGS,
     "(bytes by category, step, phase, fqn that ran, fqn that owns the last block) by device."},
    {"modules", (PyCFunction)peak_tracker_modules, METH_NOARGS,
     "(device, fqn, bytes by category) of the modules that held memory at the peak; none if not by_module."},
    {"kinds", (PyCFunction)peak_tracker_kinds, METH_NOARGS, "Bytes by kind at the peak, by device."},
    {"module_kinds", (PyCFunction)peak_tracker_module_kinds, METH_NOARGS,
     "(device, fqn, bytes by kind) of the modules that held blocks with a kind at the peak."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_peak_tracker_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.PeakTracker",
    .tp_doc = "The peak of a ledger since it was opened or reset.",
    .tp_basicsize = sizeof(peak_tracker),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = peak_tracker_new,
    .tp_dealloc = (destructor)peak_tracker_dealloc,
    .tp_methods = peak_tracker_methods,
};
