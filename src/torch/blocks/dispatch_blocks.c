/* dispatch_blocks.c - the dispatcher as the source of blocks: each storage that an operator
 * returns is a block, and the address of its StorageImpl is the block's address.
 *
 * This is for fake tensors, which have no memory, and for platforms where the allocators cannot
 * be intercepted. Python may run here: a TorchDispatchMode calls run_operator. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

#include "base/map.h"

#include <string.h>

static PyObject *device_numbers; /* a dict: torch.device -> the ledger's number; NULL: none yet */

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

static long device_of(PyObject *tensor)
{
    PyObject *device = PyObject_GetAttr(tensor, mst.interned.device);
    long number = device ? number_of_device(device) : -1;
    Py_XDECREF(device);
    return number;
}

/* What a new block is. */
struct block_kind {
    bool from_operator;   /* an operator made it, else a known object holds it */
    ms_phase phase;       /* if from_operator */
    ms_category category; /* if not */
    ms_path path;
};

/* Add a tensor's storage as a block, or update the size of the block that it is. One without bytes is no block until
 * it is resized. One that cannot be watched, as memory ran out, is lost: a block of it would never be dropped. 0, or -1
 * with an error set: its device has no number. */
static int add_storage(PyObject *tensor, const struct mst_storage *storage, struct block_kind kind)
{
    long device = device_of(tensor);
    if (device < 0)
        return -1;
    if (!mst_storage_watch(tensor, storage->storage, (uint32_t)device))
        return 0;
    uint64_t bytes = mst_dispatch_bytes(storage->bytes, (uint32_t)device);
    if (ms_block_resize(mst_target_ledger(), storage->storage, bytes) == MS_OK)
        return 0;
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
    if (!mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes < 0)
        return 0;
    if (mst_storage_is_watched(storage.storage) &&
        ms_block_claim(mst_target_ledger(), storage.storage, category, path) == MS_OK)
        return 0;
    return add_storage(tensor, &storage, (struct block_kind){.category = category, .path = path});
}

/* An operator that runs. */
struct operator_run {
    ms_phase phase;
    ms_path path;
    struct ms__map inputs; /* StorageImpl of its arguments -> the bytes before it ran */
    bool is_refused;       /* a result is on a device that has no number */
};

static int list_input_storage(PyObject *tensor, void *context)
{
    struct operator_run *run = context;
    struct mst_storage storage;
    if (!mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes < 0 ||
        ms__map_set(&run->inputs, storage.storage, (uint64_t)storage.bytes))
        return 0;
    PyErr_NoMemory();
    return -1;
}

static int list_input(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, list_input_storage, context);
}

/* A tensor that the operator returned, or one of its arguments afterwards. The storage of an argument that is not
 * counted was there before the tracker, unless the operator has given it another size. */
static int add_operator_storage(PyObject *tensor, void *context)
{
    struct operator_run *run = context;
    struct mst_storage storage;
    if (!mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes < 0)
        return 0;
    if (!mst_storage_is_watched(storage.storage) &&
        ms__map_get(&run->inputs, storage.storage) == (uint64_t)storage.bytes)
        return 0;
    int error = add_storage(tensor, &storage,
                            (struct block_kind){.from_operator = true, .phase = run->phase, .path = run->path});
    run->is_refused = error != 0 && PyErr_ExceptionMatches(PyExc_RuntimeError);
    return error;
}

static int add_operator_tensor(PyObject *tensor, void *context)
{
    return mst_visit_inner_tensors(tensor, add_operator_storage, context);
}

/* After the operator has run. An operator that returns nothing may have resized its arguments. */
static int note_operator(struct operator_run *run, const char *name, PyObject *result, PyObject *args, PyObject *named)
{
    const char *outer = mst_running_operator;
    run->path = mst_position_innermost(&run->phase);
    mst_running_operator = name;
    int error = mst_visit_tensors(result, add_operator_tensor, run);
    if (!error && (result == Py_None || mst_storages_await_operator())) {
        error = mst_visit_tensors(args, add_operator_tensor, run);
        error = error ? error : mst_visit_tensors(named, add_operator_tensor, run);
    }
    mst_running_operator = outer;
    return error;
}

static uint64_t storage_of_tensor(PyObject *object)
{
    struct mst_storage storage = {0};
    if (PyObject_TypeCheck(object, mst.torch.tensor))
        mst_read_storage(mst_impl_of(object), &storage);
    return storage.storage;
}

/* Waiting for a collective returns the tensor that was waited for. Of a fake tensor it returns a new one: the program
 * gets the one that was waited for then, too, so that it is not counted twice. */
static PyObject *result_of_wait(PyObject *result, PyObject *args)
{
    PyObject *waited = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : NULL;
    if (result && waited && storage_of_tensor(waited) && storage_of_tensor(result) != storage_of_tensor(waited))
        Py_SETREF(result, Py_NewRef(waited));
    return result;
}

/* List the storages of an operator's arguments. False if memory ran out: its results cannot be told from them then. */
static bool list_inputs(struct operator_run *run, PyObject *args, PyObject *named)
{
    bool error = mst_visit_tensors(args, list_input, run) != 0 || mst_visit_tensors(named, list_input, run) != 0;
    bool complete = !error || !PyErr_ExceptionMatches(PyExc_MemoryError);
    mst_clear_error();
    return complete;
}

/* Run an operator. What cannot be noted of it is lost, except that results on a refused device raise an error. */
static PyObject *run_operator(PyObject *self, PyObject *const *given, Py_ssize_t count)
{
    (void)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "run_operator takes three arguments: operator, args, kwargs");
        return NULL;
    }
    PyObject *operator= given[0], *args = given[1], *named = given[2] == Py_None ? NULL : given[2];
    struct operator_run run = {.inputs = {0}};
    const char *name = mst_operator_name(operator);
    bool is_made_without_operator = name && strcmp(name, "aten::lift_fresh") == 0; /* by torch.tensor() */
    bool listed = is_made_without_operator || list_inputs(&run, args, named);
    PyObject *result = PyObject_Call(operator, args, named);
    if (name && strcmp(name, "_c10d_functional::wait_tensor") == 0)
        result = result_of_wait(result, args);
    bool notes = result && mst.ledger && mst.by_dispatcher;
    if (notes && (!listed || note_operator(&run, name, result, args, named) != 0)) {
        if (run.is_refused) {
            Py_CLEAR(result);
        } else {
            mst_clear_error();
            ms_ledger_count_lost(mst_target_ledger());
        }
    }
    ms__map_clear(&run.inputs);
    return result;
}

PyMethodDef mst_dispatch_methods[] = {
    {"run_operator", (PyCFunction)(void (*)(void))run_operator, METH_FASTCALL,
     "run_operator(operator, args, kwargs): run an operator, and add the storages of the tensors that it returns as "
     "blocks, except those of its arguments."},
    {NULL, NULL, 0, NULL},
};
