/* epoch.c - Epoch: steps of batches with different shapes (modscope_epoch.h), from Python. */
#include "capture_api/capture_api.h"

#include "modscope_epoch.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    ms_epoch *epoch;
} epoch_object;

static bool has_items(const Py_buffer *buffer, Py_ssize_t size, size_t count)
{
    return buffer->len % size == 0 && (size_t)(buffer->len / size) == count;
}

/* The lengths of the arrays agree with each other. */
static bool fill_source(const Py_buffer *arrays, ms_epoch_source *source)
{
    size_t steps = (size_t)arrays[3].len;
    source->log = arrays[0].buf;
    source->entries = (size_t)arrays[0].len / sizeof(uint64_t);
    source->marks = arrays[1].buf;
    source->shapes = arrays[2].buf;
    source->kinds = arrays[3].buf;
    source->features = arrays[4].buf;
    source->steps = (uint32_t)steps;
    return sizeof(size_t) == sizeof(uint64_t) && has_items(&arrays[1], sizeof(uint64_t), steps + 1) &&
           has_items(&arrays[2], sizeof(uint32_t), steps) &&
           has_items(&arrays[4], sizeof(double), (size_t)source->shape_count * source->width);
}

static int open_source(const Py_buffer *arrays, ms_epoch_source *source, ms_epoch **epoch)
{
    if (!fill_source(arrays, source))
        return MS_EINVAL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_epoch_open(source, epoch);
    Py_END_ALLOW_THREADS
    return error;
}

static PyObject *epoch_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"log", "marks", "shapes", "kinds", "features", "first", "shape_count", "width", NULL};
    Py_buffer arrays[5];
    ms_epoch_source source = {0};
    ms_epoch *epoch = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "y*y*y*y*y*III", names, &arrays[0], &arrays[1], &arrays[2],
                                     &arrays[3], &arrays[4], &source.first, &source.shape_count, &source.width))
        return NULL;
    int error = open_source(arrays, &source, &epoch);
    for (int i = 0; i < 5; i++)
        PyBuffer_Release(&arrays[i]);
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_ValueError, "these are not the log and the steps of one run");
    if (error)
        return msr_raise(error);
    epoch_object *self = (epoch_object *)type->tp_alloc(type, 0);
    if (self)
        self->epoch = epoch;
    else
        ms_epoch_close(epoch);
    return (PyObject *)self;
}

static void epoch_dealloc(PyObject *object)
{
    ms_epoch_close(((epoch_object *)object)->epoch);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *epoch_facts(PyObject *object, PyObject *unused)
{
    (void)unused;
    ms_epoch_facts facts = ms_epoch_describe(((epoch_object *)object)->epoch);
    return Py_BuildValue("{sIsIsKsKsKsKsK}", "variants", facts.variants, "lag", facts.lag, "blocks",
                         (unsigned long long)facts.blocks, "varying", (unsigned long long)facts.varying, "inexact",
                         (unsigned long long)facts.inexact, "inexact_bytes", (unsigned long long)facts.inexact_bytes,
                         "bytes", (unsigned long long)facts.bytes);
}

static PyObject *epoch_requests_before(PyObject *object, PyObject *step)
{
    unsigned long number = PyLong_AsUnsignedLong(step);
    if (PyErr_Occurred())
        return NULL;
    uint32_t of = number < MS_EPOCH_NONE ? (uint32_t)number : MS_EPOCH_NONE;
    return PyLong_FromUnsignedLongLong(ms_epoch_requests_before(((epoch_object *)object)->epoch, of));
}

static PyObject *epoch_operators(PyObject *object, PyObject *count)
{
    size_t requests = PyLong_AsSize_t(count);
    if (PyErr_Occurred())
        return NULL;
    PyObject *list = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(requests * sizeof(uint32_t)));
    uint32_t *operators = list ? (uint32_t *)(void *)PyBytes_AS_STRING(list) : NULL;
    for (size_t i = 0; operators && i < requests; i++)
        operators[i] = (uint32_t)ms_epoch_operator_of(((epoch_object *)object)->epoch, i);
    return list;
}

static PyObject *batch_or_none(uint32_t number)
{
    return number == MS_EPOCH_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(number);
}

static PyObject *result_dict(const ms_epoch_result *of)
{
    return Py_BuildValue("{sKsKsIsIsKsIsNsNsKsKsKsKsKsI}", "reserved_peak", (unsigned long long)of->reserved_peak,
                         "allocated_peak", (unsigned long long)of->allocated_peak, "reserved_at", of->reserved_at,
                         "allocated_at", of->allocated_at, "reserved_end", (unsigned long long)of->reserved_end,
                         "failures", of->failures, "first_failure", batch_or_none(of->first_failure), "failed_before",
                         PyBool_FromLong(of->failed_before), "requested", (unsigned long long)of->requested, "operator",
                         (unsigned long long)of->failed_operator, "allocated", (unsigned long long)of->allocated,
                         "reserved", (unsigned long long)of->reserved, "retries", (unsigned long long)of->retries,
                         "replayed", of->replayed);
}

