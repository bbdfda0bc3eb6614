/* cursor.c - a cursor goes on from event to event, and answers what is held at its moment.
 *
 * seek.c goes to a given moment, later_claims.c applies claims from further on in the file. */
#include "core/capture/read/slot_map.h"

void ms__cursor_reset(ms_cursor *cursor)
{
    ms__state_clear(&cursor->state);
    cursor->decoder.left = 0;
    cursor->moment = cursor->time = 0;
    cursor->has_state = cursor->claims_applied = false;
    cursor->at_gap = true;
}

int ms__cursor_failed(ms_cursor *cursor, int error)
{
    if (error == MS_ENOMEM || error == MS_EIO) {
        ms__cursor_reset(cursor);
        cursor->next_chunk = 0;
    }
    return error;
}

static void set_time(ms_cursor *cursor, uint64_t time)
{
    cursor->time = time;
    if (time > cursor->reader->duration)
        cursor->reader->duration = time;
}

/* ---- going on ---- */
int ms__cursor_load_key_frame(ms_cursor *cursor, struct ms__chunk *chunk)
{
    ms_reader *reader = cursor->reader;
    int error = ms__reader_read_payload(reader, chunk, &cursor->buffer);
    if (error)
        return ms__cursor_failed(cursor, error);
    error = ms__stack_decoder_open(reader, &cursor->stacks, chunk);
    if (error)
        return ms__cursor_failed(cursor, error);
    error = ms__state_load_key_frame(reader, &cursor->state, chunk, cursor->buffer.bytes, &cursor->stacks);
    if (error == MS_EFORMAT)
        ms__reader_mark_damaged(reader, chunk, (uint64_t)chunk->size + MS__CHUNK_HEAD);
    if (error)
        return ms__cursor_failed(cursor, error);
    cursor->has_state = true;
    cursor->at_gap = cursor->claims_applied = false;
    cursor->moment = chunk->event;
    set_time(cursor, chunk->time);
    return MS_OK;
}

bool ms__cursor_is_continued_by(const ms_cursor *cursor, const struct ms__chunk *chunk)
{
    return !cursor->at_gap && chunk->event == cursor->moment &&
           (!chunk->is_key_frame || chunk->lost <= cursor->state.lost);
}

static int open_events(ms_cursor *cursor, struct ms__chunk *chunk)
{
    int error = ms__reader_read_payload(cursor->reader, chunk, &cursor->buffer);
    if (!error)
        error = ms__stack_decoder_open(cursor->reader, &cursor->stacks, chunk);
    if (error)
        return ms__cursor_failed(cursor, error);
    ms__decoder_open(&cursor->decoder, chunk, cursor->buffer.bytes);
    ms__state_select_thread(&cursor->state, 0);
    return MS_OK;
}

/* Open chunks until there is an event to decode. MS_EEND: there is none. With `pass_gaps`, a gap is passed by the
 * next good key frame (MS_JUMPED); without it, a gap is the end. */
static int reach_event(ms_cursor *cursor, bool pass_gaps)
{
    const ms_reader *reader = cursor->reader;
    while (!cursor->decoder.left) {
        if (cursor->next_chunk == reader->count)
            return MS_EEND;
        struct ms__chunk *chunk = &reader->chunks[cursor->next_chunk];
        bool continues = ms__cursor_is_continued_by(cursor, chunk);
        int error = MS_OK;
        if (continues && !chunk->is_key_frame)
            error = open_events(cursor, chunk);
        else if (!continues)
            error = pass_gaps && chunk->is_key_frame && !chunk->damaged ? ms__cursor_load_key_frame(cursor, chunk)
                                                                        : MS_EFORMAT;
        if (error == MS_EFORMAT && !pass_gaps)
            return MS_EEND;
        if (error && error != MS_EFORMAT)
            return error;
        cursor->at_gap |= error == MS_EFORMAT;
        cursor->next_chunk++;
        if (!continues && !error)
            return MS_JUMPED;
    }
    return MS_OK;
}

/* The event at `at` in the open chunk is invalid: the rest of the chunk is damaged. */
static void abandon_chunk(ms_cursor *cursor, const uint8_t *at)
{
    ms__reader_mark_damaged(cursor->reader, &cursor->reader->chunks[cursor->next_chunk - 1],
                            (uint64_t)(cursor->decoder.bytes.end - at));
    cursor->decoder.left = 0;
    cursor->at_gap = true;
}

/* Apply an event that was decoded from the bytes at `at`. MS_EFORMAT: the chunk was abandoned. */
static int apply_event(ms_cursor *cursor, struct ms__decoded_event *decoded, const uint8_t *at)
{
    if (decoded->event.op == MS_OP_ADD)
        decoded->event.stack = ms__stack_decoder_next(cursor->reader, &cursor->stacks);
    int error = ms__state_apply_event(cursor->reader, &cursor->state, decoded);
    if (MS__UNLIKELY(error)) {
        if (error == MS_EFORMAT)
            abandon_chunk(cursor, at);
        return ms__cursor_failed(cursor, error);
    }
    cursor->moment++;
    set_time(cursor, decoded->event.time);
    return MS_OK;
}

int ms__cursor_next(ms_cursor *cursor, struct ms__decoded_event *decoded)
{
    for (;;) {
        int error = reach_event(cursor, true);
        if (error)
            return error;
        const uint8_t *at = cursor->decoder.bytes.at;
        if (MS__UNLIKELY(!ms__decoder_next(&cursor->decoder, decoded))) {
            abandon_chunk(cursor, at);
            continue;
        }
        error = apply_event(cursor, decoded, at);
        if (MS__LIKELY(error != MS_EFORMAT))
            return error;
    }
}

