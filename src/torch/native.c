/* native.c - the extension module modscope._native. */
#include "torch/memory.h"

static PyObject *set_places(PyObject *self, PyObject *args)
{
    (void)self;
    int calls, nodes;
    if (!PyArg_ParseTuple(args, "pp", &calls, &nodes))
        return NULL;
    if (mst_awake) {
        PyErr_SetString(PyExc_RuntimeError, "places are chosen while no tracker is active");
        return NULL;
    }
    mst_calls_place = calls;
    mst_nodes_place = nodes;
    Py_RETURN_NONE;
}

static PyObject *lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(ms_watch_lost(mst_watch));
}

static PyObject *put_back(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    mst_captures_end();
    mst_sleep();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_places", set_places, METH_VARARGS, "Which places to stand in: module calls, backward nodes."},
    {"lost", lost, METH_NOARGS, "How many events could not be recorded for want of memory."},
    {"put_back", put_back, METH_NOARGS, "Leave all places, at the end of the interpreter."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "modscope._native",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    if (mst_torch_load() != 0 || mst_threads_init() != 0 || mst_graph_init() != 0 || mst_tracker_init() != 0 ||
        mst_ledger_init() != 0 || mst_capture_init() != 0)
        return NULL;
    PyObject *module = PyType_Ready(&mst_step_type) == 0 ? PyModule_Create(&definition) : NULL;
    if (!module || PyModule_AddObjectRef(module, "StepArguments", (PyObject *)&mst_step_type) != 0 ||
        PyModule_AddFunctions(module, mst_calls_methods) != 0 ||
        PyModule_AddFunctions(module, mst_nodes_methods) != 0 ||
        PyModule_AddFunctions(module, mst_storage_methods) != 0 ||
        PyModule_AddFunctions(module, mst_blocks_methods) != 0 ||
        PyModule_AddFunctions(module, mst_dispatch_methods) != 0 ||
        PyModule_AddFunctions(module, mst_steps_methods) != 0 ||
        PyModule_AddFunctions(module, mst_capture_methods) != 0 ||
        PyModule_AddObjectRef(module, "Capture", (PyObject *)&mst_capture_type) != 0 ||
        PyModule_AddObjectRef(module, "Ledger", (PyObject *)&mst_ledger_type) != 0 ||
        PyModule_AddObjectRef(module, "Viewer", (PyObject *)&mst_viewer_type) != 0 ||
        PyModule_AddObjectRef(module, "Tracker", (PyObject *)&mst_tracker_type) != 0 ||
        PyModule_AddStringConstant(module, "version", MS_VERSION) != 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
