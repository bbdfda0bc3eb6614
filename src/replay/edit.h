/* edit.h - what an edit consists of, for the replay, and what edits share. */
#ifndef MS_REPLAY_EDIT_H
#define MS_REPLAY_EDIT_H

#include "base/array.h"
#include "modscope_replay.h"

#include <stddef.h>
#include <string.h>

/* Of a block that an operator of a checkpointed call added whose results are kept: a result, or what it needed
 * meanwhile. Neither is allocated in the recomputation. */
enum { MS_REPLAY_RESULT = 1, MS_REPLAY_TEMPORARY };

typedef struct ms__replay_changed_block {
    uint64_t bytes; /* that are requested; 0: it is never allocated */
    uint32_t device;
    uint32_t
        end; /* the event before which it is freed; MS_REPLAY_NONE: never. The block's drop unless an edit moved it */
    uint8_t role; /* MS_REPLAY_RESULT, MS_REPLAY_TEMPORARY, or 0 */
} ms__replay_changed_block;

typedef struct ms__replay_inserted_block {
    uint32_t begin, end; /* events before which it is added and dropped */
    uint64_t bytes;
    uint64_t stream;
    uint32_t device;
} ms__replay_inserted_block;

typedef struct ms__replay_edited_call {
    uint32_t call;
    uint32_t to;       /* offloaded: the device. Checkpointed: MS_REPLAY_NONE */
    uint32_t backward; /* the event with which the first node begins that needs what the call keeps */
    uint32_t last;     /* checkpointed: the event after which the recomputation stops */
    uint32_t end;      /* the event that drops the last block that it keeps: a checkpoint holds its inputs until then */
    uint32_t output; /* where that is not noted: a block that it keeps and that is its output too, or MS_REPLAY_NONE */
    uint32_t input;  /* where that is not noted: its input, or MS_REPLAY_NONE */
} ms__replay_edited_call;

/* The call is edited itself; a call in it is. */
enum { MS_REPLAY_IS_EDITED = 1, MS_REPLAY_HAS_EDITED = 2 };

struct ms_replay_edit {
    const ms_replay_stream *stream;
    ms__replay_changed_block *blocks; /* by block */
    ms__replay_inserted_block *inserted;
    uint32_t inserted_count;
    size_t inserted_room;
    ms__replay_edited_call *calls;
    uint32_t call_count;
    size_t call_room;
    uint8_t *marks;         /* by call: MS_REPLAY_IS_EDITED, MS_REPLAY_HAS_EDITED */
    uint32_t last_event;    /* the replay ends before it */
    uint64_t most_reserved; /* and where more is reserved */
    uint32_t variant;       /* see ms__replay_varied_end */
};

/* numerator / denominator as many bytes, rounded up; 2^62 at most. */
uint64_t ms__replay_scaled(uint64_t bytes, uint64_t numerator, uint64_t denominator);

/* ---- ordered lists of blocks and calls: by what they belong to, and then by when they began or how large they are
 * ---- */

typedef struct ms__replay_entry {
    uint32_t key;   /* a path, or a unit */
    uint32_t index; /* of the block or the call */
    uint64_t value; /* the event that adds the block or begins the call, or the block's bytes */
} ms__replay_entry;

typedef struct ms__replay_ordered { /* zeros: an empty list. Its owner frees `at` */
    ms__replay_entry *at;           /* once it is sorted: by key, then by value, then by index */
    uint32_t count;
    size_t room;
} ms__replay_ordered;

/* Returns false if memory runs out. */
bool ms__replay_ordered_add(ms__replay_ordered *list, uint32_t key, uint64_t value, uint32_t index);
void ms__replay_ordered_sort(ms__replay_ordered *list);
/* The number of the first entry of the key that has this value or a greater one; if there is none, of the one after
 * it. */
uint32_t ms__replay_ordered_find(const ms__replay_ordered *list, uint32_t key, uint64_t value);
/* Whether the list has an entry with this number, and it is of the key. */
static inline bool ms__replay_ordered_has(const ms__replay_ordered *list, uint32_t number, uint32_t key)
{
    return number < list->count && list->at[number].key == key;
}
/* The event that adds the block; 0: it exists from the beginning. */
static inline uint32_t ms__replay_add_of(const ms_replay_stream *stream, uint32_t block)
{
    uint32_t add = stream->blocks[block].add;
    return add == MS_REPLAY_NONE ? 0 : add;
}

