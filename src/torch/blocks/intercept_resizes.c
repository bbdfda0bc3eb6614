/* intercept_resizes.c - the interception point of storages that Python resizes, which no operator shows: FSDP2 frees
 * and refills each unsharded parameter so.
 *
 *     storage.resize_(n) --> intercept_resize --> torch's function, then the block has the storage's new size
 *
 * `torch.UntypedStorage.resize_` is a method in C. The pointer in its definition is patched, through which Python calls
 * it; the method itself stays the same object. It is used only while the dispatcher is the source of blocks. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"

#include "interpose/patch.h"

static PyObject *intercept_resize(PyObject *object, PyObject *size);

static ms_function read_method(const void *descriptor)
{
    return (ms_function)((const PyMethodDescrObject *)descriptor)->d_method->ml_meth;
}

static int write_method(void *descriptor, ms_function function)
{
    ((PyMethodDescrObject *)descriptor)->d_method->ml_meth = (PyCFunction)function;
    return 0;
}

static ms_patch resize_patch = {.ours = (ms_function)intercept_resize, .read = read_method, .write = write_method};
static uint64_t resize_count; /* how often intercept_resize was called */
static bool is_used;          /* it is verified */

/* The StorageImpl of a storage's Python object; 0: it has none. */
static uint64_t storage_of(PyObject *object)
{
    PyObject *address = PyObject_GetAttrString(object, "_cdata");
    uint64_t storage = address && PyLong_Check(address) ? PyLong_AsUnsignedLongLong(address) : 0;
    Py_XDECREF(address);
    if (PyErr_Occurred()) {
        mst_clear_error();
        storage = 0;
    }
    return storage;
}

static PyObject *intercept_resize(PyObject *object, PyObject *size)
{
    resize_count++;
    bool counted = mst.ledger && mst.by_dispatcher && mst_layout_is_known();
    uint64_t storage = counted ? storage_of(object) : 0;
    uint64_t bytes = storage ? mst_read_word(storage, mst.layout.size) : 0;
    PyObject *result = ((PyCFunction)resize_patch.previous)(object, size);
    if (result && storage && mst_read_word(storage, mst.layout.size) != bytes)
        mst_storage_resized(object, storage);
    return result;
}

/* ---- install and restore ---- */

/* Whether a resize reaches us through the functions that replaced ours. */
static bool resize_reaches_us(void)
{
    uint64_t before = resize_count;
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    PyObject *storage = torch ? PyObject_CallMethod(torch, "UntypedStorage", "i", 0) : NULL;
    PyObject *result = storage ? PyObject_CallMethod(storage, "resize_", "i", 0) : NULL;
    Py_XDECREF(result);
    Py_XDECREF(storage);
    mst_clear_error();
    return resize_count != before;
}

void mst_resizes_intercept(void)
{
    if (is_used && resize_patch.target)
        ms_patch_install(&resize_patch, resize_reaches_us);
}

void mst_resizes_restore(void)
{
    if (is_used && resize_patch.target)
        ms_patch_restore(&resize_patch);
}

/* ---- from Python ---- */
static PyObject *find_resize_method(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C");
    PyObject *type = torch ? PyObject_GetAttrString(torch, "StorageBase") : NULL;
    PyObject *method = type ? PyObject_GetAttrString(type, "resize_") : NULL;
    Py_XDECREF(type);
    PyErr_Clear();
    bool is_known = method && Py_IS_TYPE(method, &PyMethodDescr_Type) &&
                    ((PyMethodDescrObject *)method)->d_method->ml_flags == METH_O;
    if (is_known && !resize_patch.target)
        resize_patch.target = Py_NewRef(method); /* held for ever */
    Py_XDECREF(method);
    return is_known ? Py_NewRef(Py_None) : PyUnicode_FromString("torch.UntypedStorage.resize_ is not a method in C");
}

static PyObject *set_resize_interception(PyObject *self, PyObject *on)
{
    (void)self;
    is_used = on == Py_True;
    Py_RETURN_NONE;
}

static PyObject *resizes_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(resize_patch.target && ms_patch_is_installed(&resize_patch));
}

PyMethodDef mst_intercept_resizes_methods[] = {
    {"find_resize_method", find_resize_method, METH_NOARGS,
     "Find the method by which Python resizes storages; None, or why it was not found."},
    {"set_resize_interception", set_resize_interception, METH_O,
     "Whether the next ledgers whose source is the dispatcher intercept it. It must have been found."},
    {"resizes_intercepted", resizes_intercepted, METH_NOARGS, "Whether it is intercepted now."},
    {NULL, NULL, 0, NULL},
};
