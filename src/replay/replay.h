/* replay.h - what a program would have needed: the events of a capture, edited, and fed to the allocator's model.
 *
 *     capture --msp_stream_load--> msp_stream     every event, block and call in memory; never changed
 *                                      |
 *                                msp_edit_open
 *                                      v
 *                                  msp_edit       what is to be different: sizes, devices, checkpointed calls
 *                                      |
 *                                 msp_replay
 *                                      v
 *                                  msp_result     peaks of reserved and allocated bytes, where they were, and curves
 *
 * Edits compose: each changes the blocks or adds actions between events, and a recomputation uses the blocks as
 * the other edits left them. A stream may be shared by several edits and threads; an edit is used by one thread.
 * Functions return MS_OK or a negative MS_E* code. */
#ifndef MSP_REPLAY_H
#define MSP_REPLAY_H

#include "modscope_allocator.h"
#include "modscope_capture.h"

#define MSP_NONE UINT32_MAX

/* ---- a stream: load.c, calls.c ---- */
typedef enum msp_kind {
    MSP_ADD,
    MSP_DROP,
    MSP_POSITION,
    MSP_STEP,
    MSP_RESERVED,   /* what the device's allocator had reserved from then on, as it was recorded */
    MSP_EMPTY_CACHE /* reserved became less: the program, or an allocator without room, gave free segments back */
} msp_kind;

typedef struct msp_event {
    uint64_t number; /* in the capture */
    uint64_t time;   /* microseconds */
    uint64_t value;  /* add, drop: the index of the block. position: path. step: its number. reserved: bytes */
    uint32_t device; /* reserved, empty cache */
    uint16_t thread; /* an index */
    uint8_t kind;
    uint8_t phase; /* position */
} msp_event;

typedef struct msp_block {
    uint64_t bytes;
    uint64_t requested; /* what the program requested: at most `bytes` */
    uint64_t stream;    /* on which it was requested */
    uint64_t segment;   /* the address of a segment that was taken for it; 0: none was, or it is not known */
    uint32_t add, drop; /* indices of events. MSP_NONE: it exists from the beginning, or to the end */
    uint32_t last_use;  /* an index of msp_stream.uses, or MSP_NONE */
    uint32_t call;      /* the innermost call in which it was added, or MSP_NONE */
    ms_path path;       /* its owner */
    uint8_t device, category;
    uint8_t kind;       /* an ms_kind, since it was added */
    uint8_t phase;      /* in which it was added */
    uint8_t drop_phase; /* in which it was dropped; MS_IDLE if it was not */
    bool outside;       /* it did not come from torch's allocators */
} msp_block;

/* What a forward does with a block that no object holds: a call takes it or returns it, or autograd saves it. */
typedef enum msp_use_kind { MSP_INPUT, MSP_OUTPUT, MSP_SAVE } msp_use_kind;

typedef struct msp_use {
    uint32_t block;
    uint32_t call;    /* the call; of a save: the innermost one that ran, or MSP_NONE */
    uint32_t event;   /* it was before this event */
    uint32_t earlier; /* the use of the same block before it, or MSP_NONE */
    uint8_t kind;
} msp_use;

/* One forward of a module. Its events lie in [begin, end), and its blocks in [first_block, last_block), together
 * with those of other threads. */
typedef struct msp_call {
    ms_path path;
    uint32_t parent;     /* the call around it, or MSP_NONE */
    uint32_t begin, end; /* indices of events; end is MSP_NONE if the capture ended first */
    uint32_t backward;   /* the event that begins its backward, or MSP_NONE: it left nothing for backward */
    uint32_t last_save;  /* the event before which autograd saved the last block in it, or MSP_NONE */
    uint32_t first_block, last_block;
    uint32_t first_input, input_count; /* uses that are its inputs */
    uint16_t thread;
    bool saves; /* autograd saved something in it, outside of the calls in it */
    uint64_t step;
    uint64_t nanoseconds; /* that the GPU needed for it; 0: not known */
} msp_call;

typedef struct msp_stream {
    msp_event *events;
    msp_block *blocks;    /* in the order of their adds; those from the beginning come first */
    msp_call *calls;      /* in the order of their begins */
    msp_use *uses;        /* in their order */
    ms_path *parents;     /* by path */
    uint32_t *parameters; /* blocks of parameters, ordered by owner and requested bytes */
    uint32_t event_count, block_count, call_count, use_count, parameter_count, path_count, device_count, thread_count;
    uint64_t reserved_first[MS_MAX_DEVICES]; /* what was reserved at the beginning */
    bool is_lower_bound;                     /* events are lost or damaged */
    bool has_inputs;                         /* what calls take and return is known */
    bool has_times;                          /* how long the GPU needed for calls is known */
} msp_stream;

