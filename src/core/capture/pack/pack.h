/* pack.h - what the files that make a pack share: lifetimes of blocks, and columns of bytes. */
#ifndef MS_PACK_H
#define MS_PACK_H

#include "core/capture/read/reader.h"

/* What a block was from one tick to another. A claim that holds from now on ends a lifetime and begins the next:
 *
 *     tick:      3          7            12
 *     block:     add        claim        drop
 *     lifetimes: |--- #5 ---|--- #9 -----|        #5: begin 3, duration 4.  #9: begin 7, duration 5, previous 4 */
struct ms__lifetime {
    uint64_t bytes, since_event;
    uint64_t steps_ago, micros_ago; /* is_older: when the block was added, before `begin` */
    uint32_t begin, duration;       /* ticks; duration 0: to the last tick */
    uint32_t previous;              /* the block's previous lifetime is so many before this one; 0: it has none */
    ms_path path;
    ms_stack stack;
    uint8_t attributes, device;
    uint8_t kind;  /* an ms_kind; it counts only in the kind's own category */
    bool is_older; /* the block was added before the lifetime began, and has no previous lifetime */
};

struct ms__column {
    uint8_t *bytes;
    size_t count, room;
    uint64_t latest; /* the last number of a delta-encoded column */
};

struct ms__packer {
    ms_reader *reader;
    ms_cursor *cursor;
    struct ms__lifetime *lifetimes; /* ordered by `begin` */
    size_t count, room;
    struct ms__slot_map open; /* slot -> index of the lifetime that its block is in */
    uint32_t tick;
    uint64_t time, step;
    ms_phase phase; /* of the busiest thread */
    ms_path path;   /* of that thread */
    uint64_t reserved[MS_MAX_DEVICES];
    struct ms__buffer claims_buffer; /* the payload of a chunk whose later claims are read */
    struct ms__column columns[MS_PACK_COLUMNS];
};

/* Append a number to a column. False: out of memory. */
bool ms__column_put(struct ms__packer *packer, ms_pack_column column, uint64_t value);
/* Append to a delta-encoded column; `value` is not lower than the last one. False: out of memory. */
bool ms__column_put_delta(struct ms__packer *packer, ms_pack_column column, uint64_t value);

/* block_lifetimes.c: go from the cursor's moment to `last`. Makes the lifetimes, and fills all columns that are not
 * about lifetimes. */
int ms__packer_collect(struct ms__packer *packer, uint64_t last);

#endif
