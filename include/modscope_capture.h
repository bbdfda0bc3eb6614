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
    bool truncated;  /* another program made the file shorter while it was being written */
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

/* Captures that begin from now on take their times from this function: nanoseconds that never decrease. It is called at
 * every event, on any thread, with locks held, until the last of these captures has ended. NULL: the system's clock. */
void ms_capture_use_clock(uint64_t (*nanoseconds)(void));
/* Write the events that are left and an end chunk with `info`, and free the capture. Waits for the file. The ledger may
 * be detached already. Returns the final status. */
ms_capture_status ms_capture_end(ms_capture *capture, const char *const *info);
/* Let a signal handler end the capture, in a program that then dies. The writing thread calls `is_requested` a few
 * times a second, whatever the program's threads do. When it returns true, the writing thread writes the events so far
 * and an end chunk with `info`, and calls `then`, which must end the process. `info` must stay valid until
 * ms_capture_end. */
void ms_capture_end_on_request(ms_capture *capture, bool (*is_requested)(void), const char *const *info,
                               void (*then)(const ms_capture_status *status));
/* Around fork, in the parent: ms_capture_pause ends the writing thread, so that the process has one thread less, and
 * ms_capture_resume starts it again. Meanwhile events wait in the buffers, and ms_capture_flush waits too. Pauses nest.
 * If no thread can be started, ms_capture_end writes what is in the buffers, and what does not fit into them is lost.
 */
void ms_capture_pause(ms_capture *capture);
bool ms_capture_resume(ms_capture *capture); /* false: no thread could be started */
/* In a forked child, instead of ms_capture_end: stop recording. The file is the parent's, and nothing is written. The
 * memory is not freed. */
void ms_capture_abandon(ms_capture *capture);

ms_capture_status ms_capture_get_status(ms_capture *capture);
/* Wait until every event so far is in the file, or lost. */
void ms_capture_flush(ms_capture *capture);

/* ---- reading ----
 *
 *     file --ms_reader_open--> ms_reader     the chunks of the file, the names, info about the run
 *                                  |
 *                            ms_cursor_open
 *                                  v
 *                              ms_cursor     a position between two events, and everything held there
 *
 * Events are numbered. Moment n is the point after all events with numbers below n. */
typedef struct ms_reader ms_reader;
typedef struct ms_cursor ms_cursor;

/* Open the capture in `fd`. The caller closes `fd`, after the reader. Of `options`, which may be NULL, only alloc, free
 * and context are used. This reads the header of every chunk, and all names. Bytes that are appended to the file later
 * are not seen. A file that is damaged, or ends in the middle of a chunk, can be read as far as it is intact.
 * A reader and its cursors may be used by one thread at a time.
 * MS_EFORMAT: the file is not a capture. MS_ENEWER: it was written by a newer major version. MS_EIO: errno says why.
 * MS_EINVAL: only one of alloc and free is given. MS_ENOMEM. */
int ms_reader_open(int fd, const ms_options *options, ms_reader **reader);
/* Free the reader; its cursors must be closed before. NULL is allowed. */
void ms_reader_close(ms_reader *reader);

typedef struct ms_reader_status {
    uint64_t bytes;    /* size of the file */
    uint64_t damaged;  /* bytes that cannot be read, as far as is known: payloads are checked when they are read. A
                          chunk that is cut off at the end of the file does not count */
    uint64_t events;   /* one more than the highest event number */
    uint64_t lost;     /* events that the writer had no room for */
    uint64_t duration; /* microseconds from the start to the latest time in a chunk header, or in an event that
                          was read */
    bool ended;        /* the file has an end chunk */
} ms_reader_status;
ms_reader_status ms_reader_get_status(const ms_reader *reader);
/* Pair `index` of the end chunk (`of_end`) or of the info chunk. False: there are no more. The texts belong to the
 * reader. */
