/* replay.h - goes through a capture from its beginning to a moment, for the exporters. */
#ifndef MS_EXPORT_REPLAY_H
#define MS_EXPORT_REPLAY_H

#include "export/hash_map.h"
#include "export/output.h"

/* ---- replay.c: every event ---- */

/* Both return MS_OK, or an error, which ends the replay. */
typedef struct mse_replay_handler {
    /* Called at the beginning, and after lost or damaged events: the state is new, and the cursor knows it. */
    int (*key_frame)(void *self, const ms_cursor *cursor, bool first);
    /* Called after the cursor has applied the event. */
    int (*event)(void *self, const ms_cursor *cursor, const ms_event *event);
} mse_replay_handler;

/* Call the handler for the events up to job->last. Progress is set in `output`, and goes from `part` to part + share.
 * Returns the handler's error, MS_ENOMEM, MS_EIO, or MS_ESTOPPED: the output has failed. */
int mse_replay(const mse_job *job, const mse_replay_handler *handler, void *self, mse_output *output, double part,
               double share);

/* ---- held_blocks.c: the blocks that are held meanwhile ---- */
typedef struct mse_block {
    uint64_t bytes, made_at, step;
    int64_t id; /* the number of its add event; below 0: the block is known from a key frame only */
    uint32_t slot, device;
    uint32_t segment;   /* for use by the handler */
    uint32_t key_frame; /* the last one that contains it, or that came before its add */
    ms_path path;
    ms_stack stack;
    uint8_t category, phase;
    uint8_t kind; /* an ms_kind */
} mse_block;

/* How a change became known: by an event, or by a key frame after lost or damaged events. */
typedef enum mse_cause { MSE_BY_EVENT, MSE_BY_KEY_FRAME } mse_cause;

/* Each returns MS_OK, or an error, which ends the replay. */
typedef struct mse_block_handler {
    int (*begin)(void *self, mse_block *block, mse_cause cause);
    int (*end)(void *self, const mse_block *block, mse_cause cause);
    /* Its category or owner has changed. */
    int (*change)(void *self, const mse_block *before, mse_block *block);
} mse_block_handler;

typedef struct mse_held {
    const mse_block_handler *handler;
    void *self;       /* of the handler */
    uint64_t devices; /* bit i: blocks on device i count */
    mse_block *blocks;
    size_t count, room;
    mse_map by_slot;     /* slot -> index in blocks */
    int64_t lowest_id;   /* the last id that was given to a block without an add event */
    uint32_t key_frames; /* how many were loaded */
} mse_held;

/* To be called by a replay handler's two functions. They call the block handler for each difference. */
int mse_held_load_key_frame(mse_held *held, const ms_cursor *cursor);
int mse_held_apply_event(mse_held *held, const ms_cursor *cursor, const ms_event *event);
void mse_held_close(mse_held *held);

#endif
