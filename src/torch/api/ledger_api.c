/* ledger_api.c - the type through which Python attaches a ledger and reads its figures. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/lines/lines.h"
#include "torch/names/names.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

static ms_ledger *unattached; /* never attached, so it ignores blocks */

ms_ledger *mst_target_ledger(void)
{
    return mst.ledger ? mst.ledger : unattached;
}

typedef struct ledger {
    PyObject_HEAD
    ms_ledger *ledger;
    bool attached;
    bool dispatcher; /* the source of its blocks is the dispatcher */
} ledger;

ms_ledger *mst_ledger_of(PyObject *object)
{
    return ((ledger *)object)->ledger;
}

/* ---- a ledger ---- */
static PyObject *ledger_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, named, ":Ledger", names))
        return NULL;
    ledger *self = (ledger *)type->tp_alloc(type, 0);
    if (self && !(self->ledger = ms_ledger_open(mst.watch))) {
        Py_CLEAR(self);
        PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void detach_ledger(ledger *self)
{
    if (!self->attached)
        return;
    self->attached = false;
    mst_claims_seek(false);
    atomic_store(&mst.gradients_ledger, NULL);
    mst_saved_restore();
    if (!self->dispatcher)
        mst_blocks_restore();
    mst_optimizer_hooks_remove();
    mst_building_hooks_remove();
    mst_fsdp_restore();
    mst_ddp_restore();
    mst_fsdp_states_detach();
    ms_ledger_detach(self->ledger);
    mst.ledger = NULL;
    mst_existing_blocks_set(NULL);
    mst_outside_inputs_clear();
    mst_gradient_hooks_remove();
    if (self->dispatcher) {
        mst_resizes_restore();
        mst_storages_end();
    }
}

static void ledger_dealloc(ledger *self)
{
    detach_ledger(self);
    if (self->ledger)
        ms_ledger_close(self->ledger);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *ledger_begin(ledger *self, PyObject *args)
{
    int dispatcher;
    PyObject *existing;
    if (!PyArg_ParseTuple(args, "pO", &dispatcher, &existing))
        return NULL;
    if (mst.ledger) {
        PyErr_SetString(PyExc_RuntimeError, "another ledger is attached: end it first");
        return NULL;
    }
    if (mst_optimizer_hooks_register() != 0)
        return NULL;
    if (mst_building_hooks_register() != 0) {
        mst_optimizer_hooks_remove();
        return NULL;
    }
    ms_ledger_clear(self->ledger);
    ms_ledger_attach(self->ledger);
    mst.ledger = self->ledger;
    mst.by_dispatcher = self->dispatcher = dispatcher;
    mst_claims_at_call_begin();
    mst_gradients_begin();
    mst_existing_blocks_set(existing == Py_None ? NULL : existing);
    self->attached = true;
    atomic_store(&mst.gradients_ledger, self->ledger);
    if (dispatcher) {
        mst_storages_begin();
        mst_resizes_intercept();
    }
    if (dispatcher || mst_blocks_intercept(self->ledger) == 0) {
        mst_saved_intercept(self->ledger);
        mst_fsdp_intercept();
        mst_ddp_intercept();
        Py_RETURN_NONE;
    }
    detach_ledger(self);
    return NULL;
}

static PyObject *ledger_end(ledger *self, PyObject *unused)
{
    (void)unused;
    detach_ledger(self);
    Py_RETURN_NONE;
}

/* claim(tensors, optimizers, inputs=[]): claim what all known objects hold. A Parameter, Buffer, Gradient or Optstate
 * that none of them holds becomes Other. */
static PyObject *ledger_claim(ledger *self, PyObject *args)
{
    PyObject *tensors, *given_optimizers, *inputs = NULL;
    if (!PyArg_ParseTuple(args, "O!O!|O!", &PyList_Type, &tensors, &PyList_Type, &given_optimizers, &PyList_Type,
                          &inputs))
        return NULL;
    if (!self->attached)
        Py_RETURN_NONE;
    if (mst_this_thread)
        mst_optimizer_steps_end_abandoned(mst_this_thread);
    ms_claims_begin(self->ledger);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); i++)
        mst_claim_object(PyList_GET_ITEM(tensors, i), MS_OTHER, MS_GLOBAL);
    for (Py_ssize_t i = 0; inputs && i < PyList_GET_SIZE(inputs); i++)
        mst_claim_tensor_kind(PyList_GET_ITEM(inputs, i), MS_KIND_INPUT, MS_GLOBAL);
    mst_claim_modules();
    mst_outside_inputs_claim();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given_optimizers); i++)
        if (mst_optimizer_add(PyList_GET_ITEM(given_optimizers, i)) != 0)
            return NULL;
    PyObject *optimizers = mst_optimizers();
    if (!optimizers)
        return NULL;
    if (PyList_GET_SIZE(optimizers))
        ms_ledger_expect_optimizer(self->ledger);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_unowned_parameters(PyList_GET_ITEM(optimizers, i));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(optimizers); i++)
        mst_claim_optimizer(PyList_GET_ITEM(optimizers, i));
    Py_DECREF(optimizers);
    if (mst.by_dispatcher)
        mst_dispatch_update_sizes();
    ms_claims_end(self->ledger);
    Py_RETURN_NONE;
}

