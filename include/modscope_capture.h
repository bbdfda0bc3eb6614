/* modscope_capture.h - a run's events in a file: written while a ledger counts, and read back.
 *
 * The format is in docs/capture-format.md. Errors are those of modscope.h. */
#ifndef MODSCOPE_CAPTURE_H
#define MODSCOPE_CAPTURE_H

#include "modscope_ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing ---- */
typedef struct ms_capture ms_capture;

typedef struct ms_capture_status {
    uint64_t events; /* events that are in the file or waiting to be written */
    uint64_t lost;   /* events that could not be written; a lost event still consumes a number */
    uint64_t bytes;  /* size of the file */
    int error;       /* errno of the last write that failed; 0: none failed */
} ms_capture_status;

/* Begin to write everything that an attached ledger records to `fd`, an empty file that is open for writing. The
 * capture first describes the blocks that exist already. `info`: keys and values, NULL after the last; may be NULL. The
 * caller closes fd, after ms_capture_end. A ledger may have several captures at the same time.
 *
 * A thread of the capture writes the file. The program never waits for it: an event that does not fit into the
 * buffers is lost and counted. After a failed write the capture tries again a few times a second, and describes all
 * blocks anew when it succeeds. A program that is killed leaves a file that can be read up to its last chunk.
 *
 * Returns MS_OK, MS_EIO (errno says why) or MS_ENOMEM. On an error *capture is unchanged. */
int ms_capture_begin(ms_ledger *ledger, int fd, const char *const *info, ms_capture **capture);
/* Write the events that are left and an end chunk with `info`, and free the capture. Waits for the file. The ledger may
 * be detached already. Returns the final status. */
ms_capture_status ms_capture_end(ms_capture *capture, const char *const *info);
/* In a forked child, instead of ms_capture_end: stop recording. The file is the parent's, and nothing is written. The
 * memory is not freed. */
void ms_capture_abandon(ms_capture *capture);

ms_capture_status ms_capture_get_status(ms_capture *capture);
/* Wait until every event so far is in the file, or lost. */
void ms_capture_flush(ms_capture *capture);

/* ---- reading ---- */
typedef struct ms_reader ms_reader;
typedef struct ms_cursor ms_cursor;

/* Read the capture in `fd`, which stays the caller's. Of `options`, which may be NULL, only alloc, free and context
 * count. MS_EIO (errno says why), MS_EFORMAT: no capture, MS_ENEWER: of a newer version, MS_ENOMEM. Reads every chunk's
 * header, and the names; a file that ends in the middle of a chunk, or is damaged, is read as far as it is good. What
 * is written to it later is not seen. A reader and its cursors are for one thread at a time. */
int ms_reader_open(int fd, const ms_options *options, ms_reader **reader);
/* After its cursors. NULL is allowed. */
void ms_reader_close(ms_reader *reader);

typedef struct ms_reader_status {
    uint64_t bytes;    /* of the file */
    uint64_t damaged;  /* of them, those that could not be read, as far as they were looked at. What is cut off at the
                          end is not damaged */
    uint64_t events;   /* one more than the highest event's number */
    uint64_t lost;     /* events that the writer had no room for */
    uint64_t duration; /* microseconds from the beginning to the last chunk's time, or event where it was read */
    bool ended;        /* there is an end chunk */
} ms_reader_status;
ms_reader_status ms_reader_get_status(const ms_reader *reader);
/* Pair `index` of the info chunk, or of the end chunk; false if there is none. Borrowed. */
bool ms_reader_info(const ms_reader *reader, bool of_end, size_t index, const char **key, const char **value);
/* One more than the highest device that has a name, or was met so far. */
uint32_t ms_reader_devices(const ms_reader *reader);
/* NULL if it has no name. Borrowed. */
const char *ms_reader_device(const ms_reader *reader, uint32_t device);
/* Paths are numbered from 0, and MS_GLOBAL and MS_UNKNOWN count. `path` below the count; one that was not named is
 * "?" in MS_GLOBAL. Whatever events and blocks say, what comes from below is below the count. */
uint32_t ms_reader_paths(const ms_reader *reader);
const char *ms_reader_path(const ms_reader *reader, ms_path path, ms_path *parent, uint32_t *nth);

/* A moment is a number of events: what was so after the events with lower numbers. A cursor
 * goes through moments, and knows what is held at the one it is at. */
