/* edit.h - what an edit consists of, for feed.c. */
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
    uint32_t to;     /* offloaded: the device. Checkpointed: MSP_NONE */
    uint32_t output; /* a block that the call keeps and that is its output too, or MSP_NONE */
    uint32_t last;   /* checkpointed: the event after which the recomputation stops */
    uint32_t input;  /* checkpointed: a block that is held for the recomputation, until the event `input_end` */
    uint32_t input_end;
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

/* The event before which the block is freed in forward if autograd does not keep it; `edited` is a checkpointed call
 * that keeps it. */
uint32_t msp_unsaved_end(const msp_stream *stream, const msp_edited_call *edited, uint32_t block);
/* The block that a call returns, if the call keeps it for backward too, or MSP_NONE. */
uint32_t msp_kept_result(const msp_stream *stream, uint32_t call);
/* Whether a reduction keeps its partial results in the block. */
bool msp_is_partial_results(const msp_stream *stream, uint32_t block);
/* Their bytes with `batch` times the small batch, of which they take `small` bytes, and `large` with the larger one.
 * `limit`: as large as they become; 0: it is not known. */
double msp_partial_results(double small, double large, double batch, double limit);
/* Whether the call is `around`, or lies in it. */
bool msp_call_is_in(const msp_stream *stream, uint32_t call, uint32_t around);

#endif
