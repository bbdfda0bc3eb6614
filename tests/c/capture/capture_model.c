/* capture_model.c - a random run, and what was so at any moment of it. */
#include "capture_model.h"

#include "random.h"
#include "runner.h"

#include <string.h>

uint32_t model_slot(int index)
{
    static const uint32_t far[] = {1000, 65535, 1u << 20, 1u << 30, 0x7FFFFFFF};
    return index < MODEL_SLOTS - 5 ? (uint32_t)index : far[index - (MODEL_SLOTS - 5)];
}

uint32_t model_thread(int index)
{
    return index < MODEL_THREADS - 1 ? (uint32_t)index : 0xFFFFFFFFu;
}

/* ---- events ---- */
static void begin(struct model_state *state)
{
    memset(state, 0, sizeof *state);
    for (int i = 0; i < MODEL_SLOTS; i++)
        state->blocks[i].since = -1;
}

static void add(struct model_state *state, const struct model_event *event, int index)
{
    uint8_t phase = event->explicit ? event->phase : state->threads[event->thread].phase;
    bool temp = phase == MS_BACKWARD || phase == MS_OPTIMIZER;
    state->blocks[event->slot] =
        (struct model_block){.block = {.bytes = event->bytes,
                                       .since_event = event->number,
                                       .made_at = event->time,
                                       .step = state->step,
                                       .slot = model_slot(event->slot),
                                       .device = event->device,
                                       .path = event->explicit ? event->path : state->threads[event->thread].path,
                                       .category = event->explicit ? event->category
                                                   : temp          ? MS_TEMP
                                                                   : MS_ACTIVATION,
                                       .phase = phase,
                                       .outside = event->explicit && event->outside},
                             .since = index};
}

static void claim(struct model_block *entry, const struct model_event *event, int index)
{
    entry->block.category = event->category;
    entry->block.path = event->path;
    if (!event->from_now_on)
        return;
    entry->block.since_event = event->number;
    entry->since = index;
}

static void apply_event(struct model_state *state, const struct model_event *event, int index)
{
    state->time = event->time;
    switch (event->op) {
    case MS_OP_ADD:
        add(state, event, index);
        break;
    case MS_OP_DROP:
        state->blocks[event->slot].since = -1;
        break;
    case MS_OP_CLAIM:
        claim(&state->blocks[event->slot], event, index);
        break;
    case MS_OP_POSITION:
        state->threads[event->thread].known = true;
        state->threads[event->thread].phase = event->phase;
        state->threads[event->thread].path = event->path;
        break;
    case MS_OP_THREAD:
        if (event->new) {
            memset(&state->threads[event->thread], 0, sizeof state->threads[0]);
            state->threads[event->thread].known = true;
            state->threads[event->thread].id = event->bytes;
        }
        break;
    case MS_OP_STEP:
        state->step = event->bytes;
        break;
    case MS_OP_OPTIMIZER_STEP:
        state->optimizer_steps++;
        break;
    case MS_OP_RESERVED:
        state->reserved[event->device] = event->bytes;
        break;
    default:
        break;
    }
}

/* ---- writing the file ---- */
static uint64_t below(struct model *model, uint64_t bound)
{
    return random_below(&model->random, bound);
}

static uint8_t what_of(const ms_captured_block *block)
{
    return (uint8_t)(block->category | (block->outside ? 8 : 0) | block->phase << 4);
}

static void end_chunk(struct model *model)
{
    int last = model->chunk_count - 1;
    model->chunks[last].events = model->file.events;
    file_close(&model->file);
    model->chunks[last].end = model->file.count;
}

static void begin_chunk(struct model *model, bool key)
{
    CHECK(model->chunk_count < MODEL_CHUNKS);
    int at = model->chunk_count++;
    model->chunks[at].at = model->file.count;
    model->chunks[at].event = model->file.event;
    model->chunks[at].key = key;
    model->chunks[at].damaged = false;
}

static void tell_key_blocks(struct model *model)
{
    struct file *file = &model->file;
    const struct model_state *now = &model->now;
    uint64_t count = 0, next = 0;
    for (int i = 0; i < MODEL_SLOTS; i++)
        count += now->blocks[i].since >= 0;
    file_varint(file, count);
    for (int i = 0; i < MODEL_SLOTS; i++) {
        const ms_captured_block *block = &now->blocks[i].block;
        if (now->blocks[i].since < 0)
            continue;
        file_varint(file, block->slot - next);
        next = (uint64_t)block->slot + 1;
        file_varint(file, block->bytes);
        file_varint(file, block->device);
        file_byte(file, what_of(block));
        file_varint(file, block->path);
        file_varint(file, file->event - block->since_event);
        file_varint(file, now->step - block->step);
        file_varint(file, file->time - block->made_at);
    }
}

