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

#include "base/array.h"
#include "base/map.h"
#include "export/output.h"

typedef struct ms__export_segment {
    uint64_t address, size;
    uint32_t older, newer; /* idle: its neighbours in the list of idle segments, in the order they became idle */
    uint32_t below, above; /* idle: its neighbours in the stack of idle segments of its size */
    bool idle;
} ms__export_segment;

/* total = sum of size over all segments, idle or not */
typedef struct ms__export_segments {
    ms__export_segment *all;
    size_t count, room;
    uint32_t removed;        /* an entry of `all` whose segment was removed; its `older` is the next one */
    uint32_t oldest, newest; /* idle segment */
    struct ms__map by_size;  /* size -> the top of the stack of idle segments */
    uint64_t next;           /* the next unused address */
    uint64_t total;
} ms__export_segments;

void ms__export_segments_open(ms__export_segments *segments);
void ms__export_segments_close(ms__export_segments *segments);
/* Take an idle segment of this size. MS_EXPORT_NONE: there is none. */
uint32_t ms__export_segments_reuse(ms__export_segments *segments, uint64_t size);
/* Add a segment that is in use. MS_EINVAL: no addresses are left. MS_ENOMEM. */
int ms__export_segments_add(ms__export_segments *segments, uint64_t size, uint32_t *index);
/* The segment becomes idle. False: out of memory. */
bool ms__export_segments_release(ms__export_segments *segments, uint32_t index);
/* Remove an idle segment. */
void ms__export_segments_remove(ms__export_segments *segments, uint32_t index);

#endif
