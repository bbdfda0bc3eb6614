/* intercept_steps.c - the interception point of optimizer steps: vectorcall pointers of Python functions.
 *
 * torch wraps the `step` of each optimizer class when the class is first instantiated:
 *
 *     Adam.step = Optimizer.profile_hook_step(Adam.step)      the wrapper calls   func(*args, **kwargs)
 *
 * Both functions are patched, the wrapper and what it calls. Python 3.11 calls the wrapper without
 * its vectorcall pointer, except from compiled code; dynamo may inline what it calls.
 *
 * torch's global step hooks would be seen by dynamo: it guards on them, so a compiled step would be
 * compiled again whenever a tracker is entered. The functions and their code stay the same here. */
#include "torch/calls/calls.h"
#include "torch/process/process.h"

struct patched_step {
    PyObject *function; /* held while it is in the table */
    vectorcallfunc previous;
};

static struct {
    struct patched_step *steps;
    size_t count, room;
    vectorcallfunc usual; /* that of the function that was patched first */
    PyObject *optimizer_type;
    PyObject
        *wrap_before; /* what Optimizer.__dict__["profile_hook_step"] was before ours; NULL before the first install */
    PyObject *our_wrap;
    bool wrap_replaced; /* it is ours, or of another tool that replaced ours */
    bool installed;
} patched;

static _Thread_local PyObject *stepping; /* the optimizer whose step was entered last on this thread; borrowed */

static PyObject *intercept_step(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames);

bool mst_steps_intercepted(void)
{
    return patched.installed;
}

/* ---- the functions ---- */

static struct patched_step *find_step(PyObject *function)
{
    for (size_t i = 0; i < patched.count; i++)
        if (patched.steps[i].function == function)
            return &patched.steps[i];
    return NULL;
}

/* Patch a function, unless it is patched. If another tool replaced our pointer, calls reach us through that tool. */
static int patch_function(PyObject *function)
{
    vectorcallfunc current = ((PyFunctionObject *)function)->vectorcall;
    const struct patched_step *known = find_step(function);
    if (!known) {
        if (patched.count == patched.room) {
            size_t room = patched.room ? patched.room * 2 : 16;
            struct patched_step *grown = PyMem_Realloc(patched.steps, room * sizeof *grown);
            if (!grown) {
                PyErr_NoMemory();
                return -1;
            }
            patched.steps = grown;
            patched.room = room;
        }
        if (!patched.usual)
            patched.usual = current;
        patched.steps[patched.count++] = (struct patched_step){Py_NewRef(function), current};
    } else if (current != known->previous) {
        return 0;
    }
    mst_vectorcall_write(function, (ms_function)intercept_step);
    return 0;
}

/* Patch a wrapper that torch made, and what it calls. Does nothing for other objects. */
static int patch_wrapper(PyObject *wrapper)
{
    if (!PyFunction_Check(wrapper) || PyFunction_GET_CODE(wrapper) != (PyObject *)mst.torch.optimizer_code)
        return 0;
    PyObject *inner = PyObject_GetAttrString(wrapper, "__wrapped__");
    int error = inner && PyFunction_Check(inner) ? patch_function(inner) : 0;
    Py_XDECREF(inner);
    mst_clear_error();
    return error ? error : patch_function(wrapper);
}

/* Patch the step of each class below this one that torch has wrapped already. */
static int patch_classes(PyObject *type)
{
    PyObject *step = PyObject_GetAttrString(type, "step");
    int error = step ? patch_wrapper(step) : 0;
    Py_XDECREF(step);
    mst_clear_error();
    PyObject *below = error ? NULL : PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    for (Py_ssize_t i = 0; !error && below && i < PyList_GET_SIZE(below); i++)
        error = patch_classes(PyList_GET_ITEM(below, i));
    error = error || !below ? -1 : 0;
    Py_XDECREF(below);
    return error;
}

/* ---- the interception point ---- */

static void end_step(ms_thread *thread, PyObject *optimizer)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (mst.ledger)
        mst_optimizer_step_end(thread, optimizer);
    else
        ms_optimizer_leave(thread);
    PyErr_Restore(type, value, traceback);
}

static PyObject *intercept_step(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const struct patched_step *known = find_step(func);
    vectorcallfunc next = known ? known->previous : patched.usual;
    ms_thread *thread = mst.ledger && PyVectorcall_NARGS(nargsf) ? mst_thread_here() : NULL;
    PyObject *optimizer = thread ? args[0] : NULL, *outer = stepping;
    if (!thread || !patched.installed || optimizer == outer)
        return next(func, args, nargsf, kwnames);
    stepping = optimizer;
    mst_optimizer_step_begin(thread, optimizer);
    PyObject *result = next(func, args, nargsf, kwnames);
    stepping = outer;
    end_step(thread, optimizer);
    return result;
}

