/* replay.c - Stream: the events of a capture in memory, and what they would have needed after edits. */
#include "capture_api/capture_api.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    ms_replay_stream *stream;
    ms_replay_match match; /* with another stream; its bytes are NULL: there is none */
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
    error = ms_replay_stream_load(reader->reader, &self->stream);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (!error)
        return (PyObject *)self;
    Py_DECREF(self);
    return msr_raise(error);
}

static void stream_dealloc(PyObject *object)
{
    ms_replay_match_close(&((stream_object *)object)->match);
    ms_replay_stream_free(((stream_object *)object)->stream);
    Py_TYPE(object)->tp_free(object);
}

/* ---- what the stream has ---- */
static PyObject *index_or_none(uint32_t index)
{
    return index == MS_REPLAY_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(index);
}

static bool device_is_valid(uint32_t device)
{
    if (device < MS_MAX_DEVICES)
        return true;
    PyErr_Format(PyExc_ValueError, "%u is not a device: give the index of a device of the capture", device);
    return false;
}

static PyObject *call_of(const ms_replay_stream *stream, uint32_t index, uint32_t device)
{
    const ms_replay_call *call = &stream->calls[index];
    ms_replay_call_bytes bytes = ms_replay_call_measure(stream, index, device);
    return Py_BuildValue("(INNNNKKKKKKI)", call->path, index_or_none(call->parent), index_or_none(call->begin),
                         index_or_none(call->end), index_or_none(call->backward), (unsigned long long)call->step,
                         (unsigned long long)bytes.kept, (unsigned long long)bytes.output,
                         (unsigned long long)call->microseconds, (unsigned long long)call->recompute_nanoseconds,
                         (unsigned long long)call->nanoseconds, call->stands_for);
}

static PyObject *stream_calls(PyObject *object, PyObject *argument)
{
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    uint32_t device = (uint32_t)PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred() || !device_is_valid(device))
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < stream->call_count; i++)
        if (!msr_append(list, call_of(stream, i, device)))
            Py_CLEAR(list);
    return list;
}

/* (operator, name, number, of, bytes of results, of those kept for backward, nanoseconds, flags) */
static PyObject *operator_of(const ms_replay_stream *stream, const ms_replay_call_operator *of)
{
    const ms_replay_operator *operator= & stream->operators[of->index];
    const ms_operator_name *name = &stream->operator_names[operator->name];
    unsigned flags = (name->flags & 7) | (of->is_changed ? 8u : 0) | (of->is_recomputed ? 16u : 0);
    return Py_BuildValue("(INIIKKKI)", of->index,
                         PyUnicode_DecodeUTF8(name->text, (Py_ssize_t)strlen(name->text), "replace"), of->number,
                         of->of, (unsigned long long)of->bytes, (unsigned long long)of->saved,
                         (unsigned long long)operator->nanoseconds, flags);
}

static PyObject *stream_operators(PyObject *object, PyObject *args)
{
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    unsigned call, device;
    ms_replay_call_operator *found;
    uint32_t count;
    if (!PyArg_ParseTuple(args, "II:operators", &call, &device) || !device_is_valid(device))
        return NULL;
    if (call >= stream->call_count)
        return PyErr_Format(PyExc_ValueError, "%u is not a call of the stream", call);
    int error = ms_replay_call_operators(stream, call, device, &found, &count);
    if (error)
        return msr_raise(error);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++)
        if (!msr_append(list, operator_of(stream, &found[i])))
            Py_CLEAR(list);
    free(found);
    return list;
}

static PyObject *get_has_operators(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((stream_object *)object)->stream->operator_count != 0);
}

static PyObject *get_has_gpu_times(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((stream_object *)object)->stream->has_times);
}

