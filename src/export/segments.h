/* segments.h - made-up addresses. A capture has no addresses, but torch's snapshot needs some.
 *
 * A segment is a range of addresses for one block of exactly its size; no two segments overlap. When the
 * block is gone the segment is idle, until a block of that size reuses it or the segment is removed. The
 * addresses of a removed segment are not used again.
 *
 *                     oldest                        newest
 *     idle segments:  [512 B] <-older/newer-> [4 KiB] <-> [512 B] <-> [4 KiB]        by age
 *                     by_size: 512 -> a stack of two (below/above), 4096 -> another  by size */
#ifndef MS_EXPORT_SEGMENTS_H
#define MS_EXPORT_SEGMENTS_H

#include "export/hash_map.h"

typedef struct mse_segment {
    uint64_t address, size;
    uint32_t older, newer; /* idle: its neighbours in the list of idle segments, in the order they became idle */
    uint32_t below, above; /* idle: its neighbours in the stack of idle segments of its size */
    bool idle;
} mse_segment;

/* total = sum of size over all segments, idle or not */
typedef struct mse_segments {
    mse_segment *all;
    size_t count, room;
    uint32_t removed;        /* an entry of `all` whose segment was removed; its `older` is the next one */
    uint32_t oldest, newest; /* idle segment */
    mse_map by_size;         /* size -> the top of the stack of idle segments */
    uint64_t next;           /* the next unused address */
    uint64_t total;
} mse_segments;

void mse_segments_open(mse_segments *segments);
void mse_segments_close(mse_segments *segments);
/* Take an idle segment of this size. MSE_NONE: there is none. */
uint32_t mse_segments_reuse(mse_segments *segments, uint64_t size);
/* Add a segment that is in use. MS_EINVAL: no addresses are left. MS_ENOMEM. */
int mse_segments_add(mse_segments *segments, uint64_t size, uint32_t *index);
/* The segment becomes idle. False: out of memory. */
bool mse_segments_release(mse_segments *segments, uint32_t index);
/* Remove an idle segment. */
void mse_segments_remove(mse_segments *segments, uint32_t index);

#endif
