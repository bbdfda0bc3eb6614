/* graph.c - what is hung on tensors so that a module's backward can be told.
 *
 * A call whose backward is to be told is an object (GraphCall). It hangs on the outputs the
 * call made: the graph owns it, and it dies with the graph. Each input tensor carries one
 * InputHook, however many calls take it, which points to those calls weakly. So a leaf used
 * in many iterations collects nothing, and what a call knows of its inputs points the way
 * the graph itself does: no cycle.
 *
 *   output's node --> GraphCall --> the inputs' nodes (only where there are several)
 *   input's node  --> InputHook ..> GraphCall
 *
 * A module that returns what it was given makes no node to hang on: there the InputHook
 * owns the call (a link that is `through`), and the call owns no node.
 *
 * What happens when a gradient comes is in walk.c. A tensor that takes no hook is passed
 * over: the program goes on, and the call has no backward events. */
#include "torch/graph.h"

#include <stdlib.h>

enum { THROUGH_KEPT = 4096 }; /* calls that returned one and the same tensor */

typedef struct input_hook input_hook;

struct mst_link {
    mst_graph_call *call; /* owned if through */
    input_hook *hook;
    struct mst_link *next, *previous; /* in the hook, oldest first */
    struct mst_link *sibling;         /* in the call */
    Py_ssize_t index;                 /* which input; -1 if through */
    bool through;
};

struct input_hook {
    PyObject_HEAD
    PyObject *hooks; /* weak reference to the dict it is in */
    struct mst_link *first, *last;
    size_t through_count;
    bool leaf;
};

static PyTypeObject graph_call_type, input_hook_type;
static PyObject *hook_key; /* where an InputHook is found among a tensor's hooks */
static uint64_t serials;

/* ---- links ---- */
static void link_drop(struct mst_link *link)
{
    input_hook *hook = link->hook;
    *(link->previous ? &link->previous->next : &hook->first) = link->next;
    *(link->next ? &link->next->previous : &hook->last) = link->previous;
    hook->through_count -= link->through;
    struct mst_link **at = &link->call->links;
    while (*at != link)
        at = &(*at)->sibling;
    *at = link->sibling;
    mst_graph_call *owned = link->through ? link->call : NULL;
    free(link);
    Py_XDECREF(owned);
}

static int link_add(input_hook *hook, mst_graph_call *call, Py_ssize_t index)
{
    struct mst_link *link = malloc(sizeof *link);
    if (!link)
        return PyErr_NoMemory(), -1;
    bool through = index < 0;
    *link = (struct mst_link){call, hook, NULL, hook->last, call->links, index, through};
    *(hook->last ? &hook->last->next : &hook->first) = link;
    hook->last = link;
    call->links = link;
    if (through)
        Py_INCREF(call);
    hook->through_count += through;
    for (struct mst_link *old = hook->first; hook->through_count > THROUGH_KEPT && old; old = old->next)
        if (old->through) {
            link_drop(old);
            break;
        }
    return 0;
}

/* ---- InputHook ---- */
static void input_hook_dealloc(input_hook *hook)
{
    /* The links that own their call last: a call that dies must find none of its links here. */
    for (struct mst_link *link = hook->first, *next; link; link = next) {
        next = link->next;
        if (!link->through)
            link_drop(link);
    }
    while (hook->first)
        link_drop(hook->first);
    Py_XDECREF(hook->hooks);
    PyObject_Free(hook);
}

/* Nobody needs it any more: take it off the tensor. */
static void input_hook_retire(input_hook *hook)
{
    if (hook->first || !hook->hooks)
        return;
    PyObject *hooks = ((PyWeakReference *)hook->hooks)->wr_object;
    if (hooks == Py_None)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_INCREF(hooks);
    PyObject_DelItem(hooks, hook_key);
    Py_DECREF(hooks);
    PyErr_Restore(type, value, traceback);
}

/* The dict of a tensor's hooks, made and told to autograd if need be. New reference. */
static PyObject *hooks_of(PyObject *tensor, PyObject *node)
{
    PyObject *hooks = PyObject_GetAttr(tensor, mst_words._backward_hooks);
    if (!hooks || hooks != Py_None)
        return hooks;
    Py_SETREF(hooks, PyObject_CallNoArgs((PyObject *)mst_torch.ordered_dict));
    if (!hooks || PyObject_SetAttr(tensor, mst_words._backward_hooks, hooks) != 0)
        goto failed;
    if (node != Py_None) {
        PyObject *done = PyObject_CallMethodOneArg(node, mst_words._register_hook_dict, tensor);
        if (!done)
            goto failed;
        Py_DECREF(done);
    }
    return hooks;
failed:
    Py_XDECREF(hooks);
    return NULL;
}

