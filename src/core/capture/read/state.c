/* state.c - everything that is known at a moment: blocks, threads, sums. Events change it. An event
 * that contradicts it is refused. key_frame_reader.c loads all of it at once. */
#include "core/capture/read/slot_map.h"

void ms__state_clear(struct ms__state *state)
{
    ms__slot_map_clear(&state->by_slot);
    ms__slot_map_clear(&state->by_thread);
    *state = (struct ms__state){.blocks = state->blocks,
                                .room = state->room,
                                .by_slot = state->by_slot,
                                .threads = state->threads,
                                .thread_room = state->thread_room,
                                .by_thread = state->by_thread,
                                .later_claims = state->later_claims,
                                .selected = MS__SLOT_MAP_NONE};
}

void ms__state_close(ms_reader *reader, struct ms__state *state)
{
    ms__reader_free(reader, state->blocks);
    ms__reader_free(reader, state->by_slot.buckets);
    ms__reader_free(reader, state->threads);
    ms__reader_free(reader, state->by_thread.buckets);
}

/* ---- blocks ---- */
ms_captured_block *ms__state_block(const struct ms__state *state, uint32_t slot)
{
    uint32_t at = ms__slot_map_get(&state->by_slot, slot);
    return at == MS__SLOT_MAP_NONE ? NULL : &state->blocks[at];
}

bool ms__state_reserve_blocks(const ms_reader *reader, struct ms__state *state, size_t count)
{
    if (count >= MS__SLOT_MAP_NONE || !ms__slot_map_reserve(reader, &state->by_slot, (uint32_t)count))
        return false;
    ms_captured_block *blocks = ms__reader_grow(reader, state->blocks, &state->room, count, sizeof *blocks);
    state->blocks = blocks ? blocks : state->blocks;
    return blocks;
}

int ms__state_add_block(ms_reader *reader, struct ms__state *state, ms_captured_block *block)
{
    int64_t *total = &state->total[block->device];
    if (block->bytes > (uint64_t)(INT64_MAX - *total))
        return MS_EFORMAT;
    if (!ms__state_reserve_blocks(reader, state, state->count + 1))
        return MS_ENOMEM;
    if (state->later_claims)
        ms__later_claims_apply(state->later_claims, block->since_event, block->slot, &block->category, &block->path);
    if (MS__UNLIKELY(reader->kinds != NULL))
        block->kind = ms__noted_kind(reader, block->since_event, block->slot);
    *total += (int64_t)block->bytes;
    state->now[block->device].of[block->category] += (int64_t)block->bytes;
    ms__slot_map_set(&state->by_slot, block->slot, (uint32_t)state->count);
    state->blocks[state->count++] = *block;
    ms__reader_note_device(reader, block->device);
    return MS_OK;
}

/* `at`: its bucket in by_slot. The last block moves into its place. */
static void drop_block(struct ms__state *state, ms_captured_block *block, uint32_t at)
{
    state->total[block->device] -= (int64_t)block->bytes;
    state->now[block->device].of[block->category] -= (int64_t)block->bytes;
    ms__slot_map_remove(&state->by_slot, at);
    const ms_captured_block *last = &state->blocks[--state->count];
    if (block == last)
        return;
    ms__slot_map_set(&state->by_slot, last->slot, (uint32_t)(block - state->blocks));
    *block = *last;
}

void ms__state_claim_block(struct ms__state *state, ms_captured_block *block, uint8_t category, ms_path path)
{
    ms_sums *now = &state->now[block->device];
    now->of[block->category] -= (int64_t)block->bytes;
    now->of[category] += (int64_t)block->bytes;
    block->category = category;
    block->path = path;
}

/* ---- threads ---- */
void ms__state_select_thread(struct ms__state *state, uint32_t thread)
{
    state->selected = ms__slot_map_get(&state->by_thread, thread);
}

