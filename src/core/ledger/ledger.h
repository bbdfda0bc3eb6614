/* ledger.h - what the files of the ledger share: blocks, cells, moments. All of it is guarded
 * by ledger->lock, except where another guard is named. */
#ifndef MS_LEDGER_H
#define MS_LEDGER_H

#include "core/capture/write/encoder.h"
#include "core/ledger/call_events.h"
#include "core/lock.h"
#include "core/watch/watch.h"
#include "modscope_capture.h"

#include <assert.h>

/* ---- block.h, block.c: the live blocks, by address ---- */
struct ms__block {
    uint64_t address; /* of a struct that is free: the next free one, or 0 */
    uint64_t bytes;
    uint64_t since; /* ledger->time: made then, or what it was before is another matter */
    ms_path path;
    uint8_t device, category, mark;
    bool outside;
};
static_assert(sizeof(struct ms__block) == 32, "half of what a live block may cost");
static_assert(MS_PARAMETER < MS_BUFFER && MS_BUFFER < MS_GRADIENT, "parameters and buffers come first");

#define MS__BLOCK_CHUNK 1024u

/* The table is open addressing: a slot holds the upper half of the
 * address's hash and the block's number + 1; no probe is longer than it must be (a removal
 * shifts back what follows). At most 6 in 10 slots are used, while memory lasts. */
struct ms__blocks {
    struct ms__block **chunks;
    uint32_t chunk_room, room; /* of the directory, and blocks in all chunks */
    uint32_t used;             /* numbers ever given out */
    uint32_t free_first;       /* number + 1; 0: none */
    uint32_t count;
    uint32_t most; /* how many the table takes before it grows */
    uint64_t *slots;
    uint32_t slot_bits;   /* 0: no table yet */
    uint32_t mask, shift; /* made of it */
};

void ms__blocks_close(ms_watch *watch, struct ms__blocks *blocks);
/* Visit all: start with *at = 0 until NULL comes. The one given may be removed. */
struct ms__block *ms__block_next(const struct ms__blocks *blocks, uint32_t *at);
uint64_t ms__blocks_memory(const struct ms__blocks *blocks);
const char *ms__block_table_check(const struct ms__blocks *blocks);

/* ---- cell.h, cell.c: bytes by device, path and category; now, and at the viewers' peaks ---- */
#define MS__CELL_PATHS 64u /* paths a chunk of cells is for */

#define MS__CELL_ROW 8u /* cells a path; the last is not used */
static_assert(MS_CATEGORY_COUNT <= MS__CELL_ROW, "a path's cells are a row");

struct ms__cells {
    int64_t now[MS__CELL_PATHS * MS__CELL_ROW];
};

static inline uint32_t ms__cell_at(ms_path path, uint32_t category)
{
    return path % MS__CELL_PATHS * MS__CELL_ROW + category;
}

/* What a viewer remembers of a chunk of cells. A cell's value at the peak is `at` if it was
 * saved after the peak, else what it is now: it has not changed since. So a new peak copies
 * nothing, and a change saves the old value at most once a peak. */
struct ms__seen {
    struct ms__saved {
        int64_t at;
        uint64_t when; /* ledger->time */
    } cells[MS__CELL_PATHS * MS__CELL_ROW];
};

/* Sizes that are powers of two: these are looked up for every block. */
struct ms__device {
    ms_sums now;
    int64_t total;
    struct ms__cells **cells; /* by path / MS__CELL_PATHS */
    uint32_t room;
    uint8_t unused[52];
};
static_assert(sizeof(struct ms__device) == 128, "a power of two");

struct ms__view {
    ms_peak peak;
    uint64_t peak_time;     /* ledger->time */
    uint64_t peak_since;    /* of the block that made it; 0: none did */
    struct ms__seen **seen; /* wherever the device has cells */
    uint32_t room;
    uint8_t unused[12];
};
static_assert(sizeof(struct ms__view) == 128, "a power of two");

struct ms_peak_tracker {
    ms_ledger *ledger;
    ms_peak_tracker *next;
    struct ms__view views[MS_MAX_DEVICES];
};

/* After a block moved between cells: it moves in the peaks it lived at, too. */
void ms__peaks_move(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t category);
void ms__cells_close(ms_ledger *ledger);
void ms__viewers_close(ms_ledger *ledger);

