/* tensor_layout.c - set and verify where this torch keeps a tensor's memory. The Python side finds the offsets. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"

#include "interpose/read_memory.h"

enum { WORDS_PER_READ = MS_READ_MEMORY_MAX / 8, MAX_WORDS = 256 };

static PyObject *read_memory(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long address;
    int count;
    if (!PyArg_ParseTuple(args, "Ki", &address, &count))
        return NULL;
    if (count < 0 || count > MAX_WORDS) {
        PyErr_Format(PyExc_ValueError, "at most %d machine words can be read at once", MAX_WORDS);
        return NULL;
    }
    uint64_t words[WORDS_PER_READ];
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        if (i % WORDS_PER_READ == 0) {
            int left = count - i < WORDS_PER_READ ? count - i : WORDS_PER_READ;
            if (!ms_read_memory((uintptr_t)address + (uintptr_t)i * 8, words, (size_t)left * 8))
                break;
        }
        PyObject *word = PyLong_FromUnsignedLongLong(words[i % WORDS_PER_READ]);
        if (!word || PyList_Append(list, word) != 0)
            Py_CLEAR(list);
        Py_XDECREF(word);
    }
    return list;
}

static PyObject *set_tensor_layout(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    unsigned long long deleter = 0, accumulate = 0;
#define X(field) #field,
    static char *names[] = {MST_LAYOUT(X) "cpu_deleter", "accumulate", NULL};
#undef X
    struct mst_layout layout;
#define X(field) &layout.field,
    if (!PyArg_ParseTupleAndKeywords(args, named, "iiiiiiiiiiiKK", names, MST_LAYOUT(X) & deleter, &accumulate))
        return NULL;
#undef X
    mst.layout = layout;
    mst.cpu_deleter = deleter;
    mst.accumulate_vtable = accumulate;
    Py_RETURN_NONE;
}

static PyObject *read_tensor(PyObject *self, PyObject *tensor)
{
    (void)self;
    struct mst_storage storage;
    if (!PyObject_TypeCheck(tensor, mst.torch.tensor)) {
        PyErr_SetString(PyExc_TypeError, "expected a torch.Tensor");
        return NULL;
    }
    if (!mst_layout_is_known() || !mst_read_storage(mst_impl_of(tensor), &storage))
        Py_RETURN_NONE;
    return Py_BuildValue("(KLiiKK)", storage.data, storage.bytes, storage.device_type, storage.device_index,
                         storage.deleter, mst_grad_of(mst_impl_of(tensor)));
}

PyMethodDef mst_tensor_layout_methods[] = {
    {"read_memory", read_memory, METH_VARARGS,
     "Machine words at an address that may not be mapped; the list ends where the memory is not readable."},
    {"set_tensor_layout", (PyCFunction)(void (*)(void))set_tensor_layout, METH_VARARGS | METH_KEYWORDS,
     "Where this torch keeps a tensor's memory; -1: not known."},
    {"read_tensor", read_tensor, METH_O,
     "A tensor's data, bytes, device type, device index, deleter and gradient's TensorImpl; None if it has no "
     "storage."},
    {NULL, NULL, 0, NULL},
};