/* Read the whole capture. MS_EINVAL: it has more events than 2^32 - 2. MS_ENOMEM, MS_EIO. */
int msp_stream_load(ms_reader *reader, msp_stream **stream);
/* NULL is allowed. No edit may use it any more. */
void msp_stream_free(msp_stream *stream);
/* Whether `path` is `root` or below it. Every path is below MS_GLOBAL. */
bool msp_path_is_below(const msp_stream *stream, ms_path path, ms_path root);
/* Whether the call keeps the block for its backward: autograd frees it there, and nothing outside the call holds it. */
bool msp_call_keeps(const msp_stream *stream, const msp_call *call, const msp_block *block);

typedef struct msp_call_bytes {
    uint64_t kept;   /* of blocks that it keeps for its backward; checkpointing frees them at its end */
    uint64_t output; /* of blocks that outlive it otherwise */
} msp_call_bytes;
msp_call_bytes msp_call_measure(const msp_stream *stream, uint32_t call, uint32_t device);
/* The event before which a recomputation of the call stops: when autograd has saved again the last of what the call
 * keeps. MSP_NONE: the call keeps nothing, or has not ended. */
uint32_t msp_call_recomputed_to(const msp_stream *stream, uint32_t call);

/* How long the GPU needs for that part of the call: its time, less those of the calls in it that are not run again. 0
 * if the call keeps nothing, or if its time is not known. */
uint64_t msp_call_recompute_time(const msp_stream *stream, uint32_t call);

/* ---- edits: edit.c ---- */
typedef struct msp_selection { /* blocks that satisfy all of it */
    uint32_t categories;       /* bit i: category i; 0: any */
    uint32_t phases;           /* bit i: added in phase i; 0: any */
    uint32_t device;           /* MSP_NONE: any */
    ms_path root;              /* the owner is this path or below it; MS_GLOBAL: any */
    uint64_t min_bytes;
    uint32_t kinds; /* bit i: kind i; 0: any */
} msp_selection;

/* Whether the block satisfies the selection, without edits. */
bool msp_block_is_selected(const msp_stream *stream, uint32_t block, const msp_selection *selection);

typedef struct msp_edit msp_edit;

/* NULL: out of memory. The stream must outlive the edit. */
msp_edit *msp_edit_open(const msp_stream *stream);
void msp_edit_close(msp_edit *edit);
/* Make the selected blocks numerator / denominator as large, rounded up: a larger batch, or one shard of several.
 * MS_EINVAL: the denominator is 0. A block that becomes larger than 2^62 bytes has 2^62. Returns how many were
 * selected in *count, which may be NULL. */
int msp_edit_scale(msp_edit *edit, const msp_selection *selection, uint64_t numerator, uint64_t denominator,
                   uint64_t *count);
/* The selected blocks are on another device. */
int msp_edit_move(msp_edit *edit, const msp_selection *selection, uint32_t device, uint64_t *count);
/* The selected blocks are never allocated. */
int msp_edit_remove(msp_edit *edit, const msp_selection *selection, uint64_t *count);
/* Set the size of one block; 0: it is never allocated. */
int msp_edit_resize(msp_edit *edit, uint32_t block, uint64_t bytes);
/* Add a block on a stream of the device before event `begin`, which is freed before event `end`; MSP_NONE: never. */
int msp_edit_insert(msp_edit *edit, uint32_t begin, uint32_t end, uint64_t bytes, uint32_t device, uint64_t stream);
/* Checkpoint a call: what it keeps for backward is freed at its end, and its forward runs again before its first
 * backward node. A call that keeps nothing stays as it is. MS_EINVAL: there is no such call, or it lies in a call that
 * is checkpointed or offloaded already, or around one. */
int msp_edit_checkpoint(msp_edit *edit, uint32_t call);
/* What a call keeps for backward is freed at its end and allocated again before its first backward node; between the
 * two it is on device `to` (torch's save_on_cpu). MS_EINVAL as for checkpoint. */
