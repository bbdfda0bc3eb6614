/* live.c - modscope._capture.Live: a capture that is still being written, as ms_live has it. */
#include "capture_api/capture_api.h"

typedef struct live {
    PyObject_HEAD
    msr_reader *reader;
    ms_live *live;
} live;

static PyObject *live_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"reader", NULL};
    msr_reader *reader;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!:Live", names, &msr_reader_type, &reader))
        return NULL;
    live *self = (live *)type->tp_alloc(type, 0);
    if (!self || !msr_lock_reader(reader)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->reader = (msr_reader *)Py_NewRef((PyObject *)reader);
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_live_open(reader->reader, &self->live);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (error) {
        Py_DECREF(self);
        return msr_raise(error);
    }
    return (PyObject *)self;
}

static void live_dealloc(live *self)
{
    ms_live_close(self->live);
    Py_XDECREF((PyObject *)self->reader);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *live_update(live *self, PyObject *number)
{
    uint64_t events = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred() || !msr_lock_reader(self->reader))
        return NULL;
    bool more;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_live_update(self->live, events, &more);
    Py_END_ALLOW_THREADS
    Py_CLEAR(self->reader->paths); /* there may be more, and others may have other names */
    msr_unlock_reader(self->reader);
    return error ? msr_raise(error) : PyBool_FromLong(more);
}

static PyObject *name_of(const live *self, ms_path path)
{
    ms_path parent;
    uint32_t nth;
    return msr_decode_text(ms_reader_path(self->reader->reader, path, &parent, &nth));
}

static PyObject *live_status(live *self, PyObject *unused)
{
    (void)unused;
    ms_live_status status = ms_live_get_status(self->live);
    PyObject *running = name_of(self, status.running);
    return running ? Py_BuildValue("(KKKKKON)", status.time, status.step, status.events, status.oom_count,
                                   status.step_time, msr_phases[status.phase], running)
                   : NULL;
}

static PyObject *live_device(live *self, PyObject *number)
{
    unsigned long device = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred())
        return NULL;
    ms_live_device found = ms_live_get_device(self->live, (uint32_t)device);
    return Py_BuildValue("(LLKKKI)", found.now, found.peak, found.reserved, found.peak_reserved, found.peak_step,
                         found.growth_steps);
}

static PyObject *module_row(const live *self, const ms_live_row *row)
{
    PyObject *name = name_of(self, row->path);
    return name ? Py_BuildValue("(NOLLL)", name, msr_categories[row->category], row->now, row->peak, row->growth)
                : NULL;
}

static PyObject *line_row(const live *self, const ms_live_row *row)
{
    ms_frame frame = {0};
    ms_stack stack = row->stack;
    while (ms_reader_stack(self->reader->reader, stack, &frame) && !frame.file) {
        ms_stack next = frame.forward ? frame.forward : frame.outer;
        stack = next < stack ? next : (ms_stack)MS_STACK_NONE;
    }
    PyObject *file = frame.file ? msr_decode_text(frame.file) : Py_NewRef(Py_None);
    PyObject *function = frame.file ? msr_decode_text(frame.function) : PyUnicode_FromString("");
    if (!file || !function) {
        Py_XDECREF(file);
        Py_XDECREF(function);
        return NULL;
    }
    return Py_BuildValue("(NNIOLLL)", file, function, frame.file ? frame.line : 0, frame.is_model ? Py_True : Py_False,
                         row->now, row->peak, row->growth);
}

static PyObject *rows_of(const live *self, ms_live_kind kind, PyObject *number,
                         PyObject *(*describe)(const struct live *, const ms_live_row *))
{
    unsigned long device = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred())
        return NULL;
    PyObject *list = PyList_New(0);
    ms_live_row row;
    for (size_t at = 0; list && ms_live_next_row(self->live, kind, (uint32_t)device, &at, &row);)
        if (!msr_append(list, describe(self, &row)))
            Py_CLEAR(list);
    return list;
}

static PyObject *live_modules(live *self, PyObject *device)
{
    return rows_of(self, MS_LIVE_MODULES, device, module_row);
}

static PyObject *live_lines(live *self, PyObject *device)
{
    return rows_of(self, MS_LIVE_LINES, device, line_row);
}

static PyMethodDef methods[] = {
    {"update", (PyCFunction)live_update, METH_O,
     "update($self, events, /)\n--\n\nRead what was appended to the file, at most so many events. Returns whether "
     "there "
     "are more."},
    {"status", (PyCFunction)live_status, METH_NOARGS,
     "status($self, /)\n--\n\n(microseconds, step, events, failed allocations, microseconds of a step, phase, "
     "module)."},
    {"device", (PyCFunction)live_device, METH_O,
     "device($self, number, /)\n--\n\n(now, peak, reserved, peak reserved, step of the peak, how many steps growth is "
     "of)."},
    {"modules", (PyCFunction)live_modules, METH_O,
     "modules($self, device, /)\n--\n\n[(module, category, now, at the peak, growth)]."},
    {"lines", (PyCFunction)live_lines, METH_O,
     "lines($self, device, /)\n--\n\n[(file or None, function, line, whether it is a model's, now, at the peak, "
     "growth)]."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_live_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Live",
    .tp_basicsize = sizeof(live),
    .tp_dealloc = (destructor)live_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Live(reader)\n--\n\nA capture that is still being written. Use the reader for its metadata only.",
    .tp_methods = methods,
    .tp_new = live_new,
};
