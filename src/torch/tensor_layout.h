/* tensor_layout.h - read a tensor's memory and gradient from torch's objects, without running Python or torch.
 *
 * The offsets are in mst.layout. Nothing here needs the GIL, but the objects must be alive. */
#ifndef MST_TENSOR_LAYOUT_H
#define MST_TENSOR_LAYOUT_H

#include "torch/devices.h"
#include "torch/state.h"

struct mst_storage {
    uint64_t storage; /* the StorageImpl */
    uint64_t data;    /* the memory, or 0 */
    uint64_t deleter; /* the function that frees the memory */
    int64_t bytes;    /* negative where symbolic */
    int8_t device_type, device_index;
};

static inline uint64_t mst_read_word(uint64_t object, int offset)
{
    return __atomic_load_n((const uint64_t *)(object + (uint64_t)offset), __ATOMIC_RELAXED);
}

/* The TensorImpl of a tensor's Python object. */
static inline uint64_t mst_impl_of(PyObject *tensor)
{
    return mst_read_word((uint64_t)(uintptr_t)tensor, mst.layout.object);
}

/* Whether the memory of tensors can be read. */
static inline bool mst_layout_is_known(void)
{
    return mst.layout.size >= 0;
}

/* False if the tensor has no storage. Only if mst_layout_is_known(). */
static inline bool mst_read_storage(uint64_t impl, struct mst_storage *out)
{
    uint64_t storage = impl ? mst_read_word(impl, mst.layout.storage) : 0;
    if (!storage)
        return false;
    uint64_t device = mst_read_word(storage, mst.layout.device & ~7) >> (mst.layout.device & 7) * 8;
    *out = (struct mst_storage){.storage = storage,
                                .data = mst_read_word(storage, mst.layout.data),
                                .deleter = mst_read_word(storage, mst.layout.deleter),
                                .bytes = (int64_t)mst_read_word(storage, mst.layout.size),
                                .device_type = (int8_t)device,
                                .device_index = (int8_t)(device >> 8)};
    return true;
}

/* The TensorImpl of a leaf's gradient, or 0. */
static inline uint64_t mst_grad_of(uint64_t impl)
{
    uint64_t meta = mst.layout.grad >= 0 ? mst_read_word(impl, mst.layout.meta) : 0;
    return meta ? mst_read_word(meta, mst.layout.grad) : 0;
}

#endif
