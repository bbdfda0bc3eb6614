/* dispatch_blocks.c - the dispatcher as the source of blocks: each storage that an operator
 * returns is a block, and the address of its StorageImpl is the block's address.
 *
 * This is for fake tensors, which have no memory, and for platforms where the allocators cannot
 * be intercepted. Python may run here: a TorchDispatchMode calls note_result. */
#include "torch/dispatch_blocks.h"

#include "torch/api.h"
#include "torch/block_stacks.h"
#include "torch/hash_map.h"
#include "torch/position.h"
#include "torch/run_python.h"
#include "torch/running_operator.h"
#include "torch/tensor_layout.h"
#include "torch/visit_tensors.h"

static PyObject *live_storages;  /* a dict: StorageImpl -> weak reference to its Python object; NULL: not in use */
static PyObject *device_numbers; /* a dict: torch.device -> the ledger's number; NULL: none yet */

enum { CUDA_ROUNDING = 512 }; /* torch's CUDA allocator rounds sizes up to a multiple of this */

static PyObject *storage_died(PyObject *address, PyObject *ref)
{
    /* Another storage may have this address by now, with a weak reference of its own. */
    if (live_storages && PyDict_GetItemWithError(live_storages, address) == ref) {
        if (mst.ledger && mst.by_dispatcher)
            ms_block_drop(mst_target_ledger(), PyLong_AsUnsignedLongLong(address));
        PyDict_DelItem(live_storages, address);
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef storage_died_def = {"storage_died", storage_died, METH_O, NULL};

int mst_dispatch_begin(void)
{
    Py_XSETREF(live_storages, PyDict_New());
    return live_storages ? 0 : -1;
}

void mst_dispatch_end(void)
{
    Py_CLEAR(live_storages);
}

/* The ledger's number of a torch.device; -1 with an error set. Python numbers each device once, and may reject it. */
static long number_of_device(PyObject *device)
{
    if (!device_numbers && !(device_numbers = PyDict_New()))
        return -1;
    PyObject *number = Py_XNewRef(PyDict_GetItemWithError(device_numbers, device));
    if (!number && !PyErr_Occurred()) {
        number = mst_run_python(MST_PY_NUMBER_DEVICE, device);
        if (number && PyDict_SetItem(device_numbers, device, number) != 0)
            Py_CLEAR(number);
    }
    long value = number ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return value;
}

static long device_of(PyObject *tensor, bool *cuda)
{
    PyObject *device = PyObject_GetAttr(tensor, mst.interned.device);
    long number = device ? number_of_device(device) : -1;
    PyObject *type = number >= 0 ? PyObject_GetAttrString(device, "type") : NULL;
    *cuda = type && PyUnicode_CompareWithASCIIString(type, "cuda") == 0;
    Py_XDECREF(device);
    Py_XDECREF(type);
    return number;
}

/* Drop the block when the storage dies. Once a storage has a Python object, it lives as long as the storage. */
static int watch_storage(PyObject *tensor, uint64_t storage)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *callback = address ? PyCFunction_New(&storage_died_def, address) : NULL;
    PyObject *object = callback ? PyObject_CallMethodNoArgs(tensor, mst.interned.untyped_storage) : NULL;
    PyObject *ref = object ? PyWeakref_NewRef(object, callback) : NULL;
    int error = ref ? 0 : -1;
    if (ref && live_storages) /* NULL: Python code has detached the ledger meanwhile */
        error = PyDict_SetItem(live_storages, address, ref);
    Py_XDECREF(ref);
    Py_XDECREF(object);
    Py_XDECREF(callback);
    Py_XDECREF(address);
    return error;
}

static bool is_live_storage(uint64_t storage)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *ref = address && live_storages ? PyDict_GetItemWithError(live_storages, address) : NULL;
    Py_XDECREF(address);
    PyErr_Clear();
    return ref && ((PyWeakReference *)ref)->wr_object != Py_None;
}

static uint64_t round_bytes(uint64_t bytes, bool cuda)
{
    return cuda ? (bytes + CUDA_ROUNDING - 1) / CUDA_ROUNDING * CUDA_ROUNDING : bytes;
}

