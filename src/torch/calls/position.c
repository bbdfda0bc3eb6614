/* position.c - the phase and the innermost path of this thread. */
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

/* An AccumulateGrad node has no number; it belongs to the owner of its parameter. */
static bool is_accumulation(PyObject *node)
{
    return strcmp(Py_TYPE(node)->tp_name, "AccumulateGrad") == 0;
}

static ms_path path_of_accumulation(PyObject *node)
{
    PyObject *variable = PyObject_GetAttr(node, mst.interned.variable);
    ms_path path = variable ? mst_path_of_parameter(variable) : MS_GLOBAL;
    Py_XDECREF(variable);
    PyErr_Clear();
    return path;
}

ms_path mst_path_of_running_node(void)
{
    PyObject *node = mst_current_node();
    if (!node)
        return MS_GLOBAL;
    ms_path path = is_accumulation(node) ? path_of_accumulation(node) : mst_path_of_node(node);
    Py_DECREF(node);
    return path;
}

static void add_node(struct mst_position *position, ms_path path)
{
    position->phase = MS_BACKWARD;
    if (position->count < MST_MAX_CONTEXTS)
        position->paths[position->count++] = path;
}

/* Where nodes are not intercepted, autograd is asked what runs. A node is innermost, unless the
 * innermost call began in the same graph task: then that call is a recompute inside the node. */
static void add_running_node(struct mst_position *position)
{
    long long task = position->phase == MS_BACKWARD ? -1 : mst_graph_task_id();
    if (task == -1)
        return;
    bool in_call = position->phase == MS_FORWARD || position->phase == MS_EVALUATION || position->phase == MS_RECOMPUTE;
    if (in_call && mst_open_call && mst_open_call->graph_task == task) {
        position->phase = MS_RECOMPUTE;
        return;
    }
    add_node(position, mst_path_of_running_node());
}

struct mst_position mst_position_find(bool active)
{
    struct mst_position position = {.phase = MS_IDLE};
    if (!active)
        return position;
    if (UNLIKELY(!mst.intercept_calls))
        mst_fallback_end_abandoned();
    if (mst_this_thread) {
        size_t count = ms_thread_contexts(mst_this_thread, position.paths, MST_MAX_CONTEXTS);
        position.count = count < MST_MAX_CONTEXTS ? count : MST_MAX_CONTEXTS;
        position.phase = ms_thread_phase(mst_this_thread);
    }
    if (UNLIKELY(!mst.intercept_nodes))
        add_running_node(&position);
    else if (position.phase == MS_BACKWARD && position.paths[position.count - 1] == MS_GLOBAL)
        position.paths[position.count - 1] = mst_path_of_running_node();
    else if (position.phase == MS_IDLE && mst_graph_task_id() != -1)
        position.phase = MS_BACKWARD;
    return position;
}

uint64_t mst_call_context(ms_thread *thread)
{
    if (LIKELY(mst.intercept_calls && mst.intercept_nodes)) {
        uint64_t path = ms_thread_path(thread);
        return ms_thread_phase(thread) == MS_BACKWARD ? path | MST_IN_NODE : path;
    }
    struct mst_position position = mst_position_find(true);
    uint64_t path = position.count ? position.paths[position.count - 1] : MS_GLOBAL;
    return position.phase == MS_BACKWARD ? path | MST_IN_NODE : path;
}

ms_path mst_position_innermost(ms_phase *phase)
{
    struct mst_position position = mst_position_find(true);
    *phase = position.phase;
    return position.count ? position.paths[position.count - 1] : MS_GLOBAL;
}

/* The innermost of the frames that run an optimizer step, a module call or a backward decides. */
bool mst_in_optimizer_step(void)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    bool inside = false, more = mst.torch.optimizer_code != NULL;
    while (frame && more) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        inside = code == mst.torch.optimizer_code;
        more = !inside && code != mst.torch.call_code && code != mst.torch.backward_code;
        Py_DECREF(code);
        PyFrameObject *back = more ? PyFrame_GetBack(frame) : NULL;
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return inside;
}
