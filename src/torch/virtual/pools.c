/* pools.c - private pools of the virtual devices' memory: who allocates in them, and their state, which CUDA graphs
 * restore before they record another graph. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/virtual/virtual.h"

#include "base/array.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_ROUTES = 64 };

/* What a thread allocates on a device, or what is allocated on one of its streams, is in a pool. Several may apply: the
 * latest one does. Guarded by the devices' lock. */
static struct route {
    uint64_t pool, stream;
    pthread_t thread;
    int device;
    bool is_of_stream; /* beside the thread */
} routes[MOST_ROUTES];
static int route_count;

uint64_t mst_virtual_stream_in_pool(int device, uint64_t stream)
{
    for (int i = route_count - 1; i >= 0; i--) {
        const struct route *route = &routes[i];
        bool applies = pthread_equal(route->thread, pthread_self()) || (route->is_of_stream && route->stream == stream);
        if (route->device == device && applies)
            return ms_stream_in_pool(stream, route->pool);
    }
    return stream;
}

void mst_virtual_forget_pools(void)
{
    route_count = 0;
}

static bool parse_pool(PyObject *args, int *device, unsigned long long *pool, int *flag)
{
    if (!PyArg_ParseTuple(args, "iK|i", device, pool, flag))
        return false;
    if (*pool && *pool <= MS_MOST_POOLS)
        return true;
    PyErr_Format(PyExc_RuntimeError, "a process has at most %d private pools of memory", (int)MS_MOST_POOLS);
    return false;
}

static PyObject *virtual_pool_hold(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, flags = 0, error = MS_OK;
    if (!parse_pool(args, &device, &pool, &flags))
        return NULL;
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        error = ms_allocator_hold_pool(allocator, pool, (unsigned)flags);
        mst_virtual_log_pool(device, MS_LOG_HOLD, pool, (unsigned)flags);
        mst_virtual_return();
    }
    return error ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *virtual_pool_release(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, empties = 0, error = MS_OK;
    if (!parse_pool(args, &device, &pool, &empties))
        return NULL;
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        ms_allocator_release_pool(allocator, pool);
        if (empties)
            error = ms_allocator_empty_pool(allocator, pool);
        mst_virtual_log_pool(device, MS_LOG_RELEASE, pool, empties != 0);
        mst_virtual_return();
    }
    return error ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *virtual_pool_begin(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, is_of_stream = 0;
    bool has_room = false;
    if (!parse_pool(args, &device, &pool, &is_of_stream))
        return NULL;
    if (!mst_virtual_borrow(device))
        Py_RETURN_NONE;
    if ((has_room = route_count < MOST_ROUTES))
        routes[route_count++] = (struct route){.pool = pool,
                                               .stream = mst_virtual_stream(device),
                                               .thread = pthread_self(),
                                               .device = device,
                                               .is_of_stream = is_of_stream};
    mst_virtual_return();
    return has_room ? Py_NewRef(Py_None)
                    : PyErr_Format(PyExc_RuntimeError, "too many private pools of memory are in use at once");
}

static PyObject *virtual_pool_end(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, unused = 0;
    if (!parse_pool(args, &device, &pool, &unused))
        return NULL;
    if (!mst_virtual_borrow(device))
        Py_RETURN_NONE;
    int at = route_count - 1;
    while (at >= 0 && (routes[at].pool != pool || routes[at].device != device))
        at--;
    if (at >= 0)
        for (route_count--; at < route_count; at++)
            routes[at] = routes[at + 1];
    mst_virtual_return();
    Py_RETURN_NONE;
}

/* The block of a storage, by the address of the storage; NULL if it is not of a virtual device. */
static struct mst_virtual_block *block_of_storage(PyObject *storage)
{
    uint64_t address = PyLong_AsUnsignedLongLongMask(storage);
    if (!address || PyErr_Occurred())
        return NULL;
    return mst_virtual_block_of(mst_read_word(address, mst.layout.deleter),
                                mst_read_word(address, mst.layout.deleter + 8));
}

/* ---- the state of a pool ---- */

/* Nothing of Python's is made while the lock is held: that may free tensors, which take the lock. */
struct given {
    uint64_t address, requested, stream;
    struct mst_virtual_block *block;
};

struct list {
    struct given *items;
    size_t count, room;
    uint64_t pool;
    bool failed;
};

static void append_given(void *context, const ms_block_info *info)
{
    struct list *list = context;
    if (info->state != MS_BLOCK_GIVEN || info->pool != list->pool || list->failed)
        return;
    struct mst_virtual_block *block = (struct mst_virtual_block *)(uintptr_t)info->name;
    if (MS__ARRAY_GROW(list->items, list->room, list->count + 1))
        list->items[list->count++] = (struct given){mst_virtual_address(block), info->requested, info->stream, block};
    else
        list->failed = true;
}

static PyObject *virtual_pool_state(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, unused = 0;
    if (!parse_pool(args, &device, &pool, &unused))
        return NULL;
    struct list given = {.pool = pool};
    ms_allocator *allocator = mst_virtual_borrow(device);
    if (allocator) {
        ms_allocator_each_block(allocator, append_given, &given);
        mst_virtual_return();
    }
    PyObject *state = given.failed ? PyErr_NoMemory() : PyList_New(0);
    for (size_t i = 0; state && i < given.count; i++)
        if (mst_append_new(state, Py_BuildValue("(KKK)", (unsigned long long)given.items[i].address,
                                                (unsigned long long)given.items[i].requested,
                                                (unsigned long long)given.items[i].stream)) != 0)
            Py_CLEAR(state);
    free(given.items);
    return state;
}