void mst_dispatch_update_sizes(void)
{
    PyObject *items = live_storages ? PyDict_Items(live_storages) : NULL;
    for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items); i++) {
        PyObject *ref = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1);
        uint64_t storage = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0));
        if (((PyWeakReference *)ref)->wr_object == Py_None)
            continue;
        int64_t bytes = (int64_t)mst_read_word(storage, mst.layout.size);
        uint32_t device;
        if (bytes >= 0 && ms_block_device(mst_target_ledger(), storage, &device) == MS_OK)
            ms_block_resize(mst_target_ledger(), storage,
                            round_bytes((uint64_t)bytes, mst_device_type(device) == MST_CUDA));
        else if (bytes > 0) /* It was empty, so it was no block. */
            ms_block_add_as(mst_target_ledger(), mst_this_thread, storage, (uint64_t)bytes, 0, MS_OTHER, MS_GLOBAL,
                            false);
    }
    Py_XDECREF(items);
    PyErr_Clear();
}

/* What a new block is. */
struct block_kind {
    bool from_operator;   /* an operator returned it, else a known object holds it */
    ms_phase phase;       /* if from_operator */
    ms_category category; /* if not */
    ms_path path;
};

/* Add a tensor's storage as a block, or update the size of the block that it is. 0, or -1 with an error set. */
static int add_storage(PyObject *tensor, const struct mst_storage *storage, struct block_kind kind)
{
    bool cuda;
    long device = device_of(tensor, &cuda);
    if (device < 0)
        return -1;
    uint64_t bytes = round_bytes((uint64_t)storage->bytes, cuda);
    bool known = is_live_storage(storage->storage);
    if (known && ms_block_resize(mst_target_ledger(), storage->storage, bytes) == MS_OK)
        return 0;
    if (!known && watch_storage(tensor, storage->storage) != 0)
        return -1;
    if (kind.from_operator)
        ms_block_add_in_at(mst_target_ledger(), kind.phase, kind.path, mst_stack_here(), storage->storage, bytes,
                           (uint32_t)device);
    else
        ms_block_add_as(mst_target_ledger(), NULL, storage->storage, bytes, (uint32_t)device, kind.category, kind.path,
                        false);
    return 0;
}

int mst_dispatch_claim(PyObject *tensor, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (!live_storages || !mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    if (is_live_storage(storage.storage) &&
        ms_block_claim(mst_target_ledger(), storage.storage, category, path) == MS_OK)
        return 0;
    return add_storage(tensor, &storage, (struct block_kind){.category = category, .path = path});
}

/* An operator that has returned. */
struct operator_run {
    ms_phase phase;
    ms_path path;
    PyObject *args, *kwargs;
    struct mst_map inputs; /* StorageImpl of its arguments -> 1; filled when it is first needed */
    bool inputs_listed;
};

static int add_input_storage(PyObject *tensor, void *context)
{
    struct operator_run *run = context;
    struct mst_storage storage;
    if (mst_read_storage(mst_impl_of(tensor), &storage))
        mst_map_set(&run->inputs, storage.storage, 0, 1);
    return 0;
}

/* Whether a storage existed before the operator ran, because one of its arguments has it. */
static bool is_input_storage(struct operator_run *run, uint64_t storage)
{
    bool first = !run->inputs_listed;
    run->inputs_listed = true;
    if (first && (mst_visit_tensors(run->args, add_input_storage, run) != 0 ||
                  mst_visit_tensors(run->kwargs, add_input_storage, run) != 0))
        mst_clear_error();
    return mst_map_get(&run->inputs, storage, 0) != NULL;
}

static int add_result_storage(PyObject *tensor, void *context)
{
    struct operator_run *run = context;
    struct mst_storage storage;
    if (!mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes <= 0)
        return 0;
    if (!is_live_storage(storage.storage) && is_input_storage(run, storage.storage))
        return 0;
    return add_storage(tensor, &storage,
                       (struct block_kind){.from_operator = true, .phase = run->phase, .path = run->path});
}

static int add_result(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, add_result_storage, context);
}

static PyObject *note_result(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "note_result takes four arguments: operator, result, args, kwargs");
        return NULL;
    }
    if (!mst.ledger || !mst.by_dispatcher || !live_storages)
        Py_RETURN_NONE;
    struct operator_run run = {.args = given[2], .kwargs = given[3]};
    run.path = mst_position_innermost(&run.phase);
    const char *outer = mst_running_operator;
    mst_running_operator = mst_operator_name(given[0]);
    int error = mst_visit_tensors(given[1], add_result, &run);
    mst_running_operator = outer;
    mst_map_clear(&run.inputs);
    return error ? NULL : Py_NewRef(Py_None);
}

PyMethodDef mst_dispatch_methods[] = {
    {"note_result", (PyCFunction)(void (*)(void))note_result, METH_FASTCALL,
     "note_result(operator, result, args, kwargs): add the storages of the tensors that the operator returned as "
     "blocks, except those of its arguments."},
    {NULL, NULL, 0, NULL},
};
