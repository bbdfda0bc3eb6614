/* intercept_ddp.c - the interception points of DistributedDataParallel: ELF slots of its Reducer.
 *
 * A Reducer copies gradients into buckets, and each bucket is reduced over the ranks as a whole. A bucket's memory is
 * one flat tensor, which begins its struct:
 *
 *     Reducer::initialize_bucket_views(Bucket &)   right after a bucket was allocated: the bucket is claimed
 *     Reducer::reset_bucket_counting()             at the end of the module's forward: the Reducer is this module's
 *     Reducer::all_reduce_bucket(Bucket &)         in backward: the bucket is claimed for that module
 *
 * The first buckets are allocated by the module's constructor, where its name is not known, or before the ledger was
 * attached; so the all-reduce claims them again. The functions run on any thread, and without the GIL. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/ranks/ranks.h"

#include "interpose/patch.h"
#include "interpose/read_memory.h"

typedef void take_bucket(void *reducer, const uint64_t *bucket);
typedef void reset_counting(void *reducer);

static take_bucket intercept_new_bucket, intercept_all_reduce;
static reset_counting intercept_reset_counting;

enum { NEW_BUCKET, ALL_REDUCE, RESET_COUNTING, BUCKET_POINT_COUNT };

static struct bucket_point {
    const char *library, *symbol;
    ms_elf_slot slot; /* slot.address is NULL until it is found */
    ms_patch patch;
} points[BUCKET_POINT_COUNT] = {
    [NEW_BUCKET] = {"libtorch_cpu", "_ZN4c10d7Reducer23initialize_bucket_viewsERNS0_6BucketE",
                    .patch = MS_PATCH_ELF_SLOT(intercept_new_bucket, &points[NEW_BUCKET].slot)},
    [ALL_REDUCE] = {"libtorch_cpu", "_ZN4c10d7Reducer17all_reduce_bucketERNS0_6BucketE",
                    .patch = MS_PATCH_ELF_SLOT(intercept_all_reduce, &points[ALL_REDUCE].slot)},
    [RESET_COUNTING] = {"libtorch_cpu", "_ZN4c10d7Reducer21reset_bucket_countingEv",
                        .patch = MS_PATCH_ELF_SLOT(intercept_reset_counting, &points[RESET_COUNTING].slot)},
};

static bool slots_found;
static uint64_t tensor_vtable; /* the first machine word of every plain TensorImpl */

/* ---- the interception points ---- */

/* The TensorImpl of a bucket's memory. 0: it has none (a bucket of a sparse gradient, before its all-reduce), or
 * something else begins the struct. */
static uint64_t impl_of_bucket(const uint64_t *bucket)
{
    uint64_t impl = *bucket, first = 0;
    return impl && ms_read_memory(impl, &first, sizeof first) && first == tensor_vtable ? impl : 0;
}

static void add_bucket(const struct mst_storage *storage, ms_path path)
{
    uint64_t bytes;
    ms_ledger *ledger = atomic_load_explicit(&mst.gradients_ledger, memory_order_acquire);
    if (!ledger || mst.by_dispatcher || !mst_existing_block(storage, &bytes))
        return;
    ms_block_add_as(ledger, NULL, storage->data, bytes, mst_device_number(storage->device_type, storage->device_index),
                    MS_GRADIENT, path, false);
    ms_block_claim_kind(ledger, storage->data, MS_KIND_BUCKET, path);
}

/* Add a bucket that is older than the ledger. On other devices than the CPU its size is in a dict. The Reducer itself
 * takes the GIL in an all-reduce, for communication hooks, so that it may be taken here. */
static void add_existing_bucket(const struct mst_storage *storage, ms_path path)
{
    if (storage->device_type == MST_CPU) {
        add_bucket(storage, path);
    } else if (Py_IsInitialized()) {
        PyGILState_STATE gil = PyGILState_Ensure();
        add_bucket(storage, path);
        PyGILState_Release(gil);
    }
}

