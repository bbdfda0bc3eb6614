/* block_stacks.h - the stack that makes a block: the program's own Python frames, and in backward the node. */
#ifndef MST_BLOCK_STACKS_H
#define MST_BLOCK_STACKS_H

#include "torch/state.h"

enum { MST_MOST_FRAMES = 64 };
/* How many frames are kept for a block; 0: stacks are not read. */
extern _Atomic uint32_t mst_stack_depth;
/* The node that runs on this thread, or NULL. The interception point of nodes sets it. */
extern MST_THREAD_LOCAL const void *mst_running_node;

/* The Python frames of this thread, without node and operator. For any thread, like mst_stack_read. */
ms_stack mst_frames_stack(void);
/* The stack of this thread. It needs no GIL, and does not wait for a thread that does. */
ms_stack mst_stack_read(void);

static inline ms_stack mst_stack_here(void)
{
    return atomic_load_explicit(&mst_stack_depth, memory_order_relaxed) ? mst_stack_read() : (ms_stack)MS_STACK_NONE;
}

/* (file, function, line, end line, column, end column, what is called) of each frame, innermost first. A new list. */
PyObject *mst_stack_list(ms_stack stack);
/* From now on keep so many frames, at most MST_MOST_FRAMES. False: what must be intercepted for it cannot be. */
bool mst_stacks_start(uint32_t depth);
void mst_stacks_stop(void); /* read no more stacks, and restore what is intercepted for them */
int mst_stacks_init(void);  /* -1 with an error set */
extern PyMethodDef mst_block_stacks_methods[];

#endif