/* False with an error set. */
static bool parse_state(PyObject *state, struct list *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(state); i++) {
        unsigned long long address, requested, stream;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(state, i), "KKK", &address, &requested, &stream))
            return false;
        if (!MS__ARRAY_GROW(list->items, list->room, list->count + 1))
            return PyErr_NoMemory() != NULL;
        list->items[list->count++] = (struct given){address, requested, stream, NULL};
    }
    return true;
}

static bool parse_storages(PyObject *storages, struct list *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(storages); i++) {
        struct mst_virtual_block *block = block_of_storage(PyList_GET_ITEM(storages, i));
        if (PyErr_Occurred())
            return false;
        if (!MS__ARRAY_GROW(list->items, list->room, list->count + 1))
            return PyErr_NoMemory() != NULL;
        if (block)
            list->items[list->count++] = (struct given){.block = block};
    }
    return true;
}

/* Give the memory to the first of the storages that is at its address, and forget its handle. */
static void give_to_storage(struct given *item, const struct list *storages)
{
    for (size_t i = 0; i < storages->count; i++) {
        struct mst_virtual_block *of = storages->items[i].block;
        if (!of->allocation && of->address == item->address) {
            mst_virtual_move_memory(item->block, of);
            item->block = NULL;
            return;
        }
    }
}

/* The lock is held. The blocks that the pool has stay where they are, without memory. */
static int restore_pool(ms_allocator *allocator, int device, struct list *state, const struct list *storages)
{
    struct list given = {.pool = state->pool};
    ms_allocator_each_block(allocator, append_given, &given);
    int error = given.failed ? MS_ENOMEM : MS_OK;
    for (size_t i = 0; !error && i < given.count; i++)
        mst_virtual_drop_memory(given.items[i].block);
    free(given.items);
    for (size_t i = 0; !error && i < state->count; i++) {
        struct given *item = &state->items[i];
        error = mst_virtual_take_at(device, item->requested, ms_stream_in_pool(item->stream, state->pool),
                                    item->address, &item->block);
        if (!error)
            give_to_storage(item, storages);
    }
    return error;
}

/* {address: handle} of what no storage has. */
static PyObject *handles_of(const struct list *state)
{
    PyObject *handles = PyDict_New();
    for (size_t i = 0; handles && i < state->count; i++) {
        PyObject *key = PyLong_FromUnsignedLongLong(state->items[i].address);
        PyObject *handle = PyLong_FromVoidPtr(state->items[i].block);
        if (!key || !handle || (state->items[i].block && PyDict_SetItem(handles, key, handle) != 0))
            Py_CLEAR(handles);
        Py_XDECREF(key);
        Py_XDECREF(handle);
    }
    return handles;
}

static PyObject *virtual_pool_restore(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long pool;
    int device, error = MS_OK;
    PyObject *from, *live, *handles = NULL;
    if (!PyArg_ParseTuple(args, "iKO!O!", &device, &pool, &PyList_Type, &from, &PyList_Type, &live))
        return NULL;
    struct list state = {.pool = pool}, storages = {0};
    if (parse_state(from, &state) && parse_storages(live, &storages)) {
        ms_allocator *allocator = mst_virtual_borrow(device);
        if (allocator) {
            error = restore_pool(allocator, device, &state, &storages);
            mst_virtual_return();
        }
        handles = error ? PyErr_Format(PyExc_RuntimeError, "the memory of a private pool is not free as it was")
                        : handles_of(&state);
    }
    free(state.items);
    free(storages.items);
    return handles;
}

/* ---- storages ---- */
static PyObject *virtual_storage_drop(PyObject *self, PyObject *storage)
{
    (void)self;
    struct mst_virtual_block *block = block_of_storage(storage);
    if (block) {
        mst_virtual_lock();
        mst_virtual_drop_memory(block);
        mst_virtual_unlock();
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *virtual_storage_has_memory(PyObject *self, PyObject *storage)
{
    (void)self;
    const struct mst_virtual_block *block = block_of_storage(storage);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(block && block->allocation);
}

PyMethodDef mst_virtual_pools_methods[] = {
    {"virtual_pool_hold", virtual_pool_hold, METH_VARARGS,
     "A private pool of a device, by its number, has one more user; with ms_pool_flags."},
    {"virtual_pool_release", virtual_pool_release, METH_VARARGS,
     "A pool has one user less. With True, its free memory is given back if that was the last one."},
    {"virtual_pool_begin", virtual_pool_begin, METH_VARARGS,
     "This thread allocates in a pool of a device from now on; with True, also whoever allocates on its stream."},
    {"virtual_pool_end", virtual_pool_end, METH_VARARGS, "End what the latest virtual_pool_begin of the pool began."},
    {"virtual_pool_state", virtual_pool_state, METH_VARARGS,
     "What is allocated in a pool: [(address, requested bytes, stream)]."},
    {"virtual_pool_restore", virtual_pool_restore, METH_VARARGS,
     "Make a pool what it was when virtual_pool_state was called. Storages, given by their addresses, get the memory "
     "at their place. Returns {address: handle} of the rest. What was allocated has no memory from then on."},
    {"virtual_storage_drop", virtual_storage_drop, METH_O,
     "Give back the memory of a storage, by the storage's address, before it dies."},
    {"virtual_storage_has_memory", virtual_storage_has_memory, METH_O,
     "Whether a storage, by its address, has memory that it gives back when it dies."},
    {NULL, NULL, 0, NULL},
};
