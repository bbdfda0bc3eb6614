/* later_claims.c - what later claims of a capture tell of earlier moments, known beforehand. */
#include "core/capture/read/reader.h"

#include <stdlib.h>

enum { NEAR = 8 }; /* places to look on from the last one, before it is searched for */

/* ---- finding ---- */
static int compare(const struct ms__later *later, uint64_t since_event, uint32_t slot)
{
    if (later->since_event != since_event)
        return later->since_event < since_event ? -1 : 1;
    return (later->slot > slot) - (later->slot < slot);
}

/* The first that is not before this one, or their number. */
static size_t search(const struct ms__ahead *ahead, uint64_t since_event, uint32_t slot)
{
    size_t from = 0, to = ahead->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (compare(&ahead->all[middle], since_event, slot) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Epochs are mostly asked for as they grow. */
static size_t search_near(struct ms__ahead *ahead, uint64_t since_event, uint32_t slot)
{
    size_t at = ahead->near;
    if (at && compare(&ahead->all[at - 1], since_event, slot) >= 0)
        return search(ahead, since_event, slot);
    for (int i = 0; i < NEAR; i++, at++)
        if (at == ahead->count || compare(&ahead->all[at], since_event, slot) >= 0)
            return at;
    return search(ahead, since_event, slot);
}

void ms__ahead_tell(struct ms__ahead *ahead, uint64_t since_event, uint32_t slot, uint8_t *category, ms_path *path)
{
    ahead->near = search_near(ahead, since_event, slot);
    if (ahead->near == ahead->count || compare(&ahead->all[ahead->near], since_event, slot) != 0)
        return;
    *category = ahead->all[ahead->near].category;
    *path = ahead->all[ahead->near].path;
}

/* ---- gathering ---- */
static int take_claims(const ms_reader *reader, struct ms__ahead *ahead, struct ms__scan *scan)
{
    struct ms__raw raw;
    while (scan->left && ms__scan_next(scan, &raw)) {
        if (raw.event.op != MS_OP_CLAIM || raw.event.from_now_on)
            continue;
        struct ms__later *all = NULL;
        if (ahead->count < UINT32_MAX)
            all = ms__reader_grow(reader, ahead->all, &ahead->room, ahead->count + 1, sizeof *all);
        if (!all)
            return MS_ENOMEM;
        ahead->all = all;
        ahead->all[ahead->count] = (struct ms__later){.since_event = raw.event.number - raw.age,
                                                      .slot = raw.event.slot,
                                                      .path = ms__path_known(reader, raw.event.path),
                                                      .order = (uint32_t)ahead->count,
                                                      .category = raw.what & MS__ATTRIBUTES_CATEGORY};
        ahead->count++;
    }
    return MS_OK;
}

/* Those of one block side by side, the latest claim last. */
static int by_block(const void *left, const void *right)
{
    const struct ms__later *a = left, *b = right;
    int order = compare(a, b->since_event, b->slot);
    return order ? order : (a->order > b->order) - (a->order < b->order);
}

static void keep_latest(struct ms__ahead *ahead)
{
    size_t kept = 0;
    for (size_t i = 0; i < ahead->count; i++) {
        const struct ms__later *later = &ahead->all[i];
        if (i + 1 == ahead->count || compare(later, later[1].since_event, later[1].slot) != 0)
            ahead->all[kept++] = *later;
    }
    ahead->count = kept;
}

static int gather(ms_reader *reader, struct ms__ahead *ahead, struct ms__buffer *buffer)
{
    for (size_t i = 0; i < reader->count; i++) {
        struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->key || chunk->oldest == MS__NO_CLAIM)
            continue;
        int error = ms__reader_read(reader, chunk, buffer);
        if (error == MS_EFORMAT)
            continue;
        struct ms__scan scan;
        if (!error) {
            ms__scan_open(&scan, chunk, buffer->bytes);
            error = take_claims(reader, ahead, &scan);
        }
        if (error)
            return error;
    }
    return MS_OK;
}

int ms__ahead_open(ms_reader *reader, struct ms__ahead *ahead)
{
    struct ms__buffer buffer = {0};
    *ahead = (struct ms__ahead){0};
    int error = gather(reader, ahead, &buffer);
    ms__reader_free(reader, buffer.bytes);
    if (error) {
        ms__ahead_close(reader, ahead);
        return error;
    }
    if (ahead->count)
        qsort(ahead->all, ahead->count, sizeof *ahead->all, by_block);
    keep_latest(ahead);
    return MS_OK;
}

void ms__ahead_close(const ms_reader *reader, struct ms__ahead *ahead)
{
    ms__reader_free(reader, ahead->all);
    *ahead = (struct ms__ahead){0};
}
