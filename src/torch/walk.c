/* walk.c - one walk of a graph: the user's hooks when gradients come.
 *
 * A walk (a graph task of autograd's) is a Task: the calls whose pre_bw came in it, its
 * visits, so that post_bw comes once, after it, in the same walk. The engine owns the Task
 * as a callback to run at the end, and drops it if the walk fails. */
#include "torch/graph.h"

#include <stdlib.h>

struct visit {
    mst_graph_call *call;
    PyObject *grads;
    Py_ssize_t awaited; /* inputs whose gradient is still to come; 0: told at the end of the task */
    bool told;
};

typedef struct mst_task {
    PyObject_HEAD long long id;
    struct visit *visits;
    size_t count, room;
    struct mst_task *next;
} task;

static PyTypeObject task_type;
static task *tasks; /* all that live */

/* ---- visits ---- */
static struct visit *visit_of(mst_graph_call *call, task *task)
{
    if (call->visited == task)
        return &task->visits[call->visit];
    for (size_t i = task->count; i-- > 0;)
        if (task->visits[i].call == call)
            return &task->visits[i];
    return NULL;
}

static task *task_find(long long id)
{
    task *task = tasks;
    while (task && task->id != id)
        task = task->next;
    return task;
}

static task *task_begin(long long id)
{
    task *task = PyObject_New(struct mst_task, &task_type);
    if (!task)
        return NULL;
    task->id = id;
    task->visits = NULL;
    task->count = task->room = 0;
    task->next = tasks;
    tasks = task;
    PyObject *queued = PyObject_CallOneArg(mst_torch.queue_callback, (PyObject *)task);
    Py_DECREF(task);
    if (!queued)
        return NULL;
    Py_DECREF(queued);
    return task;
}

static void task_dealloc(task *task)
{
    struct mst_task **at = &tasks;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    for (size_t i = 0; i < task->count; i++) {
        struct visit *visit = &task->visits[i];
        if (visit->call->visited == task)
            visit->call->visited = NULL;
        Py_XDECREF(visit->grads);
        Py_DECREF(visit->call);
    }
    free(task->visits);
    PyObject_Free(task);
}

/* How many inputs this walk will reach. A leaf's node cannot be had without running an
 * operator, so a leaf counts; if its gradient does not come, the end of the walk does. */
static Py_ssize_t awaited_by(const mst_graph_call *call)
{
    if (!call->nodes)
        return call->inputs;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(call->nodes); i++) {
        PyObject *node = PyList_GET_ITEM(call->nodes, i);
        PyObject *runs = node != Py_None ? PyObject_CallOneArg(mst_torch.will_execute, node) : NULL;
        count += !runs || PyObject_IsTrue(runs) == 1;
        Py_XDECREF(runs);
        PyErr_Clear();
    }
    return count;
}

static struct visit *visit_add(mst_graph_call *call, task *task)
{
    if (task->count == task->room) {
        size_t room = task->room ? task->room * 2 : 16;
        struct visit *visits = realloc(task->visits, room * sizeof *visits);
        if (!visits)
            return PyErr_NoMemory(), NULL;
        task->visits = visits;
        task->room = room;
    }
    task->visits[task->count] = (struct visit){(mst_graph_call *)Py_NewRef(call), NULL, awaited_by(call), false};
    call->visited = task;
    call->visit = task->count;
    return &task->visits[task->count++];
}

/* ---- telling ---- */

/* Run a hook while its module counts as running, under the name it had in this call. */
static int tell(mst_graph_call *call, enum mst_hook which, PyObject *grads)
{
    PyObject *module = Py_NewRef(((PyWeakReference *)call->module)->wr_object);
    struct mst_call running = {mst_open, mst_here(), module, call->path, -1};
    if (running.thread)
        ms_hold_enter(running.thread, call->path);
    mst_open = &running;
    PyObject *args[] = {module, grads};
    int error = mst_hooks_call(which, args, 2);
    mst_open = running.outer;
    if (running.thread)
        ms_hold_leave(running.thread);
    Py_DECREF(module);
    return error;
}

int mst_walk_pre(mst_graph_call *call, PyObject *grad)
{
    long long id = mst_graph_task();
    task *task = task_find(id);
    if (!task && !(task = task_begin(id)))
        return -1;
    if (visit_of(call, task))
        return 0;
    if (!visit_add(call, task))
        return -1;
    PyObject *grads = PyTuple_Pack(1, grad);
    int error = grads ? tell(call, MST_PRE_BW, grads) : -1;
    Py_XDECREF(grads);
    return error;
}

static int tell_post(task *task, size_t at)
{
    struct visit *visit = &task->visits[at];
    mst_graph_call *call = visit->call;
    PyObject *list = visit->grads;
    visit->grads = NULL;
    visit->told = true;
    PyObject *grads = list && !visit->awaited ? PyTuple_Pack(1, list) : PyTuple_New(0);
    Py_XDECREF(list);
    int error = grads ? tell(call, MST_POST_BW, grads) : -1;
    Py_XDECREF(grads);
    return error;
}

/* The gradient of one input came. */
int mst_walk_grad(mst_graph_call *call, Py_ssize_t index, PyObject *grad)
{
    task *task = task_find(mst_graph_task());
    struct visit *visit = task ? visit_of(call, task) : NULL;
    if (!visit || visit->told || !visit->awaited)
        return 0;
    if (!visit->grads) {
        visit->grads = PyList_New(call->inputs);
        for (Py_ssize_t i = 0; visit->grads && i < call->inputs; i++)
            PyList_SET_ITEM(visit->grads, i, Py_NewRef(Py_None));
        if (!visit->grads)
            return -1;
    }
    PyList_SetItem(visit->grads, index, Py_NewRef(grad));
    if (--visit->awaited > 0)
        return 0;
    return tell_post(task, (size_t)(visit - task->visits));
}

/* At the end of a walk: what has no input to wait for, last call first. */
static PyObject *task_call(task *task, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    for (;;) {
        size_t last = task->count;
        for (size_t i = 0; i < task->count; i++)
            if (!task->visits[i].told &&
                (last == task->count || task->visits[i].call->serial > task->visits[last].call->serial))
                last = i;
        if (last == task->count)
            Py_RETURN_NONE;
        if (tell_post(task, last) != 0)
            return NULL;
    }
}

static PyTypeObject task_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Task",
    .tp_basicsize = sizeof(task),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)task_dealloc,
    .tp_call = (ternaryfunc)task_call,
};

int mst_walk_init(void)
{
    return PyType_Ready(&task_type);
}
