/* replay.c - Stream: the events of a capture in memory, and what they would have needed after edits. */
#include "reading/reading.h"

#include "reading/replay_edits.h"

typedef struct {
    PyObject_HEAD
    msp_stream *stream;
    msp_match match; /* with another stream; its bytes are NULL: there is none */
} stream_object;

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"reader", NULL};
    msr_reader *reader;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!:Stream", names, &msr_reader_type, &reader))
        return NULL;
    stream_object *self = (stream_object *)type->tp_alloc(type, 0);
    if (!self || !msr_lock_reader(reader)) {
        Py_XDECREF(self);
        return NULL;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = msp_stream_load(reader->reader, &self->stream);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (!error)
        return (PyObject *)self;
    Py_DECREF(self);
    return msr_raise(error);
}

static void stream_dealloc(PyObject *object)
{
    msp_match_close(&((stream_object *)object)->match);
    msp_stream_free(((stream_object *)object)->stream);
    Py_TYPE(object)->tp_free(object);
}

/* ---- what the stream has ---- */
static PyObject *index_or_none(uint32_t index)
{
    return index == MSP_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(index);
}

static unsigned long long time_of(const msp_stream *stream, uint32_t event)
{
    uint32_t last = stream->event_count ? stream->event_count - 1 : 0;
    return stream->event_count ? (unsigned long long)stream->events[event < last ? event : last].time : 0;
}

static PyObject *call_of(const msp_stream *stream, uint32_t index, uint32_t device)
{
    const msp_call *call = &stream->calls[index];
    msp_call_bytes bytes = msp_call_measure(stream, index, device);
    return Py_BuildValue("(INNNNKKKKK)", call->path, index_or_none(call->parent), index_or_none(call->begin),
                         index_or_none(call->end), index_or_none(call->backward), (unsigned long long)call->step,
                         time_of(stream, call->begin), time_of(stream, call->end), (unsigned long long)bytes.kept,
                         (unsigned long long)bytes.output);
}

static bool device_is_valid(uint32_t device)
{
    if (device < MS_MAX_DEVICES)
        return true;
    PyErr_Format(PyExc_ValueError, "%u is not a device: give the index of a device of the capture", device);
    return false;
}

/* The microseconds of a call's recomputation, up to the last tensor that autograd saves in it. */
static PyObject *recompute_time_of(const msp_stream *stream, uint32_t index, uint32_t device)
{
    (void)device;
    if (stream->calls[index].nanoseconds)
        return PyLong_FromUnsignedLongLong(msp_call_recompute_time(stream, index) / 1000);
    uint32_t to = msp_call_recomputed_to(stream, index);
    unsigned long long from = time_of(stream, stream->calls[index].begin);
    return PyLong_FromUnsignedLongLong(to == MSP_NONE ? 0 : time_of(stream, to) - from);
}

static PyObject *list_of_calls(const msp_stream *stream, uint32_t device,
                               PyObject *(*item_of)(const msp_stream *, uint32_t, uint32_t))
{
    PyObject *list = PyList_New(stream->call_count);
    for (uint32_t i = 0; list && i < stream->call_count; i++) {
        PyObject *item = item_of(stream, i, device);
        if (item)
            PyList_SET_ITEM(list, i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stream_calls(PyObject *object, PyObject *argument)
{
    uint32_t device = (uint32_t)PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !device_is_valid(device))
        return NULL;
    return list_of_calls(((stream_object *)object)->stream, device, call_of);
}

static PyObject *stream_recompute_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    return list_of_calls(((stream_object *)object)->stream, 0, recompute_time_of);
}

/* The nanoseconds that the GPU needed for a call. */
static PyObject *gpu_time_of(const msp_stream *stream, uint32_t index, uint32_t device)
{
    (void)device;
    return PyLong_FromUnsignedLongLong(stream->calls[index].nanoseconds);
}

static PyObject *stream_gpu_times(PyObject *object, PyObject *unused)
{
    (void)unused;
    return list_of_calls(((stream_object *)object)->stream, 0, gpu_time_of);
}

static PyObject *get_has_gpu_times(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((stream_object *)object)->stream->has_times);
}

