/* backward_hooks.c - hooks on tensors, through which the backward of a call is reported.
 *
 * A call whose backward is to be reported is an object (BackwardCall). The outputs that the
 * call created own it, so it dies with the graph. Each input tensor has one InputHook, however
 * many calls take that tensor. It refers to those calls weakly, so a leaf that is used in many
 * training steps does not collect calls. A call refers to its inputs' nodes in the direction in
 * which the graph itself does, so there is no cycle.
 *
 *   output's node --> BackwardCall --> the inputs' nodes (only where there are several)
 *   input's node  --> InputHook ..> BackwardCall
 *
 * A module that returns its input creates no node that could own the call. There the InputHook
 * owns the call (its link is `returned`), and the call owns no node.
 *
 * backward_pass.c handles the gradients that arrive. A tensor that accepts no hook is ignored:
 * the program continues, and the call has no backward events. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdlib.h>

enum { MAX_RETURNED_LINKS = 4096 }; /* of one tensor; older ones are dropped */

typedef struct input_hook input_hook;

/* Connects an InputHook and a call. It is in a list of each. */
struct mst_link {
    mst_backward_call *call; /* owned if `returned` */
    input_hook *hook;
    struct mst_link *next, *previous; /* in the hook's list, oldest first */
    struct mst_link *sibling;         /* in the call's list */
    Py_ssize_t index;                 /* which input of the call it is; -1 if `returned` */
    bool returned;                    /* the call returned this tensor without creating a node */
};

struct input_hook {
    PyObject_HEAD
    PyObject *hooks; /* a weak reference to the dict of the tensor's hooks, which owns it */
    struct mst_link *first, *last;
    size_t returned_count; /* links that are `returned` */
    bool leaf;
};

static PyTypeObject backward_call_type, input_hook_type;
static PyObject *hook_key;   /* the key of an InputHook in the dict of a tensor's hooks */
static uint64_t last_serial; /* of the latest call */

/* ---- links ---- */
static void link_drop(struct mst_link *link)
{
    input_hook *hook = link->hook;
    *(link->previous ? &link->previous->next : &hook->first) = link->next;
    *(link->next ? &link->next->previous : &hook->last) = link->previous;
    hook->returned_count -= link->returned;
    struct mst_link **at = &link->call->links;
    while (*at != link)
        at = &(*at)->sibling;
    *at = link->sibling;
    mst_backward_call *owned = link->returned ? link->call : NULL;
    free(link);
    Py_XDECREF(owned);
}

static int link_add(input_hook *hook, mst_backward_call *call, Py_ssize_t index)
{
    struct mst_link *link = malloc(sizeof *link);
    if (!link)
        return PyErr_NoMemory(), -1;
    bool returned = index < 0;
    *link = (struct mst_link){call, hook, NULL, hook->last, call->links, index, returned};
    *(hook->last ? &hook->last->next : &hook->first) = link;
    hook->last = link;
    call->links = link;
    if (returned)
        Py_INCREF(call);
    hook->returned_count += returned;
    for (struct mst_link *old = hook->first; hook->returned_count > MAX_RETURNED_LINKS && old; old = old->next)
        if (old->returned) {
            link_drop(old);
            break;
        }
    return 0;
}

/* ---- InputHook ---- */
static void input_hook_dealloc(input_hook *hook)
{
    /* The links that own their call are dropped last: a call that dies must find none of its links here. */
    for (struct mst_link *link = hook->first, *next; link; link = next) {
        next = link->next;
        if (!link->returned)
            link_drop(link);
    }
    while (hook->first)
        link_drop(hook->first);
    Py_XDECREF(hook->hooks);
    PyObject_Free(hook);
}

/* Remove the hook from the tensor if no call needs it any more. */
static void input_hook_remove_unused(input_hook *hook)
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

/* The dict of a tensor's hooks, created and registered with autograd if need be. New reference, or NULL with an
 * error set. */
