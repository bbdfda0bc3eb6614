/* call_events.h - what the watch reports to its ledger. This is the only header of the ledger that the watch uses. */
#ifndef MS_CALL_EVENTS_H
#define MS_CALL_EVENTS_H

#include "core/base.h"

/* ---- to the attached ledger; called on the thread in which it happens. They take ledger->lock. ---- */

/* The thread's innermost call has begun; the thread has it on its stack. */
void ms__on_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path);
/* The thread's innermost call has ended; the thread has it on its stack no longer. */
void ms__on_call_leave(ms_ledger *ledger, ms_thread *thread);
/* A node begins that was created in the call of `record` in creator's call ring; MS__NONE: in no known call. */
void ms__on_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *creator, uint64_t record);
/* A node begins that has no number, so its call is not known: it opens and ends no backward span. */
void ms__on_node_enter_as(ms_ledger *ledger, ms_thread *thread);
/* A node has ended; thread->nodes_open no longer counts it. */
void ms__on_node_leave(ms_ledger *ledger, ms_thread *thread);
/* A step of this optimizer has begun or (`left`) ended. */
void ms__on_optimizer_step(ms_ledger *ledger, ms_thread *thread, bool left, uint64_t optimizer);

/* ---- to all ledgers of a watch, with watch->lock held or while the watch is closed ---- */

/* The thread ends: end its spans, and free what the ledger keeps for it. */
void ms__on_thread_end(ms_thread *thread);
/* Free the closed ledgers: the watch is closed. */
void ms__ledgers_free(ms_watch *watch);
/* Around fork(). */
void ms__ledger_lock(ms_ledger *ledger);
void ms__ledger_unlock(ms_ledger *ledger);

#endif