bool ms_reader_info(const ms_reader *reader, bool of_end, size_t index, const char **key, const char **value);
/* One more than the highest device that has a name, or occurred in what was read so far. */
uint32_t ms_reader_devices(const ms_reader *reader);
/* The device's name, which belongs to the reader. NULL: it has none. */
const char *ms_reader_device(const ms_reader *reader, uint32_t device);
/* The number of paths, MS_GLOBAL and MS_UNKNOWN included. Every path in an event or block is below it. */
uint32_t ms_reader_paths(const ms_reader *reader);
/* The name of a path below ms_reader_paths, which belongs to the reader. A path that the file does not name is called
 * "?", and its parent is MS_GLOBAL. */
const char *ms_reader_path(const ms_reader *reader, ms_path path, ms_path *parent, uint32_t *nth);

/* One more than the highest stack that the file names. Every stack in an event or block is below it, or MS_STACK_LOST.
 */
uint32_t ms_reader_stacks(const ms_reader *reader);
/* The stack's innermost frame; its texts belong to the reader. False: the file has no such stack. */
bool ms_reader_stack(const ms_reader *reader, ms_stack stack, ms_frame *frame);

/* A source file of the table of stacks, as it was when the capture was written. */
typedef struct ms_source {
    const char *file;
    uint64_t bytes;
    uint64_t modified; /* when it was modified, in microseconds since 1970 */
    uint32_t checksum; /* CRC-32C of its content */
} ms_source;

/* The source with this index, from 0; its text belongs to the reader. False: there are fewer. A file may occur again,
 * and the last one holds. */
bool ms_reader_source(const ms_reader *reader, size_t index, ms_source *source);
/* What the file is like now. False: it is not there, or no file of ordinary size. It waits for the disk. */
bool ms_source_read(const char *file, ms_source *source);

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

/* Fields that are not listed for an operation are 0. A drop describes the block as it was, an add or a claim as it
 * is after the event. */
typedef struct ms_event {
    uint64_t number;
    uint64_t time; /* microseconds since the start of the capture */
    ms_op op;
    uint32_t thread; /* the thread that did it */
    uint32_t slot;   /* add, drop, claim */
    uint32_t device; /* add, drop, claim, reserved, oom */
    uint64_t bytes;  /* add, drop, claim: size of the block. reserved: bytes reserved from now on. oom: bytes
                        requested. step: its number. thread: its id */
    uint64_t allocated, reserved; /* oom: of the device */
    ms_path path;                 /* add, drop, claim: owner of the block. position, oom: the thread's path */
    ms_stack stack;               /* add, drop, claim: that made the block */
    uint8_t category;             /* add, drop, claim */
    uint8_t phase;                /* add: in which the block was added. position, oom: the thread's phase */
    uint8_t kind;                 /* add, drop, claim: by all notes of the file; see ms_captured_block */
    bool from_now_on;             /* claim: it holds from this event on; else it is retroactive */
    uint8_t category_before;      /* claim: of the block until this event... */
    ms_path path_before;          /* ...and its owner until then */
    uint64_t since_event;         /* claim: the block's until this event */
    bool outside;                 /* add: the memory did not come from torch's allocators */
} ms_event;

typedef struct ms_captured_block {
    uint64_t bytes;
    uint64_t since_event; /* the number of its add, or of its latest claim that is not retroactive */
    uint64_t made_at;     /* when it was added, in microseconds */
    uint64_t step;        /* in which it was added */
    uint32_t slot, device;
    ms_path path;   /* its owner */
    ms_stack stack; /* that made it */
    uint8_t category;
    uint8_t phase; /* in which it was added */
    uint8_t kind;  /* an ms_kind; MS_KIND_NONE in a file of a version that has no kinds, or a kind that is not known */
    bool outside;  /* it did not come from torch's allocators */
} ms_captured_block;

/* ---- notes: what a replay needs to know about blocks beyond the events ---- */
typedef enum ms_note_kind {
    MS_NOTE_SAVED,     /* autograd keeps the block for the backward of the call that is running */
    MS_NOTE_REQUESTED, /* value: how many bytes the program requested. Without it: as many as the block has */
    MS_NOTE_STREAM,  /* value: the stream on which the block, and each later one of its device, is added. Without it: 0
                      */
    MS_NOTE_SEGMENT, /* value: the address of a segment that the allocator took for the block */
    MS_NOTE_INPUT,   /* the block is an input of the call that has just begun */
    MS_NOTE_OUTPUT,  /* the block is an output of the call that is about to end */
    MS_NOTE_BLOCK_KIND, /* value: the block's ms_kind, and above its four bits how many events ago the block's
                           since_event was: the kind holds from there on */
    MS_NOTE_COUNT
} ms_note_kind;

