/* state.c - what is known at a moment: blocks, threads, sums. Events change it, and key frames
 * tell all of it at once; both are refused where they cannot be true. */
#include "core/capture/read/slot_map.h"

void ms__state_clear(struct ms__state *state)
{
    ms__map_clear(&state->by_slot);
    ms__map_clear(&state->by_thread);
    *state = (struct ms__state){.blocks = state->blocks,
                                .room = state->room,
                                .by_slot = state->by_slot,
                                .threads = state->threads,
                                .thread_room = state->thread_room,
                                .by_thread = state->by_thread,
                                .ahead = state->ahead,
                                .who = MS__MAP_NONE};
}

void ms__state_close(ms_reader *reader, struct ms__state *state)
{
    ms__reader_free(reader, state->blocks);
    ms__reader_free(reader, state->by_slot.slots);
    ms__reader_free(reader, state->threads);
    ms__reader_free(reader, state->by_thread.slots);
}

/* ---- blocks ---- */
ms_captured_block *ms__state_block(const struct ms__state *state, uint32_t slot)
{
    uint32_t at = ms__map_get(&state->by_slot, slot);
    return at == MS__MAP_NONE ? NULL : &state->blocks[at];
}

static bool reserve_blocks(const ms_reader *reader, struct ms__state *state, size_t count)
{
    if (count >= MS__MAP_NONE || !ms__map_reserve(reader, &state->by_slot, (uint32_t)count))
        return false;
    ms_captured_block *blocks = ms__reader_grow(reader, state->blocks, &state->room, count, sizeof *blocks);
    state->blocks = blocks ? blocks : state->blocks;
    return blocks;
}

/* Its slot is empty. */
static int add_block(ms_reader *reader, struct ms__state *state, ms_captured_block *block)
{
    int64_t *total = &state->total[block->device];
    if (block->bytes > (uint64_t)(INT64_MAX - *total))
        return MS_EFORMAT;
    if (!reserve_blocks(reader, state, state->count + 1))
        return MS_ENOMEM;
    if (state->ahead)
        ms__ahead_tell(state->ahead, block->since_event, block->slot, &block->category, &block->path);
    *total += (int64_t)block->bytes;
    state->now[block->device].of[block->category] += (int64_t)block->bytes;
    ms__map_set(&state->by_slot, block->slot, (uint32_t)state->count);
    state->blocks[state->count++] = *block;
    ms__reader_met_device(reader, block->device);
    return MS_OK;
}

/* `at`: where it is in by_slot. */
static void drop_block(struct ms__state *state, ms_captured_block *block, uint32_t at)
{
    state->total[block->device] -= (int64_t)block->bytes;
    state->now[block->device].of[block->category] -= (int64_t)block->bytes;
    ms__map_take(&state->by_slot, at);
    const ms_captured_block *last = &state->blocks[--state->count];
    if (block == last)
        return;
    ms__map_set(&state->by_slot, last->slot, (uint32_t)(block - state->blocks));
    *block = *last;
}

void ms__state_claim(struct ms__state *state, ms_captured_block *block, uint8_t category, ms_path path)
{
    ms_sums *now = &state->now[block->device];
    now->of[block->category] -= (int64_t)block->bytes;
    now->of[category] += (int64_t)block->bytes;
    block->category = category;
    block->path = path;
}

/* ---- threads ---- */
void ms__state_turn(struct ms__state *state, uint32_t thread)
{
    state->who = ms__map_get(&state->by_thread, thread);
}

/* The thread is here, and was not. */
static int add_thread(const ms_reader *reader, struct ms__state *state, const struct ms__who *who)
{
    size_t count = state->thread_count + 1;
    if (count >= MS__MAP_NONE || !ms__map_reserve(reader, &state->by_thread, (uint32_t)count))
        return MS_ENOMEM;
    struct ms__who *threads = ms__reader_grow(reader, state->threads, &state->thread_room, count, sizeof *threads);
    if (!threads)
        return MS_ENOMEM;
    state->threads = threads;
    ms__map_set(&state->by_thread, who->number, (uint32_t)state->thread_count);
    state->threads[state->thread_count++] = *who;
    state->in_phase[who->phase]++;
    return MS_OK;
}

/* The thread whose the events are becomes this one; its number may be new. */
static int set_thread(const ms_reader *reader, struct ms__state *state, const struct ms__who *who)
{
    ms__state_turn(state, who->number);
    if (state->who == MS__MAP_NONE) {
        int error = add_thread(reader, state, who);
        ms__state_turn(state, who->number);
        return error;
    }
    struct ms__who *known = &state->threads[state->who];
    state->in_phase[known->phase]--;
    state->in_phase[who->phase]++;
    *known = *who;
    return MS_OK;
}

