/* inner_tensors.c - the tensors with a storage of their own that a tensor consists of. */
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"

/* The classes' own dicts are read, because an attribute of a class may run Python: its metaclass's. */
bool mst_is_wrapper_subclass(PyObject *tensor)
{
    PyTypeObject *type = Py_TYPE(tensor);
    if (LIKELY(type == mst.torch.tensor || type == mst.torch.parameter))
        return false;
    PyObject *bases = type->tp_mro;
    bool found = false;
    for (Py_ssize_t i = 0; bases && !found && i < PyTuple_GET_SIZE(bases); i++) {
        PyObject *dict = ((PyTypeObject *)PyTuple_GET_ITEM(bases, i))->tp_dict; /* NULL: a type of Python's own */
        found = dict && PyDict_GetItemWithError(dict, mst.interned.__tensor_flatten__);
    }
    return found;
}

/* A sparse tensor has no storage of its own, but its parts have. */
static int visit_sparse_parts(PyObject *tensor, mst_visit *visit, void *context)
{
    static const char *const parts[] = {"_indices",    "crow_indices", "ccol_indices", "col_indices",
                                        "row_indices", "_values",      "values"};
    PyObject *layout = PyObject_GetAttrString(tensor, "layout");
    int error = 0;
    bool strided = !layout || layout == mst.torch.strided;
    for (size_t i = 0; !strided && !error && i < sizeof parts / sizeof *parts; i++) {
        PyObject *part = PyObject_CallMethod(tensor, parts[i], NULL);
        mst_clear_error(); /* Each sparse layout has only some of the parts. */
        if (part && PyObject_TypeCheck(part, mst.torch.tensor))
            error = visit(part, context);
        Py_XDECREF(part);
    }
    Py_XDECREF(layout);
    mst_clear_error();
    return error;
}

int mst_visit_inner_tensors(PyObject *tensor, mst_visit *visit, void *context)
{
    if (LIKELY(!mst_is_wrapper_subclass(tensor))) {
        bool own = mst_layout_is_known() && mst_read_word(mst_impl_of(tensor), mst.layout.storage) != 0;
        return LIKELY(own) ? visit(tensor, context) : visit_sparse_parts(tensor, visit, context);
    }
    PyObject *callback = mst_dynamo_disable();
    PyObject *flat = PyObject_CallMethodNoArgs(tensor, mst.interned.__tensor_flatten__);
    PyObject *names = flat && PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0 ? PyTuple_GET_ITEM(flat, 0) : NULL;
    PyObject *list = names ? PySequence_List(names) : NULL;
    int error = list ? 0 : -1;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(list); i++) {
        PyObject *inner = PyObject_GetAttr(tensor, PyList_GET_ITEM(list, i));
        if (!inner)
            error = -1;
        else if (PyObject_TypeCheck(inner, mst.torch.tensor))
            error = mst_visit_inner_tensors(inner, visit, context);
        Py_XDECREF(inner);
    }
    Py_XDECREF(list);
    Py_XDECREF(flat);
    mst_dynamo_restore(callback);
    if (error && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "__tensor_flatten__ of a tensor did not return its inner tensors");
    return error;
}
