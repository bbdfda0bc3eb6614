/* reader.h - what the files that read a capture share: the chunks of the file, its metadata, and the
 * state that a cursor has at its moment.
 *
 * Nothing in a file is trusted. Every number is checked before anything depends on it, and memory is
 * allocated for what the file contains, never for what it announces. */
#ifndef MS_READER_H
#define MS_READER_H

#include "core/capture/format.h"
#include "core/capture/stack_code.h"

/* ---- file_reader.c: the file and its chunks ---- */
struct ms__chunk { /* a chunk of events, or a key frame */
    uint64_t at;   /* the position of its payload in the file */
    uint64_t event, time;
    uint64_t oldest_claimed; /* events and notes: see struct ms__chunk_head */
    uint64_t step, lost;     /* key frame: unchecked, except that a `lost` above every earlier one is checked */
    uint32_t size, crc, events;
    bool is_key_frame;
    bool damaged; /* a part of it, or all of it, could not be read */
};

struct ms__pair {
    const char *key, *value;
};

struct ms__pairs {
    struct ms__pair *at;
    size_t count, room;
};

struct ms__name {
    const char *name; /* NULL: the file does not name this path */
    ms_path parent;
    uint32_t nth;
};

struct ms__payload { /* a payload that is kept, because names and pairs point into it */
    struct ms__payload *next;
    uint8_t bytes[];
};

struct ms__stack_chunks { /* in the order of their events */
    struct ms__chunk *at;
    size_t count, room;
};

struct ms_reader {
    ms_options memory; /* its alloc, free and context */
    int fd;
    uint64_t seed; /* of the hash tables */
    uint64_t bytes, damaged, events, lost, duration;
    uint64_t scanned; /* the chunks before this position of the file were read */
    bool ended;
    uint32_t devices; /* one more than the highest device that has a name or has occurred */
    struct ms__chunk *chunks;
    size_t count, room;
    struct ms__chunk *notes; /* chunks of notes, in the order of their first events */
    size_t note_count, note_room;
    struct ms__chunk *times; /* chunks of times of calls */
    size_t time_count, time_room;
    struct ms__chunk *inputs; /* chunks of the inputs of root calls */
    size_t inputs_count, inputs_room;
    struct ms__chunk *operators; /* chunks of operators */
    size_t operator_count, operator_room;
    struct ms__chunk *collectives; /* chunks of collectives */
    size_t collective_count, collective_room;
    struct ms__later_claims *kinds; /* see noted_kinds.c; NULL: not loaded, or the file has none */
    bool kinds_loaded;
    struct ms__stack_chunks stack_chunks[2]; /* stacks of adds, and of the blocks of key frames */
    ms_frame *stacks;                        /* the table; function is NULL where the file has no such stack */
    size_t stack_count, stack_room;
    ms_source *sources; /* as the file has them */
    size_t source_count, source_room;
    struct ms__pairs info, end;
    const char *device_names[MS_MAX_DEVICES];
    struct ms__name *paths;
    size_t path_count, path_room;
    struct ms__payload *payloads;
};

struct ms__buffer {
    uint8_t *bytes;
    size_t room;
};

void *ms__reader_alloc(const ms_reader *reader, size_t bytes);
void ms__reader_free(const ms_reader *reader, void *memory);
/* Return an array with room for `count` items of `size` bytes, count >= 1: the array itself, or a larger copy, for
 * which the old one is freed. `*room` is how many items it has room for. NULL: out of memory; nothing has changed. */
void *ms__reader_grow(const ms_reader *reader, void *array, size_t *room, size_t count, size_t size);
/* Add a chunk to a list of chunks. MS_ENOMEM. */
int ms__reader_list_chunk(ms_reader *reader, struct ms__chunk **list, size_t *count, size_t *room, uint64_t at,
                          const struct ms__chunk_head *head);
/* Read a chunk's payload into the buffer. MS_EFORMAT: the chunk is damaged, and has been marked so. MS_EIO,
 * MS_ENOMEM. */
