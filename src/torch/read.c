/* read.c - where this thread is: parents, stack, current, phase. */
#include "torch/native.h"

enum { CONTEXTS = 64 };

struct where {
    ms_path paths[CONTEXTS]; /* the innermost of each context, outermost context first */
    size_t count;
    ms_phase phase;
};

/* AccumulateGrad nodes have no number; they belong to whoever owns the parameter. */
static bool is_accumulation(PyObject *node)
{
    return strcmp(Py_TYPE(node)->tp_name, "AccumulateGrad") == 0;
}

static ms_path path_of_accumulation(PyObject *node)
{
    PyObject *variable = PyObject_GetAttr(node, mst_words.variable);
    ms_path path = variable ? mst_path_of_parameter(variable) : MS_GLOBAL;
    Py_XDECREF(variable);
    PyErr_Clear();
    return path;
}

static ms_path path_of_current_node(void)
{
    PyObject *node = mst_current_node();
    if (!node)
        return MS_GLOBAL;
    ms_path path = is_accumulation(node) ? path_of_accumulation(node) : mst_path_of_node(node);
    Py_DECREF(node);
    return path;
}

static void add_node(struct where *where, ms_path path)
{
    where->phase = MS_BACKWARD;
    if (where->count < CONTEXTS)
        where->paths[where->count++] = path;
}

/* Without the place of nodes: ask autograd what runs. A node is innermost unless the
 * innermost call began in the same graph task: then that call is recomputed in the node. */
static void look_without_place(struct where *where)
{
    long long task = where->phase == MS_BACKWARD ? -1 : mst_graph_task();
    if (task == -1)
        return;
    if ((where->phase == MS_FORWARD || where->phase == MS_RECOMPUTE) && mst_open && mst_open->task == task) {
        where->phase = MS_RECOMPUTE;
        return;
    }
    add_node(where, path_of_current_node());
}

static struct where look(bool active)
{
    struct where where = {.phase = MS_IDLE};
    if (!active)
        return where;
    if (UNLIKELY(!mst_calls_place))
        mst_fallback_heal();
    if (mst_mine) {
        size_t count = ms_thread_contexts(mst_mine, where.paths, CONTEXTS);
        where.count = count < CONTEXTS ? count : CONTEXTS;
        where.phase = ms_thread_phase(mst_mine);
    }
    if (UNLIKELY(!mst_nodes_place))
        look_without_place(&where);
    else if (where.phase == MS_BACKWARD && where.paths[where.count - 1] == MS_GLOBAL)
        where.paths[where.count - 1] = path_of_current_node();
    else if (where.phase == MS_IDLE && mst_graph_task() != -1)
        where.phase = MS_BACKWARD;
    return where;
}

uint64_t mst_read_context(ms_thread *thread)
{
    if (LIKELY(mst_calls_place && mst_nodes_place)) {
        uint64_t path = ms_thread_path(thread);
        return ms_thread_phase(thread) == MS_BACKWARD ? path | MST_IN_NODE : path;
    }
    struct where where = look(true);
    uint64_t path = where.count ? where.paths[where.count - 1] : MS_GLOBAL;
    return where.phase == MS_BACKWARD ? path | MST_IN_NODE : path;
}

ms_path mst_read_where(ms_phase *phase)
{
    struct where where = look(true);
    *phase = where.phase;
    return where.count ? where.paths[where.count - 1] : MS_GLOBAL;
}

PyObject *mst_read_parents(bool active)
{
    struct where where = look(active);
    PyObject *parents = PySet_New(NULL);
    if (!parents || PySet_Add(parents, mst_words.Global) != 0)
        goto failed;
    for (size_t i = 0; i < where.count; i++)
        for (ms_path path = where.paths[i]; path != MS_GLOBAL; path = ms_path_parent(mst_watch, path)) {
            PyObject *fqn = mst_fqn(path);
            if (!fqn || PySet_Add(parents, fqn) != 0)
                goto failed;
        }
    return parents;
failed:
    Py_XDECREF(parents);
    return NULL;
}

/* The names of `path` below what it shares with `before`, outermost first. */
static int append_names(PyObject *stack, ms_path before, ms_path path)
{
    if (path == MS_GLOBAL)
        return 0;
    for (ms_path at = before; at != MS_GLOBAL; at = ms_path_parent(mst_watch, at))
        if (at == path)
            return 0;
    PyObject *fqn = mst_fqn(path);
    if (!fqn || append_names(stack, before, ms_path_parent(mst_watch, path)) != 0)
        return -1;
    return PyList_Append(stack, fqn);
}

PyObject *mst_read_stack(bool active)
{
    struct where where = look(active);
    PyObject *stack = PyList_New(0);
    for (size_t i = 0; stack && i < where.count; i++)
        if (append_names(stack, i ? where.paths[i - 1] : MS_GLOBAL, where.paths[i]) != 0)
            Py_CLEAR(stack);
    return stack;
}

PyObject *mst_read_current(bool active)
{
    struct where where = look(active);
    ms_path path = where.count ? where.paths[where.count - 1] : MS_GLOBAL;
    for (size_t i = where.count; path == MS_GLOBAL && i-- > 0;)
        path = where.paths[i];
    return Py_XNewRef(mst_fqn(path));
}

/* Whether Python's innermost frame of the three kinds that matter is an optimizer's step. */
bool mst_in_optimizer(void)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    bool inside = false, more = mst_torch.optimizer_code != NULL;
    while (frame && more) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        inside = code == mst_torch.optimizer_code;
        more = !inside && code != mst_torch.call_code && code != mst_torch.backward_code;
        Py_DECREF(code);
        PyFrameObject *back = more ? PyFrame_GetBack(frame) : NULL;
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return inside;
}

PyObject *mst_read_phase(bool active)
{
    static const char *const names[] = {"idle", "forward", "recompute", "backward", "optimizer"};
    if (active && mst_in_optimizer())
        return PyUnicode_InternFromString("optimizer");
    ms_phase phase = look(active).phase;
    return PyUnicode_InternFromString(names[phase == MS_OPTIMIZER ? MS_IDLE : phase]); /* a step that raised */
}
