/* pack.h - what the files that pack a capture share: stays, and columns of bytes. */
#ifndef MS_PACK_H
#define MS_PACK_H

#include "core/capture/read/reader.h"

/* What a block was from one tick to another. */
struct ms__stay {
    uint64_t bytes, since_event;
    uint64_t steps_ago, ago; /* if it is old */
    uint32_t begin, lasted;  /* ticks; lasted 0: to the last */
    uint32_t again;          /* how many stays before it is its block's one before; 0: there is none */
    ms_path path;
    uint8_t what, device;
    bool old; /* its block was made before */
};

struct ms__column {
    uint8_t *bytes;
    size_t count, room;
    uint64_t latest; /* what the next number is relative to, where it is */
};

struct ms__packer {
    ms_reader *reader;
    ms_cursor *cursor;
    struct ms__stay *stays; /* by growing begin */
    size_t count, room;
    struct ms__map open; /* slot: the stay of the block in it */
    uint32_t tick;
    uint64_t time, step;
    ms_phase phase; /* that is running... */
    ms_path path;   /* ...and where */
    uint64_t reserved[MS_MAX_DEVICES];
    struct ms__buffer later; /* a chunk that is looked through for claims */
    struct ms__column columns[MS_PACK_COLUMNS];
};

/* Write a number, or by how much it is more than the latest; it is not less. False when memory runs out. */
bool ms__column_put(struct ms__packer *packer, ms_pack_column column, uint64_t value);
bool ms__column_on(struct ms__packer *packer, ms_pack_column column, uint64_t value);

/* stays.c: go from the cursor's moment to `last`. Makes the stays, and writes the columns that are not about them. */
int ms__packer_walk(struct ms__packer *packer, uint64_t last);

#endif