int ms__reader_read_payload(ms_reader *reader, struct ms__chunk *chunk, struct ms__buffer *buffer);
/* Record that `bytes` bytes of the chunk cannot be read. A chunk is counted once. */
void ms__reader_mark_damaged(ms_reader *reader, struct ms__chunk *chunk, uint64_t bytes);
static inline void ms__reader_note_device(ms_reader *reader, uint32_t device)
{
    if (MS__UNLIKELY(device >= reader->devices))
        reader->devices = device + 1;
}

/* ---- metadata.c: info, devices and names ---- */

/* Read the payload of such a chunk. Names and pairs will point into `bytes`, which must outlive the reader.
 * MS_EFORMAT: the rest of the payload is damaged; what came before it counts. MS_ENOMEM. */
int ms__metadata_read(ms_reader *reader, uint32_t kind, uint8_t *bytes, size_t size);
void ms__metadata_free(ms_reader *reader);

/* ---- decoder.c: events as they are written ---- */
struct ms__decoder { /* a position in a chunk of events */
    struct ms__bytes bytes;
    uint64_t number, time;         /* the number of the next event, the time of the last one */
    uint32_t left;                 /* events of the chunk that are not decoded yet */
    uint32_t slot, device, thread; /* the latest ones in this chunk, to which the next are relative */
    ms_path path;
};

struct ms__decoded_event {
    ms_event event;     /* without the fields that follow from the state */
    uint64_t age;       /* claim */
    uint8_t bits;       /* bits 4 to 6 of the first byte */
    uint8_t attributes; /* explicit add, claim */
};

/* A phase that a later version of modscope added is shown as idle. */
static inline uint8_t ms__known_phase(uint32_t phase)
{
    return (uint8_t)(phase < MS_PHASE_COUNT ? phase : MS_IDLE);
}

static inline bool ms__attributes_are_valid(uint8_t attributes)
{
    return (attributes & MS__ATTRIBUTES_CATEGORY) < MS_CATEGORY_COUNT &&
           attributes >> MS__ATTRIBUTES_PHASE <= MS__PHASE_MAX;
}

void ms__decoder_open(struct ms__decoder *decoder, const struct ms__chunk *chunk, const uint8_t *payload);
/* Decode the next event; decoder->left is at least 1. False: the bytes are no event. */
bool ms__decoder_next(struct ms__decoder *decoder, struct ms__decoded_event *decoded);

/* ---- notes.c ---- */

/* Add a chunk of notes to the list. MS_EFORMAT: it is out of order. MS_ENOMEM. */
int ms__notes_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);

/* ---- call_times.c ---- */

/* Add a chunk of times to the list. MS_ENOMEM. */
int ms__times_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);

/* ---- root_inputs.c ---- */

/* Add a chunk of inputs to the list. MS_ENOMEM. */
int ms__inputs_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);

/* ---- operators.c ---- */

/* Add a chunk of operators to the list. MS_ENOMEM. */
int ms__operators_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);

/* ---- collectives.c ---- */

/* Add a chunk of collectives to the list. MS_ENOMEM. */
int ms__collectives_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);

/* ---- noted_kinds.c: the kinds of blocks, which the file has in notes ---- */

/* Load the kinds, unless they are loaded. Without such notes nothing is read. MS_ENOMEM, MS_EIO. */
int ms__kinds_load(ms_reader *reader);
void ms__kinds_free(ms_reader *reader);
/* The kind that the notes of the file give the block; MS_KIND_NONE: none, or one that is not known. */
uint8_t ms__noted_kind(const ms_reader *reader, uint64_t since_event, uint32_t slot);
/* The kind of a block in this category: a claim of another category has taken the kind away. */
static inline uint8_t ms__kind_in(uint8_t kind, uint8_t category)
{
    return kind && ms_kind_category((ms_kind)kind) == category ? kind : MS_KIND_NONE;
}
/* ---- block_stacks.c ---- */
struct ms__stack_decoder { /* all zero before it is opened */
    struct ms__buffer buffer;
    struct ms__bytes bytes;
    uint64_t run; /* the next so many stacks are those that are predicted */
    struct ms__stack_history *history;
};

