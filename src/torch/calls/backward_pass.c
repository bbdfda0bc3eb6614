/* backward_pass.c - one backward pass of autograd: call the user's hooks when gradients arrive.
 *
 * A backward pass (autograd's graph task) is an object (BackwardPass). It lists the calls whose
 * pre_bw was called in it, its visits, so that post_bw is called once, later, in the same pass.
 * The engine owns the object as a callback to run at the end, and drops it if the pass fails. */
#include "torch/calls/calls.h"
#include "torch/process/process.h"

#include "base/array.h"
#include "base/map.h"

#include <stdlib.h>

struct visit {
    mst_backward_call *call;
    PyObject *grads;    /* a list: the gradients of its inputs, None where none has arrived */
    Py_ssize_t awaited; /* inputs whose gradient has not arrived; 0: post_bw is called at the end of the pass */
    bool any_arrived;   /* the gradient of an input has arrived */
    bool post_called;   /* post_bw was called */
};

typedef struct backward_pass {
    PyObject_HEAD
    long long id;         /* of the graph task */
    struct visit *visits; /* Adding a visit may move them: hold no pointer to one while Python runs. */
    size_t count, room;
    struct ms__map by_call; /* mst_backward_call -> index of its visit */
    struct backward_pass *next;
} backward_pass;

struct unfinished_visit {
    uint64_t serial; /* of its call */
    size_t at;       /* index */
};

static PyTypeObject backward_pass_type;
static backward_pass *passes; /* all that run */

/* ---- visits ---- */
static struct visit *visit_of(const mst_backward_call *call, const backward_pass *pass)
{
    uint64_t found = ms__map_get(&pass->by_call, (uintptr_t)call);
    return found != MS__MAP_NONE ? &pass->visits[found] : NULL;
}

static backward_pass *pass_find(long long id)
{
    backward_pass *pass = passes;
    while (pass && pass->id != id)
        pass = pass->next;
    return pass;
}

static backward_pass *pass_begin(long long id)
{
    backward_pass *pass = PyObject_New(struct backward_pass, &backward_pass_type);
    if (!pass)
        return NULL;
    pass->id = id;
    pass->visits = NULL;
    pass->count = pass->room = 0;
    pass->by_call = (struct ms__map){0};
    pass->next = passes;
    passes = pass;
    PyObject *queued = PyObject_CallOneArg(mst.torch.queue_callback, (PyObject *)pass);
    Py_DECREF(pass);
    if (!queued)
        return NULL;
    Py_DECREF(queued);
    return pass;
}

static void pass_dealloc(backward_pass *pass)
{
    struct backward_pass **at = &passes;
    while (*at != pass)
        at = &(*at)->next;
    *at = pass->next;
    for (size_t i = 0; i < pass->count; i++) {
        Py_XDECREF(pass->visits[i].grads);
        Py_DECREF(pass->visits[i].call);
    }
    free(pass->visits);
    ms__map_clear(&pass->by_call);
    PyObject_Free(pass);
}

/* How many inputs this pass will reach. A leaf's node cannot be read without running an operator,
 * so a leaf is counted; if its gradient does not arrive, post_bw is called at the end of the pass. */
