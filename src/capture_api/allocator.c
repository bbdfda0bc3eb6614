/* allocator.c - Allocator: the model of torch's CUDA allocator (modscope_allocator.h), from Python. */
#include "capture_api/capture_api.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    ms_allocator *allocator;
    PyObject *live;    /* a dict: the caller's id -> the allocation's address in this process */
    PyObject *changes; /* a list of what on_segment was told, until segment_changes() returns it */
    bool failed;       /* memory ran out in on_segment */
} allocator_object;

static void note_change(void *context, ms_segment_change change, uint64_t address, uint64_t bytes, uint64_t stream)
{
    static const char *const names[] = {"taken", "given back", "mapped", "unmapped"};
    allocator_object *self = context;
    PyObject *item = Py_BuildValue("sKKK", names[change], (unsigned long long)address, (unsigned long long)bytes,
                                   (unsigned long long)stream);
    if (!item || PyList_Append(self->changes, item) != 0) {
        PyErr_Clear();
        self->failed = true;
    }
    Py_XDECREF(item);
}

static bool apply_limit(PyObject *limit, uint64_t *bytes)
{
    if (!limit || limit == Py_None)
        return true;
    *bytes = PyLong_AsUnsignedLongLong(limit);
    return !PyErr_Occurred();
}

bool msr_allocator_settings(ms_allocator_settings *settings, const char *version, const char *conf, PyObject *capacity,
                            PyObject *total_memory)
{
    char error[200];
    if (ms_allocator_settings_default(settings, version) != MS_OK)
        PyErr_Format(PyExc_ValueError, "'%s' is not a version of torch that is known: give 2.0 or newer, such as 2.11",
                     version);
    else if (conf && ms_allocator_settings_apply(settings, conf, error, sizeof error) != MS_OK)
        PyErr_Format(PyExc_ValueError, "PYTORCH_CUDA_ALLOC_CONF=%s: %s", conf, error);
    else
        return apply_limit(capacity, &settings->capacity) && apply_limit(total_memory, &settings->total_memory);
    return false;
}

static PyObject *allocator_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"version", "conf", "capacity", "total_memory", NULL};
    const char *version = NULL, *conf = NULL;
    PyObject *capacity = NULL, *total_memory = NULL;
    ms_allocator_settings settings;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|zzOO", names, &version, &conf, &capacity, &total_memory) ||
        !msr_allocator_settings(&settings, version, conf, capacity, total_memory))
        return NULL;
    allocator_object *self = (allocator_object *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->live = PyDict_New();
    self->changes = PyList_New(0);
    self->allocator = ms_allocator_open(&settings, NULL);
    if (!self->live || !self->changes || !self->allocator) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    ms_allocator_on_segment(self->allocator, note_change, self);
    return (PyObject *)self;
}

static void allocator_dealloc(PyObject *object)
{
    allocator_object *self = (allocator_object *)object;
    ms_allocator_close(self->allocator);
    Py_XDECREF(self->live);
    Py_XDECREF(self->changes);
    Py_TYPE(object)->tp_free(object);
}

static ms_allocation *find_live(allocator_object *self, PyObject *id)
{
    PyObject *found = PyDict_GetItemWithError(self->live, id);
    if (!found && !PyErr_Occurred())
        PyErr_SetObject(PyExc_KeyError, id);
    return found ? PyLong_AsVoidPtr(found) : NULL;
}

static PyObject *allocator_malloc(PyObject *object, PyObject *args)
{
    allocator_object *self = (allocator_object *)object;
    PyObject *id;
    unsigned long long bytes, stream = 0;
    ms_allocation *allocation;
    if (!PyArg_ParseTuple(args, "OK|K", &id, &bytes, &stream))
        return NULL;
    int known = PyDict_Contains(self->live, id);
    if (known)
        return known < 0 ? NULL : PyErr_Format(PyExc_ValueError, "%R was allocated already", id);
    int error = ms_allocator_malloc(self->allocator, bytes, stream, &allocation);
    if (error == MS_EDEVICE)
        Py_RETURN_NONE;
    PyObject *value = error ? NULL : PyLong_FromVoidPtr(allocation);
    if (!value || PyDict_SetItem(self->live, id, value) != 0) {
        Py_XDECREF(value);
        return error ? msr_raise(error) : NULL;
    }
    Py_DECREF(value);
    return PyLong_FromUnsignedLongLong(allocation ? ms_allocation_address(allocation) : 0);
}

