/* reader.c - modscope._capture.Reader: a capture, and where in it to look. */
#include "reading/reading.h"

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

/* ---- words ---- */

/* What a program called its things need not be UTF-8. */
static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *pairs_of(const ms_reader *reader, bool of_end)
{
    PyObject *dict = PyDict_New();
    const char *key, *value;
    for (size_t i = 0; dict && ms_reader_info(reader, of_end, i, &key, &value); i++) {
        PyObject *name = text_of(key), *text = text_of(value);
        if (!name || !text || PyDict_SetItem(dict, name, text) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(name);
        Py_XDECREF(text);
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
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        const char *name = ms_reader_device(self->reader, i);
        PyObject *word = name ? text_of(name) : PyUnicode_FromFormat("device %u", i);
        if (word)
            PyList_SET_ITEM(list, i, word);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *path_of(const ms_reader *reader, ms_path path)
{
    ms_path parent;
    uint32_t nth;
    PyObject *name = text_of(ms_reader_path(reader, path, &parent, &nth));
    return name ? Py_BuildValue("(NII)", name, parent, nth) : NULL;
}

static PyObject *get_paths(msr_reader *self, void *unused)
{
    (void)unused;
    if (self->paths)
        return Py_NewRef(self->paths);
    uint32_t count = ms_reader_paths(self->reader);
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *path = path_of(self->reader, i);
        if (path)
            PyList_SET_ITEM(list, i, path);
        else
            Py_CLEAR(list);
    }
    self->paths = list;
    return Py_XNewRef(list);
}

/* ---- figures: `field` is where in ms_reader_status ---- */
static PyObject *get_figure(msr_reader *self, void *field)
{
    ms_reader_status figures = ms_reader_get_status(self->reader);
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)((const char *)&figures + (size_t)field));
}

#define FIGURE(name, doc)                                                              \
    {                                                                                  \
#name, (getter)get_figure, NULL, doc, (void *)offsetof(ms_reader_status, name) \
    }

static PyGetSetDef attributes[] = {
    {"info", (getter)get_info, NULL, "What was said of the run when it began.", NULL},
    {"end", (getter)get_end, NULL, "What was said when it ended; None: it was killed, or still runs.", NULL},
    {"devices", (getter)get_devices, NULL, "Their names, by number; those without a name when they are met.", NULL},
    {"paths", (getter)get_paths, NULL, "Of each path: name, parent, which one of that name.", NULL},
    FIGURE(bytes, "Of the file."),
    FIGURE(damaged, "Bytes that could not be read, as far as they were looked at."),
    FIGURE(events, "One more than the highest event's number."),
    FIGURE(lost, "Events for which the writer had no room."),
    FIGURE(duration, "Microseconds, as far as it was read."),
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- moments ---- */

int msr_cursor(msr_reader *self)
{
    return self->cursor ? MS_OK : ms_cursor_open(self->reader, &self->cursor);
}

/* Go to a time, or to a step's end. */
static int go_to(msr_reader *self, bool by_step, uint64_t at)
{
    int error = msr_cursor(self);
    if (error)
        return error;
    return by_step ? ms_cursor_seek_step(self->cursor, at) : ms_cursor_seek_time(self->cursor, at);
}

static PyObject *find_moment(msr_reader *self, bool by_step, PyObject *arg)
{
    uint64_t at = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred() || !msr_take(self))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = go_to(self, by_step, at);
    Py_END_ALLOW_THREADS
    msr_give(self);
    if (error == MS_ENOSTEP)
        return PyErr_Format(PyExc_LookupError, "there is no step %S in the capture", arg);
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

/* ---- looking through ---- */
static PyObject *survey(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"progress", NULL};
    PyObject *progress = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O:survey", names, &progress))
        return NULL;
    return msr_survey(self, progress);
}

static int to_number(PyObject *object, void *number)
{
    *(uint64_t *)number = PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

/* None: to the end. */
static int to_last(PyObject *object, void *last)
{
    *(uint64_t *)last = UINT64_MAX;
    return object == Py_None || to_number(object, last);
}

static PyObject *walk(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"ops", "first", "last", NULL};
    unsigned ops = (1u << MS_OP_COUNT) - 1;
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|IO&O&:walk", names, &ops, to_number, &first, to_last, &last))
        return NULL;
    return msr_walk_new(self, ops, first, last);
}

static PyObject *most(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", "last", NULL};
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O&O&:most", names, to_number, &first, to_last, &last))
        return NULL;
    return msr_most(self, first, last);
}

static PyObject *pack(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"first", "last", NULL};
    uint64_t first = 0, last = UINT64_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|O&O&:pack", names, to_number, &first, to_last, &last) ||
        !msr_take(self))
        return NULL;
    ms_pack pack;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_reader_pack(self->reader, first, last, &pack);
    Py_END_ALLOW_THREADS
    msr_give(self);
    if (error)
        return msr_raise(error);
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)pack.bytes, (Py_ssize_t)pack.size);
    ms_pack_free(self->reader, &pack);
    return bytes;
}

static PyMethodDef methods[] = {
    {"survey", (PyCFunction)(void (*)(void))survey, METH_VARARGS | METH_KEYWORDS,
     "survey($self, progress=None)\n--\n\nOne look at all events: peaks, phases, steps."},
    {"moment_at_time", (PyCFunction)moment_at_time, METH_O,
     "moment_at_time($self, microseconds, /)\n--\n\nThe last moment at or before this time."},
    {"moment_at_step", (PyCFunction)moment_at_step, METH_O,
     "moment_at_step($self, step, /)\n--\n\nThe moment at this step's end."},
    {"snapshot", (PyCFunction)snapshot, METH_O,
     "snapshot($self, moment, /)\n--\n\nWho held what at this moment, or the nearest that can be known."},
    {"walk", (PyCFunction)(void (*)(void))walk, METH_VARARGS | METH_KEYWORDS,
     "walk($self, ops=511, first=0, last=None)\n--\n\nThe events between two moments, one by one."},
    {"most", (PyCFunction)(void (*)(void))most, METH_VARARGS | METH_KEYWORDS,
     "most($self, first=0, last=None)\n--\n\nThe most each device held between two moments."},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_VARARGS | METH_KEYWORDS,
     "pack($self, first=0, last=None)\n--\n\nWho held what at every moment between two, as the page reads it."},
    {"export", (PyCFunction)(void (*)(void))msr_export, METH_VARARGS | METH_KEYWORDS,
     "export($self, format, write, *, modules, devices, order, title=b'', pid=0, began=0, last=None, progress=None)\n"
     "--\n\nThe events as another program's format, given to write bit by bit."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Reader",
    .tp_basicsize = sizeof(msr_reader),
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Reader(fd)\n--\n\nA capture in a file. For one thread at a time.",
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_new = reader_new,
};
