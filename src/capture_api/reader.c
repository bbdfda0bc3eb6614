/* reader.c - modscope._capture.Reader: a capture, its metadata, and searches for a moment. */
#include "capture_api/capture_api.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- opening and closing ---- */
static int open_reader(msr_reader *self)
{
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_reader_open(self->fd, NULL, &self->reader);
    Py_END_ALLOW_THREADS
    return error;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"fd", NULL};
    int fd;
    if (!PyArg_ParseTupleAndKeywords(args, named, "i:Reader", names, &fd))
        return NULL;
    msr_reader *self = (msr_reader *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int error = self->fd < 0 ? MS_EIO : open_reader(self);
    if (error) {
        msr_raise(error);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void reader_dealloc(msr_reader *self)
{
    ms_cursor_close(self->cursor);
    ms_reader_close(self->reader);
    if (self->fd >= 0)
        close(self->fd);
    Py_XDECREF(self->paths);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* ---- metadata ---- */

/* Names come from the recorded program, and may be invalid UTF-8. */
PyObject *msr_decode_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *pairs_of(const ms_reader *reader, bool of_end)
{
    PyObject *dict = PyDict_New();
    const char *key, *value;
    for (size_t i = 0; dict && ms_reader_info(reader, of_end, i, &key, &value); i++) {
        PyObject *name = msr_decode_text(key), *text = msr_decode_text(value);
        if (!msr_put(dict, name, text))
            Py_CLEAR(dict);
    }
    return dict;
}

static PyObject *get_info(msr_reader *self, void *unused)
{
    (void)unused;
    return pairs_of(self->reader, false);
}

static PyObject *get_end(msr_reader *self, void *unused)
{
    (void)unused;
    if (!ms_reader_get_status(self->reader).ended)
        Py_RETURN_NONE;
    return pairs_of(self->reader, true);
}

static PyObject *get_devices(msr_reader *self, void *unused)
{
    (void)unused;
    uint32_t count = ms_reader_devices(self->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++) {
        const char *name = ms_reader_device(self->reader, i);
        if (!msr_append(list, name ? msr_decode_text(name) : PyUnicode_FromFormat("device %u", i)))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *path_of(const ms_reader *reader, ms_path path)
{
    ms_path parent;
    uint32_t nth;
    PyObject *name = msr_decode_text(ms_reader_path(reader, path, &parent, &nth));
    return name ? Py_BuildValue("(NII)", name, parent, nth) : NULL;
}

static PyObject *get_paths(msr_reader *self, void *unused)
{
    (void)unused;
    if (self->paths)
        return Py_NewRef(self->paths);
    uint32_t count = ms_reader_paths(self->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++)
        if (!msr_append(list, path_of(self->reader, i)))
            Py_CLEAR(list);
    self->paths = list;
    return Py_XNewRef(list);
}

/* ---- status ---- */

/* `offset`: that of the field in ms_reader_status. */
static PyObject *get_status_field(msr_reader *self, void *offset)
{
    ms_reader_status status = ms_reader_get_status(self->reader);
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)((const char *)&status + (size_t)offset));
}

#define STATUS_FIELD(name, field, doc)                                                       \
    {                                                                                        \
        name, (getter)get_status_field, NULL, doc, (void *)offsetof(ms_reader_status, field) \
    }

static PyGetSetDef attributes[] = {
    {"info", (getter)get_info, NULL, "Info about the run that was written at its start.", NULL},
    {"end", (getter)get_end, NULL, "Info that was written at the end; None: the run was killed, or goes on.", NULL},
    {"devices", (getter)get_devices, NULL,
     "Names of devices, by number. A device without a name is listed once it has occurred.", NULL},
    {"paths", (getter)get_paths, NULL,
     "For each path: its name, its parent, and which of several modules of that name it is.", NULL},
    {"stacks", (getter)msr_get_stacks, NULL,
     "For each stack: file (None: an operator), function, line, end line, column, end column of its innermost frame, "
     "and\n"
     "the stack around it; None where there is none.",
     NULL},
    {"forward_stacks", (getter)msr_get_forward_stacks, NULL,
     "By stack, where its innermost entry is a backward node: the stack that created the node, if it is known.", NULL},
    {"model_frames", (getter)msr_get_model_frames, NULL,
     "The stacks whose innermost frame is a library's code inside a module's forward.", NULL},
    {"called", (getter)msr_get_called, NULL, "By stack: what is called in its innermost frame, if it is known.", NULL},
    {"sources", (getter)msr_get_sources, NULL,
     "By source file, as it was then: its size, when it was modified, in microseconds since 1970, and its checksum.",
     NULL},
    STATUS_FIELD("bytes", bytes, "Size of the file."),
    STATUS_FIELD("damaged", damaged, "Bytes that cannot be read, as far as is known."),
    STATUS_FIELD("event_count", events, "One more than the highest event number."),
    STATUS_FIELD("lost", lost, "Events that the writer had no room for."),
    STATUS_FIELD("duration", duration, "Microseconds to the latest time that was read."),
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- moments ---- */

int msr_open_cursor(msr_reader *self)
{
    return self->cursor ? MS_OK : ms_cursor_open(self->reader, &self->cursor);
}

/* Go to a time, or to the end of a step. */
static int seek_time_or_step(msr_reader *self, bool by_step, uint64_t at)
{
    int error = msr_open_cursor(self);
    if (error)
        return error;
    return by_step ? ms_cursor_seek_step(self->cursor, at) : ms_cursor_seek_time(self->cursor, at);
}

static PyObject *find_moment(msr_reader *self, bool by_step, PyObject *arg)
{
    uint64_t at = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred() || !msr_lock_reader(self))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = seek_time_or_step(self, by_step, at);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(self);
    if (error == MS_ENOSTEP)
        return PyErr_Format(PyExc_LookupError, "the capture has no step %S", arg);
    return error ? msr_raise(error) : PyLong_FromUnsignedLongLong(ms_cursor_moment(self->cursor));
}

static PyObject *moment_at_time(msr_reader *self, PyObject *arg)
{
    return find_moment(self, false, arg);
}

static PyObject *moment_at_step(msr_reader *self, PyObject *arg)
{
    return find_moment(self, true, arg);
}

static PyObject *snapshot(msr_reader *self, PyObject *arg)
{
    uint64_t moment = PyLong_AsUnsignedLongLong(arg);
    return PyErr_Occurred() ? NULL : msr_snapshot_new(self, moment);
}

/* ---- methods over several events ---- */
static PyObject *survey(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"progress", NULL};
    PyObject *progress = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O:survey", names, &progress))
        return NULL;
    return msr_survey(self, progress);
}

static int convert_number(PyObject *object, void *number)
{
    *(uint64_t *)number = PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

/* None means the end of the capture. */
static int convert_last(PyObject *object, void *last)
{
    *(uint64_t *)last = UINT64_MAX;
    return object == Py_None || convert_number(object, last);
}

static PyObject *events(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"ops", "first", "last", NULL};
    unsigned ops = (1u << MS_OP_COUNT) - 1;
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|IO&O&:events", names, &ops, convert_number, &first, convert_last,
                                     &last))
        return NULL;
    return msr_events_new(self, ops, first, last);
}

