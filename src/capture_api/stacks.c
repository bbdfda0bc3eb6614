/* stacks.c - Reader.stacks, forward_stacks, model_frames, called and sources: the table of stacks for Python. */
#include "capture_api/capture_api.h"

static PyObject *stack_of(const ms_reader *reader, ms_stack stack)
{
    ms_frame frame;
    if (!ms_reader_stack(reader, stack, &frame))
        Py_RETURN_NONE;
    PyObject *file = frame.file ? msr_decode_text(frame.file) : Py_NewRef(Py_None);
    PyObject *function = file ? msr_decode_text(frame.function) : NULL;
    if (!function) {
        Py_XDECREF(file);
        return NULL;
    }
    return Py_BuildValue("(NNIIIII)", file, function, frame.line, frame.end_line, frame.column, frame.end_column,
                         frame.outer);
}

PyObject *msr_get_stacks(msr_reader *self, void *unused)
{
    (void)unused;
    uint32_t count = ms_reader_stacks(self->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++)
        if (!msr_append(list, stack_of(self->reader, i)))
            Py_CLEAR(list);
    return list;
}

PyObject *msr_get_forward_stacks(msr_reader *self, void *unused)
{
    (void)unused;
    PyObject *found = PyDict_New();
    ms_frame frame;
    for (uint32_t i = 0; found && i < ms_reader_stacks(self->reader); i++) {
        if (!ms_reader_stack(self->reader, i, &frame) || !frame.forward)
            continue;
        PyObject *stack = PyLong_FromUnsignedLong(i), *forward = PyLong_FromUnsignedLong(frame.forward);
        if (!msr_put(found, stack, forward))
            Py_CLEAR(found);
    }
    return found;
}

PyObject *msr_get_model_frames(msr_reader *self, void *unused)
{
    (void)unused;
    PyObject *found = PySet_New(NULL);
    ms_frame frame;
    for (uint32_t i = 0; found && i < ms_reader_stacks(self->reader); i++) {
        if (!ms_reader_stack(self->reader, i, &frame) || !frame.is_model)
            continue;
        PyObject *stack = PyLong_FromUnsignedLong(i);
        if (!stack || PySet_Add(found, stack) != 0)
            Py_CLEAR(found);
        Py_XDECREF(stack);
    }
    return found;
}

PyObject *msr_get_called(msr_reader *self, void *unused)
{
    (void)unused;
    PyObject *found = PyDict_New();
    ms_frame frame;
    for (uint32_t i = 0; found && i < ms_reader_stacks(self->reader); i++) {
        if (!ms_reader_stack(self->reader, i, &frame) || !frame.called)
            continue;
        PyObject *stack = PyLong_FromUnsignedLong(i), *called = msr_decode_text(frame.called);
        if (!msr_put(found, stack, called))
            Py_CLEAR(found);
    }
    return found;
}

static PyObject *describe_source(const ms_source *source)
{
    return Py_BuildValue("(KKI)", source->bytes, source->modified, source->checksum);
}

PyObject *msr_get_sources(msr_reader *self, void *unused)
{
    (void)unused;
    PyObject *found = PyDict_New();
    ms_source source;
    for (size_t i = 0; found && ms_reader_source(self->reader, i, &source); i++) {
        PyObject *file = msr_decode_text(source.file), *described = describe_source(&source);
        if (!msr_put(found, file, described))
            Py_CLEAR(found);
    }
    return found;
}

PyObject *msr_read_source(PyObject *self, PyObject *argument)
{
    (void)self;
    PyObject *path;
    if (!PyUnicode_FSConverter(argument, &path))
        return NULL;
    ms_source source;
    bool is_read;
    Py_BEGIN_ALLOW_THREADS
    is_read = ms_source_read(PyBytes_AS_STRING(path), &source);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    return is_read ? describe_source(&source) : Py_NewRef(Py_None);
}
