/* tracker_api.c - the type behind ModuleTracker and ModTracker.
 *
 * All active trackers share one watch, one module registry and the interception points. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stddef.h>

typedef struct tracker {
    PyObject_HEAD
    mst_registry *registry; /* NULL: it was never entered */
    Py_ssize_t entered;     /* how often it was entered and not left */
    PyObject *hooks[MST_HOOK_COUNT];
    PyObject *weak; /* the list of weak references to it */
} tracker;

static PyObject *active_trackers; /* a tuple, in the order in which they were entered */
static bool prepared;             /* the interception points are found and verified */

static const char *const hook_names[MST_HOOK_COUNT] = {"pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook"};

PyObject *mst_active_trackers(void)
{
    return active_trackers;
}

PyObject *mst_tracker_hook(PyObject *object, enum mst_hook which)
{
    tracker *self = (tracker *)object;
    return self->entered > 0 ? self->hooks[which] : NULL;
}

mst_registry *mst_tracker_registry(PyObject *object)
{
    return ((tracker *)object)->registry;
}

static void update_user_hooks(void)
{
    mst.user_hooks = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(active_trackers); i++)
        for (int which = 0; which < MST_HOOK_COUNT; which++)
            if (((tracker *)PyTuple_GET_ITEM(active_trackers, i))->hooks[which])
                mst.user_hooks |= 1u << which;
}

/* ---- interception ---- */
static int start_interception(void)
{
    if ((mst.intercept_calls ? mst_calls_intercept() : mst_fallback_register()) != 0)
        return -1;
    if (mst.intercept_nodes && mst_nodes_intercept() != 0) {
        mst.intercept_calls ? mst_calls_restore() : mst_fallback_remove();
        return -1;
    }
    mst.active = true;
    return 0;
}

void mst_stop_interception(void)
{
    if (!mst.active)
        return;
    mst.active = false;
    mst.intercept_calls ? mst_calls_restore() : mst_fallback_remove();
    if (mst.intercept_nodes)
        mst_nodes_restore();
}

/* The first time, the Python side finds and verifies the interception points. Other threads wait in
 * Python meanwhile; the verification itself enters trackers, and does not wait. */
int mst_prepare(void)
{
    if (prepared)
        return 0;
    /* A tracker may be entered in a compiled function; dynamo must not compile the verification with it. */
    PyObject *callback = mst_dynamo_disable();
    PyObject *done = mst_run_python(MST_PY_PREPARE, NULL);
    if (done && done == Py_True)
        prepared = true;
    Py_XDECREF(done);
    mst_dynamo_restore(callback);
    return done ? 0 : -1;
}

/* ---- the lock: one thread at a time enters or leaves a tracker. The GIL is not enough, because
 * installing an interception point may run Python, which lets other threads run ---- */
static PyThread_type_lock enter_lock;
static unsigned long lock_holder; /* the thread that holds the lock, or 0; guarded by the GIL */

/* False: this thread holds it already. Returns what release_enter_lock takes. */
static bool acquire_enter_lock(void)
{
    unsigned long me = PyThread_get_thread_ident();
    if (lock_holder == me)
        return false; /* a finalizer, or the verification */
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(enter_lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    lock_holder = me;
    return true;
}

static void release_enter_lock(bool acquired)
{
    if (!acquired)
        return;
    lock_holder = 0;
    PyThread_release_lock(enter_lock);
}

void mst_trackers_forked(void)
{
    PyThread_type_lock fresh = PyThread_allocate_lock();
    if (fresh)
        enter_lock = fresh; /* A thread that does not exist in the child may hold the old one. */
    lock_holder = 0;
}

/* ---- enter and leave ---- */

/* The first active tracker uses its own registry; the others join it. */
static int join_registry(tracker *self)
{
    bool alone = PyTuple_GET_SIZE(active_trackers) == 0;
    if (alone) {
        if (!self->registry && !(self->registry = mst_registry_new()))
            return -1;
        mst_registry_use(self->registry, NULL);
    } else if (self->registry != mst.registry) {
        mst_registry_use(mst.registry, self->registry);
        mst_registry_unref(self->registry);
        self->registry = mst_registry_ref(mst.registry);
    }
    return 0;
}

static int activate_tracker(tracker *self)
{
    if (join_registry(self) != 0)
        return -1;
    if (!mst.active && start_interception() != 0)
        return -1;
    PyObject *one = PyTuple_Pack(1, self), *more = one ? PySequence_Concat(active_trackers, one) : NULL;
    Py_XDECREF(one);
    if (!more) {
        if (PyTuple_GET_SIZE(active_trackers) == 0)
            mst_stop_interception();
        return -1;
    }
    Py_SETREF(active_trackers, more);
    update_user_hooks();
    return 0;
}

static int deactivate_tracker(tracker *self)
{
    Py_ssize_t count = PyTuple_GET_SIZE(active_trackers), kept = 0;
    PyObject *fewer = PyTuple_New(count - 1);
    if (!fewer)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *other = PyTuple_GET_ITEM(active_trackers, i);
        if (other != (PyObject *)self)
            PyTuple_SET_ITEM(fewer, kept++, Py_NewRef(other));
    }
    Py_SETREF(active_trackers, fewer);
    update_user_hooks();
    if (count == 1)
        mst_stop_interception();
    return 0;
}

