/* viewer.c - the type through which Python reads peaks, and figures as Python's objects. */
#include "torch/memory.h"

PyObject *mst_tuple_of_sums(const ms_sums *sums)
{
    PyObject *tuple = PyTuple_New(MS_CATEGORY_COUNT);
    for (int i = 0; tuple && i < MS_CATEGORY_COUNT; i++) {
        PyObject *bytes = PyLong_FromLongLong(sums->of[i]);
        if (!bytes)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, bytes);
    }
    return tuple;
}

static bool is_empty(const ms_sums *sums)
{
    int64_t any = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        any |= sums->of[i];
    return !any;
}

int mst_append(PyObject *list, PyObject *item)
{
    int error = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return error;
}

PyObject *mst_sums_by_path(ms_ledger *from, ms_peak_tracker *at_peak)
{
    PyObject *list = PyList_New(0);
    uint32_t devices = ms_ledger_devices(from), paths = ms_path_count(mst_watch);
    for (uint32_t device = 0; list && device < devices; device++)
        for (ms_path path = 0; list && path < paths; path++) {
            ms_sums sums =
                at_peak ? ms_peak_tracker_peak_of(at_peak, device, path) : ms_ledger_now_of(from, device, path);
            if (is_empty(&sums))
                continue;
            PyObject *fqn = mst_fqn(path);
            if (!fqn || mst_append(list, Py_BuildValue("(ION)", device, fqn, mst_tuple_of_sums(&sums))) != 0)
                Py_CLEAR(list);
        }
    return list;
}

typedef struct viewer {
    PyObject_HEAD
    ms_peak_tracker *viewer;
    PyObject *of; /* a Ledger */
} viewer;

static PyObject *viewer_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"ledger", NULL};
    PyObject *of;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!:Viewer", names, &mst_ledger_type, &of))
        return NULL;
    viewer *self = (viewer *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->of = Py_NewRef(of);
    self->viewer = ms_peak_tracker_open(mst_ledger_of(self->of));
    if (!self->viewer) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void viewer_dealloc(viewer *self)
{
    ms_peak_tracker_close(self->viewer);
    Py_XDECREF(self->of);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *viewer_reset(viewer *self, PyObject *unused)
{
    (void)unused;
    ms_peak_tracker_reset(self->viewer);
    Py_RETURN_NONE;
}

/* [(bytes by category, step, phase, module, fqn)] by device. */
static PyObject *viewer_peaks(viewer *self, PyObject *unused)
{
    (void)unused;
    static const char *const phases[] = {"idle", "forward", "recompute", "backward", "optimizer"};
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(mst_ledger_of(self->of));
    for (uint32_t device = 0; list && device < count; device++) {
        ms_peak peak = ms_peak_tracker_peak(self->viewer, device);
        PyObject *running = mst_fqn(peak.running), *owner = running ? mst_fqn(peak.owner) : NULL;
        if (!owner || mst_append(list, Py_BuildValue("(NKsOO)", mst_tuple_of_sums(&peak.sums), peak.step,
                                                     phases[peak.phase], running, owner)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *viewer_modules(viewer *self, PyObject *unused)
{
    (void)unused;
    return mst_sums_by_path(mst_ledger_of(self->of), self->viewer);
}

static PyMethodDef viewer_methods[] = {
    {"reset", (PyCFunction)viewer_reset, METH_NOARGS, "Forget the peak; begin anew at what is held now."},
    {"peaks", (PyCFunction)viewer_peaks, METH_NOARGS,
     "(bytes by category, step, phase, module running, fqn that made it) by device."},
    {"modules", (PyCFunction)viewer_modules, METH_NOARGS,
     "(device, fqn, bytes by category) of all that held any at the peak."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_viewer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Viewer",
    .tp_doc = "The most that a ledger held since it was opened or reset.",
    .tp_basicsize = sizeof(viewer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = viewer_new,
    .tp_dealloc = (destructor)viewer_dealloc,
    .tp_methods = viewer_methods,
};
