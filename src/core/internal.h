/* internal.h - what the files of the core share. Nothing outside src/core includes it,
 * but for the core's own tests. */
#ifndef MS_INTERNAL_H
#define MS_INTERNAL_H

#include "modscope.h"
#include "modscope_ledger.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define MS__INLINE static inline __attribute__((always_inline)) /* on the way of every event */
#define MS__RARE static __attribute__((noinline))               /* kept out of that way */
#define MS__LIKELY(x) __builtin_expect(!!(x), 1)
#define MS__UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- memory: record.c, path.c and watch.c get theirs from the watch's options ---- */
void *ms__alloc(ms_watch *watch, size_t bytes);
void *ms__alloc_zeroed(ms_watch *watch, size_t bytes); /* the system gives the pages when they are used */
void ms__free(ms_watch *watch, void *memory);
void ms__count_lost(ms_watch *watch);

/* ---- paths ---- */
#define MS__PATH_CHUNK 256u

struct ms__path {
    ms_path parent;
    uint32_t depth;
    uint32_t next; /* in the same bucket; 0 ends it */
    uint32_t hash;
    uint32_t nth;
    char *name;
};

/* Chunks are never moved, so a path once returned is read without the lock. */
struct ms__paths {
    struct ms__path *_Atomic *chunks; /* allocated once, for paths_kept */
    uint32_t chunk_count;
    _Atomic uint32_t count;
    uint32_t *buckets; /* guarded by watch->lock */
    uint32_t bucket_count;
};

int ms__paths_open(ms_watch *watch, uint32_t kept);
void ms__paths_close(ms_watch *watch);
uint32_t ms__path_nth(const ms_watch *watch, ms_path path);

/* ---- records: the calls of one thread, as intervals of node numbers ---- */
#define MS__KEPT_LEAST 256u
#define MS__OPEN UINT32_MAX
#define MS__NONE UINT64_MAX

#define MS__LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define MS__PEEK(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define MS__STORE(x, value) atomic_store_explicit(&(x), (value), memory_order_release)

/* [in, in + len) are the numbers of the nodes made during the call. Sorted by `in`;
 * a record stands after the one that encloses it. */
struct ms__record {
    _Atomic uint64_t in;
    _Atomic uint64_t encloser; /* index, or MS__NONE */
    _Atomic uint32_t len;      /* or MS__OPEN */
    _Atomic ms_path path;      /* whose the nodes are */
};

/* Whose entry of moments a call's record has (moment.c). */
struct ms__link {
    uint32_t round, entry;
    ms_path path;
};

/* A ring. One thread writes, any thread reads without a lock:
 * - indices only grow, record i lies in slot i % kept;
 * - `low` is raised before a slot is used again, and a reader checks it last;
 * - a record that begins after a node was made has in > that node's number, so what
 *   the writer does at the end of the ring cannot change the answer for that node.
 * origin <= low <= count <= low + kept */
struct ms__table {
    struct ms__record *records; /* all of the ring; the system gives the pages when they are used */
    struct ms__link *links;     /* a record's, or NULL; guarded by the ledger's lock */
    uint32_t kept;              /* a power of two */
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

int ms__table_open(ms_watch *watch, struct ms__table *table, uint32_t kept);
void ms__table_close(ms_watch *watch, struct ms__table *table);
/* Forget every record; indices go on. */
void ms__table_clear(struct ms__table *table);

MS__INLINE struct ms__record *ms__table_at(const struct ms__table *table, uint64_t index)
{
    return &table->records[index & (table->kept - 1)];
}

/* Nodes [from, to) cannot be placed. Keeps one range, around all that are. */
static inline void ms__table_unsure(struct ms__table *table, uint64_t from, uint64_t to)
{
    if (from < MS__PEEK(table->unsure_from))
        MS__STORE(table->unsure_from, from);
    if (to > MS__PEEK(table->unsure_to))
        MS__STORE(table->unsure_to, to);
}

/* The index of a new record, open from `in`. */
MS__INLINE uint64_t ms__table_push(struct ms__table *table, uint64_t in, uint64_t encloser, ms_path path)
{
    uint64_t index = MS__PEEK(table->count);
    if (MS__UNLIKELY(index - MS__PEEK(table->low) >= table->kept))
        MS__STORE(table->low, index - table->kept + 1);
    struct ms__record *record = ms__table_at(table, index);
    MS__STORE(record->in, in);
    MS__STORE(record->encloser, encloser);
    MS__STORE(record->len, MS__OPEN);
    MS__STORE(record->path, path);
    MS__STORE(table->count, index + 1);
    return index;
}

/* Close a record. One that made no node and is the last is taken out; one that was let
 * go while it was open is no longer there. */
MS__INLINE void ms__table_end(struct ms__table *table, uint64_t index, uint64_t out)
{
    if (MS__UNLIKELY(index < MS__PEEK(table->low)))
        return;
    struct ms__record *record = ms__table_at(table, index);
    uint64_t len = out - MS__PEEK(record->in);
    if (len == 0 && index + 1 == MS__PEEK(table->count)) {
        MS__STORE(table->count, index);
        return;
    }
    if (MS__UNLIKELY(len >= MS__OPEN)) {
        ms__table_unsure(table, out - len + MS__OPEN - 1, out);
        len = MS__OPEN - 1;
    }
    MS__STORE(record->len, (uint32_t)len);
}

static inline bool ms__table_empty(const struct ms__table *table)
{
    return MS__PEEK(table->count) == MS__PEEK(table->origin) && MS__PEEK(table->unsure_from) == UINT64_MAX;
}

/* ---- threads ---- */
enum ms__kind { MS__CALL, MS__NODE, MS__HOLD };

struct ms__frame {
    uint64_t record; /* index, or one of the words below */
    uint64_t in;     /* the next number when it was entered */
    ms_path path;
    uint32_t kind;
};
#define MS__PENDING (UINT64_MAX - 1) /* a node that made no node yet */
                                     /* MS__NONE: a hold, which makes no nodes */

#define MS__NOBODY UINT64_MAX
#define MS__DEVICE_NAME 32u

struct ms_thread {
    ms_watch *watch;
    _Atomic uint64_t id; /* 0: nobody's */
    struct ms__frame *frames;
    uint32_t depth;
    uint32_t room;
    uint32_t nodes_open;
    uint32_t pending;       /* frames that are MS__PENDING; no call is above them */
    uint32_t unframed;      /* entered without a frame, for want of memory; always the innermost */
    uint64_t unsure_to;     /* where those ended so far */
    uint64_t look_ahead_at; /* the table's count at which the ring may soon come round to what is open */
    struct ms__table table;

