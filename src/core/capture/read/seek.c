/* seek.c - a cursor goes to a moment, a time or a step: it loads the nearest key frame before it, and
 * applies events from there. */
#include "core/capture/read/reader.h"

#define NO_CHUNK SIZE_MAX
enum { NO_KEY_FRAME = 2 }; /* distinct from the error codes, which are negative, and from MS_JUMPED */

/* The last good key frame before chunk `index`, or NO_CHUNK. */
static size_t key_frame_before(const ms_reader *reader, size_t index)
{
    while (index--)
        if (reader->chunks[index].is_key_frame && !reader->chunks[index].damaged)
            return index;
    return NO_CHUNK;
}

/* The first chunk that begins after this moment, or the number of chunks. */
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

static int start_at(ms_cursor *cursor, size_t index)
{
    cursor->decoder.left = 0;
    int error = ms__cursor_load_key_frame(cursor, &cursor->reader->chunks[index]);
    if (!error)
        cursor->next_chunk = index + 1;
    return error;
}

/* Load key frame `index`, or the last good one before it. NO_KEY_FRAME: there is none. */
static int start_at_or_before(ms_cursor *cursor, size_t index)
{
    int error = MS_EFORMAT;
    for (; index != NO_CHUNK && error == MS_EFORMAT; index = key_frame_before(cursor->reader, index))
        error = start_at(cursor, index);
    return error == MS_EFORMAT ? NO_KEY_FRAME : error;
}

int ms__cursor_seek_start(ms_cursor *cursor)
{
    const ms_reader *reader = cursor->reader;
    for (size_t i = 0; i < reader->count; i++) {
        if (!reader->chunks[i].is_key_frame || reader->chunks[i].damaged)
            continue;
        int error = start_at(cursor, i);
        if (error != MS_EFORMAT)
            return error;
    }
    ms__cursor_reset(cursor);
    cursor->next_chunk = reader->count;
    return MS_OK;
}

/* Whether the cursor can advance to the moment from where it is, and has no more events to apply than from the key
 * frame. */
static bool can_advance(const ms_cursor *cursor, uint64_t moment, size_t key_frame)
{
    if (cursor->at_gap || cursor->claims_applied || cursor->moment > moment)
        return false;
    return key_frame == NO_CHUNK || key_frame < cursor->next_chunk ||
           ms__cursor_is_continued_by(cursor, &cursor->reader->chunks[key_frame]);
}

int ms_cursor_seek(ms_cursor *cursor, uint64_t moment)
{
    const ms_reader *reader = cursor->reader;
    size_t key_frame = key_frame_before(reader, chunk_after(reader, moment));
    if (!can_advance(cursor, moment, key_frame)) {
        int error = start_at_or_before(cursor, key_frame);
        if (error == NO_KEY_FRAME)
            return ms__cursor_seek_start(cursor);
        if (error)
            return error;
    }
    return ms__cursor_advance(cursor, (struct ms__limit){moment, UINT64_MAX, UINT64_MAX});
}

int ms_cursor_seek_time(ms_cursor *cursor, uint64_t time)
{
    const ms_reader *reader = cursor->reader;
    uint64_t moment = 0;
    for (size_t i = 0; i < reader->count; i++)
        if (reader->chunks[i].time <= time)
            moment = reader->chunks[i].event;
    int error = ms_cursor_seek(cursor, moment);
    return error ? error : ms__cursor_advance(cursor, (struct ms__limit){UINT64_MAX, time, UINT64_MAX});
}

int ms_cursor_seek_step(ms_cursor *cursor, uint64_t step)
{
    const ms_reader *reader = cursor->reader;
    size_t key_frame = key_frame_before(reader, reader->count);
    while (key_frame != NO_CHUNK && reader->chunks[key_frame].step > step)
        key_frame = key_frame_before(reader, key_frame);
    int error = start_at_or_before(cursor, key_frame);
    if (!error)
        error = ms__cursor_advance(cursor, (struct ms__limit){UINT64_MAX, UINT64_MAX, step});
    if (error == NO_KEY_FRAME || (!error && cursor->state.step != step))
        error = MS_ENOSTEP;
    return error;
}
