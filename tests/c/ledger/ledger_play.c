/* ledger_play.c - a small interpreter: one byte is the event, the next ones are its arguments. */
#include "ledger_play.h"

struct tape {
    const uint8_t *at, *end;
};

static uint32_t take(struct tape *tape)
{
    return tape->at < tape->end ? *tape->at++ : 0;
}

bool ledger_play_open(struct ledger_play *play, struct heap *heap, unsigned bounds)
{
    struct heap asked = *heap;
    heap->refuse_at = 0;
    ms_options options = heap_options(heap);
    options.calls_kept = 1 << 12;
    *play = (struct ledger_play){.bounds = bounds};
    if (!lm_open(&play->model, &options))
        return false;
    play->model.no_backward = !(bounds & LEDGER_PLAY_PLAIN);
    heap->refuse_at = asked.refuse_at ? heap->asked + asked.refuse_at : 0;
    if (!lm_open_ledger(&play->model))
        return false;
    lm_tracker_open(&play->model, 0);
    return true;
}

void ledger_play_close(struct ledger_play *play)
{
    lm_close(&play->model);
}

/* ---- blocks ---- */

/* There are few addresses, so that they are used again, and they are spread over the address space. */
static uint64_t address_of(uint32_t choice)
{
    return (uint64_t)(choice % 128) * 0x200 + ((uint64_t)(choice % 3) << 40);
}

/* The sizes are uneven, so that two totals are rarely equal. */
static uint64_t bytes_of(uint32_t choice)
{
    return choice == 255 ? 0 : choice * choice * 37 + choice % 11 + 1;
}

static uint32_t device_of(uint32_t choice)
{
    return choice % 8 < 5 ? 0 : choice % 8 < 7 ? 1 : 2;
}

static void add(struct ledger_play *play, struct tape *tape)
{
    uint32_t where = take(tape), bytes = take(tape), rest = take(tape);
    uint32_t thread = rest >= 250 ? LM_NO_THREAD : play->current;
    lm_add(&play->model, thread, address_of(where), bytes_of(bytes), device_of(rest));
}

static void add_as(struct ledger_play *play, struct tape *tape)
{
    uint32_t where = take(tape), bytes = take(tape), rest = take(tape), path = take(tape);
    struct lm_block what = {.address = address_of(where),
                            .bytes = bytes_of(bytes),
                            .device = device_of(rest),
                            .category = (ms_category)(rest / 8 % MS_CATEGORY_COUNT),
                            .path = path % LM_PATHS,
                            .outside = path & 16};
    lm_add_as(&play->model, path & 32 ? LM_NO_THREAD : play->current, what);
}

static void claim(struct ledger_play *play, struct tape *tape)
{
    uint32_t where = take(tape), what = take(tape);
    lm_claim(&play->model, address_of(where), (ms_category)(what % MS_CATEGORY_COUNT), what / 16);
}

static void use_tracker(struct ledger_play *play, uint32_t choice)
{
    uint32_t index = choice / 3 % LM_TRACKERS;
    if (choice % 3 == 0)
        lm_tracker_open(&play->model, index);
    else if (choice % 3 == 1)
        lm_tracker_reset(&play->model, index);
    else
        lm_tracker_close(&play->model, index);
}

static void claims(struct ledger_play *play, uint32_t choice)
{
    if (choice % 2)
        lm_claims_begin(&play->model);
    else
        lm_claims_end(&play->model);
}

/* ---- threads ---- */

/* Which thread runs the nodes of thread i. Each has one: the header does not define what happens when two threads run
 * nodes of the same call at once. */
static const uint32_t runner_of[LM_THREADS] = {1, 1, 2, 0};

static uint32_t creator_for(const struct ledger_play *play, uint32_t choice)
{
    if (play->bounds & LEDGER_PLAY_ALONE)
        return play->current;
    for (uint32_t i = 0; i < LM_THREADS; i++)
        if (runner_of[(choice + i) % LM_THREADS] == play->current)
            return (choice + i) % LM_THREADS;
    return LM_THREADS;
}

static void enter_node(struct ledger_play *play, struct tape *tape)
{
    uint32_t choice = take(tape), age = take(tape);
    bool plain = play->bounds & LEDGER_PLAY_PLAIN;
    uint32_t creator = plain ? creator_for(play, choice) : choice % LM_THREADS;
    if (creator == LM_THREADS)
        return;
    const struct lm_thread *made_by = &play->model.threads[creator];
    uint64_t number = made_by->made_count ? made_by->made_count - 1 - age / 2 % made_by->made_count : MS_NO_NUMBER;
    if (!plain && choice >= 250)
        number = MS_NO_NUMBER;
    if (plain && (number == MS_NO_NUMBER || made_by->made[number].odd))
        return;
    lm_node_enter(&play->model, play->current, creator, number);
}

