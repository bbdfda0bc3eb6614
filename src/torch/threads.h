/* threads.h - the watch of the process and this thread in it. No GIL needed, except for the init. */
#ifndef MST_THREADS_H
#define MST_THREADS_H

#include "torch/state.h"

int mst_threads_init(void); /* -1 with an error set */

/* Open this thread in the watch; NULL if memory runs out. */
ms_thread *mst_thread_open(void);

/* Whether another thread runs Python. Autograd's own threads do so only in hooks. Needs the GIL. */
bool mst_other_threads_run_python(void);
/* Threads that train: they call root modules or step optimizers, so they may replace gradients. Both need the GIL. */
void mst_thread_trains(void); /* this thread does, until it ends */
bool mst_other_threads_train(void);

/* This thread in the watch; NULL if memory runs out. */
static inline ms_thread *mst_thread_here(void)
{
    return LIKELY(mst_this_thread != NULL) ? mst_this_thread : mst_thread_open();
}

#endif