static void tell_key(struct model *model)
{
    struct file *file = &model->file;
    const struct model_state *now = &model->now;
    begin_chunk(model, true);
    file_key_begin(file, (struct file_key){now->step, now->optimizer_steps, model->lost});
    uint64_t count = 0;
    for (int i = 0; i < MODEL_THREADS; i++)
        count += now->threads[i].known;
    file_varint(file, count);
    for (int i = 0; i < MODEL_THREADS; i++) {
        if (!now->threads[i].known)
            continue;
        file_varint(file, model_thread(i));
        file_varint(file, now->threads[i].id);
        file_varint(file, now->threads[i].phase);
        file_varint(file, now->threads[i].path);
    }
    file_varint(file, MODEL_DEVICES);
    for (uint32_t i = 0; i < MODEL_DEVICES; i++) {
        file_varint(file, i);
        file_varint(file, now->reserved[i]);
    }
    tell_key_blocks(model);
    end_chunk(model);
}

static void tell_block(struct model *model, const struct model_event *event, uint64_t since_event)
{
    struct file *file = &model->file;
    uint32_t slot = model_slot(event->slot);
    uint8_t what = (uint8_t)(event->category | (event->outside ? 8 : 0) | event->phase << 4);
    if (event->op == MS_OP_DROP)
        file_drop(file, slot);
    else if (event->op == MS_OP_CLAIM)
        file_claim(file, slot, event->category, event->path, since_event, event->from_now_on);
    else if (event->explicit)
        file_add_as(file, slot, event->bytes, event->device, what, event->path);
    else
        file_add(file, slot, event->bytes, event->device);
}

static void tell(struct model *model, const struct model_event *event, uint64_t since_event)
{
    struct file *file = &model->file;
    switch (event->op) {
    case MS_OP_POSITION:
        file_position(file, event->phase, event->path);
        break;
    case MS_OP_THREAD:
        if (event->new)
            file_thread_new(file, model_thread(event->thread), event->bytes);
        else
            file_thread(file, model_thread(event->thread));
        break;
    case MS_OP_STEP:
        file_step(file, event->bytes);
        break;
    case MS_OP_OPTIMIZER_STEP:
        file_optimizer_step(file);
        break;
    case MS_OP_RESERVED:
        file_reserved(file, event->device, event->bytes);
        break;
    case MS_OP_OOM:
        file_oom(file, event->device, event->bytes, 1, 2);
        break;
    default:
        tell_block(model, event, since_event);
    }
}

/* Apply the event, and write it to the file unless it is lost. */
static void go_on(struct model *model, struct model_event event, bool lost)
{
    CHECK(model->count < MODEL_EVENTS);
    struct file *file = &model->file;
    uint64_t since_event = model->now.blocks[event.slot].block.since_event;
    file->later = below(model, 3) ? 0 : below(model, 50);
    event.number = file->event;
    event.time = file->time + file->later;
    event.lost = lost;
    event.chunk = model->chunk_count - 1;
    if (lost) {
        model->lost++;
        file->time += file->later;
        file->later = 0;
        file->event += model->numbered;
    } else {
        tell(model, &event, since_event);
    }
    model->events[model->count] = event;
    apply_event(&model->now, &event, model->count++);
}

/* Write a thread event, unless the file's events belong to this thread already. */
static void turn(struct model *model, int thread)
{
    bool new = !model->now.threads[thread].known ? below(model, 3) > 0 : below(model, 40) == 0;
    if (thread == model->thread && !new)
        return;
    model->thread = thread;
    go_on(model,
          (struct model_event){.op = MS_OP_THREAD, .thread = thread, .new = new, .bytes = new ? below(model, 99) : 0},
          false);
}

static struct model_event any_block_event(struct model *model)
{
    struct model_event event = {.op = MS_OP_ADD,
                                .slot = (int)below(model, MODEL_SLOTS),
                                .bytes = below(model, 4) ? below(model, 5000) : below(model, UINT64_C(1) << 40),
                                .device = (uint32_t)below(model, MODEL_DEVICES),
                                .path = (uint32_t)below(model, MODEL_PATHS),
                                .category = (uint8_t)below(model, MS_CATEGORY_COUNT),
                                .phase = (uint8_t)below(model, MS_PHASE_COUNT),
                                .outside = below(model, 4) == 0,
                                .explicit = below(model, 2),
                                .from_now_on = below(model, 4) == 0};
    if (model->now.blocks[event.slot].since >= 0)
        event.op = below(model, 3) ? MS_OP_CLAIM : MS_OP_DROP;
    return event;
}

