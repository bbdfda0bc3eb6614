/* collectives.c - reads the collectives that a capture has, and their groups. */
#include "core/capture/read/reader.h"
#include "modscope_collectives.h"

#include <stdlib.h>
#include <string.h>

const char *ms_collective_name(ms_collective_kind kind)
{
    static const char *const names[MS_COLLECTIVE_COUNT] = {
#define X(name, text) text,
        MS_COLLECTIVES(X)
#undef X
    };
    return (uint32_t)kind < MS_COLLECTIVE_COUNT ? names[kind] : "";
}

const char *ms_collective_timing_name(ms_collective_timing timing)
{
    static const char *const names[MS_COLLECTIVE_TIMING_COUNT] = {
#define X(name, text) text,
        MS_COLLECTIVE_TIMINGS(X)
#undef X
    };
    return (uint32_t)timing < MS_COLLECTIVE_TIMING_COUNT ? names[timing] : "";
}

int ms__collectives_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    return ms__reader_list_chunk(reader, &reader->collectives, &reader->collective_count, &reader->collective_room, at,
                                 head);
}

struct found_collectives {
    ms_collectives all;
    size_t room, group_room;
    size_t countable; /* from this one on, none is missing: times can say which one they are of */
};

static void get_text(struct ms__bytes *bytes, char *text, size_t room)
{
    uint64_t size = ms__get_varint(bytes);
    const uint8_t *at = ms__get_bytes(bytes, size);
    size_t kept = !at ? 0 : size < room ? (size_t)size : room - 1;
    if (kept)
        memcpy(text, at, kept);
    text[kept] = 0;
}

/* MS_EFORMAT: the rest of the chunk cannot be read. */
static int decode_group(ms_reader *reader, struct ms__bytes *bytes, struct found_collectives *found)
{
    ms_collective_group group;
    uint64_t number = ms__get_varint(bytes), size = ms__get_varint(bytes);
    get_text(bytes, group.name, sizeof group.name);
    get_text(bytes, group.backend, sizeof group.backend);
    get_text(bytes, group.ranks, sizeof group.ranks);
    if (bytes->bad || !number || number > UINT32_MAX || size > UINT32_MAX)
        return MS_EFORMAT;
    group.number = (uint32_t)number;
    group.size = (uint32_t)size;
    ms_collective_group *groups =
        ms__reader_grow(reader, found->all.groups, &found->group_room, found->all.group_count + 1, sizeof *groups);
    if (!groups)
        return MS_ENOMEM;
    found->all.groups = groups;
    groups[found->all.group_count++] = group;
    return MS_OK;
}

/* A part of a collective took from `time` on, in microseconds, so many nanoseconds. */
static void add_time(struct found_collectives *found, uint64_t later, uint64_t time, uint64_t timing,
                     uint64_t nanoseconds)
{
    size_t count = found->all.count;
    if (later >= count || count - 1 - later < found->countable ||
        timing + MS_COLLECTIVE_EXECUTED >= MS_COLLECTIVE_TIMING_COUNT)
        return;
    ms_collective *one = &found->all.at[count - 1 - later];
    bool is_first = one->timing != timing + MS_COLLECTIVE_EXECUTED;
    one->timing = (ms_collective_timing)(timing + MS_COLLECTIVE_EXECUTED);
    if (one->timing != MS_COLLECTIVE_EXECUTED) {
        one->nanoseconds = nanoseconds;
        return;
    }
    uint64_t begin = is_first || time < one->time ? time : one->time;
    uint64_t end = time + nanoseconds / 1000, end_before = is_first ? 0 : one->time + one->nanoseconds / 1000;
    one->nanoseconds = is_first ? nanoseconds : ((end > end_before ? end : end_before) - begin) * 1000;
    one->time = begin;
}

