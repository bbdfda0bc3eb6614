/* stacks_api.c - stacks for Python: how many frames are kept, which ones are read, and what the table has. */
#include "torch/api/api.h"
#include "torch/lines/lines.h"

#include <string.h>

static PyObject *why_no_stacks(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    const char *why = mst_frames_unsupported();
    if (why)
        return PyUnicode_FromString(why);
    Py_RETURN_NONE;
}

static PyObject *set_stack_depth(PyObject *self, PyObject *argument)
{
    (void)self;
    unsigned long depth = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (depth > MST_MOST_FRAMES)
        return PyErr_Format(PyExc_ValueError, "stacks must be 0 to %d", MST_MOST_FRAMES);
    if (!depth) {
        mst_stacks_stop();
    } else if (!mst_stacks_start((uint32_t)depth)) {
        PyErr_SetString(PyExc_RuntimeError, "the function that frees code objects cannot be intercepted");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *tuple_of_frame(const ms_frame *frame)
{
    return Py_BuildValue("(zsIIIIz)", frame->file, frame->function, frame->line, frame->end_line, frame->column,
                         frame->end_column, frame->called);
}

PyObject *mst_stack_list(ms_stack stack)
{
    PyObject *list = PyList_New(0);
    ms_frame frame;
    for (; list && ms_stack_frame(mst.watch, stack, &frame); stack = frame.outer)
        if (mst_append_new(list, tuple_of_frame(&frame)) != 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *read_stack(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return mst_stack_list(mst_stack_here());
}

static PyObject *read_frames(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    struct mst_frame frame;
    for (const void *at = mst_frame_innermost(); list && at; at = frame.next) {
        struct mst_code_texts texts;
        ms_frame shown;
        frame = mst_frame_read(at);
        if (frame.is_shim || (uintptr_t)frame.instruction < (uintptr_t)mst_code_first_instruction(frame.code))
            continue;
        mst_code_describe(frame.code, frame.instruction, &texts, &shown);
        if (mst_append_new(list, tuple_of_frame(&shown)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *describe_instruction(PyObject *self, PyObject *args)
{
    (void)self;
    PyCodeObject *code;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(args, "O!n", &PyCode_Type, &code, &offset))
        return NULL;
    if (offset < 0 || offset % 2 || offset / 2 >= Py_SIZE(code))
        return PyErr_Format(PyExc_ValueError, "the code has no instruction at %zd", offset);
    struct mst_code_texts texts;
    ms_frame shown;
    mst_code_describe(code, mst_code_instruction(code, offset), &texts, &shown);
    return tuple_of_frame(&shown);
}

static PyObject *stacks_lost(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(ms_stacks_lost(mst.watch));
}

static PyObject *stack_files(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    PyObject *files = PySet_New(NULL);
    ms_frame frame;
    for (uint32_t stack = 0; files && stack < ms_stack_count(mst.watch); stack++) {
        if (!ms_stack_frame(mst.watch, stack, &frame) || !frame.file)
            continue;
        PyObject *file = PyUnicode_DecodeUTF8(frame.file, (Py_ssize_t)strlen(frame.file), "replace");
        if (!file || PySet_Add(files, file) != 0)
            Py_CLEAR(files);
        Py_XDECREF(file);
    }
    PyObject *list = files ? PySequence_List(files) : NULL;
    Py_XDECREF(files);
    return list;
}

PyMethodDef mst_block_stacks_methods[] = {
    {"why_no_stacks", why_no_stacks, METH_NOARGS, "None, or why this Python's frames cannot be read."},
    {"set_stack_depth", set_stack_depth, METH_O, "How many frames are kept for each block; 0: none are read."},
    {"set_stack_folders", mst_set_stack_folders, METH_VARARGS,
     "Which files are not the program's own: lists of prefixes, as bytes, of installed libraries and Python's, of\n"
     "torch, and of modscope. They are set once."},
    {"read_stack", read_stack, METH_NOARGS,
     "The stack that a block made here would have: (file, function, line, end line, column, end column, what is "
     "called)\n"
     "of each frame, innermost first."},
    {"read_frames", read_frames, METH_NOARGS, "The same of all Python frames of this thread."},
    {"describe_instruction", describe_instruction, METH_VARARGS,
     "The same of a frame in which the instruction at this offset of a code object is executed."},
    {"stack_files", stack_files, METH_NOARGS, "The files of all frames that stacks have, each once."},
    {"stacks_lost", stacks_lost, METH_NOARGS, "How many times the table of stacks was full."},
    {NULL, NULL, 0, NULL},
};
