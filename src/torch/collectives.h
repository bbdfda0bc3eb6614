/* collectives.h - the collectives of torch.distributed, for captures. */
#ifndef MST_COLLECTIVES_H
#define MST_COLLECTIVES_H

#include "modscope_collectives.h"
#include "torch/state.h"

/* ---- collectives.c ---- */

/* This thread launches a collective of the group that `key` identifies: the address of its backend, or a number that
 * Python chose. The result is its number, for mst_collective_took; 0: there is no capture. Any thread; no GIL needed.
 */
uint64_t mst_collective_launched(ms_collective_kind kind, uint64_t bytes, uint64_t key, uint64_t delay,
                                 uint64_t nanoseconds);
/* The collective with this number has ended, after so many nanoseconds. Any thread; no GIL needed. */
void mst_collective_took(uint64_t number, ms_collective_timing timing, uint64_t nanoseconds);
/* The collectives that this thread launches from now on are for this module; MS_GLOBAL: for the one that it is in. */
void mst_collectives_set_owner(ms_path owner);
/* The backend is destroyed: its address may become that of another one. No GIL needed. */
void mst_collective_group_ended(uint64_t key);
/* Ask torch for the names and ranks of groups that were used and have none yet. Needs the GIL, and runs Python only if
 * there are such groups. */
void mst_collectives_name_groups(void);

/* A capture of the ledger began; the last one is about to end; in a forked child. */
void mst_collectives_begin(ms_ledger *ledger);
void mst_collectives_end(void);
void mst_collectives_forked(void);

/* ---- intercept_collectives.c: the functions of torch's backends. Both need the GIL ---- */
void mst_backends_intercept(void);
void mst_backends_restore(void);

/* ---- intercept_gloo.c: how long collectives over gloo take. The first two need the GIL ---- */
void mst_gloo_intercept(void);
void mst_gloo_restore(void);
/* This thread is in a function of a backend that launches the collective with this number; 0: it has left it. The
 * result is the number before. */
uint64_t mst_gloo_set_launching(uint64_t number);
/* The function that launched the collective has returned this c10d::Work. */
void mst_gloo_launched(uint64_t number, uintptr_t work);
/* In a forked child. */
void mst_gloo_forked(void);

#endif
