/* replay_edits.c - edits of a replay from Python: tuples of a name and arguments. */
#include "capture_api/capture_api.h"

bool msr_selection_of(PyObject *item, ms_replay_selection *selection)
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
    selection->device = device == Py_None ? MS_REPLAY_NONE : (uint32_t)PyLong_AsUnsignedLong(device);
    return !PyErr_Occurred();
}

uint32_t *msr_numbers_of_paths(PyObject *list, uint32_t path_count)
{
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != (Py_ssize_t)path_count) {
        PyErr_SetString(PyExc_ValueError, "give a list with a number, or None, for each path of the capture");
        return NULL;
    }
    uint32_t *numbers = PyMem_Malloc(path_count * sizeof *numbers);
    if (!numbers)
        PyErr_NoMemory();
    for (uint32_t i = 0; numbers && i < path_count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        numbers[i] = item == Py_None ? MS_REPLAY_NONE : (uint32_t)PyLong_AsUnsignedLong(item);
    }
    if (PyErr_Occurred()) {
        PyMem_Free(numbers);
        return NULL;
    }
    return numbers;
}

static bool event_number(PyObject *item, uint32_t *event)
{
    *event = item == Py_None ? MS_REPLAY_NONE : (uint32_t)PyLong_AsUnsignedLong(item);
    return !PyErr_Occurred();
}

/* ---- the edits: each adds to `count` how many blocks or calls it changes ---- */
struct editing {
    ms_replay_edit *edit;
    const ms_replay_stream *stream;
    const ms_replay_match *match;
    uint64_t count;
};

/* `error`: of an edit that changed so much. */
static bool is_done(struct editing *of, int error, const char *what, uint64_t count)
{
    if (error == MS_EINVAL)
        PyErr_SetString(PyExc_ValueError, what);
    else if (error)
        msr_raise(error);
    of->count += error ? 0 : count;
    return !error;
}

static bool apply_scale(struct editing *of, PyObject *arguments)
{
    PyObject *selected;
    ms_replay_selection selection;
    unsigned long long numerator, denominator;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "OKK:scale", &selected, &numerator, &denominator) ||
        !msr_selection_of(selected, &selection))
        return false;
    int error = ms_replay_edit_scale(of->edit, &selection, numerator, denominator, &count);
    return is_done(of, error, "scale: the denominator is 0", count);
}

static bool apply_move(struct editing *of, PyObject *arguments)
{
    PyObject *selected;
    ms_replay_selection selection;
    unsigned device;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "OI:move", &selected, &device) || !msr_selection_of(selected, &selection))
        return false;
    int error = ms_replay_edit_move(of->edit, &selection, device, &count);
    return is_done(of, error, "move: there is no such device", count);
}

static bool apply_remove(struct editing *of, PyObject *arguments)
{
    PyObject *selected;
    ms_replay_selection selection;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "O:remove", &selected) || !msr_selection_of(selected, &selection))
        return false;
    int error = ms_replay_edit_remove(of->edit, &selection, &count);
    return is_done(of, error, "remove", count);
}

static bool apply_resize(struct editing *of, PyObject *arguments)
{
    unsigned block;
    unsigned long long bytes;
    return PyArg_ParseTuple(arguments, "IK:resize", &block, &bytes) &&
           is_done(of, ms_replay_edit_resize(of->edit, block, bytes), "resize: there is no such block", 1);
}

static bool apply_insert(struct editing *of, PyObject *arguments)
{
    unsigned begin, device;
    uint32_t end;
    PyObject *until;
    unsigned long long bytes, stream = 0;
    return PyArg_ParseTuple(arguments, "IOKI|K:insert", &begin, &until, &bytes, &device, &stream) &&
           event_number(until, &end) &&
           is_done(of, ms_replay_edit_insert(of->edit, begin, end, bytes, device, stream),
                   "insert: the block ends before it begins, or its device or size is impossible", 1);
}