ms_phase ms__state_phase(const struct ms__state *state)
{
    static const ms_phase first[] = {MS_RECOMPUTE, MS_BACKWARD, MS_OPTIMIZER, MS_FORWARD};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (state->in_phase[first[i]])
            return first[i];
    return MS_IDLE;
}

/* ---- events ---- */

/* The same for every event of a block. */
static void tell_block(ms_event *event, const ms_captured_block *block)
{
    event->device = block->device;
    event->bytes = block->bytes;
    event->path = block->path;
    event->category = block->category;
}

static int add(ms_reader *reader, struct ms__state *state, struct ms__raw *raw)
{
    ms_event *event = &raw->event;
    if (ms__map_get(&state->by_slot, event->slot) != MS__MAP_NONE)
        return MS_EFORMAT;
    ms_captured_block block = {.bytes = event->bytes,
                               .since_event = event->number,
                               .made_at = event->time,
                               .step = state->step,
                               .slot = event->slot,
                               .device = event->device};
    if (raw->bits & MS__ADD_EXPLICIT) {
        block.path = ms__path_known(reader, event->path);
        block.category = raw->what & MS__ATTRIBUTES_CATEGORY;
        block.outside = raw->what & MS__ATTRIBUTES_OUTSIDE;
        block.phase = raw->what >> MS__ATTRIBUTES_PHASE;
    } else {
        const struct ms__who *who = state->who == MS__MAP_NONE ? NULL : &state->threads[state->who];
        block.path = who ? who->path : MS_GLOBAL;
        block.phase = who ? who->phase : MS_IDLE;
        block.category = block.phase == MS_BACKWARD || block.phase == MS_OPTIMIZER ? MS_TEMP : MS_ACTIVATION;
    }
    int error = add_block(reader, state, &block);
    tell_block(event, &block);
    event->phase = block.phase;
    return error;
}

static int drop(struct ms__state *state, struct ms__raw *raw)
{
    uint32_t at = state->count ? ms__map_seek(&state->by_slot, raw->event.slot) : 0;
    if (!state->count || !state->by_slot.slots[at])
        return MS_EFORMAT;
    ms_captured_block *block = &state->blocks[(uint32_t)state->by_slot.slots[at] - 1];
    tell_block(&raw->event, block);
    drop_block(state, block, at);
    return MS_OK;
}

static int claim(const ms_reader *reader, struct ms__state *state, struct ms__raw *raw)
{
    ms_event *event = &raw->event;
    ms_captured_block *block = ms__state_block(state, event->slot);
    if (!block || block->since_event != event->number - raw->age)
        return MS_EFORMAT;
    if (event->from_now_on)
        block->since_event = event->number;
    uint8_t category = raw->what;
    ms_path path = ms__path_known(reader, event->path);
    if (state->ahead)
        ms__ahead_tell(state->ahead, block->since_event, block->slot, &category, &path);
    ms__state_claim(state, block, category, path);
    tell_block(event, block);
    return MS_OK;
}

static int where(const ms_reader *reader, struct ms__state *state, ms_event *event)
{
    event->path = ms__path_known(reader, event->path);
    struct ms__who who = {.number = event->thread, .path = event->path, .phase = event->phase};
    if (state->who != MS__MAP_NONE)
        who.id = state->threads[state->who].id;
    return set_thread(reader, state, &who);
}

/* A new thread is nowhere; one that is not new and not known is of a key frame that was lost. */
static int turn(const ms_reader *reader, struct ms__state *state, struct ms__raw *raw)
{
    ms_event *event = &raw->event;
    if (raw->bits & MS__THREAD_NEW)
        return set_thread(reader, state, &(struct ms__who){.number = event->thread, .id = event->bytes});
    ms__state_turn(state, event->thread);
    event->bytes = state->who == MS__MAP_NONE ? 0 : state->threads[state->who].id;
    return MS_OK;
}

static int oom(ms_reader *reader, const struct ms__state *state, ms_event *event)
{
    ms__reader_met_device(reader, event->device);
    event->path = state->who == MS__MAP_NONE ? MS_GLOBAL : state->threads[state->who].path;
    event->phase = state->who == MS__MAP_NONE ? MS_IDLE : state->threads[state->who].phase;
    return MS_OK;
}

int ms__state_happen(ms_reader *reader, struct ms__state *state, struct ms__raw *raw)
{
    switch (raw->event.op) {
    case MS_OP_ADD:
        return add(reader, state, raw);
    case MS_OP_DROP:
        return drop(state, raw);
    case MS_OP_CLAIM:
        return claim(reader, state, raw);
    case MS_OP_POSITION:
        return where(reader, state, &raw->event);
    case MS_OP_THREAD:
        return turn(reader, state, raw);
    case MS_OP_STEP:
        state->step = raw->event.bytes;
        return MS_OK;
    case MS_OP_OPTIMIZER_STEP:
        state->optimizer_steps++;
        return MS_OK;
    case MS_OP_RESERVED:
        ms__reader_met_device(reader, raw->event.device);
        state->reserved[raw->event.device] = raw->event.bytes;
        return MS_OK;
    default:
        return oom(reader, state, &raw->event);
    }
}

