/* call_times.c - reads the times of calls that a capture has. */
#include "core/capture/read/reader.h"

#include <stdlib.h>

int ms__times_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    return ms__reader_list_chunk(reader, &reader->times, &reader->time_count, &reader->time_room, at, head);
}

struct found_times {
    ms_call_time *at;
    size_t count, room;
};

/* Decode the times of one chunk, up to the first that is invalid. */
static int decode_times(ms_reader *reader, const struct ms__chunk *chunk, struct ms__bytes bytes,
                        struct found_times *found)
{
    uint64_t event = chunk->event;
    while (bytes.at < bytes.end) {
        event += (uint64_t)ms__get_zigzag(&bytes);
        uint64_t thread = ms__get_varint(&bytes);
        uint64_t nanoseconds = ms__get_varint(&bytes);
        if (bytes.bad || thread > UINT32_MAX || event > reader->events)
            break;
        ms_call_time *times = ms__reader_grow(reader, found->at, &found->room, found->count + 1, sizeof *times);
        if (!times)
            return MS_ENOMEM;
        found->at = times;
        found->at[found->count++] = (ms_call_time){event, nanoseconds, (uint32_t)thread};
    }
    return MS_OK;
}

static int by_event(const void *a, const void *b)
{
    const ms_call_time *first = a, *second = b;
    if (first->event != second->event)
        return first->event < second->event ? -1 : 1;
    return first->thread < second->thread ? -1 : first->thread > second->thread;
}

int ms_call_times_read(ms_reader *reader, ms_call_time **times, size_t *count)
{
    struct ms__buffer buffer = {0};
    struct found_times found = {0};
    int error = MS_OK;
    for (size_t i = 0; !error && i < reader->time_count; i++) {
        struct ms__chunk *chunk = &reader->times[i];
        error = ms__reader_read_payload(reader, chunk, &buffer);
        if (!error)
            error = decode_times(reader, chunk,
                                 (struct ms__bytes){.at = buffer.bytes, .end = buffer.bytes + chunk->size}, &found);
        else if (error == MS_EFORMAT)
            error = MS_OK; /* a damaged chunk is passed over */
    }
    ms__reader_free(reader, buffer.bytes);
    if (error) {
        ms__reader_free(reader, found.at);
        return error;
    }
    if (found.count)
        qsort(found.at, found.count, sizeof *found.at, by_event);
    *times = found.at;
    *count = found.count;
    return MS_OK;
}

void ms_call_times_free(ms_reader *reader, ms_call_time *times)
{
    ms__reader_free(reader, times);
}