typedef struct ms_note {
    uint64_t event; /* it was noted after all events with lower numbers */
    uint64_t value;
    uint32_t slot; /* of the block, which is held at that moment */
    ms_note_kind kind;
} ms_note;

/* Go through all notes of a capture in the order of their events. Captures of versions before 1.2 have none, and where
 * events are lost or damaged, notes are too. MS_ENOMEM. */
typedef struct ms_notes ms_notes;
int ms_notes_open(ms_reader *reader, ms_notes **notes);
void ms_notes_close(ms_notes *notes); /* NULL is allowed */
/* MS_EEND: there are no more. MS_ENOMEM and MS_EIO end it too. */
int ms_notes_next(ms_notes *notes, ms_note *note);

/* ---- times of calls on a GPU, where they were measured ---- */
typedef struct ms_call_time {
    uint64_t event; /* the call is the innermost one that the thread is in before this event */
    uint64_t nanoseconds;
    uint32_t thread; /* its number */
} ms_call_time;

/* All times of a capture in the order of their events. *times is NULL if there are none. MS_ENOMEM, MS_EIO. */
int ms_call_times_read(ms_reader *reader, ms_call_time **times, size_t *count);
void ms_call_times_free(ms_reader *reader, ms_call_time *times);

/* ---- operators that ran in forwards of modules, where they are known ---- */
typedef struct ms_operator_name {
    char text[MS_OPERATOR_NAME_MAX + 1]; /* "aten::addmm", "aten::mul.Tensor" */
    uint32_t flags;                      /* MS_OPERATOR_IN_PLACE, ... */
} ms_operator_name;

#define MS_OPERATOR_NO_SLOT UINT32_MAX

typedef struct ms_operator_run {
    uint64_t begin, end; /* it ran on the thread in the events [begin, end), after all before `end` */
    uint64_t nanoseconds;
    uint32_t thread; /* its number */
    uint32_t name;   /* an index of ms_operators.names */
    uint32_t slot;   /* of the block that it changed in place, or MS_OPERATOR_NO_SLOT */
} ms_operator_run;

typedef struct ms_operators {
    ms_operator_run *runs; /* in their order */
    ms_operator_name *names;
    size_t count, name_count;
} ms_operators;

/* All operators of a capture. MS_ENOMEM, MS_EIO. */
int ms_operators_read(ms_reader *reader, ms_operators *operators);
void ms_operators_free(ms_reader *reader, ms_operators *operators);

/* ---- the inputs of root calls ---- */
typedef struct ms_root_call {
    uint64_t step;
    uint32_t first, count; /* its inputs: indices of ms_root_inputs.inputs, which calls of the same shapes share */
} ms_root_call;

typedef struct ms_root_inputs {
    ms_root_call *calls; /* in their order */
    ms_input *inputs;
    size_t count, input_count;
} ms_root_inputs;

/* The inputs of all root calls in forward. Captures of versions before 1.7 have none. MS_ENOMEM, MS_EIO. */
int ms_root_inputs_read(ms_reader *reader, ms_root_inputs *inputs);
void ms_root_inputs_free(ms_reader *reader, ms_root_inputs *inputs);

/* Read the chunks that were appended to the file since the reader was opened or refreshed. A cursor that was at the end
 * goes on with them; notes of kinds are not read again. MS_EFORMAT: the file is shorter than before, and nothing is
 * read. MS_EIO, MS_ENOMEM: call it again. */
int ms_reader_refresh(ms_reader *reader);

/* A new cursor is at the first moment that can be known; at moment 0 with no blocks if none can. MS_ENOMEM, MS_EIO:
 * there is no cursor. When any other function of a cursor returns MS_ENOMEM or MS_EIO, the cursor is reset; go on with
 * a seek or close it. */
