/* call_events.h - what the watch reports to the ledger that is attached to it. Each function takes the ledger's lock.
 */
#ifndef MS_CALL_EVENTS_H
#define MS_CALL_EVENTS_H

#include "core/base.h"

void ms__on_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path);
void ms__on_call_leave(ms_ledger *ledger, ms_thread *thread);
/* `record` of maker's table is the call the node was made in, or MS__NONE. */
void ms__on_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *maker, uint64_t record);
void ms__on_node_enter_as(ms_ledger *ledger, ms_thread *thread);
void ms__on_node_leave(ms_ledger *ledger, ms_thread *thread);
void ms__on_optimizer_step(ms_ledger *ledger, ms_thread *thread, bool left);
void ms__seat_free(ms_thread *thread); /* the thread ends; with watch->lock held */
void ms__ledgers_free(ms_watch *watch);
void ms__ledger_lock(ms_ledger *ledger);
void ms__ledger_unlock(ms_ledger *ledger);

#endif
