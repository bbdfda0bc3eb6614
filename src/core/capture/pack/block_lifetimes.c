/* block_lifetimes.c - makes the lifetimes of a pack: what each block was from one tick to another. */
#include "core/capture/pack/pack.h"
#include "core/capture/read/slot_map.h"

enum { MAX_TIME_BITS = 53 }; /* JavaScript's integers are exact below 2^53 */

static uint64_t lower_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- columns about ticks ---- */

/* Put the time of the tick that has just begun. */
static bool put_time(struct ms__packer *packer)
{
    uint64_t time = lower_of(packer->cursor->time, (UINT64_C(1) << MAX_TIME_BITS) - 1);
    packer->time = time > packer->time ? time : packer->time;
    return ms__column_put_delta(packer, MS_PACK_TIME, packer->time);
}

static bool put_jump(struct ms__packer *packer)
{
    return ms__column_put_delta(packer, MS_PACK_JUMP, packer->tick) &&
           ms__column_put(packer, MS_PACK_JUMP, packer->cursor->moment);
}

static bool put_step(struct ms__packer *packer)
{
    packer->step = packer->cursor->state.step;
    return ms__column_put_delta(packer, MS_PACK_STEP, packer->tick) &&
           ms__column_put(packer, MS_PACK_STEP, packer->step);
}

static bool put_reserved(struct ms__packer *packer, uint32_t device)
{
    uint64_t reserved = packer->cursor->state.reserved[device];
    if (reserved == packer->reserved[device])
        return true;
    packer->reserved[device] = reserved;
    return ms__column_put_delta(packer, MS_PACK_RESERVED, packer->tick) &&
           ms__column_put(packer, MS_PACK_RESERVED, device) && ms__column_put(packer, MS_PACK_RESERVED, reserved);
}

static bool put_oom(struct ms__packer *packer, const ms_event *event)
{
    const uint64_t values[] = {event->device,   event->bytes, event->allocated,
                               event->reserved, event->phase, event->path};
    bool done = ms__column_put_delta(packer, MS_PACK_OOM, packer->tick);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        done = done && ms__column_put(packer, MS_PACK_OOM, values[i]);
    return done;
}

static bool put_running(struct ms__packer *packer)
{
    ms_phase phase = ms__state_phase(&packer->cursor->state);
    ms_path path = ms__state_path(&packer->cursor->state, phase);
    if (phase == packer->phase && path == packer->path && packer->columns[MS_PACK_RUNNING].count)
        return true;
    packer->phase = phase;
    packer->path = path;
    return ms__column_put_delta(packer, MS_PACK_RUNNING, packer->tick) &&
           ms__column_put(packer, MS_PACK_RUNNING_PHASE, phase) && ms__column_put(packer, MS_PACK_RUNNING_PATH, path);
}

/* ---- lifetimes ---- */
static bool reserve_lifetime(struct ms__packer *packer)
{
    if (packer->count >= MS__SLOT_MAP_NONE - 1 ||
        !ms__slot_map_reserve(packer->reader, &packer->open, packer->open.count + 1))
        return false;
    struct ms__lifetime *lifetimes =
        ms__reader_grow(packer->reader, packer->lifetimes, &packer->room, packer->count + 1, sizeof *lifetimes);
    packer->lifetimes = lifetimes ? lifetimes : packer->lifetimes;
    return lifetimes;
}

/* Begin a lifetime of the block, which replaces another one of it in packer->open. NULL: out of memory. */
static struct ms__lifetime *begin_lifetime(struct ms__packer *packer, const ms_captured_block *block)
{
    if (!reserve_lifetime(packer))
        return NULL;
    struct ms__lifetime *lifetime = &packer->lifetimes[packer->count];
    *lifetime = (struct ms__lifetime){.bytes = block->bytes,
                                      .since_event = block->since_event,
                                      .begin = packer->tick,
                                      .path = block->path,
                                      .stack = block->stack,
                                      .attributes = ms__attributes(block->category, block->outside, block->phase),
                                      .device = (uint8_t)block->device,
                                      .kind = block->kind};
    ms__slot_map_set(&packer->open, block->slot, (uint32_t)packer->count++);
    return lifetime;
}

static int begin_older_block(struct ms__packer *packer, const ms_captured_block *block)
{
    struct ms__lifetime *lifetime = begin_lifetime(packer, block);
    if (!lifetime)
        return MS_ENOMEM;
    uint64_t step = packer->cursor->state.step;
    lifetime->is_older = true;
    lifetime->steps_ago = step - lower_of(block->step, step);
    lifetime->micros_ago = packer->time - lower_of(block->made_at, packer->time);
    return MS_OK;
}

