/* fallback.c - module calls without the place: torch's global module hooks, given C functions.
 *
 * Used where the place cannot be taken. torch skips these hooks when a call ends by
 * KeyboardInterrupt or the like; such calls are found out by counting Python's frames. */
#include "torch/memory.h"

#include <stdlib.h>

struct open_call {
    struct mst_call call;
    struct open_call *outer;
    PyObject *module; /* borrowed */
    PyObject *graph;  /* or NULL */
    int depth;        /* the how-manieth _call_impl frame of the thread it is */
    bool shown;
};

static _Thread_local struct open_call *innermost;
static PyObject *pre_handle, *post_handle;

static int call_frames(void)
{
    int count = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        count += code == mst_torch.call_code;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_SETREF(frame, back);
    }
    return count;
}

static void close_innermost(void)
{
    struct open_call *open = innermost;
    innermost = open->outer;
    if (open->shown)
        mst_call_leave(&open->call);
    Py_XDECREF(open->graph);
    free(open);
}

static void heal_above(int depth)
{
    while (innermost && innermost->depth > depth)
        close_innermost();
}

void mst_fallback_heal(void)
{
    if (innermost)
        heal_above(call_frames());
}

/* torch hands the keyword arguments to no global pre-hook, but the frame that calls it has them. */
static PyObject *keywords(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *locals = frame ? PyObject_GetAttrString((PyObject *)frame, "f_locals") : NULL;
    PyObject *found = locals ? PyObject_GetItem(locals, mst_words.kwargs) : NULL;
    Py_XDECREF(locals);
    PyErr_Clear();
    return found;
}

static void begin_graph(struct open_call *open, PyObject *inputs)
{
    PyObject *named = keywords();
    open->graph = mst_graph_begin(&open->call, inputs, named);
    Py_XDECREF(named);
}

static PyObject *before_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (!mst_awake || count < 2)
        Py_RETURN_NONE;
    int depth = call_frames();
    heal_above(depth - 1);
    struct open_call *open = calloc(1, sizeof *open);
    if (!open)
        Py_RETURN_NONE;
    open->shown = mst_call_enter(&open->call, args[0]);
    open->module = args[0];
    open->depth = depth;
    open->outer = innermost;
    innermost = open;
    if (open->shown && mst_ledger)
        mst_measure(open->call.thread, false, &args[1], 1, 0);
    if (!open->shown || !mst_hooks_wanted)
        Py_RETURN_NONE;
    if (mst_hooks_call(MST_PRE_FW, args, 2) != 0)
        return NULL;
    if (mst_hooks_wanted >> MST_PRE_BW)
        begin_graph(open, args[1]);
    Py_RETURN_NONE;
}

static PyObject *after_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    int depth = innermost && count >= 3 ? call_frames() : 0;
    heal_above(depth);
    if (!innermost || innermost->module != args[0] || innermost->depth != depth)
        Py_RETURN_NONE;
    int failed = 0;
    if (innermost->shown && mst_awake)
        failed = mst_hooks_call(MST_POST_FW, args, 3);
    if (!failed && innermost->graph && args[2] != Py_None)
        mst_graph_end(innermost->graph, args[2]);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (innermost->shown && mst_ledger && args[2] != Py_None)
        mst_measure(innermost->call.thread, true, &args[2], 1, 0);
    close_innermost();
    PyErr_Restore(type, value, traceback);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef before_def = {"before_forward", (PyCFunction)(void (*)(void))before_forward, METH_FASTCALL, NULL};
static PyMethodDef after_def = {"after_forward", (PyCFunction)(void (*)(void))after_forward, METH_FASTCALL, NULL};

static void remove_handle(PyObject **handle)
{
    PyObject *result = *handle ? PyObject_CallMethod(*handle, "remove", NULL) : NULL;
    if (!result)
        PyErr_Clear();
    Py_XDECREF(result);
    Py_CLEAR(*handle);
}

int mst_fallback_on(void)
{
    PyObject *modules = PyImport_ImportModule("torch.nn.modules.module");
    PyObject *before = PyCFunction_New(&before_def, NULL), *after = PyCFunction_New(&after_def, NULL);
    PyObject *add_post = modules ? PyObject_GetAttrString(modules, "register_module_forward_hook") : NULL;
    PyObject *args = Py_BuildValue("(O)", after), *named = Py_BuildValue("{s:O}", "always_call", Py_True);
    if (before && after && add_post && args && named) {
        pre_handle = PyObject_CallMethod(modules, "register_module_forward_pre_hook", "O", before);
        post_handle = pre_handle ? PyObject_Call(add_post, args, named) : NULL;
    }
    Py_XDECREF(modules);
    Py_XDECREF(before);
    Py_XDECREF(after);
    Py_XDECREF(add_post);
    Py_XDECREF(args);
    Py_XDECREF(named);
    if (post_handle)
        return 0;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    remove_handle(&pre_handle);
    PyErr_Restore(type, value, traceback);
    return -1;
}

void mst_fallback_off(void)
{
    remove_handle(&pre_handle);
    remove_handle(&post_handle);
}
