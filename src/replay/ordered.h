/* ordered.h - lists of blocks and calls, ordered by what they belong to, and then by when they began or how large they
 * are. */
#ifndef MS_REPLAY_ORDERED_H
#define MS_REPLAY_ORDERED_H

#include "modscope_replay.h"

#include <stddef.h>

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

/* False: memory runs out. */
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

#endif