    /* Whose nodes this thread ran last, where they were found, and what was found:
     * [found_from, found_from + found_span] of that maker are found_path's. */
    ms_thread *maker;
    uint64_t maker_id; /* or MS__NOBODY */
    uint64_t hint;
    uint64_t found_from, found_span;
    uint64_t found_record; /* the call's, or MS__NONE */
    ms_path found_path;

    uint32_t step_at; /* the depth that an optimizer's step began at, plus 1; 0: none is open */
    uint32_t steps_open;
    struct ms__seat *seat; /* at the ledger, or NULL */
    uint32_t number;       /* from 1; a thread that is used again keeps it */

    bool open;        /* guarded by watch->lock */
    ms_thread *next;  /* all threads; guarded by watch->lock */
    ms_thread *ended; /* the next ended one, oldest first; guarded by watch->lock */
};

struct ms_watch {
    ms_options options;
    struct ms__paths paths;
    _Atomic uint64_t lost;
    pthread_mutex_t lock;
    ms_thread *threads;                                  /* guarded by lock */
    ms_thread *ended_first;                              /* guarded by lock */
    ms_thread *ended_last;                               /* guarded by lock */
    uint32_t ended_count;                                /* guarded by lock */
    uint64_t let_go;                                     /* ended threads whose calls were let go; guarded by lock */
    _Atomic(ms_ledger *) ledger;                         /* the one attached, or NULL; written with lock held */
    ms_ledger *closed_ledgers;                           /* guarded by lock */
    ms_ledger *locked_ledger;                            /* around fork */
    uint64_t rounds;                                     /* guarded by the attached ledger's lock */
    uint32_t thread_count;                               /* guarded by lock */
    char device_names[MS_DEVICES_MOST][MS__DEVICE_NAME]; /* guarded by lock */
};

/* ---- what a ledger is told (moment.c); each takes its lock ---- */
void ms__moment_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path);
void ms__moment_call_leave(ms_ledger *ledger, ms_thread *thread);
/* `record` of maker's table is the call the node was made in, or MS__NONE. */
void ms__moment_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *maker, uint64_t record);
void ms__moment_node_enter_as(ms_ledger *ledger, ms_thread *thread);
void ms__moment_node_leave(ms_ledger *ledger, ms_thread *thread);
void ms__moment_step(ms_ledger *ledger, ms_thread *thread, bool left);
void ms__seat_free(ms_thread *thread); /* the thread ends; with watch->lock held */
void ms__ledgers_free(ms_watch *watch);
void ms__ledger_lock(ms_ledger *ledger);
void ms__ledger_unlock(ms_ledger *ledger);

MS__INLINE ms_phase ms__phase(const ms_thread *thread)
{
    if (MS__UNLIKELY(thread->step_at == thread->depth + 1))
        return MS_OPTIMIZER;
    if (!thread->depth)
        return MS_IDLE;
    if (thread->frames[thread->depth - 1].kind != MS__CALL)
        return MS_BACKWARD;
    return thread->nodes_open ? MS_RECOMPUTE : MS_FORWARD;
}

MS__INLINE ms_path ms__path_of(const ms_thread *thread)
{
    return thread->depth ? thread->frames[thread->depth - 1].path : MS_GLOBAL;
}

/* Give the open nodes their records: the thread ends in them. */
void ms__thread_settle(ms_thread *thread);
/* The thread with this id, or NULL; *gone says whether it was let go. */
ms_thread *ms__thread_find(ms_watch *watch, uint64_t id, bool *gone);
/* NULL if every invariant of the thread holds, else what is broken. For tests. */
const char *ms__thread_broken(const ms_thread *thread);

#endif
