/* ledger.c - the types through which Python begins and ends a ledger, and reads its figures. */
#include "torch/memory.h"

#include "torch/names.h"

ms_ledger *mst_ledger;
bool mst_by_dispatcher;
_Atomic(ms_ledger *) mst_blocks_to, mst_gradients_to;

static ms_ledger *idle; /* never attached */

ms_ledger *mst_target(void)
{
    return mst_ledger ? mst_ledger : idle;
}

typedef struct ledger {
    PyObject_HEAD ms_ledger *ledger;
    bool begun, dispatcher;
} ledger;

ms_ledger *mst_ledger_of(PyObject *of)
{
    return ((ledger *)of)->ledger;
}

/* ---- when calls begin ---- */
static uint64_t replaced; /* ms_ledger_parameters_dropped when modules were claimed last */

static bool seeking;   /* an optimizer, to tell micro-batches from iterations */
static uint32_t roots; /* called since then */

/* At the first call of a root, the second, the fourth...: it may be made late, and looking takes long. */
static void seek_optimizer(void)
{
    roots++;
    if (roots & (roots - 1))
        return;
    PyObject *callback = mst_dynamo_off();
    PyObject *steps = PyImport_ImportModule("modscope._optimizer_steps");
    PyObject *there = steps ? PyObject_CallMethod(steps, "has_optimizer", NULL) : NULL;
    if (there == Py_True) {
        seeking = false;
        ms_ledger_expect_optimizer(mst_target());
    }
    Py_XDECREF(there);
    Py_XDECREF(steps);
    mst_forget_error();
    mst_dynamo_on(callback);
}

/* Modules are claimed when they are first known. They are claimed again at the call of a root when
 * some of their parameters had no memory yet, and when a parameter's or buffer's memory was
 * given back. */
void mst_memory_call(ms_thread *thread)
{
    mst_steps_heal(thread);
    if (!mst_open) {
        uint64_t now = ms_ledger_parameters_dropped(mst_target());
        if (mst_claims_unborn || now != replaced)
            mst_claims_due = true;
        replaced = now;
        if (UNLIKELY(seeking))
            seek_optimizer();
    }
    if (UNLIKELY(mst_claims_due)) {
        mst_claims_at_call = true;
        mst_claim_modules();
        mst_claims_at_call = false;
    }
}

/* ---- a ledger ---- */
static PyObject *ledger_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, ":Ledger", names))
        return NULL;
    ledger *self = (ledger *)type->tp_alloc(type, 0);
    if (self && !(self->ledger = ms_ledger_open(mst_watch))) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void end(ledger *self)
{
    if (!self->begun)
        return;
    self->begun = seeking = false;
    atomic_store(&mst_gradients_to, NULL);
    if (!self->dispatcher)
        mst_blocks_off();
    mst_steps_off();
    ms_ledger_detach(self->ledger);
    mst_ledger = NULL;
    mst_claims_census(NULL);
    mst_claims_end_hooks();
    mst_dispatch_end();
}

static void ledger_dealloc(ledger *self)
{
    end(self);
    if (self->ledger)
        ms_ledger_close(self->ledger);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *ledger_begin(ledger *self, PyObject *args)
{
    int dispatcher;
    PyObject *census;
    if (!PyArg_ParseTuple(args, "pO", &dispatcher, &census))
        return NULL;
    if (mst_ledger) {
        PyErr_SetString(PyExc_RuntimeError, "a ledger has begun already");
        return NULL;
    }
    if (mst_steps_on() != 0)
        return NULL;
    ms_ledger_clear(self->ledger);
    ms_ledger_attach(self->ledger);
    mst_ledger = self->ledger;
    mst_by_dispatcher = self->dispatcher = dispatcher;
    replaced = ms_ledger_parameters_dropped(self->ledger);
    mst_claims_census(census == Py_None ? NULL : census);
    self->begun = true;
    atomic_store(&mst_gradients_to, self->ledger);
    if ((dispatcher ? mst_dispatch_begin() : mst_blocks_on(self->ledger)) == 0)
        Py_RETURN_NONE;
    end(self);
    return NULL;
}

static PyObject *ledger_end(ledger *self, PyObject *unused)
{
    (void)unused;
    end(self);
    Py_RETURN_NONE;
}

/* claim(tensors, optimizers): who holds what, from the objects themselves, and nothing else does. */
static PyObject *ledger_claim(ledger *self, PyObject *args)
{
    PyObject *tensors, *given;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyList_Type, &given))
        return NULL;
    if (!self->begun)
        Py_RETURN_NONE;
    if (mst_mine)
        mst_steps_heal(mst_mine);
    ms_claims_begin(self->ledger);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++)
        mst_claim(PyList_GET_ITEM(tensors, i), MS_OTHER, MS_GLOBAL);
    mst_claim_modules();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); i++)
        if (mst_optimizer_add(PyList_GET_ITEM(given, i)) != 0)
            return NULL;
    PyObject *optimizers = mst_optimizers();
    if (!optimizers)
        return NULL;
    if (PyList_GET_SIZE(optimizers))
        ms_ledger_expect_optimizer(self->ledger);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_optimizer(PyList_GET_ITEM(optimizers, i));
    Py_DECREF(optimizers);
    if (mst_by_dispatcher)
        mst_dispatch_measure();
    ms_claims_end(self->ledger);
    Py_RETURN_NONE;
}