/* End the lifetime `before`, and begin the block's next one. */
static int begin_next_lifetime(struct ms__packer *packer, const ms_captured_block *block, uint32_t before)
{
    struct ms__lifetime *lifetime = begin_lifetime(packer, block);
    if (!lifetime)
        return MS_ENOMEM;
    lifetime->previous = (uint32_t)(packer->count - 1 - before);
    packer->lifetimes[before].duration = packer->tick - packer->lifetimes[before].begin;
    return MS_OK;
}

static void end_lifetime(struct ms__packer *packer, uint32_t slot)
{
    uint32_t at = ms__slot_map_find_bucket(&packer->open, slot);
    struct ms__lifetime *lifetime = &packer->lifetimes[(uint32_t)packer->open.buckets[at] - 1];
    lifetime->duration = packer->tick - lifetime->begin;
    ms__slot_map_remove(&packer->open, at);
}

/* Set category and path of the lifetime, and of the block's previous lifetimes with the same since_event. */
static void claim_lifetime(struct ms__lifetime *lifetime, uint8_t category, ms_path path)
{
    uint64_t since_event = lifetime->since_event;
    for (;; lifetime -= lifetime->previous) {
        lifetime->attributes = (uint8_t)((lifetime->attributes & ~MS__ATTRIBUTES_CATEGORY) | category);
        lifetime->path = path;
        if (!lifetime->previous || lifetime[-(ptrdiff_t)lifetime->previous].since_event != since_event)
            return;
    }
}

/* ---- events ---- */
static int pack_claim(struct ms__packer *packer, const ms_event *event)
{
    uint32_t at = ms__slot_map_get(&packer->open, event->slot);
    if (event->from_now_on)
        return begin_next_lifetime(packer, ms__state_block(&packer->cursor->state, event->slot), at);
    claim_lifetime(&packer->lifetimes[at], event->category, event->path);
    return MS_OK;
}

static int ok_or_no_memory(bool done)
{
    return done ? MS_OK : MS_ENOMEM;
}

/* The cursor has applied the event, and a tick has begun with it. */
static int pack_event(struct ms__packer *packer, const ms_event *event)
{
    switch (event->op) {
    case MS_OP_ADD:
        return ok_or_no_memory(begin_lifetime(packer, ms__state_block(&packer->cursor->state, event->slot)) != NULL);
    case MS_OP_DROP:
        end_lifetime(packer, event->slot);
        return MS_OK;
    case MS_OP_CLAIM:
        return pack_claim(packer, event);
    case MS_OP_POSITION:
    case MS_OP_THREAD:
        return ok_or_no_memory(put_running(packer));
    case MS_OP_STEP:
        return ok_or_no_memory(put_step(packer));
    case MS_OP_RESERVED:
        return ok_or_no_memory(put_reserved(packer, event->device));
    case MS_OP_OOM:
        return ok_or_no_memory(put_oom(packer, event));
    default:
        return MS_OK;
    }
}

/* ---- key frames ---- */

/* Put everything but the blocks. */
static bool put_key_frame(struct ms__packer *packer)
{
    bool same_step = packer->tick && packer->step == packer->cursor->state.step;
    bool done = put_time(packer) && put_jump(packer) && (same_step || put_step(packer)) && put_running(packer);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        done = done && put_reserved(packer, device);
    return done;
}

static bool is_same_block(const struct ms__lifetime *lifetime, const ms_captured_block *block)
{
    return block && lifetime->since_event == block->since_event && lifetime->bytes == block->bytes &&
           lifetime->device == block->device;
}

/* End the lifetimes of blocks that the key frame does not contain. */
static void end_missing_blocks(struct ms__packer *packer)
{
    for (size_t i = 0; packer->open.count && i <= packer->open.mask;) {
        uint64_t bucket = packer->open.buckets[i];
        uint32_t slot = (uint32_t)(bucket >> 32);
        const struct ms__lifetime *lifetime = bucket ? &packer->lifetimes[(uint32_t)bucket - 1] : NULL;
        if (bucket && !is_same_block(lifetime, ms__state_block(&packer->cursor->state, slot)))
            end_lifetime(packer, slot); /* another key may have moved into bucket i */
        else
            i++;
    }
}

