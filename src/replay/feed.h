/* feed.h - a replay while it runs, for feed.c and actions.c. */
#ifndef MS_REPLAY_FEED_H
#define MS_REPLAY_FEED_H

#include "replay/edit.h"

typedef struct ms__replay_action {
    uint32_t at;    /* before this event */
    uint32_t kind;  /* actions before the same event are done in the order of their kinds */
    uint32_t order; /* among equal kinds */
    uint32_t index; /* of an inserted block, of a block that is kept, or of an edited call */
    uint32_t to;    /* of an edited call */
} ms__replay_action;

typedef struct ms__replay_held {
    ms_allocation *allocation; /* NULL without a model */
    uint64_t bytes;            /* 0: it is not held */
    uint64_t number;           /* in the log, if one is written */
} ms__replay_held;

typedef struct ms__replay_numbers { /* a list that grows */
    uint64_t *at;
    size_t count, room;
} ms__replay_numbers;

/* What is requested and freed, as a log of ms_log_kind (ms_replay_log). */
typedef struct ms__replay_log {
    ms__replay_numbers entries;
    const uint64_t *adds; /* before which of the stream's requests marks are wanted, in ascending order */
    uint64_t *marks;      /* gets the count of entries there */
    uint32_t mark_count, marked;
    const uint32_t *operators; /* by request of the stream */
    uint64_t operator_count;
    uint32_t *requests; /* by block: which request of the stream it is */
    uint64_t added;     /* so many requests of the stream were replayed */
    uint64_t written;   /* allocations */
    uint64_t owner;     /* of the latest entry */
    bool is_full;       /* an entry is missing, as memory ran out */
} ms__replay_log;

struct event_figures {
    uint64_t reserved, allocated;           /* before the event */
    uint64_t high_reserved, high_allocated; /* the highest during it */
};

/* A step that is repeated as often as it stands for another one. The first repetition whose state is that of an earlier
 * one shows what follows: the anchor is a state to compare with, which is replaced after 1, 2, 4, ... repetitions. */
typedef struct ms__replay_loop {
    const ms_replay_fold *fold; /* NULL: no step is repeated now */
    uint32_t next_fold;
    uint32_t first_action; /* of the step */
    uint32_t done;         /* so many steps after the one that stands for them are over */
    uint32_t period, until_anchor;
    ms__replay_numbers state, anchor;
    struct event_figures *curve; /* since the anchor, by event. Only if a curve is wanted */
    size_t curve_count, curve_room;
    struct figures {
        uint64_t requests, retries, disagreements;
    } at_anchor;
    struct holders *holders; /* of the step's blocks, before it is replayed */
} ms__replay_loop;

typedef struct ms__replay_feed {
    const ms_replay_stream *stream;
    const ms_replay_edit *edit; /* or NULL */
    uint32_t device;
    ms_allocator *allocator;   /* NULL: no caching allocator */
    bool places_segments;      /* segments get the addresses that were recorded */
    ms__replay_held *blocks;   /* by block */
    ms__replay_held *inserted; /* in the order of `insertions` */
    uint32_t *insertions;      /* the edit's inserted blocks, in the order of their begins */
    struct holders {
        uint32_t count;         /* of checkpoints that hold the block as their input */
        bool is_over;           /* otherwise it is freed already */
    } * holders;                /* by block. NULL without an edit */
    ms__replay_held *temporary; /* of a recomputation: by block, relative to the call's first one */
    size_t temporary_room;
    ms__replay_action *actions;
    uint32_t action_count;
    size_t action_room;
    struct position {
        uint8_t phase;
        ms_path path;
    } * threads;
    uint64_t step, allocated, reserved, recorded;
    uint64_t skipped_retries; /* of steps that are not replayed, because what they do is known */
    ms__replay_loop loop;
    uint32_t later;           /* so many events were replayed for steps that are left out */
    uint64_t workspace_bytes; /* of the workspace that a recomputation needed last */
    ms_replay_position now;   /* of the event that is replayed */
    struct event_figures figures;
    ms_replay_curve_range *curve;       /* or NULL */
    uint32_t curve_begin, curve_length; /* its events, counted with those that are left out */
    ms_replay_curve *point;             /* the curve's present item, or NULL */
    ms_replay_result *result;
    ms__replay_log *log;      /* or NULL */
    ms_replay_layout *layout; /* or NULL: it is not noted where blocks are */
    bool lacks_memory;        /* for the layout */
    uint32_t block; /* for which memory is requested next, for the log; MS_REPLAY_NONE: for none of the stream */
} ms__replay_feed;

/* ---- feed.c ---- */

/* Request the bytes on the stream; 0 bytes: do nothing. MS_EDEVICE: the replay ends, as the request fails, which the
 * result says, or as more is reserved than the edit allows. */
int ms__replay_feed_hold(ms__replay_feed *feed, ms__replay_held *held, uint64_t bytes, uint64_t stream);
int ms__replay_feed_hold_block(ms__replay_feed *feed, uint32_t block, uint64_t bytes);
/* Free it, if it is held. */
void ms__replay_feed_release(ms__replay_feed *feed, ms__replay_held *held);
/* The bytes that the block takes on this device. */
uint64_t ms__replay_feed_bytes(const ms__replay_feed *feed, uint32_t block);

/* Replay all events; the feed's blocks and its allocator are gone then. */
int ms__replay_feed_run(ms__replay_feed *feed, const ms_allocator_settings *settings);

/* Turn to the curve's item of the event. */
void ms__replay_feed_begin_point(ms__replay_feed *feed, uint32_t event);
/* The present figures, or others, count in the curve's item and in the event's highest. */
void ms__replay_feed_raise(ms__replay_feed *feed, uint64_t reserved, uint64_t allocated);

/* ---- layout.c ---- */
void ms__replay_layout_begin(ms__replay_feed *feed);
/* Note where the block is that was just requested. */
void ms__replay_layout_place(ms__replay_feed *feed, uint32_t block);

/* ---- loop.c ---- */

/* Before event `*event`, and before the actions at it, of which `*action` is the first. If a step begins there that
 * stands for others, remember the state. If it ends there, either go back to its first event, or on. MS_ENOMEM. */
int ms__replay_loop_turn(ms__replay_feed *feed, uint32_t *event, uint32_t *action);
/* The event is over: note its figures, if a curve is wanted that needs them. MS_ENOMEM. */
int ms__replay_loop_note(ms__replay_feed *feed);
/* The number of the step that is replayed, of which `event` is the beginning. */
uint64_t ms__replay_loop_step(const ms__replay_feed *feed, const ms_replay_event *event);
/* The number and the time of an event in the step that is replayed. */
uint64_t ms__replay_loop_number(const ms__replay_feed *feed, const ms_replay_event *event);
uint64_t ms__replay_loop_time(const ms__replay_feed *feed, const ms_replay_event *event);
/* The index of the first event that has this number or a greater one, counted with the events that are left out, or
 * without them. */
uint32_t ms__replay_loop_find(const ms_replay_stream *stream, uint64_t number, bool is_folded);
void ms__replay_loop_close(ms__replay_loop *loop);

/* ---- actions.c ---- */

/* List the actions of the edit in their order. MS_ENOMEM. */
int ms__replay_feed_make_actions(ms__replay_feed *feed);
int ms__replay_feed_act(ms__replay_feed *feed, const ms__replay_action *action);

#endif
