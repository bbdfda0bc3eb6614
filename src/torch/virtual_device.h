/* virtual_device.h - a CUDA device that is not there. torch believes that it has one: its tensors have shapes, strides,
 * types and addresses, but no memory is behind them, and no operator reads or writes it.
 *
 *     torch's C++ code asks                             and is answered by
 *     c10::impl::device_guard_impl_registry[CUDA]       a guard for which everything is cuda:0 and stream 0
 *     at::accelerator::getAccelerator, by ELF slots     CUDA
 *     at::detail::getCUDAHooks, by ELF slots            hooks that say no and do nothing
 *     c10::GetAllocator(CUDA)                           an allocator that asks the model (modscope_allocator.h)
 *
 * The operators are in Python (modscope/_virtual). */
#ifndef MST_VIRTUAL_DEVICE_H
#define MST_VIRTUAL_DEVICE_H

#include "torch/state.h"

/* torch's c10::Allocator of the virtual device. */
void *mst_virtual_allocator(void);

/* Memory of the virtual device. No GIL needed. */
struct mst_virtual_block;
/* MS_EDEVICE: the device is full; the ledger and the captures were told. MS_EINVAL: there is no virtual device. */
int mst_virtual_take(uint64_t bytes, struct mst_virtual_block **block);
void mst_virtual_give(struct mst_virtual_block *block);
/* The next storage that torch allocates on this thread gets this block. */
void mst_virtual_hand_over(struct mst_virtual_block *block);

#endif