static PyObject *peaks(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", "last", NULL};
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O&O&:peaks", names, convert_number, &first, convert_last, &last))
        return NULL;
    return msr_peaks(self, first, last);
}

static PyObject *times(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", "last", NULL};
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O&O&:times", names, convert_number, &first, convert_last, &last))
        return NULL;
    return msr_times(self, first, last);
}

static PyObject *input_shapes(msr_reader *self, PyObject *args)
{
    unsigned device;
    return PyArg_ParseTuple(args, "I:input_shapes", &device) ? msr_input_shapes(self, device) : NULL;
}

static PyObject *series(msr_reader *self, PyObject *args)
{
    unsigned device;
    Py_buffer bounds;
    if (!PyArg_ParseTuple(args, "Iy*:series", &device, &bounds))
        return NULL;
    PyObject *array = msr_series(self, device, &bounds);
    PyBuffer_Release(&bounds);
    return array;
}

static PyObject *list_of_stacks(const ms_pack *pack)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < pack->stack_count; i++) {
        if (!msr_append(list, PyLong_FromUnsignedLong(pack->stacks[i])))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *pack(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", "last", NULL};
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O&O&:pack", names, convert_number, &first, convert_last, &last) ||
        !msr_lock_reader(self))
        return NULL;
    ms_pack pack;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_reader_pack(self->reader, first, last, &pack);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(self);
    if (error)
        return msr_raise(error);
    PyObject *stacks = list_of_stacks(&pack);
    PyObject *both = stacks ? Py_BuildValue("y#N", (const char *)pack.bytes, (Py_ssize_t)pack.size, stacks) : NULL;
    ms_pack_free(self->reader, &pack);
    return both;
}

