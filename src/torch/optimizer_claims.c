/* optimizer_claims.c - claim the state of an optimizer. */
#include "torch/claims.h"

#include "torch/run_python.h"
#include "torch/tensor_layout.h"

void mst_claim_optimizer(PyObject *optimizer)
{
    PyObject *state = mst.ledger ? PyObject_GetAttr(optimizer, mst.interned.state) : NULL;
    PyObject *items = state && PyDict_Check(state) ? PyDict_Items(state) : NULL;
    for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items); i++) {
        PyObject *parameter = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0);
        ms_path owner = MS_GLOBAL;
        if (PyObject_TypeCheck(parameter, mst.torch.tensor))
            mst_owner_find(mst_impl_of(parameter), &owner);
        mst_claim_object(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1), MS_OPTSTATE, owner);
    }
    Py_XDECREF(items);
    Py_XDECREF(state);
    mst_clear_error();
}