/* ---- figures ---- */
static PyObject *sums_by_device(ms_ledger *from, ms_sums (*read)(ms_ledger *, uint32_t))
{
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(from);
    for (uint32_t device = 0; list && device < count; device++) {
        ms_sums sums = read(from, device);
        if (mst_append(list, mst_tuple_of_sums(&sums)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *ledger_now(ledger *self, PyObject *unused)
{
    (void)unused;
    return sums_by_device(self->ledger, ms_ledger_now);
}

static PyObject *ledger_outside(ledger *self, PyObject *unused)
{
    (void)unused;
    return sums_by_device(self->ledger, ms_ledger_outside);
}

static PyObject *ledger_modules(ledger *self, PyObject *unused)
{
    (void)unused;
    return mst_sums_by_path(self->ledger, NULL);
}

/* ---- moments ---- */

/* Append (moment, when, [sums by device]) for every moment of a path. */
static int append_moments(PyObject *list, ms_ledger *from, ms_path path)
{
    uint32_t devices = ms_ledger_devices(from);
    for (int moment = 0; moment < MS_CALL_STATE_COUNT; moment++) {
        size_t count = ms_call_snapshot_count(from, path, (ms_call_state)moment);
        for (size_t i = 0; i < count; i++) {
            uint64_t when = 0;
            PyObject *by_device = PyList_New(0);
            for (uint32_t device = 0; by_device && device < devices; device++) {
                ms_sums sums = {{0}};
                ms_call_snapshot_at(from, path, (ms_call_state)moment, i, device, &sums, &when);
                if (mst_append(by_device, mst_tuple_of_sums(&sums)) != 0)
                    Py_CLEAR(by_device);
            }
            const char *name = ms_call_state_name((ms_call_state)moment);
            if (!by_device || mst_append(list, Py_BuildValue("(sKN)", name, when, by_device)) != 0)
                return -1;
        }
    }
    return 0;
}

static int append_path(PyObject *by_module, ms_ledger *from, const struct mst_module *known, ms_path path)
{
    PyObject *moments = PyList_New(0);
    if (!moments || append_moments(moments, from, path) != 0) {
        Py_XDECREF(moments);
        return -1;
    }
    if (PyList_GET_SIZE(moments) == 0) {
        Py_DECREF(moments);
        return 0;
    }
    uint64_t input, output;
    ms_call_sizes(from, path, &input, &output);
    PyObject *fqn = mst_fqn(path);
    return fqn ? mst_append(by_module, Py_BuildValue("(OONKK)", known->module, fqn, moments, input, output))
               : (Py_DECREF(moments), -1);
}

/* stats(tracker): [(module, fqn, moments, input, output)] of the calls that the ledger knows,
 * of modules alive; a module called in several places comes several times. */
static PyObject *ledger_stats(ledger *self, PyObject *tracker)
{
    if (!PyObject_TypeCheck(tracker, &mst_tracker_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Tracker");
        return NULL;
    }
    mst_book *book = mst_tracker_book(tracker);
    PyObject *list = PyList_New(0);
    bool collecting = mst_stop_collecting();
    for (size_t i = 0; list && book && i < book->by_path.room; i++) {
        const struct mst_entry *entry = &book->by_path.entries[i];
        const struct mst_module *known = (struct mst_module *)(uintptr_t)entry->value;
        if (entry->a && mst_alive(known) && append_path(list, self->ledger, known, (ms_path)(entry->a - 1)) != 0)
            Py_CLEAR(list);
    }
    mst_collect_again(collecting);
    return list;
}

/* ---- what some tensors hold ---- */
struct seen {
    ms_ledger *from;
    bool dispatcher;
    struct mst_map storages;
    uint64_t bytes;
};

static int add_once(PyObject *tensor, void *context)
{
    struct seen *seen = context;
    struct mst_storage storage;
    if (!mst_storage_known() || !mst_storage_of(mst_impl_of(tensor), &storage))
        return 0;
    uint64_t address = seen->dispatcher ? storage.storage : storage.data;
    if (!address || mst_map_get(&seen->storages, address, 0))
        return 0;
    if (!mst_map_set(&seen->storages, address, 0, 1))
        return PyErr_NoMemory(), -1;
    seen->bytes += ms_block_bytes(seen->from, &address, 1);
    return 0;
}

static PyObject *ledger_held(ledger *self, PyObject *tensors)
{
    struct seen seen = {.from = self->ledger, .dispatcher = self->dispatcher};
    int error = PyList_Check(tensors) ? 0 : -1;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(tensors); i++)
        if (PyObject_TypeCheck(PyList_GET_ITEM(tensors, i), mst_torch.tensor))
            error = mst_inner_tensors(PyList_GET_ITEM(tensors, i), add_once, &seen);
    mst_map_clear(&seen.storages);
    if (error && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors");
    return error ? NULL : PyLong_FromUnsignedLongLong(seen.bytes);
}

static PyObject *ledger_seek_optimizer(ledger *self, PyObject *unused)
{
    (void)unused;
    seeking = self->begun;
    roots = 0;
    Py_RETURN_NONE;
}

static PyObject *ledger_lost(ledger *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ms_ledger_lost(self->ledger));
}

static PyObject *ledger_time(ledger *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ms_ledger_time(self->ledger));
}

/* backward(tracker, module, begins): where nodes are not seen, hooks tell. */
static PyObject *ledger_backward(ledger *self, PyObject *args)
{
    PyObject *tracker, *module;
    int begins;
    if (!PyArg_ParseTuple(args, "O!Op", &mst_tracker_type, &tracker, &module, &begins))
        return NULL;
    mst_book *book = self->begun ? mst_tracker_book(tracker) : NULL;
    const struct mst_module *known = book ? mst_book_find(book, module) : NULL;
    ms_thread *thread = known && known->called ? mst_here() : NULL;
    if (thread)
        begins ? ms_backward_enter(thread, known->path) : ms_backward_leave(thread, known->path);
    Py_RETURN_NONE;
}

static PyMethodDef ledger_methods[] = {
    {"begin", (PyCFunction)ledger_begin, METH_VARARGS,
     "Take blocks from the dispatcher or the allocators; sizes of what is on other devices already, or None."},
    {"end", (PyCFunction)ledger_end, METH_NOARGS, "Take no more; the figures stay."},
    {"claim", (PyCFunction)ledger_claim, METH_VARARGS, "Read off the objects which blocks they hold."},
    {"now", (PyCFunction)ledger_now, METH_NOARGS, "Bytes by device and category."},
    {"outside", (PyCFunction)ledger_outside, METH_NOARGS, "The part of now that no allocator of torch made."},
    {"modules", (PyCFunction)ledger_modules, METH_NOARGS, "(device, fqn, bytes by category) of all that hold any."},
    {"stats", (PyCFunction)ledger_stats, METH_O, "(module, fqn, moments, input, output) of all that were called."},
    {"held", (PyCFunction)ledger_held, METH_O, "The bytes of the blocks of some tensors, each block once."},
    {"backward", (PyCFunction)ledger_backward, METH_VARARGS, "A module's backward begins or ends."},
    {"seek_optimizer", (PyCFunction)ledger_seek_optimizer, METH_NOARGS,
     "When roots are called, see whether there is an optimizer whose steps are iterations."},
    {"lost", (PyCFunction)ledger_lost, METH_NOARGS, "How much could not be kept for want of memory."},
    {"time", (PyCFunction)ledger_time, METH_NOARGS, "A number that grows with every event."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_ledger_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Ledger",
    .tp_doc = "Who holds how many bytes.",
    .tp_basicsize = sizeof(ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = ledger_new,
    .tp_dealloc = (destructor)ledger_dealloc,
    .tp_methods = ledger_methods,
};

int mst_ledger_init(void)
{
    idle = ms_ledger_open(mst_watch);
    if (!idle)
        return PyErr_NoMemory(), -1;
    return PyType_Ready(&mst_ledger_type) != 0 || PyType_Ready(&mst_viewer_type) != 0 ? -1 : 0;
}
