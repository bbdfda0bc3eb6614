/* writer.h - what the files of the writer share: capture.c makes events of what the ledger is
 * told, writer.c brings them to the file. */
#ifndef MS_CAPTURE_H
#define MS_CAPTURE_H

#include "core/capture/format.h"
#include "core/ledger/ledger.h"

enum {
    MS__PAGE = 64 * 1024,    /* bytes of events in a chunk */
    MS__PAGES_MOST = 256,    /* that may wait for the file */
    MS__KEY_EVENTS = 131072, /* between key frames, at least */
    MS__KEY_BLOCKS = 4,      /* and so many times as there are live blocks */
    MS__NAP_MS = 250,        /* what waits longer is written, full or not */
    MS__LEFT_US = 1000,      /* a thread that is out of backward for less is not shown to be */
    MS__CLOCK_EVERY = 8,     /* blocks between two looks at the clock */
};

/* A chunk on its way. */
struct ms__page {
    struct ms__page *next;
    struct ms__chunk_head head;
    uint32_t room;
    uint8_t bytes[]; /* MS__CHUNK_HEAD, then the payload */
};

/* What is known of a live block beyond the ledger, by its number there. */
struct ms__birth {
    uint64_t since_event, time;
    uint32_t step;
    uint8_t phase;
};

/* Where a thread is, as the file says. */
struct ms__place {
    uint64_t id;
    uint64_t left_at; /* the node it was in was left then... */
    bool left;        /* ...and that is not in the file yet */
    bool known;
    uint8_t phase, left_phase;
    ms_path path, left_path;
};

/* The clock in microseconds since the capture began, and the processor's own count then. */
struct ms__compared {
    uint64_t time, ticks;
};

struct ms_capture {
    /* What capture.c writes; guarded by ledger->lock. First what every event needs, in a few lines of the cache. */
    uint8_t *at, *last;                  /* in the page; at >= last: it is full, or there is none */
    uint64_t event;                      /* the next one's number */
    uint64_t time;                       /* of the one before, in microseconds */
    uint32_t slot, device, thread, path; /* the latest ones mentioned in this page */
    uint32_t untimed;
    uint32_t birth_room;
    struct ms__birth *births;
    struct ms__place *places; /* by a thread's number */
    ms_capture *next;         /* of the ledger's */
    ms_ledger *ledger;
    struct ms__compared compared;
    uint64_t rate, second; /* microseconds a tick, times 2^32; ticks a second, 0: not known */
    uint32_t place_room;
    bool broken;     /* events are lost, until a key frame can be made */
    bool halted;     /* none is to be made yet: the file could not be written */
    uint64_t oldest; /* since_event claimed in this page */

    struct ms__page *page;
    ms_watch *watch;
    uint64_t began; /* nanoseconds of the clock */
    struct ms__compared compared_first;
    uint64_t key_event; /* of the last key frame */
    uint64_t optimizer_steps;
    uint64_t first_step; /* the one it began in */
    uint64_t oom_time;   /* of the last allocation that failed; 0: none did */
    uint64_t reserved[MS_MAX_DEVICES];
    _Atomic uint64_t lost;

    /* What is shared with the thread that writes; guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    struct ms__page *full_first, *full_last, *free;
    uint32_t pages; /* there are, free or not */
    uint32_t waiting;
    bool stopping, busy;

    /* The writing thread's own. */
    int fd;
    uint64_t file[2]; /* which one it was: device and number */
    pthread_t writer;
    bool needs_key;
    uint32_t names_done;
    uint64_t devices_done; /* bit i: device i */
    _Atomic uint64_t bytes;
    _Atomic int error;
    uint8_t *scratch;
    size_t scratch_room;
};

/* Nanoseconds of a clock that never goes back. */
uint64_t ms__clock(void);
/* Begin with what the capture before found out; compare the processor's count with the clock. With ledger->lock held.
 */
void ms__capture_begin_clock(ms_capture *capture);
void ms__capture_compare(ms_capture *capture);

/* The processor's own count of time, where it can be read at once; 0 where it cannot. */
MS__INLINE uint64_t ms__ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* By the processor's count for a second after it was compared with the clock, else by the clock. */
MS__INLINE uint64_t ms__microseconds(const ms_capture *capture)
{
    uint64_t since = ms__ticks() - capture->compared.ticks;
    if (MS__LIKELY(since < capture->second))
        return capture->compared.time + (since * capture->rate >> 32);
    return (ms__clock() - capture->began) / 1000;
}

/* A block that was there before the capture is as old as it. */
static inline struct ms__birth ms__birth_of(const ms_capture *capture, uint32_t number)
{
    if (number < capture->birth_room)
        return capture->births[number];
    return (struct ms__birth){.step = (uint32_t)capture->first_step, .phase = MS_IDLE};
}

/* Write what is held already. With ledger->lock held. */
void ms__capture_start(ms_capture *capture);
/* If it is time, a key frame. With ledger->lock held, and everything as the file says. */
void ms__capture_key(ms_capture *capture);
/* Give the page away. With ledger->lock held. */
void ms__capture_seal(ms_capture *capture);
/* Tell of nodes that were left longer ago than this, in microseconds. With ledger->lock held. */
void ms__capture_tell_left(ms_capture *capture, uint64_t longer_than);

/* writer.c. With ledger->lock held: a page with room for `room` bytes, NULL if no more may wait; and give one to be
 * written. */
struct ms__page *ms__page_take(ms_capture *capture, uint32_t room);
void ms__page_give(ms_capture *capture, struct ms__page *page);
/* Whether so few wait that it is worth to begin again after a loss. */
bool ms__pages_calm(ms_capture *capture);

#endif
