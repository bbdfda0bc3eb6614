/* block_lifetimes.c - a stretch of a capture as stays: what each block was from one tick to another. */
#include "core/capture/pack/pack.h"
#include "core/capture/read/slot_map.h"

enum { TIME_MOST_BITS = 53 }; /* a page's numbers are exact up to there */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- ticks, and what else is noted at them ---- */

/* The tick that has just begun has this time. */
static bool note_time(struct ms__packer *packer)
{
    uint64_t time = least(packer->cursor->time, (UINT64_C(1) << TIME_MOST_BITS) - 1);
    packer->time = time > packer->time ? time : packer->time;
    return ms__column_on(packer, MS_PACK_TIME, packer->time);
}

static bool note_jump(struct ms__packer *packer)
{
    return ms__column_on(packer, MS_PACK_JUMP, packer->tick) &&
           ms__column_put(packer, MS_PACK_JUMP, packer->cursor->moment);
}

static bool note_step(struct ms__packer *packer)
{
    packer->step = packer->cursor->state.step;
    return ms__column_on(packer, MS_PACK_STEP, packer->tick) && ms__column_put(packer, MS_PACK_STEP, packer->step);
}

static bool note_reserved(struct ms__packer *packer, uint32_t device)
{
    uint64_t reserved = packer->cursor->state.reserved[device];
    if (reserved == packer->reserved[device])
        return true;
    packer->reserved[device] = reserved;
    return ms__column_on(packer, MS_PACK_RESERVED, packer->tick) && ms__column_put(packer, MS_PACK_RESERVED, device) &&
           ms__column_put(packer, MS_PACK_RESERVED, reserved);
}

static bool note_oom(struct ms__packer *packer, const ms_event *event)
{
    const uint64_t values[] = {event->device,   event->bytes, event->allocated,
                               event->reserved, event->phase, event->path};
    bool done = ms__column_on(packer, MS_PACK_OOM, packer->tick);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        done = done && ms__column_put(packer, MS_PACK_OOM, values[i]);
    return done;
}

/* The first thread of the busiest phase, as the threads are listed. */
static ms_path busiest_path(const struct ms__state *state, ms_phase phase)
{
    for (size_t i = 0; phase != MS_IDLE && i < state->thread_count; i++)
        if (state->threads[i].phase == phase)
            return state->threads[i].path;
    return MS_GLOBAL;
}

static bool note_running(struct ms__packer *packer)
{
    ms_phase phase = ms__state_phase(&packer->cursor->state);
    ms_path path = busiest_path(&packer->cursor->state, phase);
    if (phase == packer->phase && path == packer->path && packer->columns[MS_PACK_RUN].count)
        return true;
    packer->phase = phase;
    packer->path = path;
    return ms__column_on(packer, MS_PACK_RUN, packer->tick) && ms__column_put(packer, MS_PACK_RUN_PHASE, phase) &&
           ms__column_put(packer, MS_PACK_RUN_PATH, path);
}

/* ---- stays ---- */
static bool room_for_stay(struct ms__packer *packer)
{
    if (packer->count >= MS__MAP_NONE - 1 || !ms__map_reserve(packer->reader, &packer->open, packer->open.count + 1))
        return false;
    struct ms__stay *stays =
        ms__reader_grow(packer->reader, packer->stays, &packer->room, packer->count + 1, sizeof *stays);
    packer->stays = stays ? stays : packer->stays;
    return stays;
}

/* The block is this from now on; its stay before, if there is one, ends. */
static struct ms__stay *begin_stay(struct ms__packer *packer, const ms_captured_block *block)
{
    if (!room_for_stay(packer))
        return NULL;
    struct ms__stay *stay = &packer->stays[packer->count];
    *stay = (struct ms__stay){.bytes = block->bytes,
                              .since_event = block->since_event,
                              .begin = packer->tick,
                              .path = block->path,
                              .what = ms__attributes(block->category, block->outside, block->phase),
                              .device = (uint8_t)block->device};
    ms__map_set(&packer->open, block->slot, (uint32_t)packer->count++);
    return stay;
}