/* Add a thread that is not in the list. */
static int add_thread(const ms_reader *reader, struct ms__state *state, const struct ms__captured_thread *thread)
{
    size_t count = state->thread_count + 1;
    if (count >= MS__SLOT_MAP_NONE || !ms__slot_map_reserve(reader, &state->by_thread, (uint32_t)count))
        return MS_ENOMEM;
    struct ms__captured_thread *threads =
        ms__reader_grow(reader, state->threads, &state->thread_room, count, sizeof *threads);
    if (!threads)
        return MS_ENOMEM;
    state->threads = threads;
    ms__slot_map_set(&state->by_thread, thread->number, (uint32_t)state->thread_count);
    state->threads[state->thread_count++] = *thread;
    state->in_phase[thread->phase]++;
    return MS_OK;
}

int ms__state_set_thread(const ms_reader *reader, struct ms__state *state, const struct ms__captured_thread *thread)
{
    ms__state_select_thread(state, thread->number);
    if (state->selected == MS__SLOT_MAP_NONE) {
        int error = add_thread(reader, state, thread);
        ms__state_select_thread(state, thread->number);
        return error;
    }
    struct ms__captured_thread *old = &state->threads[state->selected];
    state->in_phase[old->phase]--;
    state->in_phase[thread->phase]++;
    *old = *thread;
    return MS_OK;
}

ms_phase ms__state_phase(const struct ms__state *state)
{
    static const ms_phase by_priority[] = {MS_RECOMPUTE, MS_BACKWARD, MS_OPTIMIZER, MS_FORWARD, MS_EVALUATION};
    for (size_t i = 0; i < sizeof by_priority / sizeof *by_priority; i++)
        if (state->in_phase[by_priority[i]])
            return by_priority[i];
    return MS_IDLE;
}

ms_path ms__state_path(const struct ms__state *state, ms_phase phase)
{
    for (size_t i = 0; phase != MS_IDLE && i < state->thread_count; i++)
        if (state->threads[i].phase == phase)
            return state->threads[i].path;
    return MS_GLOBAL;
}

/* ---- events ---- */

/* Fill in the fields that every event of a block has. */
static void fill_block_fields(ms_event *event, const ms_captured_block *block)
{
    event->device = block->device;
    event->bytes = block->bytes;
    event->path = block->path;
    event->category = block->category;
    event->kind = ms__kind_in(block->kind, block->category);
    event->stack = block->stack;
}

static int apply_add(ms_reader *reader, struct ms__state *state, struct ms__decoded_event *decoded)
{
    ms_event *event = &decoded->event;
    if (ms__slot_map_get(&state->by_slot, event->slot) != MS__SLOT_MAP_NONE)
        return MS_EFORMAT;
    ms_captured_block block = {.bytes = event->bytes,
                               .since_event = event->number,
                               .made_at = event->time,
                               .step = state->step,
                               .slot = event->slot,
                               .device = event->device,
                               .stack = event->stack};
    if (decoded->bits & MS__ADD_EXPLICIT) {
        block.path = ms__checked_path(reader, event->path);
        block.category = decoded->attributes & MS__ATTRIBUTES_CATEGORY;
        block.outside = decoded->attributes & MS__ATTRIBUTES_OUTSIDE;
        block.phase = ms__known_phase(decoded->attributes >> MS__ATTRIBUTES_PHASE);
    } else {
        const struct ms__captured_thread *thread =
            state->selected == MS__SLOT_MAP_NONE ? NULL : &state->threads[state->selected];
        block.path = thread ? thread->path : MS_GLOBAL;
        block.phase = thread ? thread->phase : MS_IDLE;
        block.category = block.phase == MS_BACKWARD || block.phase == MS_OPTIMIZER ? MS_TEMP : MS_ACTIVATION;
    }
    int error = ms__state_add_block(reader, state, &block);
    fill_block_fields(event, &block);
    event->phase = block.phase;
    event->outside = block.outside;
    return error;
}

