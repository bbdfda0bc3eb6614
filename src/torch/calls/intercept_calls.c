/* intercept_calls.c - the interception point of module calls: the vectorcall pointer of nn.Module._call_impl.
 *
 * The function stays the same object with the same code, so dynamo notices nothing. Inside
 * the interception point no Python runs, except the user's own hooks (user_hooks.c). */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include "interpose/patch.h"

static bool probing; /* the next call only sets `reached`, to verify that calls reach us */
static bool reached;

HOT bool mst_call_enter(struct mst_call *call, PyObject *module)
{
    ms_thread *thread = mst_thread_here();
    if (UNLIKELY(!thread || !mst.registry))
        return false;
    uint64_t context = mst_call_context(thread);
    ms_path path;
    if (UNLIKELY(!mst_predict_call(module, context, &path)))
        path = mst_path_of_call(module, context);
    if (UNLIKELY(path == MS_GLOBAL))
        return false;
    bool without_grad = false; /* of a root call */
    if (UNLIKELY(mst.ledger != NULL)) {
        without_grad = !mst_open_call && !(context & MST_IN_NODE) && !mst_grad_enabled();
        mst_claim_at_call(thread, without_grad);
    }
    *call = (struct mst_call){mst_open_call, thread, module, path, mst.intercept_nodes ? -1 : mst_graph_task_id(),
                              false,         NULL};
    mst_open_call = call;
    if (UNLIKELY(!mst.intercept_nodes && mst.ledger && context & MST_IN_NODE)) {
        call->in_node = true; /* The ledger must know that the call is a recompute. */
        ms_node_enter_as(thread, (ms_path)context, mst_next_node_number());
    }
    if (UNLIKELY(without_grad))
        ms_call_enter_without_grad(thread, path, mst_next_node_number());
    else
        ms_call_enter(thread, path, mst_next_node_number());
    if (UNLIKELY(mst.ledger != NULL) && !(context & MST_IN_NODE))
        call->timed = mst_cuda_time_begin(mst.ledger, thread, !call->outer);
    return true;
}

HOT void mst_call_leave(struct mst_call *call)
{
    if (UNLIKELY(call->timed != NULL))
        mst_cuda_time_end(call->timed);
    ms_call_leave(call->thread, mst_next_node_number());
    if (UNLIKELY(call->in_node))
        ms_node_leave(call->thread, mst_next_node_number());
    mst_open_call = call->outer;
}

/* ---- the interception point ---- */
static PyObject *intercept_call(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames);

ms_function mst_vectorcall_read(const void *function)
{
    return (ms_function)((const PyFunctionObject *)function)->vectorcall;
}

int mst_vectorcall_write(void *function, ms_function vectorcall)
{
#if PY_VERSION_HEX >= 0x030c0000
    PyFunction_SetVectorcall((PyFunctionObject *)function, (vectorcallfunc)vectorcall);
#else
    ((PyFunctionObject *)function)->vectorcall = (vectorcallfunc)vectorcall;
#endif
    return 0;
}

static ms_patch call_patch = {
    .ours = (ms_function)intercept_call, .read = mst_vectorcall_read, .write = mst_vectorcall_write};

static inline vectorcallfunc next_call(void)
{
    return (vectorcallfunc)call_patch.previous;
}

HOT static PyObject *intercept_call(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (UNLIKELY(probing)) {
        reached = true;
        Py_RETURN_NONE;
    }
    struct mst_call call;
    if (!mst.active || PyVectorcall_NARGS(nargsf) < 1 || !mst_call_enter(&call, args[0]))
        return next_call()(func, args, nargsf, kwnames);
    if (UNLIKELY(mst.ledger != NULL))
        mst_measure_inputs(&call, args + 1, PyVectorcall_NARGS(nargsf) - 1, kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    PyObject *result = LIKELY(!mst.user_hooks) ? next_call()(func, args, nargsf, kwnames)
                                               : mst_user_hooks_run(&call, func, args, nargsf, kwnames, next_call());
    if (UNLIKELY(mst.ledger != NULL) && result)
        mst_measure_output(&call, result);
    if (UNLIKELY(!result))
        mst_oom_report_add_note();
    mst_call_leave(&call);
    return result;
}

/* Whether a call reaches us through the functions that replaced ours. */
static bool call_reaches_us(void)
{
    probing = true;
    reached = false;
    PyObject *result = PyObject_CallOneArg(mst.torch.call_impl, Py_None);
    probing = false;
    Py_XDECREF(result);
    mst_clear_error();
    return reached;
}

int mst_calls_intercept(void)
{
    if (!PyFunction_Check(mst.torch.call_impl)) {
        PyErr_SetString(PyExc_RuntimeError, "nn.Module._call_impl is not a Python function");
        return -1;
    }
    call_patch.target = mst.torch.call_impl;
    ms_patch_install(&call_patch, call_reaches_us);
    return 0;
}

void mst_calls_restore(void)
{
    ms_patch_restore(&call_patch);
}

/* ---- from Python ---- */
static PyObject *calls_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(call_patch.target && ms_patch_is_installed(&call_patch));
}

PyMethodDef mst_intercept_calls_methods[] = {
    {"calls_intercepted", calls_intercepted, METH_NOARGS, "Whether module calls are intercepted now."},
    {NULL, NULL, 0, NULL},
};
