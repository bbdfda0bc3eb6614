/* walk.h - goes through a capture from its beginning to a moment, for the exporters. */
#ifndef MS_EXPORT_WALK_H
#define MS_EXPORT_WALK_H

#include "base/array.h"
#include "base/map.h"
#include "export/output.h"

/* ---- every event ---- */

/* Both return MS_OK, or an error, which ends the walk. */
typedef struct ms__export_walk_handler {
    /* Called at the beginning, and after lost or damaged events: the state is new, and the cursor knows it. */
    int (*key_frame)(void *self, const ms_cursor *cursor, bool first);
    /* Called after the cursor has applied the event. */
    int (*event)(void *self, const ms_cursor *cursor, const ms_event *event);
} ms__export_walk_handler;

/* Call the handler for the events up to job->last. Progress is set in `output`, and goes from `part` to part + share.
 * Returns the handler's error, MS_ENOMEM, MS_EIO, or MS_ESTOPPED: the output has failed. */
int ms__export_walk(const ms_export_job *job, const ms__export_walk_handler *handler, void *self,
                    ms__export_output *output, double part, double share);

/* ---- the blocks that are held meanwhile ---- */
typedef struct ms__export_block {
    uint64_t bytes, made_at, step;
    int64_t id; /* the number of its add event; below 0: the block is known from a key frame only */
    uint32_t slot, device;
    uint32_t segment;   /* for use by the handler */
    uint32_t key_frame; /* the last one that contains it, or that came before its add */
    ms_path path;
    ms_stack stack;
    uint8_t category, phase;
    uint8_t kind; /* an ms_kind */
} ms__export_block;

/* How a change became known: by an event, or by a key frame after lost or damaged events. */
typedef enum ms__export_cause { MS_EXPORT_BY_EVENT, MS_EXPORT_BY_KEY_FRAME } ms__export_cause;

/* Each returns MS_OK, or an error, which ends the walk. */
typedef struct ms__export_block_handler {
    int (*begin)(void *self, ms__export_block *block, ms__export_cause cause);
    int (*end)(void *self, const ms__export_block *block, ms__export_cause cause);
    /* Its category or owner has changed. */
    int (*change)(void *self, const ms__export_block *before, ms__export_block *block);
} ms__export_block_handler;

typedef struct ms__export_held {
    const ms__export_block_handler *handler;
    void *self;       /* of the handler */
    uint64_t devices; /* bit i: blocks on device i count */
    ms__export_block *blocks;
    size_t count, room;
    struct ms__map by_slot; /* slot -> index in blocks */
    int64_t lowest_id;      /* the last id that was given to a block without an add event */
    uint32_t key_frames;    /* how many were loaded */
} ms__export_held;

/* To be called by a walk handler's two functions. They call the block handler for each difference. */
int ms__export_held_load_key_frame(ms__export_held *held, const ms_cursor *cursor);
int ms__export_held_apply_event(ms__export_held *held, const ms_cursor *cursor, const ms_event *event);
void ms__export_held_close(ms__export_held *held);

#endif