static int apply_drop(struct ms__state *state, struct ms__decoded_event *decoded)
{
    uint32_t at = state->count ? ms__slot_map_find_bucket(&state->by_slot, decoded->event.slot) : 0;
    if (!state->count || !state->by_slot.buckets[at])
        return MS_EFORMAT;
    ms_captured_block *block = &state->blocks[(uint32_t)state->by_slot.buckets[at] - 1];
    fill_block_fields(&decoded->event, block);
    drop_block(state, block, at);
    return MS_OK;
}

static int apply_claim(const ms_reader *reader, struct ms__state *state, struct ms__decoded_event *decoded)
{
    ms_event *event = &decoded->event;
    ms_captured_block *block = ms__state_block(state, event->slot);
    if (!block || block->since_event != event->number - decoded->age)
        return MS_EFORMAT;
    event->category_before = block->category;
    event->path_before = block->path;
    event->since_event = block->since_event;
    if (event->from_now_on) {
        block->since_event = event->number;
        block->kind = reader->kinds ? ms__noted_kind(reader, block->since_event, block->slot) : MS_KIND_NONE;
    }
    uint8_t category = decoded->attributes;
    ms_path path = ms__checked_path(reader, event->path);
    if (state->later_claims)
        ms__later_claims_apply(state->later_claims, block->since_event, block->slot, &category, &path);
    ms__state_claim_block(state, block, category, path);
    fill_block_fields(event, block);
    return MS_OK;
}

static int apply_position(const ms_reader *reader, struct ms__state *state, ms_event *event)
{
    event->path = ms__checked_path(reader, event->path);
    struct ms__captured_thread thread = {.number = event->thread, .path = event->path, .phase = event->phase};
    if (state->selected != MS__SLOT_MAP_NONE)
        thread.id = state->threads[state->selected].id;
    return ms__state_set_thread(reader, state, &thread);
}

/* A new thread is idle and outside any module. A number that is neither new nor known was introduced by
 * chunks that are lost; no thread is selected then. */
static int apply_thread(const ms_reader *reader, struct ms__state *state, struct ms__decoded_event *decoded)
{
    ms_event *event = &decoded->event;
    if (decoded->bits & MS__THREAD_NEW)
        return ms__state_set_thread(reader, state,
                                    &(struct ms__captured_thread){.number = event->thread, .id = event->bytes});
    ms__state_select_thread(state, event->thread);
    event->bytes = state->selected == MS__SLOT_MAP_NONE ? 0 : state->threads[state->selected].id;
    return MS_OK;
}

static int apply_oom(ms_reader *reader, const struct ms__state *state, ms_event *event)
{
    ms__reader_note_device(reader, event->device);
    event->path = state->selected == MS__SLOT_MAP_NONE ? MS_GLOBAL : state->threads[state->selected].path;
    event->phase = state->selected == MS__SLOT_MAP_NONE ? MS_IDLE : state->threads[state->selected].phase;
    return MS_OK;
}

int ms__state_apply_event(ms_reader *reader, struct ms__state *state, struct ms__decoded_event *decoded)
{
    switch (decoded->event.op) {
    case MS_OP_ADD:
        return apply_add(reader, state, decoded);
    case MS_OP_DROP:
        return apply_drop(state, decoded);
    case MS_OP_CLAIM:
        return apply_claim(reader, state, decoded);
    case MS_OP_POSITION:
        return apply_position(reader, state, &decoded->event);
    case MS_OP_THREAD:
        return apply_thread(reader, state, decoded);
    case MS_OP_STEP:
        state->step = decoded->event.bytes;
        return MS_OK;
    case MS_OP_OPTIMIZER_STEP:
        state->optimizer_steps++;
        return MS_OK;
    case MS_OP_RESERVED:
        ms__reader_note_device(reader, decoded->event.device);
        state->reserved[decoded->event.device] = decoded->event.bytes;
        return MS_OK;
    default:
        return apply_oom(reader, state, &decoded->event);
    }
}