typedef enum ms_op {
    MS_OP_ADD,
    MS_OP_DROP,
    MS_OP_CLAIM,
    MS_OP_POSITION,
    MS_OP_THREAD,
    MS_OP_STEP,
    MS_OP_OPTIMIZER_STEP,
    MS_OP_RESERVED,
    MS_OP_OOM,
    MS_OP_COUNT
} ms_op;

typedef struct ms_event {
    uint64_t number;
    uint64_t time; /* microseconds */
    ms_op op;
    uint32_t thread; /* whose it is */
    uint32_t slot;   /* add, drop, claim */
    uint32_t device; /* add, drop, claim, reserved, oom */
    uint64_t bytes;  /* add, drop, claim: the block's; reserved; oom: asked. step: its number. thread: its id */
    uint64_t allocated, reserved; /* oom */
    ms_path path;                 /* add, drop, claim: whose; where, oom: where the thread is */
    uint8_t category;             /* add, drop, claim */
    uint8_t phase;                /* add: it was made in; where, oom: the thread's */
    bool from_now_on;             /* claim */
} ms_event;

typedef struct ms_captured_block {
    uint64_t bytes;
    uint64_t since_event, made_at; /* event number; microseconds */
    uint64_t step;                 /* it was made in */
    uint32_t slot, device;
    ms_path path;
    uint8_t category, phase;
    bool outside;
} ms_captured_block;

/* At the first moment that can be known; at 0 with nothing held if none can. MS_ENOMEM, MS_EIO: there is no cursor.
 * After such an error of the calls below it must be sought again. */
int ms_cursor_open(ms_reader *reader, ms_cursor **cursor);
void ms_cursor_close(ms_cursor *cursor);
/* Go to a moment, by the last key frame before it or from here, whichever is nearer. If it cannot be known exactly
 * (lost, damaged, beyond the end) go to the last that can be before it, or else the first after it. */
int ms_cursor_seek(ms_cursor *cursor, uint64_t moment);
/* Go to the last moment at or before this time, or this step's end: before the next one begins, or
 * the end of the file. MS_ENOSTEP if there is no such step. */
int ms_cursor_seek_time(ms_cursor *cursor, uint64_t time);
int ms_cursor_seek_step(ms_cursor *cursor, uint64_t step);
/* The next event, which has then happened, of those in `mask` (bit i: ms_op i); others happen on the way. MS_OK,
 * MS_EEND at the end. After a loss or damage it goes on at the next key frame. */
int ms_cursor_next(ms_cursor *cursor, uint32_t mask, ms_event *event);
/* The next event, or MS_JUMPED: something lost or damaged was passed over, and all that is known is a key frame's. */
enum { MS_JUMPED = 1 };
int ms_cursor_walk(ms_cursor *cursor, ms_event *event);
/* Go on to this moment, or what comes after it if that is lost, and tell the most that each device held from here to
 * there. */
int ms_cursor_peaks(ms_cursor *cursor, uint64_t moment, int64_t most[MS_MAX_DEVICES]);
/* Look through later claims for what is held here: call it at a moment before reading who holds
 * what. The cursor stays where it is, but must be sought before it can go on (MS_EINVAL). */
int ms_cursor_apply_later_claims(ms_cursor *cursor);

/* Look through the whole file for later claims. From then on the cursor knows who holds what at every moment, as if it
 * were settled there, and goes on as before: an add tells what its block is found to be, and a claim that is not fresh
 * changes nothing. Takes memory for each block that is claimed. MS_ENOMEM, MS_EIO, MS_EINVAL (it is settled): the
 * cursor is as it was. */
int ms_cursor_load_later_claims(ms_cursor *cursor);

uint64_t ms_cursor_moment(const ms_cursor *cursor);
uint64_t ms_cursor_time(const ms_cursor *cursor);
uint64_t ms_cursor_step(const ms_cursor *cursor);
uint64_t ms_cursor_optimizer_steps(const ms_cursor *cursor);
/* Whether events before here were lost or damaged since the beginning: figures are "at least". */
bool ms_cursor_is_lower_bound(const ms_cursor *cursor);
ms_sums ms_cursor_now(const ms_cursor *cursor, uint32_t device);
uint64_t ms_cursor_reserved(const ms_cursor *cursor, uint32_t device);
uint64_t ms_cursor_blocks(const ms_cursor *cursor);
/* Visit all blocks, in no order: start with *at = 0, until false comes. */
bool ms_cursor_block(const ms_cursor *cursor, uint32_t *at, ms_captured_block *held);
/* Thread by thread, from index 0; false if there are no more. */
bool ms_cursor_thread(const ms_cursor *cursor, size_t index, uint32_t *number, uint64_t *id, ms_phase *phase,
                      ms_path *path);