static void claim_bucket(const uint64_t *bucket, ms_path path)
{
    struct mst_storage storage;
    ms_ledger *ledger = atomic_load_explicit(&mst.gradients_ledger, memory_order_acquire);
    uint64_t impl = ledger ? impl_of_bucket(bucket) : 0;
    if (!impl || !mst_read_storage(impl, &storage) || !storage.data || storage.bytes <= 0)
        return;
    uint64_t address = mst.by_dispatcher ? storage.storage : storage.data;
    if (ms_block_claim_kind(ledger, address, MS_KIND_BUCKET, path) == MS_ENOBLOCK)
        add_existing_bucket(&storage, path);
}

static ms_path path_here(void)
{
    return mst_this_thread ? ms_thread_path(mst_this_thread) : MS_GLOBAL;
}

static void intercept_new_bucket(void *reducer, const uint64_t *bucket)
{
    claim_bucket(bucket, path_here());
    ((take_bucket *)points[NEW_BUCKET].patch.previous)(reducer, bucket);
}

static void intercept_reset_counting(void *reducer)
{
    if (mst_open_call && ms_thread_phase(mst_this_thread) == MS_FORWARD)
        mst_owner_set_gradient_kind((uint64_t)(uintptr_t)reducer, path_here(), MS_KIND_BUCKET);
    ((reset_counting *)points[RESET_COUNTING].patch.previous)(reducer);
}

static void intercept_all_reduce(void *reducer, const uint64_t *bucket)
{
    ms_path path = MS_GLOBAL;
    mst_owner_find((uint64_t)(uintptr_t)reducer, &path);
    claim_bucket(bucket, path);
    ((take_bucket *)points[ALL_REDUCE].patch.previous)(reducer, bucket);
}

/* ---- install and restore ---- */

/* Another tool replaced the pointer after us: calls reach us through it. */
static bool reducer_reaches_us(void)
{
    return true;
}

void mst_ddp_intercept(void)
{
    for (int i = 0; slots_found && mst.intercept_calls && i < BUCKET_POINT_COUNT; i++)
        if (ms_patch_install(&points[i].patch, reducer_reaches_us) != 0) {
            mst_ddp_restore();
            return;
        }
}

void mst_ddp_restore(void)
{
    for (int i = 0; slots_found && i < BUCKET_POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
}

/* ---- from Python ---- */
static PyObject *find_bucket_slots(PyObject *self, PyObject *tensor)
{
    (void)self;
    if (!PyObject_TypeCheck(tensor, mst.torch.tensor) || !mst_layout_is_known())
        return PyUnicode_FromString("the layout of tensors is not known");
    for (int i = 0; i < BUCKET_POINT_COUNT; i++) {
        struct bucket_point *point = &points[i];
        int error = point->slot.address ? 0 : ms_elf_slot_find(point->library, point->symbol, &point->slot);
        if (error)
            return PyUnicode_FromFormat("no slot of %s in %s (error %d)", point->symbol, point->library, error);
    }
    tensor_vtable = mst_read_word(mst_impl_of(tensor), 0);
    slots_found = true;
    Py_RETURN_NONE;
}

static PyObject *ddp_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; slots_found && i < BUCKET_POINT_COUNT; i++)
        if (ms_patch_is_installed(&points[i].patch))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *claim_buckets(PyObject *self, PyObject *tensors)
{
    (void)self;
    if (!PyList_Check(tensors))
        return PyErr_Format(PyExc_TypeError, "claim_buckets takes a list of tensors");
    for (Py_ssize_t i = 0; mst.ledger && i < PyList_GET_SIZE(tensors); i++)
        mst_claim_tensor_kind(PyList_GET_ITEM(tensors, i), MS_KIND_BUCKET, path_here());
    Py_RETURN_NONE;
}

PyMethodDef mst_intercept_ddp_methods[] = {
    {"find_bucket_slots", find_bucket_slots, METH_O,
     "Find the slots through which DistributedDataParallel handles its buckets, given a plain tensor; None, or why "
     "they "
     "were not found."},
    {"ddp_intercepted", ddp_intercepted, METH_NOARGS, "Whether DistributedDataParallel is intercepted now."},
    {"claim_buckets", claim_buckets, METH_O, "Claim a list of tensors as buckets of the module that runs now."},
    {NULL, NULL, 0, NULL},
};
