/* storage.h - what is known of a tensor's memory, read without running Python or torch. */
#ifndef MS_STORAGE_H
#define MS_STORAGE_H

#include "torch/native.h"

#include "modscope_ledger.h"

/* Where this torch keeps what we read, in bytes; -1: not known. Learned and proved in _layout.py. */
#define MST_LAYOUT(X)                                                  \
    X(object)   /* a tensor's Python object: its TensorImpl */         \
    X(storage)  /* TensorImpl: its StorageImpl, or NULL */             \
    X(data)     /* StorageImpl: the memory, or NULL */                 \
    X(deleter)  /* StorageImpl: the function that gives it back */     \
    X(device)   /* StorageImpl: type and index, a byte each */         \
    X(size)     /* StorageImpl: bytes; negative where symbolic */      \
    X(meta)     /* TensorImpl: its AutogradMeta, or NULL */            \
    X(grad)     /* AutogradMeta: the gradient's TensorImpl, or NULL */ \
    X(variable) /* AccumulateGrad node: the leaf's TensorImpl */

struct mst_layout {
#define X(word) int word;
    MST_LAYOUT(X)
#undef X
};
extern struct mst_layout mst_layout;
extern uint64_t mst_cpu_deleter; /* how the CPU allocator's own memory is given back */
extern uint64_t mst_accumulate;  /* the first word of every AccumulateGrad node */

struct mst_storage {
    uint64_t storage; /* the StorageImpl */
    uint64_t data;
    uint64_t deleter;
    int64_t bytes;
    int8_t device_type, device_index;
};

static inline uint64_t mst_word(uint64_t object, int offset)
{
    return __atomic_load_n((const uint64_t *)(object + (uint64_t)offset), __ATOMIC_RELAXED);
}

/* The TensorImpl of a tensor object. */
static inline uint64_t mst_impl_of(PyObject *tensor)
{
    return mst_word((uint64_t)(uintptr_t)tensor, mst_layout.object);
}

/* Whether memory of tensors can be read at all. */
static inline bool mst_storage_known(void)
{
    return mst_layout.size >= 0;
}

/* False if the tensor has no storage. */
static inline bool mst_storage_of(uint64_t impl, struct mst_storage *out)
{
    uint64_t storage = impl ? mst_word(impl, mst_layout.storage) : 0;
    if (!storage)
        return false;
    uint64_t device = mst_word(storage, mst_layout.device & ~7) >> (mst_layout.device & 7) * 8;
    *out = (struct mst_storage){.storage = storage,
                                .data = mst_word(storage, mst_layout.data),
                                .deleter = mst_word(storage, mst_layout.deleter),
                                .bytes = (int64_t)mst_word(storage, mst_layout.size),
                                .device_type = (int8_t)device,
                                .device_index = (int8_t)(device >> 8)};
    return true;
}

/* The gradient's TensorImpl of a leaf, or 0. */
static inline uint64_t mst_grad_of(uint64_t impl)
{
    uint64_t meta = mst_layout.grad >= 0 ? mst_word(impl, mst_layout.meta) : 0;
    return meta ? mst_word(meta, mst_layout.grad) : 0;
}

/* ---- devices: torch's type and index, and the ledger's number ---- */

/* No GIL needed; MS_MAX_DEVICES if there are too many. */
uint32_t mst_device_number(int8_t type, int8_t index);
enum { MST_CPU = 0, MST_CUDA = 1 };
int8_t mst_device_type(uint32_t number);

void mst_devices_lock(void); /* around fork */
void mst_devices_unlock(void);

extern PyMethodDef mst_storage_methods[];

#endif
