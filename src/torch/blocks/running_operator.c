/* running_operator.c - the operator of torch's dispatcher that runs on this thread, where modscope runs it itself: for
 * the dispatcher as the source of blocks, and on the virtual device, whose kernels are wrapped here. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"

#include <string.h>

MST_THREAD_LOCAL const char *mst_running_operator;

/* A dict: "aten::add.Tensor" -> "aten::add". Nothing is removed from it, so the texts can be read without the GIL, and
 * their addresses identify them. */
static PyObject *names;

/* The text of a name that is in the dict from now on; NULL with an error set. */
static const char *intern_name(PyObject *full)
{
    PyObject *known = names ? PyDict_GetItemWithError(names, full) : NULL;
    if (known || PyErr_Occurred())
        return known ? PyUnicode_AsUTF8(known) : NULL;
    const char *text = PyUnicode_AsUTF8(full);
    const char *space = text ? strstr(text, "::") : NULL, *overload = space ? strchr(space, '.') : NULL;
    if (!text || (!names && !(names = PyDict_New())))
        return NULL;
    PyObject *name = PyUnicode_FromStringAndSize(text, overload ? overload - text : (Py_ssize_t)strlen(text));
    if (name)
        PyUnicode_InternInPlace(&name); /* overloads share it */
    const char *interned = name ? PyUnicode_AsUTF8(name) : NULL;
    if (interned && PyDict_SetItem(names, full, name) != 0)
        interned = NULL;
    Py_XDECREF(name);
    return interned;
}

const char *mst_operator_name(PyObject *operator)
{
    PyObject *full = PyObject_CallMethodNoArgs(operator, mst.interned.name);
    const char *name = full && PyUnicode_Check(full) ? intern_name(full) : NULL;
    Py_XDECREF(full);
    if (!name)
        mst_clear_error();
    return name;
}

/* ---- kernels of the virtual device ---- */

struct kernel {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function;
    const char *name; /* NULL: the kernel is for any operator, which is its first argument */
};

/* An operator that runs inside another one's kernel is a part of it. */
static PyObject *call_kernel(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    const struct kernel *kernel = (const struct kernel *)self;
    if (mst_running_operator)
        return PyObject_Vectorcall(kernel->function, args, count, keywords);
    mst_running_operator = kernel->name || !PyVectorcall_NARGS(count) ? kernel->name : mst_operator_name(args[0]);
    PyObject *result = PyObject_Vectorcall(kernel->function, args, count, keywords);
    mst_running_operator = NULL;
    return result;
}

static void kernel_dealloc(struct kernel *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->function);
    PyObject_GC_Del(self);
}

static int kernel_traverse(struct kernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    return 0;
}

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Kernel",
    .tp_basicsize = sizeof(struct kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(struct kernel, call),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_traverse = (traverseproc)kernel_traverse,
};

static PyObject *operator_kernel(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *function, *name = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &function, &name))
        return NULL;
    const char *text = name == Py_None ? NULL : intern_name(name);
    if (name != Py_None && !text)
        return NULL;
    struct kernel *kernel = PyObject_GC_New(struct kernel, &kernel_type);
    if (!kernel)
        return NULL;
    kernel->call = call_kernel;
    kernel->function = Py_NewRef(function);
    kernel->name = text;
    PyObject_GC_Track(kernel);
    return (PyObject *)kernel;
}

int mst_running_operator_init(void)
{
    return PyType_Ready(&kernel_type);
}

PyMethodDef mst_running_operator_methods[] = {
    {"operator_kernel", operator_kernel, METH_VARARGS,
     "operator_kernel(function, name=None): a kernel that calls the function. Blocks that it makes know the "
     "operator's\n"
     "name; without one, the operator is the first argument."},
    {NULL, NULL, 0, NULL},
};
