/* edit.h - what an edit consists of, for the replay, and what edits share. */
#ifndef MSP_EDIT_H
#define MSP_EDIT_H

#include "replay/arrays.h"

typedef struct msp_changed_block {
    uint64_t bytes; /* that are requested; 0: it is never allocated */
    uint32_t device;
    uint32_t end; /* the event before which it is freed; MSP_NONE: never. The block's drop unless an edit moved it */
} msp_changed_block;

typedef struct msp_inserted_block {
    uint32_t begin, end; /* events before which it is added and dropped */
    uint64_t bytes;
    uint64_t stream;
    uint32_t device;
} msp_inserted_block;

typedef struct msp_edited_call {
    uint32_t call;
    uint32_t to;       /* offloaded: the device. Checkpointed: MSP_NONE */
    uint32_t backward; /* the event with which the first node begins that needs what the call keeps */
    uint32_t last;     /* checkpointed: the event after which the recomputation stops */
    uint32_t end;      /* the event that drops the last block that it keeps: a checkpoint holds its inputs until then */
    uint32_t output;   /* where that is not noted: a block that it keeps and that is its output too, or MSP_NONE */
    uint32_t input;    /* where that is not noted: its input, or MSP_NONE */
} msp_edited_call;

/* The call is edited itself; a call in it is. */
enum { MSP_IS_EDITED = 1, MSP_HAS_EDITED = 2 };

struct msp_edit {
    const msp_stream *stream;
    msp_changed_block *blocks; /* by block */
    msp_inserted_block *inserted;
    uint32_t inserted_count, inserted_room;
    msp_edited_call *calls;
    uint32_t call_count, call_room;
    uint8_t *marks;      /* by call: MSP_IS_EDITED, MSP_HAS_EDITED */
    uint32_t last_event; /* the replay ends before it */
};

/* ---- checkpoint.c ---- */

/* The event before which the block is freed in forward if autograd does not keep it; `edited` is a checkpointed call
 * that keeps it and does not return it. */
uint32_t msp_unsaved_end(const msp_stream *stream, const msp_edited_call *edited, uint32_t block);
/* The same for a block that the call returns; MSP_NONE: autograd keeps it for calls after this one, or it is not known.
 */
uint32_t msp_returned_end(const msp_stream *stream, const msp_edited_call *edited, uint32_t block);
/* Whether the call returns the block, which it keeps for backward. */
bool msp_call_returns(const msp_stream *stream, const msp_edited_call *edited, uint32_t block);
/* The call's inputs, by number from 0; MSP_NONE: there are no more. */
uint32_t msp_call_input(const msp_stream *stream, const msp_edited_call *edited, uint32_t number);
/* Whether the call is `around`, or lies in it. */
bool msp_call_is_in(const msp_stream *stream, uint32_t call, uint32_t around);
/* Whether the block was added in the call and exists when the call has ended. */
bool msp_outlives_call(const msp_stream *stream, uint32_t call, uint32_t block);
/* Whether parameters, buffers, gradients or optimizers hold blocks of the category. */
bool msp_is_held_by_object(uint8_t category);

/* Whether a parameter of the module has as many bytes, on the device. */
bool msp_has_parameter(const msp_stream *stream, ms_path path, uint64_t bytes, uint32_t device);

/* ---- nodes.c ---- */

/* The event with which the first node begins that needs what the call keeps; the last of it is dropped with event
 * `end`. */
uint32_t msp_first_unpack(const msp_stream *stream, uint32_t call, uint32_t end);
/* The event before which the block is freed in backward if it was recomputed. */
uint32_t msp_recomputed_end(const msp_stream *stream, uint32_t block);

/* ---- reductions.c ---- */

/* Whether a reduction keeps its partial results in the block. */
bool msp_is_partial_results(const msp_stream *stream, uint32_t block);
/* Of the ratio of the batches: partial results that grew by less have stopped growing. */
#define MSP_GREW 0.999
/* Their bytes with `batch` times the small batch, of which they take `small` bytes, and `large` with the larger one,
 * which is `ratio` times the small one. `limit`: as large as they become on this GPU; 0: it is not known. Where they
 * have stopped growing before that, the reduction itself is small. */
double msp_partial_results(double small, double large, double ratio, double batch, double limit);

/* ---- guesses.c: where a capture does not note what calls take and return ---- */

/* A block that the call returns, or MSP_NONE. */
uint32_t msp_guess_result(const msp_stream *stream, uint32_t call);
/* A block that it takes, or MSP_NONE. */
uint32_t msp_guess_input(const msp_stream *stream, uint32_t call);
/* The event before which a block that was added in the call `around` is freed there if autograd does not keep it. */
uint32_t msp_guess_end(const msp_stream *stream, uint32_t around, uint32_t block);

#endif
