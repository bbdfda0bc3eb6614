/* snapshot.c - modscope._capture.RawSnapshot: what each module held at a moment. */
#include "capture_api/capture_api.h"

#include <stdlib.h>

typedef struct snapshot {
    PyObject_HEAD
    ms_cursor *cursor; /* later claims are applied: it does not move any more */
    msr_reader *reader;
} snapshot;

static int seek_with_later_claims(msr_reader *reader, uint64_t moment, ms_cursor **cursor)
{
    int error = ms_cursor_open(reader->reader, cursor);
    if (!error)
        error = ms_cursor_seek(*cursor, moment);
    return error ? error : ms_cursor_apply_later_claims(*cursor);
}

PyObject *msr_snapshot_new(msr_reader *reader, uint64_t moment)
{
    snapshot *self = (snapshot *)msr_snapshot_type.tp_alloc(&msr_snapshot_type, 0);
    if (!self)
        return NULL;
    self->reader = (msr_reader *)Py_NewRef(reader);
    if (!msr_lock_reader(reader)) {
        Py_DECREF(self);
        return NULL;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = seek_with_later_claims(reader, moment, &self->cursor);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (error) {
        msr_raise(error);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void snapshot_dealloc(snapshot *self)
{
    ms_cursor_close(self->cursor);
    Py_XDECREF(self->reader);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* ---- attributes ---- */
static PyObject *get_number(snapshot *self, void *getter_variable)
{
    uint64_t (*const *ask)(const ms_cursor *) = getter_variable;
    return PyLong_FromUnsignedLongLong((*ask)(self->cursor));
}

static PyObject *get_snapshot_is_lower_bound(snapshot *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(ms_cursor_is_lower_bound(self->cursor));
}

/* ISO C does not convert a function pointer to void *, so the closures of get_number point to these variables. */
static uint64_t (*moment)(const ms_cursor *) = ms_cursor_moment;
static uint64_t (*time_of_moment)(const ms_cursor *) = ms_cursor_time;
static uint64_t (*step)(const ms_cursor *) = ms_cursor_step;
static uint64_t (*optimizer_steps)(const ms_cursor *) = ms_cursor_optimizer_steps;
static uint64_t (*count)(const ms_cursor *) = ms_cursor_blocks;

static PyGetSetDef attributes[] = {
    {"moment", (getter)get_number, NULL, "The number of events before it.", &moment},
    {"time", (getter)get_number, NULL, "Microseconds since the start of the capture.", &time_of_moment},
    {"step", (getter)get_number, NULL, "The training step it is in.", &step},
    {"optimizer_steps", (getter)get_number, NULL, "Optimizer steps that had ended.", &optimizer_steps},
    {"count", (getter)get_number, NULL, "How many blocks are held.", &count},
    {"is_lower_bound", (getter)get_snapshot_is_lower_bound, NULL,
     "Whether events before it are lost or damaged, so that every figure is at least.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- by device ---- */
static PyObject *totals_of(const snapshot *self, uint32_t device)
{
    ms_sums sums = ms_cursor_now(self->cursor, device);
    return msr_sums(&sums);
}

static PyObject *reserved_of(const snapshot *self, uint32_t device)
{
    return PyLong_FromUnsignedLongLong(ms_cursor_reserved(self->cursor, device));
}

static PyObject *list_by_device(const snapshot *self, PyObject *(*ask)(const snapshot *, uint32_t))
{
    uint32_t devices = ms_reader_devices(self->reader->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < devices; i++)
        if (!msr_append(list, ask(self, i)))
            Py_CLEAR(list);
    return list;
}

static PyObject *totals(snapshot *self, PyObject *unused)
{
    (void)unused;
    return list_by_device(self, totals_of);
}

static PyObject *reserved(snapshot *self, PyObject *unused)
{
    (void)unused;
    return list_by_device(self, reserved_of);
}

/* A pass over all blocks for each device; captures have few devices. */
static PyObject *outside_of(const snapshot *self, uint32_t device)
{
    uint64_t bytes = 0;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(self->cursor, &at, &block);)
        bytes += block.outside && block.device == device ? block.bytes : 0;
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *outside(snapshot *self, PyObject *unused)
{
    (void)unused;
    return list_by_device(self, outside_of);
}

/* ---- by module and by block ---- */
static int compare_owners(const void *left, const void *right)
{
    const ms_captured_block *a = left, *b = right;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return (a->path > b->path) - (a->path < b->path);
}

/* Largest first, then oldest first. */
static int compare_sizes(const void *left, const void *right)
{
    const ms_captured_block *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->made_at != b->made_at)
        return a->made_at < b->made_at ? -1 : 1;
    if (a->since_event != b->since_event)
        return a->since_event < b->since_event ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* The blocks of a device, or of all devices if it is -1, in this order; free them with PyMem_Free. NULL with an
 * exception set. */
static ms_captured_block *sort_blocks(const snapshot *self, long long device, int (*order)(const void *, const void *),
                                      size_t *found)
{
    ms_captured_block *blocks = PyMem_Malloc(((size_t)ms_cursor_blocks(self->cursor) + 1) * sizeof *blocks);
    if (!blocks) {
        PyErr_NoMemory();
        return NULL;
    }
    *found = 0;
    for (uint32_t at = 0; ms_cursor_block(self->cursor, &at, &blocks[*found]);)
        *found += device < 0 || blocks[*found].device == device;
    qsort(blocks, *found, sizeof *blocks, order);
    return blocks;
}

/* Bytes by category of the blocks from *at on that `compare` finds equal to the first; *at moves behind them. NULL with
 * an exception set. */
static PyObject *sum_next(const ms_captured_block *blocks, size_t found, size_t *at,
                          int (*compare)(const void *, const void *))
{
    const ms_captured_block *first = &blocks[*at];
    ms_sums sums = {{0}};
    for (; *at < found && compare(first, &blocks[*at]) == 0; ++*at)
        sums.of[blocks[*at].category] += (int64_t)blocks[*at].bytes;
    return msr_sums(&sums);
}

/* Bytes by category of the blocks that `compare` finds equal: a list of (device, owner or stack, sums). */
static PyObject *sum_alike(snapshot *self, int (*compare)(const void *, const void *), bool by_stack)
{
    size_t found;
    ms_captured_block *blocks = sort_blocks(self, -1, compare, &found);
    PyObject *list = blocks ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < found;) {
        const ms_captured_block *first = &blocks[i];
        PyObject *bytes = sum_next(blocks, found, &i, compare);
        uint32_t key = by_stack ? first->stack : first->path;
        if (!bytes || !msr_append(list, Py_BuildValue("(IIN)", first->device, key, bytes)))
            Py_CLEAR(list);
    }
    PyMem_Free(blocks);
    return list;
}

static PyObject *modules(snapshot *self, PyObject *unused)
{
    (void)unused;
    return sum_alike(self, compare_owners, false);
}

/* Bytes by kind; the first are those without one: 0. */
static PyObject *kinds_of(const snapshot *self, uint32_t device)
{
    ms_kind_sums kinds = ms_cursor_kinds(self->cursor, device);
    return msr_tuple_of(kinds.of, MS_KIND_COUNT);
}

static PyObject *kinds(snapshot *self, PyObject *unused)
{
    (void)unused;
    return list_by_device(self, kinds_of);
}

static PyObject *module_kinds(snapshot *self, PyObject *unused)
{
    (void)unused;
    size_t found;
    ms_captured_block *blocks = sort_blocks(self, -1, compare_owners, &found);
    PyObject *list = blocks ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < found;) {
        const ms_captured_block *first = &blocks[i];
        ms_kind_sums sums = {{0}};
        for (; i < found && compare_owners(first, &blocks[i]) == 0; i++)
            sums.of[blocks[i].kind] += blocks[i].kind ? (int64_t)blocks[i].bytes : 0;
        int64_t any = 0;
        for (int kind = 0; kind < MS_KIND_COUNT; kind++)
            any |= sums.of[kind];
        PyObject *bytes = any ? msr_tuple_of(sums.of, MS_KIND_COUNT) : NULL;
        if (any && (!bytes || !msr_append(list, Py_BuildValue("(IIN)", first->device, first->path, bytes))))
            Py_CLEAR(list);
    }
    PyMem_Free(blocks);
    return list;
}

static PyObject *block_of(const ms_captured_block *block)
{
    return Py_BuildValue("(KIOIOKKOIO)", (unsigned long long)block->bytes, block->device,
                         msr_categories[block->category], block->path, msr_phases[block->phase],
                         (unsigned long long)block->step, (unsigned long long)block->made_at,
                         block->outside ? Py_True : Py_False, block->slot, msr_kinds[block->kind]);
}

static PyObject *blocks(snapshot *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"limit", "device", NULL};
    PyObject *limit = Py_None, *device = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|OO:blocks", names, &limit, &device))
        return NULL;
    Py_ssize_t wanted = limit == Py_None ? PY_SSIZE_T_MAX : PyNumber_AsSsize_t(limit, NULL);
    long on = device == Py_None ? -1 : PyLong_AsLong(device);
    size_t found;
    ms_captured_block *sorted = PyErr_Occurred() ? NULL : sort_blocks(self, on, compare_sizes, &found);
    PyObject *list = sorted ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < found && (Py_ssize_t)i < wanted; i++)
        if (!msr_append(list, block_of(&sorted[i])))
            Py_CLEAR(list);
    PyMem_Free(sorted);
    return list;
}

static PyObject *block_stacks(snapshot *self, PyObject *args)
{
    long device;
    size_t found;
    if (!PyArg_ParseTuple(args, "l:block_stacks", &device))
        return NULL;
    ms_captured_block *sorted = sort_blocks(self, device, compare_sizes, &found);
    PyObject *list = sorted ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < found; i++)
        if (!msr_append(list, PyLong_FromUnsignedLong(sorted[i].stack)))
            Py_CLEAR(list);
    PyMem_Free(sorted);
    return list;
}

static int compare_stacks(const void *left, const void *right)
{
    const ms_captured_block *a = left, *b = right;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return (a->stack > b->stack) - (a->stack < b->stack);
}

static PyObject *stacks(snapshot *self, PyObject *unused)
{
    (void)unused;
    return sum_alike(self, compare_stacks, true);
}

static int compare_in_all(const void *left, const void *right)
{
    const ms_captured_block *a = left, *b = right;
    int order = compare_owners(a, b);
    if (order == 0)
        order = compare_stacks(a, b);
    if (order == 0)
        order = (a->category > b->category) - (a->category < b->category);
    return order ? order : (a->kind > b->kind) - (a->kind < b->kind);
}

static PyObject *alike(snapshot *self, PyObject *unused)
{
    (void)unused;
    size_t found;
    ms_captured_block *blocks = sort_blocks(self, -1, compare_in_all, &found);
    PyObject *list = blocks ? PyList_New(0) : NULL;
    for (size_t i = 0; list && i < found;) {
        const ms_captured_block *first = &blocks[i];
        unsigned long long bytes = 0;
        for (; i < found && compare_in_all(first, &blocks[i]) == 0; i++)
            bytes += blocks[i].bytes;
        if (!msr_append(list, Py_BuildValue("(IIIOOK)", first->device, first->path, first->stack,
                                            msr_categories[first->category], msr_kinds[first->kind], bytes)))
            Py_CLEAR(list);
    }
    PyMem_Free(blocks);
    return list;
}

static PyObject *threads(snapshot *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    uint32_t number;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    for (size_t i = 0; list && ms_cursor_thread(self->cursor, i, &number, &id, &phase, &path); i++)
        if (!msr_append(list, Py_BuildValue("(IKOI)", number, (unsigned long long)id, msr_phases[phase], path)))
            Py_CLEAR(list);
    return list;
}

static PyMethodDef methods[] = {
    {"totals", (PyCFunction)totals, METH_NOARGS, "totals($self)\n--\n\nBytes by category, for each device."},
    {"reserved", (PyCFunction)reserved, METH_NOARGS,
     "reserved($self)\n--\n\nBytes that each device's allocator had reserved."},
    {"outside", (PyCFunction)outside, METH_NOARGS,
     "outside($self)\n--\n\nBytes that are not from torch's allocators, for each device."},
    {"modules", (PyCFunction)modules, METH_NOARGS,
     "modules($self)\n--\n\nDevice, path and own bytes by category, of each module that holds any."},
    {"kinds", (PyCFunction)kinds, METH_NOARGS, "kinds($self)\n--\n\nBytes by kind, for each device."},
    {"module_kinds", (PyCFunction)module_kinds, METH_NOARGS,
     "module_kinds($self)\n--\n\nDevice, path and own bytes by kind, of each module that holds blocks with a kind."},
    {"blocks", (PyCFunction)(void (*)(void))blocks, METH_VARARGS | METH_KEYWORDS,
     "blocks($self, limit=None, device=None)\n--\n\nThe blocks, largest first."},
    {"block_stacks", (PyCFunction)block_stacks, METH_VARARGS,
     "block_stacks($self, device, /)\n--\n\nThe stacks that made the blocks, in the order of blocks(). Device -1: "
     "all."},
    {"stacks", (PyCFunction)stacks, METH_NOARGS,
     "stacks($self)\n--\n\nDevice, stack and bytes by category, of each stack that made blocks which are held."},
    {"alike", (PyCFunction)alike, METH_NOARGS,
     "alike($self)\n--\n\nDevice, path, stack, category, kind and bytes, of the blocks that are alike in all of "
     "these."},
    {"threads", (PyCFunction)threads, METH_NOARGS, "threads($self)\n--\n\nNumber, id, phase and path of each thread."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_snapshot_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.RawSnapshot",
    .tp_doc = "What was held at a moment of a capture.",
    .tp_basicsize = sizeof(snapshot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)snapshot_dealloc,
    .tp_methods = methods,
    .tp_getset = attributes,
};
