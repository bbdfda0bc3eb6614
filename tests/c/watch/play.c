/* play.c - a tiny interpreter: one byte chooses the event, the next ones its arguments. */
#include "play.h"

#include <stdio.h>

struct tape {
    const uint8_t *at, *end;
};

static uint32_t take(struct tape *tape)
{
    return tape->at < tape->end ? *tape->at++ : 0;
}

bool play_open(struct play *play, const ms_options *options)
{
    *play = (struct play){0};
    if (!model_open(&play->model, options))
        return false;
    for (int i = 0; i < PLAY_PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i % 7);
        ms_path parent = i ? play->paths[i / 2] : MS_GLOBAL;
        play->paths[i] = MS_UNKNOWN;
        if (parent == MS_UNKNOWN || ms_path_add(play->model.watch, parent, name, &play->paths[i]) != MS_OK)
            play->model.errors++;
    }
    for (uint32_t i = 0; i < PLAY_THREADS; i++)
        play->open[i] = model_thread_open(&play->model, i % 2 ? (uint64_t)i << 40 : 0);
    return true;
}

void play_close(struct play *play)
{
    model_close(&play->model);
}

static uint32_t here(const struct play *play)
{
    return play->open[play->current];
}

static const struct model_thread *thread_here(const struct play *play)
{
    return &play->model.threads[here(play)];
}

/* Any thread there ever was, most often one that is open. */
static uint32_t some_creator(const struct play *play, uint32_t choice)
{
    return choice % 4 ? play->open[choice / 4 % PLAY_THREADS] : choice / 4 % play->model.thread_count;
}

/* Any node of that thread, most often a young one. */
static uint64_t some_number(const struct play *play, uint32_t creator, uint32_t low, uint32_t high)
{
    uint64_t made = play->model.threads[creator].made;
    uint64_t age = low % 4 ? low / 4 : (low + 256 * (uint64_t)high) * 37;
    return model_number(&play->model, creator, made ? age % made : 0);
}

static void enter_node(struct play *play, struct tape *tape)
{
    uint32_t choice = take(tape), low = take(tape), high = take(tape);
    uint32_t creator = some_creator(play, choice);
    bool none = choice == 255 || !play->model.threads[creator].made;
    model_node_enter(&play->model, here(play), creator, none ? MS_NO_NUMBER : some_number(play, creator, low, high));
}

static void check_some_node(struct play *play, struct tape *tape)
{
    uint32_t creator = some_creator(play, take(tape)), low = take(tape), high = take(tape);
    model_check_node(&play->model, creator, some_number(play, creator, low, high));
}

/* Many small calls in a row, as a loop over layers makes them. */
static void burst(struct play *play, uint32_t count, uint32_t path)
{
    for (uint32_t i = 0; i < count; i++) {
        model_call_enter(&play->model, here(play), play->paths[(path + i) % PLAY_PATHS]);
        model_make(&play->model, here(play), (i + path) % 3);
        model_leave(&play->model, here(play));
    }
}

static void dive(struct play *play, uint32_t count, uint32_t path)
{
    for (uint32_t i = 0; i < count; i++) {
        model_call_enter(&play->model, here(play), play->paths[(path + i) % PLAY_PATHS]);
        model_make(&play->model, here(play), path & 1);
    }
}

static void surface(struct play *play, uint32_t count, uint32_t make)
{
    for (uint32_t i = 0; i < count && thread_here(play)->depth; i++) {
        model_leave(&play->model, here(play));
        model_make(&play->model, here(play), make & 1);
    }
}

static void replace_thread(struct play *play, uint32_t first)
{
    model_thread_close(&play->model, here(play));
    play->open[play->current] = model_thread_open(&play->model, first);
}

static void step(struct play *play, struct tape *tape, unsigned bounds)
{
    struct model *model = &play->model;
    uint32_t event = take(tape);
    bool deeper = !(bounds & PLAY_SHALLOW) || thread_here(play)->depth < 60;
    if (event < 64 && deeper)
        model_call_enter(model, here(play), play->paths[event % PLAY_PATHS]);
    else if (event < 128)
        model_leave(model, here(play));
    else if (event < 168)
        model_make(model, here(play), event % 4);
    else if (event < 200 && deeper)
        enter_node(play, tape);
    else if (event < 208 && deeper)
        model_override_enter(model, here(play), play->paths[event % PLAY_PATHS]);
    else if (event < 224)
        play->current = event % PLAY_THREADS;
    else if (event < 236)
        check_some_node(play, tape);
    else if (event < 240)
        model_check_thread(model, here(play));
    else if (event < 246)
        burst(play, take(tape), event);
    else if (event < 249 && !(bounds & PLAY_SHALLOW))
        dive(play, take(tape), event);
    else if (event < 254)
        surface(play, take(tape), event);
    else if (event == 255 && !(bounds & PLAY_FOREVER))
        replace_thread(play, take(tape));
}

void play_bytes(struct play *play, const uint8_t *bytes, size_t count, unsigned bounds)
{
    struct tape tape = {bytes, bytes + count};
    while (tape.at < tape.end && !play->model.failed)
        step(play, &tape, bounds);
}

void play_finish(struct play *play)
{
    model_check_all(&play->model);
    for (play->current = 0; play->current < PLAY_THREADS; play->current++)
        surface(play, UINT32_MAX, 0);
    model_check_all(&play->model);
}
