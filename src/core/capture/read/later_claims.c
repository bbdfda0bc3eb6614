/* later_claims.c - retroactive claims that come later in the file than the moments they concern.
 *
 *     event:   10 add slot 3 ... 20 (the cursor) ... 30 claim slot 3, since event 10: Gradient of fc
 *
 * At moment 20 the block is a gradient already, but the file says so only at event 30. A cursor has two ways to know:
 * it reads the rest of the file once, for one moment (ms_cursor_apply_later_claims), or it loads all claims of the
 * file and looks them up as it goes on (ms_cursor_load_later_claims). */
#include "core/capture/read/reader.h"

#include <stdlib.h>

enum { LINEAR_STEPS = 8 }; /* entries after the latest hit that are tried before a binary search */

/* ---- looking up ---- */
static int compare_with(const struct ms__later_claim *claim, uint64_t since_event, uint32_t slot)
{
    if (claim->since_event != since_event)
        return claim->since_event < since_event ? -1 : 1;
    return (claim->slot > slot) - (claim->slot < slot);
}

/* The first claim that is not ordered before this block, or claims->count. */
static size_t search_all(const struct ms__later_claims *claims, uint64_t since_event, uint32_t slot)
{
    size_t from = 0, to = claims->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (compare_with(&claims->all[middle], since_event, slot) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* The same. A cursor mostly asks for growing since_events, so the answer is often close to the latest hit. */
static size_t search_near(const struct ms__later_claims *claims, uint64_t since_event, uint32_t slot)
{
    size_t at = claims->latest_hit;
    if (at && compare_with(&claims->all[at - 1], since_event, slot) >= 0)
        return search_all(claims, since_event, slot);
    for (int i = 0; i < LINEAR_STEPS; i++, at++)
        if (at == claims->count || compare_with(&claims->all[at], since_event, slot) >= 0)
            return at;
    return search_all(claims, since_event, slot);
}

void ms__later_claims_apply(struct ms__later_claims *claims, uint64_t since_event, uint32_t slot, uint8_t *category,
                            ms_path *path)
{
    if (!claims->all)
        return;
    size_t at = claims->latest_hit = search_near(claims, since_event, slot);
    if (at == claims->count || compare_with(&claims->all[at], since_event, slot) != 0)
        return;
    *category = claims->all[at].category;
    *path = claims->all[at].path;
}

/* ---- loading all claims of a file ---- */
static bool is_retroactive_claim(const ms_event *event)
{
    return event->op == MS_OP_CLAIM && !event->from_now_on;
}

int ms__later_claims_append(const ms_reader *reader, struct ms__later_claims *claims,
                            const struct ms__later_claim *claim)
{
    struct ms__later_claim *all = NULL;
    if (claims->count < UINT32_MAX)
        all = ms__reader_grow(reader, claims->all, &claims->room, claims->count + 1, sizeof *all);
    if (!all)
        return MS_ENOMEM;
    claims->all = all;
    claims->all[claims->count] = *claim;
    claims->all[claims->count].order = (uint32_t)claims->count;
    claims->count++;
    return MS_OK;
}

static int collect_from_chunk(const ms_reader *reader, struct ms__later_claims *claims, struct ms__decoder *decoder)
{
    struct ms__decoded_event decoded;
    while (decoder->left && ms__decoder_next(decoder, &decoded)) {
        if (!is_retroactive_claim(&decoded.event))
            continue;
        struct ms__later_claim claim = {.since_event = decoded.event.number - decoded.age,
                                        .slot = decoded.event.slot,
                                        .path = ms__checked_path(reader, decoded.event.path),
                                        .category = decoded.attributes & MS__ATTRIBUTES_CATEGORY};
        if (ms__later_claims_append(reader, claims, &claim) != MS_OK)
            return MS_ENOMEM;
    }
    return MS_OK;
}

/* Claims of one block become neighbours, the latest one last. */
static int compare_claims(const void *left, const void *right)
{
    const struct ms__later_claim *a = left, *b = right;
    int order = compare_with(a, b->since_event, b->slot);
    return order ? order : (a->order > b->order) - (a->order < b->order);
}

static void keep_latest_of_each_block(struct ms__later_claims *claims)
{
    size_t kept = 0;
    for (size_t i = 0; i < claims->count; i++) {
        const struct ms__later_claim *claim = &claims->all[i];
        if (i + 1 == claims->count || compare_with(claim, claim[1].since_event, claim[1].slot) != 0)
            claims->all[kept++] = *claim;
    }
    claims->count = kept;
}

void ms__later_claims_sort(struct ms__later_claims *claims)
{
    if (claims->count)
        qsort(claims->all, claims->count, sizeof *claims->all, compare_claims);
    keep_latest_of_each_block(claims);
}

static int collect_all(ms_reader *reader, struct ms__later_claims *claims, struct ms__buffer *buffer)
{
    for (size_t i = 0; i < reader->count; i++) {
        struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->is_key_frame || chunk->oldest_claimed == MS__NO_CLAIM)
            continue;
        int error = ms__reader_read_payload(reader, chunk, buffer);
        if (error == MS_EFORMAT)
            continue;
        struct ms__decoder decoder;
        if (!error) {
            ms__decoder_open(&decoder, chunk, buffer->bytes);
            error = collect_from_chunk(reader, claims, &decoder);
        }
        if (error)
            return error;
    }
    return MS_OK;
}

/* Read the claims of the whole file. On MS_ENOMEM and MS_EIO there is nothing to free. */
static int load_later_claims(ms_reader *reader, struct ms__later_claims *claims)
{
    struct ms__buffer buffer = {0};
    *claims = (struct ms__later_claims){0};
    int error = collect_all(reader, claims, &buffer);
    ms__reader_free(reader, buffer.bytes);
    if (error) {
        ms__later_claims_free(reader, claims);
        return error;
    }
    ms__later_claims_sort(claims);
    return MS_OK;
}

void ms__later_claims_free(const ms_reader *reader, struct ms__later_claims *claims)
{
    ms__reader_free(reader, claims->all);
    *claims = (struct ms__later_claims){0};
}

int ms_cursor_load_later_claims(ms_cursor *cursor)
{
    struct ms__state *state = &cursor->state;
    if (cursor->claims_applied)
        return MS_EINVAL;
    if (state->later_claims)
        return MS_OK;
    int error = load_later_claims(cursor->reader, &cursor->later_claims);
    if (error)
        return error;
    state->later_claims = &cursor->later_claims;
    for (size_t i = 0; i < state->count; i++) {
        ms_captured_block *block = &state->blocks[i];
        uint8_t category = block->category;
        ms_path path = block->path;
        ms__later_claims_apply(state->later_claims, block->since_event, block->slot, &category, &path);
        ms__state_claim_block(state, block, category, path);
    }
    return MS_OK;
}

/* ---- applying later claims at one moment ---- */

/* Apply the claims that are left in a chunk to the blocks of the cursor's moment. `newest`: the highest since_event of
 * these blocks. */
static void apply_from_chunk(ms_cursor *cursor, struct ms__decoder *decoder, uint64_t newest)
{
    struct ms__decoded_event decoded;
    while (decoder->left && ms__decoder_next(decoder, &decoded)) {
        if (!is_retroactive_claim(&decoded.event))
            continue;
        uint64_t since_event = decoded.event.number - decoded.age;
        ms_captured_block *block = since_event <= newest ? ms__state_block(&cursor->state, decoded.event.slot) : NULL;
        if (block && block->since_event == since_event)
            ms__state_claim_block(&cursor->state, block, decoded.attributes,
                                  ms__checked_path(cursor->reader, decoded.event.path));
    }
}

int ms_cursor_apply_later_claims(ms_cursor *cursor)
{
    ms_reader *reader = cursor->reader;
    uint64_t newest = 0;
    for (size_t i = 0; i < cursor->state.count; i++)
        if (cursor->state.blocks[i].since_event > newest)
            newest = cursor->state.blocks[i].since_event;
    if (cursor->claims_applied || cursor->state.later_claims)
        return MS_OK;
    cursor->claims_applied = true;
    apply_from_chunk(cursor, &cursor->decoder, newest);
    for (size_t i = cursor->next_chunk; i < reader->count && cursor->state.count; i++) {
        struct ms__chunk *chunk = &reader->chunks[i];
        if (chunk->is_key_frame || chunk->oldest_claimed > newest)
            continue;
        int error = ms__reader_read_payload(reader, chunk, &cursor->buffer);
        if (error == MS_EFORMAT)
            continue;
        if (error)
            return ms__cursor_failed(cursor, error);
        struct ms__decoder decoder;
        ms__decoder_open(&decoder, chunk, cursor->buffer.bytes);
        apply_from_chunk(cursor, &decoder, newest);
    }
    return MS_OK;
}
