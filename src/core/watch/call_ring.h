/* call_ring.h - a ring buffer of one thread's calls, each with the interval of node numbers created in it.
 * The search for a node's call is in node_lookup.h. */
#ifndef MS_CALL_RING_H
#define MS_CALL_RING_H

#include "core/base.h"

#define MS__MIN_CAPACITY 256u
#define MS__OPEN UINT32_MAX /* the length of a call that has not ended */
#define MS__NONE UINT64_MAX /* no record */

/* One call, or one backward node that created nodes. The nodes [begin, begin + length) were created in it. */
struct ms__call_record {
    _Atomic uint64_t begin;
    _Atomic uint64_t outer;  /* index of the record of the call around it, or MS__NONE; outer < its own index */
    _Atomic uint32_t length; /* or MS__OPEN */
    _Atomic ms_path path;    /* the owner of these nodes */
};

/* Reference from a call record to the call's stats at the ledger (ms__call_ref of call_stats.h). */
struct ms__packed_call_ref {
    uint32_t iteration; /* the lower 32 bits; 0: none */
    uint32_t index;
    ms_path path;
};

/* Each record has an index, in the order in which the calls began; record i is records[i % capacity].
 *
 *     index    first          oldest                     end
 *                | overwritten  | stored, sorted by begin  |
 *
 *     first <= oldest <= end <= oldest + capacity
 *
 * The ring's own thread writes it. Any thread reads it without a lock. That is safe because
 * - the writer raises `oldest` before it overwrites a record, and a reader checks `oldest` after it has read;
 * - a call that begins after a node was created has begin > that node's number, so records that the
 *   writer appends or removes at the end cannot change the answer for that node. */
struct ms__call_ring {
    struct ms__call_record *records;       /* allocated at once; the system maps the pages when they are first used */
    struct ms__packed_call_ref *call_refs; /* one for each record, or NULL; guarded by the ledger's lock */
    uint32_t capacity;                     /* a power of two */
    _Atomic uint64_t first;
    _Atomic uint64_t oldest;
    _Atomic uint64_t end;
    /* The owner of nodes [unknown_from, unknown_to) is unknown: a call that has no record may have created them. */
    _Atomic uint64_t unknown_from, unknown_to;
    /* Most backward nodes create no nodes, so a running node gets a record only when it does. Until then
     * the nodes from number unrecorded_from on belong to unrecorded_path. */
    _Atomic uint64_t unrecorded_from; /* UINT64_MAX: there is no such node */
    _Atomic ms_path unrecorded_path;
};

/* MS_OK or MS_ENOMEM. The ring is zeroed before. */
int ms__call_ring_open(ms_watch *watch, struct ms__call_ring *ring, uint32_t capacity);
void ms__call_ring_close(ms_watch *watch, struct ms__call_ring *ring);
/* Discard every record. Indices are not used again. */
void ms__call_ring_clear(struct ms__call_ring *ring);

MS__INLINE struct ms__call_record *ms__call_ring_at(const struct ms__call_ring *ring, uint64_t index)
{
    return &ring->records[index & (ring->capacity - 1)];
}

/* The owner of nodes [from, to) is unknown. The ring stores one range, which includes all ranges ever marked. */
static inline void ms__call_ring_mark_unknown(struct ms__call_ring *ring, uint64_t from, uint64_t to)
{
    if (from < MS__PEEK(ring->unknown_from))
        MS__STORE(ring->unknown_from, from);
    if (to > MS__PEEK(ring->unknown_to))
        MS__STORE(ring->unknown_to, to);
}

/* Append the record of a call that begins at node number `begin`. Returns its index. */
MS__INLINE uint64_t ms__call_ring_push(struct ms__call_ring *ring, uint64_t begin, uint64_t outer, ms_path path)
{
    uint64_t index = MS__PEEK(ring->end);
    if (MS__UNLIKELY(index - MS__PEEK(ring->oldest) >= ring->capacity))
        MS__STORE(ring->oldest, index - ring->capacity + 1);
    struct ms__call_record *record = ms__call_ring_at(ring, index);
    MS__STORE(record->begin, begin);
    MS__STORE(record->outer, outer);
    MS__STORE(record->length, MS__OPEN);
    MS__STORE(record->path, path);
    MS__STORE(ring->end, index + 1);
    return index;
}

/* The call of this record ends at node number `end`. The newest record is removed if its call created no
 * node. Nothing happens if the record was overwritten while its call was open. */
MS__INLINE void ms__call_ring_end(struct ms__call_ring *ring, uint64_t index, uint64_t end)
{
    if (MS__UNLIKELY(index < MS__PEEK(ring->oldest)))
        return;
    struct ms__call_record *record = ms__call_ring_at(ring, index);
    uint64_t length = end - MS__PEEK(record->begin);
    if (length == 0 && index + 1 == MS__PEEK(ring->end)) {
        MS__STORE(ring->end, index);
        return;
    }
    if (MS__UNLIKELY(length >= MS__OPEN)) {
        ms__call_ring_mark_unknown(ring, end - length + MS__OPEN - 1, end);
        length = MS__OPEN - 1;
    }
    MS__STORE(record->length, (uint32_t)length);
}

/* Whether the ring neither stores a record nor marks a node as unknown. */
static inline bool ms__call_ring_empty(const struct ms__call_ring *ring)
{
    return MS__PEEK(ring->end) == MS__PEEK(ring->first) && MS__PEEK(ring->unknown_from) == UINT64_MAX;
}

#endif