static PyObject *hooks_of(PyObject *tensor, PyObject *node)
{
    PyObject *hooks = PyObject_GetAttr(tensor, mst.interned._backward_hooks);
    if (!hooks || hooks != Py_None)
        return hooks;
    Py_SETREF(hooks, PyObject_CallNoArgs((PyObject *)mst.torch.ordered_dict));
    if (!hooks || PyObject_SetAttr(tensor, mst.interned._backward_hooks, hooks) != 0)
        goto failed;
    if (node != Py_None) {
        PyObject *done = PyObject_CallMethodOneArg(node, mst.interned._register_hook_dict, tensor);
        if (!done)
            goto failed;
        Py_DECREF(done);
    }
    return hooks;
failed:
    Py_XDECREF(hooks);
    return NULL;
}

/* The tensor's InputHook, created if need be: borrowed from the tensor's hooks, or NULL. */
static input_hook *input_hook_of(PyObject *tensor, PyObject *node)
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
    hook->returned_count = 0;
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

static PyObject *backward_call_call(mst_backward_call *call, PyObject *args, PyObject *named)
{
    (void)named;
    return mst_backward_pass_output_grad(call, first_argument(args)) == 0 ? Py_NewRef(Py_None) : NULL;
}

struct affected_call {
    mst_backward_call *call; /* owned */
    Py_ssize_t index;        /* as in struct mst_link */
};

static PyObject *input_hook_call(input_hook *hook, PyObject *args, PyObject *named)
{
    (void)named;
    PyObject *grad = first_argument(args);
    size_t count = 0, at = 0;
    for (struct mst_link *link = hook->first; link; link = link->next)
        count++;
    struct affected_call *calls = malloc((count + 1) * sizeof *calls); /* The user's hooks may add and drop links. */
    if (!calls) /* The calls of this tensor get no hook; the program's backward must not fail for that. */
        Py_RETURN_NONE;
    for (struct mst_link *link = hook->first; link; link = link->next)
        calls[at++] = (struct affected_call){(mst_backward_call *)Py_NewRef(link->call), link->index};
    int error = 0;
    for (size_t i = count; !error && i-- > 0;) /* backward runs in the opposite order of the calls */
        if (calls[i].index < 0)
            error = mst_backward_pass_output_grad(calls[i].call, grad);
    for (size_t i = 0; !error && i < count; i++)
        if (calls[i].index >= 0)
            error = mst_backward_pass_input_grad(calls[i].call, calls[i].index, grad);
    Py_INCREF(hook);
    /* A leaf is used again in the next training step, which these calls do not belong to. */
    for (struct mst_link *link = hook->leaf ? hook->first : NULL, *next; link; link = next) {
        next = link->next;
        if (link->returned)
            link_drop(link);
    }
    for (size_t i = 0; i < count; i++)
        Py_DECREF(calls[i].call);
    free(calls);
    input_hook_remove_unused(hook);
    Py_DECREF(hook);
    return error ? NULL : Py_NewRef(Py_None);
}

/* ---- BackwardCall ---- */
static void backward_call_dealloc(mst_backward_call *call)
{
    while (call->links) {
        input_hook *hook = (input_hook *)Py_NewRef(call->links->hook);
        link_drop(call->links);
        input_hook_remove_unused(hook);
        Py_DECREF(hook);
    }
    Py_XDECREF(call->nodes);
    Py_DECREF(call->module);
    PyObject_Free(call);
}

static int add_input(mst_backward_call *call, PyObject *tensor, Py_ssize_t index)
{
    PyObject *node = PyObject_GetAttr(tensor, mst.interned.grad_fn);
    input_hook *hook = node ? input_hook_of(tensor, node) : NULL;
    int error = hook ? link_add(hook, call, index) : -1;
    if (!error && call->nodes)
        error = PyList_Append(call->nodes, node);
    Py_XDECREF(node);
    return error;
}