static struct model_event any_event(struct model *model)
{
    struct model_event event = {.device = (uint32_t)below(model, MODEL_DEVICES),
                                .path = (uint32_t)below(model, MODEL_PATHS),
                                .phase = (uint8_t)below(model, MS_PHASE_COUNT)};
    switch (below(model, 20)) {
    case 0:
        event.op = MS_OP_STEP;
        event.bytes = model->now.step + 1;
        return event;
    case 1:
        event.op = MS_OP_OPTIMIZER_STEP;
        return event;
    case 2:
        event.op = MS_OP_RESERVED;
        event.bytes = below(model, 100000);
        return event;
    case 3:
        event.op = MS_OP_OOM;
        event.bytes = below(model, 100000);
        return event;
    case 4:
    case 5:
    case 6:
        event.op = MS_OP_POSITION;
        return event;
    default:
        return any_block_event(model);
    }
}

static void lose_some(struct model *model)
{
    for (uint64_t left = 1 + below(model, 6); left; left--) {
        struct model_event event = any_event(model);
        event.thread = model->thread;
        go_on(model, event, true);
    }
    tell_key(model);
}

void model_run(struct model *model, uint64_t seed, int events, uint64_t first, bool with_losses, bool numbered)
{
    static const char *const names[] = {"Global", "unknown", "a", "b", "c", "d", "e", "f", "g", NULL};
    memset(model, 0, sizeof *model);
    model->random = seed;
    model->numbered = numbered;
    begin(&model->now);
    file_open(&model->file);
    model->file.event = first;
    file_names(&model->file, 0, names);
    file_devices(&model->file, (const char *const[]){"cpu", "cuda:0", "cuda:1", "cuda:2", NULL});
    tell_key(model);
    while (model->count < events) {
        begin_chunk(model, false);
        file_chunk(&model->file, EVENTS);
        model->thread = 0;
        /* If lost events have no numbers, a claim right after them has the same number as one right before them. */
        turn(model, 1);
        for (uint64_t left = below(model, 60); left && model->count < events; left--) {
            turn(model, below(model, 5) ? model->thread : (int)below(model, MODEL_THREADS));
            struct model_event event = any_event(model);
            event.thread = model->thread;
            go_on(model, event, false);
        }
        end_chunk(model);
        if (with_losses && below(model, 6) == 0)
            lose_some(model);
        else if (below(model, 4) == 0)
            tell_key(model);
    }
}

void model_free(struct model *model)
{
    file_free(&model->file);
}

/* ---- what a reader must know ---- */
void model_damage(struct model *model, int chunk, uint64_t random)
{
    size_t at = model->chunks[chunk].at, size = model->chunks[chunk].end - at;
    model->file.bytes[at + random % size] ^= (uint8_t)(1u << random / size % 8);
    model->chunks[chunk].damaged = true;
}

/* A moment is known from a good key frame on, as long as good chunks follow each other. */
bool model_knows(const struct model *model, uint64_t moment)
{
    bool known = false;
    uint64_t at = 0;
    for (int i = 0; i < model->chunk_count; i++) {
        uint64_t event = model->chunks[i].event, end = event + model->chunks[i].events;
        known = known && at == event;
        if (known && moment == at)
            return true;
        if (model->chunks[i].key && !model->chunks[i].damaged)
            known = true;
        else if (!model->chunks[i].key && model->chunks[i].damaged)
            known = false;
        if (known && moment >= event && moment <= end)
            return true;
        at = end;
    }
    return false;
}

static bool is_before(const struct model_event *event, uint64_t moment, bool numbered)
{
    return event->number < moment || (event->lost && !numbered && event->number == moment);
}

void model_at(const struct model *model, uint64_t moment, bool later_claims, struct model_state *state)
{
    begin(state);
    int i = 0;
    for (; i < model->count && is_before(&model->events[i], moment, model->numbered); i++)
        apply_event(state, &model->events[i], i);
    if (!later_claims)
        return;
    static struct model_state later;
    later = *state;
    for (; i < model->count; i++) {
        const struct model_event *event = &model->events[i];
        struct model_block *entry = &state->blocks[event->slot];
        if (event->op == MS_OP_CLAIM && !event->from_now_on && !event->lost && !model->chunks[event->chunk].damaged &&
            entry->since >= 0 && later.blocks[event->slot].since == entry->since)
            claim(entry, event, i);
        apply_event(&later, event, i);
    }
}
