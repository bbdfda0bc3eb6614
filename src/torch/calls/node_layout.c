/* node_layout.c - read a backward node's number, and the thread that created it, from its Python object.
 *
 * Where a node keeps these is not the same in every torch. The Python side finds the offsets
 * with the functions at the end of this file, and verifies them. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/process/process.h"

#include "interpose/read_memory.h"

enum { NODE_BYTES = 128 }; /* Every Node is larger than this. */

/* The Node of a Python object; NULL if that of a custom Function is not known. */
static const void *node_of_object(PyObject *object)
{
    bool custom = PyObject_TypeCheck(object, mst.torch.function_base);
    int at = custom ? mst.node_layout.function : (int)sizeof(PyObject);
    return at >= 0 ? *(void **)((char *)object + at) : NULL;
}

static bool read_node_number(PyObject *object, uint64_t *number)
{
    PyObject *value = PyObject_CallMethodNoArgs(object, mst.interned._sequence_nr);
    *number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    bool good = !PyErr_Occurred();
    PyErr_Clear();
    return good;
}

ms_path mst_path_of_node(PyObject *object)
{
    uint64_t number;
    if (!read_node_number(object, &number))
        return MS_UNKNOWN;
    const void *node = mst.node_layout.thread >= 0 ? node_of_object(object) : NULL;
    return ms_node_path(mst.watch, node ? mst_node_word(node, mst.node_layout.thread) : MS_ANY_THREAD, number);
}

bool mst_node_is_of_this_thread(PyObject *object)
{
    const void *node = mst.node_layout.thread >= 0 ? node_of_object(object) : NULL;
    return !node || mst_node_word(node, mst.node_layout.thread) == mst.torch.thread_id();
}

/* ---- from Python ---- */
static PyObject *list_of_words(const uint64_t *words, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *word = PyLong_FromUnsignedLongLong(words[i]);
        if (!word)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, word);
    }
    return list;
}

static PyObject *object_words(PyObject *self, PyObject *object)
{
    (void)self;
    return list_of_words((const uint64_t *)object, (size_t)Py_TYPE(object)->tp_basicsize / 8);
}

static PyObject *read_node_words(PyObject *self, PyObject *address)
{
    (void)self;
    uint64_t words[NODE_BYTES / 8];
    unsigned long long at = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    return list_of_words(words, ms_read_memory((uintptr_t)at, words, sizeof words) ? NODE_BYTES / 8 : 0);
}

static PyObject *set_node_layout(PyObject *self, PyObject *args)
{
    (void)self;
    int number, thread, function, object;
    unsigned long long custom;
    if (!PyArg_ParseTuple(args, "iiiiK", &number, &thread, &function, &object, &custom))
        return NULL;
    if (number >= NODE_BYTES || thread >= NODE_BYTES || (number >= 0 && number % 8) || (thread >= 0 && thread % 8)) {
        PyErr_SetString(PyExc_ValueError, "an offset must be a multiple of 8 below 128, or -1");
        return NULL;
    }
    mst.node_layout = (struct mst_node_layout){
        .number = number, .thread = thread, .function = function, .object = object, .custom = custom};
    Py_RETURN_NONE;
}

static PyObject *thread_id(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(mst.torch.thread_id ? mst.torch.thread_id() : 0);
}

static PyObject *next_node_number(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(mst_next_node_number());
}

PyMethodDef mst_node_layout_methods[] = {
    {"object_words", object_words, METH_O, "The machine words of a Python object."},
    {"read_node_words", read_node_words, METH_O,
     "The first machine words of the Node at an address; [] if that memory is not readable."},
    {"set_node_layout", set_node_layout, METH_VARARGS,
     "The offsets of a node's number and thread, of a custom Function's node in its object, and of the object in the "
     "node; -1: not known; the first word of each such node, or 0."},
    {"thread_id", thread_id, METH_NOARGS, "torch's id of this thread."},
    {"next_node_number", next_node_number, METH_NOARGS, "The number that this thread's next node will get."},
    {NULL, NULL, 0, NULL},
};
