/* log.c - write the log of a virtual device's allocations. */
#include "torch/api/api.h"
#include "torch/virtual/virtual.h"

#include "base/array.h"

#include <pthread.h>
#include <stdlib.h>

enum { ALLOCATE, FREE, EMPTY_CACHE, STREAM, KIND_BITS = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the log */
static struct {
    uint64_t *entries;
    size_t count, room;
    uint64_t allocations;
    bool on;
    bool failed; /* memory ran out: the log is not complete */
} log_state;

static void append_entry(unsigned kind, uint64_t value)
{
    if (MS__ARRAY_GROW(log_state.entries, log_state.room, log_state.count + 1))
        log_state.entries[log_state.count++] = value << KIND_BITS | kind;
    else
        log_state.failed = true;
}

uint64_t mst_virtual_log_malloc(uint64_t bytes, uint64_t stream)
{
    uint64_t number = MST_NOT_LOGGED;
    pthread_mutex_lock(&lock);
    if (log_state.on) {
        if (stream)
            append_entry(STREAM, stream);
        append_entry(ALLOCATE, bytes);
        number = log_state.allocations++;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

void mst_virtual_log_free(uint64_t number)
{
    pthread_mutex_lock(&lock);
    if (log_state.on && number != MST_NOT_LOGGED)
        append_entry(FREE, number);
    pthread_mutex_unlock(&lock);
}

void mst_virtual_log_empty_cache(void)
{
    pthread_mutex_lock(&lock);
    if (log_state.on)
        append_entry(EMPTY_CACHE, 0);
    pthread_mutex_unlock(&lock);
}

/* ---- from Python ---- */
static PyObject *virtual_log_begin(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    log_state.count = 0;
    log_state.allocations = 0;
    log_state.failed = false;
    log_state.on = true;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *virtual_log_end(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    pthread_mutex_lock(&lock);
    log_state.on = false;
    bool failed = log_state.failed;
    size_t bytes = log_state.count * sizeof *log_state.entries;
    PyObject *log = failed ? NULL : PyBytes_FromStringAndSize((const char *)log_state.entries, (Py_ssize_t)bytes);
    free(log_state.entries);
    log_state.entries = NULL;
    log_state.count = log_state.room = 0;
    pthread_mutex_unlock(&lock);
    return failed ? PyErr_NoMemory() : log;
}

PyMethodDef mst_virtual_log_methods[] = {
    {"virtual_log_begin", virtual_log_begin, METH_NOARGS, "Log what is asked of the virtual device from now on."},
    {"virtual_log_end", virtual_log_end, METH_NOARGS, "End the log: the bytes that Allocator.replay takes."},
    {NULL, NULL, 0, NULL},
};
