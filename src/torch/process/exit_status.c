/* exit_status.c - the exit status of a program that ends by SystemExit.
 *
 * Python tells nobody why it ends: exit functions run after it has dropped the SystemExit and before the process has a
 * status. So the type's tp_dealloc is patched: a SystemExit that is dropped on the main thread while no Python frame is
 * left was caught by nobody, and it ends the program. */
#include "torch/api/api.h"

#include <string.h>

static destructor previous_dealloc; /* NULL: not patched */
static unsigned long main_thread;
static int exit_status; /* -1: not known */

static int status_of(const PySystemExitObject *error)
{
    PyObject *code = error->code;
    int overflow;
    if (!code || code == Py_None)
        return 0;
    return PyLong_Check(code) ? (int)(PyLong_AsLongAndOverflow(code, &overflow) & 0xFF) : 1;
}

static void intercept_dealloc(PyObject *error)
{
    destructor previous = previous_dealloc;
    if (exit_status < 0 && PyThread_get_thread_ident() == main_thread && !PyEval_GetFrame())
        exit_status = status_of((PySystemExitObject *)error);
    previous(error);
}

#if PY_VERSION_HEX < 0x030C0000
/* Before Python 3.12 sys.exit does not make the SystemExit; an except clause does, if there is one. So the function of
 * its method definition is patched too, which every name for sys.exit shares. */
static _PyCFunctionFast previous_exit; /* NULL: not patched */
static PyMethodDef *exit_definition;

static PyObject *intercept_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *type, *value, *traceback;
    PyObject *result = previous_exit(self, args, count);
    if (count == 1 && PyTuple_Check(args[0])) /* As arguments of SystemExit its items would mean something else. */
        return result;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyErr_Restore(type, value, traceback);
    return result;
}

static void patch_exit(void)
{
    PyObject *function = PySys_GetObject("exit");
    if (previous_exit || !function || !PyCFunction_CheckExact(function))
        return;
    PyMethodDef *definition = ((PyCFunctionObject *)function)->m_ml;
    if (strcmp(definition->ml_name, "exit") != 0 || definition->ml_flags != METH_FASTCALL)
        return;
    exit_definition = definition;
    previous_exit = (_PyCFunctionFast)(void (*)(void))definition->ml_meth;
    definition->ml_meth = (PyCFunction)(void (*)(void))intercept_exit;
}

static void restore_exit(void)
{
    if (previous_exit && exit_definition->ml_meth == (PyCFunction)(void (*)(void))intercept_exit)
        exit_definition->ml_meth = (PyCFunction)(void (*)(void))previous_exit;
}
#else
static void patch_exit(void)
{
}

static void restore_exit(void)
{
}
#endif

static PyObject *watch_exit_status(PyObject *self, PyObject *thread)
{
    (void)self;
    PyTypeObject *type = (PyTypeObject *)PyExc_SystemExit;
    main_thread = PyLong_AsUnsignedLong(thread);
    if (PyErr_Occurred())
        return NULL;
    exit_status = -1;
    if (type->tp_dealloc != intercept_dealloc) {
        previous_dealloc = type->tp_dealloc;
        type->tp_dealloc = intercept_dealloc;
    }
    patch_exit();
    Py_RETURN_NONE;
}

static PyObject *take_exit_status(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyTypeObject *type = (PyTypeObject *)PyExc_SystemExit;
    if (previous_dealloc && type->tp_dealloc == intercept_dealloc)
        type->tp_dealloc = previous_dealloc;
    restore_exit();
    if (!previous_dealloc || exit_status < 0)
        Py_RETURN_NONE;
    return PyLong_FromLong(exit_status);
}

PyMethodDef mst_exit_status_methods[] = {
    {"watch_exit_status", watch_exit_status, METH_O,
     "Notice the SystemExit that ends the program. The argument is the identifier of the main thread."},
    {"take_exit_status", take_exit_status, METH_NOARGS,
     "The status of that SystemExit; None if there was none. It is not watched for any more."},
    {NULL, NULL, 0, NULL},
};
