/* writer.h - what the files of the writer share: the ms_capture object.
 *
 *     the program's threads, with ledger->lock held        |   the writing thread
 *     encoder.c, thread_position.c, key_frame.c            |   writer.c, file_writer.c
 *                                                          |
 *     event --> page (event_page.c) --------> queue of pages (page_queue.c) --------> chunk of the file
 *
 * A page is the memory of one chunk. The program's threads never wait for the file: where no page is free, events
 * are lost until a key frame can be made. */
#ifndef MS_WRITER_H
#define MS_WRITER_H

#include "core/capture/format.h"
#include "core/ledger/ledger.h"

enum {
    MS__PAGE_BYTES = 64 * 1024,         /* of events in a chunk */
    MS__MAX_PAGES = 256,                /* for events, queued or not */
    MS__KEY_FRAME_EVENTS = 131072,      /* the fewest events between two key frames... */
    MS__KEY_FRAME_EVENTS_PER_BLOCK = 4, /* ...and the fewest for each live block */
    MS__FLUSH_INTERVAL_MS = 250,        /* after this time a page is written even if it is not full... */
    MS__STEP_FLUSH_MS = 20,             /* ...and at the end of a step after this time */
    MS__SHORT_GAP_US = 1000,            /* between two nodes of a module: a shorter gap is not written */
    MS__EVENTS_PER_CLOCK_READ = 8,      /* of frequent events in a row; a power of two */
};

/* The memory of one chunk, until it is in the file. */
struct ms__page {
    struct ms__page *next;
    struct ms__chunk_head head;
    uint32_t capacity; /* of the payload */
    uint8_t bytes[];   /* MS__CHUNK_HEAD bytes for the header, then the payload */
};

/* Where a live block comes from: what the capture knows about it beyond the ledger. */
struct ms__block_origin {
    uint64_t since_event, time;
    uint32_t step;
    uint8_t phase;
    bool request_noted;
};

/* A thread's position, as the file describes it. A thread that leaves a node usually enters another node of the same
 * module at once. Its position between the two is deferred: it is written only if the gap is long, or if another event
 * comes first, of this thread or of another one. */
struct ms__thread_position {
    uint64_t id;
    uint64_t deferred_time; /* when the thread took the deferred position */
    bool deferred;          /* there is a deferred position */
    bool known;             /* the file mentions this thread */
    uint8_t phase, deferred_phase;
    ms_path path, deferred_path;
};

/* A call whose time on a GPU is not known yet. */
struct ms__timed_call {
    uint64_t number; /* that the caller gave it; 0: there is none */
    uint64_t event;  /* the next one when the call had begun */
    uint32_t thread;
};

/* The same moment by two clocks: microseconds since the capture began, and the processor's tick counter. */
struct ms__calibration {
    uint64_t time, ticks;
};

/* What a collective is written relative to: the one before it in the chunk. */
struct ms__collective_before {
    uint64_t event, time, step;
    ms_path path;
};

struct ms_capture {
    /* Fields of the encoder; guarded by ledger->lock. Those that every event needs come first, to share cache lines. */
    uint8_t *at, *limit; /* where the next event goes; at >= limit: the page is full, or there is none */
    uint64_t event;      /* the number of the next event */
    uint64_t time;       /* of the event before, in microseconds */
    uint32_t slot, device, thread, path; /* the latest ones mentioned in this page */
    uint32_t frequent_events;            /* since `time` last changed */
    uint32_t clock_read_mask;            /* of frequent_events: the clock is read where these bits are 0 */
    uint32_t origin_capacity;
    uint32_t older_paths;                  /* paths below it are older than the capture */
    struct ms__block_origin *origins;      /* by a block's number in ledger->blocks */
    struct ms__thread_position *positions; /* by a thread's number */
    ms_capture *next;                      /* the next capture of the same ledger */
    ms_ledger *ledger;
    _Atomic uint64_t *mentioned;        /* a bit for each older path: the file mentions it */
    struct ms__calibration calibration; /* the latest */
    uint64_t rate;                      /* microseconds per tick, times 2^32 */
    uint64_t ticks_per_second;          /* 0: not known */
    uint32_t position_capacity;
    bool losing;              /* every event is lost until a key frame is made */
    bool write_failed;        /* no key frame is made before the writing thread tries again */
    uint64_t oldest_claimed;  /* of this page: see struct ms__chunk_head */
    uint64_t key_frame_event; /* the number of the event after the last key frame */

    uint8_t *note_at, *note_limit;    /* where the next note goes; note_at >= note_limit: there is no room */
    uint64_t note_event;              /* of the note before */
    uint32_t note_slot;               /* of the note before */
    struct ms__page *notes;           /* the page that notes go to, or NULL */
    uint64_t streams[MS_MAX_DEVICES]; /* of the latest block of each device whose stream was noted */