static PyMethodDef methods[] = {
    {"survey", (PyCFunction)(void (*)(void))survey, METH_VARARGS | METH_KEYWORDS,
     "survey($self, progress=None)\n--\n\nPeaks, time by phase and totals, by one pass over all events."},
    {"moment_at_time", (PyCFunction)moment_at_time, METH_O,
     "moment_at_time($self, microseconds, /)\n--\n\nThe last moment at or before this time."},
    {"moment_at_step", (PyCFunction)moment_at_step, METH_O,
     "moment_at_step($self, step, /)\n--\n\nThe moment at the end of this step."},
    {"snapshot", (PyCFunction)snapshot, METH_O,
     "snapshot($self, moment, /)\n--\n\nWhat was held at this moment, or at the nearest one that can be known."},
    {"events", (PyCFunction)(void (*)(void))events, METH_VARARGS | METH_KEYWORDS,
     "events($self, ops=511, first=0, last=None)\n--\n\nIterate over the events between two moments. Bit i of ops: "
     "operation i."},
    {"notes", (PyCFunction)msr_notes, METH_NOARGS,
     "notes($self, /)\n--\n\nWhat is noted about blocks: (event before which it was noted, kind, slot, value)."},
    {"collectives", (PyCFunction)msr_collectives, METH_NOARGS,
     "collectives($self, /)\n--\n\nAll collectives: (event, microseconds, step, kind, bytes, nanoseconds, path, "
     "thread, "
     "group, phase, what its time is); and the groups: (number, name, backend, ranks, size)."},
    {"collective_totals", (PyCFunction)msr_collective_totals, METH_NOARGS,
     "collective_totals($self, /)\n--\n\nSums over collectives: (kind, group, path, phase, whether in a step, count, "
     "bytes, nanoseconds); and the groups."},
    {"collective_sums", (PyCFunction)msr_collective_sums, METH_NOARGS,
     "collective_sums($self, /)\n--\n\nSums for each group: (group, how many collectives but messages, a hash of their "
     "order, [(kind, count, bytes, nanoseconds, how many have a time)]); and the groups."},
    {"peaks", (PyCFunction)(void (*)(void))peaks, METH_VARARGS | METH_KEYWORDS,
     "peaks($self, first=0, last=None)\n--\n\nThe highest number of bytes that each device held between two moments."},
    {"times", (PyCFunction)(void (*)(void))times, METH_VARARGS | METH_KEYWORDS,
     "times($self, first=0, last=None)\n--\n\nWhat ran between two moments: (path, phase, microseconds)."},
    {"series", (PyCFunction)series, METH_VARARGS,
     "series($self, device, bounds, /)\n--\n\nWhat the device held at most between each two of the times, by category: "
     "int64 bytes. bounds: an array of uint64, microseconds."},
    {"step_times", (PyCFunction)msr_step_times, METH_NOARGS,
     "step_times($self, /)\n--\n\nFor each step four uint64: its number, when it began and when its last optimizer "
     "step "
     "ended, in microseconds, and how many optimizer steps had ended by then. 0 and 0: it has none."},
    {"input_shapes", (PyCFunction)input_shapes, METH_VARARGS,
     "input_shapes($self, device, /)\n--\n\nThe shapes with which steps ran, largest first: (dimensions, 'integer', "
     "'float' or '', how many steps, the step of them in which the device held most, the bytes that it held; 0 where "
     "all "
     "have one shape)."},
    {"has_call_times", (PyCFunction)msr_has_call_times, METH_NOARGS,
     "has_call_times($self, /)\n--\n\nWhether the GPU's times of calls were measured."},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_VARARGS | METH_KEYWORDS,
     "pack($self, first=0, last=None)\n--\n\nWhat was held at every moment between two, in the format that the page "
     "reads, and the stacks that made blocks in it."},
    {"export", (PyCFunction)(void (*)(void))msr_export, METH_VARARGS | METH_KEYWORDS,
     "export($self, format, write, *, modules, devices, places, order, title=b'', pid=0, began=0, last=None, "
     "progress=None)\n"
     "--\n\nConvert the capture to another program's format. write is called with one part after the other."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Reader",
    .tp_basicsize = sizeof(msr_reader),
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Reader(fd)\n--\n\nA capture in a file, for use by one thread at a time.",
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_new = reader_new,
};