static int pack_known_block(struct ms__packer *packer, const ms_captured_block *block)
{
    uint32_t at = ms__slot_map_get(&packer->open, block->slot);
    if (at == MS__SLOT_MAP_NONE)
        return begin_older_block(packer, block);
    const struct ms__lifetime *lifetime = &packer->lifetimes[at];
    bool same = lifetime->path == block->path && lifetime->stack == block->stack && lifetime->kind == block->kind &&
                lifetime->attributes == ms__attributes(block->category, block->outside, block->phase);
    return same ? MS_OK : begin_next_lifetime(packer, block, at);
}

/* The cursor has loaded a key frame, the first one or the one after a gap, and a tick has begun with it. */
static int pack_key_frame(struct ms__packer *packer)
{
    const struct ms__state *state = &packer->cursor->state;
    end_missing_blocks(packer);
    int error = ok_or_no_memory(put_key_frame(packer));
    for (size_t i = 0; i < state->count && !error; i++)
        error = pack_known_block(packer, &state->blocks[i]);
    return error;
}

/* ---- later claims ---- */
static void apply_claims_of_chunk(struct ms__packer *packer, const struct ms__chunk *chunk, uint64_t since)
{
    struct ms__decoder decoder;
    struct ms__decoded_event decoded;
    ms__decoder_open(&decoder, chunk, packer->claims_buffer.bytes);
    while (decoder.left && ms__decoder_next(&decoder, &decoded)) {
        if (decoded.event.op != MS_OP_CLAIM || decoded.event.from_now_on || decoded.event.number < since)
            continue;
        uint32_t at = ms__slot_map_get(&packer->open, decoded.event.slot);
        if (at != MS__SLOT_MAP_NONE && packer->lifetimes[at].since_event == decoded.event.number - decoded.age)
            claim_lifetime(&packer->lifetimes[at], decoded.attributes,
                           ms__checked_path(packer->reader, decoded.event.path));
    }
}

static uint64_t newest_open_lifetime(const struct ms__packer *packer)
{
    uint64_t newest = 0;
    for (size_t i = 0; packer->open.count && i <= packer->open.mask; i++) {
        uint64_t bucket = packer->open.buckets[i];
        if (bucket && packer->lifetimes[(uint32_t)bucket - 1].since_event > newest)
            newest = packer->lifetimes[(uint32_t)bucket - 1].since_event;
    }
    return newest;
}

/* Apply the retroactive claims after the moment `since`, in chunks from..to, to the open lifetimes. */
static int apply_later_claims(struct ms__packer *packer, size_t from, size_t to, uint64_t since)
{
    uint64_t newest = newest_open_lifetime(packer);
    for (size_t i = from; i < to && packer->open.count; i++) {
        struct ms__chunk *chunk = &packer->reader->chunks[i];
        if (chunk->is_key_frame || chunk->oldest_claimed > newest)
            continue;
        int error = ms__reader_read_payload(packer->reader, chunk, &packer->claims_buffer);
        if (!error)
            apply_claims_of_chunk(packer, chunk, since);
        else if (error != MS_EFORMAT)
            return error;
    }
    return MS_OK;
}

/* ---- the whole pack ---- */

/* The chunk that the cursor reads, or has read last. */
static size_t index_of_open_chunk(const ms_cursor *cursor)
{
    return cursor->next_chunk ? cursor->next_chunk - 1 : 0;
}

/* Pack the next event, or the key frame after a gap. Claims in a gap are applied before it is passed: the lifetimes
 * that they concern may end there. MS_EEND at the end. */
static int pack_next(struct ms__packer *packer)
{
    ms_cursor *cursor = packer->cursor;
    size_t from = index_of_open_chunk(cursor);
    uint64_t moment = cursor->moment;
    struct ms__decoded_event decoded;
    int next = ms__cursor_next(cursor, &decoded), error = MS_OK;
    if (next == MS_JUMPED)
        error = apply_later_claims(packer, from, cursor->next_chunk - 1, moment);
    else if (next == MS_EEND && cursor->at_gap)
        error = apply_later_claims(packer, from, cursor->next_chunk, moment);
    if (error || next < 0)
        return error ? error : next;
    if (++packer->tick == UINT32_MAX)
        return MS_EINVAL;
    if (next == MS_JUMPED)
        return pack_key_frame(packer);
    return put_time(packer) ? pack_event(packer, &decoded.event) : MS_ENOMEM;
}

int ms__packer_collect(struct ms__packer *packer, uint64_t last)
{
    int error = pack_key_frame(packer);
    while (!error && packer->cursor->moment < last)
        error = pack_next(packer);
    if (!error)
        return apply_later_claims(packer, index_of_open_chunk(packer->cursor), packer->reader->count,
                                  packer->cursor->moment);
    return error == MS_EEND ? MS_OK : error;
}