static PyObject *allocator_free(PyObject *object, PyObject *id)
{
    allocator_object *self = (allocator_object *)object;
    ms_allocation *allocation = find_live(self, id);
    if ((!allocation && PyErr_Occurred()) || PyDict_DelItem(self->live, id) != 0)
        return NULL;
    ms_allocator_free(self->allocator, allocation);
    Py_RETURN_NONE;
}

static PyObject *allocator_record_stream(PyObject *object, PyObject *args)
{
    PyObject *id;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "OK", &id, &stream))
        return NULL;
    ms_allocation *allocation = find_live((allocator_object *)object, id);
    if (!allocation && PyErr_Occurred())
        return NULL;
    ms_allocator_record_stream(allocation, stream);
    Py_RETURN_NONE;
}

static PyObject *allocator_empty_cache(PyObject *object, PyObject *unused)
{
    (void)unused;
    int error = ms_allocator_empty_cache(((allocator_object *)object)->allocator);
    if (error)
        return msr_raise(error);
    Py_RETURN_NONE;
}

/* ---- a log of the virtual device (src/torch/virtual/virtual.h) ---- */
static unsigned kind_of_entry(uint64_t entry)
{
    return entry & ((1U << MS_LOG_KIND_BITS) - 1);
}

static size_t count_allocations(const uint64_t *log, size_t count)
{
    size_t allocations = 0;
    for (size_t i = 0; i < count; i++)
        allocations += kind_of_entry(log[i]) == MS_LOG_ALLOCATE;
    return allocations;
}

/* MS_EDEVICE: allocation *number, of *bytes, failed. MS_EINVAL: the log frees what it did not allocate, or
 * has an entry of no kind. */
static int replay_log(ms_allocator *allocator, const uint64_t *log, size_t count, ms_allocation **made, size_t *number,
                      uint64_t *bytes)
{
    uint64_t stream = 0;
    *number = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t value = log[i] >> MS_LOG_KIND_BITS;
        int error = MS_OK;
        switch (kind_of_entry(log[i])) {
        case MS_LOG_ALLOCATE:
            *bytes = value;
            error = ms_allocator_malloc(allocator, value, stream, &made[*number]);
            stream = 0;
            if (!error)
                (*number)++;
            break;
        case MS_LOG_FREE:
            if (value >= *number)
                return MS_EINVAL;
            ms_allocator_free(allocator, made[value]);
            made[value] = NULL;
            break;
        case MS_LOG_EMPTY_CACHE:
            error = ms_allocator_empty_cache(allocator);
            break;
        case MS_LOG_STREAM:
            stream = value;
            break;
        case MS_LOG_HOLD:
        case MS_LOG_RELEASE:
            error = ms_allocator_log_pool(allocator, (ms_log_kind)kind_of_entry(log[i]), value);
            break;
        case MS_LOG_OPERATOR:
            break;
        default:
            return MS_EINVAL;
        }
        if (error)
            return error;
    }
    return MS_OK;
}

static PyObject *allocator_replay(PyObject *object, PyObject *bytes)
{
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &text, &length) != 0)
        return NULL;
    size_t count = (size_t)length / sizeof(uint64_t), number;
    uint64_t *log = malloc((size_t)length + 1), failed_bytes = 0;
    ms_allocation **made = NULL;
    if (log) {
        memcpy(log, text, count * sizeof *log);
        made = calloc(count_allocations(log, count) + 1, sizeof *made);
    }
    int error = made ? replay_log(((allocator_object *)object)->allocator, log, count, made, &number, &failed_bytes)
                     : MS_ENOMEM;
    free(log);
    free(made);
    if (error == MS_EDEVICE)
        return Py_BuildValue("nK", (Py_ssize_t)number, (unsigned long long)failed_bytes);
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_ValueError, "this is not the log of a virtual GPU");
    return error ? msr_raise(error) : Py_NewRef(Py_None);
}