/* ---- entry.c, seat.c, moment.c: what was held around calls ---- */
enum { MS__ENTRY_MOMENTS = 6 }; /* the first of enum ms_call_state; the two AC moments have entries of their own */

/* The moments of one call. */
struct ms__entry {
    ms_sums *sums; /* moment * devices + device */
    uint32_t devices;
    uint32_t has; /* bit i: moment i */
    uint64_t when[MS__ENTRY_MOMENTS];
    uint64_t input, output;
};

struct ms__entries {
    struct ms__entry *at;
    uint32_t count, room;                      /* what is beyond count keeps its memory for the next round */
    uint32_t read_moment, read_index, read_at; /* where the last reader was: the next goes on there */
};

struct ms__stat {
    uint64_t round; /* of its entries; 0: never called */
    uint64_t step;
    struct ms__entries forward, again; /* `again`: AC moments only */
};

enum ms__span_kind { MS__SPAN_FORWARD, MS__SPAN_AGAIN, MS__SPAN_BACKWARD };

/* A stretch of a thread's time whose peak is kept: an open call, or a call in whose nodes the
 * thread is. Innermost last; only the innermost one is compared with each new total, and it
 * hands its peak to the next when it ends. */
struct ms__span {
    uint64_t record; /* backward: the call's, in the maker's table */
    uint64_t maker;  /* backward: the thread's id */
    uint64_t round;  /* with path and entry: where its moments are */
    ms_path path;
    uint32_t entry;
    uint32_t kind;
    uint32_t frame; /* call: the thread's depth with it open */
    uint32_t level; /* how many nodes were open, the one that brought it included; 0 for a call */
    bool again;     /* backward: it is not the first time */
};

struct ms__most { /* of one device: the highest total, and of what */
    int64_t total;
    ms_sums sums;
};

struct ms__seat { /* a thread at a ledger */
    /* What every block looks at. */
    struct ms__seat *next;
    struct ms__most *top;    /* the innermost span's, or NULL */
    uint32_t top_level;      /* the innermost span's */
    _Atomic uint32_t inside; /* nodes open; written by the thread alone */
    uint32_t devices;
    uint32_t count, room, chain_room;
    _Atomic bool grown; /* blocks were made since the last node was left */

    _Atomic(ms_ledger *) ledger; /* NULL: at none */
    struct ms__span *spans;
    struct ms__most *most; /* span * devices + device */
    struct ms__most *left; /* by device: when the last node was left */
    struct ms__span *chain;
    uint64_t round;
    /* The node that ran last: while the next is in the same call, there is nothing to do. */
    _Atomic uint64_t last_record;
    uint64_t last_maker; /* the thread's own */
    uint32_t last_level; /* the thread's own */
};

static inline ms_sums *ms__sums_of(const struct ms__entry *entry, uint32_t moment, uint32_t device)
{
    return entry->sums + ((size_t)moment * entry->devices + device);
}

static inline struct ms__most *ms__most_of(const struct ms__seat *seat, uint32_t span)
{
    return seat->most + (size_t)span * seat->devices;
}

/* What is known of a path's calls, or NULL; the second makes it, NULL when memory runs out. */
struct ms__stat *ms__stat_at(const ms_ledger *ledger, ms_path path);
struct ms__stat *ms__stats_grow(ms_ledger *ledger, ms_path path);
void ms__stats_close(ms_ledger *ledger);
/* A new entry with room for every device known. NULL when memory runs out. */
struct ms__entry *ms__entry_append(ms_ledger *ledger, struct ms__entries *entries);
/* Room for every device known. False when memory runs out. */
bool ms__entry_widen(ms_ledger *ledger, struct ms__entry *entry);
/* The moment has been; its figures come later. */
static inline void ms__entry_mark(ms_ledger *ledger, struct ms__entry *entry, uint32_t moment);
/* What is held now is what was held at this moment. */
void ms__entry_note(ms_ledger *ledger, struct ms__entry *entry, uint32_t moment);
/* The entry a span stands for; NULL if a newer round took its place. */
struct ms__entry *ms__entry_of(const ms_ledger *ledger, const struct ms__span *span);
int64_t ms__total_of(const ms_sums *sums);

