/* stats.c - what Python asks of the virtual device's memory: take and give it, its statistics, its blocks. */
#include "torch/api/api.h"
#include "torch/virtual/virtual.h"

/* Take workspace for an operator. */
static PyObject *virtual_take(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 1 && count != 2)
        return PyErr_Format(PyExc_TypeError, "virtual_take takes bytes, and the number of a source");
    uint64_t bytes = PyLong_AsUnsignedLongLong(args[0]);
    unsigned long source = count > 1 && !PyErr_Occurred() ? PyLong_AsUnsignedLong(args[1]) : 0;
    struct mst_virtual_block *block;
    if (PyErr_Occurred())
        return NULL;
    int error = mst_virtual_take_workspace(bytes, source < MST_SOURCES ? (unsigned)source : 0, &block);
    if (error == MS_EDEVICE)
        Py_RETURN_NONE;
    if (error)
        return error == MS_ENOMEM ? PyErr_NoMemory() : PyErr_Format(PyExc_RuntimeError, "no virtual GPU is installed");
    PyObject *handle = PyLong_FromVoidPtr(block);
    if (!handle)
        mst_virtual_give(block);
    return handle;
}

static PyObject *virtual_give(PyObject *self, PyObject *handle)
{
    (void)self;
    struct mst_virtual_block *block = PyLong_AsVoidPtr(handle);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_give(block);
    Py_RETURN_NONE;
}

static PyObject *virtual_address(PyObject *self, PyObject *handle)
{
    (void)self;
    const struct mst_virtual_block *block = PyLong_AsVoidPtr(handle);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(mst_virtual_address(block));
}

/* (current, peak, allocated, freed) */
static PyObject *stat_of(const ms_allocator_stat *stat)
{
    return Py_BuildValue("(LLLL)", (long long)stat->now, (long long)stat->peak, (long long)stat->total_added,
                         (long long)stat->total_removed);
}

/* A statistic of all blocks, of the small and of the large pool. */
static PyObject *stat_by_pool(const ms_allocator_stat *of)
{
    return Py_BuildValue("(NNN)", stat_of(&of[MS_BOTH_POOLS]), stat_of(&of[MS_SMALL_POOL]),
                         stat_of(&of[MS_LARGE_POOL]));
}

/* Takes the reference. Returns whether it failed. */
static bool add_value(PyObject *stats, const char *name, PyObject *value)
{
    bool failed = !value || PyDict_SetItemString(stats, name, value) != 0;
    Py_XDECREF(value);
    return failed;
}

/* The model of the device with this index, or NULL: with an error set if it is no index. */
static ms_allocator *borrow(PyObject *index)
{
    long device = PyLong_AsLong(index);
    return PyErr_Occurred() ? NULL : mst_virtual_borrow((int)device);
}

static PyObject *virtual_stats(PyObject *self, PyObject *device)
{
    (void)self;
    ms_allocator_stats copy = {0};
    ms_allocator *allocator = borrow(device);
    if (allocator) {
        copy = *ms_allocator_read(allocator);
        mst_virtual_return();
    }
    PyObject *stats = PyErr_Occurred() ? NULL : PyDict_New();
    bool failed = !stats;
#define X(name, member) failed = failed || add_value(stats, name, stat_by_pool(copy.member));
    MS_STATS_BY_POOL(X)
#undef X
#define X(name, member) failed = failed || add_value(stats, name, stat_of(&copy.member));
    MS_STATS_WITHOUT_POOLS(X)
#undef X
#define X(name, member) failed = failed || add_value(stats, name, PyLong_FromLongLong(copy.member));
    MS_STATS_NUMBERS(X)
#undef X
    if (failed)
        Py_CLEAR(stats);
    return stats;
}

static void append_block(void *context, const ms_block_info *block)
{
    static const char *const states[] = {"inactive", "active_allocated", "active_pending_free"};
    if (PyErr_Occurred())
        return;
    mst_append_new(context, Py_BuildValue("(KKKKKKsOOK)", (unsigned long long)block->segment_address,
                                          (unsigned long long)block->segment_bytes, (unsigned long long)block->address,
                                          (unsigned long long)block->bytes, (unsigned long long)block->requested,
                                          (unsigned long long)block->stream, states[block->state],
                                          block->is_small ? Py_True : Py_False,
                                          block->is_expandable ? Py_True : Py_False, (unsigned long long)block->pool));
}

static PyObject *virtual_blocks(PyObject *self, PyObject *device)
{
    (void)self;
    PyObject *blocks = PyList_New(0);
    ms_allocator *allocator = blocks ? borrow(device) : NULL;
    if (allocator) {
        ms_allocator_each_block(allocator, append_block, blocks);
        mst_virtual_return();
    }
    if (PyErr_Occurred())
        Py_CLEAR(blocks);
    return blocks;
}

static PyObject *virtual_empty_cache(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    int error = MS_OK;
    for (int i = 0; i < mst_virtual_count() && !error; i++) {
        ms_allocator *allocator = mst_virtual_borrow(i);
        if (!allocator)
            break;
        error = ms_allocator_empty_cache(allocator);
        mst_virtual_log_empty_cache(i);
        mst_virtual_return();
    }
    return error ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *virtual_reset(PyObject *self, PyObject *args)
{
    (void)self;
    int device, peaks;
    if (!PyArg_ParseTuple(args, "ip", &device, &peaks))
        return NULL;
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        if (peaks)
            ms_allocator_reset_peaks(allocator);
        else
            ms_allocator_reset_accumulated(allocator);
        mst_virtual_return();
    }
    Py_RETURN_NONE;
}

