/* reader.h - what the files of the reading half share: a capture's chunks, its words, and what a
 * cursor knows at its moment.
 *
 * Nothing that a file says is trusted: a number is checked before anything depends on it, and
 * memory is asked for what is there, never for what is announced. */
#ifndef MS_READER_H
#define MS_READER_H

#include "core/capture/format.h"

/* ---- reader.c: the file and its chunks ---- */
struct ms__chunk { /* of events, or a key frame */
    uint64_t at;   /* where its payload lies in the file */
    uint64_t event, time;
    uint64_t oldest;     /* events: the lowest since_event that a claim refers to */
    uint64_t step, lost; /* key frame; unless `lost` grew, before it is checked */
    uint32_t size, crc, events;
    bool key;
    bool bad; /* it was read, and not all of it could be */
};

struct ms__pair {
    const char *key, *value;
};

struct ms__pairs {
    struct ms__pair *at;
    size_t count, room;
};

struct ms__name {
    const char *name; /* NULL: not named */
    ms_path parent;
    uint32_t nth;
};

struct ms__kept { /* a payload, in which words lie */
    struct ms__kept *next;
    uint8_t bytes[];
};

struct ms_reader {
    ms_options memory; /* its alloc, free and context */
    int fd;
    uint64_t seed; /* of maps */
    uint64_t bytes, damaged, events, lost, duration;
    bool ended;
    uint32_t devices; /* one more than the highest that has a name, or was met */
    struct ms__chunk *chunks;
    size_t count, room;
    struct ms__pairs info, end;
    const char *device_names[MS_MAX_DEVICES];
    struct ms__name *paths;
    size_t path_count, path_room;
    struct ms__kept *kept;
};

struct ms__buffer {
    uint8_t *bytes;
    size_t room;
};

void *ms__reader_alloc(const ms_reader *reader, size_t bytes);
void ms__reader_free(const ms_reader *reader, void *memory);
/* An array of `*room` things of this size that must hold `count`, at least 1: it, or a larger one in its place. NULL
 * when memory runs out; then it is as it was. */
void *ms__reader_grow(const ms_reader *reader, void *array, size_t *room, size_t count, size_t size);
/* Read a chunk's payload into the buffer. MS_EFORMAT: it is damaged; MS_EIO, MS_ENOMEM. */
int ms__reader_read(ms_reader *reader, struct ms__chunk *chunk, struct ms__buffer *buffer);
/* The last `bytes` of the chunk cannot be read. */
void ms__reader_give_up(ms_reader *reader, struct ms__chunk *chunk, uint64_t bytes);
static inline void ms__reader_met_device(ms_reader *reader, uint32_t device)
{
    if (MS__UNLIKELY(device >= reader->devices))
        reader->devices = device + 1;
}

/* ---- words.c: info, devices and names ---- */
/* Take what a payload says, whose bytes stay. MS_EFORMAT: the rest of it is damaged; MS_ENOMEM. */
int ms__words_read(ms_reader *reader, uint32_t kind, uint8_t *bytes, size_t size);
void ms__words_close(ms_reader *reader);

/* ---- event.c: events as they are written ---- */
struct ms__scan { /* in a chunk of events */
    struct ms__bytes bytes;
    uint64_t number, time; /* the next event's number, the last one's time */
    uint32_t left;         /* events that are to come in it */
    uint32_t slot, device, thread;
    ms_path path;
};

struct ms__raw {
    ms_event event; /* without what only the state knows */
    uint64_t age;   /* claim */
    uint8_t bits;   /* of the first byte */
    uint8_t what;   /* add: explicit, claim */
};

static inline bool ms__is_what(uint8_t what)
{
    return (what & MS__ATTRIBUTES_CATEGORY) < MS_CATEGORY_COUNT && what >> MS__ATTRIBUTES_PHASE <= MS_OPTIMIZER;
}

/* At the beginning of this chunk, whose payload is here. */
void ms__scan_open(struct ms__scan *scan, const struct ms__chunk *chunk, const uint8_t *payload);
/* The next event; there are some left. False if it is none. */
bool ms__scan_next(struct ms__scan *scan, struct ms__raw *raw);