static Py_ssize_t count_awaited(const mst_backward_call *call)
{
    if (!call->nodes)
        return call->inputs;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(call->nodes); i++) {
        PyObject *node = PyList_GET_ITEM(call->nodes, i);
        PyObject *runs = node != Py_None ? PyObject_CallOneArg(mst.torch.will_execute, node) : NULL;
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

static int visit_add(mst_backward_call *call, backward_pass *pass)
{
    Py_ssize_t awaited = count_awaited(call);
    PyObject *grads = list_of_none(call->inputs);
    if (!grads)
        return -1;
    if (!MS__ARRAY_GROW(pass->visits, pass->room, pass->count + 1) ||
        !ms__map_set(&pass->by_call, (uintptr_t)call, pass->count)) {
        Py_DECREF(grads);
        return PyErr_NoMemory(), -1;
    }
    pass->visits[pass->count++] = (struct visit){(mst_backward_call *)Py_NewRef(call), grads, awaited, false, false};
    return 0;
}

/* ---- calling hooks ---- */

/* Call a hook while its module counts as running, by the name that it had in this call. */
static int call_hook(mst_backward_call *call, enum mst_hook which, PyObject *grads)
{
    PyObject *module = Py_NewRef(((PyWeakReference *)call->module)->wr_object);
    struct mst_call running = {mst_open_call, mst_thread_here(), module, call->path, -1, false, NULL};
    if (running.thread)
        ms_override_enter(running.thread, call->path);
    mst_open_call = &running;
    PyObject *args[] = {module, grads};
    int error = mst_user_hooks_call(which, args, 2);
    mst_open_call = running.outer;
    if (running.thread)
        ms_override_leave(running.thread);
    Py_DECREF(module);
    return error;
}

int mst_backward_pass_output_grad(mst_backward_call *call, PyObject *grad)
{
    long long id = mst_graph_task_id();
    backward_pass *pass = pass_find(id);
    if (!pass)
        pass = pass_begin(id);
    if (pass && visit_of(call, pass))
        return 0;
    PyObject *grads = pass && visit_add(call, pass) == 0 ? PyTuple_Pack(1, grad) : NULL;
    if (!grads)
        mst_clear_error();
    int error = grads ? call_hook(call, MST_PRE_BW, grads) : 0;
    Py_XDECREF(grads);
    return error;
}

static int call_post_hook(struct visit *visit)
{
    mst_backward_call *call = visit->call; /* The pass owns it, and the caller holds the pass. */
    PyObject *list = visit->grads;
    bool any_arrived = visit->any_arrived;
    visit->grads = NULL;
    visit->post_called = true;
    PyObject *grads = any_arrived ? PyTuple_Pack(1, list) : PyTuple_New(0);
    Py_XDECREF(list);
    if (!grads)
        mst_clear_error();
    int error = grads ? call_hook(call, MST_POST_BW, grads) : 0;
    Py_XDECREF(grads);
    return error;
}

int mst_backward_pass_input_grad(mst_backward_call *call, Py_ssize_t index, PyObject *grad)
{
    backward_pass *pass = pass_find(mst_graph_task_id());
    struct visit *visit = pass ? visit_of(call, pass) : NULL;
    if (!visit || visit->post_called || !visit->awaited)
        return 0;
    visit->any_arrived = true;
    PyList_SetItem(visit->grads, index, Py_NewRef(grad));
    return --visit->awaited > 0 ? 0 : call_post_hook(visit);
}

static int compare_latest_first(const void *one, const void *other)
{
    const struct unfinished_visit *a = one, *b = other;
    return a->serial < b->serial ? 1 : a->serial > b->serial ? -1 : 0;
}

/* Call the post_bw hooks that are left, last call first. Returns how many, or -1 with the error of a hook. */
static long call_remaining_hooks(backward_pass *pass)
{
    struct unfinished_visit *visits = malloc((pass->count + 1) * sizeof *visits);
    size_t count = 0;
    if (!visits)
        return 0;
    for (size_t i = 0; i < pass->count; i++)
        if (!pass->visits[i].post_called)
            visits[count++] = (struct unfinished_visit){pass->visits[i].call->serial, i};
    qsort(visits, count, sizeof *visits, compare_latest_first);
    int error = 0;
    for (size_t i = 0; !error && i < count; i++)
        if (!pass->visits[visits[i].at].post_called)
            error = call_post_hook(&pass->visits[visits[i].at]);
    free(visits);
    return error ? -1 : (long)count;
}

/* At the end of a pass. A hook may begin another visit, so this repeats until none is left. */
static PyObject *pass_call(backward_pass *pass, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    long called;
    while ((called = call_remaining_hooks(pass)) > 0)
        ;
    return called == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyTypeObject backward_pass_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.BackwardPass",
    .tp_basicsize = sizeof(backward_pass),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)pass_dealloc,
    .tp_call = (ternaryfunc)pass_call,
};

int mst_backward_pass_init(void)
{
    return PyType_Ready(&backward_pass_type);
}
