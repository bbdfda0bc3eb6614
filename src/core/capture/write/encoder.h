/* encoder.h - what the ledger reports to the captures that record it. The caller holds the ledger's lock. */
#ifndef MS_ENCODER_H
#define MS_ENCODER_H

#include "core/base.h"

struct ms__block;

/* The thread went elsewhere: into or out of a call or a step, or (to_node) into a node. */
void ms__capture_position(ms_ledger *ledger, const ms_thread *thread, bool to_node);
/* It left a node, or ended. */
void ms__capture_left(ms_ledger *ledger, const ms_thread *thread);
void ms__capture_gone(ms_ledger *ledger, const ms_thread *thread);
/* thread may be NULL; the phase it made the block in. `number`: the block's in ledger->blocks. */
void ms__capture_add(ms_ledger *ledger, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                     uint32_t number);
void ms__capture_drop(ms_ledger *ledger, uint32_t number);
void ms__capture_claim(ms_ledger *ledger, uint32_t number, uint32_t category, ms_path path, bool from_now_on);
void ms__capture_step(ms_ledger *ledger);
void ms__capture_optimizer_step(ms_ledger *ledger, const ms_thread *thread);
void ms__capture_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom);

#endif
