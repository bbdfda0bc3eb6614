/* cursor.c - going through a capture's moments. */
#include "core/capture/read/slot_map.h"

#define NO_CHUNK SIZE_MAX
enum { NO_KEY_FRAME = 2 }; /* beside the error codes, which are negative, and MS_JUMPED */

/* Nothing is known. */
static void forget(ms_cursor *cursor)
{
    ms__state_clear(&cursor->state);
    cursor->scan.left = 0;
    cursor->moment = cursor->time = 0;
    cursor->known = cursor->settled = false;
    cursor->stuck = true;
}

/* After an error that is not the file's the cursor's place is lost. */
static int failed(ms_cursor *cursor, int error)
{
    if (error == MS_ENOMEM || error == MS_EIO) {
        forget(cursor);
        cursor->at = 0;
    }
    return error;
}

static void see_time(ms_cursor *cursor, uint64_t time)
{
    cursor->time = time;
    if (time > cursor->reader->duration)
        cursor->reader->duration = time;
}

/* ---- going on ---- */

/* Know what this key frame says. No chunk is open. MS_EFORMAT: it is damaged. */
static int load(ms_cursor *cursor, struct ms__chunk *chunk)
{
    ms_reader *reader = cursor->reader;
    int error = ms__reader_read(reader, chunk, &cursor->buffer);
    if (error)
        return failed(cursor, error);
    error = ms__state_load(reader, &cursor->state, chunk, cursor->buffer.bytes);
    if (error == MS_EFORMAT)
        ms__reader_give_up(reader, chunk, (uint64_t)chunk->size + MS__CHUNK_HEAD);
    if (error)
        return failed(cursor, error);
    cursor->known = true;
    cursor->stuck = cursor->settled = false;
    cursor->moment = chunk->event;
    see_time(cursor, chunk->time);
    return MS_OK;
}

/* Whether the chunk goes on from here. A key frame does if it has nothing new to say. */
static bool follows(const ms_cursor *cursor, const struct ms__chunk *chunk)
{
    return !cursor->stuck && chunk->event == cursor->moment && (!chunk->key || chunk->lost <= cursor->state.lost);
}

static int open_events(ms_cursor *cursor, struct ms__chunk *chunk)
{
    int error = ms__reader_read(cursor->reader, chunk, &cursor->buffer);
    if (error)
        return failed(cursor, error);
    ms__scan_open(&cursor->scan, chunk, cursor->buffer.bytes);
    ms__state_turn(&cursor->state, 0);
    return MS_OK;
}

/* Come to where there is an event to read: MS_EEND if there is none. With `over`, what is lost or damaged is passed
 * over, to a key frame (MS__AT_KEY); else it is the end. */
static int come_to_event(ms_cursor *cursor, bool over)
{
    const ms_reader *reader = cursor->reader;
    while (!cursor->scan.left) {
        if (cursor->at == reader->count)
            return MS_EEND;
        struct ms__chunk *chunk = &reader->chunks[cursor->at];
        bool on = follows(cursor, chunk);
        int error = MS_OK;
        if (on && !chunk->key)
            error = open_events(cursor, chunk);
        else if (!on)
            error = over && chunk->key && !chunk->bad ? load(cursor, chunk) : MS_EFORMAT;
        if (error == MS_EFORMAT && !over)
            return MS_EEND;
        if (error && error != MS_EFORMAT)
            return error;
        cursor->stuck |= error == MS_EFORMAT;
        cursor->at++;
        if (!on && !error)
            return MS__AT_KEY;
    }
    return MS_OK;
}

/* The event is not what it should be: the rest of its chunk is damaged. */
static void give_up(ms_cursor *cursor, const uint8_t *at)
{
    ms__reader_give_up(cursor->reader, &cursor->reader->chunks[cursor->at - 1],
                       (uint64_t)(cursor->scan.bytes.end - at));
    cursor->scan.left = 0;
    cursor->stuck = true;
}

/* The event that was read happens. `at`: where it is written. */
static int happen(ms_cursor *cursor, struct ms__raw *raw, const uint8_t *at)
{
    int error = ms__state_happen(cursor->reader, &cursor->state, raw);
    if (MS__UNLIKELY(error)) {
        if (error == MS_EFORMAT)
            give_up(cursor, at);
        return failed(cursor, error);
    }
    cursor->moment++;
    see_time(cursor, raw->event.time);
    return MS_OK;
}

int ms__cursor_next(ms_cursor *cursor, struct ms__raw *raw)
{
    for (;;) {
        int error = come_to_event(cursor, true);
        if (error)
            return error;
        const uint8_t *at = cursor->scan.bytes.at;
        if (MS__UNLIKELY(!ms__scan_next(&cursor->scan, raw))) {
            give_up(cursor, at);
            continue;
        }
        error = happen(cursor, raw, at);
        if (MS__LIKELY(error != MS_EFORMAT))
            return error;
    }
}