static PyObject *get_events(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((stream_object *)object)->stream->event_count);
}

static PyObject *get_blocks(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((stream_object *)object)->stream->block_count);
}

static PyObject *get_is_lower_bound(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((stream_object *)object)->stream->is_lower_bound);
}

/* ---- the result ---- */
static PyObject *position_of(const msp_position *at)
{
    return Py_BuildValue("(KKKOI)", (unsigned long long)at->number, (unsigned long long)at->time,
                         (unsigned long long)at->step, msr_phases[at->phase], at->path);
}

static PyObject *curve_of(const msp_curve_range *curve)
{
    PyObject *list = PyList_New(curve->filled);
    for (uint32_t i = 0; list && i < curve->filled; i++) {
        const msp_curve *of = &curve->items[i];
        PyObject *item = Py_BuildValue("(KKKK)", (unsigned long long)of->number, (unsigned long long)of->time,
                                       (unsigned long long)of->reserved, (unsigned long long)of->allocated);
        if (item)
            PyList_SET_ITEM(list, i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *result_of(const msp_result *result, const msp_curve_range *curve)
{
    PyObject *failure = result->failed ? Py_BuildValue("(KN)", (unsigned long long)result->failed_bytes,
                                                       position_of(&result->failed_at))
                                       : Py_NewRef(Py_None);
    return Py_BuildValue("{sKsKsNsNsKsKsKsNsN}", "reserved_peak", (unsigned long long)result->reserved_peak,
                         "allocated_peak", (unsigned long long)result->allocated_peak, "reserved_at",
                         position_of(&result->reserved_at), "allocated_at", position_of(&result->allocated_at),
                         "requests", (unsigned long long)result->requests, "retries",
                         (unsigned long long)result->retries, "disagreements",
                         (unsigned long long)result->disagreements, "failure", failure, "curve", curve_of(curve));
}

static PyObject *replay_edited(const msp_stream *stream, const msp_edit *edit, uint32_t device,
                               const ms_allocator_settings *settings, msp_curve_range *curve)
{
    msp_result result;
    curve->items = curve->count ? PyMem_RawCalloc(curve->count, sizeof *curve->items) : NULL;
    if (curve->count && !curve->items)
        return PyErr_NoMemory();
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = msp_replay(stream, edit, device, settings, curve, &result);
    Py_END_ALLOW_THREADS
    PyObject *dict = error ? msr_raise(error) : result_of(&result, curve);
    PyMem_RawFree(curve->items);
    return dict;
}

static PyObject *stream_replay(PyObject *object, PyObject *args, PyObject *named)
{
    static char *names[] = {"device",       "edits",  "caching", "version", "conf", "capacity",
                            "total_memory", "points", "first",   "last",    NULL};
    const msp_stream *stream = ((stream_object *)object)->stream;
    unsigned device;
    unsigned long long first = 0;
    msp_curve_range curve = {0};
    int caching = 1;
    const char *version = NULL, *conf = NULL;
    PyObject *edits = NULL, *capacity = NULL, *total_memory = NULL, *last = Py_None;
    ms_allocator_settings settings;
    if (!PyArg_ParseTupleAndKeywords(args, named, "I|O$pzzOOIKO:replay", names, &device, &edits, &caching, &version,
                                     &conf, &capacity, &total_memory, &curve.count, &first, &last) ||
        !device_is_valid(device) || !msr_allocator_settings(&settings, version, conf, capacity, total_memory))
        return NULL;
    curve.first = first;
    curve.last = last == Py_None ? UINT64_MAX : PyLong_AsUnsignedLongLong(last);
    if (PyErr_Occurred())
        return NULL;
    msp_edit *edit = edits && edits != Py_None ? msr_edit_of(stream, &((stream_object *)object)->match, edits) : NULL;
    if (!edit && PyErr_Occurred())
        return NULL;
    PyObject *result = replay_edited(stream, edit, device, caching ? &settings : NULL, &curve);
    msp_edit_close(edit);
    return result;
}

/* ---- another stream of the same program ---- */

/* The numbers of a list, one for each path of the stream; None is MSP_NONE. NULL: an exception is set. */
static uint32_t *paths_of(PyObject *list, const msp_stream *stream)
{
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)stream->path_count) {
        PyErr_SetString(PyExc_ValueError, "match: give the other stream's path for each path of this one");
        return NULL;
    }
    uint32_t *paths = PyMem_Malloc(stream->path_count * sizeof *paths);
    if (!paths)
        PyErr_NoMemory();
    for (uint32_t i = 0; paths && i < stream->path_count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        paths[i] = item == Py_None ? MSP_NONE : (uint32_t)PyLong_AsUnsignedLong(item);
    }
    if (PyErr_Occurred()) {
        PyMem_Free(paths);
        return NULL;
    }
    return paths;
}

/* (path, phase, bytes) of a block, or None. */
static PyObject *describe_block(const msp_stream *stream, uint32_t index)
{
    if (index == MSP_NONE)
        return Py_NewRef(Py_None);
    const msp_block *block = &stream->blocks[index];
    return Py_BuildValue("(IOK)", block->path, msr_phases[block->phase], (unsigned long long)block->bytes);
}

static PyObject *stream_match(PyObject *object, PyObject *args)
{
    stream_object *self = (stream_object *)object, *other;
    PyObject *list;
    unsigned device;
    unsigned long long limit = 0;
    if (!PyArg_ParseTuple(args, "O!O!I|K:match", &msr_stream_type, &other, &PyList_Type, &list, &device, &limit) ||
        !device_is_valid(device))
        return NULL;
    uint32_t *paths = paths_of(list, self->stream);
    if (!paths)
        return NULL;
    msp_match_close(&self->match);
    int error = msp_match_open(self->stream, other->stream, paths, device, limit, &self->match);
    PyMem_Free(paths);
    if (error)
        return msr_raise(error);
    const msp_match *match = &self->match;
    return Py_BuildValue("{sKs(KKN)s(KKN)sd}", "matched", (unsigned long long)match->matched, "here",
                         (unsigned long long)match->here, (unsigned long long)match->here_bytes,
                         describe_block(self->stream, match->here_first), "there", (unsigned long long)match->there,
                         (unsigned long long)match->there_bytes, describe_block(other->stream, match->there_first),
                         "ratio", match->ratio);
}

/* ---- steps and bytes ---- */

/* (event, number, time) of each step's beginning. */
static PyObject *stream_steps(PyObject *object, PyObject *unused)
{
    (void)unused;
    const msp_stream *stream = ((stream_object *)object)->stream;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < stream->event_count; i++) {
        if (stream->events[i].kind != MSP_STEP)
            continue;
        PyObject *item = Py_BuildValue("(IKK)", i, (unsigned long long)stream->events[i].value,
                                       (unsigned long long)stream->events[i].time);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* Bytes that are selected, those of the largest block, and how many blocks they are. */
static PyObject *stream_sum(PyObject *object, PyObject *selected)
{
    const msp_stream *stream = ((stream_object *)object)->stream;
    msp_selection selection;
    if (!msr_selection_of(selected, &selection))
        return NULL;
    unsigned long long bytes = 0, largest = 0, count = 0;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        if (!msp_block_is_selected(stream, i, &selection))
            continue;
        bytes += stream->blocks[i].requested;
        largest = stream->blocks[i].requested > largest ? stream->blocks[i].requested : largest;
        count++;
    }
    return Py_BuildValue("(KKK)", bytes, largest, count);
}

/* (block, bytes, add, drop, path) of each selected block; add and drop are events, or None. */
static PyObject *stream_select(PyObject *object, PyObject *selected)
{
    const msp_stream *stream = ((stream_object *)object)->stream;
    msp_selection selection;
    PyObject *list = msr_selection_of(selected, &selection) ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list && i < stream->block_count; i++) {
        const msp_block *block = &stream->blocks[i];
        if (!msp_block_is_selected(stream, i, &selection))
            continue;
        PyObject *item = Py_BuildValue("(IKNNI)", i, (unsigned long long)block->requested, index_or_none(block->add),
                                       index_or_none(block->drop), block->path);
        if (!item || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *stream_stream_of(PyObject *object, PyObject *number)
{
    const msp_stream *stream = ((stream_object *)object)->stream;
    unsigned long block = PyLong_AsUnsignedLong(number);
    if (block == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (block >= stream->block_count)
        return PyErr_Format(PyExc_ValueError, "there is no block %lu", block);
    return PyLong_FromUnsignedLongLong(stream->blocks[block].stream);
}

static PyMethodDef stream_methods[] = {
    {"match", stream_match, METH_VARARGS,
     "match($self, other, paths, device, partial_limit=0, /)\n--\n\nMatch the blocks with those of the same program "
     "with another "
     "batch, for the edit batch. Returns what both have, and what only one has: count, bytes and the first block."},
    {"steps", stream_steps, METH_NOARGS, "steps($self, /)\n--\n\n(event, number, time) of each step's beginning."},
    {"select", stream_select, METH_O,
     "select($self, selection, /)\n--\n\n(block, bytes, add, drop, path) of each selected block. Add and drop are "
     "events, "
     "or None."},
    {"stream_of", stream_stream_of, METH_O,
     "stream_of($self, block, /)\n--\n\nThe number of the GPU's stream on which a block was requested."},
    {"sum", stream_sum, METH_O,
     "sum($self, selection, /)\n--\n\nThe bytes of the selected blocks, those of the largest one, and their count."},

    {"calls", stream_calls, METH_O,
     "calls($self, device, /)\n--\n\n(path, parent, begin, end, backward, step, time at begin, time at end, bytes kept "
     "for backward, "
     "other bytes that outlive it) of each forward of a module; begin, end and backward are events of the stream."},
    {"recompute_times", stream_recompute_times, METH_NOARGS,
     "recompute_times($self, /)\n--\n\nBy call: the microseconds of its forward that a checkpoint runs again; 0 if the "
     "call keeps nothing for backward."},
    {"gpu_times", stream_gpu_times, METH_NOARGS,
     "gpu_times($self, /)\n--\n\nBy call: the nanoseconds that the GPU needed for it, or for other calls of the "
     "module; "
     "0 if that was not measured."},
    {"replay", (PyCFunction)(void (*)(void))stream_replay, METH_VARARGS | METH_KEYWORDS,
     "replay($self, /, device, edits=None, *, caching=True, version=None, conf=None, capacity=None, "
     "total_memory=None, points=0, first=0, last=None)\n--\n\nThe peaks of reserved and allocated bytes of a device, "
     "and "
     "where they were. With points, also a curve of the capture's events from first to last: (number, time, reserved, "
     "allocated) of so many equal parts of them, of each the number and time of its first event and the highest "
     "bytes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef stream_attributes[] = {
    {"events", get_events, NULL, "How many events it has.", NULL},
    {"blocks", get_blocks, NULL, "How many blocks it has.", NULL},
    {"has_gpu_times", get_has_gpu_times, NULL, "Whether the GPU's times of calls were measured.", NULL},
    {"is_lower_bound", get_is_lower_bound, NULL, "Whether events of the capture are lost or damaged.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject msr_stream_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Stream",
    .tp_doc = "The events of a capture in memory, for replays with edits.",
    .tp_basicsize = sizeof(stream_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = stream_new,
    .tp_dealloc = stream_dealloc,
    .tp_methods = stream_methods,
    .tp_getset = stream_attributes,
};
