/* equal_steps.h - which steps of a stream are equal, and where they begin, for fold.c. */
#ifndef MS_REPLAY_EQUAL_STEPS_H
#define MS_REPLAY_EQUAL_STEPS_H

#include "replay/edit.h"

/* So many of a run of equal steps are kept before the one that stands for others, and so many at its end. */
enum {
    MS__REPLAY_BEFORE = 2,
    MS__REPLAY_AFTER = 2,
    MS__REPLAY_STANDING = MS__REPLAY_BEFORE + 1,
    MS__REPLAY_LEAST_RUN = MS__REPLAY_STANDING + MS__REPLAY_AFTER + 1
};

enum ms__replay_array {
    MS__REPLAY_EVENTS,
    MS__REPLAY_BLOCKS,
    MS__REPLAY_CALLS,
    MS__REPLAY_USES,
    MS__REPLAY_OPERATORS,
    MS__REPLAY_ARRAYS
};

/* An index of each array, such as where a step or a part begins. */
struct ms__replay_place {
    uint32_t at[MS__REPLAY_ARRAYS];
};

/* A run of equal steps. */
struct ms__replay_run {
    uint32_t first, count;
};

/* What refers to items of an array. The value of an event that adds or drops a block is another reference. */
struct ms__replay_reference {
    enum ms__replay_array from;
    size_t offset;
    enum ms__replay_array to;
};
enum { MS__REPLAY_REFERENCES = 21 };
extern const struct ms__replay_reference ms__replay_references[MS__REPLAY_REFERENCES];

void *ms__replay_item(const ms_replay_stream *stream, enum ms__replay_array array, uint32_t index);
static inline uint32_t *ms__replay_reference_of(const ms_replay_stream *stream,
                                                const struct ms__replay_reference *reference, uint32_t index)
{
    return (uint32_t *)(void *)((char *)ms__replay_item(stream, reference->from, index) + reference->offset);
}
static inline bool ms__replay_is_of_block(const ms_replay_event *event)
{
    return event->kind == MS_REPLAY_ADD || event->kind == MS_REPLAY_DROP;
}

/* Where each step begins, and then where the last one ends; for the caller to free. NULL: memory runs out. */
struct ms__replay_place *ms__replay_list_steps(const ms_replay_stream *stream);
/* The runs of steps that are equal in each of the streams, which have equally many; for the caller to free. `steps`: by
 * stream. MS_ENOMEM. */
int ms__replay_find_runs(const ms_replay_stream *const *streams, struct ms__replay_place *const *steps, uint32_t count,
                         struct ms__replay_run **runs, uint32_t *run_count);

#endif
