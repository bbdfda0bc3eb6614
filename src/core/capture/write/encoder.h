/* encoder.h - what the ledger reports to the captures that record it. The caller holds the ledger's lock. */
#ifndef MS_ENCODER_H
#define MS_ENCODER_H

#include "core/base.h"

struct ms__block;

/* The thread's position changed: it entered or left a call or an optimizer step, or entered a node (to_node). */
void ms__capture_position(ms_ledger *ledger, const ms_thread *thread, bool to_node);
/* The thread left a node. */
void ms__capture_node_left(ms_ledger *ledger, const ms_thread *thread);
void ms__capture_thread_ended(ms_ledger *ledger, const ms_thread *thread);
/* A block was added, by `thread` in `phase`. `thread` may be NULL. `number` is the block's in ledger->blocks. */
void ms__capture_add(ms_ledger *ledger, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                     uint32_t number);
/* A block is about to be dropped: ledger->blocks still contains it. */
void ms__capture_drop(ms_ledger *ledger, uint32_t number);
void ms__capture_claim(ms_ledger *ledger, uint32_t number, uint32_t category, ms_path path, bool from_now_on);
/* A training step began: ledger->step is its number. */
void ms__capture_step(ms_ledger *ledger);
/* An optimizer step ended. */
void ms__capture_optimizer_step(ms_ledger *ledger, const ms_thread *thread);
/* An allocation failed. */
void ms__capture_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom);

#endif
