/* cuda_requests.h - what the program requested of CUDA's caching allocator, whose report has only the block's size. */
#ifndef MST_CUDA_REQUESTS_H
#define MST_CUDA_REQUESTS_H

#include "torch/state.h"

/* Find the allocator's function `allocate`, once libc10_cuda is loaded. */
void mst_cuda_requests_find(void);
void mst_cuda_requests_intercept(void);
void mst_cuda_requests_restore(void);

/* torch's allocator reported a block of this thread, or that a request of it failed. Under the allocator's lock; no GIL
 * needed. */
void mst_cuda_requests_note(uint64_t address, uint64_t bytes, int8_t device_index);
void mst_cuda_requests_failed(void);

#endif