/* ---- figures ---- */
static PyObject *sums_by_device(ms_ledger *of, ms_sums (*read)(ms_ledger *, uint32_t))
{
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(of);
    for (uint32_t device = 0; list && device < count; device++) {
        ms_sums sums = read(of, device);
        if (mst_append_new(list, mst_tuple_of_sums(&sums)) != 0)
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

static PyObject *ledger_kinds(ledger *self, PyObject *unused)
{
    (void)unused;
    PyObject *list = PyList_New(0);
    uint32_t count = ms_ledger_devices(self->ledger);
    for (uint32_t device = 0; list && device < count; device++) {
        ms_kind_sums kinds = ms_ledger_kinds(self->ledger, device);
        if (mst_append_new(list, mst_tuple_of_kinds(&kinds)) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *ledger_module_kinds(ledger *self, PyObject *unused)
{
    (void)unused;
    return mst_kinds_by_path(self->ledger, NULL);
}

/* ---- call snapshots ---- */

/* Append (call state, time, [sums by device]) for every call snapshot of a path. */
static int append_call_snapshots(PyObject *list, ms_ledger *of, ms_path path)
{
    uint32_t devices = ms_ledger_devices(of);
    for (int state = 0; state < MS_CALL_STATE_COUNT; state++) {
        size_t count = ms_call_snapshot_count(of, path, (ms_call_state)state);
        for (size_t i = 0; i < count; i++) {
            uint64_t time = 0;
            PyObject *by_device = PyList_New(0);
            for (uint32_t device = 0; by_device && device < devices; device++) {
                ms_sums sums = {{0}};
                ms_call_snapshot_at(of, path, (ms_call_state)state, i, device, &sums, &time);
                if (mst_append_new(by_device, mst_tuple_of_sums(&sums)) != 0)
                    Py_CLEAR(by_device);
            }
            const char *name = ms_call_state_name((ms_call_state)state);
            if (!by_device || mst_append_new(list, Py_BuildValue("(sKN)", name, time, by_device)) != 0)
                return -1;
        }
    }
    return 0;
}

static int append_path_stats(PyObject *by_module, ms_ledger *of, const struct mst_module *known, ms_path path)
{
    PyObject *snapshots = PyList_New(0);
    if (!snapshots || append_call_snapshots(snapshots, of, path) != 0) {
        Py_XDECREF(snapshots);
        return -1;
    }
    if (PyList_GET_SIZE(snapshots) == 0) {
        Py_DECREF(snapshots);
        return 0;
    }
    uint64_t input, output;
    ms_call_sizes(of, path, &input, &output);
    PyObject *fqn = mst_path_fqn(path);
    return fqn ? mst_append_new(by_module, Py_BuildValue("(OONKK)", known->module, fqn, snapshots, input, output))
               : (Py_DECREF(snapshots), -1);
}

/* stats(tracker): [(module, fqn, call snapshots, input, output)] of the modules alive that were called.
 * A module that has several paths is in the list several times. */
static PyObject *ledger_stats(ledger *self, PyObject *tracker)
{
    if (!PyObject_TypeCheck(tracker, &mst_tracker_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Tracker");
        return NULL;
    }
    mst_registry *registry = mst_tracker_registry(tracker);
    PyObject *list = PyList_New(0);
    bool gc_enabled = mst_gc_pause();
    ms_path paths = registry ? (ms_path)ms_path_count(mst.watch) : 0;
    for (ms_path path = 0; list && path < paths; path++) {
        const struct mst_module *known = ms__map_pointer(&registry->by_path, path);
        if (known && mst_module_is_alive(known) && append_path_stats(list, self->ledger, known, path) != 0)
            Py_CLEAR(list);
    }
    mst_gc_resume(gc_enabled);
    return list;
}

/* ---- the bytes of some tensors ---- */
struct tensor_bytes {
    ms_ledger *ledger;
    bool dispatcher;
    struct ms__map counted; /* a block's address -> 1 */
    uint64_t bytes;
};

static int add_tensor_bytes(PyObject *tensor, void *context)
{
    struct tensor_bytes *sum = context;
    struct mst_storage storage;
    if (!mst_layout_is_known() || !mst_read_storage(mst_impl_of(tensor), &storage))
        return 0;
    uint64_t address = sum->dispatcher ? storage.storage : storage.data;
    if (!address || ms__map_has(&sum->counted, address))
        return 0;
    if (!ms__map_set(&sum->counted, address, 1))
        return PyErr_NoMemory(), -1;
    sum->bytes += ms_block_bytes(sum->ledger, &address, 1);
    return 0;
}

static PyObject *ledger_held(ledger *self, PyObject *tensors)
{
    struct tensor_bytes sum = {.ledger = self->ledger, .dispatcher = self->dispatcher};
    int error = PyList_Check(tensors) ? 0 : -1;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(tensors); i++)
        if (PyObject_TypeCheck(PyList_GET_ITEM(tensors, i), mst.torch.tensor))
            error = mst_visit_inner_tensors(PyList_GET_ITEM(tensors, i), add_tensor_bytes, &sum);
    ms__map_clear(&sum.counted);
    if (error && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors");
    return error ? NULL : PyLong_FromUnsignedLongLong(sum.bytes);
}

static PyObject *ledger_seek(ledger *self, PyObject *unused)
{
    (void)unused;
    mst_claims_seek(self->attached);
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

/* forward_stack(address): the frames that created the backward node which made the block, innermost first. */
static PyObject *ledger_forward_stack(ledger *self, PyObject *address)
{
    uint64_t at = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    ms_frame frame = {.outer = ms_block_stack(self->ledger, at)};
    while (!frame.forward && ms_stack_frame(mst.watch, frame.outer, &frame))
        ;
    return mst_stack_list(frame.forward);
}

/* stack(address): the frames of the stack that made the block, innermost first. */
static PyObject *ledger_stack(ledger *self, PyObject *address)
{
    unsigned long long at = PyLong_AsUnsignedLongLong(address);
    return PyErr_Occurred() ? NULL : mst_stack_list(ms_block_stack(self->ledger, at));
}

static PyObject *ledger_keep_call_snapshots(ledger *self, PyObject *keep)
{
    ms_ledger_keep_call_snapshots(self->ledger, keep == Py_True);
    Py_RETURN_NONE;
}

/* backward(tracker, module, begins): a module's backward begins or ends, where nodes are not intercepted. */
static PyObject *ledger_backward(ledger *self, PyObject *args)
{
    PyObject *tracker, *module;
    int begins;
    if (!PyArg_ParseTuple(args, "O!Op", &mst_tracker_type, &tracker, &module, &begins))
        return NULL;
    mst_registry *registry = self->attached ? mst_tracker_registry(tracker) : NULL;
    const struct mst_module *known = registry ? mst_registry_find(registry, module) : NULL;
    ms_thread *thread = known && known->called ? mst_thread_here() : NULL;
    if (thread)
        begins ? ms_backward_enter(thread, known->path) : ms_backward_leave(thread, known->path);
    Py_RETURN_NONE;
}

static PyMethodDef ledger_methods[] = {
    {"begin", (PyCFunction)ledger_begin, METH_VARARGS,
     "Attach: the source of blocks is the dispatcher or the allocators. Takes the sizes of the existing blocks on\n"
     "other devices by address, or None."},
    {"end", (PyCFunction)ledger_end, METH_NOARGS, "Detach; the figures stay."},
    {"claim", (PyCFunction)ledger_claim, METH_VARARGS, "Claim the blocks that all known objects hold."},
    {"now", (PyCFunction)ledger_now, METH_NOARGS, "Bytes by device and category."},
    {"outside", (PyCFunction)ledger_outside, METH_NOARGS,
     "The part of now() that did not come from torch's allocators."},
    {"modules", (PyCFunction)ledger_modules, METH_NOARGS,
     "(device, fqn, bytes by category) of the modules that hold memory."},
    {"kinds", (PyCFunction)ledger_kinds, METH_NOARGS, "Bytes by device and kind."},
    {"module_kinds", (PyCFunction)ledger_module_kinds, METH_NOARGS,
     "(device, fqn, bytes by kind) of the modules that hold blocks with a kind."},
    {"stats", (PyCFunction)ledger_stats, METH_O,
     "(module, fqn, call snapshots, input, output) of the modules that were called."},
    {"keep_call_snapshots", (PyCFunction)ledger_keep_call_snapshots, METH_O,
     "Whether stats() has the calls from now on. Without them, calls cost less."},
    {"held", (PyCFunction)ledger_held, METH_O, "The bytes of the blocks of some tensors, each block once."},
    {"backward", (PyCFunction)ledger_backward, METH_VARARGS, "A module's backward begins or ends."},
    {"seek", (PyCFunction)ledger_seek, METH_NOARGS,
     "Look for an optimizer at root calls; if there is one, its steps are the training steps."},
    {"lost", (PyCFunction)ledger_lost, METH_NOARGS, "How many events were lost because memory ran out."},
    {"forward_stack", (PyCFunction)ledger_forward_stack, METH_O,
     "The frames that created the backward node which made the block at this address."},
    {"stack", (PyCFunction)ledger_stack, METH_O, "The frames of the stack that made the block at this address."},
    {"time", (PyCFunction)ledger_time, METH_NOARGS, "A number that grows with every event."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_ledger_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Ledger",
    .tp_doc = "Counts blocks by device, owner and category.",
    .tp_basicsize = sizeof(ledger),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = ledger_new,
    .tp_dealloc = (destructor)ledger_dealloc,
    .tp_methods = ledger_methods,
};

int mst_ledger_init(void)
{
    unattached = ms_ledger_open(mst.watch);
    if (!unattached)
        return PyErr_NoMemory(), -1;
    return PyType_Ready(&mst_ledger_type) != 0 || PyType_Ready(&mst_peak_tracker_type) != 0 ? -1 : 0;
}