/* ---- key frames: gone through twice, so that one that is damaged changes nothing. `state` is NULL the first time ----
 */
enum { BLOCK_BYTES = 8 }; /* of a key frame, at the least */

static int load_threads(const ms_reader *reader, struct ms__state *state, struct ms__bytes *bytes)
{
    for (uint64_t left = ms__get_varint(bytes); left; left--) {
        uint64_t number = ms__get_varint(bytes), id = ms__get_varint(bytes);
        uint64_t phase = ms__get_varint(bytes), path = ms__get_varint(bytes);
        if (bytes->bad || number > UINT32_MAX || phase > MS_OPTIMIZER || path > UINT32_MAX)
            return MS_EFORMAT;
        struct ms__who who = {.id = id,
                              .number = (uint32_t)number,
                              .path = ms__path_known(reader, (ms_path)path),
                              .phase = (uint8_t)phase};
        if (state && set_thread(reader, state, &who) != MS_OK)
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int load_devices(ms_reader *reader, struct ms__state *state, struct ms__bytes *bytes)
{
    for (uint64_t left = ms__get_varint(bytes); left; left--) {
        uint64_t device = ms__get_varint(bytes), reserved = ms__get_varint(bytes);
        if (bytes->bad || device >= MS_MAX_DEVICES)
            return MS_EFORMAT;
        if (!state)
            continue;
        state->reserved[device] = reserved;
        ms__reader_met_device(reader, (uint32_t)device);
    }
    return MS_OK;
}

/* `step`: the one it is in now; `next`: the lowest slot it may have. */
static bool get_block(const ms_reader *reader, const struct ms__chunk *chunk, uint64_t step, struct ms__bytes *bytes,
                      uint64_t *next, ms_captured_block *block)
{
    uint64_t over = ms__get_varint(bytes), size = ms__get_varint(bytes), device = ms__get_varint(bytes);
    uint8_t what = ms__get_byte(bytes);
    uint64_t path = ms__get_varint(bytes), age = ms__get_varint(bytes);
    uint64_t steps_ago = ms__get_varint(bytes), ago = ms__get_varint(bytes);
    if (bytes->bad || over > MS__SLOT_MAX || *next + over > MS__SLOT_MAX || device >= MS_MAX_DEVICES ||
        !ms__is_what(what) || path > UINT32_MAX || age > chunk->event || steps_ago > step || ago > chunk->time)
        return false;
    *block = (ms_captured_block){.bytes = size,
                                 .since_event = chunk->event - age,
                                 .made_at = chunk->time - ago,
                                 .step = step - steps_ago,
                                 .slot = (uint32_t)(*next + over),
                                 .device = (uint32_t)device,
                                 .path = ms__path_known(reader, (ms_path)path),
                                 .category = what & MS__ATTRIBUTES_CATEGORY,
                                 .phase = what >> MS__ATTRIBUTES_PHASE,
                                 .outside = what & MS__ATTRIBUTES_OUTSIDE};
    *next = block->slot + UINT64_C(1);
    return true;
}

static int load_blocks(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk, uint64_t step,
                       struct ms__bytes *bytes)
{
    uint64_t total[MS_MAX_DEVICES] = {0}, next = 0, count = ms__get_varint(bytes);
    if (count > (uint64_t)(bytes->end - bytes->at) / BLOCK_BYTES)
        return MS_EFORMAT;
    if (state && count && !reserve_blocks(reader, state, count))
        return MS_ENOMEM;
    for (; count; count--) {
        ms_captured_block block;
        if (!get_block(reader, chunk, step, bytes, &next, &block) || block.bytes > INT64_MAX - total[block.device])
            return MS_EFORMAT;
        total[block.device] += block.bytes;
        if (state && add_block(reader, state, &block) != MS_OK)
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int load_key(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk, const uint8_t *payload)
{
    struct ms__bytes bytes = {.at = payload, .end = payload + chunk->size};
    uint64_t step = ms__get_varint(&bytes), optimizer_steps = ms__get_varint(&bytes), lost = ms__get_varint(&bytes);
    if (state) {
        state->step = step;
        state->optimizer_steps = optimizer_steps;
        state->lost = lost;
    }
    int error = load_threads(reader, state, &bytes);
    if (!error)
        error = load_devices(reader, state, &bytes);
    if (!error)
        error = load_blocks(reader, state, chunk, step, &bytes);
    if (!error && (bytes.bad || bytes.at != bytes.end))
        error = MS_EFORMAT;
    return error;
}

int ms__state_load(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk, const uint8_t *payload)
{
    int error = load_key(reader, NULL, chunk, payload);
    if (error)
        return error;
    ms__state_clear(state);
    return load_key(reader, state, chunk, payload);
}