/* ---- load.c ---- */

/* Set stream->parameters, which must not have been set. MS_ENOMEM. */
int ms__replay_list_parameters(ms_replay_stream *stream);

/* ---- checkpoint.c ---- */

/* The event before which the block is freed in forward if autograd does not keep it; `edited` is a checkpointed call
 * that keeps it and does not return it. */
uint32_t ms__replay_unsaved_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block);
/* That event, or another one before which the block may be freed as well: what holds a tensor in Python, a variable or
 * an expression, is not noted. Equal calls have equal ends. Variant 0: that event itself. */
uint32_t ms__replay_varied_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block,
                               uint32_t variant);
/* The event before which a block is freed that the call returns; MS_REPLAY_NONE: autograd keeps it for calls after this
 * one, or it is not known.
 */
uint32_t ms__replay_returned_end(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block);
/* Whether the call returns the block, which it keeps for backward. */
bool ms__replay_call_returns(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t block);
/* The call's inputs, by number from 0; MS_REPLAY_NONE: there are no more. */
uint32_t ms__replay_call_input(const ms_replay_stream *stream, const ms__replay_edited_call *edited, uint32_t number);
/* Whether the call is `around`, or lies in it. */
bool ms__replay_call_is_in(const ms_replay_stream *stream, uint32_t call, uint32_t around);
/* Whether the block was added in the call and exists when the call has ended. */
bool ms__replay_outlives_call(const ms_replay_stream *stream, uint32_t call, uint32_t block);
/* Whether parameters, buffers, gradients or optimizers hold blocks of the category. */
bool ms__replay_is_held_by_object(uint8_t category);
/* Whether the block is a workspace that a library keeps for each thread: nothing frees it, and no object holds it. */
bool ms__replay_is_workspace(const ms_replay_block *block);

/* Whether a parameter of the module has as many bytes, on the device. */
bool ms__replay_has_parameter(const ms_replay_stream *stream, ms_path path, uint64_t bytes, uint32_t device);
/* Whether the module has a parameter of its own. */
bool ms__replay_owns_parameter(const ms_replay_stream *stream, ms_path path);

/* ---- nodes.c ---- */

/* The event with which the first node begins that needs what the call keeps; the last of it is dropped with event
 * `end`. */
uint32_t ms__replay_first_unpack(const ms_replay_stream *stream, uint32_t call, uint32_t end);
/* The event before which the block is freed in backward if it was recomputed. */
uint32_t ms__replay_recomputed_end(const ms_replay_stream *stream, uint32_t block);

/* ---- match.c: partial results of reductions ---- */

/* Whether a reduction keeps its partial results in the block. */
bool ms__replay_is_partial_results(const ms_replay_stream *stream, uint32_t block);
/* Partial results that grew by less than this part of the ratio of the batches have stopped growing. */
#define MS_REPLAY_GREW 0.999
/* Their bytes with `batch` times the small batch, of which they take `small` bytes, and `large` with the larger one,
 * which is `ratio` times the small one. `limit`: as large as they become on this GPU; 0: it is not known. Where they
 * have stopped growing before that, the reduction itself is small. */
double ms__replay_partial_results(double small, double large, double ratio, double batch, double limit);

/* ---- casts.c ---- */

/* Set the flag of each block that autocast made to copy a weight or a gradient in half precision. False: memory runs
 * out. None are found if too few gradients have such a copy: the job does not use autocast. */
bool ms__replay_find_casts(const ms_replay_stream *stream, uint32_t device, bool *is_cast, uint32_t *count);
/* How much the sizes of blocks may differ where captures note only those, and not what was requested. */
#define MS_REPLAY_ROUNDED 1024

/* ---- guesses.c: where a capture does not note what calls take and return ---- */

/* A block that the call returns, or MS_REPLAY_NONE. */
uint32_t ms__replay_guess_result(const ms_replay_stream *stream, uint32_t call);
/* A block that it takes, or MS_REPLAY_NONE. */
uint32_t ms__replay_guess_input(const ms_replay_stream *stream, uint32_t call);
/* The event before which a block that was added in the call `around` is freed there if autograd does not keep it. */
uint32_t ms__replay_guess_end(const ms_replay_stream *stream, uint32_t around, uint32_t block);

#endif
