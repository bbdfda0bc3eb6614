/* internal.h - what the files of the core share. Nothing outside src/core includes it,
 * but for the core's own tests. */
#ifndef MS_INTERNAL_H
#define MS_INTERNAL_H

#include "modscope.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define MS__UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- memory: record.c, path.c and watch.c get theirs from the watch's options ---- */
void *ms__alloc(ms_watch *watch, size_t bytes);
void ms__free(ms_watch *watch, void *memory);
void ms__count_lost(ms_watch *watch);

/* ---- paths ---- */
#define MS__PATH_CHUNK 256u

struct ms__path {
    ms_path parent;
    uint32_t depth;
    uint32_t next; /* in the same bucket; 0 ends it */
    uint32_t hash;
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

/* ---- records: the calls of one thread, as intervals of node numbers ---- */
#define MS__CHUNK 256u
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

/* A ring. One thread writes, any thread reads without a lock:
 * - indices only grow, record i lies in slot i % kept;
 * - `low` is raised before a slot is used again, and a reader checks it last;
 * - a record that begins after a node was made has in > that node's number, so what
 *   the writer does at the end of the ring cannot change the answer for that node.
 * origin <= low <= count <= low + kept */
struct ms__table {
    struct ms__record *_Atomic *chunks;
    uint32_t kept; /* a power of two, a multiple of MS__CHUNK */
    _Atomic uint64_t origin;
    _Atomic uint64_t low;
    _Atomic uint64_t count;
    _Atomic uint64_t unsure_below; /* nodes under this number cannot be placed */
    _Atomic uint64_t unsure_from;  /* nor those from here on (a call that could not be recorded is open) */
};

int ms__table_open(ms_watch *watch, struct ms__table *table, uint32_t kept);
void ms__table_close(ms_watch *watch, struct ms__table *table);
/* Forget every record; indices go on. */
void ms__table_clear(struct ms__table *table);
/* The index of a new record, open from `in`; MS__NONE when memory runs out. */
uint64_t ms__table_push(ms_watch *watch, struct ms__table *table, uint64_t in, uint64_t encloser, ms_path path);
/* Close a record. One that made no node and is the last is taken out. */
void ms__table_end(struct ms__table *table, uint64_t index, uint64_t out);
/* Whose node `number` is. `hint` is where to look first and is updated. */
ms_path ms__table_find(struct ms__table *table, uint64_t number, uint64_t *hint);

static inline struct ms__record *ms__table_at(const struct ms__table *table, uint64_t index)
{
    uint32_t slot = (uint32_t)(index & (table->kept - 1));
    return atomic_load_explicit(&table->chunks[slot / MS__CHUNK], memory_order_relaxed) + slot % MS__CHUNK;
}

/* ---- threads ---- */
enum ms__kind { MS__CALL, MS__NODE, MS__HOLD };

struct ms__frame {
    uint64_t record; /* or MS__NONE: a hold, or one that could not be recorded */
    ms_path path;
    uint32_t kind;
};

struct ms_thread {
    ms_watch *watch;
    _Atomic uint64_t id; /* 0: nobody's */
    struct ms__frame *frames;
    uint32_t depth;
    uint32_t room;
    uint32_t nodes_open;
    uint32_t unframed;   /* entered without a frame, for want of memory; always the innermost */
    uint32_t unrecorded; /* frames without a record, for want of memory */
    struct ms__table table;

    /* Whose nodes this thread ran last, and where they were found. */
    ms_thread *maker;
    uint64_t maker_id;
    uint64_t hint;

    bool open;           /* guarded by watch->lock */
    ms_thread *next;     /* all threads; guarded by watch->lock */
    ms_thread *ended;    /* the next ended one, oldest first; guarded by watch->lock */
};

struct ms_watch {
    ms_options options;
    struct ms__paths paths;
    _Atomic uint64_t lost;
    pthread_mutex_t lock;
    ms_thread *threads;      /* guarded by lock */
    ms_thread *ended_first;  /* guarded by lock */
    ms_thread *ended_last;   /* guarded by lock */
    uint32_t ended_count;    /* guarded by lock */
    uint64_t let_go;         /* ended threads whose calls were let go; guarded by lock */
};

/* The thread with this id, or NULL; *gone says whether it was let go. */
ms_thread *ms__thread_find(ms_watch *watch, uint64_t id, bool *gone);
/* NULL if every invariant of the thread holds, else what is broken. For tests. */
const char *ms__thread_broken(const ms_thread *thread);

#endif