int ms_cursor_open(ms_reader *reader, ms_cursor **cursor);
void ms_cursor_close(ms_cursor *cursor);
/* Go to a moment. If events are lost or damaged before it, go to the nearest earlier moment that can be known, or else
 * to the first later one. Beyond the end is the end. */
int ms_cursor_seek(ms_cursor *cursor, uint64_t moment);
/* Go to the last moment at or before this time, in microseconds. */
int ms_cursor_seek_time(ms_cursor *cursor, uint64_t time);
/* Go to the end of this step: the moment before the next step begins, or the end of the file. MS_ENOSTEP: the capture
 * has no such step. */
int ms_cursor_seek_step(ms_cursor *cursor, uint64_t step);
/* Apply events up to and including the next one whose operation is in `mask` (bit i: ms_op i), and return that one.
 * MS_EEND: there is none. Where events are lost or damaged, the cursor goes on at the next key frame. MS_EINVAL: later
 * claims were applied; seek first. */
int ms_cursor_next(ms_cursor *cursor, uint32_t mask, ms_event *event);
/* Like ms_cursor_next with all operations, but returns MS_JUMPED, without an event, where events are lost or damaged:
 * the cursor is then at the next key frame, and what is held may differ in any way from what was held before. */
enum { MS_JUMPED = 1 };
int ms_cursor_next_or_jump(ms_cursor *cursor, ms_event *event);
/* Go on to `moment`, or to the next key frame if it is lost, and store the highest number of bytes that each device
 * held on the way. MS_EINVAL as for ms_cursor_next. */
int ms_cursor_peaks(ms_cursor *cursor, uint64_t moment, int64_t peaks[MS_MAX_DEVICES]);

/* A retroactive claim comes later in the file than the moments that it concerns. Without one of these two functions a
 * cursor knows only the claims before its moment; totals by device are exact in any case.
 *
 * For one moment: read the rest of the file, and apply its claims to the blocks that are held here. The cursor stays at
 * its moment; it cannot go on (MS_EINVAL) until the next seek, which discards these claims. */
int ms_cursor_apply_later_claims(ms_cursor *cursor);
/* For all moments: load the claims of the whole file. From then on the cursor knows category and owner of every block
 * at every moment: an add event states what later claims say, and a retroactive claim changes nothing. This takes
 * memory for each claimed block. MS_EINVAL: later claims were applied; seek first. On MS_EINVAL, MS_ENOMEM and MS_EIO
 * the cursor is unchanged. */
int ms_cursor_load_later_claims(ms_cursor *cursor);

/* ---- the state at the cursor's moment ---- */
uint64_t ms_cursor_moment(const ms_cursor *cursor);
uint64_t ms_cursor_time(const ms_cursor *cursor);            /* microseconds */
uint64_t ms_cursor_step(const ms_cursor *cursor);            /* the training step */
uint64_t ms_cursor_optimizer_steps(const ms_cursor *cursor); /* how many have ended */
/* Whether events before this moment are lost or damaged, so that every figure is "at least". */
bool ms_cursor_is_lower_bound(const ms_cursor *cursor);
ms_sums ms_cursor_now(const ms_cursor *cursor, uint32_t device);
/* Bytes by kind. It reads every block. */
ms_kind_sums ms_cursor_kinds(const ms_cursor *cursor, uint32_t device);
uint64_t ms_cursor_reserved(const ms_cursor *cursor, uint32_t device);
uint64_t ms_cursor_blocks(const ms_cursor *cursor); /* how many there are */
/* Visit all blocks in no particular order: start with *at = 0, and call until it returns false. */
bool ms_cursor_block(const ms_cursor *cursor, uint32_t *at, ms_captured_block *block);
/* The number, id and position of thread `index`, counted from 0. False: there are no more. */
bool ms_cursor_thread(const ms_cursor *cursor, size_t index, uint32_t *number, uint64_t *id, ms_phase *phase,
                      ms_path *path);

/* ---- survey: one pass over all events ---- */
typedef struct ms_capture_peak { /* when a device held the most bytes */
    int64_t bytes;
    uint64_t moment, time, step;
    ms_phase phase;    /* of the thread whose add reached the peak */
    ms_path running;   /* the innermost path of that thread */
    uint64_t reserved; /* by the device at that moment */
} ms_capture_peak;

