/* fallback_hooks.c - module calls where they are not intercepted: torch's global module hooks, which call C functions.
 *
 * torch does not call these hooks when a call ends by KeyboardInterrupt or a similar exception.
 * Such abandoned calls are detected by counting Python frames, and ended. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"

#include <stdlib.h>

/* One open call of this thread. */
struct hooked_call {
    struct mst_call call;
    struct hooked_call *outer;
    PyObject *module;        /* borrowed */
    PyObject *backward_call; /* of mst_backward_hooks_begin, or NULL */
    int depth;               /* how many frames of _call_impl the thread has in this call */
    bool entered;            /* `call` was entered */
};

static _Thread_local struct hooked_call *innermost;
static PyObject *pre_handle, *post_handle; /* what removes the hooks; NULL: not registered */

static int count_call_frames(void)
{
    int count = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        count += code == mst.torch.call_code;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_SETREF(frame, back);
    }
    return count;
}

static void close_innermost(void)
{
    struct hooked_call *open = innermost;
    innermost = open->outer;
    if (open->entered)
        mst_call_leave(&open->call);
    Py_XDECREF(open->backward_call);
    free(open);
}

static void end_calls_deeper_than(int depth)
{
    while (innermost && innermost->depth > depth)
        close_innermost();
}

void mst_fallback_end_abandoned(void)
{
    if (innermost)
        end_calls_deeper_than(count_call_frames());
}

/* torch passes keyword arguments to no global pre-hook, but the frame that calls the hook has them. */
static PyObject *keyword_arguments(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *locals = frame ? PyObject_GetAttrString((PyObject *)frame, "f_locals") : NULL;
    PyObject *found = locals ? PyObject_GetItem(locals, mst.interned.kwargs) : NULL;
    Py_XDECREF(locals);
    PyErr_Clear();
    return found;
}

static void begin_backward_call(struct hooked_call *open, PyObject *inputs)
{
    PyObject *named = keyword_arguments();
    open->backward_call = mst_backward_hooks_begin(&open->call, inputs, named);
    Py_XDECREF(named);
}

/* Finding the keyword arguments is slow, so only those of root calls count: the program's inputs are among them. */
static void measure_inputs(const struct hooked_call *open, PyObject *inputs)
{
    PyObject *named = mst_call_is_root(&open->call) ? keyword_arguments() : NULL;
    PyObject *objects[] = {inputs, named};
    mst_measure_inputs(&open->call, objects, 1, named ? 1 : 0);
    Py_XDECREF(named);
}

static PyObject *before_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (!mst.active || count < 2)
        Py_RETURN_NONE;
    int depth = count_call_frames();
    end_calls_deeper_than(depth - 1);
    struct hooked_call *open = calloc(1, sizeof *open);
    if (!open) {
        ms_ledger_count_lost(mst_target_ledger());
        Py_RETURN_NONE;
    }
    open->entered = mst_call_enter(&open->call, args[0]);
    open->module = args[0];
    open->depth = depth;
    open->outer = innermost;
    innermost = open;
    if (open->entered && mst.ledger)
        measure_inputs(open, args[1]);
    if (!open->entered || !mst.user_hooks)
        Py_RETURN_NONE;
    if (mst_user_hooks_call(MST_PRE_FW, args, 2) != 0)
        return NULL;
    if (mst.user_hooks >> MST_PRE_BW)
        begin_backward_call(open, args[1]);
    Py_RETURN_NONE;
}

static PyObject *after_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    int depth = innermost && count >= 3 ? count_call_frames() : 0;
    end_calls_deeper_than(depth);
    if (!innermost || innermost->module != args[0] || innermost->depth != depth)
        Py_RETURN_NONE;
    int failed = 0;
    if (innermost->entered && mst.active)
        failed = mst_user_hooks_call(MST_POST_FW, args, 3);
    if (!failed && innermost->backward_call && args[2] != Py_None)
        mst_backward_hooks_end(innermost->backward_call, args[2]);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (innermost->entered && mst.ledger && args[2] != Py_None)
        mst_measure_output(&innermost->call, args[2]);
    close_innermost();
    PyErr_Restore(type, value, traceback);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef before_def = {"before_forward", (PyCFunction)(void (*)(void))before_forward, METH_FASTCALL, NULL};
static PyMethodDef after_def = {"after_forward", (PyCFunction)(void (*)(void))after_forward, METH_FASTCALL, NULL};

static void remove_handle(PyObject **handle)
{
    mst_remove_hook(*handle);
    Py_CLEAR(*handle);
}

int mst_fallback_register(void)
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

void mst_fallback_remove(void)
{
    remove_handle(&pre_handle);
    remove_handle(&post_handle);
}