int ms_cursor_walk(ms_cursor *cursor, ms_event *event)
{
    if (cursor->settled)
        return MS_EINVAL;
    struct ms__raw raw;
    int error = ms__cursor_next(cursor, &raw);
    if (!error)
        *event = raw.event;
    return error;
}

int ms_cursor_next(ms_cursor *cursor, uint32_t mask, ms_event *event)
{
    if (cursor->settled)
        return MS_EINVAL;
    struct ms__raw raw;
    int error;
    do
        error = ms__cursor_next(cursor, &raw);
    while (error == MS__AT_KEY || (!error && !(mask >> raw.event.op & 1)));
    if (!error)
        *event = raw.event;
    return error;
}

/* ---- seeking ---- */
struct limit {
    uint64_t moment, time, step; /* no further than to this one */
};

/* As far as can be known without passing over anything. */
static int run(ms_cursor *cursor, struct limit limit)
{
    while (cursor->moment < limit.moment) {
        int error = come_to_event(cursor, false);
        if (error)
            return error == MS_EEND ? MS_OK : error;
        struct ms__scan before = cursor->scan;
        struct ms__raw raw;
        if (!ms__scan_next(&cursor->scan, &raw)) {
            give_up(cursor, before.bytes.at);
            return MS_OK;
        }
        if (raw.event.time > limit.time || (raw.event.op == MS_OP_STEP && raw.event.bytes > limit.step)) {
            cursor->scan = before;
            return MS_OK;
        }
        error = happen(cursor, &raw, before.bytes.at);
        if (error)
            return error == MS_EFORMAT ? MS_OK : error;
    }
    return MS_OK;
}

/* The last good key frame before this chunk. */
static size_t key_before(const ms_reader *reader, size_t index)
{
    while (index--)
        if (reader->chunks[index].key && !reader->chunks[index].bad)
            return index;
    return NO_CHUNK;
}

/* The first chunk that begins after this moment, or their number. */
static size_t chunk_after(const ms_reader *reader, uint64_t moment)
{
    size_t from = 0, to = reader->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (reader->chunks[middle].event <= moment)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static int begin_at(ms_cursor *cursor, size_t index)
{
    cursor->scan.left = 0;
    int error = load(cursor, &cursor->reader->chunks[index]);
    if (!error)
        cursor->at = index + 1;
    return error;
}

/* Begin at this key frame, or the last one before it that is good. NO_KEY_FRAME if there is none. */
static int begin_before(ms_cursor *cursor, size_t index)
{
    int error = MS_EFORMAT;
    for (; index != NO_CHUNK && error == MS_EFORMAT; index = key_before(cursor->reader, index))
        error = begin_at(cursor, index);
    return error == MS_EFORMAT ? NO_KEY_FRAME : error;
}

/* Begin at the first key frame that is good; nowhere if there is none. */
static int begin_first(ms_cursor *cursor)
{
    const ms_reader *reader = cursor->reader;
    for (size_t i = 0; i < reader->count; i++) {
        if (!reader->chunks[i].key || reader->chunks[i].bad)
            continue;
        int error = begin_at(cursor, i);
        if (error != MS_EFORMAT)
            return error;
    }
    forget(cursor);
    cursor->at = reader->count;
    return MS_OK;
}

/* Whether the way to this moment from here is no longer than from that key frame. */
static bool goes_from_here(const ms_cursor *cursor, uint64_t moment, size_t key)
{
    if (cursor->stuck || cursor->settled || cursor->moment > moment)
        return false;
    return key == NO_CHUNK || key < cursor->at || follows(cursor, &cursor->reader->chunks[key]);
}

int ms_cursor_seek(ms_cursor *cursor, uint64_t moment)
{
    const ms_reader *reader = cursor->reader;
    size_t key = key_before(reader, chunk_after(reader, moment));
    if (!goes_from_here(cursor, moment, key)) {
        int error = begin_before(cursor, key);
        if (error == NO_KEY_FRAME)
            return begin_first(cursor);
        if (error)
            return error;
    }
    return run(cursor, (struct limit){moment, UINT64_MAX, UINT64_MAX});
}

int ms_cursor_seek_time(ms_cursor *cursor, uint64_t time)
{
    const ms_reader *reader = cursor->reader;
    uint64_t moment = 0;
    for (size_t i = 0; i < reader->count; i++)
        if (reader->chunks[i].time <= time)
            moment = reader->chunks[i].event;
    int error = ms_cursor_seek(cursor, moment);
    return error ? error : run(cursor, (struct limit){UINT64_MAX, time, UINT64_MAX});
}

int ms_cursor_seek_step(ms_cursor *cursor, uint64_t step)
{
    const ms_reader *reader = cursor->reader;
    size_t key = key_before(reader, reader->count);
    while (key != NO_CHUNK && reader->chunks[key].step > step)
        key = key_before(reader, key);
    int error = begin_before(cursor, key);
    if (!error)
        error = run(cursor, (struct limit){UINT64_MAX, UINT64_MAX, step});
    if (error == NO_KEY_FRAME || (!error && cursor->state.step != step))
        error = MS_ENOSTEP;
    return error;
}

/* ---- later claims ---- */

/* An since_event names a block only together with its slot: the next one in the slot has a later one. */
static void settle_by(ms_cursor *cursor, struct ms__scan *scan, uint64_t newest)
{
    struct ms__raw raw;
    while (scan->left && ms__scan_next(scan, &raw)) {
        if (raw.event.op != MS_OP_CLAIM || raw.event.from_now_on)
            continue;
        uint64_t since_event = raw.event.number - raw.age;
        ms_captured_block *block = since_event <= newest ? ms__state_block(&cursor->state, raw.event.slot) : NULL;
        if (block && block->since_event == since_event)
            ms__state_claim(&cursor->state, block, raw.what, ms__path_known(cursor->reader, raw.event.path));
    }
}

int ms_cursor_apply_later_claims(ms_cursor *cursor)
{
    ms_reader *reader = cursor->reader;
    uint64_t newest = 0;
    for (size_t i = 0; i < cursor->state.count; i++)
        if (cursor->state.blocks[i].since_event > newest)
            newest = cursor->state.blocks[i].since_event;
    if (cursor->settled || cursor->state.ahead)
        return MS_OK;
    cursor->settled = true;
    settle_by(cursor, &cursor->scan, newest);
    for (size_t i = cursor->at; i < reader->count && cursor->state.count; i++) {
        struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->key || chunk->oldest > newest)
            continue;
        int error = ms__reader_read(reader, chunk, &cursor->buffer);
        if (error == MS_EFORMAT)
            continue;
        if (error)
            return failed(cursor, error);
        struct ms__scan scan;
        ms__scan_open(&scan, chunk, cursor->buffer.bytes);
        settle_by(cursor, &scan, newest);
    }
    return MS_OK;
}