typedef struct ms_survey {
    uint32_t devices;                       /* one more than the highest */
    ms_capture_peak peaks[MS_MAX_DEVICES];  /* bytes 0: the device never held any */
    uint64_t peak_reserved[MS_MAX_DEVICES]; /* the highest; it need not be at the peak */
    uint64_t events[MS_OP_COUNT];
    struct {
        uint64_t time;   /* microseconds. When threads are in several phases at once, only the first of recompute,
                            backward, optimizer, forward, evaluation counts */
        uint64_t blocks; /* added in this phase */
        uint64_t bytes;  /* of these blocks */
    } phases[MS_PHASE_COUNT];
    uint64_t steps;               /* the number of the last step */
    uint64_t optimizer_steps;     /* how many have ended */
    uint64_t first_oom, last_oom; /* the moments after these events; 0: there is none */
    uint64_t oom_count;
    uint64_t first, last; /* moments that can be known */
    bool is_lower_bound;  /* events were lost or are damaged */
} ms_survey;

/* `progress`, which may be NULL, is called from time to time with the part that is done, 0 to 1; when it returns false
 * the survey stops with MS_ESTOPPED. MS_ENOMEM, MS_EIO. */
int ms_reader_survey(ms_reader *reader, ms_survey *survey, bool (*progress)(void *context, double done), void *context);

/* Move the cursor to `moment`, and add up the time on the way in microseconds, by what ran: the innermost path of the
 * busiest thread, and its phase. times[path * MS_PHASE_COUNT + phase]; the caller clears it. Paths from `paths` on do
 * not count. Past the last event, the time until the end of the capture counts too. Errors as ms_cursor_peaks. */
int ms_cursor_times(ms_cursor *cursor, uint64_t moment, uint64_t *times, uint32_t paths);

/* What a device held over time, in `columns` columns. Column i is the time from bounds[i] to bounds[i + 1], in
 * microseconds; there are columns + 1 bounds, which never decrease. most[i] is what was held, by category, at the
 * moment of the column at which the device held most; what is held when the column begins counts too. *begun: how many
 * columns begin before the end of the capture; the others are unchanged. Call ms_cursor_load_later_claims first. Begins
 * at the cursor's moment, and moves the cursor. Errors as ms_cursor_peaks. */
int ms_cursor_series(ms_cursor *cursor, uint32_t device, const uint64_t *bounds, size_t columns, ms_sums *most,
                     size_t *begun);

/* ---- live: what a capture that is still being written says now, at its peaks, and step by step ----
 *
 * Owners and categories are those that are known so far: a claim that comes later moves a block, also at the peak. */
typedef struct ms_live ms_live;

enum { MS_LIVE_STEPS = 8 }; /* growth and the time of a step are means of so many steps, or of as many as there were */

typedef struct ms_live_device {
    int64_t now, peak;
    uint64_t reserved, peak_reserved;
    uint64_t peak_step;
    uint32_t growth_steps; /* how many steps ms_live_row.growth is of; 0: two steps have not ended yet */
} ms_live_device;

typedef struct ms_live_status {
    uint64_t time, step; /* of the latest event; in microseconds */
    uint64_t events, oom_count;
    uint64_t step_time; /* microseconds; 0: not known yet */
    ms_phase phase;     /* of the busiest thread */
    ms_path running;
} ms_live_status;

typedef enum ms_live_kind { MS_LIVE_MODULES, MS_LIVE_LINES } ms_live_kind;

typedef struct ms_live_row {
    ms_path path;      /* of modules */
    uint8_t category;  /* of modules */
    ms_stack stack;    /* of lines: one whose innermost frame is in the line, or MS_STACK_NONE */
    int64_t now, peak; /* peak: what it held when the device held most */
    int64_t growth;    /* from one end of a step to the end of a later one, growth_steps after it */
} ms_live_row;

/* Use the reader for its metadata only as long as this is open. MS_ENOMEM, MS_EIO. */
int ms_live_open(ms_reader *reader, ms_live **live);
void ms_live_close(ms_live *live); /* NULL is allowed */
/* Refresh the reader, and apply at most so many events. *more: whether there are more. Errors as ms_reader_refresh;
 * after MS_ENOMEM close it. */