/* This thread's seat; NULL when memory ran out or the ledger is no longer attached. */
struct ms__seat *ms__seat_of(ms_ledger *ledger, ms_thread *thread);
/* Room for one more span and every device known. False when memory runs out. */
bool ms__seat_has_room(struct ms__seat *seat);
/* The innermost span changed, or where its peak is. */
void ms__seat_find_top(struct ms__seat *seat);
/* A node is left: if it is the last, the backwards it was in end with what is held now. */
void ms__seat_note_left(ms_ledger *ledger, struct ms__seat *seat);
/* End the backwards that no node open now is in. */
void ms__seat_settle(ms_ledger *ledger, struct ms__seat *seat, uint32_t level);
void ms__seats_leave(ms_ledger *ledger);
/* Bring entries up to date: backwards that are over, peaks of what is still open. */
void ms__seats_bring_up_to_date(ms_ledger *ledger);
/* There is room. */
void ms__span_push(ms_ledger *ledger, struct ms__seat *seat, const struct ms__span *span);
/* What is held now is held in this span. */
void ms__span_raise(const ms_ledger *ledger, struct ms__seat *seat, uint32_t at);
/* A span's peak so far goes to its entry, and to the span around it. */
void ms__span_hand_over(ms_ledger *ledger, struct ms__seat *seat, uint32_t at);
/* The innermost span is a backward that ended when the last node was left. */
void ms__span_pop_backward(ms_ledger *ledger, struct ms__seat *seat);
struct ms_ledger {
    /* What every block needs, in a few lines of the cache. */
    struct ms__lock lock;
    _Atomic bool attached; /* written with watch->lock too */
    bool claiming;         /* between ms_claims_begin and ms_claims_end */
    uint8_t mark;          /* of the claims that count now */
    uint32_t device_count;
    uint32_t loose_count;
    uint64_t time; /* counts changes */
    ms_peak_tracker *viewers;
    _Atomic(ms_capture *) captures; /* those that go on; written with the lock held */
    struct ms__seat *seats;
    ms_watch *watch;
    uint64_t step;
    struct ms__blocks blocks;
    struct ms__device devices[MS_MAX_DEVICES];

    _Atomic uint64_t lost;
    bool steps_expected, step_left;
    uint64_t replaced;
    ms_sums outside[MS_MAX_DEVICES];
    uint64_t reserved[MS_MAX_DEVICES]; /* what the device's allocator said last */
    struct ms__stat **stats;           /* by path / MS__CELL_PATHS */
    uint32_t stats_room;
    uint32_t loose_room;
    struct ms__span *loose; /* backwards told without nodes */
    ms_ledger *next;        /* the watch's closed ones; guarded by watch->lock */
};

static inline void ms__entry_mark(ms_ledger *ledger, struct ms__entry *entry, uint32_t moment)
{
    entry->has |= 1u << moment;
    entry->when[moment] = ++ledger->time;
}

/* The device's total grew: the innermost spans that go on now may have a new peak. The first is
 * for what is rare. */
void ms__span_grow(ms_ledger *ledger, struct ms__seat *seat, uint32_t device);
void ms__loose_grow(ms_ledger *ledger, uint32_t device);
MS__INLINE void ms__spans_grow(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    for (struct ms__seat *seat = ledger->seats; seat; seat = seat->next) {
        if (!seat->top)
            continue;
        if (MS__UNLIKELY(device >= seat->devices ||
                         seat->top_level > atomic_load_explicit(&seat->inside, memory_order_relaxed))) {
            ms__span_grow(ledger, seat, device);
            continue;
        }
        struct ms__most *most = &seat->top[device];
        if (on->total > most->total)
            *most = (struct ms__most){on->total, on->now};
    }
    if (MS__UNLIKELY(ledger->loose_count))
        ms__loose_grow(ledger, device);
}

/* Whether any capture records this ledger. */
static inline bool ms__captured(const ms_ledger *ledger)
{
    return MS__UNLIKELY(MS__PEEK(ledger->captures) != NULL);
}

/* Grow a directory of chunks to hold index `at`. False when memory runs out. */
bool ms__directory_grow(ms_watch *watch, void ***chunks, uint32_t *room, uint32_t at);
static inline void ms__ledger_count_lost(ms_ledger *ledger)
{
    atomic_fetch_add_explicit(&ledger->lost, 1, memory_order_relaxed);
}

#endif