/* The tensor's InputHook, borrowed from its hooks. */
static input_hook *input_hook_on(PyObject *tensor, PyObject *node)
{
    PyObject *hooks = hooks_of(tensor, node);
    if (!hooks || !PyDict_Check(hooks)) {
        Py_XDECREF(hooks);
        return NULL;
    }
    input_hook *hook = (input_hook *)PyDict_GetItemWithError(hooks, hook_key);
    if (hook || PyErr_Occurred())
        goto done;
    hook = PyObject_New(input_hook, &input_hook_type);
    if (!hook)
        goto done;
    hook->first = hook->last = NULL;
    hook->through_count = 0;
    hook->leaf = node == Py_None;
    hook->hooks = PyWeakref_NewRef(hooks, NULL);
    int error = hook->hooks ? PyObject_SetItem(hooks, hook_key, (PyObject *)hook) : -1;
    Py_DECREF(hook);
    if (error)
        hook = NULL;
done:
    Py_DECREF(hooks);
    return hook;
}

/* ---- called by autograd ---- */
static PyObject *first_argument(PyObject *args)
{
    return PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
}

static PyObject *graph_call_call(mst_graph_call *call, PyObject *args, PyObject *named)
{
    (void)named;
    return mst_walk_pre(call, first_argument(args)) == 0 ? Py_NewRef(Py_None) : NULL;
}

struct due {
    mst_graph_call *call;
    Py_ssize_t index;
};

static PyObject *input_hook_call(input_hook *hook, PyObject *args, PyObject *named)
{
    (void)named;
    PyObject *grad = first_argument(args);
    size_t count = 0, at = 0;
    for (struct mst_link *link = hook->first; link; link = link->next)
        count++;
    struct due *due = malloc((count + 1) * sizeof *due); /* hooks may add and drop links */
    if (!due)
        return PyErr_NoMemory();
    for (struct mst_link *link = hook->first; link; link = link->next)
        due[at++] = (struct due){(mst_graph_call *)Py_NewRef(link->call), link->index};
    int error = 0;
    for (size_t i = count; !error && i-- > 0;) /* what returned the tensor last is met first */
        if (due[i].index < 0)
            error = mst_walk_pre(due[i].call, grad);
    for (size_t i = 0; !error && i < count; i++)
        if (due[i].index >= 0)
            error = mst_walk_grad(due[i].call, due[i].index, grad);
    Py_INCREF(hook);
    /* A leaf goes on to the next step, where these calls have no part. */
    for (struct mst_link *link = hook->leaf ? hook->first : NULL, *next; link; link = next) {
        next = link->next;
        if (link->through)
            link_drop(link);
    }
    for (size_t i = 0; i < count; i++)
        Py_DECREF(due[i].call);
    free(due);
    input_hook_retire(hook);
    Py_DECREF(hook);
    return error ? NULL : Py_NewRef(Py_None);
}

/* ---- GraphCall ---- */
static void graph_call_dealloc(mst_graph_call *call)
{
    while (call->links) {
        input_hook *hook = (input_hook *)Py_NewRef(call->links->hook);
        link_drop(call->links);
        input_hook_retire(hook);
        Py_DECREF(hook);
    }
    Py_XDECREF(call->nodes);
    Py_DECREF(call->module);
    PyObject_Free(call);
}

static int add_input(mst_graph_call *call, PyObject *tensor, Py_ssize_t index)
{
    PyObject *node = PyObject_GetAttr(tensor, mst_words.grad_fn);
    input_hook *hook = node ? input_hook_on(tensor, node) : NULL;
    int error = hook ? link_add(hook, call, index) : -1;
    if (!error && call->nodes)
        error = PyList_Append(call->nodes, node);
    Py_XDECREF(node);
    return error;
}