static int decode_collective(ms_reader *reader, struct ms__bytes *bytes, uint64_t head, ms_collective *before,
                             struct found_collectives *found)
{
    before->event += ms__get_varint(bytes);
    before->time += (uint64_t)ms__get_zigzag(bytes);
    before->step += (uint64_t)ms__get_zigzag(bytes);
    uint64_t path = before->path + (uint64_t)ms__get_zigzag(bytes);
    uint64_t thread = ms__get_varint(bytes), group = ms__get_varint(bytes);
    uint64_t phase = head & ((1u << MS__COLLECTIVE_PHASE_BITS) - 1), kind = (head >> MS__COLLECTIVE_PHASE_BITS) - 1;
    before->bytes = ms__get_varint(bytes);
    before->nanoseconds = ms__get_varint(bytes);
    if (bytes->bad || path >= ms_reader_paths(reader) || thread > UINT32_MAX || group > UINT32_MAX ||
        before->event > reader->events)
        return MS_EFORMAT;
    before->path = (ms_path)path;
    before->thread = (uint32_t)thread;
    before->group = (uint32_t)group;
    before->phase = phase < MS_PHASE_COUNT ? (ms_phase)phase : MS_IDLE;
    if (kind == MS__COLLECTIVE_TIME - 1) {
        add_time(found, before->bytes, before->time, phase, before->nanoseconds);
        return MS_OK;
    }
    if (kind >= MS_COLLECTIVE_COUNT) { /* a later version's */
        found->countable = found->all.count;
        return MS_OK;
    }
    before->kind = (ms_collective_kind)kind;
    before->timing = before->nanoseconds ? MS_COLLECTIVE_PREDICTED : MS_COLLECTIVE_NOT_TIMED;
    ms_collective *at = ms__reader_grow(reader, found->all.at, &found->room, found->all.count + 1, sizeof *at);
    if (!at)
        return MS_ENOMEM;
    found->all.at = at;
    at[found->all.count++] = *before;
    return MS_OK;
}

static int decode_collectives(ms_reader *reader, const struct ms__chunk *chunk, struct ms__bytes bytes,
                              struct found_collectives *found)
{
    ms_collective before = {.event = chunk->event, .time = chunk->time};
    int error = MS_OK;
    while (!error && bytes.at < bytes.end) {
        uint64_t head = ms__get_varint(&bytes);
        if (bytes.bad)
            break;
        error = head >> MS__COLLECTIVE_PHASE_BITS ? decode_collective(reader, &bytes, head, &before, found)
                                                  : decode_group(reader, &bytes, found);
    }
    if (bytes.bad || error == MS_EFORMAT)
        found->countable = found->all.count;
    return error == MS_EFORMAT ? MS_OK : error;
}

static int by_number(const void *a, const void *b)
{
    const ms_collective_group *first = a, *second = b;
    return first->number < second->number ? -1 : first->number > second->number;
}

/* Keep the last description of each group. */
static void sort_groups(ms_collectives *all)
{
    size_t count = 0;
    for (size_t i = all->group_count; i-- > 0;) { /* from the last one on: to the end of the array */
        size_t same = all->group_count - count;
        while (same < all->group_count && all->groups[same].number != all->groups[i].number)
            same++;
        if (same == all->group_count)
            all->groups[all->group_count - ++count] = all->groups[i];
    }
    if (count)
        memmove(all->groups, all->groups + all->group_count - count, count * sizeof *all->groups);
    all->group_count = count;
    if (count)
        qsort(all->groups, count, sizeof *all->groups, by_number);
}

int ms_collectives_read(ms_reader *reader, ms_collectives *collectives)
{
    struct ms__buffer buffer = {0};
    struct found_collectives found = {0};
    int error = MS_OK;
    for (size_t i = 0; !error && i < reader->collective_count; i++) {
        struct ms__chunk *chunk = &reader->collectives[i];
        error = ms__reader_read_payload(reader, chunk, &buffer);
        if (!error)
            error = decode_collectives(
                reader, chunk, (struct ms__bytes){.at = buffer.bytes, .end = buffer.bytes + chunk->size}, &found);
        else if (error == MS_EFORMAT) {
            error = MS_OK; /* a damaged chunk is passed over */
            found.countable = found.all.count;
        }
    }
    ms__reader_free(reader, buffer.bytes);
    if (error) {
        ms_collectives_free(reader, &found.all);
        return error;
    }
    sort_groups(&found.all);
    *collectives = found.all;
    return MS_OK;
}

void ms_collectives_free(ms_reader *reader, ms_collectives *collectives)
{
    ms__reader_free(reader, collectives->at);
    ms__reader_free(reader, collectives->groups);
}
