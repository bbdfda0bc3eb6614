/* dispatch_blocks.h - the dispatcher as the source of blocks: the storages that operators return. */
#ifndef MST_DISPATCH_BLOCKS_H
#define MST_DISPATCH_BLOCKS_H

#include "torch/state.h"

int mst_dispatch_begin(void); /* -1 with an error set */
void mst_dispatch_end(void);
/* Claim a tensor's storage; it becomes a block if it was none. 0, or -1 with an error set. */
int mst_dispatch_claim(PyObject *tensor, ms_category category, ms_path path);
/* Update the blocks whose storages were resized. */
void mst_dispatch_update_sizes(void);

#endif