/* An event beyond the limit is decoded before that is known; the decoder then goes back to before it. */
int ms__cursor_advance(ms_cursor *cursor, struct ms__limit limit)
{
    while (cursor->moment < limit.moment) {
        int error = reach_event(cursor, false);
        if (error)
            return error == MS_EEND ? MS_OK : error;
        struct ms__decoder before = cursor->decoder;
        struct ms__decoded_event decoded;
        if (!ms__decoder_next(&cursor->decoder, &decoded)) {
            abandon_chunk(cursor, before.bytes.at);
            return MS_OK;
        }
        if (decoded.event.time > limit.time || (decoded.event.op == MS_OP_STEP && decoded.event.bytes > limit.step)) {
            cursor->decoder = before;
            return MS_OK;
        }
        error = apply_event(cursor, &decoded, before.bytes.at);
        if (error)
            return error == MS_EFORMAT ? MS_OK : error;
    }
    return MS_OK;
}

int ms_cursor_next_or_jump(ms_cursor *cursor, ms_event *event)
{
    if (cursor->claims_applied)
        return MS_EINVAL;
    struct ms__decoded_event decoded;
    int error = ms__cursor_next(cursor, &decoded);
    if (!error)
        *event = decoded.event;
    return error;
}

int ms_cursor_next(ms_cursor *cursor, uint32_t mask, ms_event *event)
{
    if (cursor->claims_applied)
        return MS_EINVAL;
    struct ms__decoded_event decoded;
    int error;
    do
        error = ms__cursor_next(cursor, &decoded);
    while (error == MS_JUMPED || (!error && !(mask >> decoded.event.op & 1)));
    if (!error)
        *event = decoded.event;
    return error;
}

/* ---- opening and closing ---- */
int ms_cursor_open(ms_reader *reader, ms_cursor **out)
{
    ms_cursor *cursor = ms__reader_alloc(reader, sizeof *cursor);
    if (!cursor)
        return MS_ENOMEM;
    *cursor = (ms_cursor){.reader = reader};
    int error = ms__kinds_load(reader);
    if (!error)
        error = ms__cursor_seek_start(cursor);
    if (error) {
        ms_cursor_close(cursor);
        return error;
    }
    *out = cursor;
    return MS_OK;
}

void ms_cursor_close(ms_cursor *cursor)
{
    if (!cursor)
        return;
    ms__state_close(cursor->reader, &cursor->state);
    ms__reader_free(cursor->reader, cursor->buffer.bytes);
    ms__stack_decoder_close(cursor->reader, &cursor->stacks);
    ms__later_claims_free(cursor->reader, &cursor->later_claims);
    ms__reader_free(cursor->reader, cursor);
}

/* ---- answers ---- */
uint64_t ms_cursor_moment(const ms_cursor *cursor)
{
    return cursor->moment;
}

uint64_t ms_cursor_time(const ms_cursor *cursor)
{
    return cursor->time;
}

uint64_t ms_cursor_step(const ms_cursor *cursor)
{
    return cursor->state.step;
}

uint64_t ms_cursor_optimizer_steps(const ms_cursor *cursor)
{
    return cursor->state.optimizer_steps;
}

/* A complete capture begins with a key frame at event 0 or 1, and each chunk begins with the number after the last
 * event of the chunk before it. */
bool ms_cursor_is_lower_bound(const ms_cursor *cursor)
{
    const ms_reader *reader = cursor->reader;
    if (!cursor->has_state || cursor->state.lost || !reader->chunks[0].is_key_frame || reader->chunks[0].event > 1)
        return true;
    uint64_t next = reader->chunks[0].event;
    for (size_t i = 0; i < cursor->next_chunk && reader->chunks[i].event <= cursor->moment; i++) {
        const struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->event != next || (chunk->damaged && chunk->event < cursor->moment && !chunk->is_key_frame))
            return true;
        next += chunk->events;
    }
    return false;
}

ms_sums ms_cursor_now(const ms_cursor *cursor, uint32_t device)
{
    return device < MS_MAX_DEVICES ? cursor->state.now[device] : (ms_sums){{0}};
}

uint64_t ms_cursor_reserved(const ms_cursor *cursor, uint32_t device)
{
    return device < MS_MAX_DEVICES ? cursor->state.reserved[device] : 0;
}

uint64_t ms_cursor_blocks(const ms_cursor *cursor)
{
    return cursor->state.count;
}

bool ms_cursor_block(const ms_cursor *cursor, uint32_t *at, ms_captured_block *block)
{
    if (*at >= cursor->state.count)
        return false;
    *block = cursor->state.blocks[(*at)++];
    block->kind = ms__kind_in(block->kind, block->category);
    return true;
}

ms_kind_sums ms_cursor_kinds(const ms_cursor *cursor, uint32_t device)
{
    ms_kind_sums sums = {{0}};
    ms_captured_block block;
    for (uint32_t at = 0; cursor->reader->kinds && ms_cursor_block(cursor, &at, &block);)
        if (block.device == device && block.kind)
            sums.of[block.kind] += (int64_t)block.bytes;
    return sums;
}

bool ms_cursor_thread(const ms_cursor *cursor, size_t index, uint32_t *number, uint64_t *id, ms_phase *phase,
                      ms_path *path)
{
    if (index >= cursor->state.thread_count)
        return false;
    const struct ms__captured_thread *thread = &cursor->state.threads[index];
    *number = thread->number;
    *id = thread->id;
    *phase = (ms_phase)thread->phase;
    *path = thread->path;
    return true;
}