static PyObject *virtual_set_fraction(PyObject *self, PyObject *args)
{
    (void)self;
    int device;
    double value;
    if (!PyArg_ParseTuple(args, "id", &device, &value))
        return NULL;
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        ms_allocator_set_fraction(allocator, value);
        mst_virtual_return();
    }
    Py_RETURN_NONE;
}

static PyObject *virtual_set_capacity(PyObject *self, PyObject *args)
{
    (void)self;
    int device;
    unsigned long long value;
    if (!PyArg_ParseTuple(args, "iK", &device, &value))
        return NULL;
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        ms_allocator_set_capacity(allocator, value);
        mst_virtual_return();
    }
    Py_RETURN_NONE;
}

static PyObject *virtual_apply_settings(PyObject *self, PyObject *text)
{
    (void)self;
    char error[200] = "";
    const char *settings = PyUnicode_AsUTF8(text);
    if (!settings)
        return NULL;
    int result = MS_OK;
    for (int i = 0; i < mst_virtual_count() && !result; i++) {
        ms_allocator *allocator = mst_virtual_borrow(i);
        if (!allocator)
            break;
        result = ms_allocator_apply(allocator, settings, error, sizeof error);
        mst_virtual_return();
    }
    return result ? PyErr_Format(PyExc_RuntimeError, "allocator settings '%s': %s", settings, error)
                  : Py_NewRef(Py_None);
}

static PyObject *virtual_doubt(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "virtual_doubt takes the number of a kind, and bytes");
    unsigned long kind = PyLong_AsUnsignedLong(args[0]);
    uint64_t bytes = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_doubt(kind < MST_DOUBTS ? (unsigned)kind : MST_DOUBTS, bytes);
    Py_RETURN_NONE;
}

static PyObject *virtual_doubts(PyObject *self, PyObject *device)
{
    (void)self;
    uint64_t peaks[MST_DOUBTS];
    int index = (int)PyLong_AsLong(device);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_doubts(index, peaks);
    PyObject *list = PyList_New(MST_DOUBTS);
    for (Py_ssize_t kind = 0; list && kind < MST_DOUBTS; kind++) {
        PyObject *bytes = PyLong_FromUnsignedLongLong(peaks[kind]);
        if (!bytes)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, kind, bytes);
    }
    return list;
}

static PyObject *virtual_workspaces(PyObject *self, PyObject *device)
{
    (void)self;
    uint64_t at_peak[MST_SOURCES], in_all[MST_SOURCES];
    int index = (int)PyLong_AsLong(device);
    if (PyErr_Occurred())
        return NULL;
    mst_virtual_workspaces(index, at_peak, in_all);
    PyObject *list = PyList_New(MST_SOURCES);
    for (Py_ssize_t i = 0; list && i < MST_SOURCES; i++) {
        PyObject *pair = Py_BuildValue("(KK)", (unsigned long long)at_peak[i], (unsigned long long)in_all[i]);
        if (!pair)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, pair);
    }
    return list;
}

PyMethodDef mst_virtual_stats_methods[] = {
    {"virtual_take", (PyCFunction)(void (*)(void))virtual_take, METH_FASTCALL,
     "Take memory of the current device: a handle, or None if it is full. A workspace has the number of a source."},
    {"virtual_workspaces", virtual_workspaces, METH_O,
     "By source, the bytes of a device's workspaces: (when most was allocated, of all that were taken)."},
    {"virtual_give", virtual_give, METH_O, "Give back memory, by its handle."},
    {"virtual_address", virtual_address, METH_O, "The address of memory, by its handle."},
    {"virtual_stats", virtual_stats, METH_O,
     "The statistics of a device's allocator, by torch's names: numbers, or (current, peak, allocated, freed) of all, "
     "of the small and of the large pool."},
    {"virtual_blocks", virtual_blocks, METH_O,
     "A device's blocks: (segment's address and bytes, address, bytes, requested bytes, stream, state, is of the small "
     "pool, "
     "is of an expandable segment, the number of its private pool)."},
    {"virtual_empty_cache", virtual_empty_cache, METH_NOARGS, "Give free segments back to the virtual devices."},
    {"virtual_reset", virtual_reset, METH_VARARGS,
     "Reset a device's peaks (True) or its accumulated statistics (False)."},
    {"virtual_set_fraction", virtual_set_fraction, METH_VARARGS,
     "Set which part of a device's memory may be reserved."},
    {"virtual_set_capacity", virtual_set_capacity, METH_VARARGS, "Set how many bytes a device can give."},
    {"virtual_doubt", (PyCFunction)(void (*)(void))virtual_doubt, METH_FASTCALL,
     "An operator begins that may take so many bytes: the number of a kind of doubt, and bytes."},
    {"virtual_doubts", virtual_doubts, METH_O,
     "By kind of doubt, the most bytes that would have been allocated at once on a device; 0: there is nothing of it."},
    {"virtual_apply_settings", virtual_apply_settings, METH_O, "Apply the text of PYTORCH_CUDA_ALLOC_CONF."},
    {NULL, NULL, 0, NULL},
};