/* An error is set unless it was left. */
static void leave_once(tracker *self)
{
    bool acquired = acquire_enter_lock();
    bool active_now = self->entered > 0;
    self->entered -= active_now && (self->entered > 1 || deactivate_tracker(self) == 0);
    release_enter_lock(acquired);
    if (!active_now)
        PyErr_SetString(PyExc_RuntimeError, "this tracker is not active: enter it first, with a with statement");
}

/* The fallback registers and removes its hooks with Python code of torch. Without it no Python code runs. */
static bool hold_signals_for_hooks(void)
{
    return !mst.intercept_calls && mst_signals_hold();
}

/* A signal handler raised after the tracker was entered. Keeps the error that is set. */
static void leave_again(tracker *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    bool held = hold_signals_for_hooks();
    leave_once(self);
    PyErr_Clear();
    mst_signals_release(held);
    mst_clear_error();
    PyErr_Restore(type, value, traceback);
}

static PyObject *tracker_enter(tracker *self, PyObject *unused)
{
    (void)unused;
    if (mst_prepare() != 0)
        return NULL;
    bool held = hold_signals_for_hooks();
    bool acquired = acquire_enter_lock();
    bool good = self->entered > 0 || activate_tracker(self) == 0;
    self->entered += good;
    release_enter_lock(acquired);
    if (mst_signals_release(held) == 0)
        return Py_NewRef(self);
    if (good)
        leave_again(self);
    return NULL;
}

static PyObject *tracker_exit(tracker *self, PyObject *args)
{
    (void)args;
    bool held = hold_signals_for_hooks();
    leave_once(self);
    return mst_signals_release(held) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* ---- hooks ---- */
static PyObject *register_user_hooks(tracker *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook", NULL};
    PyObject *given[MST_HOOK_COUNT] = {Py_None, Py_None, Py_None, Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, named, "|OOOO:register_user_hooks", names, &given[0], &given[1], &given[2],
                                     &given[3]))
        return NULL;
    for (int i = 0; i < MST_HOOK_COUNT; i++) {
        if (given[i] == Py_None)
            continue;
        if (!PyCallable_Check(given[i])) {
            PyErr_Format(PyExc_TypeError, "%s must be callable or None, not %.100s", hook_names[i],
                         Py_TYPE(given[i])->tp_name);
            return NULL;
        }
        if (self->hooks[i]) {
            PyErr_Format(PyExc_AssertionError,
                         "Only one %s can be registered at a time. "
                         "Clear the existing hook by calling ``clear_user_hooks`` before registering a new one",
                         hook_names[i]);
            return NULL;
        }
    }
    for (int i = 0; i < MST_HOOK_COUNT; i++)
        if (given[i] != Py_None)
            self->hooks[i] = Py_NewRef(given[i]);
    update_user_hooks();
    Py_RETURN_NONE;
}

static int tracker_clear(tracker *self)
{
    for (int i = 0; i < MST_HOOK_COUNT; i++)
        Py_CLEAR(self->hooks[i]);
    return 0;
}

static PyObject *clear_user_hooks(tracker *self, PyObject *unused)
{
    (void)unused;
    tracker_clear(self);
    update_user_hooks();
    Py_RETURN_NONE;
}

/* ---- names ---- */
static bool check_is_module(PyObject *module)
{
    if (PyObject_TypeCheck(module, mst.torch.module))
        return true;
    PyErr_Format(PyExc_TypeError, "expected a torch.nn.Module instance, not %.100s",
                 PyType_Check(module) ? "a class: call it on an instance" : Py_TYPE(module)->tp_name);
    return false;
}