static int begin_old(struct ms__packer *packer, const ms_captured_block *block)
{
    struct ms__stay *stay = begin_stay(packer, block);
    if (!stay)
        return MS_ENOMEM;
    uint64_t step = packer->cursor->state.step;
    stay->old = true;
    stay->steps_ago = step - least(block->step, step);
    stay->ago = packer->time - least(block->made_at, packer->time);
    return MS_OK;
}

/* Go on with the block of the stay `before`, which ends here. */
static int begin_again(struct ms__packer *packer, const ms_captured_block *block, uint32_t before)
{
    struct ms__stay *stay = begin_stay(packer, block);
    if (!stay)
        return MS_ENOMEM;
    stay->again = (uint32_t)(packer->count - 1 - before);
    packer->stays[before].lasted = packer->tick - packer->stays[before].begin;
    return MS_OK;
}

static void end_stay(struct ms__packer *packer, uint32_t slot)
{
    uint32_t at = ms__map_seek(&packer->open, slot);
    struct ms__stay *stay = &packer->stays[(uint32_t)packer->open.slots[at] - 1];
    stay->lasted = packer->tick - stay->begin;
    ms__map_take(&packer->open, at);
}

/* The stay is this, and so are those before it that are of the same since_event. */
static void claim_stay(struct ms__stay *stay, uint8_t category, ms_path path)
{
    uint64_t since_event = stay->since_event;
    for (;; stay -= stay->again) {
        stay->what = (uint8_t)((stay->what & ~MS__ATTRIBUTES_CATEGORY) | category);
        stay->path = path;
        if (!stay->again || stay[-(ptrdiff_t)stay->again].since_event != since_event)
            return;
    }
}

/* ---- events ---- */
static int claim(struct ms__packer *packer, const ms_event *event)
{
    uint32_t at = ms__map_get(&packer->open, event->slot);
    if (event->from_now_on)
        return begin_again(packer, ms__state_block(&packer->cursor->state, event->slot), at);
    claim_stay(&packer->stays[at], event->category, event->path);
    return MS_OK;
}

static int noted(bool done)
{
    return done ? MS_OK : MS_ENOMEM;
}

/* The event has happened, and a tick has begun with it. */
static int take_event(struct ms__packer *packer, const ms_event *event)
{
    switch (event->op) {
    case MS_OP_ADD:
        return noted(begin_stay(packer, ms__state_block(&packer->cursor->state, event->slot)) != NULL);
    case MS_OP_DROP:
        end_stay(packer, event->slot);
        return MS_OK;
    case MS_OP_CLAIM:
        return claim(packer, event);
    case MS_OP_POSITION:
    case MS_OP_THREAD:
        return noted(note_running(packer));
    case MS_OP_STEP:
        return noted(note_step(packer));
    case MS_OP_RESERVED:
        return noted(note_reserved(packer, event->device));
    case MS_OP_OOM:
        return noted(note_oom(packer, event));
    default:
        return MS_OK;
    }
}

/* ---- key frames ---- */

/* All but the blocks. */
static bool note_key(struct ms__packer *packer)
{
    bool same_step = packer->tick && packer->step == packer->cursor->state.step;
    bool done = note_time(packer) && note_jump(packer) && (same_step || note_step(packer)) && note_running(packer);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        done = done && note_reserved(packer, device);
    return done;
}

static bool is_same_block(const struct ms__stay *stay, const ms_captured_block *block)
{
    return block && stay->since_event == block->since_event && stay->bytes == block->bytes &&
           stay->device == block->device;
}

/* What the key frame does not know ends. */
static void end_unknown(struct ms__packer *packer)
{
    for (size_t i = 0; packer->open.count && i <= packer->open.mask;) {
        uint64_t entry = packer->open.slots[i];
        uint32_t slot = (uint32_t)(entry >> 32);
        const struct ms__stay *stay = entry ? &packer->stays[(uint32_t)entry - 1] : NULL;
        if (entry && !is_same_block(stay, ms__state_block(&packer->cursor->state, slot)))
            end_stay(packer, slot); /* another one may have moved here */
        else
            i++;
    }
}

