/* root_inputs.c - the tensors that go into root calls.
 *
 * A block that was made outside any module and goes into a root call belongs to a path below the root's, called
 * ROOT.(inputs). No module has that path.
 *
 * Memory from outside torch's allocators (a DataLoader worker's shared memory, numpy, mmap) has no report of its
 * freeing. So torch's weak reference to the storage is kept: it does not keep the memory alive, but the StorageImpl
 * stays readable, and a StorageImpl whose memory was freed has no data. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdlib.h>

bool mst_call_is_root(const struct mst_call *call)
{
    return !call->outer && ms_thread_phase(call->thread) != MS_RECOMPUTE;
}

/* ---- ROOT.(inputs) ---- */
static ms_path inputs_path_of(ms_path root)
{
    static ms_path latest_root, latest_inputs; /* most programs have one root */
    if (root == latest_root)
        return latest_inputs;
    PyObject *name = PyUnicode_FromFormat("%s.(inputs)", ms_path_name(mst.watch, root));
    ms_path path = name ? mst_path_add(NULL, root, name, root, ".(inputs)") : MS_UNKNOWN;
    Py_XDECREF(name);
    PyErr_Clear();
    if (path == MS_UNKNOWN)
        return MS_GLOBAL; /* Memory ran out. */
    latest_root = root;
    latest_inputs = path;
    return path;
}

/* ---- inputs from outside ---- */
struct outside_input {
    uint64_t storage; /* a StorageImpl; a weak reference is held */
    uint64_t data;
    ms_path path;
};

enum { MAX_OUTSIDE_INPUTS = 1 << 14, CHECKED_AT_ONCE = 256 };

static struct {
    struct outside_input *inputs;
    size_t count, room;
    size_t next; /* is checked next */
} outside;

/* Call a static method of UntypedStorage, or a method of `self` if it is not NULL. New reference, or NULL. */
static PyObject *call_storage_method(PyObject *self, const char *name, uint64_t argument)
{
    if (self)
        return PyObject_CallMethod(self, name, NULL);
    PyObject *type = PyImport_ImportModule("torch");
    Py_XSETREF(type, type ? PyObject_GetAttrString(type, "UntypedStorage") : NULL);
    PyObject *result = type ? PyObject_CallMethod(type, name, "K", (unsigned long long)argument) : NULL;
    Py_XDECREF(type);
    return result;
}

static bool make_room(void)
{
    if (outside.count < outside.room)
        return true;
    size_t room = outside.room ? outside.room * 2 : 64;
    struct outside_input *inputs =
        room <= MAX_OUTSIDE_INPUTS ? realloc(outside.inputs, room * sizeof *outside.inputs) : NULL;
    if (!inputs)
        return false;
    outside.inputs = inputs;
    outside.room = room;
    return true;
}

/* The methods are C functions, so no frame of Python runs. 0: there is no weak reference. */
static uint64_t new_weak_reference(PyObject *tensor)
{
    struct mst_torch_function_guard guard;
    if (mst_torch_function_disable(&guard) != 0) {
        mst_clear_error();
        return 0;
    }
    PyObject *object = PyObject_CallMethodNoArgs(tensor, mst.interned.untyped_storage);
    PyObject *weak = object ? call_storage_method(object, "_weak_ref", 0) : NULL;
    uint64_t storage = weak && PyLong_Check(weak) ? PyLong_AsUnsignedLongLong(weak) : 0;
    Py_XDECREF(weak);
    Py_XDECREF(object);
    mst_clear_error();
    mst_torch_function_restore(&guard);
    return storage;
}

static void free_weak_reference(uint64_t storage)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_XDECREF(call_storage_method(NULL, "_free_weak_ref", storage));
    mst_clear_error();
    PyErr_Restore(type, value, traceback);
}

static void add_outside_input(PyObject *tensor, const struct mst_storage *storage, ms_path path)
{
    uint64_t weak = make_room() ? new_weak_reference(tensor) : 0;
    if (!weak)
        return;
    if (weak != storage->storage || !make_room()) { /* Python code may have run and used the room. */
        free_weak_reference(weak);
        return;
    }
    outside.inputs[outside.count++] = (struct outside_input){weak, storage->data, path};
    ms_block_add_as(mst_target_ledger(), mst_this_thread, storage->data, (uint64_t)storage->bytes, 0, MS_OTHER, path,
                    true);
}

static bool is_outside(const struct mst_storage *storage)
{
    return !mst.by_dispatcher && storage->device_type == MST_CPU && storage->data && storage->bytes > 0 &&
           mst.cpu_deleter && storage->deleter != mst.cpu_deleter;
}

void mst_claim_root_input(PyObject *tensor, const struct mst_storage *storage, ms_path root)
{
    uint64_t address = mst.by_dispatcher ? storage->storage : storage->data;
    bool known;
    if (ms_block_is_unowned(mst_target_ledger(), address, &known))
        ms_block_claim_input(mst_target_ledger(), address, inputs_path_of(root));
    else if (UNLIKELY(!known && is_outside(storage)))
        add_outside_input(tensor, storage, inputs_path_of(root));
}

static bool is_freed(const struct outside_input *input)
{
    return mst_read_word(input->storage, mst.layout.data) != input->data;
}

static void drop_outside_input(size_t at)
{
    struct outside_input freed = outside.inputs[at];
    outside.inputs[at] = outside.inputs[--outside.count];
    ms_block_drop_outside(mst_target_ledger(), freed.data, freed.path);
    free_weak_reference(freed.storage);
}

void mst_outside_inputs_drop_freed(bool all)
{
    size_t left = all || outside.count < CHECKED_AT_ONCE ? outside.count : CHECKED_AT_ONCE;
    for (; left && outside.count; left--) {
        if (outside.next >= outside.count)
            outside.next = 0;
        if (is_freed(&outside.inputs[outside.next]))
            drop_outside_input(outside.next);
        else
            outside.next++;
    }
}

void mst_outside_inputs_claim(void)
{
    mst_outside_inputs_drop_freed(true);
    for (size_t i = 0; i < outside.count; i++)
        ms_block_claim_unheld(mst_target_ledger(), outside.inputs[i].data, MS_OTHER, outside.inputs[i].path);
}

void mst_outside_inputs_clear(void)
{
    while (outside.count)
        free_weak_reference(outside.inputs[--outside.count].storage);
    free(outside.inputs);
    outside.inputs = NULL;
    outside.room = outside.next = 0;
}