    uint8_t *time_at, *time_limit;      /* where the next time of a call goes */
    uint64_t time_event;                /* of the time before */
    struct ms__page *times;             /* the page that times of calls go to, or NULL */
    struct ms__timed_call *timed_calls; /* NULL until a call is timed */

    uint8_t *operator_at, *operator_limit; /* where the next operator goes */
    uint64_t operator_event;               /* after the operator before */
    struct ms__page *operators;            /* the page that operators go to, or NULL */
    uint32_t operator_names;               /* names that are in this page */
    const char *names_of_operators[MS__OPERATOR_NAMES];

    uint8_t *inputs_at, *inputs_limit;            /* where the inputs of the next root call go */
    uint64_t inputs_step;                         /* of the root call before */
    struct ms__page *inputs;                      /* the page that they go to, or NULL */
    uint32_t input_lists;                         /* how many different lists of inputs are in this page... */
    uint32_t input_list_ends[MS__INPUT_LISTS][2]; /* ...and where each begins and ends */

    uint8_t *collective_at, *collective_limit; /* where the next collective goes */
    struct ms__collective_before before;       /* the collective before it, to which it is relative */
    struct ms__page *collectives;              /* the page that collectives go to, or NULL */
    uint64_t collective_count;                 /* how many were launched since the capture began */
    bool collective_lost;                      /* one was: times cannot say any more which collective they are of */
    uint8_t *stack_at, *stack_limit;           /* where the next block's stack goes */
    struct ms__page *stacks; /* the page that stacks of adds go to, or NULL: none of this page has one */
    struct ms__stack_history *stack_history; /* see stack_code.h; NULL until a block has a stack */
    uint32_t stack_run;                      /* blocks whose stacks were predicted since the last code */
    uint32_t adds_in_page;                   /* since the page of events was opened */
    bool stacks_missing;                     /* there was no page for the stacks of this page of events */

    struct ms__page *page; /* the one that events go to, or NULL */
    ms_watch *watch;
    uint64_t (*clock)(void); /* nanoseconds: ms__clock, or a clock of the caller's, which has no tick counter */
    uint64_t began;          /* by `clock` */
    struct ms__calibration first_calibration;
    uint64_t optimizer_steps;
    uint64_t first_step; /* the step in which the capture began */
    uint64_t oom_time;   /* when an allocation last failed; 0: never */
    uint64_t reserved[MS_MAX_DEVICES];
    _Atomic uint64_t lost;

    /* The queue, which the encoder and the writing thread share; guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* a page was queued, or the capture ends */
    pthread_cond_t written; /* the writing thread has finished what it was doing */
    struct ms__page *queue_first, *queue_last, *free_pages;
    uint32_t page_count; /* pages for events, in use or free */
    uint32_t unwritten;  /* pages that are queued or being written */
    bool ending;
    bool writing;
    bool running;    /* the writing thread exists, or is about to */
    uint32_t pauses; /* how many times it is paused */
    /* ms_capture_end_on_request; NULL: nobody can request it */
    bool (*is_end_requested)(void);
    const char *const *requested_info;
    void (*after_requested_end)(const ms_capture_status *status);

    /* Fields that only the writing thread uses. */
    int fd;
    uint64_t file_identity[2]; /* device and inode of the file that fd was at first */
    pthread_t writer;
    char writer_name[64];                     /* of the thread in /proc: "4242/task/4250"; "" where there is no /proc */
    bool skip_to_key_frame;                   /* pages are discarded until one is a key frame */
    uint32_t paths_written;                   /* lower paths are in the file, older ones if they are mentioned */
    uint64_t *older_written;                  /* a bit for each older path: its name is in the file */
    uint32_t stacks_written;                  /* one more than the highest stack that is in the file; 0: none is */
    const struct ms__rename *renames_written; /* the latest one that is in the file, or NULL */
    uint64_t devices_written;                 /* bit i: device i */
    _Atomic uint64_t bytes;                   /* of the file */
    _Atomic int error;                        /* errno of the last write that failed */
    _Atomic bool truncated;                   /* another program made the file shorter */
    uint8_t *chunk;                           /* memory to build a chunk in that has no page */
    size_t chunk_capacity;
};

/* ---- clock.c ---- */

/* Nanoseconds of a clock that never goes back. */
uint64_t ms__clock(void);
/* Choose the clock of a new capture, which begins now. */
void ms__capture_choose_clock(ms_capture *capture);
/* Calibrate a new capture with the tick rate that an earlier capture measured, if one did. With ledger->lock held. */
void ms__capture_begin_clock(ms_capture *capture);
/* Measure the tick rate again. With ledger->lock held. */
void ms__capture_calibrate(ms_capture *capture);

/* The processor's tick counter; 0 where it cannot be read in a few cycles. */
MS__INLINE uint64_t ms__ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* The time since the capture began, in microseconds, read from its clock. */
MS__INLINE uint64_t ms__microseconds_by_clock(const ms_capture *capture)
{
    return (capture->clock() - capture->began) / 1000;
}