/* What a replay of all batches writes by batch. */
struct curve_arrays {
    PyObject *reserved, *allocated, *failed;
};

static bool make_curves(struct curve_arrays *arrays, ms_epoch_curves *curves, size_t count)
{
    Py_ssize_t bytes = (Py_ssize_t)(count * sizeof(uint64_t));
    arrays->reserved = PyByteArray_FromStringAndSize(NULL, bytes);
    arrays->allocated = PyByteArray_FromStringAndSize(NULL, bytes);
    arrays->failed = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)count);
    if (!arrays->reserved || !arrays->allocated || !arrays->failed)
        return false;
    curves->reserved = (uint64_t *)(void *)PyByteArray_AS_STRING(arrays->reserved);
    curves->allocated = (uint64_t *)(void *)PyByteArray_AS_STRING(arrays->allocated);
    curves->failed = (uint8_t *)PyByteArray_AS_STRING(arrays->failed);
    memset(curves->reserved, 0, (size_t)bytes);
    memset(curves->allocated, 0, (size_t)bytes);
    memset(curves->failed, 0, count);
    return true;
}

static bool put_curves(PyObject *result, struct curve_arrays *arrays)
{
    bool done =
        result && (!arrays->reserved || (PyDict_SetItemString(result, "reserved_by_batch", arrays->reserved) == 0 &&
                                         PyDict_SetItemString(result, "allocated_by_batch", arrays->allocated) == 0 &&
                                         PyDict_SetItemString(result, "failed_by_batch", arrays->failed) == 0));
    Py_CLEAR(arrays->reserved);
    Py_CLEAR(arrays->allocated);
    Py_CLEAR(arrays->failed);
    return done;
}

static PyObject *replay_epoch(const ms_epoch *epoch, const ms_allocator_settings *settings, const Py_buffer *shapes,
                              const Py_buffer *kinds, int is_first_only, int with_curves)
{
    ms_epoch_batches batches = {shapes->buf, kinds->buf, (uint32_t)kinds->len};
    struct curve_arrays arrays = {NULL, NULL, NULL};
    ms_epoch_curves curves = {NULL, NULL, NULL};
    ms_epoch_result result;
    if (!has_items(shapes, sizeof(uint32_t), (size_t)kinds->len))
        return PyErr_Format(PyExc_ValueError, "there must be a shape and a kind for each batch");
    int error = MS_OK;
    if (with_curves && !make_curves(&arrays, &curves, batches.count))
        error = MS_ENOMEM;
    if (!error) {
        Py_BEGIN_ALLOW_THREADS
        error = ms_epoch_replay(epoch, settings, &batches, is_first_only != 0, &curves, &result);
        Py_END_ALLOW_THREADS
    }
    PyObject *dict = error ? NULL : result_dict(&result);
    if (!put_curves(dict, &arrays))
        Py_CLEAR(dict);
    return error ? msr_raise(error) : dict;
}

static PyObject *epoch_replay(PyObject *object, PyObject *args, PyObject *named)
{
    static char *names[] = {"shapes",       "kinds",      "version",     "conf", "capacity",
                            "total_memory", "first_only", "with_curves", NULL};
    Py_buffer shapes, kinds;
    const char *version = NULL, *conf = NULL;
    PyObject *capacity = NULL, *total_memory = NULL;
    int is_first_only = 0, with_curves = 0;
    ms_allocator_settings settings;
    if (!PyArg_ParseTupleAndKeywords(args, named, "y*y*|zzOOpp", names, &shapes, &kinds, &version, &conf, &capacity,
                                     &total_memory, &is_first_only, &with_curves))
        return NULL;
    PyObject *result = NULL;
    if (msr_allocator_settings(&settings, version, conf, capacity, total_memory))
        result = replay_epoch(((epoch_object *)object)->epoch, &settings, &shapes, &kinds, is_first_only, with_curves);
    PyBuffer_Release(&shapes);
    PyBuffer_Release(&kinds);
    return result;
}

static PyMethodDef epoch_methods[] = {
    {"facts", epoch_facts, METH_NOARGS, "What is known of the sizes, and how exactly."},
    {"requests_before", epoch_requests_before, METH_O,
     "How many requests of the log precede this step of those that were taken."},
    {"operators", epoch_operators, METH_O, "The operators of so many requests of the log, of 32 bits each."},
    {"replay", (PyCFunction)(void (*)(void))epoch_replay, METH_VARARGS | METH_KEYWORDS,
     "Replay these batches: what they reserve, and which of them run out of memory. The shapes have 32 bits each, the "
     "kinds 8."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_epoch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Epoch",
    .tp_doc = "The log of some training steps, from which steps of batches of any shape follow.",
    .tp_basicsize = sizeof(epoch_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = epoch_new,
    .tp_dealloc = epoch_dealloc,
    .tp_methods = epoch_methods,
};
