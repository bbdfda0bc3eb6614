/* gradient_claims.c - claim the gradients of parameters.
 *
 * Where backward nodes are intercepted, each AccumulateGrad node claims its leaf's new gradient.
 * Elsewhere parameters get a post-accumulate hook, which is a C function. */
#include "torch/claims.h"

#include "torch/run_python.h"
#include "torch/tensor_layout.h"
#include "torch/visit_tensors.h"

static bool other_threads_run;   /* threads that Python started; autograd's own threads do not count */
static PyObject *gradient_hooks; /* a dict: a parameter's TensorImpl -> its hook's handle; NULL: none */

void mst_claim_new_gradient(uint64_t grad, ms_path path)
{
    struct mst_storage storage;
    ms_ledger *ledger = atomic_load_explicit(&mst.gradients_ledger, memory_order_acquire);
    if (ledger && mst_read_storage(grad, &storage))
        ms_block_claim(ledger, mst.by_dispatcher ? storage.storage : storage.data, MS_GRADIENT, path);
}

/* Another thread may be in a backward, and torch does not guard gradients against that. So where
 * hooks report gradients, calls do not read them. */
void mst_gradients_check_threads(void)
{
    other_threads_run = false;
    if (mst.intercept_nodes || !mst.claims.at_call)
        return;
    PyObject *count = mst_run_python("threading", "active_count", NULL);
    other_threads_run = count && PyLong_AsLong(count) > 1;
    Py_XDECREF(count);
    mst_clear_error();
}

/* `just_accumulated`: this thread has accumulated the gradient right now. */
static void claim_gradient(PyObject *parameter, ms_path path, bool just_accumulated)
{
    if (!mst.by_dispatcher && mst.layout.grad >= 0 && !mst_is_wrapper_subclass(parameter)) {
        uint64_t grad = mst_grad_of(mst_impl_of(parameter));
        if (grad && mst_read_word(grad, mst.layout.storage))
            mst_claim_impl(grad, MS_GRADIENT, path);
        if (!grad || mst_read_word(grad, mst.layout.storage))
            return;
    }
    if (!just_accumulated && other_threads_run)
        return; /* It is claimed when it is accumulated. */
    PyObject *grad = PyObject_GetAttr(parameter, mst.interned.grad);
    if (grad && grad != Py_None)
        mst_claim_tensor(grad, MS_GRADIENT, path);
    Py_XDECREF(grad);
    PyErr_Clear();
}

void mst_claim_gradient_of(PyObject *parameter, ms_path path)
{
    claim_gradient(parameter, path, false);
}

/* ---- hooks, where nodes are not intercepted ---- */
static PyObject *after_accumulation(PyObject *self, PyObject *parameter)
{
    (void)self;
    ms_path path = MS_GLOBAL;
    if (mst.ledger && PyObject_TypeCheck(parameter, mst.torch.tensor) && mst_owner_find(mst_impl_of(parameter), &path))
        claim_gradient(parameter, path, true);
    Py_RETURN_NONE;
}

static PyMethodDef after_accumulation_def = {"after_accumulation", after_accumulation, METH_O, NULL};

void mst_gradient_hook_register(PyObject *parameter)
{
    if (mst.intercept_nodes || (!gradient_hooks && !(gradient_hooks = PyDict_New())))
        return;
    PyObject *key = PyLong_FromUnsignedLongLong(mst_impl_of(parameter));
    if (key && !PyDict_Contains(gradient_hooks, key)) {
        PyObject *hook = PyCFunction_New(&after_accumulation_def, NULL);
        PyObject *handle =
            hook ? PyObject_CallMethod(parameter, "register_post_accumulate_grad_hook", "O", hook) : NULL;
        if (handle)
            PyDict_SetItem(gradient_hooks, key, handle);
        Py_XDECREF(handle);
        Py_XDECREF(hook);
    }
    Py_XDECREF(key);
    PyErr_Clear(); /* A parameter that requires no gradient accepts no hook. */
}

void mst_gradient_hooks_remove(void)
{
    PyObject *handles = gradient_hooks ? PyDict_Values(gradient_hooks) : NULL;
    for (Py_ssize_t i = 0; handles && i < PyList_GET_SIZE(handles); i++) {
        PyObject *result = PyObject_CallMethod(PyList_GET_ITEM(handles, i), "remove", NULL);
        Py_XDECREF(result);
        PyErr_Clear();
    }
    Py_XDECREF(handles);
    Py_CLEAR(gradient_hooks);
}