/* The same, computed from the tick counter for a second after a calibration. A clock of the caller's is not calibrated,
 * so that it is always read. */
MS__INLINE uint64_t ms__microseconds(const ms_capture *capture)
{
    uint64_t since = ms__ticks() - capture->calibration.ticks;
    if (MS__LIKELY(since < capture->ticks_per_second))
        return capture->calibration.time + (since * capture->rate >> 32);
    return ms__microseconds_by_clock(capture);
}

/* ---- key_frame.c and thread_position.c; with ledger->lock held ---- */

/* Where block `number` comes from. Blocks that are older than the capture count as allocated when it began. */
static inline struct ms__block_origin ms__block_origin_of(const ms_capture *capture, uint32_t number)
{
    if (number < capture->origin_capacity)
        return capture->origins[number];
    return (struct ms__block_origin){.step = (uint32_t)capture->first_step, .phase = MS_IDLE};
}

/* Make a key frame if one is due. The ledger's blocks must be as the events so far describe them. Every event comes
 * through ms__capture_check_key_frame, which knows without a call that none is due for long. */
void ms__capture_make_key_frame_if_due(ms_capture *capture);
MS__INLINE void ms__capture_check_key_frame(ms_capture *capture)
{
    if (MS__UNLIKELY(capture->losing || capture->event - capture->key_frame_event >= MS__KEY_FRAME_EVENTS))
        ms__capture_make_key_frame_if_due(capture);
}
/* Write the deferred positions that are at least `age` microseconds old. */
void ms__capture_write_deferred(ms_capture *capture, uint64_t age);
/* Queue the pages that are being filled, if there are any: events, and notes about them. */
void ms__capture_close_page(ms_capture *capture);

/* ---- notes.c; with ledger->lock held ---- */

/* Note the kind of every block that has one: after a key frame that begins the file or follows lost events. */
void ms__capture_note_all_kinds(ms_capture *capture);
/* Queue the page of notes, if there is one. */
void ms__capture_close_notes(ms_capture *capture);

/* ---- block_stacks.c; with ledger->lock held ---- */

/* The event that was just written added a block, which this stack made. */
void ms__capture_stack(ms_capture *capture, ms_stack stack);
/* Queue the page of stacks, if there is one. The page of events ends, too. */
void ms__capture_close_stacks(ms_capture *capture);
/* Queue the stacks of all blocks, for the key frame that was just queued. */
void ms__capture_key_frame_stacks(ms_capture *capture);

/* ---- call_times.c; with ledger->lock held ---- */

/* Queue the page of times, if there is one. */
void ms__capture_close_times(ms_capture *capture);

/* ---- operators.c; with ledger->lock held ---- */

/* Queue the page of operators, if there is one. */
void ms__capture_close_operators(ms_capture *capture);

/* ---- root_inputs.c; with ledger->lock held ---- */

/* Queue the page of inputs, if there is one. */
void ms__capture_close_inputs(ms_capture *capture);

/* ---- collectives.c; with ledger->lock held ---- */

/* Queue the page of collectives, if there is one. */
void ms__capture_close_collectives(ms_capture *capture);

/* ---- page_queue.c ---- */

/* A page with room for `capacity` bytes of events. NULL if MS__MAX_PAGES are in use or memory runs out. */
struct ms__page *ms__page_take(ms_capture *capture, uint32_t capacity);
/* Queue a page for the writing thread, which then owns it. */
void ms__page_queue(ms_capture *capture, struct ms__page *page);
/* Remove the first page from the queue; NULL if it is empty. The caller holds capture->lock. */
struct ms__page *ms__page_dequeue(ms_capture *capture);
/* The page's chunk is in the file, or lost. A page of events can be taken again. */
void ms__page_release(ms_capture *capture, struct ms__page *page);
/* Whether at most half of MS__MAX_PAGES wait to be written, so that recording may begin again after a loss. */
bool ms__queue_has_room(ms_capture *capture);
/* Free the queue and the free pages. Nobody uses them any more. */
void ms__pages_free(ms_capture *capture);

/* ---- file_writer.c; for the writing thread, or when there is none. False: `error` says why, or memory ran out ---- */

/* Remember which file fd is, and write the file's header. */
bool ms__file_begin(ms_capture *capture);
/* Write the page's chunk. Before it, the names of paths and devices that are new since the last one. */
bool ms__file_append_page(ms_capture *capture, struct ms__page *page);
/* Write the names of paths that are new, but not of older ones that the capture does not mention. `next` is the header
 * of the chunk that follows. */
bool ms__file_append_names(ms_capture *capture, const struct ms__chunk_head *next);
/* The file has no names any more. */
void ms__file_forget_names(ms_capture *capture);
/* Write an info or end chunk. `pairs`: keys and values, NULL after the last. `at`: the moment, as for names. */
bool ms__file_append_pairs(ms_capture *capture, enum ms__chunk_kind kind, const char *const *pairs,
                           const struct ms__chunk_head *at);

#endif
