/* clock.c - the time of the virtual device: two clocks, of the host that launches operators and of the device
 * that runs them one after another.
 *
 *     host    | launch a | launch b | launch c |      | wait         |
 *     device             |    a     |    b     |         c           |
 *
 * A capture shows the moment at which everything that was launched so far has ended. */
#include "torch/api/api.h"
#include "torch/virtual/virtual.h"

#include <modscope_capture.h>

#include <math.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double host, device, busy;     /* nanoseconds; guarded by `lock`; they never decrease */
static _Atomic uint64_t ended_so_far; /* the later one of both, for captures */

/* The caller holds the lock. */
static void publish(void)
{
    atomic_store_explicit(&ended_so_far, (uint64_t)(host > device ? host : device), memory_order_relaxed);
}

static uint64_t read_virtual_clock(void)
{
    return atomic_load_explicit(&ended_so_far, memory_order_relaxed);
}

/* Negative times and nan would let the clock go back. */
static bool parse_seconds(PyObject *number, double *nanoseconds)
{
    double seconds = PyFloat_AsDouble(number);
    if (seconds == -1 && PyErr_Occurred())
        return false;
    *nanoseconds = seconds > 0 && isfinite(seconds) ? seconds * 1e9 : 0;
    return true;
}

static PyObject *virtual_clock_run(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    double launch, run;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "virtual_clock_run needs the seconds of the host and of the device");
        return NULL;
    }
    if (!parse_seconds(args[0], &launch) || !parse_seconds(args[1], &run))
        return NULL;
    pthread_mutex_lock(&lock);
    host += launch;
    if (run > 0)
        device = (device > host ? device : host) + run;
    busy += run;
    publish();
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

double mst_virtual_clock_busy(void)
{
    pthread_mutex_lock(&lock);
    double nanoseconds = busy;
    pthread_mutex_unlock(&lock);
    return nanoseconds;
}

static PyObject *virtual_clock_wait(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    host = device > host ? device : host;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *virtual_clock_read(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    double at_host = host, at_device = device;
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("(dd)", at_host / 1e9, (at_device > at_host ? at_device : at_host) / 1e9);
}

static PyObject *virtual_clock_use(PyObject *self, PyObject *wanted)
{
    (void)self;
    int use = PyObject_IsTrue(wanted);
    if (use < 0)
        return NULL;
    ms_capture_use_clock(use ? read_virtual_clock : NULL);
    Py_RETURN_NONE;
}

PyMethodDef mst_virtual_clock_methods[] = {
    {"virtual_clock_run", (PyCFunction)(void (*)(void))virtual_clock_run, METH_FASTCALL,
     "An operator was launched in so many seconds of the host, and takes so many seconds of the device."},
    {"virtual_clock_wait", virtual_clock_wait, METH_NOARGS, "The host waits for the device."},
    {"virtual_clock_read", virtual_clock_read, METH_NOARGS,
     "Seconds: of the host, and when everything that was launched so far has ended."},
    {"virtual_clock_use", virtual_clock_use, METH_O,
     "Whether captures that begin from now on take their times from the virtual clock."},
    {NULL, NULL, 0, NULL},
};