int ms_live_update(ms_live *live, uint64_t events, bool *more);
ms_live_status ms_live_get_status(const ms_live *live);
ms_live_device ms_live_get_device(const ms_live *live, uint32_t device);
/* Visit all that hold or held something: start with *at = 0, and call until it returns false. */
bool ms_live_next_row(const ms_live *live, ms_live_kind kind, uint32_t device, size_t *at, ms_live_row *row);

/* ---- pack: what was held at every moment of a part of a capture, small enough for a page ----
 *
 * The moments of a pack are numbered as *ticks*: tick 0 is the first moment, and each event begins the next tick. So
 * does the key frame after lost or damaged events.
 *
 * A *lifetime* is what a block was from one tick to another, by all claims, later ones included. It ends when the block
 * is dropped, or when a claim that is not retroactive begins the block's next lifetime. Lifetimes with the same bytes,
 * device, category, path, phase, stack and outside share a *template*.
 *
 * A pack consists of the columns below, in this order. Each is its size in bytes, as a varint, and then its numbers, as
 * varints. "Delta": the number is stored as the difference to the one before it in its column, the first one as it
 * is; such numbers never decrease. */
typedef enum ms_pack_column {
    MS_PACK_TIME,       /* for each tick: its time in microseconds (delta), at most 2^53 - 1 */
    MS_PACK_JUMP,       /* pairs: a tick (delta), and its moment; from there both grow by 1. The first is tick 0 */
    MS_PACK_BEGIN,      /* for each lifetime: its first tick (delta) */
    MS_PACK_DURATION,   /* for each lifetime: how many ticks it lasts; 0: to the last tick */
    MS_PACK_TEMPLATE,   /* for each lifetime: 0: the next new template; n: the template n before the next new one */
    MS_PACK_BYTES,      /* for each template: bytes */
    MS_PACK_ATTRIBUTES, /* for each template: category, outside and phase, encoded as in docs/capture-format.md, and
                           above these eight bits an ms_kind */
    MS_PACK_DEVICE,     /* for each template: device */
    MS_PACK_PATH,       /* for each template: path */
    MS_PACK_STACK,      /* for each template: the stack that made the blocks. Empty if no stack is known */
    MS_PACK_PREVIOUS,   /* pairs: a lifetime (delta) that continues a block, and how many lifetimes before it the
                           block's previous lifetime is */
    MS_PACK_AGE,        /* triples: a lifetime (delta) whose block was added before it began, how many steps before, and
                           how many microseconds before. Blocks of other lifetimes without a previous one were added
                           when the lifetime began */
    MS_PACK_RUNNING,    /* ticks (delta) from which on something else is running: */
    MS_PACK_RUNNING_PHASE, /* the phase of the busiest thread, the first of recompute, backward, optimizer, forward,
                              evaluation, idle */
    MS_PACK_RUNNING_PATH,  /* the path of that thread */
    MS_PACK_STEP,          /* pairs: a tick (delta), and the number of the step that began */
    MS_PACK_RESERVED,      /* triples: a tick (delta), a device, and the bytes that it has reserved from then on */
    MS_PACK_OOM, /* seven numbers each: a tick (delta), device, bytes requested, allocated, reserved, phase, path */
    MS_PACK_COLUMNS
} ms_pack_column;

typedef struct ms_pack {
    uint8_t *bytes;
    size_t size;
    uint32_t ticks, lifetimes, templates; /* how many there are */
    ms_stack *stacks;                     /* that made blocks, each once, in rising order; without MS_STACK_NONE */
    uint32_t stack_count;
} ms_pack;

/* Make the pack of the moments from `first` to `last`. Each is moved as ms_cursor_seek does it; `last` moves to the key
 * frame after it if it is lost. Free it with ms_pack_free. MS_EINVAL: there are 2^32 or more ticks. MS_ENOMEM, MS_EIO.
 */
int ms_reader_pack(ms_reader *reader, uint64_t first, uint64_t last, ms_pack *pack);
void ms_pack_free(const ms_reader *reader, ms_pack *pack);

#ifdef __cplusplus
}
#endif
#endif