int ms_cursor_load_later_claims(ms_cursor *cursor)
{
    struct ms__state *state = &cursor->state;
    if (cursor->settled)
        return MS_EINVAL;
    if (state->ahead)
        return MS_OK;
    int error = ms__ahead_open(cursor->reader, &cursor->ahead);
    if (error)
        return error;
    state->ahead = &cursor->ahead;
    for (size_t i = 0; i < state->count; i++) {
        ms_captured_block *block = &state->blocks[i];
        uint8_t category = block->category;
        ms_path path = block->path;
        ms__ahead_tell(state->ahead, block->since_event, block->slot, &category, &path);
        ms__state_claim(state, block, category, path);
    }
    return MS_OK;
}

/* ---- opening, closing and what is asked ---- */
int ms_cursor_open(ms_reader *reader, ms_cursor **out)
{
    ms_cursor *cursor = ms__reader_alloc(reader, sizeof *cursor);
    if (!cursor)
        return MS_ENOMEM;
    *cursor = (ms_cursor){.reader = reader};
    int error = begin_first(cursor);
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
    ms__ahead_close(cursor->reader, &cursor->ahead);
    ms__reader_free(cursor->reader, cursor);
}

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

/* The first event has number 0 or 1, and there is a key frame before it. */
bool ms_cursor_is_lower_bound(const ms_cursor *cursor)
{
    const ms_reader *reader = cursor->reader;
    if (!cursor->known || cursor->state.lost || !reader->chunks[0].key || reader->chunks[0].event > 1)
        return true;
    uint64_t next = reader->chunks[0].event;
    for (size_t i = 0; i < cursor->at && reader->chunks[i].event <= cursor->moment; i++) {
        const struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->event != next || (chunk->bad && chunk->event < cursor->moment && !chunk->key))
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

bool ms_cursor_block(const ms_cursor *cursor, uint32_t *at, ms_captured_block *held)
{
    if (*at >= cursor->state.count)
        return false;
    *held = cursor->state.blocks[(*at)++];
    return true;
}

bool ms_cursor_thread(const ms_cursor *cursor, size_t index, uint32_t *number, uint64_t *id, ms_phase *phase,
                      ms_path *path)
{
    if (index >= cursor->state.thread_count)
        return false;
    const struct ms__who *who = &cursor->state.threads[index];
    *number = who->number;
    *id = who->id;
    *phase = (ms_phase)who->phase;
    *path = who->path;
    return true;
}