static int add_inputs(mst_graph_call *call, PyObject *args, PyObject *kwargs)
{
    PyObject *tensors = PyList_New(0);
    int error = !tensors || mst_tensors_in(args, tensors) != 0 || mst_tensors_in(kwargs, tensors) != 0 ? -1 : 0;
    call->inputs = error ? 0 : PyList_GET_SIZE(tensors);
    if (call->inputs > 1 && !(call->nodes = PyList_New(0)))
        error = -1;
    for (Py_ssize_t i = 0; !error && i < call->inputs; i++)
        error = add_input(call, PyList_GET_ITEM(tensors, i), i);
    Py_XDECREF(tensors);
    return error;
}

PyObject *mst_graph_begin(struct mst_call *call, PyObject *args, PyObject *kwargs)
{
    PyObject *enabled = PyObject_CallNoArgs(mst_torch.grad_enabled);
    Py_XDECREF(enabled);
    PyErr_Clear();
    struct mst_module *known = mst_book_find(mst_names, call->module);
    if (enabled != Py_True || !known)
        return NULL;
    mst_graph_call *graph = PyObject_New(mst_graph_call, &graph_call_type);
    struct mst_quiet quiet = {NULL};
    if (!graph)
        return PyErr_Clear(), NULL;
    graph->module = Py_NewRef(known->ref);
    graph->nodes = NULL;
    graph->links = NULL;
    graph->path = call->path;
    graph->serial = ++serials;
    graph->begin = mst_torch.peek ? mst_torch.peek() : 0;
    if (mst_quiet_enter(&quiet) != 0 || add_inputs(graph, args, kwargs) != 0)
        Py_CLEAR(graph);
    mst_quiet_leave(&quiet);
    PyErr_Clear();
    return (PyObject *)graph;
}

/* Whether the call itself made this node: then nothing that the node leads to holds the call. */
static bool made_in(const mst_graph_call *call, PyObject *node)
{
    if (node == Py_None)
        return false;
    PyObject *value = PyObject_CallMethodNoArgs(node, mst_words._sequence_nr);
    unsigned long long number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    PyErr_Clear();
    return number >= call->begin && mst_node_is_mine(node);
}

static int add_output(mst_graph_call *call, PyObject *tensor)
{
    PyObject *node = PyObject_GetAttr(tensor, mst_words.grad_fn);
    int error = -1;
    if (node && made_in(call, node)) {
        PyObject *hooks = hooks_of(tensor, node);
        error = hooks ? PyObject_SetItem(hooks, (PyObject *)call, (PyObject *)call) : -1;
        Py_XDECREF(hooks);
    } else if (node) {
        /* Now something before the call owns it: it may own nothing of the graph in turn. */
        Py_CLEAR(call->nodes);
        input_hook *hook = input_hook_on(tensor, node);
        error = hook ? link_add(hook, call, -1) : -1;
    }
    Py_XDECREF(node);
    return error;
}

void mst_graph_end(PyObject *graph, PyObject *output)
{
    struct mst_quiet quiet = {NULL};
    PyObject *tensors = PyList_New(0);
    int error = !tensors || mst_quiet_enter(&quiet) != 0 || mst_tensors_in(output, tensors) != 0 ? -1 : 0;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(tensors); i++)
        error = add_output((mst_graph_call *)graph, PyList_GET_ITEM(tensors, i));
    mst_quiet_leave(&quiet);
    Py_XDECREF(tensors);
    PyErr_Clear();
}

/* torch warns when a tensor with hooks is saved, unless they say that they are of no account. */
static PyObject *unserializable(PyObject *self, void *unused)
{
    (void)self, (void)unused;
    Py_RETURN_TRUE;
}

static PyGetSetDef hook_attributes[] = {
    {"__torch_unserializable__", unserializable, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject graph_call_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.GraphCall",
    .tp_basicsize = sizeof(mst_graph_call),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)graph_call_dealloc,
    .tp_call = (ternaryfunc)graph_call_call,
    .tp_getset = hook_attributes,
};

static PyTypeObject input_hook_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.InputHook",
    .tp_basicsize = sizeof(input_hook),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)input_hook_dealloc,
    .tp_call = (ternaryfunc)input_hook_call,
    .tp_getset = hook_attributes,
};

int mst_graph_init(void)
{
    hook_key = PyUnicode_InternFromString("modscope");
    return !hook_key || PyType_Ready(&graph_call_type) != 0 || PyType_Ready(&input_hook_type) != 0 ? -1
                                                                                                   : mst_walk_init();
}
