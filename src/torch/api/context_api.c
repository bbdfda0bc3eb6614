/* context_api.c - the base type of MemTracker and record: a context manager that is entered and left as a whole.
 *
 * The steps are Python methods of the subclass:
 *     _begin()              enter; what it has done when it raises is undone by _leave
 *     _begin_again()        enter once more; may refuse by raising
 *     _end(*exception)      what is done while it is still active; what it raises is raised after _leave
 *     _leave()              undo what _begin did, all of it or what there is; it may be called again
 *     _entering_lock        an attribute: a lock that is held meanwhile, or None
 *
 * Signal handlers of the program do not run during these steps, but after them: if one raises, a tracker that
 * was just entered is left again. So after __enter__ raised it is not entered, and after __exit__ it is left. */
#include "torch/api/api.h"
#include "torch/process/process.h"

#include <stddef.h>
#include <structmember.h>

typedef struct context {
    PyObject_HEAD
    Py_ssize_t entered; /* how often it was entered and not left; guarded by _entering_lock */
} context;

/* ---- the lock ---- */

/* A new reference that release_lock takes, Py_None if there is no lock, or NULL with an error set: a handler
 * that was not held raised while the thread waited. */
static PyObject *acquire_lock(context *self)
{
    PyObject *lock = PyObject_GetAttrString((PyObject *)self, "_entering_lock");
    PyObject *done = lock && lock != Py_None ? PyObject_CallMethod(lock, "acquire", NULL) : Py_NewRef(Py_None);
    if (!done)
        Py_CLEAR(lock);
    Py_XDECREF(done);
    return lock;
}

/* Keeps the error that is set. */
static void release_lock(PyObject *lock)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = lock && lock != Py_None ? PyObject_CallMethod(lock, "release", NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(lock);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

/* ---- the steps ---- */
static bool run_step(context *self, const char *name)
{
    PyObject *done = PyObject_CallMethod((PyObject *)self, name, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

/* Keeps the error that is set, else sets the first one that _leave raised. Another thread may raise an exception in
 * this one (PyThreadState_SetAsyncExc), which no hold prevents: so it is tried again. */
static void leave(context *self)
{
    enum { MOST_TRIES = 3 };
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    for (int i = 0; i < MOST_TRIES && !run_step(self, "_leave"); i++)
        if (type)
            PyErr_Clear();
        else
            PyErr_Fetch(&type, &value, &traceback);
    PyErr_Restore(type, value, traceback);
}

static bool enter_once(context *self)
{
    if (self->entered > 0) {
        bool accepted = run_step(self, "_begin_again");
        self->entered += accepted;
        return accepted;
    }
    if (run_step(self, "_begin")) {
        self->entered = 1;
        return true;
    }
    leave(self);
    return false;
}

/* Undo enter_once: a handler raised after it. Keeps the error that is set. */
static void undo_enter(context *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    bool held = mst_signals_hold();
    PyObject *lock = acquire_lock(self);
    if (self->entered > 0 && --self->entered == 0)
        leave(self);
    release_lock(lock);
    PyErr_Clear();
    mst_signals_release(held);
    mst_clear_error();
    PyErr_Restore(type, value, traceback);
}

static PyObject *context_enter(context *self, PyObject *unused)
{
    (void)unused;
    if (mst_prepare() != 0)
        return NULL;
    PyObject *lock = acquire_lock(self);
    if (!lock)
        return NULL;
    bool held = mst_signals_hold();
    bool good = enter_once(self);
    release_lock(lock);
    if (mst_signals_release(held) == 0)
        return Py_NewRef(self);
    if (good)
        undo_enter(self);
    return NULL;
}

static PyObject *context_exit(context *self, PyObject *exception)
{
    bool held = mst_signals_hold();
    PyObject *lock = acquire_lock(self);
    if (!lock)
        goto done;
    if (self->entered == 0) {
        PyObject *why = PyObject_GetAttrString((PyObject *)self, "_not_entered");
        if (why)
            PyErr_SetObject(PyExc_RuntimeError, why);
        Py_XDECREF(why);
    } else if (self->entered > 1) {
        self->entered--;
    } else {
        PyObject *end = PyObject_GetAttrString((PyObject *)self, "_end");
        PyObject *ended = end ? PyObject_CallObject(end, exception) : NULL;
        Py_XDECREF(end);
        Py_XDECREF(ended);
        leave(self);
        self->entered = 0;
    }
    release_lock(lock);
done:
    return mst_signals_release(held) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *begin_again(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    Py_RETURN_NONE;
}

static PyMethodDef context_methods[] = {
    {"__enter__", (PyCFunction)context_enter, METH_NOARGS, "Begin."},
    {"__exit__", (PyCFunction)context_exit, METH_VARARGS, "End."},
    {"_begin_again", begin_again, METH_NOARGS, "Accepts to be entered once more."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef context_members[] = {
    {"_entered", T_PYSSIZET, offsetof(context, entered), READONLY, "How often it was entered and not left."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject mst_context_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Context",
    .tp_doc = "A context manager that is entered and left as a whole.",
    .tp_basicsize = sizeof(context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_methods = context_methods,
    .tp_members = context_members,
};
