/* log.c - write the logs of the virtual devices' allocations. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include "base/array.h"
#include "modscope_allocator.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the logs */
static bool is_on;
static struct device_log {
    uint64_t *entries;
    size_t count, room;
    uint64_t allocations;
    const char *made_by; /* the operator that allocated last */
    bool failed;         /* memory ran out: the log is not complete */
} logs[MST_MOST_VIRTUAL];

static void append_entry(struct device_log *log, ms_log_kind kind, uint64_t value)
{
    if (MS__ARRAY_GROW(log->entries, log->room, log->count + 1))
        log->entries[log->count++] = value << MS_LOG_KIND_BITS | kind;
    else
        log->failed = true;
}

/* Names are hashed, so that logs of several processes can be compared. */
static uint32_t number_of_operator(const char *name)
{
    uint32_t hash = name ? UINT32_C(2166136261) : 0;
    for (; name && *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT32_C(16777619);
    return hash;
}

/* The addresses of names identify them. */
static void note_operator(struct device_log *log)
{
    if (log->made_by == mst_running_operator)
        return;
    log->made_by = mst_running_operator;
    append_entry(log, MS_LOG_OPERATOR, number_of_operator(log->made_by));
}

uint64_t mst_virtual_log_malloc(int device, uint64_t bytes, uint64_t stream)
{
    uint64_t number = MST_NOT_LOGGED;
    pthread_mutex_lock(&lock);
    if (is_on) {
        note_operator(&logs[device]);
        if (stream)
            append_entry(&logs[device], MS_LOG_STREAM, stream);
        append_entry(&logs[device], MS_LOG_ALLOCATE, bytes);
        number = logs[device].allocations++;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

void mst_virtual_log_free(int device, uint64_t number)
{
    pthread_mutex_lock(&lock);
    if (is_on && number != MST_NOT_LOGGED)
        append_entry(&logs[device], MS_LOG_FREE, number);
    pthread_mutex_unlock(&lock);
}

void mst_virtual_log_empty_cache(int device)
{
    pthread_mutex_lock(&lock);
    if (is_on)
        append_entry(&logs[device], MS_LOG_EMPTY_CACHE, 0);
    pthread_mutex_unlock(&lock);
}

void mst_virtual_log_pool(int device, ms_log_kind kind, uint64_t pool, unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (is_on)
        append_entry(&logs[device], kind, pool | (uint64_t)flags << MS_LOG_POOL_BITS);
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

static PyObject *virtual_log_count(PyObject *self, PyObject *index)
{
    (void)self;
    long device = PyLong_AsLong(index);
    if (device < 0 || device >= MST_MOST_VIRTUAL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no virtual GPU %ld", device);
    pthread_mutex_lock(&lock);
    size_t count = logs[device].count;
    pthread_mutex_unlock(&lock);
    return PyLong_FromSize_t(count);
}

/* The entries of a device's log so far; the lock is held. NULL: memory runs out, or did so before. */
static PyObject *entries_of(int device)
{
    size_t bytes = logs[device].count * sizeof *logs[device].entries;
    return logs[device].failed ? NULL
                               : PyBytes_FromStringAndSize((const char *)logs[device].entries, (Py_ssize_t)bytes);
}

static PyObject *virtual_log_read(PyObject *self, PyObject *index)
{
    (void)self;
    long device = PyLong_AsLong(index);
    if (device < 0 || device >= MST_MOST_VIRTUAL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no virtual GPU %ld", device);
    pthread_mutex_lock(&lock);
    PyObject *log = entries_of((int)device);
    pthread_mutex_unlock(&lock);
    return log ? log : PyErr_NoMemory();
}

static PyObject *virtual_log_end(PyObject *self, PyObject *index)
{
    (void)self;
    long device = PyLong_AsLong(index);
    if (device < 0 || device >= MST_MOST_VIRTUAL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there is no virtual GPU %ld", device);
    pthread_mutex_lock(&lock);
    is_on = false;
    PyObject *log = entries_of((int)device);
    clear_logs();
    pthread_mutex_unlock(&lock);
    return log ? log : PyErr_NoMemory();
}

PyMethodDef mst_virtual_log_methods[] = {
    {"virtual_log_begin", virtual_log_begin, METH_NOARGS, "Log what is asked of the virtual devices from now on."},
    {"virtual_log_count", virtual_log_count, METH_O, "How many entries the log of a device has."},
    {"virtual_log_read", virtual_log_read, METH_O, "The bytes of a device's log so far, as virtual_log_end has them."},
    {"virtual_log_end", virtual_log_end, METH_O,
     "End the logs: the bytes of one device's, which Allocator.replay takes."},
    {NULL, NULL, 0, NULL},
};