static PyObject *get_events(PyObject *object, void *unused)
{
    (void)unused;
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    unsigned long long count = stream->event_count;
    for (uint32_t i = 0; i < stream->fold_count; i++)
        count += (unsigned long long)stream->folds[i].left_out * (stream->folds[i].end - stream->folds[i].begin);
    return PyLong_FromUnsignedLongLong(count);
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
static PyObject *position_of(const ms_replay_position *at)
{
    return Py_BuildValue("(KKKOI)", (unsigned long long)at->number, (unsigned long long)at->time,
                         (unsigned long long)at->step, msr_phases[at->phase], at->path);
}

static PyObject *curve_of(const ms_replay_curve_range *curve)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < curve->filled; i++) {
        const ms_replay_curve *of = &curve->items[i];
        if (!msr_append(list, Py_BuildValue("(KKKK)", (unsigned long long)of->number, (unsigned long long)of->time,
                                            (unsigned long long)of->reserved, (unsigned long long)of->allocated)))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *result_of(const ms_replay_result *result, const ms_replay_curve_range *curve, uint64_t least,
                           uint64_t most)
{
    PyObject *failure = result->failed ? Py_BuildValue("(KN)", (unsigned long long)result->failed_bytes,
                                                       position_of(&result->failed_at))
                                       : Py_NewRef(Py_None);
    return Py_BuildValue("{sKs(KK)sKsNsNsKsKsKsKsNsN}", "reserved_peak", (unsigned long long)result->reserved_peak,
                         "reserved_range", (unsigned long long)least, (unsigned long long)most, "allocated_peak",
                         (unsigned long long)result->allocated_peak, "reserved_at", position_of(&result->reserved_at),
                         "allocated_at", position_of(&result->allocated_at), "requests",
                         (unsigned long long)result->requests, "replayed", (unsigned long long)result->replayed,
                         "retries", (unsigned long long)result->retries, "disagreements",
                         (unsigned long long)result->disagreements, "failure", failure, "curve", curve_of(curve));
}

static PyObject *replay_edited(const ms_replay_stream *stream, ms_replay_edit *edit, uint32_t device,
                               const ms_allocator_settings *settings, ms_replay_curve_range *curve, uint32_t variants)
{
    ms_replay_result result;
    uint64_t least = 0, most = 0;
    curve->items = curve->count ? PyMem_RawCalloc(curve->count, sizeof *curve->items) : NULL;
    if (curve->count && !curve->items)
        return PyErr_NoMemory();
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_replay_run(stream, edit, device, settings, curve, &result);
    least = most = result.reserved_peak;
    if (!error)
        error = ms_replay_run_variants(stream, edit, device, settings, variants, &least, &most);
    Py_END_ALLOW_THREADS
    PyObject *dict = error ? msr_raise(error) : result_of(&result, curve, least, most);
    PyMem_RawFree(curve->items);
    return dict;
}

static PyObject *stream_replay(PyObject *object, PyObject *args, PyObject *named)
{
    static char *names[] = {"device", "edits", "caching", "version", "conf",     "capacity", "total_memory",
                            "points", "first", "last",    "folded",  "variants", NULL};
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    unsigned device, variants = 0;
    unsigned long long first = 0;
    ms_replay_curve_range curve = {0};
    int caching = 1, folded = 0;
    const char *version = NULL, *conf = NULL;
    PyObject *edits = NULL, *capacity = NULL, *total_memory = NULL, *last = Py_None;
    ms_allocator_settings settings;
    if (!PyArg_ParseTupleAndKeywords(args, named, "I|O$pzzOOIKOpI:replay", names, &device, &edits, &caching, &version,
                                     &conf, &capacity, &total_memory, &curve.count, &first, &last, &folded,
                                     &variants) ||
        !device_is_valid(device) || !msr_allocator_settings(&settings, version, conf, capacity, total_memory))
        return NULL;
    curve.is_folded = folded;
    curve.first = first;
    curve.last = last == Py_None ? UINT64_MAX : PyLong_AsUnsignedLongLong(last);
    if (PyErr_Occurred())
        return NULL;
    ms_replay_edit *edit =
        edits && edits != Py_None ? msr_edit_of(stream, &((stream_object *)object)->match, edits, NULL) : NULL;
    if (!edit && PyErr_Occurred())
        return NULL;
    PyObject *result = replay_edited(stream, edit, device, caching ? &settings : NULL, &curve, variants);
    ms_replay_edit_close(edit);
    return result;
}

static PyObject *stream_layout(PyObject *object, PyObject *args, PyObject *named)
{
    return msr_layout(((stream_object *)object)->stream, args, named);
}

/* (entries, marks) as bytes, of 64 bits each. */
static PyObject *log_edited(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                            const ms_replay_log_source *source)
{
    ms_replay_log log;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_replay_log_open(stream, edit, device, source, &log);
    Py_END_ALLOW_THREADS
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_ValueError, "log: the stream is folded, or has fewer requests");
    if (error)
        return msr_raise(error);
    PyObject *result = Py_BuildValue("(y#y#)", (const char *)log.entries, (Py_ssize_t)(log.count * sizeof *log.entries),
                                     (const char *)log.marks, (Py_ssize_t)(source->mark_count * sizeof *log.marks));
    ms_replay_log_close(&log);
    return result;
}