/* Outside backward a thread calls only its own paths: if two threads call the same path, the header does not define
 * which root call is the latest. */
static void enter_call(struct ledger_play *play, uint32_t choice)
{
    const struct lm_thread *thread = &play->model.threads[play->current];
    uint32_t path = 1 + choice % (LM_PATHS - 1);
    bool in_node = false;
    for (uint32_t i = 0; i < thread->depth; i++)
        in_node |= thread->frames[i].kind == LM_NODE;
    if (!in_node && !(play->bounds & LEDGER_PLAY_ALONE) && path % LM_THREADS != play->current)
        path = (path & ~(LM_THREADS - 1u)) + play->current;
    if (path && path < LM_PATHS)
        lm_call_enter(&play->model, play->current, path, choice & 0x80);
}

static void turn_to(struct ledger_play *play, uint32_t choice)
{
    if (!(play->bounds & LEDGER_PLAY_ALONE))
        play->current = choice % LM_THREADS;
}

/* Whole calls, and a backward through the youngest nodes, as in a training step. */
static void forward_and_back(struct ledger_play *play, struct tape *tape)
{
    uint32_t choice = take(tape), age = 0;
    struct ledger_model *model = &play->model;
    for (uint32_t i = 0; i < 1 + choice % 6; i++) {
        enter_call(play, choice + i * 4);
        lm_add(model, play->current, address_of(choice + 7 * i), bytes_of(i + choice / 2), 0);
        lm_make(model, play->current, 1 + i % 2);
        if (i % 3)
            lm_leave(model, play->current);
    }
    for (uint32_t i = 0; i < 4 + choice % 5; i++, age += 2) {
        const uint8_t youngest[2] = {0, (uint8_t)age};
        enter_node(play, &(struct tape){youngest, youngest + 2});
        lm_add(model, play->current, address_of(choice + 11 * i), bytes_of(choice % 64 + i), 0);
        lm_leave(model, play->current);
        lm_drop(model, address_of(choice + 7 * i));
    }
}

static void rare(struct ledger_play *play, uint32_t event, struct tape *tape)
{
    struct ledger_model *model = &play->model;
    if (event < 248)
        claims(play, event);
    else if (event < 251)
        forward_and_back(play, tape);
    else if (event == 251)
        lm_clear(model);
    else if (play->bounds & LEDGER_PLAY_FOREVER)
        return;
    else if (event < 254)
        lm_pause(model);
    else
        lm_thread_renew(model, play->current);
}

static void step(struct ledger_play *play, struct tape *tape)
{
    struct ledger_model *model = &play->model;
    uint32_t event = take(tape);
    if (event < 64)
        add(play, tape);
    else if (event < 88)
        lm_drop(model, address_of(take(tape)));
    else if (event < 104)
        add_as(play, tape);
    else if (event < 124)
        claim(play, tape);
    else if (event < 148)
        enter_call(play, event);
    else if (event < 184)
        lm_leave(model, play->current);
    else if (event < 196)
        lm_make(model, play->current, event % 4);
    else if (event < 212)
        enter_node(play, tape);
    else if (event < 215)
        lm_override_enter(model, play->current, event % LM_PATHS);
    else if (event < 218 && !(play->bounds & LEDGER_PLAY_PLAIN))
        lm_node_enter_as(model, play->current, event % LM_PATHS);
    else if (event < 226)
        turn_to(play, event);
    else if (event < 229)
        lm_step_enter(model, play->current);
    else if (event < 233)
        lm_step_leave(model, play->current);
    else if (event < 242)
        use_tracker(play, event);
    else
        rare(play, event, tape);
}

void ledger_play_bytes(struct ledger_play *play, const uint8_t *bytes, size_t count, int between)
{
    struct tape tape = {bytes, bytes + count};
    for (int events = 1; tape.at < tape.end && !play->model.failed; events++) {
        step(play, &tape);
        if (events % between == 0)
            lm_check(&play->model);
    }
}

void ledger_play_finish(struct ledger_play *play)
{
    struct ledger_model *model = &play->model;
    lm_check(model);
    for (uint32_t i = 0; i < LM_THREADS; i++)
        while (model->threads[i].depth)
            lm_leave(model, i);
    lm_check(model);
    while (model->block_count && !model->failed)
        lm_drop(model, model->blocks[model->block_count / 2].address);
    lm_check(model);
}
