/* tracker.c - the type behind ModuleTracker and ModTracker, and what is shared by all
 * that are active: one watch, one book of names, the places. */
#include "torch/native.h"

#include <stddef.h>

typedef struct tracker {
    PyObject_HEAD mst_book *book; /* or NULL: has never been entered */
    Py_ssize_t entered;
    PyObject *hooks[MST_HOOKS];
    PyObject *weak;
} tracker;

static PyObject *active; /* a tuple, in the order of entering */
static bool prepared;

static const char *const hook_names[MST_HOOKS] = {"pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook"};

PyObject *mst_active_trackers(void)
{
    return active;
}

PyObject *mst_tracker_hook(PyObject *object, enum mst_hook which)
{
    tracker *self = (tracker *)object;
    return self->entered > 0 ? self->hooks[which] : NULL;
}

mst_book *mst_tracker_book(PyObject *object)
{
    return ((tracker *)object)->book;
}

static void count_hooks(void)
{
    mst_hooks_wanted = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(active); i++)
        for (int which = 0; which < MST_HOOKS; which++)
            if (((tracker *)PyTuple_GET_ITEM(active, i))->hooks[which])
                mst_hooks_wanted |= 1u << which;
}

/* ---- the places ---- */
static int wake(void)
{
    if ((mst_calls_place ? mst_calls_on() : mst_fallback_on()) != 0)
        return -1;
    if (mst_nodes_place && mst_nodes_on() != 0) {
        mst_calls_place ? mst_calls_off() : mst_fallback_off();
        return -1;
    }
    mst_awake = true;
    return 0;
}

void mst_sleep(void)
{
    if (!mst_awake)
        return;
    mst_awake = false;
    mst_calls_place ? mst_calls_off() : mst_fallback_off();
    if (mst_nodes_place)
        mst_nodes_off();
}

/* The first time: learn this torch, prove the places. Threads that come meanwhile wait in
 * Python; the proof itself enters trackers, and is let through there. */
static int prepare(void)
{
    if (prepared)
        return 0;
    PyObject *callback = mst_dynamo_off(); /* entered in a compiled function, the proof would be compiled too */
    PyObject *places = PyImport_ImportModule("modscope._interception");
    PyObject *done = places ? PyObject_CallMethod(places, "prepare", NULL) : NULL;
    if (done && done == Py_True)
        prepared = true;
    Py_XDECREF(places);
    Py_XDECREF(done);
    mst_dynamo_on(callback);
    return done ? 0 : -1;
}

/* ---- one thread at a time enters or leaves: taking a place may run Python, and so let
 * another thread in ---- */
static PyThread_type_lock gate;
static unsigned long gate_keeper; /* the thread that is inside */

static bool gate_enter(void)
{
    unsigned long me = PyThread_get_thread_ident();
    if (gate_keeper == me)
        return false; /* a finalizer, or the proof */
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(gate, WAIT_LOCK);
    Py_END_ALLOW_THREADS gate_keeper = me;
    return true;
}

static void gate_leave(bool entered)
{
    if (!entered)
        return;
    gate_keeper = 0;
    PyThread_release_lock(gate);
}

void mst_tracker_forked(void)
{
    PyThread_type_lock fresh = PyThread_allocate_lock();
    if (fresh)
        gate = fresh; /* the old one may be held by a thread that is not here */
    gate_keeper = 0;
}

/* ---- entering and leaving ---- */
static int open_book(tracker *self)
{
    bool alone = PyTuple_GET_SIZE(active) == 0;
    if (alone) {
        if (!self->book && !(self->book = mst_book_new()))
            return -1;
        mst_book_use(self->book, NULL);
    } else if (self->book != mst_names) {
        mst_book_use(mst_names, self->book);
        mst_book_unref(self->book);
        self->book = mst_book_ref(mst_names);
    }
    return 0;
}

static int activate(tracker *self)
{
    if (open_book(self) != 0)
        return -1;
    if (!mst_awake && wake() != 0)
        return -1;
    PyObject *one = PyTuple_Pack(1, self), *more = one ? PySequence_Concat(active, one) : NULL;
    Py_XDECREF(one);
    if (!more) {
        if (PyTuple_GET_SIZE(active) == 0)
            mst_sleep();
        return -1;
    }
    Py_SETREF(active, more);
    count_hooks();
    return 0;
}

static int deactivate(tracker *self)
{
    Py_ssize_t count = PyTuple_GET_SIZE(active), kept = 0;
    PyObject *fewer = PyTuple_New(count - 1);
    if (!fewer)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *other = PyTuple_GET_ITEM(active, i);
        if (other != (PyObject *)self)
            PyTuple_SET_ITEM(fewer, kept++, Py_NewRef(other));
    }
    Py_SETREF(active, fewer);
    count_hooks();
    if (count == 1)
        mst_sleep();
    return 0;
}

static PyObject *tracker_enter(tracker *self, PyObject *unused)
{
    (void)unused;
    if (prepare() != 0)
        return NULL;
    bool entered = gate_enter();
    bool good = self->entered > 0 || activate(self) == 0;
    self->entered += good;
    gate_leave(entered);
    return good ? Py_NewRef(self) : NULL;
}

