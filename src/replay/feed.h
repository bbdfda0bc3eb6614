/* feed.h - a replay while it runs, for feed.c and actions.c. */
#ifndef MSP_FEED_H
#define MSP_FEED_H

#include "replay/edit.h"

typedef struct msp_action {
    uint32_t at;    /* before this event */
    uint32_t kind;  /* actions before the same event are done in the order of their kinds */
    uint32_t order; /* among equal kinds */
    uint32_t index; /* of an inserted block, of a block that is kept, or of an edited call */
    uint32_t to;    /* of an edited call */
} msp_action;

typedef struct msp_held {
    ms_allocation *allocation; /* NULL without a model */
    uint64_t bytes;            /* 0: it is not held */
} msp_held;

typedef struct msp_feed {
    const msp_stream *stream;
    const msp_edit *edit; /* or NULL */
    uint32_t device;
    ms_allocator *allocator; /* NULL: no caching allocator */
    bool places_segments;    /* segments get the addresses that were recorded */
    msp_held *blocks;        /* by block */
    msp_held *inserted;      /* by inserted block */
    struct holders {
        uint32_t count;  /* of checkpoints that hold the block as their input */
        bool is_over;    /* otherwise it is freed already */
    } * holders;         /* by block. NULL without an edit */
    msp_held *temporary; /* of a recomputation: by block, relative to the call's first one */
    uint32_t temporary_room;
    msp_action *actions;
    uint32_t action_count, action_room;
    struct position {
        uint8_t phase;
        ms_path path;
    } * threads;
    uint64_t step, allocated, reserved, recorded;
    uint64_t workspace_bytes;           /* of the workspace that a recomputation needed last */
    msp_position now;                   /* of the event that is replayed */
    msp_curve_range *curve;             /* or NULL */
    uint32_t curve_begin, curve_length; /* its events */
    msp_curve *point;                   /* the curve's present item, or NULL */
    msp_result *result;
} msp_feed;

/* ---- feed.c ---- */

/* Request the bytes on the stream; 0 bytes: do nothing. MS_EDEVICE: the request fails, and the result says so. */
int msp_feed_hold(msp_feed *feed, msp_held *held, uint64_t bytes, uint64_t stream);
int msp_feed_hold_block(msp_feed *feed, uint32_t block, uint64_t bytes);
/* Free it, if it is held. */
void msp_feed_release(msp_feed *feed, msp_held *held);
/* The bytes that the block takes on this device. */
uint64_t msp_feed_bytes(const msp_feed *feed, uint32_t block);

/* ---- actions.c ---- */

/* List the actions of the edit in their order. MS_ENOMEM. */
int msp_feed_make_actions(msp_feed *feed);
int msp_feed_act(msp_feed *feed, const msp_action *action);

#endif
