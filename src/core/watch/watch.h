/* watch.h - what the files of the watch share: memory, paths, threads and the watch itself. */
#ifndef MS_WATCH_H
#define MS_WATCH_H

#include "core/base.h"
#include "core/watch/call_ring.h"

#include <pthread.h>

/* ---- memory: the whole core allocates through the watch's options ---- */
void *ms__alloc(ms_watch *watch, size_t bytes);
void *ms__alloc_zeroed(ms_watch *watch, size_t bytes); /* the system maps the pages when they are first used */
void ms__free(ms_watch *watch, void *memory);
/* Count one event that could not be recorded. */
void ms__count_lost(ms_watch *watch);

/* ---- paths ---- */
#define MS__PATH_CHUNK 256u

struct ms__path {
    ms_path parent;
    uint32_t depth;
    uint32_t next; /* the next path in the same bucket; 0: this is the last */
    uint32_t hash;
    uint32_t nth;
    char *name;
    _Atomic(const char *) shown; /* the name in figures: `name`, or that of a rename */
};

/* A path is shown by this name from now on, until a later rename of it. Renames are never freed before the watch,
 * because other threads may be reading the name. */
struct ms__rename {
    struct ms__rename *older;
    ms_path path;
    char name[];
};

/* Path i is chunks[i / MS__PATH_CHUNK][i % MS__PATH_CHUNK]. Chunks never move, so a path is read without a lock. */
struct ms__paths {
    struct ms__path *_Atomic *chunks; /* allocated once, for options.paths_kept */
    uint32_t chunk_count;
    _Atomic uint32_t count;
    uint32_t *buckets; /* the first path of each bucket, 0: it is empty; guarded by watch->lock */
    uint32_t bucket_count;
    _Atomic(struct ms__rename *) renames; /* the latest one; written with watch->lock held */
};

int ms__paths_open(ms_watch *watch, uint32_t capacity);
void ms__paths_close(ms_watch *watch);
uint32_t ms__path_nth(const ms_watch *watch, ms_path path);

/* ---- stacks ---- */
#define MS__STACK_CHUNK 256u

struct ms__stack {
    ms_frame frame;
    uint32_t next; /* the next stack in the same bucket; 0: this is the last */
    uint32_t hash;
    ms_stack file_in, function_in, called_in; /* the first stacks with this file, function, called; 0: it has none */
};

struct ms__stack_text {          /* a file, a function or what is called, stored once */
    struct ms__stack_text *next; /* in the same bucket */
    uint32_t hash;
    ms_stack file_in, function_in, called_in; /* the first stacks that have it as file, function, called; 0: none */
    char text[];
};

/* Stack i is chunks[i / MS__STACK_CHUNK][i % MS__STACK_CHUNK]. Chunks never move, so a stack is read without a lock.
 * Everything is NULL until the first stack is added. */
struct ms__stacks {
    struct ms__stack *_Atomic *_Atomic chunks; /* allocated once, for MS_STACKS_MAX */
    _Atomic uint32_t count;                    /* one more than the highest; 0: none was added */
    uint32_t *buckets;                         /* as in struct ms__paths; guarded by watch->lock */
    uint32_t bucket_count;
    struct ms__stack_text **texts; /* buckets; guarded by watch->lock */
    size_t text_bytes;             /* of all texts; guarded by watch->lock */
    _Atomic uint64_t lost;
};

void ms__stacks_close(ms_watch *watch);
/* A stack below ms_stack_count, and above MS_STACK_LOST. */
const struct ms__stack *ms__stack_at(const ms_watch *watch, ms_stack stack);

/* The stacks that created the thread's latest nodes (node_stacks.c). Its own thread writes, others read. */
enum { MS__NODES_KEPT = 131072 }; /* a power of two */
struct ms__node_stacks {
    _Atomic(ms_stack) *_Atomic stacks; /* entry number % MS__NODES_KEPT; NULL until a node is created */
    _Atomic uint64_t end;              /* one more than the number of the latest node */
};

/* For a new thread that uses the memory of an ended one, whose id is no longer there. */
void ms__node_stacks_clear(ms_thread *thread);

/* ---- threads ---- */
enum ms__frame_kind { MS__CALL, MS__NODE, MS__OVERRIDE };

/* An entry of a thread's call stack: a call, a node or an override that is open. */
struct ms__frame {
    uint64_t record; /* index of its call record, MS__UNRECORDED, or MS__NONE for an override */
    uint64_t begin;  /* the number of the next node when it was entered */
    ms_path path;
    uint32_t kind;
};
#define MS__UNRECORDED (UINT64_MAX - 1) /* a node that has created no node yet, and so has no record */