static int add_inputs(mst_backward_call *call, PyObject *args, PyObject *kwargs)
{
    PyObject *tensors = PyList_New(0);
    int error = !tensors || mst_append_grad_tensors(args, tensors) != 0 || mst_append_grad_tensors(kwargs, tensors) != 0
                    ? -1
                    : 0;
    call->inputs = error ? 0 : PyList_GET_SIZE(tensors);
    if (call->inputs > 1 && !(call->nodes = PyList_New(0)))
        error = -1;
    for (Py_ssize_t i = 0; !error && i < call->inputs; i++)
        error = add_input(call, PyList_GET_ITEM(tensors, i), i);
    Py_XDECREF(tensors);
    return error;
}

PyObject *mst_backward_hooks_begin(struct mst_call *call, PyObject *args, PyObject *kwargs)
{
    struct mst_module *known = mst_registry_find(mst.registry, call->module);
    if (!known || !mst_grad_enabled())
        return NULL;
    mst_backward_call *created = PyObject_New(mst_backward_call, &backward_call_type);
    struct mst_torch_function_guard guard = {NULL};
    if (!created)
        return PyErr_Clear(), NULL;
    created->module = Py_NewRef(known->ref);
    created->nodes = NULL;
    created->links = NULL;
    created->path = call->path;
    created->serial = ++last_serial;
    created->first_node = mst_next_node_number();
    if (mst_torch_function_disable(&guard) != 0 || add_inputs(created, args, kwargs) != 0)
        Py_CLEAR(created);
    mst_torch_function_restore(&guard);
    mst_clear_error();
    return (PyObject *)created;
}

/* Whether the call itself created this node: then no node that this one leads to owns the call. */
static bool created_node(const mst_backward_call *call, PyObject *node)
{
    if (node == Py_None)
        return false;
    PyObject *value = PyObject_CallMethodNoArgs(node, mst.interned._sequence_nr);
    unsigned long long number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    PyErr_Clear();
    return number >= call->first_node && mst_node_is_of_this_thread(node);
}

static int add_output(mst_backward_call *call, PyObject *tensor)
{
    PyObject *node = PyObject_GetAttr(tensor, mst.interned.grad_fn);
    int error = -1;
    if (node && created_node(call, node)) {
        PyObject *hooks = hooks_of(tensor, node);
        error = hooks ? PyObject_SetItem(hooks, (PyObject *)call, (PyObject *)call) : -1;
        Py_XDECREF(hooks);
    } else if (node) {
        /* A node from before the call will own the call, so the call must not own nodes. */
        Py_CLEAR(call->nodes);
        input_hook *hook = input_hook_of(tensor, node);
        error = hook ? link_add(hook, call, -1) : -1;
    }
    Py_XDECREF(node);
    return error;
}

void mst_backward_hooks_end(PyObject *backward_call, PyObject *output)
{
    struct mst_torch_function_guard guard = {NULL};
    PyObject *tensors = PyList_New(0);
    int error =
        !tensors || mst_torch_function_disable(&guard) != 0 || mst_append_grad_tensors(output, tensors) != 0 ? -1 : 0;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(tensors); i++)
        error = add_output((mst_backward_call *)backward_call, PyList_GET_ITEM(tensors, i));
    mst_torch_function_restore(&guard);
    Py_XDECREF(tensors);
    mst_clear_error();
}

/* torch warns when a tensor with hooks is saved, unless the hooks have this attribute. */
static PyObject *unserializable(PyObject *self, void *unused)
{
    (void)self, (void)unused;
    Py_RETURN_TRUE;
}

static PyGetSetDef hook_attributes[] = {
    {"__torch_unserializable__", unserializable, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject backward_call_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.BackwardCall",
    .tp_basicsize = sizeof(mst_backward_call),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)backward_call_dealloc,
    .tp_call = (ternaryfunc)backward_call_call,
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

int mst_backward_hooks_init(void)
{
    hook_key = PyUnicode_InternFromString("modscope");
    return !hook_key || PyType_Ready(&backward_call_type) != 0 || PyType_Ready(&input_hook_type) != 0
               ? -1
               : mst_backward_pass_init();
}