static int take_block(struct ms__packer *packer, const ms_captured_block *block)
{
    uint32_t at = ms__map_get(&packer->open, block->slot);
    if (at == MS__MAP_NONE)
        return begin_old(packer, block);
    const struct ms__stay *stay = &packer->stays[at];
    bool same =
        stay->path == block->path && stay->what == ms__attributes(block->category, block->outside, block->phase);
    return same ? MS_OK : begin_again(packer, block, at);
}

/* A tick has begun with what a key frame says, the first one or one after a loss. */
static int take_key(struct ms__packer *packer)
{
    const struct ms__state *state = &packer->cursor->state;
    end_unknown(packer);
    int error = noted(note_key(packer));
    for (size_t i = 0; i < state->count && !error; i++)
        error = take_block(packer, &state->blocks[i]);
    return error;
}

/* ---- later claims ---- */
static void claims_of(struct ms__packer *packer, const struct ms__chunk *chunk, uint64_t since)
{
    struct ms__scan scan;
    struct ms__raw raw;
    ms__scan_open(&scan, chunk, packer->later.bytes);
    while (scan.left && ms__scan_next(&scan, &raw)) {
        if (raw.event.op != MS_OP_CLAIM || raw.event.from_now_on || raw.event.number < since)
            continue;
        uint32_t at = ms__map_get(&packer->open, raw.event.slot);
        if (at != MS__MAP_NONE && packer->stays[at].since_event == raw.event.number - raw.age)
            claim_stay(&packer->stays[at], raw.what, ms__path_known(packer->reader, raw.event.path));
    }
}

static uint64_t newest_open(const struct ms__packer *packer)
{
    uint64_t newest = 0;
    for (size_t i = 0; packer->open.count && i <= packer->open.mask; i++) {
        uint64_t entry = packer->open.slots[i];
        if (entry && packer->stays[(uint32_t)entry - 1].since_event > newest)
            newest = packer->stays[(uint32_t)entry - 1].since_event;
    }
    return newest;
}

/* Heed the claims after the moment `since`, in chunks from..to, of what was held then. */
static int heed_later(struct ms__packer *packer, size_t from, size_t to, uint64_t since)
{
    uint64_t newest = newest_open(packer);
    for (size_t i = from; i < to && packer->open.count; i++) {
        struct ms__chunk *chunk = &packer->reader->chunks[i];
        if (chunk->key || chunk->oldest > newest)
            continue;
        int error = ms__reader_read(packer->reader, chunk, &packer->later);
        if (!error)
            claims_of(packer, chunk, since);
        else if (error != MS_EFORMAT)
            return error;
    }
    return MS_OK;
}

/* ---- all of it ---- */

/* The chunk that the cursor is in, or has read last. */
static size_t open_chunk(const ms_cursor *cursor)
{
    return cursor->at ? cursor->at - 1 : 0;
}

/* The next event, or the key frame after a loss, and what it changes. MS_EEND at the end. */
static int take_next(struct ms__packer *packer)
{
    ms_cursor *cursor = packer->cursor;
    size_t from = open_chunk(cursor);
    uint64_t moment = cursor->moment;
    struct ms__raw raw;
    int next = ms__cursor_next(cursor, &raw), error = MS_OK;
    if (next == MS__AT_KEY)
        error = heed_later(packer, from, cursor->at - 1, moment);
    else if (next == MS_EEND && cursor->stuck)
        error = heed_later(packer, from, cursor->at, moment);
    if (error || next < 0)
        return error ? error : next;
    if (++packer->tick == UINT32_MAX)
        return MS_EINVAL;
    if (next == MS__AT_KEY)
        return take_key(packer);
    return note_time(packer) ? take_event(packer, &raw.event) : MS_ENOMEM;
}

int ms__packer_walk(struct ms__packer *packer, uint64_t last)
{
    int error = take_key(packer);
    while (!error && packer->cursor->moment < last)
        error = take_next(packer);
    if (!error)
        return heed_later(packer, open_chunk(packer->cursor), packer->reader->count, packer->cursor->moment);
    return error == MS_EEND ? MS_OK : error;
}