static PyObject *get_known_fqn(tracker *self, PyObject *module)
{
    if (!check_is_module(module))
        return NULL;
    PyObject *fqn = self->registry ? mst_registry_fqn(self->registry, module) : NULL;
    return Py_NewRef(fqn ? fqn : Py_None);
}

static PyObject *get_mod_name(tracker *self, PyObject *module)
{
    if (!check_is_module(module) || (!self->registry && !(self->registry = mst_registry_new())))
        return NULL;
    return Py_XNewRef(mst_registry_name(self->registry, module));
}

static PyObject *known_modules(tracker *self, PyObject *unused)
{
    (void)unused;
    return mst_registry_modules(self->registry);
}

/* ---- position: a tracker that is not active reports none ---- */
static PyObject *get_parents(tracker *self, void *unused)
{
    (void)unused;
    return mst_position_parents(self->entered > 0);
}

static PyObject *get_stack(tracker *self, void *unused)
{
    (void)unused;
    return mst_position_stack(self->entered > 0);
}

static PyObject *get_current(tracker *self, void *unused)
{
    (void)unused;
    return mst_position_current(self->entered > 0);
}

static PyObject *get_phase(tracker *self, void *unused)
{
    (void)unused;
    return mst_position_phase(self->entered > 0);
}

static PyObject *get_is_bw(tracker *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->entered > 0 && mst_graph_task_id() != -1);
}

/* ---- the type ---- */
static int tracker_init(PyObject *self, PyObject *args, PyObject *named)
{
    if (PyTuple_GET_SIZE(args) == 0 && (!named || PyDict_GET_SIZE(named) == 0))
        return 0;
    PyErr_Format(PyExc_TypeError, "%.100s() takes no arguments", Py_TYPE(self)->tp_name);
    return -1;
}

static int tracker_traverse(tracker *self, visitproc visit, void *arg)
{
    for (int i = 0; i < MST_HOOK_COUNT; i++)
        Py_VISIT(self->hooks[i]);
    return 0;
}

static void tracker_dealloc(tracker *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    tracker_clear(self);
    mst_registry_unref(self->registry);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef tracker_methods[] = {
    {"__enter__", (PyCFunction)tracker_enter, METH_NOARGS, "Begin tracking."},
    {"__exit__", (PyCFunction)tracker_exit, METH_VARARGS,
     "End tracking; the last tracker restores all interception points."},
    {"get_known_fqn", (PyCFunction)get_known_fqn, METH_O, "The name of a module, if the tracker knows it, else None."},
    {"_get_mod_name", (PyCFunction)get_mod_name, METH_O,
     "The name of a module; a module without a name is named as a root module."},
    {"_known_modules", (PyCFunction)known_modules, METH_NOARGS, "A dict of the known modules that are alive, by name."},
    {"_register_user_hooks", (PyCFunction)(void (*)(void))register_user_hooks, METH_VARARGS | METH_KEYWORDS, NULL},
    {"_clear_user_hooks", (PyCFunction)clear_user_hooks, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tracker_attributes[] = {
    {"parents", (getter)get_parents, NULL, "The names of all modules running now in this thread, and \"Global\".",
     NULL},
    {"stack", (getter)get_stack, NULL, "The names of the modules running now in this thread, outermost first.", NULL},
    {"current", (getter)get_current, NULL, "The name of the innermost module running now, or \"Global\".", NULL},
    {"phase", (getter)get_phase, NULL,
     "\"idle\", \"forward\", \"recompute\", \"backward\", \"optimizer\" or \"evaluation\".", NULL},
    {"is_bw", (getter)get_is_bw, NULL, "Whether this thread is inside a backward pass now.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject mst_tracker_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Tracker",
    .tp_doc = "The base type of ModuleTracker and ModTracker.",
    .tp_basicsize = sizeof(tracker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = tracker_init,
    .tp_dealloc = (destructor)tracker_dealloc,
    .tp_traverse = (traverseproc)tracker_traverse,
    .tp_clear = (inquiry)tracker_clear,
    .tp_weaklistoffset = offsetof(tracker, weak),
    .tp_methods = tracker_methods,
    .tp_getset = tracker_attributes,
};

int mst_tracker_init(void)
{
    active_trackers = PyTuple_New(0);
    enter_lock = PyThread_allocate_lock();
    return !active_trackers || !enter_lock || PyType_Ready(&mst_tracker_type) != 0 ? -1 : 0;
}
