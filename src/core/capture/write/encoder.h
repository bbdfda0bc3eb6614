/* encoder.h - what the ledger reports to the captures that record it. The caller holds the ledger's lock. */
#ifndef MS_ENCODER_H
#define MS_ENCODER_H

#include "core/base.h"
#include "modscope_capture.h"

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
/* Something is known about block `number` that no event says: see ms_note. */
void ms__capture_note(ms_ledger *ledger, ms_note_kind kind, uint32_t number, uint64_t value);
/* The operator has ended, which began when the first capture had `before` events. `slot`: one more than that of the
 * block that it changes in place; 0: none, or it is not known. */
void ms__capture_note_operator(ms_ledger *ledger, const ms_thread *thread, const ms_operator *ran, uint64_t before,
                               uint64_t nanoseconds, uint64_t slot);
/* A root call has begun in forward, with these inputs: see ms_inputs_note. */
void ms__capture_inputs(ms_ledger *ledger, const ms_input *inputs, uint32_t count);
/* Block `number` has a kind, since its since_event. */
void ms__capture_note_kind(ms_ledger *ledger, uint32_t number);
/* The block was requested with so many bytes, on this stream. */
void ms__capture_note_request(ms_ledger *ledger, uint32_t number, uint64_t requested, uint64_t stream);
/* A tensor's storage of so many bytes, fewer than the block has, is in the block. It is noted once for a block, and
 * only if the difference is more than rounding. */
void ms__capture_note_storage(ms_ledger *ledger, uint32_t number, uint64_t bytes);
/* A training step began: ledger->step is its number. */
void ms__capture_step(ms_ledger *ledger);
/* An optimizer step ended. */
void ms__capture_optimizer_step(ms_ledger *ledger, const ms_thread *thread);
/* An allocation failed. */
void ms__capture_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom);

#endif
