/* cuda_times.h - how long a GPU needs for the calls of modules, for captures. Everything needs the GIL. */
#ifndef MST_CUDA_TIMES_H
#define MST_CUDA_TIMES_H

#include "torch/state.h"

struct mst_timed_call; /* a call that is being timed */

/* CUDA is in use: a block of it was reported. No GIL needed. */
extern _Atomic bool mst_cuda_in_use;

/* The thread has just entered a call in forward, which is a root call or not. NULL: it is not timed. */
struct mst_timed_call *mst_cuda_time_begin(ms_ledger *ledger, const ms_thread *thread, bool is_root);
/* It is about to be left. */
void mst_cuda_time_end(struct mst_timed_call *call);

/* A capture begins: which steps are timed is counted from now on. */
void mst_cuda_times_recording(void);
/* A capture ends: note the times that are known by now, without waiting for the GPU. */
void mst_cuda_times_note(void);
/* In a forked child: the events belong to the parent. */
void mst_cuda_times_forked(void);

#endif
