/* watch.h - what the files of the watch share: paths, threads and the watch itself. */
#ifndef MS_WATCH_H
#define MS_WATCH_H

#include "core/base.h"
#include "core/watch/call_ring.h"

#include <pthread.h>

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

/* ---- threads ---- */
enum ms__kind { MS__CALL, MS__NODE, MS__OVERRIDE };

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
    struct ms__call_ring table;

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
    struct ms__thread_spans *spans; /* at the ledger, or NULL */
    uint32_t number;                /* from 1; a thread that is used again keeps it */

    bool open;        /* guarded by watch->lock */
    ms_thread *next;  /* all threads; guarded by watch->lock */
    ms_thread *ended; /* the next ended one, oldest first; guarded by watch->lock */
};

struct ms_watch {
    ms_options options;
    struct ms__paths paths;
    _Atomic uint64_t lost;
    pthread_mutex_t lock;
    ms_thread *threads;                                 /* guarded by lock */
    ms_thread *ended_first;                             /* guarded by lock */
    ms_thread *ended_last;                              /* guarded by lock */
    uint32_t ended_count;                               /* guarded by lock */
    uint64_t let_go;                                    /* ended threads whose calls were let go; guarded by lock */
    _Atomic(ms_ledger *) ledger;                        /* the one attached, or NULL; written with lock held */
    ms_ledger *closed_ledgers;                          /* guarded by lock */
    ms_ledger *locked_ledger;                           /* around fork */
    uint64_t root_calls;                                /* guarded by the attached ledger's lock */
    uint32_t thread_count;                              /* guarded by lock */
    char device_names[MS_MAX_DEVICES][MS__DEVICE_NAME]; /* guarded by lock */
};

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
const char *ms__thread_check(const ms_thread *thread);

#endif