static bool apply_checkpoint(struct editing *of, PyObject *arguments)
{
    unsigned call;
    PyObject *kept = NULL;
    if (!PyArg_ParseTuple(arguments, "I|O!:checkpoint", &call, &PyTuple_Type, &kept))
        return false;
    Py_ssize_t count = kept ? PyTuple_GET_SIZE(kept) : 0;
    uint32_t *operators = PyMem_Calloc((size_t)count + 1, sizeof *operators);
    if (!operators)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; operators && i < count; i++)
        operators[i] = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(kept, i));
    bool done = !PyErr_Occurred() &&
                is_done(of, ms_replay_edit_checkpoint_keeping(of->edit, call, operators, (uint32_t)count),
                        "checkpoint: there is no such call or operator in it, or a call around it or in it is edited "
                        "already",
                        1);
    PyMem_Free(operators);
    return done;
}

static bool apply_offload(struct editing *of, PyObject *arguments)
{
    unsigned call, device;
    return PyArg_ParseTuple(arguments, "II:offload", &call, &device) &&
           is_done(of, ms_replay_edit_offload(of->edit, call, device),
                   "offload: there is no such call, or a call around it or in it is edited already", 1);
}

static bool apply_end(struct editing *of, PyObject *arguments)
{
    unsigned block;
    uint32_t end;
    PyObject *at;
    return PyArg_ParseTuple(arguments, "IO:end", &block, &at) && event_number(at, &end) &&
           is_done(of, ms_replay_edit_end(of->edit, block, end),
                   "end: there is no such block, or it would end before it begins", 1);
}

static bool apply_stop(struct editing *of, PyObject *arguments)
{
    unsigned event;
    return PyArg_ParseTuple(arguments, "I:stop", &event) &&
           is_done(of, ms_replay_edit_stop(of->edit, event), "stop: there is no such event", 0);
}

static bool apply_stop_above(struct editing *of, PyObject *arguments)
{
    unsigned long long bytes;
    if (!PyArg_ParseTuple(arguments, "K:stop_above", &bytes))
        return false;
    ms_replay_edit_stop_above(of->edit, bytes);
    return true;
}

static bool apply_zero_grad(struct editing *of, PyObject *arguments)
{
    uint64_t count = 0;
    return PyArg_ParseTuple(arguments, ":zero_grad") &&
           is_done(of, ms_replay_edit_zero_grad(of->edit, &count), "zero_grad", count);
}

static bool apply_save_on_cpu(struct editing *of, PyObject *arguments)
{
    unsigned from, to;
    return PyArg_ParseTuple(arguments, "II:save_on_cpu", &from, &to) &&
           is_done(of, ms_replay_edit_save_on_cpu(of->edit, from, to, NULL), "save_on_cpu: there is no such device", 0);
}

/* It needs the match of the stream. */
static bool apply_batch(struct editing *of, PyObject *arguments)
{
    double position;
    if (!of->match->bytes) {
        PyErr_SetString(PyExc_ValueError, "batch: match the stream with that of another batch first");
        return false;
    }
    return PyArg_ParseTuple(arguments, "d:batch", &position) &&
           is_done(of, ms_replay_edit_batch(of->edit, of->match, position), "batch: the batch is impossible",
                   of->match->matched);
}

/* The lists of ms_replay_units, each a list with a number or None for each path. */
static bool units_of(const struct editing *of, PyObject *around, PyObject *called, ms_replay_units *units)
{
    uint32_t paths = of->stream->path_count, *of_around = msr_numbers_of_paths(around, paths);
    uint32_t *of_called = of_around ? msr_numbers_of_paths(called, paths) : NULL;
    *units = (ms_replay_units){.around = of_around, .called = of_called};
    bool is_right = of_called != NULL;
    for (uint32_t i = 0; is_right && i < paths; i++) {
        is_right = of_called[i] == MS_REPLAY_NONE || of_called[i] < paths;
        is_right &= of_around[i] == MS_REPLAY_NONE || of_around[i] < paths;
        if (is_right && of_called[i] != MS_REPLAY_NONE && of_called[i] >= units->count)
            units->count = of_called[i] + 1;
        if (is_right && of_around[i] != MS_REPLAY_NONE && of_around[i] >= units->count)
            units->count = of_around[i] + 1;
    }
    if (!is_right && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a unit's number is too large: there are no more units than paths");
    return is_right;
}

static void free_units(const ms_replay_units *units)
{
    PyMem_Free((void *)units->around);
    PyMem_Free((void *)units->called);
}

static bool apply_shard(struct editing *of, PyObject *arguments)
{
    PyObject *around, *called;
    int mixed, keeps;
    ms_replay_sharding how;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "OOIIIpp:shard", &around, &called, &how.device, &how.ranks, &how.end, &mixed,
                          &keeps))
        return false;
    how.is_mixed = mixed;
    how.keeps_params = keeps;
    bool done = units_of(of, around, called, &how.units);
    if (done)
        done = is_done(of, ms_replay_edit_shard(of->edit, &how, &count), "shard: there are no ranks", 0);
    of->count += count;
    free_units(&how.units);
    return done;
}

