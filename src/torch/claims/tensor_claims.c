/* tensor_claims.c - claim one tensor, or all tensors in an object. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"

enum { MAX_CLAIM_DEPTH = 32 };

struct claim {
    ms_category category;
    ms_path path;
};

static void claim_storage(const struct mst_storage *storage, ms_category category, ms_path path)
{
    if (!storage->data || storage->bytes <= 0)
        return;
    bool known = ms_block_claim(mst_target_ledger(), storage->data, category, path) != MS_ENOBLOCK;
    uint64_t bytes;
    bool from_allocator = known || mst_existing_block(storage, &bytes);
    if (known && storage->device_type == MST_CPU && storage->deleter != mst.cpu_deleter) {
        /* Several storages may begin at the same address of memory from outside: the block is the largest. */
        if (ms_block_bytes(mst_target_ledger(), &storage->data, 1) < (uint64_t)storage->bytes)
            ms_block_resize(mst_target_ledger(), storage->data, (uint64_t)storage->bytes);
    }
    if (known)
        return;
    ms_block_add_as(mst_target_ledger(), NULL, storage->data, bytes,
                    mst_device_number(storage->device_type, storage->device_index), category, path, !from_allocator);
}

void mst_claim_impl(uint64_t impl, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (impl && mst_layout_is_known() && mst_read_storage(impl, &storage))
        claim_storage(&storage, category, path);
}

bool mst_claim_unheld(uint64_t impl, ms_category category, ms_path path)
{
    struct mst_storage storage;
    if (!impl || !mst_layout_is_known() || !mst_read_storage(impl, &storage))
        return false;
    ms_block_claim_unheld(mst_target_ledger(), mst.by_dispatcher ? storage.storage : storage.data, category, path);
    return true;
}

/* Whether a parameter has no memory yet: that of nn.LazyLinear gets it in the module's first forward. */
static bool awaits_memory(PyObject *tensor)
{
    struct mst_storage storage;
    if (LIKELY(Py_TYPE(tensor) == mst.torch.parameter || Py_TYPE(tensor) == mst.torch.tensor))
        return false;
    return mst_layout_is_known() && (!mst_read_storage(mst_impl_of(tensor), &storage) || storage.bytes == 0);
}

static int claim_inner_tensor(PyObject *tensor, void *context)
{
    const struct claim *claim = context;
    if (UNLIKELY(awaits_memory(tensor)))
        mst.claims.awaiting_memory = true;
    if (mst.by_dispatcher)
        return mst_dispatch_claim(tensor, claim->category, claim->path);
    mst_claim_impl(mst_impl_of(tensor), claim->category, claim->path);
    return 0;
}

void mst_claim_tensor(PyObject *tensor, ms_category category, ms_path path)
{
    struct claim claim = {category, path};
    if (mst_visit_inner_tensors(tensor, claim_inner_tensor, &claim) != 0)
        mst_clear_error(); /* Nothing is claimed for a tensor that cannot be read. */
}

static void claim_nested(PyObject *object, const struct claim *claim, int depth)
{
    if (PyObject_TypeCheck(object, mst.torch.tensor)) {
        mst_claim_tensor(object, claim->category, claim->path);
    } else if (depth < MAX_CLAIM_DEPTH && PyDict_Check(object)) {
        PyObject *values = PyDict_Values(object);
        for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(values); i++)
            claim_nested(PyList_GET_ITEM(values, i), claim, depth + 1);
        Py_XDECREF(values);
    } else if (depth < MAX_CLAIM_DEPTH && (PyList_Check(object) || PyTuple_Check(object))) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); i++) {
            PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(object, i));
            claim_nested(item, claim, depth + 1);
            Py_DECREF(item);
        }
    }
    mst_clear_error();
}

void mst_claim_object(PyObject *object, ms_category category, ms_path path)
{
    struct claim claim = {category, path};
    if (mst.ledger)
        claim_nested(object, &claim, 0);
}
