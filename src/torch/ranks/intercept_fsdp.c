/* intercept_fsdp.c - the interception points of FSDP2: vectorcall pointers of its Python functions.
 *
 * torch wraps each of these functions, and the wrapper calls it as func(*args, **kwargs), which goes through the
 * vectorcall pointer in every version of Python. Before torch 2.12 some are not wrapped, and Python 3.11 does not look
 * at the pointer when Python code calls a function: there nothing is intercepted. The functions and their code stay the
 * same, so dynamo notices nothing; no hook is added to a module. The program may import FSDP2 late, so the functions
 * are looked for at root calls. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/ranks/ranks.h"

#include "interpose/patch.h"

#define STATE "torch.distributed.fsdp._fully_shard._fsdp_state"
#define GROUP "torch.distributed.fsdp._fully_shard._fsdp_param_group"
#define COLLECTIVES "torch.distributed.fsdp._fully_shard._fsdp_collectives"

/* The function's name in C, and where it is: a module, a class or NULL, a name. */
/* clang-format off */
#define POINTS(X)                                                  \
    X(pre_forward, STATE, "FSDPState", "_pre_forward")             \
    X(post_forward, STATE, "FSDPState", "_post_forward")           \
    X(unshard, GROUP, "FSDPParamGroup", "wait_for_unshard")        \
    X(pre_backward, GROUP, "FSDPParamGroup", "pre_backward")       \
    X(post_backward, GROUP, "FSDPParamGroup", "post_backward")     \
    X(all_gather, COLLECTIVES, NULL, "foreach_all_gather")         \
    X(reduce, COLLECTIVES, NULL, "foreach_reduce")
/* clang-format on */

/* What is done before and after the function; `result` is NULL if it raised. */
#define X(name, module, class, function)                                                 \
    static void before_##name(PyObject *const *args, Py_ssize_t count);                  \
    static void after_##name(PyObject *const *args, Py_ssize_t count, PyObject *result); \
    static PyObject *intercept_##name(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames);
POINTS(X)
#undef X

enum {
#define X(name, module, class, function) POINT_##name,
    POINTS(X)
#undef X
        POINT_COUNT
};

static ms_patch patches[POINT_COUNT] = {
#define X(name, module, class, function) \
    [POINT_##                            \
        name] = {.ours = (ms_function)intercept_##name, .read = mst_vectorcall_read, .write = mst_vectorcall_write},
    POINTS(X)
#undef X
};

static bool found;     /* every patch has its target */
static bool installed; /* claims are made */

/* ---- the interception points ---- */

typedef void before_function(PyObject *const *args, Py_ssize_t count);
typedef void after_function(PyObject *const *args, Py_ssize_t count, PyObject *result);

static PyObject *call_between(int point, before_function *before, after_function *after, PyObject *func,
                              PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    vectorcallfunc next = (vectorcallfunc)patches[point].previous;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (!installed || !mst.ledger || count < 1)
        return next(func, args, nargsf, kwnames);
    before(args, count);
    PyObject *result = next(func, args, nargsf, kwnames);
    if (!mst.ledger) {
        mst_collectives_set_owner(MS_GLOBAL);
        return result;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    after(args, count, result);
    PyErr_Restore(type, value, traceback);
    return result;
}

#define X(name, module, class, function)                                                                       \
    static PyObject *intercept_##name(PyObject *func, PyObject *const *args, size_t nargsf, PyObject *kwnames) \
    {                                                                                                          \
        return call_between(POINT_##name, before_##name, after_##name, func, args, nargsf, kwnames);           \
    }
POINTS(X)
#undef X

/* _pre_forward(state, module, args, kwargs). In a recompute, nothing is unsharded. */
static void before_pre_forward(PyObject *const *args, Py_ssize_t count)
{
    mst_claim_fsdp_state(args[0]);
    if (count > 1)
        mst_fsdp_state_record(args[1], MST_BEFORE_PRE_FORWARD);
}

static void after_pre_forward(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)result;
    if (count > 1)
        mst_fsdp_state_record(args[1], MST_AFTER_PRE_FORWARD);
}

/* _post_forward(state, module, input, output) */
static void before_post_forward(PyObject *const *args, Py_ssize_t count)
{
    if (count > 1)
        mst_fsdp_state_record(args[1], MST_BEFORE_POST_FORWARD);
}

static void after_post_forward(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)result;
    mst_claim_fsdp_kept(args[0]);
    if (count > 1)
        mst_fsdp_state_record(args[1], MST_AFTER_POST_FORWARD);
}

/* wait_for_unshard(group) */
static void before_unshard(PyObject *const *args, Py_ssize_t count)
{
    (void)args, (void)count;
}

static void after_unshard(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)count, (void)result;
    mst_claim_fsdp_unsharded(args[0]);
}