/* Add a chunk of stacks to the list. MS_EFORMAT: it is out of order. MS_ENOMEM. */
int ms__stacks_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head);
/* Read the stacks that belong to a chunk of events or a key frame, from its first block on. Without them every stack is
 * MS_STACK_NONE. MS_EIO, MS_ENOMEM. */
int ms__stack_decoder_open(ms_reader *reader, struct ms__stack_decoder *decoder, const struct ms__chunk *of);
void ms__stack_decoder_close(const ms_reader *reader, struct ms__stack_decoder *decoder);
/* The stack of the next block. */
ms_stack ms__stack_decoder_next(const ms_reader *reader, struct ms__stack_decoder *decoder);

/* ---- slot_map.h ---- */
struct ms__slot_map {
    uint64_t *buckets;     /* key << 32 | value + 1; 0: empty */
    uint32_t count, limit; /* it grows when count would exceed limit */
    uint32_t mask, shift;  /* both follow from the number of buckets */
    uint64_t seed;
};

/* ---- later_claims.c: retroactive claims that come later in the file ---- */

/* What the block in `slot` has been since `since_event`. Only both together identify a block: slots are used again. */
struct ms__later_claim {
    uint64_t since_event;
    uint32_t slot;
    ms_path path;
    uint32_t order; /* of the claim in the file */
    uint8_t category;
};

struct ms__later_claims {
    struct ms__later_claim *all; /* ordered by since_event, then slot; one for each block */
    size_t count, room;
    size_t latest_hit; /* where the last search ended */
};

void ms__later_claims_free(const ms_reader *reader, struct ms__later_claims *claims);
/* Append a claim. MS_ENOMEM: nothing has changed. Sort them before the first search. */
int ms__later_claims_append(const ms_reader *reader, struct ms__later_claims *claims,
                            const struct ms__later_claim *claim);
/* Order the claims for searches, and keep the last one of each block. */
void ms__later_claims_sort(struct ms__later_claims *claims);
/* Set category and path to those that the last claim of this block states. Without a claim they stay as they are. */
void ms__later_claims_apply(struct ms__later_claims *claims, uint64_t since_event, uint32_t slot, uint8_t *category,
                            ms_path *path);

/* ---- state.c and key_frame_reader.c: everything that is known at a moment ---- */
struct ms__captured_thread {
    uint64_t id;
    uint32_t number;
    ms_path path;
    uint8_t phase;
};

/* For every device: total = sum of now.of over the categories = sum of bytes over its blocks. */
struct ms__state {
    ms_captured_block *blocks; /* in no order */
    size_t count, room;
    struct ms__slot_map by_slot; /* slot -> index in blocks */
    struct ms__captured_thread *threads;
    size_t thread_count, thread_room;
    struct ms__slot_map by_thread;     /* thread number -> index in threads */
    uint32_t selected;                 /* the index of the thread to which events belong, or MS__SLOT_MAP_NONE */
    uint32_t in_phase[MS_PHASE_COUNT]; /* threads */
    ms_sums now[MS_MAX_DEVICES];
    int64_t total[MS_MAX_DEVICES];
    uint64_t reserved[MS_MAX_DEVICES];
    uint64_t step, optimizer_steps, lost;
    struct ms__later_claims *later_claims; /* NULL: they are not loaded */
};

void ms__state_clear(struct ms__state *state);
void ms__state_close(ms_reader *reader, struct ms__state *state);
/* The events that follow belong to this thread. */
void ms__state_select_thread(struct ms__state *state, uint32_t thread);
/* Replace the state by what the key frame says. `stacks`: those of its blocks. MS_EFORMAT: nothing has changed.
 * MS_ENOMEM: the state is undefined. */
int ms__state_load_key_frame(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk,
                             const uint8_t *payload, struct ms__stack_decoder *stacks);
/* Change the state as the event says, and fill in the event's other fields. MS_EFORMAT: the event contradicts the
 * state. MS_ENOMEM. On an error the state is unchanged. */
int ms__state_apply_event(ms_reader *reader, struct ms__state *state, struct ms__decoded_event *decoded);
/* The block's slot must be empty. MS_EFORMAT: the total of its device would overflow. MS_ENOMEM. On an error the state
 * is unchanged. */
