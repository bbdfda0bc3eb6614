/* living_objects.c - find the living instances of a class among all objects of the process.
 *
 * While a list of all objects exists, every object in it has one reference more. No other thread may run
 * meanwhile: `tuple(generator)` in the middle, for example, fails in that thread if its tuple has two references. So
 * the list is made, searched and freed here, without running Python code, which would let other threads run. */
#include "torch/api/api.h"
#include "torch/process/process.h"

/* Append the instances of `type` to `found`. 0, or -1 with an error set. */
static int append_instances(PyObject *found, PyObject *all, PyTypeObject *type)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all); i++) {
        PyObject *object = PyList_GET_ITEM(all, i);
        if (PyType_IsSubtype(Py_TYPE(object), type) && PyList_Append(found, object) != 0)
            return -1;
    }
    return 0;
}

static PyObject *living_instances(PyObject *self, PyObject *type)
{
    (void)self;
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "expected a class");
        return NULL;
    }
    PyObject *found = PyList_New(0), *gc = PyImport_ImportModule("gc");
    bool enabled = mst_gc_pause(); /* A collection would run finalizers. */
    PyObject *all = gc && found ? PyObject_CallMethod(gc, "get_objects", NULL) : NULL;
    if (!all || append_instances(found, all, (PyTypeObject *)type) != 0)
        Py_CLEAR(found);
    Py_XDECREF(all);
    mst_gc_resume(enabled);
    Py_XDECREF(gc);
    return found;
}

PyMethodDef mst_living_objects_methods[] = {
    {"living_instances", living_instances, METH_O,
     "A list of the living instances of a class that the collector tracks."},
    {NULL, NULL, 0, NULL},
};
