/* watched_storages.c - the storages that are blocks where the dispatcher is the source, from the moment when an
 * operator returns them, a known object holds them or the program resizes them, until they die. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

struct watched {
    PyObject *ref;        /* weak, to the storage's Python object */
    int64_t device;       /* the ledger's number; NO_DEVICE: a fake storage does not know it, and no tensor told it */
    bool awaits_operator; /* it has a size, but no device */
};
enum { NO_DEVICE = -1 };

static struct ms__map watched;         /* StorageImpl -> struct watched */
static bool watching;                  /* between begin and end */
static size_t awaiting_operator_count; /* how many await an operator, which will know their device */

/* ---- the table ---- */

static struct watched *find_live(uint64_t storage)
{
    struct watched *found = ms__map_pointer(&watched, storage);
    return found && ((PyWeakReference *)found->ref)->wr_object != Py_None ? found : NULL;
}

static void set_device(struct watched *of, int64_t device, bool awaits_operator)
{
    awaiting_operator_count += (size_t)awaits_operator - (size_t)of->awaits_operator;
    of->device = device;
    of->awaits_operator = awaits_operator;
}

static void free_watched(struct watched *of)
{
    set_device(of, NO_DEVICE, false);
    Py_DECREF(of->ref);
    PyMem_Free(of);
}

static PyObject *storage_died(PyObject *address, PyObject *ref)
{
    uint64_t storage = PyLong_AsUnsignedLongLong(address);
    struct watched *of = ms__map_pointer(&watched, storage);
    /* Another storage may have this address by now, with a weak reference of its own. */
    if (of && of->ref == ref) {
        if (mst.ledger && mst.by_dispatcher)
            ms_block_drop(mst_target_ledger(), storage);
        ms__map_remove(&watched, storage);
        free_watched(of);
    }
    Py_RETURN_NONE;
}

static PyMethodDef storage_died_def = {"storage_died", storage_died, METH_O, NULL};

/* Once a storage has a Python object, that lives as long as the storage. False if memory ran out: counted as lost. */
static bool watch(PyObject *object, uint64_t storage, int64_t device)
{
    PyObject *address = PyLong_FromUnsignedLongLong(storage);
    PyObject *callback = address ? PyCFunction_New(&storage_died_def, address) : NULL;
    PyObject *ref = object && callback ? PyWeakref_NewRef(object, callback) : NULL;
    struct watched *old = ms__map_pointer(&watched, storage), *added = ref ? PyMem_Calloc(1, sizeof *added) : NULL;
    Py_XDECREF(callback);
    Py_XDECREF(address);
    if (!added || !ms__map_set(&watched, storage, (uintptr_t)added)) {
        PyMem_Free(added);
        Py_XDECREF(ref);
        mst_clear_error();
        ms_ledger_count_lost(mst_target_ledger());
        return false;
    }
    *added = (struct watched){.ref = ref, .device = device};
    if (old) /* its storage died, and its callback will come */
        free_watched(old);
    return true;
}

bool mst_storage_is_watched(uint64_t storage)
{
    return find_live(storage) != NULL;
}

bool mst_storages_await_operator(void)
{
    return awaiting_operator_count != 0;
}

bool mst_storage_watch(PyObject *tensor, uint64_t storage, uint32_t device)
{
    struct watched *known = find_live(storage);
    if (known) {
        set_device(known, device, false);
        return true;
    }
    if (!watching)
        return true;
    PyObject *object = PyObject_CallMethodNoArgs(tensor, mst.interned.untyped_storage);
    bool added = watch(object, storage, device);
    Py_XDECREF(object);
    return added;
}

/* ---- sizes ---- */

uint64_t mst_dispatch_bytes(int64_t bytes, uint32_t device)
{
    enum { CUDA_ROUNDING = 512 }; /* torch's CUDA allocator rounds sizes up to a multiple of this */
    uint64_t size = bytes > 0 ? (uint64_t)bytes : 0;
    return mst_device_type(device) == MST_CUDA ? (size + CUDA_ROUNDING - 1) / CUDA_ROUNDING * CUDA_ROUNDING : size;
}

/* The device of a storage that no operator has returned; NO_DEVICE: fake storages are on the device "meta". */
static int64_t device_of_storage(uint64_t storage)
{
    uint64_t device = mst_read_word(storage, mst.layout.device & ~7) >> (mst.layout.device & 7) * 8;
    return (int8_t)device == MST_META ? NO_DEVICE : (int64_t)mst_device_number((int8_t)device, (int8_t)(device >> 8));
}

/* Give a block its storage's size. What grows from nothing is a new block of the module that runs now. */
static void update_block(uint64_t storage, struct watched *of)
{
    int64_t bytes = (int64_t)mst_read_word(storage, mst.layout.size);
    if (bytes < 0)
        return;
    if (of->device == NO_DEVICE) {
        set_device(of, NO_DEVICE, bytes > 0);
        return;
    }
    uint64_t size = mst_dispatch_bytes(bytes, (uint32_t)of->device);
    ms_phase phase;
    ms_path path = mst_position_innermost(&phase);
    if (ms_block_resize(mst_target_ledger(), storage, size) == MS_ENOBLOCK)
        ms_block_add_in_at(mst_target_ledger(), phase, path, mst_stack_here(), storage, size, (uint32_t)of->device);
}

void mst_dispatch_update_sizes(void)
{
    for (size_t i = 0; i < ms__map_room(&watched); i++) {
        uint64_t storage = watched.entries[i].key;
        struct watched *of = watched.entries[i].value_plus_1 ? find_live(storage) : NULL;
        if (of)
            update_block(storage, of);
    }
}

void mst_storage_resized(PyObject *object, uint64_t storage)
{
    if (!watching || !mst.ledger)
        return;
    if (find_live(storage) || watch(object, storage, device_of_storage(storage)))
        update_block(storage, find_live(storage));
}

void mst_storages_begin(void)
{
    watching = true;
}

void mst_storages_end(void)
{
    watching = false;
    for (size_t i = 0; i < ms__map_room(&watched); i++)
        if (watched.entries[i].value_plus_1)
            free_watched(ms__map_pointer(&watched, watched.entries[i].key));
    ms__map_clear(&watched);
}
