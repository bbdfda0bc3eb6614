/* pack_read.h - a pack, read after what modscope_capture.h says of it and nothing else: it shares no code with what
 * makes them. */
#ifndef MS_TEST_PACK_READ_H
#define MS_TEST_PACK_READ_H

#include "modscope_capture.h"

struct pack_column {
    uint64_t *at;
    size_t count;
};

struct pack {
    ms_pack raw;
    struct pack_column columns[MS_PACK_COLUMNS];
};

/* Decode a pack, which the caller frees later. Returns NULL, or what is wrong with it. Free the result in any case. */
const char *pack_read(struct pack *pack, ms_pack raw);
void pack_free(struct pack *pack);

/* The last tick at this moment or before it. */
uint64_t pack_tick(const struct pack *pack, uint64_t moment);
uint64_t pack_moment(const struct pack *pack, uint64_t tick);
uint64_t pack_time(const struct pack *pack, uint64_t tick);
uint64_t pack_step(const struct pack *pack, uint64_t tick);
uint64_t pack_reserved(const struct pack *pack, uint64_t tick, uint32_t device);
void pack_running(const struct pack *pack, uint64_t tick, uint64_t *phase, uint64_t *path);
/* The next lifetime that is held at the tick, from *at = 0 on, as a block without since_event and slot; false if there
 * is none.
 */
bool pack_block(const struct pack *pack, uint64_t tick, size_t *at, ms_captured_block *block);

#endif
