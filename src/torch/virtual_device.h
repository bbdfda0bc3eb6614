/* virtual_device.h - a CUDA device that is not there. torch believes that it has one: its tensors have shapes, strides,
 * types and addresses, but no memory is behind them, and no operator reads or writes it.
 *
 *     torch's C++ code asks                             and is answered by
 *     c10::impl::device_guard_impl_registry[CUDA]       a guard for which everything is cuda:0
 *     at::accelerator::getAccelerator, by ELF slots     CUDA
 *     at::detail::getCUDAHooks, by ELF slots            hooks that say no and do nothing
 *     c10::GetAllocator(CUDA)                           an allocator that asks the model (modscope_allocator.h)
 *
 *     virtual_memory.c   the memory, and torch's allocator      virtual_stats.c    what Python asks about memory
 *     virtual_answers.c  the guard and the hooks                virtual_device.c   installs all of it, and removes it
 *     virtual_pinned.c   pinned memory                          virtual_tensors.c  makes tensors
 *     virtual_clock.c    the virtual clock                      virtual_log.c      the log of allocations, for replays
 *
 * The operators are in Python (modscope/_virtual). */
#ifndef MST_VIRTUAL_DEVICE_H
#define MST_VIRTUAL_DEVICE_H

#include "interpose/elf_slot.h"
#include "modscope_allocator.h"
#include "torch/state.h"

/* A C++ object is a pointer to its table of virtual functions. */
enum { MST_TABLE_SIZE = 256, MST_ALLOCATE = 2 /* c10::Allocator::allocate comes after the two destructors */ };
typedef const ms_function *mst_cxx_object;

typedef struct mst_data_ptr { /* c10::DataPtr: a unique_ptr stores its deleter before its pointer */
    void *data;
    void (*deleter)(void *);
    void *context;
    int8_t device_type, device_index;
} mst_data_ptr;

struct mst_two_words {
    uint64_t first, second;
};

/* ---- memory ---- */
/* Opens a model of the allocator, in place of the previous one if there is one. MS_OK or MS_ENOMEM. */
int mst_virtual_open(const ms_allocator_settings *settings);
/* The device has no memory from now on. Its blocks stay, and can still be given back. */
void mst_virtual_close(void);
bool mst_virtual_is_open(void);

/* torch's c10::Allocator of the virtual device. */
void *mst_virtual_allocator(void);

/* Memory of the virtual device, on this thread's current stream. No GIL needed. */
struct mst_virtual_block;
/* MS_EDEVICE: the device is full; the ledger and the captures were told. MS_EINVAL: there is no virtual device. */
int mst_virtual_take(uint64_t bytes, struct mst_virtual_block **block);
void mst_virtual_give(struct mst_virtual_block *block);
uint64_t mst_virtual_address(const struct mst_virtual_block *block);
/* The block of a storage with this deleter and context; NULL if it is not of the virtual device. */
struct mst_virtual_block *mst_virtual_block_of(uint64_t deleter, uint64_t context);
/* torch's Tensor.record_stream. */
void mst_virtual_use_on(struct mst_virtual_block *block, uint64_t stream);
/* The next storage that torch allocates on this thread gets this block. */
void mst_virtual_hand_over(struct mst_virtual_block *block);
/* The model, and nobody else uses it until it is returned; NULL, and nothing to return, if there is none. */
ms_allocator *mst_virtual_borrow(void);
void mst_virtual_return(void);

void mst_virtual_lock(void); /* around fork */
void mst_virtual_unlock(void);

/* ---- streams: numbers, 0 is the default one ---- */
uint64_t mst_virtual_stream(void); /* this thread's current one */
void mst_virtual_set_stream(uint64_t stream);

/* ---- the guard, the hooks and pinned memory ---- */
void mst_virtual_fill_tables(void);
const void *mst_virtual_guard(void);
const void *mst_virtual_hooks(void);
/* Allocator::allocate of pinned memory, which is ordinary memory, and hooks' isPinnedPtr. */
mst_data_ptr *mst_virtual_allocate_pinned(mst_data_ptr *result, void *self, size_t bytes);
bool mst_virtual_is_pinned(const void *self, const void *data);

#endif