/* pre_backward(group, default_prefetch) */
static void before_pre_backward(PyObject *const *args, Py_ssize_t count)
{
    (void)count;
    mst_fsdp_state_record(args[0], MST_BEFORE_PRE_BACKWARD);
}

static void after_pre_backward(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)count, (void)result;
    mst_fsdp_state_record(args[0], MST_AFTER_PRE_BACKWARD);
}

/* post_backward(group) */
static void before_post_backward(PyObject *const *args, Py_ssize_t count)
{
    (void)count;
    mst_fsdp_state_record(args[0], MST_BEFORE_POST_BACKWARD);
}

static void after_post_backward(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)count, (void)result;
    mst_claim_fsdp_group_kept(args[0]);
    mst_fsdp_state_record(args[0], MST_AFTER_POST_BACKWARD);
}

/* foreach_all_gather(params, ...) */
static void before_all_gather(PyObject *const *args, Py_ssize_t count)
{
    (void)count;
    mst_collectives_set_owner(mst_fsdp_owner(args[0]));
}

static void after_all_gather(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)count;
    mst_collectives_set_owner(MS_GLOBAL);
    mst_claim_fsdp_gathered(args[0], result);
}

/* foreach_reduce(params, gradients, ...) */
static void before_reduce(PyObject *const *args, Py_ssize_t count)
{
    if (count > 1)
        mst_claim_fsdp_reducing(args[0], args[1]);
    mst_collectives_set_owner(mst_fsdp_owner(args[0]));
}

static void after_reduce(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    (void)count;
    mst_collectives_set_owner(MS_GLOBAL);
    mst_claim_fsdp_reduced(args[0], result);
}

/* ---- finding, installing and restoring ---- */

/* Whether Python calls the function by its vectorcall pointer. */
static bool is_reached(bool is_wrapped)
{
    return is_wrapped || PY_VERSION_HEX >= 0x030c0000;
}

/* The innermost function that a function of FSDP2 wraps: a new reference, or NULL. Python runs no code here. */
static PyObject *find_function(const char *module, const char *class, const char *name)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *holder = Py_XNewRef(modules ? PyDict_GetItemString(modules, module) : NULL);
    if (holder && class)
        Py_SETREF(holder, PyObject_GetAttrString(holder, class));
    PyObject *function = holder ? PyObject_GetAttrString(holder, name) : NULL;
    bool is_wrapped = false;
    Py_XDECREF(holder);
    for (PyObject *inner; function && (inner = PyObject_GetAttrString(function, "__wrapped__")) != NULL;) {
        Py_SETREF(function, inner);
        is_wrapped = true;
    }
    PyErr_Clear();
    if (function && (!PyFunction_Check(function) || !is_reached(is_wrapped)))
        Py_CLEAR(function);
    return function;
}

/* Find the functions, which are then held for ever. False: FSDP2 is not imported, or is not as it is known. */
static bool find_functions(void)
{
    static const char *const where[POINT_COUNT][3] = {
#define X(name, module, class, function) {module, class, function},
        POINTS(X)
#undef X
    };
    bool all = true;
    for (int i = 0; i < POINT_COUNT; i++) {
        if (!patches[i].target)
            patches[i].target = find_function(where[i][0], where[i][1], where[i][2]);
        all &= patches[i].target != NULL;
    }
    return all;
}

/* Another tool replaced the pointer after us: calls reach us through it. */
static bool reaches_us(void)
{
    return true;
}

/* Runs at every root call. */
static bool is_imported(void)
{
    static PyObject *name;
    if (UNLIKELY(!name) && !(name = PyUnicode_InternFromString(STATE)))
        PyErr_Clear();
    PyObject *modules = PyImport_GetModuleDict();
    return name && modules && PyDict_GetItemWithError(modules, name);
}

void mst_fsdp_intercept(void)
{
    if (LIKELY(installed) || !mst.intercept_calls)
        return;
    if (!found && LIKELY(!is_imported()))
        return;
    found = found || find_functions();
    for (int i = 0; found && i < POINT_COUNT; i++)
        ms_patch_install(&patches[i], reaches_us);
    installed = found;
}

void mst_fsdp_restore(void)
{
    if (!installed)
        return;
    installed = false;
    for (int i = 0; i < POINT_COUNT; i++)
        ms_patch_restore(&patches[i]);
}

/* ---- from Python ---- */
static PyObject *fsdp_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(installed);
}

static PyObject *intercept_fsdp_now(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (mst.ledger)
        mst_fsdp_intercept();
    return PyBool_FromLong(installed);
}

PyMethodDef mst_intercept_fsdp_methods[] = {
    {"fsdp_intercepted", fsdp_intercepted, METH_NOARGS, "Whether FSDP2's functions are intercepted now."},
    {"intercept_fsdp", intercept_fsdp_now, METH_NOARGS,
     "Intercept FSDP2's functions, if a ledger is attached and the program has imported FSDP2; whether they are."},
    {NULL, NULL, 0, NULL},
};
