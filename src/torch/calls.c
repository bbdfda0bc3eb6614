/* calls.c - the place of module calls: the vectorcall pointer of nn.Module._call_impl.
 *
 * The function stays the same object with the same code, so dynamo sees nothing. Inside
 * the place no Python runs, except the user's own hooks (hooks.c). */
#include "torch/memory.h"

bool mst_awake;
bool mst_calls_place, mst_nodes_place;
MST_THREAD_LOCAL struct mst_call *mst_open;

static vectorcallfunc next_call; /* what we stand before */
static bool chained;             /* somebody stood on us when we left: they may still call us */
static bool probing, reached;

static uint64_t next_number(void)
{
    return mst_torch.peek ? mst_torch.peek() : 0;
}

static inline ms_path path_of_call(PyObject *module, uint64_t context)
{
    if (LIKELY(mst_trace.next < mst_trace.count)) {
        const struct mst_step *step = &mst_trace.steps[mst_trace.next];
        if (LIKELY(step->module == module && step->context == context &&
                   *(PyObject **)((char *)module + step->refs_at) == step->ref)) {
            mst_trace.next++;
            return step->path;
        }
    }
    return mst_path_of_call(module, context);
}

bool mst_call_enter(struct mst_call *call, PyObject *module)
{
    ms_thread *thread = mst_here();
    if (UNLIKELY(!thread || !mst_names))
        return false;
    uint64_t context = mst_read_context(thread);
    ms_path path = path_of_call(module, context);
    if (UNLIKELY(path == MS_GLOBAL))
        return false;
    if (UNLIKELY(mst_ledger != NULL))
        mst_memory_call(thread);
    *call = (struct mst_call){mst_open, thread, module, path, mst_nodes_place ? -1 : mst_graph_task(), false};
    mst_open = call;
    if (UNLIKELY(!mst_nodes_place && mst_ledger && context & MST_IN_NODE)) {
        call->in_node = true; /* the ledger must know that the call is run again */
        ms_node_enter_as(thread, (ms_path)context, next_number());
    }
    ms_call_enter(thread, path, next_number());
    return true;
}

void mst_call_leave(struct mst_call *call)
{
    ms_call_leave(call->thread, next_number());
    if (UNLIKELY(call->in_node))
        ms_node_leave(call->thread, next_number());
    mst_open = call->outer;
}

static PyObject *call_place(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (UNLIKELY(probing)) {
        reached = true;
        Py_RETURN_NONE;
    }
    struct mst_call call;
    if (!mst_awake || PyVectorcall_NARGS(nargsf) < 1 || !mst_call_enter(&call, args[0]))
        return next_call(func, args, nargsf, kwnames);
    if (UNLIKELY(mst_ledger != NULL))
        mst_measure(call.thread, false, args + 1, PyVectorcall_NARGS(nargsf) - 1,
                    kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    PyObject *result = LIKELY(!mst_hooks_wanted) ? next_call(func, args, nargsf, kwnames)
                                                 : mst_hooks_around(&call, func, args, nargsf, kwnames, next_call);
    if (UNLIKELY(mst_ledger != NULL) && result)
        mst_measure(call.thread, true, &result, 1, 0);
    if (UNLIKELY(!result))
        mst_oom_note();
    mst_call_leave(&call);
    return result;
}

static vectorcallfunc current(void)
{
    return ((PyFunctionObject *)mst_torch.call_impl)->vectorcall;
}

static void put(vectorcallfunc function)
{
#if PY_VERSION_HEX >= 0x030c0000
    PyFunction_SetVectorcall((PyFunctionObject *)mst_torch.call_impl, function);
#else
    ((PyFunctionObject *)mst_torch.call_impl)->vectorcall = function;
#endif
}

/* Whether a call still comes through us under whoever stands on top now. */
static bool reachable(void)
{
    probing = true;
    reached = false;
    PyObject *result = PyObject_CallOneArg(mst_torch.call_impl, Py_None);
    probing = false;
    Py_XDECREF(result);
    PyErr_Clear();
    return reached;
}

int mst_calls_on(void)
{
    if (!PyFunction_Check(mst_torch.call_impl)) {
        PyErr_SetString(PyExc_RuntimeError, "nn.Module._call_impl is not a Python function");
        return -1;
    }
    if (current() == call_place || (chained && reachable()))
        return 0;
    next_call = current();
    chained = false;
    put(call_place);
    return 0;
}

void mst_calls_off(void)
{
    if (current() == call_place)
        put(next_call);
    else
        chained = true;
}

static PyObject *calls_standing(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(current() == call_place);
}

PyMethodDef mst_calls_methods[] = {
    {"calls_standing", calls_standing, METH_NOARGS, "Whether the place of module calls is taken now."},
    {NULL, NULL, 0, NULL},
};