static PyObject *tracker_exit(tracker *self, PyObject *args)
{
    (void)args;
    bool entered = gate_enter();
    bool active_now = self->entered > 0;
    bool good = active_now && (self->entered > 1 || deactivate(self) == 0);
    self->entered -= good;
    gate_leave(entered);
    if (!active_now)
        PyErr_SetString(PyExc_RuntimeError, "this tracker is not active: enter it first, with a with statement");
    return good ? Py_NewRef(Py_None) : NULL;
}

/* ---- hooks ---- */
static PyObject *register_user_hooks(tracker *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook", NULL};
    PyObject *given[MST_HOOKS] = {Py_None, Py_None, Py_None, Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, named, "|OOOO:register_user_hooks", names, &given[0], &given[1], &given[2],
                                     &given[3]))
        return NULL;
    for (int i = 0; i < MST_HOOKS; i++) {
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
    for (int i = 0; i < MST_HOOKS; i++)
        if (given[i] != Py_None)
            self->hooks[i] = Py_NewRef(given[i]);
    count_hooks();
    Py_RETURN_NONE;
}

static int tracker_clear(tracker *self)
{
    for (int i = 0; i < MST_HOOKS; i++)
        Py_CLEAR(self->hooks[i]);
    return 0;
}

static PyObject *clear_user_hooks(tracker *self, PyObject *unused)
{
    (void)unused;
    tracker_clear(self);
    count_hooks();
    Py_RETURN_NONE;
}

/* ---- names ---- */
static bool check_module(PyObject *module)
{
    if (PyObject_TypeCheck(module, mst_torch.module))
        return true;
    PyErr_Format(PyExc_TypeError, "expected a torch.nn.Module instance, not %.100s",
                 PyType_Check(module) ? "a class: call it on an instance" : Py_TYPE(module)->tp_name);
    return false;
}

static PyObject *get_known_fqn(tracker *self, PyObject *module)
{
    if (!check_module(module))
        return NULL;
    PyObject *fqn = self->book ? mst_book_fqn(self->book, module) : NULL;
    return Py_NewRef(fqn ? fqn : Py_None);
}

static PyObject *get_mod_name(tracker *self, PyObject *module)
{
    if (!check_module(module) || (!self->book && !(self->book = mst_book_new())))
        return NULL;
    return Py_XNewRef(mst_book_name(self->book, module));
}

static PyObject *known_modules(tracker *self, PyObject *unused)
{
    (void)unused;
    return mst_book_modules(self->book);
}

/* ---- reading: a tracker that is not active sees nothing run ---- */
static PyObject *get_parents(tracker *self, void *unused)
{
    (void)unused;
    return mst_read_parents(self->entered > 0);
}

static PyObject *get_stack(tracker *self, void *unused)
{
    (void)unused;
    return mst_read_stack(self->entered > 0);
}

static PyObject *get_current(tracker *self, void *unused)
{
    (void)unused;
    return mst_read_current(self->entered > 0);
}

static PyObject *get_phase(tracker *self, void *unused)
{
    (void)unused;
    return mst_read_phase(self->entered > 0);
}

static PyObject *get_is_bw(tracker *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(self->entered > 0 && mst_graph_task() != -1);
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
    for (int i = 0; i < MST_HOOKS; i++)
        Py_VISIT(self->hooks[i]);
    return 0;
}

static void tracker_dealloc(tracker *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    tracker_clear(self);
    mst_book_unref(self->book);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef tracker_methods[] = {
    {"__enter__", (PyCFunction)tracker_enter, METH_NOARGS, "Begin tracking."},
    {"__exit__", (PyCFunction)tracker_exit, METH_VARARGS, "End tracking; torch is as it was found."},
    {"get_known_fqn", (PyCFunction)get_known_fqn, METH_O, "The name of a module, if the tracker knows it, else None."},
    {"_get_mod_name", (PyCFunction)get_mod_name, METH_O, "The name of a module; it is given one if need be."},
    {"_known_modules", (PyCFunction)known_modules, METH_NOARGS, "A dict of the modules known and alive, by name."},
    {"_register_user_hooks", (PyCFunction)(void (*)(void))register_user_hooks, METH_VARARGS | METH_KEYWORDS, NULL},
    {"_clear_user_hooks", (PyCFunction)clear_user_hooks, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tracker_attributes[] = {
    {"parents", (getter)get_parents, NULL, "The names of all modules running now in this thread, and \"Global\".",
     NULL},
    {"stack", (getter)get_stack, NULL, "The names of the modules running now in this thread, outermost first.", NULL},
    {"current", (getter)get_current, NULL, "The name of the innermost module running now, or \"Global\".", NULL},
    {"phase", (getter)get_phase, NULL, "\"idle\", \"forward\", \"recompute\", \"backward\" or \"optimizer\".", NULL},
    {"is_bw", (getter)get_is_bw, NULL, "Whether this thread is inside a backward pass now.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject mst_tracker_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Tracker",
    .tp_doc = "What ModuleTracker and ModTracker are made of.",
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
    active = PyTuple_New(0);
    gate = PyThread_allocate_lock();
    return !active || !gate || PyType_Ready(&mst_tracker_type) != 0 ? -1 : 0;
}