static PyObject *stream_log(PyObject *object, PyObject *args)
{
    stream_object *self = (stream_object *)object;
    unsigned device;
    Py_buffer adds, operators;
    PyObject *edits = Py_None, *result = NULL;
    if (!PyArg_ParseTuple(args, "Iy*y*|O:log", &device, &adds, &operators, &edits))
        return NULL;
    ms_replay_log_source source = {.adds = adds.buf,
                                   .operators = operators.buf,
                                   .mark_count = (uint32_t)((size_t)adds.len / sizeof(uint64_t)),
                                   .operator_count = (size_t)operators.len / sizeof(uint32_t)};
    if (device_is_valid(device)) {
        ms_replay_edit *edit = edits != Py_None ? msr_edit_of(self->stream, &self->match, edits, NULL) : NULL;
        if (edit || !PyErr_Occurred())
            result = log_edited(self->stream, edit, device, &source);
        ms_replay_edit_close(edit);
    }
    PyBuffer_Release(&adds);
    PyBuffer_Release(&operators);
    return result;
}

/* ---- another stream of the same program ---- */

/* (path, phase, bytes) of a block, or None. */
static PyObject *describe_block(const ms_replay_stream *stream, uint32_t index)
{
    if (index == MS_REPLAY_NONE)
        return Py_NewRef(Py_None);
    const ms_replay_block *block = &stream->blocks[index];
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
    uint32_t *paths = msr_numbers_of_paths(list, self->stream->path_count);
    if (!paths)
        return NULL;
    ms_replay_match_close(&self->match);
    int error = ms_replay_match_open(self->stream, other->stream, paths, device, limit, &self->match);
    PyMem_Free(paths);
    if (error)
        return msr_raise(error);
    const ms_replay_match *match = &self->match;
    return Py_BuildValue("{sKs(KKN)s(KKN)sd}", "matched", (unsigned long long)match->matched, "here",
                         (unsigned long long)match->here, (unsigned long long)match->here_bytes,
                         describe_block(self->stream, match->here_first), "there", (unsigned long long)match->there,
                         (unsigned long long)match->there_bytes, describe_block(other->stream, match->there_first),
                         "ratio", match->ratio);
}

/* ---- steps and bytes ---- */

/* (event, number, time) of each step's beginning, also of those that are left out. */
static PyObject *stream_steps(PyObject *object, PyObject *unused)
{
    (void)unused;
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < stream->step_count; i++) {
        if (!msr_append(list,
                        Py_BuildValue("(IKK)", stream->steps[i].event, (unsigned long long)stream->steps[i].number,
                                      (unsigned long long)stream->steps[i].time)))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stream_fold(PyObject *object, PyObject *others)
{
    Py_ssize_t count = 1 + PyTuple_GET_SIZE(others);
    ms_replay_stream **streams = PyMem_Calloc((size_t)count, sizeof *streams);
    if (!streams)
        return PyErr_NoMemory();
    bool is_right = true;
    for (Py_ssize_t i = 0; is_right && i < count; i++) {
        PyObject *item = i ? PyTuple_GET_ITEM(others, i - 1) : object;
        is_right = PyObject_TypeCheck(item, &msr_stream_type);
        streams[i] = is_right ? ((stream_object *)item)->stream : NULL;
    }
    int error = is_right ? ms_replay_streams_fold(streams, (uint32_t)count) : MS_OK;
    PyMem_Free(streams);
    if (!is_right)
        return PyErr_Format(PyExc_TypeError, "fold: the others must be streams");
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_ValueError, "fold: the streams have different counts of steps");
    return error ? msr_raise(error) : Py_NewRef(Py_None);
}

/* Bytes that are selected, those of the largest block, and how many blocks they are. */
static PyObject *stream_sum(PyObject *object, PyObject *selected)
{
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    ms_replay_selection selection;
    if (!msr_selection_of(selected, &selection))
        return NULL;
    unsigned long long bytes = 0, largest = 0, count = 0;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        if (!ms_replay_block_is_selected(stream, i, &selection))
            continue;
        bytes += stream->blocks[i].requested;
        largest = stream->blocks[i].requested > largest ? stream->blocks[i].requested : largest;
        count++;
    }
    return Py_BuildValue("(KKK)", bytes, largest, count);
}

/* (path, bytes) of each path that owns selected blocks. */
static PyObject *stream_owners(PyObject *object, PyObject *selected)
{
    const ms_replay_stream *stream = ((stream_object *)object)->stream;
    ms_replay_selection selection;
    if (!msr_selection_of(selected, &selection))
        return NULL;
    unsigned long long *bytes = PyMem_Calloc((size_t)stream->path_count + 1, sizeof *bytes);
    if (!bytes)
        return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < stream->block_count; i++)
        if (ms_replay_block_is_selected(stream, i, &selection))
            bytes[stream->blocks[i].path] += stream->blocks[i].requested;
    for (uint32_t i = 0; list && i < stream->path_count; i++)
        if (bytes[i] && !msr_append(list, Py_BuildValue("(IK)", i, bytes[i])))
            Py_CLEAR(list);
    PyMem_Free(bytes);
    return list;
}