#define MS__NO_THREAD UINT64_MAX
#define MS__DEVICE_NAME 32u

/* The last lookup of a node, because the next node is usually near it: all nodes [from, from + span] of
 * `creator` belong to `path`. */
struct ms__lookup {
    ms_thread *creator;  /* the thread that created them */
    uint64_t creator_id; /* or MS__NO_THREAD: nothing was looked up */
    uint64_t start;      /* the record at which the next search begins */
    uint64_t from, span;
    uint64_t record; /* of the call in which they were created, or MS__NONE */
    ms_path path;
};

struct ms_thread {
    ms_watch *watch;
    _Atomic uint64_t id; /* 0: an ended thread whose memory is about to be used again */
    struct ms__frame *frames;
    uint32_t depth;
    uint32_t capacity; /* of frames */
    uint32_t nodes_open;
    uint32_t unrecorded;       /* frames that are MS__UNRECORDED; no call is inside them */
    uint32_t unpushed;         /* open entries for which there was no memory; they are always the innermost */
    uint64_t saved_unknown_to; /* while unpushed > 0: what ring.unknown_to will be after the last of them ends */
    uint64_t renew_check_at;   /* the ring.end at which open records may soon be overwritten */
    struct ms__call_ring ring;
    struct ms__lookup lookup;
    struct ms__node_stacks node_stacks;

    uint32_t optimizer_at; /* 1 + the depth at which the outermost optimizer step began; 0: none is open */
    uint32_t optimizer_steps_open;
    uint32_t evaluation_at; /* the depth at which the root call of an evaluation is innermost; 0: none is open */
    bool without_grad;      /* the call that is being entered begins while grad mode is off */
    struct ms__thread_spans *spans; /* at the ledger, or NULL */
    uint32_t number;                /* from 1; a new thread that takes an ended one's memory takes its number too */

    bool open;             /* guarded by watch->lock */
    ms_thread *next;       /* the list of all threads; guarded by watch->lock */
    ms_thread *next_ended; /* the list of ended threads; guarded by watch->lock */
};

struct ms_watch {
    ms_options options;
    struct ms__paths paths;
    struct ms__stacks stacks;
    _Atomic uint64_t lost;
    pthread_mutex_t lock;
    ms_thread *threads;          /* guarded by lock */
    ms_thread *ended_first;      /* the next thread whose memory is used again; guarded by lock */
    ms_thread *ended_last;       /* guarded by lock */
    uint32_t ended_count;        /* guarded by lock */
    uint64_t discarded;          /* threads whose calls were discarded or never recorded; guarded by lock */
    _Atomic(ms_ledger *) ledger; /* the one attached, or NULL; written with lock held */
    ms_ledger *closed_ledgers;   /* guarded by lock */
    ms_ledger *locked_ledger;    /* around fork */
    uint64_t iterations;         /* how many have begun; guarded by the attached ledger's lock */
    uint32_t thread_count;       /* guarded by lock */
    char device_names[MS_MAX_DEVICES][MS__DEVICE_NAME]; /* guarded by lock */
};

MS__INLINE ms_phase ms__phase(const ms_thread *thread)
{
    if (MS__UNLIKELY(thread->optimizer_at == thread->depth + 1))
        return MS_OPTIMIZER;
    if (!thread->depth)
        return MS_IDLE;
    if (thread->frames[thread->depth - 1].kind != MS__CALL)
        return MS_BACKWARD;
    if (thread->nodes_open)
        return MS_RECOMPUTE;
    return MS__UNLIKELY(thread->evaluation_at) ? MS_EVALUATION : MS_FORWARD;
}

MS__INLINE ms_path ms__path_of(const ms_thread *thread)
{
    return thread->depth ? thread->frames[thread->depth - 1].path : MS_GLOBAL;
}

/* Push the records of the open nodes that have none: the thread ends, and its stack is about to be emptied. */
void ms__thread_record_nodes(ms_thread *thread);
/* The thread with this id, or NULL. *discarded: some thread's calls were discarded, so it may be that one. */
ms_thread *ms__thread_find(ms_watch *watch, uint64_t id, bool *discarded);
/* NULL if every invariant of the thread holds, else the one that does not. For tests. */
const char *ms__thread_check(const ms_thread *thread);

#endif