/* ---- map.h ---- */
struct ms__map {
    uint64_t *slots;      /* key << 32 | value + 1; 0: empty */
    uint32_t count, most; /* there are, and it takes before it grows */
    uint32_t mask, shift; /* made of its size */
    uint64_t seed;
};

/* ---- ahead.c: what a block is found to be by later claims ---- */
struct ms__later {
    uint64_t since_event;
    uint32_t slot;
    ms_path path;
    uint32_t order; /* of the claim in the file */
    uint8_t category;
};

struct ms__ahead {
    struct ms__later *all; /* by since_event and slot */
    size_t count, room;
    size_t near; /* where it looked last */
};

/* Look through the file. MS_ENOMEM, MS_EIO: there is nothing to close. */
int ms__ahead_open(ms_reader *reader, struct ms__ahead *ahead);
void ms__ahead_close(const ms_reader *reader, struct ms__ahead *ahead);
/* What the block in this slot is from this since_event on, if a claim tells; else nothing changes. */
void ms__ahead_tell(struct ms__ahead *ahead, uint64_t since_event, uint32_t slot, uint8_t *category, ms_path *path);

/* ---- state.c: what is known at a moment ---- */
struct ms__who {
    uint64_t id;
    uint32_t number;
    ms_path path;
    uint8_t phase;
};

/* total = sum over categories = sum over blocks, for every device */
struct ms__state {
    ms_captured_block *blocks; /* in no order */
    size_t count, room;
    struct ms__map by_slot;
    struct ms__who *threads;
    size_t thread_count, thread_room;
    struct ms__map by_thread;
    uint32_t who;                        /* whose the events are: index in threads, or MS__MAP_NONE */
    uint32_t in_phase[MS_OPTIMIZER + 1]; /* threads */
    ms_sums now[MS_MAX_DEVICES];
    int64_t total[MS_MAX_DEVICES];
    uint64_t reserved[MS_MAX_DEVICES];
    uint64_t step, optimizer_steps, lost;
    struct ms__ahead *ahead; /* NULL: later claims are not known yet */
};

void ms__state_clear(struct ms__state *state);
void ms__state_close(ms_reader *reader, struct ms__state *state);
/* From now on events are this thread's. */
void ms__state_turn(struct ms__state *state, uint32_t thread);
/* What the key frame says, and nothing else. MS_EFORMAT: nothing has changed; MS_ENOMEM: anything may have. */
int ms__state_load(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk, const uint8_t *payload);
/* The event happens, and is completed. MS_EFORMAT: it cannot; MS_ENOMEM. Then nothing has changed. */
int ms__state_happen(ms_reader *reader, struct ms__state *state, struct ms__raw *raw);
/* The block is something else, as a claim says. */
void ms__state_claim(struct ms__state *state, ms_captured_block *block, uint8_t category, ms_path path);
/* Of the threads' phases the first of recompute, backward, optimizer, forward, idle. */
ms_phase ms__state_phase(const struct ms__state *state);
/* NULL if there is no block in that slot. */
ms_captured_block *ms__state_block(const struct ms__state *state, uint32_t slot);

/* What the format calls a path, as the reader's callers may use it. */
static inline ms_path ms__path_known(const ms_reader *reader, ms_path path)
{
    return path < reader->path_count || path == MS_GLOBAL ? path : MS_UNKNOWN;
}

/* ---- cursor.c ---- */
struct ms_cursor {
    ms_reader *reader;
    struct ms__state state;
    struct ms__ahead ahead; /* what state.ahead is, if anything */
    struct ms__buffer buffer;
    struct ms__scan scan; /* scan.left: events of the open chunk that are to come */
    size_t at;            /* the chunk that comes next; the open one is before it */
    uint64_t moment, time;
    bool known;   /* the state is the moment's; else nothing is */
    bool stuck;   /* what comes next is lost or damaged: only a key frame leads on */
    bool settled; /* the state has later claims in it, and the buffer is another chunk's */
};

enum { MS__AT_KEY = MS_JUMPED };
/* The next event, which has then happened; MS__AT_KEY: something was passed over, and it is at the key frame after it.
 * It is not settled. */
int ms__cursor_next(ms_cursor *cursor, struct ms__raw *raw);

#endif
