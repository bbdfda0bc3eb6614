/* walk.c - one walk of a graph: the user's hooks when gradients come.
 *
 * A walk (a graph task of autograd's) is a Task: the calls whose pre_bw came in it, its
 * visits, so that post_bw comes once, after it, in the same walk. The engine owns the Task
 * as a callback to run at the end, and drops it if the walk fails. */
#include "torch/graph.h"

#include "torch/map.h"

#include <stdlib.h>

struct visit {
    mst_graph_call *call;
    PyObject *grads;    /* of its inputs, None where none came yet */
    Py_ssize_t awaited; /* inputs whose gradient is still to come; 0: told at the end of the task */
    bool came, told;    /* a gradient of an input; post_bw */
};

typedef struct mst_task {
    PyObject_HEAD
    long long id;
    struct visit *visits; /* moved by what adds one: not to be held while Python may run */
    size_t count, room;
    struct mst_map by_call;
    struct mst_task *next;
} task;

struct due {
    uint64_t serial;
    size_t visit;
};

static PyTypeObject task_type;
static task *tasks; /* all that live */

/* ---- visits ---- */
static struct visit *visit_of(const mst_graph_call *call, const task *task)
{
    uint64_t *there = mst_map_get(&task->by_call, (uintptr_t)call, 0);
    return there ? &task->visits[*there] : NULL;
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
    task->by_call = (struct mst_map){0};
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
        Py_XDECREF(task->visits[i].grads);
        Py_DECREF(task->visits[i].call);
    }
    free(task->visits);
    mst_map_clear(&task->by_call);
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

static PyObject *list_of_none(Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
    return list;
}

static int visit_add(mst_graph_call *call, task *task)
{
    Py_ssize_t awaited = awaited_by(call);
    PyObject *grads = list_of_none(call->inputs);
    if (!grads)
        return -1;
    if (task->count == task->room) {
        size_t room = task->room ? task->room * 2 : 16;
        struct visit *visits = realloc(task->visits, room * sizeof *visits);
        if (!visits)
            goto failed;
        task->visits = visits;
        task->room = room;
    }
    if (!mst_map_set(&task->by_call, (uintptr_t)call, 0, task->count))
        goto failed;
    task->visits[task->count++] = (struct visit){(mst_graph_call *)Py_NewRef(call), grads, awaited, false, false};
    return 0;
failed:
    Py_DECREF(grads);
    PyErr_NoMemory();
    return -1;
}

/* ---- telling ---- */

/* Run a hook while its module counts as running, under the name it had in this call. */
static int tell(mst_graph_call *call, enum mst_hook which, PyObject *grads)
{
    PyObject *module = Py_NewRef(((PyWeakReference *)call->module)->wr_object);
    struct mst_call running = {mst_open, mst_here(), module, call->path, -1, false};
    if (running.thread)
        ms_override_enter(running.thread, call->path);
    mst_open = &running;
    PyObject *args[] = {module, grads};
    int error = mst_hooks_call(which, args, 2);
    mst_open = running.outer;
    if (running.thread)
        ms_override_leave(running.thread);
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
    if (visit_add(call, task) != 0)
        return -1;
    PyObject *grads = PyTuple_Pack(1, grad);
    int error = grads ? tell(call, MST_PRE_BW, grads) : -1;
    Py_XDECREF(grads);
    return error;
}

static int tell_post(struct visit *visit)
{
    mst_graph_call *call = visit->call; /* the task holds it, and somebody holds the task */
    PyObject *list = visit->grads;
    bool came = visit->came;
    visit->grads = NULL;
    visit->told = true;
    PyObject *grads = came ? PyTuple_Pack(1, list) : PyTuple_New(0);
    Py_XDECREF(list);
    int error = grads ? tell(call, MST_POST_BW, grads) : -1;
    Py_XDECREF(grads);
    return error;
}

int mst_walk_grad(mst_graph_call *call, Py_ssize_t index, PyObject *grad)
{
    task *task = task_find(mst_graph_task());
    struct visit *visit = task ? visit_of(call, task) : NULL;
    if (!visit || visit->told || !visit->awaited)
        return 0;
    visit->came = true;
    PyList_SetItem(visit->grads, index, Py_NewRef(grad));
    return --visit->awaited > 0 ? 0 : tell_post(visit);
}

static int latest_first(const void *one, const void *other)
{
    const struct due *a = one, *b = other;
    return a->serial < b->serial ? 1 : a->serial > b->serial ? -1 : 0;
}

/* Tell what is not told yet, last call first. The number told, or -1. */
static long tell_rest(task *task)
{
    struct due *due = malloc((task->count + 1) * sizeof *due);
    size_t count = 0;
    if (!due)
        return PyErr_NoMemory(), -1;
    for (size_t i = 0; i < task->count; i++)
        if (!task->visits[i].told)
            due[count++] = (struct due){task->visits[i].call->serial, i};
    qsort(due, count, sizeof *due, latest_first);
    int error = 0;
    for (size_t i = 0; !error && i < count; i++)
        if (!task->visits[due[i].visit].told)
            error = tell_post(&task->visits[due[i].visit]);
    free(due);
    return error ? -1 : (long)count;
}

/* At the end of a walk. A hook may begin another visit: go on until none is left. */
static PyObject *task_call(task *task, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    long told;
    while ((told = tell_rest(task)) > 0)
        ;
    return told == 0 ? Py_NewRef(Py_None) : NULL;
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