int msp_edit_offload(msp_edit *edit, uint32_t call, uint32_t to);

/* ---- edits of lifetimes: lifetimes.c ---- */

/* The block is freed before event `end`, earlier or later than it was; MSP_NONE: never. MS_EINVAL: there is no such
 * block, or it is added after that. */
int msp_edit_end(msp_edit *edit, uint32_t block, uint32_t end);
/* Replay only the events before this one. */
int msp_edit_stop(msp_edit *edit, uint32_t event);
/* zero_grad(set_to_none=True): a gradient that lives on into the next step is freed when that begins. In the next
 * backward the gradient that is computed takes its place, instead of being added to it and freed. *count, which may be
 * NULL, gets the number of such gradients. */
int msp_edit_zero_grad(msp_edit *edit, uint64_t *count);
/* torch's save_on_cpu around the outermost calls: what they keep for backward is freed in forward where autograd does
 * not need it, and is allocated again when the nodes of the module that frees it begin. Between the two it is on
 * device `to`. *bytes, which may be NULL, gets how many bytes are copied there. */
int msp_edit_save_on_cpu(msp_edit *edit, uint32_t from, uint32_t to, uint64_t *bytes);

/* ---- the line through two captures of one program: match.c ---- */
typedef struct msp_match {
    uint64_t *bytes;                  /* by block of the stream: requested in the other one, or MSP_UNMATCHED */
    uint64_t *own_bytes;              /* by block of the stream: requested in it, of those that are matched */
    uint64_t matched, here, there;    /* blocks that both have; that only this stream or only the other one has */
    uint64_t here_bytes, there_bytes; /* of those that only one of them has, on the device */
    uint32_t here_first, there_first; /* the first one of them that was added, or MSP_NONE */
    double ratio;           /* how many times as large the blocks are that grow with the batch; 1: none does */
    uint64_t partial_limit; /* as large as the partial results of a reduction become; 0: it is not known */
} msp_match;

#define MSP_UNMATCHED UINT64_MAX

/* Match the blocks of two streams by step, phase, module and their order there. `paths`, by path of the stream, has
 * the same module's path in the other one, or MSP_NONE. MS_ENOMEM. */
int msp_match_open(const msp_stream *stream, const msp_stream *other, const uint32_t *paths, uint32_t device,
                   uint64_t partial_limit, msp_match *match);
void msp_match_close(msp_match *match);
/* Every matched block's size is on the line through its size in the other stream, at 0, and its size in this one, at
 * 1, and replaces the size that earlier edits gave it. Blocks that this stream alone has stay as they are. */
int msp_edit_batch(msp_edit *edit, const msp_match *match, double position);

/* ---- replay: feed.c ---- */
typedef struct msp_position {
    uint64_t number; /* of the capture's event, or of the event before which an edit acts */
    uint64_t time, step;
    ms_phase phase;
    ms_path path; /* the innermost module that runs */
} msp_position;

typedef struct msp_curve {
    uint64_t time; /* of its first event */
    uint64_t number;
    uint64_t reserved, allocated; /* the highest of its events, and of what edits do before them */
} msp_curve;

typedef struct msp_curve_range {
    msp_curve *items;     /* room for `count`; may be NULL if that is 0 */
    uint32_t count;       /* each item stands for an equal part of the range's events */
    uint64_t first, last; /* the capture's events [first, last) */
    uint32_t filled;      /* gets how many items the replay reached */
} msp_curve_range;

typedef struct msp_result {
    uint64_t reserved_peak, allocated_peak;
    msp_position reserved_at, allocated_at; /* when the peaks were first reached */
    uint64_t requests;                      /* allocations */
    uint64_t retries;                       /* requests for which everything free was given back first */
    uint64_t disagreements;                 /* events of blocks after which the capture recorded another reserved */
    bool failed;                            /* a request failed; the replay ends there */
    uint64_t failed_bytes;
    msp_position failed_at;
} msp_result;

/* Replay the events of one device. `edit` may be NULL. `settings` are those of its allocator; NULL: it has no caching
 * allocator, and what is reserved is what is allocated. `curve` gets the curve of a range; NULL: none is wanted. What
 * an edit inserts before an event belongs to the item of that event. MS_ENOMEM. */
int msp_replay(const msp_stream *stream, const msp_edit *edit, uint32_t device, const ms_allocator_settings *settings,
               msp_curve_range *curve, msp_result *result);

#endif