static PyObject *allocator_place_next(PyObject *object, PyObject *argument)
{
    uint64_t address = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred())
        return NULL;
    ms_allocator_place_next(((allocator_object *)object)->allocator, address);
    Py_RETURN_NONE;
}

static PyObject *allocator_segment_changes(PyObject *object, PyObject *unused)
{
    (void)unused;
    allocator_object *self = (allocator_object *)object;
    PyObject *fresh = self->failed ? PyErr_NoMemory() : PyList_New(0);
    if (!fresh)
        return NULL;
    PyObject *changes = self->changes;
    self->changes = fresh;
    return changes;
}

static PyObject *stat_dict(const ms_allocator_stat *stat)
{
    return Py_BuildValue("{sLsLsLsL}", "current", (long long)stat->now, "peak", (long long)stat->peak, "allocated",
                         (long long)stat->total_added, "freed", (long long)stat->total_removed);
}

static PyObject *stat_by_pool(const ms_allocator_stat *of)
{
    return Py_BuildValue("{sNsNsN}", "all", stat_dict(&of[MS_BOTH_POOLS]), "small_pool", stat_dict(&of[MS_SMALL_POOL]),
                         "large_pool", stat_dict(&of[MS_LARGE_POOL]));
}

/* Takes the reference. Returns whether it failed. */
static bool add_value(PyObject *stats, const char *name, PyObject *value)
{
    bool failed = !value || PyDict_SetItemString(stats, name, value) != 0;
    Py_XDECREF(value);
    return failed;
}

static PyObject *allocator_stats(PyObject *object, PyObject *unused)
{
    (void)unused;
    const ms_allocator_stats *of = ms_allocator_read(((allocator_object *)object)->allocator);
    PyObject *stats = PyDict_New();
    bool failed = !stats;
#define X(name, member) failed = failed || add_value(stats, name, stat_by_pool(of->member));
    MS_STATS_BY_POOL(X)
#undef X
#define X(name, member) failed = failed || add_value(stats, name, stat_dict(&of->member));
    MS_STATS_WITHOUT_POOLS(X)
#undef X
#define X(name, member) failed = failed || add_value(stats, name, PyLong_FromLongLong(of->member));
    MS_STATS_NUMBERS(X)
#undef X
    if (failed)
        Py_CLEAR(stats);
    return stats;
}

static PyObject *allocator_check(PyObject *object, PyObject *unused)
{
    (void)unused;
    const char *wrong = ms_allocator_check(((allocator_object *)object)->allocator);
    if (wrong)
        return PyErr_Format(PyExc_AssertionError, "%s", wrong);
    Py_RETURN_NONE;
}

static PyMethodDef allocator_methods[] = {
    {"malloc", allocator_malloc, METH_VARARGS,
     "malloc(id, bytes, stream=0): the block's address, or None if the device is full."},
    {"free", allocator_free, METH_O, "Free what was allocated under this id."},
    {"record_stream", allocator_record_stream, METH_VARARGS,
     "record_stream(id, stream): it is used on that stream too."},
    {"empty_cache", allocator_empty_cache, METH_NOARGS, "Give every free segment back to the device."},
    {"replay", allocator_replay, METH_O,
     "Do what the log of a virtual GPU says: None, or the number and bytes of the allocation that failed."},
    {"place_next", allocator_place_next, METH_O, "The address that the next segment gets."},
    {"segment_changes", allocator_segment_changes, METH_NOARGS,
     "The changes of what is reserved since the last call: (change, address, bytes, stream)."},
    {"stats", allocator_stats, METH_NOARGS,
     "The statistics, with the names of torch.cuda.memory_stats_as_nested_dict()."},
    {"check", allocator_check, METH_NOARGS, "Raise AssertionError unless every invariant holds."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_allocator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Allocator",
    .tp_doc = "A model of torch's caching allocator for CUDA.",
    .tp_basicsize = sizeof(allocator_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = allocator_new,
    .tp_dealloc = allocator_dealloc,
    .tp_methods = allocator_methods,
};