/* ---- a survey: one look at all events ---- */
typedef struct ms_capture_peak { /* when a device held most */
    int64_t bytes;
    uint64_t moment, time, step;
    ms_phase phase;
    ms_path running;   /* the innermost path of the thread that made it */
    uint64_t reserved; /* then */
} ms_capture_peak;

typedef struct ms_survey {
    uint32_t devices;                      /* one more than the highest */
    ms_capture_peak peaks[MS_MAX_DEVICES]; /* bytes 0: it never held any */
    uint64_t peak_reserved[MS_MAX_DEVICES];
    uint64_t events[MS_OP_COUNT];
    struct {
        uint64_t time; /* microseconds. Of several threads' phases the first of recompute, backward, optimizer, forward
                          counts */
        uint64_t blocks; /* made in it */
        uint64_t bytes;  /* of them */
    } phases[MS_OPTIMIZER + 1];
    uint64_t steps, optimizer_steps; /* the last step's number; optimizer steps ended */
    uint64_t first_oom;              /* moment after it; 0: none */
    uint64_t last_oom, oom_count;
    uint64_t first, last; /* moments that can be known */
    bool is_lower_bound;  /* something was lost or damaged */
} ms_survey;

/* `progress` may be NULL; it is told the part done, 0 to 1, now and then, and stops the survey (MS_ESTOPPED) by false.
 */
int ms_reader_survey(ms_reader *reader, ms_survey *survey, bool (*progress)(void *context, double done), void *context);

/* ---- a pack: who held what at every moment of a stretch, small enough for a page ----
 *
 * Its moments are numbered anew, as *ticks*: 0 is the first, each event makes the next, and so does each key frame
 * after something that was lost or damaged. What a block was from one tick to another, with all later claims, is a
 * *stay*; one of a *kind* is like another in bytes, device, category, path, phase and whether it is from outside.
 *
 * A pack is columns, in this order; each is a varint, how many bytes it has, and then varints. Where it says "on", a
 * number is by how much it is more than the one before in its column, the first as it is. */
typedef enum ms_pack_column {
    MS_PACK_TIME,   /* of every tick: microseconds, on. They do not go back, and none is beyond 2^53 - 1 */
    MS_PACK_JUMP,   /* pairs: a tick, on, and its moment. From there both go on one by one. The first is tick 0 */
    MS_PACK_BEGIN,  /* of every stay: the first tick at which it is held, on */
    MS_PACK_LASTED, /* how many ticks it is held; 0: to the last one */
    MS_PACK_KIND,   /* 0: of a new kind, the next below; else how many kinds before that its kind is */
    MS_PACK_BYTES,  /* of every kind: its bytes */
    MS_PACK_WHAT,   /* category, outside and phase, as in docs/capture-format.md */
    MS_PACK_DEVICE, /* its device */
    MS_PACK_PATH,   /* its path */
    MS_PACK_AGAIN,  /* pairs: a stay, on, whose block had another before: how many stays before */
    MS_PACK_OLD,    /* threes: a stay, on, whose block was made before it began: steps ago, microseconds ago. The others
                       were made when they began */
    MS_PACK_RUN,    /* ticks, on, from which on something else is running: */
    MS_PACK_RUN_PHASE, /* the phase of the busiest thread: recompute, backward, optimizer, forward, idle */
    MS_PACK_RUN_PATH,  /* its innermost path */
    MS_PACK_STEP,      /* pairs: a tick, on, and the number of the step that began */
    MS_PACK_RESERVED,  /* threes: a tick, on, a device, and what it has reserved from then on */
    MS_PACK_OOM,       /* sevens: a tick, on, device, asked, allocated, reserved, phase, path */
    MS_PACK_COLUMNS
} ms_pack_column;

typedef struct ms_pack {
    uint8_t *bytes;
    size_t size;
    uint32_t ticks, stays, kinds;
} ms_pack;

/* The pack of the moments from `first` to `last`, or as near as they can be known; it may go on a little, to the key
 * frame after a loss. To be freed with the reader's memory. MS_ENOMEM, MS_EIO, MS_EINVAL: there are more than 2^32. */
int ms_reader_pack(ms_reader *reader, uint64_t first, uint64_t last, ms_pack *pack);
void ms_pack_free(const ms_reader *reader, ms_pack *pack);

#ifdef __cplusplus
}
#endif
#endif
