/* replay_edits.c - edits of a replay from Python: tuples of a name and arguments. */
#include "reading/replay_edits.h"

#include "reading/reading.h"

bool msr_selection_of(PyObject *item, msp_selection *selection)
{
    PyObject *device;
    unsigned long long min_bytes;
    selection->kinds = 0;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "IIOIK|I", &selection->categories, &selection->phases, &device,
                                                  &selection->root, &min_bytes, &selection->kinds)) {
        PyErr_SetString(PyExc_TypeError,
                        "a selection is a tuple (categories, phases, device or None, root, min_bytes[, kinds])");
        return false;
    }
    selection->min_bytes = min_bytes;
    selection->device = device == Py_None ? MSP_NONE : (uint32_t)PyLong_AsUnsignedLong(device);
    return !PyErr_Occurred();
}

static bool raise_unless_done(int error, const char *what)
{
    if (error == MS_EINVAL)
        PyErr_SetString(PyExc_ValueError, what);
    else if (error)
        msr_raise(error);
    return !error;
}

static bool apply_scale(msp_edit *edit, PyObject *arguments)
{
    PyObject *selected;
    msp_selection selection;
    unsigned long long numerator, denominator;
    return PyArg_ParseTuple(arguments, "OKK:scale", &selected, &numerator, &denominator) &&
           msr_selection_of(selected, &selection) &&
           raise_unless_done(msp_edit_scale(edit, &selection, numerator, denominator, NULL),
                             "scale: the denominator is 0");
}

static bool apply_move(msp_edit *edit, PyObject *arguments)
{
    PyObject *selected;
    msp_selection selection;
    unsigned device;
    return PyArg_ParseTuple(arguments, "OI:move", &selected, &device) && msr_selection_of(selected, &selection) &&
           raise_unless_done(msp_edit_move(edit, &selection, device, NULL), "move: there is no such device");
}

static bool apply_remove(msp_edit *edit, PyObject *arguments)
{
    PyObject *selected;
    msp_selection selection;
    return PyArg_ParseTuple(arguments, "O:remove", &selected) && msr_selection_of(selected, &selection) &&
           raise_unless_done(msp_edit_remove(edit, &selection, NULL), "remove");
}

static bool apply_resize(msp_edit *edit, PyObject *arguments)
{
    unsigned block;
    unsigned long long bytes;
    return PyArg_ParseTuple(arguments, "IK:resize", &block, &bytes) &&
           raise_unless_done(msp_edit_resize(edit, block, bytes), "resize: there is no such block");
}

static bool apply_insert(msp_edit *edit, PyObject *arguments)
{
    unsigned begin, device;
    PyObject *end;
    unsigned long long bytes, stream = 0;
    if (!PyArg_ParseTuple(arguments, "IOKI|K:insert", &begin, &end, &bytes, &device, &stream))
        return false;
    uint32_t at = end == Py_None ? MSP_NONE : (uint32_t)PyLong_AsUnsignedLong(end);
    return !PyErr_Occurred() &&
           raise_unless_done(msp_edit_insert(edit, begin, at, bytes, device, stream),
                             "insert: the block ends before it begins, or its device or size is impossible");
}

static bool apply_checkpoint(msp_edit *edit, PyObject *arguments)
{
    unsigned call;
    return PyArg_ParseTuple(arguments, "I:checkpoint", &call) &&
           raise_unless_done(msp_edit_checkpoint(edit, call),
                             "checkpoint: there is no such call, or a call around it or in it is edited already");
}

static bool apply_offload(msp_edit *edit, PyObject *arguments)
{
    unsigned call, device;
    return PyArg_ParseTuple(arguments, "II:offload", &call, &device) &&
           raise_unless_done(msp_edit_offload(edit, call, device),
                             "offload: there is no such call, or a call around it or in it is edited already");
}

static bool apply_end(msp_edit *edit, PyObject *arguments)
{
    unsigned block;
    PyObject *end;
    if (!PyArg_ParseTuple(arguments, "IO:end", &block, &end))
        return false;
    uint32_t at = end == Py_None ? MSP_NONE : (uint32_t)PyLong_AsUnsignedLong(end);
    return !PyErr_Occurred() && raise_unless_done(msp_edit_end(edit, block, at),
                                                  "end: there is no such block, or it would end before it begins");
}

static bool apply_stop(msp_edit *edit, PyObject *arguments)
{
    unsigned event;
    return PyArg_ParseTuple(arguments, "I:stop", &event) &&
           raise_unless_done(msp_edit_stop(edit, event), "stop: there is no such event");
}

static bool apply_zero_grad(msp_edit *edit, PyObject *arguments)
{
    return PyArg_ParseTuple(arguments, ":zero_grad") && raise_unless_done(msp_edit_zero_grad(edit, NULL), "zero_grad");
}

static bool apply_save_on_cpu(msp_edit *edit, PyObject *arguments)
{
    unsigned from, to;
    return PyArg_ParseTuple(arguments, "II:save_on_cpu", &from, &to) &&
           raise_unless_done(msp_edit_save_on_cpu(edit, from, to, NULL), "save_on_cpu: there is no such device");
}

/* It needs the match of the stream. */
static bool apply_batch(msp_edit *edit, PyObject *arguments, const msp_match *match)
{
    double position;
    if (!match->bytes) {
        PyErr_SetString(PyExc_ValueError, "batch: match the stream with that of another batch first");
        return false;
    }
    return PyArg_ParseTuple(arguments, "d:batch", &position) &&
           raise_unless_done(msp_edit_batch(edit, match, position), "batch: the batch is impossible");
}

static bool apply_edit(msp_edit *edit, const msp_match *match, PyObject *item)
{
    static const struct {
        const char *name;
        bool (*apply)(msp_edit *, PyObject *);
    } edits[] = {{"checkpoint", apply_checkpoint},
                 {"offload", apply_offload},
                 {"scale", apply_scale},
                 {"move", apply_move},
                 {"remove", apply_remove},
                 {"resize", apply_resize},
                 {"insert", apply_insert},
                 {"end", apply_end},
                 {"stop", apply_stop},
                 {"zero_grad", apply_zero_grad},
                 {"save_on_cpu", apply_save_on_cpu}};
    const char *name =
        PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0)) : NULL;
    PyObject *arguments = name ? PyTuple_GetSlice(item, 1, PyTuple_GET_SIZE(item)) : NULL;
    if (!arguments) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "an edit is a tuple: its name, then its arguments");
        return false;
    }
    bool known = strcmp("batch", name) == 0, done = known && apply_batch(edit, arguments, match);
    for (size_t i = 0; i < sizeof edits / sizeof *edits && !known; i++)
        if ((known = strcmp(edits[i].name, name) == 0))
            done = edits[i].apply(edit, arguments);
    if (!known)
        PyErr_Format(PyExc_ValueError,
                     "'%s' is no edit: use checkpoint, offload, scale, move, remove, resize, insert, end, stop, "
                     "zero_grad, save_on_cpu or batch",
                     name);
    Py_DECREF(arguments);
    return done;
}

msp_edit *msr_edit_of(const msp_stream *stream, const msp_match *match, PyObject *edits)
{
    msp_edit *edit = msp_edit_open(stream);
    if (!edit) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(edits), *item = NULL;
    bool done = iterator != NULL;
    while (done && (item = PyIter_Next(iterator)) != NULL) {
        done = apply_edit(edit, match, item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    if (PyErr_Occurred()) {
        msp_edit_close(edit);
        return NULL;
    }
    return edit;
}
