/* node_layout.c - read a backward node's number, and the thread that created it, from its Python object.
 *
 * Where a node keeps these is not the same in every torch. The Python side finds the offsets
 * with functions of this file, and verifies them. At the end: the class of a node. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/process/process.h"

#include "interpose/read_memory.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- the class of a node: of a C++ class by its type information, which the C++ ABI puts before the table of virtual
 * functions, and of a custom Function by the type of its Python object ---- */

/* The last name in a type's mangled name, which is the class: "N5torch8autograd9generated14AddmmBackward0E". */
static void read_class_name(const char *mangled, char *name, size_t room)
{
    name[0] = '\0';
    for (const char *at = mangled; *at;) {
        char *end = (char *)at;
        unsigned long length = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (!length || strnlen(end, length) < length) {
            at++;
            continue;
        }
        size_t copied = length < room - 1 ? length : room - 1;
        memcpy(name, end, copied);
        name[copied] = '\0';
        at = end + length;
    }
}

bool mst_node_class(const void *table, char name[MST_CLASS_NAME])
{
    const void *const *type = ((const void *const *const *)table)[-1];
    const char *mangled = type ? type[1] : NULL;
    name[0] = '\0';
    if (mangled)
        read_class_name(mangled, name, MST_CLASS_NAME);
    return name[0] && strcmp(name, "PyNode") != 0;
}

const char *mst_custom_class(const void *node)
{
    PyObject *object = mst.node_layout.object >= 0 ? (PyObject *)mst_node_word(node, mst.node_layout.object) : NULL;
    return object ? Py_TYPE(object)->tp_name : NULL;
}

uintptr_t mst_class_key(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    return (uintptr_t)hash | 1; /* tables are at even addresses */
}
