/* call_ring.h - the calls of one thread, as intervals of node numbers, in a ring buffer. */
#ifndef MS_CALL_RING_H
#define MS_CALL_RING_H

#include "core/base.h"

/* ---- records: the calls of one thread, as intervals of node numbers ---- */
#define MS__KEPT_LEAST 256u
#define MS__OPEN UINT32_MAX
#define MS__NONE UINT64_MAX

/* [in, in + len) are the numbers of the nodes made during the call. Sorted by `in`;
 * a record stands after the one that encloses it. */
struct ms__record {
    _Atomic uint64_t in;
    _Atomic uint64_t encloser; /* index, or MS__NONE */
    _Atomic uint32_t len;      /* or MS__OPEN */
    _Atomic ms_path path;      /* whose the nodes are */
};

/* Reference from a call's record to the call's stats at the ledger (ms__call_ref of call_stats.h). */
struct ms__packed_call_ref {
    uint32_t root_call; /* the lower 32 bits; 0: none */
    uint32_t index;
    ms_path path;
};

/* A ring. One thread writes, any thread reads without a lock:
 * - indices only grow, record i lies in slot i % kept;
 * - `low` is raised before a slot is used again, and a reader checks it last;
 * - a record that begins after a node was made has in > that node's number, so what
 *   the writer does at the end of the ring cannot change the answer for that node.
 * origin <= low <= count <= low + kept */
struct ms__call_ring {
    struct ms__record *records;            /* all of the ring; the system gives the pages when they are used */
    struct ms__packed_call_ref *call_refs; /* by record, or NULL; guarded by the ledger's lock */
    uint32_t kept;                         /* a power of two */
    _Atomic uint64_t origin;
    _Atomic uint64_t low;
    _Atomic uint64_t count;
    /* Nodes with these numbers cannot be placed: a call that had no frame may have made them. */
    _Atomic uint64_t unsure_from, unsure_to;
    /* A backward node mostly makes no nodes of its own, so the one that runs has no record
     * until it does. What is made from number pending_in on is pending_path's. */
    _Atomic uint64_t pending_in; /* UINT64_MAX: none */
    _Atomic ms_path pending_path;
};

int ms__call_ring_open(ms_watch *watch, struct ms__call_ring *table, uint32_t kept);
void ms__call_ring_close(ms_watch *watch, struct ms__call_ring *table);
/* Forget every record; indices go on. */
void ms__call_ring_clear(struct ms__call_ring *table);

MS__INLINE struct ms__record *ms__call_ring_at(const struct ms__call_ring *table, uint64_t index)
{
    return &table->records[index & (table->kept - 1)];
}

/* Nodes [from, to) cannot be placed. Keeps one range, around all that are. */
static inline void ms__call_ring_unsure(struct ms__call_ring *table, uint64_t from, uint64_t to)
{
    if (from < MS__PEEK(table->unsure_from))
        MS__STORE(table->unsure_from, from);
    if (to > MS__PEEK(table->unsure_to))
        MS__STORE(table->unsure_to, to);
}

/* The index of a new record, open from `in`. */
MS__INLINE uint64_t ms__call_ring_push(struct ms__call_ring *table, uint64_t in, uint64_t encloser, ms_path path)
{
    uint64_t index = MS__PEEK(table->count);
    if (MS__UNLIKELY(index - MS__PEEK(table->low) >= table->kept))
        MS__STORE(table->low, index - table->kept + 1);
    struct ms__record *record = ms__call_ring_at(table, index);
    MS__STORE(record->in, in);
    MS__STORE(record->encloser, encloser);
    MS__STORE(record->len, MS__OPEN);
    MS__STORE(record->path, path);
    MS__STORE(table->count, index + 1);
    return index;
}

/* Close a record. One that made no node and is the last is taken out; one that was let
 * go while it was open is no longer there. */
MS__INLINE void ms__call_ring_end(struct ms__call_ring *table, uint64_t index, uint64_t out)
{
    if (MS__UNLIKELY(index < MS__PEEK(table->low)))
        return;
    struct ms__record *record = ms__call_ring_at(table, index);
    uint64_t len = out - MS__PEEK(record->in);
    if (len == 0 && index + 1 == MS__PEEK(table->count)) {
        MS__STORE(table->count, index);
        return;
    }
    if (MS__UNLIKELY(len >= MS__OPEN)) {
        ms__call_ring_unsure(table, out - len + MS__OPEN - 1, out);
        len = MS__OPEN - 1;
    }
    MS__STORE(record->len, (uint32_t)len);
}

static inline bool ms__call_ring_empty(const struct ms__call_ring *table)
{
    return MS__PEEK(table->count) == MS__PEEK(table->origin) && MS__PEEK(table->unsure_from) == UINT64_MAX;
}

#endif