static bool apply_shard_over(struct editing *of, PyObject *arguments)
{
    unsigned device, before, after;
    int in_copies;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "IIIp:shard_over", &device, &before, &after, &in_copies))
        return false;
    int error = ms_replay_edit_shard_over(of->edit, device, before, after, in_copies, &count);
    return is_done(of, error, "shard_over: there are no ranks", count);
}

static bool apply_keep_gathered(struct editing *of, PyObject *arguments)
{
    unsigned device;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "I:keep_gathered", &device))
        return false;
    int error = ms_replay_edit_keep_gathered(of->edit, device, &count);
    return is_done(of, error, "keep_gathered", count);
}

static bool apply_reshard(struct editing *of, PyObject *arguments)
{
    PyObject *around, *called;
    unsigned device;
    ms_replay_units units;
    uint64_t count = 0;
    if (!PyArg_ParseTuple(arguments, "OOI:reshard", &around, &called, &device))
        return false;
    bool done = units_of(of, around, called, &units);
    if (done)
        done = is_done(of, ms_replay_edit_reshard(of->edit, &units, device, &count), "reshard: there is no such device",
                       0);
    of->count += count;
    free_units(&units);
    return done;
}

/* ---- all of them ---- */
static bool apply_edit(struct editing *of, PyObject *item)
{
    static const struct {
        const char *name;
        bool (*apply)(struct editing *, PyObject *);
    } edits[] = {{"checkpoint", apply_checkpoint},
                 {"offload", apply_offload},
                 {"scale", apply_scale},
                 {"move", apply_move},
                 {"remove", apply_remove},
                 {"resize", apply_resize},
                 {"insert", apply_insert},
                 {"end", apply_end},
                 {"stop", apply_stop},
                 {"stop_above", apply_stop_above},
                 {"zero_grad", apply_zero_grad},
                 {"save_on_cpu", apply_save_on_cpu},
                 {"batch", apply_batch},
                 {"shard", apply_shard},
                 {"shard_over", apply_shard_over},
                 {"keep_gathered", apply_keep_gathered},
                 {"reshard", apply_reshard}};
    const char *name =
        PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0)) : NULL;
    PyObject *arguments = name ? PyTuple_GetSlice(item, 1, PyTuple_GET_SIZE(item)) : NULL;
    if (!arguments) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "an edit is a tuple: its name, then its arguments");
        return false;
    }
    bool known = false, done = false;
    for (size_t i = 0; i < sizeof edits / sizeof *edits && !known; i++)
        if ((known = strcmp(edits[i].name, name) == 0))
            done = edits[i].apply(of, arguments);
    if (!known)
        PyErr_Format(PyExc_ValueError,
                     "'%s' is no edit: use checkpoint, offload, scale, move, remove, resize, insert, end, stop, "
                     "zero_grad, save_on_cpu, batch, shard, shard_over, keep_gathered or reshard",
                     name);
    Py_DECREF(arguments);
    return done;
}

ms_replay_edit *msr_edit_of(const ms_replay_stream *stream, const ms_replay_match *match, PyObject *edits,
                            uint64_t *count)
{
    struct editing of = {.edit = ms_replay_edit_open(stream), .stream = stream, .match = match};
    if (!of.edit) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(edits), *item = NULL;
    bool done = iterator != NULL;
    while (done && (item = PyIter_Next(iterator)) != NULL) {
        done = apply_edit(&of, item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    if (PyErr_Occurred()) {
        ms_replay_edit_close(of.edit);
        return NULL;
    }
    if (count)
        *count = of.count;
    return of.edit;
}