/* In place of Optimizer.profile_hook_step: a class is instantiated for the first time. */
static PyObject *wrap_step(PyObject *self, PyObject *step)
{
    (void)self;
    PyObject *wrap = PyObject_CallMethod(patched.wrap_before, "__get__", "OO", Py_None, patched.optimizer_type);
    PyObject *wrapper = wrap ? PyObject_CallOneArg(wrap, step) : NULL;
    Py_XDECREF(wrap);
    if (wrapper && patched.installed && patch_wrapper(wrapper) != 0)
        mst_clear_error();
    return wrapper;
}

static PyMethodDef wrap_def = {"profile_hook_step", wrap_step, METH_O, "Optimizer.profile_hook_step of torch."};

/* ---- install and restore ---- */

/* Whether a wrapper calls what it says it wraps: its closure holds that. */
static bool wrappers_are_known(void)
{
    PyObject *wrapper =
        PyObject_CallMethodOneArg(patched.optimizer_type, mst.interned.profile_hook_step, mst.torch.call_impl);
    PyObject *inner = wrapper ? PyObject_GetAttrString(wrapper, "__wrapped__") : NULL;
    PyObject *closure = wrapper && PyFunction_Check(wrapper) ? PyFunction_GET_CLOSURE(wrapper) : NULL;
    bool known = false;
    for (Py_ssize_t i = 0; closure && inner == mst.torch.call_impl && i < PyTuple_GET_SIZE(closure); i++)
        known |= PyCell_GET(PyTuple_GET_ITEM(closure, i)) == inner;
    Py_XDECREF(inner);
    Py_XDECREF(wrapper);
    mst_clear_error();
    return known;
}

static PyObject *wrap_now(void)
{
    PyObject *dict = PyObject_GetAttrString(patched.optimizer_type, "__dict__");
    PyObject *found = dict ? PyObject_GetItem(dict, mst.interned.profile_hook_step) : NULL;
    Py_XDECREF(dict);
    return found;
}

static int replace_wrap(void)
{
    PyObject *current = wrap_now();
    bool is_chained = patched.wrap_replaced && current != patched.wrap_before; /* calls reach ours through a tool */
    if (!current || current == patched.our_wrap || is_chained) {
        Py_XDECREF(current);
        return current ? 0 : -1;
    }
    if (PyObject_SetAttr(patched.optimizer_type, mst.interned.profile_hook_step, patched.our_wrap) != 0) {
        Py_DECREF(current);
        return -1;
    }
    Py_XSETREF(patched.wrap_before, current);
    patched.wrap_replaced = true;
    return 0;
}

int mst_steps_intercept(void)
{
    if (!mst.intercept_calls || !mst.torch.optimizer_code)
        return -1;
    PyObject *optim = patched.optimizer_type ? NULL : PyImport_ImportModule("torch.optim");
    if (optim)
        patched.optimizer_type = PyObject_GetAttrString(optim, "Optimizer");
    Py_XDECREF(optim);
    if (!patched.our_wrap)
        patched.our_wrap = PyCFunction_New(&wrap_def, NULL);
    patched.installed = patched.optimizer_type && patched.our_wrap && PyType_Check(patched.optimizer_type) &&
                        (patched.wrap_before || wrappers_are_known()) && replace_wrap() == 0 &&
                        patch_classes(patched.optimizer_type) == 0;
    mst_clear_error();
    if (!patched.installed)
        mst_steps_restore();
    return patched.installed ? 0 : -1;
}

void mst_steps_restore(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    patched.installed = false;
    size_t kept = 0;
    for (size_t i = 0; i < patched.count; i++) {
        struct patched_step step = patched.steps[i];
        if (((PyFunctionObject *)step.function)->vectorcall == intercept_step) {
            mst_vectorcall_write(step.function, (ms_function)step.previous);
            Py_DECREF(step.function);
        } else {
            patched.steps[kept++] = step; /* Another tool may call us for ever. */
        }
    }
    patched.count = kept;
    PyObject *current = patched.wrap_replaced ? wrap_now() : NULL;
    if (current && current == patched.our_wrap &&
        PyObject_SetAttr(patched.optimizer_type, mst.interned.profile_hook_step, patched.wrap_before) == 0)
        patched.wrap_replaced = false;
    Py_XDECREF(current);
    PyErr_Restore(type, value, traceback);
}
