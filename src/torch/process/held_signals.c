/* held_signals.c - hold the program's signal handlers back while something must not be interrupted half-way.
 *
 * Python changes handlers in the main thread only, and runs them there only: other threads need no hold. */
#include "torch/api/api.h"
#include "torch/process/process.h"

#include <signal.h>

enum { SIGNAL_COUNT = 65, MOST_TRIES = 100 };

/* Guarded by the GIL. */
static struct held_signal {
    PyObject *holder;   /* the function that is installed meanwhile; its self is `previous`. NULL: not held */
    PyObject *previous; /* the program's handler */
    bool came;
} signals[SIGNAL_COUNT];
static int holds;             /* how many holds are open */
static PyObject *raised;      /* the first exception of a handler that was not held yet, or not any more; or NULL */
static PyObject *module;      /* Python's _signal */
static PyObject *main_thread; /* its number */

/* The handler meanwhile. Code of the program that ran during a hold may have kept it: later it calls the handler. */
static PyObject *note_signal(PyObject *previous, PyObject *args)
{
    long number = PyTuple_GET_SIZE(args) ? PyLong_AsLong(PyTuple_GET_ITEM(args, 0)) : -1;
    if (holds == 0 || number < 0 || number >= SIGNAL_COUNT) {
        PyErr_Clear();
        return PyObject_Call(previous, args, NULL);
    }
    signals[number].came = true;
    Py_RETURN_NONE;
}

static PyMethodDef note_signal_def = {"note_signal", note_signal, METH_VARARGS, "Call the handler after the hold."};

bool mst_in_main_thread(void)
{
    if (!module)
        return false;
    bool same = PyLong_AsUnsignedLong(main_thread) == PyThread_get_thread_ident();
    PyErr_Clear();
    return same;
}

/* Whether the error that is set is Python's own, because handlers cannot be set here, and not that of a handler. */
static bool is_refusal(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    bool refusal = !traceback && (PyErr_GivenExceptionMatches(type, PyExc_ValueError) ||
                                  PyErr_GivenExceptionMatches(type, PyExc_OSError));
    PyErr_Restore(type, value, traceback);
    return refusal;
}

/* Keep the error that is set in *first. If there is one already, Python raises it as soon as the main thread runs
 * Python code. */
static void keep_raised(PyObject **first)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback)
        PyException_SetTraceback(value, traceback);
    if (!*first)
        *first = Py_XNewRef(value);
    else
        mst_schedule_exception(Py_XNewRef(value));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* Set Python's handler of a signal and keep the flags that the program chose (siginterrupt). Python first runs the
 * handlers of signals that came: one that raises prevents the change, which is tried again. */
static bool set_handler(int number, PyObject *handler)
{
    struct sigaction action;
    bool known = sigaction(number, NULL, &action) == 0;
    for (int i = 0; i < MOST_TRIES; i++) {
        PyObject *before = PyObject_CallMethod(module, "signal", "iO", number, handler);
        if (before) {
            if (known)
                sigaction(number, &action, NULL);
            Py_DECREF(before);
            return true;
        }
        if (is_refusal())
            break;
        keep_raised(&raised);
    }
    PyErr_Clear();
    return false;
}

static void hold_signal(int number)
{
    PyObject *handler = PyObject_CallMethod(module, "getsignal", "i", number);
    struct held_signal *held = &signals[number];
    if (handler && PyCallable_Check(handler) && !PyLong_Check(handler) &&
        (held->holder = PyCFunction_New(&note_signal_def, handler))) {
        held->previous = Py_NewRef(handler);
        held->came = false;
        if (!set_handler(number, held->holder)) {
            Py_CLEAR(held->holder);
            Py_CLEAR(held->previous);
        }
    }
    Py_XDECREF(handler);
    PyErr_Clear();
}

bool mst_signals_hold(void)
{
    if (!mst_in_main_thread())
        return false;
    if (holds++ == 0)
        for (int number = 1; number < SIGNAL_COUNT; number++)
            hold_signal(number);
    return true;
}

/* Code that ran during the hold may have set another handler: that stays. */
static void restore_signal(int number)
{
    struct held_signal *held = &signals[number];
    PyObject *now = held->holder ? PyObject_CallMethod(module, "getsignal", "i", number) : NULL;
    if (now && now == held->holder)
        set_handler(number, held->previous);
    Py_XDECREF(now);
    PyErr_Clear();
    Py_CLEAR(held->holder);
}

static void call_handler(PyObject *handler, int number, PyObject **first)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    PyObject *result = PyObject_CallFunction(handler, "iO", number, frame ? frame : Py_None);
    if (!result)
        keep_raised(first);
    Py_XDECREF(result);
}

/* Call the handlers whose signals came; *first becomes the first exception. A handler may itself begin another hold, so
 * nothing of this one is left in `signals` and `raised` when the first handler is called. */
static void call_handlers(PyObject **first)
{
    PyObject *handlers[SIGNAL_COUNT];
    for (int number = 1; number < SIGNAL_COUNT; number++) {
        struct held_signal *held = &signals[number];
        handlers[number] = held->came ? Py_XNewRef(held->previous) : NULL;
        held->came = false;
        Py_CLEAR(held->previous);
    }
    *first = raised;
    raised = NULL;
    for (int number = 1; number < SIGNAL_COUNT; number++)
        if (handlers[number]) {
            call_handler(handlers[number], number, first);
            Py_DECREF(handlers[number]);
        }
}

int mst_signals_release(bool held)
{
    if (!held || holds > 1) {
        holds -= held;
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *type, *value, *traceback, *exception;
    PyErr_Fetch(&type, &value, &traceback);
    for (int number = 1; number < SIGNAL_COUNT; number++)
        restore_signal(number);
    holds = 0;
    call_handlers(&exception);
    if (!exception) {
        PyErr_Restore(type, value, traceback);
        return type ? -1 : 0;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && value != exception)
        PyException_SetContext(exception, Py_NewRef(value));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
    return -1;
}

/* The thread that forked is the child's main thread. If another thread was inside a hold, it does not exist here. */
static PyObject *signals_forked(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    bool was_main = mst_in_main_thread();
    Py_XSETREF(main_thread, PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    if (!main_thread)
        return NULL;
    if (was_main)
        Py_RETURN_NONE;
    for (int number = 1; number < SIGNAL_COUNT; number++) {
        restore_signal(number);
        Py_CLEAR(signals[number].previous);
    }
    holds = 0;
    Py_CLEAR(raised);
    Py_RETURN_NONE;
}

PyMethodDef mst_held_signals_methods[] = {
    {"signals_forked", signals_forked, METH_NOARGS,
     "In a forked child: restore the handlers that another thread held."},
    {NULL, NULL, 0, NULL},
};

int mst_held_signals_init(void)
{
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    main_thread = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    module = main_thread ? PyImport_ImportModule("_signal") : NULL;
    Py_XDECREF(threading);
    Py_XDECREF(thread);
    return module ? 0 : -1;
}
