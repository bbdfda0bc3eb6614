/* reported_backwards.h - backwards that the caller reports with ms_backward_enter and ms_backward_leave, because it
 * cannot see nodes. They belong to no thread's spans: the ledger has a list of the open ones. */
#ifndef MS_REPORTED_BACKWARDS_H
#define MS_REPORTED_BACKWARDS_H

#include "core/ledger/call_stats.h"

/* A device's total grew: the peaks of the open ones may grow. */
void ms__reported_backwards_grow(ms_ledger *ledger, uint32_t device);
void ms__reported_backwards_close(ms_ledger *ledger);

#endif
