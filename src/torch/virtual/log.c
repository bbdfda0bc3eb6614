/* log.c - write the logs of the virtual devices' allocations. */
#include "torch/api/api.h"
#include "torch/virtual/virtual.h"

#include "base/array.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALLOCATE, FREE, EMPTY_CACHE, STREAM, KIND_BITS = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the logs */
static bool is_on;
static struct device_log {
    uint64_t *entries;
    size_t count, room;
    uint64_t allocations;
    bool failed; /* memory ran out: the log is not complete */
} logs[MST_MOST_VIRTUAL];

static void append_entry(struct device_log *log, unsigned kind, uint64_t value)
{
    if (MS__ARRAY_GROW(log->entries, log->room, log->count + 1))
        log->entries[log->count++] = value << KIND_BITS | kind;
    else
        log->failed = true;
}

uint64_t mst_virtual_log_malloc(int device, uint64_t bytes, uint64_t stream)
{
    uint64_t number = MST_NOT_LOGGED;
    pthread_mutex_lock(&lock);
    if (is_on) {
        if (stream)
            append_entry(&logs[device], STREAM, stream);
        append_entry(&logs[device], ALLOCATE, bytes);
        number = logs[device].allocations++;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

void mst_virtual_log_free(int device, uint64_t number)
{
    pthread_mutex_lock(&lock);
    if (is_on && number != MST_NOT_LOGGED)
        append_entry(&logs[device], FREE, number);
    pthread_mutex_unlock(&lock);
}

void mst_virtual_log_empty_cache(int device)
{
    pthread_mutex_lock(&lock);
    if (is_on)
        append_entry(&logs[device], EMPTY_CACHE, 0);
    pthread_mutex_unlock(&lock);
}

/* The caller holds the lock. */
static void clear_logs(void)
{
    for (int i = 0; i < MST_MOST_VIRTUAL; i++) {
        free(logs[i].entries);
        logs[i] = (struct device_log){0};
    }
}

/* ---- from Python ---- */
static PyObject *virtual_log_begin(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    clear_logs();
    is_on = true;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *virtual_log_end(PyObject *self, PyObject *index)
{
    (void)self;
    long device = PyLong_AsLong(index);
    if (device < 0 || device >= MST_MOST_VIRTUAL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no virtual GPU %ld", device);
    pthread_mutex_lock(&lock);
    is_on = false;
    bool failed = logs[device].failed;
    size_t bytes = logs[device].count * sizeof *logs[device].entries;
    PyObject *log = failed ? NULL : PyBytes_FromStringAndSize((const char *)logs[device].entries, (Py_ssize_t)bytes);
    clear_logs();
    pthread_mutex_unlock(&lock);
    return failed ? PyErr_NoMemory() : log;
}

PyMethodDef mst_virtual_log_methods[] = {
    {"virtual_log_begin", virtual_log_begin, METH_NOARGS, "Log what is asked of the virtual devices from now on."},
    {"virtual_log_end", virtual_log_end, METH_O,
     "End the logs: the bytes of one device's, which Allocator.replay takes."},
    {NULL, NULL, 0, NULL},
};