/* How many blocks and calls edits change. */
static PyObject *stream_changes(PyObject *object, PyObject *edits)
{
    const stream_object *self = (stream_object *)object;
    uint64_t count;
    ms_replay_edit *edit = msr_edit_of(self->stream, &self->match, edits, &count);
    if (!edit)
        return NULL;
    ms_replay_edit_close(edit);
    return PyLong_FromUnsignedLongLong(count);
}

static PyMethodDef stream_methods[] = {
    {"match", stream_match, METH_VARARGS,
     "match($self, other, paths, device, partial_limit=0, /)\n--\n\nMatch the blocks with those of the same program "
     "with another "
     "batch, for the edit batch. Returns what both have, and what only one has: count, bytes and the first block."},
    {"layout", (PyCFunction)(void (*)(void))stream_layout, METH_VARARGS | METH_KEYWORDS,
     "layout($self, device, *, version=None, conf=None)\n--\n\nWhere the model of the allocator puts blocks, as "
     "columns "
     "like those of packs, in units of 512 bytes. For each block of the device from torch's allocator, in the order of "
     "their adds: its address (0: none, else 1 and the zigzag difference to the one before), and its size. Of each "
     "change of what is reserved: event (delta), an ms_segment_change, address, size. The stream must not be folded."},
    {"steps", stream_steps, METH_NOARGS, "steps($self, /)\n--\n\n(event, number, time) of each step's beginning."},
    {"owners", stream_owners, METH_O,
     "owners($self, selection, /)\n--\n\n(path, bytes) of each path that owns selected blocks, in the order of paths."},
    {"changes", stream_changes, METH_O, "changes($self, edits, /)\n--\n\nHow many blocks and calls the edits change."},
    {"sum", stream_sum, METH_O,
     "sum($self, selection, /)\n--\n\nThe bytes of the selected blocks, those of the largest one, and their count."},

    {"calls", stream_calls, METH_O,
     "calls($self, device, /)\n--\n\n(path, parent, begin, end, backward, step, bytes kept for backward, other bytes "
     "that outlive it, microseconds of the program, nanoseconds of a recomputation, nanoseconds of the GPU or 0, how "
     "many calls it stands for) of each forward of a module; begin, end and backward are events of the stream."},
    {"operators", stream_operators, METH_VARARGS,
     "operators($self, call, device, /)\n--\n\n(number, name, which of its calls, how many calls, bytes of results, "
     "those "
     "kept for backward, nanoseconds, flags) of each operator in a call, without those that only return views. Flags: "
     "1 "
     "changes a tensor in place, 2 returns a view, 4 draws random numbers, 8 a result is changed in place, 16 a "
     "recomputation runs it again."},
    {"fold", stream_fold, METH_VARARGS,
     "fold($self, /, *others)\n--\n\nLeave out steps that are equal in this stream, and in each of the others, whose "
     "equal steps are left out too. It is done once, before any replay."},
    {"log", stream_log, METH_VARARGS,
     "log($self, device, adds, operators, edits=None, /)\n--\n\nWhat the events of a device ask of its allocator with "
     "these edits, as an Epoch takes it, and the count of entries before each request whose number is in adds. "
     "operators: by request of the stream, of 32 bits each; all other numbers have 64 bits."},
    {"replay", (PyCFunction)(void (*)(void))stream_replay, METH_VARARGS | METH_KEYWORDS,
     "replay($self, /, device, edits=None, *, caching=True, version=None, conf=None, capacity=None, "
     "total_memory=None, points=0, first=0, last=None, folded=False, variants=0)\n--\n\nThe peaks of reserved and "
     "allocated bytes "
     "of a device, "
     "and "
     "where they were. With points, also a curve of the capture's events from first to last: (number, time, reserved, "
     "allocated) of so many equal parts of them, of each the number and time of its first event and the highest "
     "bytes; with folded, the events of steps that are left out belong to the parts of the step that stands for them. "
     "With variants, reserved_range has the lowest and highest peak of so many replays more in which tensors of "
     "checkpointed calls live shorter or longer."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef stream_attributes[] = {
    {"events", get_events, NULL, "How many events it has, with those that are left out.", NULL},
    {"blocks", get_blocks, NULL, "How many blocks it has.", NULL},
    {"has_operators", get_has_operators, NULL, "Whether the capture has the operators of calls.", NULL},
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