int ms__state_add_block(ms_reader *reader, struct ms__state *state, ms_captured_block *block);
/* Make room for `count` blocks in all. False: out of memory. */
bool ms__state_reserve_blocks(const ms_reader *reader, struct ms__state *state, size_t count);
/* Select the thread, and set its position; it may be a new thread. */
int ms__state_set_thread(const ms_reader *reader, struct ms__state *state, const struct ms__captured_thread *thread);
/* Set the block's category and owner. */
void ms__state_claim_block(struct ms__state *state, ms_captured_block *block, uint8_t category, ms_path path);
/* The first of recompute, backward, optimizer, forward that any thread is in; else idle. */
ms_phase ms__state_phase(const struct ms__state *state);
/* The path of the first thread that is in this phase; of MS_IDLE it is MS_GLOBAL. */
ms_path ms__state_path(const struct ms__state *state, ms_phase phase);
/* NULL: no block is in this slot. */
ms_captured_block *ms__state_block(const struct ms__state *state, uint32_t slot);

/* A path from the file, or MS_UNKNOWN if the file does not name it. */
static inline ms_path ms__checked_path(const ms_reader *reader, ms_path path)
{
    return path < reader->path_count || path == MS_GLOBAL ? path : MS_UNKNOWN;
}

/* ---- cursor.c: going on from event to event. seek.c: going to a moment ----
 *
 *                       has_state   at_gap   claims_applied
 *     no state              -          x            -
 *     ready                 x          -            -
 *     at a gap              x          x            -
 *     claims applied        any        any          x
 *
 *     no state       --- a key frame is loaded ----------------> ready
 *     ready          --- an event is applied ------------------> ready
 *     ready          --- the next chunk is lost or damaged ----> at a gap
 *     at a gap       --- a key frame after it is loaded -------> ready
 *     any            --- ms_cursor_apply_later_claims ---------> claims applied
 *     claims applied --- a seek loads a key frame -------------> ready
 *     any            --- MS_ENOMEM, MS_EIO, no key frame ------> no state
 *
 * With claims applied a cursor cannot go on, because the buffer holds the payload of another chunk. */
struct ms_cursor {
    ms_reader *reader;
    struct ms__state state;
    struct ms__later_claims later_claims; /* state.later_claims points to it once it is loaded */
    struct ms__buffer buffer;             /* the payload of the open chunk */
    struct ms__stack_decoder stacks;      /* of the open chunk */
    struct ms__decoder decoder;           /* decoder.left: events of the open chunk that were not applied yet */
    size_t next_chunk;                    /* the open chunk is the one before it */
    uint64_t moment, time;
    bool has_state;      /* `state` is that of `moment`; else it is empty */
    bool at_gap;         /* what comes next is lost or damaged */
    bool claims_applied; /* `state` contains claims from further on in the file */
};

/* How far ms__cursor_advance goes at most. */
struct ms__limit {
    uint64_t moment, time, step;
};

/* Apply the next event. MS_JUMPED: a gap was passed, and the state is that of the key frame after it. MS_EEND. The
 * caller has checked that claims_applied is not set. */
int ms__cursor_next(ms_cursor *cursor, struct ms__decoded_event *decoded);
/* Apply events up to the limit, the next gap or the end of the file. */
int ms__cursor_advance(ms_cursor *cursor, struct ms__limit limit);
/* Whether the chunk continues where the cursor is. A key frame does if it says nothing new. */
bool ms__cursor_is_continued_by(const ms_cursor *cursor, const struct ms__chunk *chunk);
/* Load this key frame; no chunk is open. MS_EFORMAT: it is damaged. The caller sets next_chunk. */
int ms__cursor_load_key_frame(ms_cursor *cursor, struct ms__chunk *chunk);
/* Go to the state "no state". */
void ms__cursor_reset(ms_cursor *cursor);
/* Reset the cursor on MS_ENOMEM and MS_EIO, which leave it undefined. Returns the error. */
int ms__cursor_failed(ms_cursor *cursor, int error);
/* seek.c: go to the first key frame that can be read, or to "no state" at the end of the file if there is none. */
int ms__cursor_seek_start(ms_cursor *cursor);

#endif
