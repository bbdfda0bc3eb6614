/* model.c - an owner for every number in a plain array; see model.h. */
#include "model.h"
#include "grow_array.h"

#include "core/watch/watch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static void say_wrong(struct model *model, const char *format, ...)
{
    if (model->failed)
        return;
    model->failed = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(model->wrong, sizeof model->wrong, format, arguments);
    va_end(arguments);
}

bool model_open(struct model *model, const ms_options *options)
{
    memset(model, 0, sizeof *model);
    model->watch = ms_watch_open(options);
    model->calls_kept = options && options->calls_kept ? options->calls_kept : 131072;
    model->threads_kept = options && options->threads_kept ? options->threads_kept : 256;
    return model->watch != NULL;
}

void model_close(struct model *model)
{
    for (uint32_t i = 0; i < model->thread_count; i++) {
        free(model->threads[i].frames);
        free(model->threads[i].nodes);
    }
    free(model->threads);
    ms_watch_close(model->watch);
    model->watch = NULL;
}

/* ---- threads ---- */

uint32_t model_thread_open(struct model *model, uint64_t first)
{
    uint64_t room = model->thread_room;
    model->threads = grow_array(model->threads, model->thread_count, sizeof *model->threads, &room);
    model->thread_room = (uint32_t)room;
    struct model_thread *thread = &model->threads[model->thread_count];
    *thread = (struct model_thread){.id = 1000 + model->thread_count, .first = first};
    model->discarded |= model->closed >= model->threads_kept;
    uint64_t lost = ms_watch_lost(model->watch);
    thread->core = ms_thread_open(model->watch, thread->id);
    if (!thread->core) {
        model->errors++;
        if (ms_watch_lost(model->watch) == lost)
            say_wrong(model, "a thread was not opened and nothing was lost");
    }
    return model->thread_count++;
}

void model_thread_close(struct model *model, uint32_t at)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core)
        return;
    ms_thread_close(thread->core);
    thread->core = NULL;
    thread->depth = thread->refused = 0;
    model->closed++;
}

/* ---- events ---- */

static uint64_t next_number(const struct model_thread *thread)
{
    return thread->first + thread->made;
}

static const struct model_node *node_at(const struct model *model, uint32_t creator, uint64_t number)
{
    const struct model_thread *thread = &model->threads[creator];
    return number - thread->first < thread->made ? &thread->nodes[number - thread->first] : NULL;
}

/* Whether the core may answer MS_UNKNOWN for this node. A ring of N records always contains the last N / 4 calls;
 * the others may have been overwritten when open records were renewed. */
static bool may_be_unknown(const struct model *model, const struct model_thread *creator, const struct model_node *node)
{
    if (node->unknown || model->errors)
        return true;
    if (creator->enters - node->entered >= model->calls_kept / 4)
        return true;
    return !creator->core && model->discarded;
}

/* Whether `got` is an allowed answer for the node. Counts it by its kind. */
static bool right(struct model *model, uint32_t creator, uint64_t number, ms_path got)
{
    const struct model_node *node = node_at(model, creator, number);
    ms_path wanted = node ? node->owner : MS_GLOBAL;
    bool unknown = got == MS_UNKNOWN && wanted != MS_UNKNOWN;
    model->known += got == wanted;
    model->unknowns += unknown;
    if (got == wanted || (unknown && node && may_be_unknown(model, &model->threads[creator], node)))
        return true;
    say_wrong(model, "node %" PRIu64 " of thread %" PRIu32 " (%" PRIu64 " made) is in path %" PRIu32 ", not %" PRIu32,
              number, creator, model->threads[creator].made, got, wanted);
    return false;
}

static struct model_frame *pushed(const struct model *model, struct model_thread *thread, enum model_kind kind,
                                  ms_path path)
{
    uint64_t room = thread->frame_room;
    thread->frames = grow_array(thread->frames, thread->depth, sizeof *thread->frames, &room);
    thread->frame_room = (uint32_t)room;
    struct model_frame *frame = &thread->frames[thread->depth++];
    *frame = (struct model_frame){.kind = kind, .path = path, .entered = thread->enters};
    thread->enters += kind != MODEL_OVERRIDE;
    if (thread->depth >= model->calls_kept / 8)
        thread->flooded = thread->enters;
    return frame;
}

/* Check that the result of an enter is allowed. */
static void entered(struct model *model, struct model_thread *thread, struct model_frame *frame, int error,
                    uint64_t lost)
{
    if (error == MS_OK)
        return;
    frame->refused = true;
    thread->refused++;
    model->errors++;
    if (error != MS_ENOMEM)
        say_wrong(model, "entering gave %d (%s)", error, ms_error_text(error));
    if (ms_watch_lost(model->watch) == lost)
        say_wrong(model, "entering was refused and nothing was lost");
}

void model_call_enter(struct model *model, uint32_t at, ms_path path)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core)
        return;
    uint64_t lost = ms_watch_lost(model->watch);
    int error = ms_call_enter(thread->core, path, next_number(thread));
    entered(model, thread, pushed(model, thread, MODEL_CALL, path), error, lost);
}

void model_override_enter(struct model *model, uint32_t at, ms_path path)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core)
        return;
    uint64_t lost = ms_watch_lost(model->watch);
    int error = ms_override_enter(thread->core, path);
    entered(model, thread, pushed(model, thread, MODEL_OVERRIDE, path), error, lost);
}

void model_node_enter(struct model *model, uint32_t at, uint32_t creator, uint64_t number)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core)
        return;
    const struct model_node *node = number == MS_NO_NUMBER ? NULL : node_at(model, creator, number);
    uint64_t lost = ms_watch_lost(model->watch);
    int error = ms_node_enter(thread->core, model->threads[creator].id, number, next_number(thread));
    struct model_frame *frame = pushed(model, thread, MODEL_NODE, node ? node->owner : MS_GLOBAL);
    entered(model, thread, frame, error, lost);
    if (thread->refused)
        return; /* the core may no longer know the thread's path */
    ms_path got = ms_thread_path(thread->core);
    frame->unknown = node && got == MS_UNKNOWN;
    if (number == MS_NO_NUMBER && got != MS_GLOBAL)
        say_wrong(model, "a node without a number is in path %" PRIu32, got);
    else if (number != MS_NO_NUMBER)
        right(model, creator, number, got);
}

static int leave_kind(struct model_thread *thread, enum model_kind kind)
{
    if (kind == MODEL_CALL)
        return ms_call_leave(thread->core, next_number(thread));
    return kind == MODEL_NODE ? ms_node_leave(thread->core, next_number(thread)) : ms_override_leave(thread->core);
}

void model_leave(struct model *model, uint32_t at)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core)
        return;
    const struct model_frame *frame = thread->depth ? &thread->frames[--thread->depth] : NULL;
    /* The core cannot tell refused frames apart, so a wrong leave is tried only while there are none. */
    for (int kind = MODEL_CALL; kind <= MODEL_OVERRIDE && !thread->refused; kind++)
        if ((!frame || (int)frame->kind != kind) && leave_kind(thread, (enum model_kind)kind) != MS_EUNBALANCED)
            say_wrong(model, "left a frame of kind %d that is not the innermost", kind);
    if (!frame)
        return;
    thread->refused -= frame->refused;
    int error = leave_kind(thread, frame->kind);
    if (error != MS_OK)
        say_wrong(model, "leaving gave %d (%s)", error, ms_error_text(error));
}

/* The innermost call or node that is open, or NULL. */
static const struct model_frame *owning_frame(const struct model_thread *thread)
{
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].kind != MODEL_OVERRIDE)
            return &thread->frames[i];
    return NULL;
}

void model_make(struct model *model, uint32_t at, uint64_t count)
{
    struct model_thread *thread = &model->threads[at];
    if (!thread->core || !count)
        return;
    const struct model_frame *frame = owning_frame(thread);
    /* The core knows that a node is outside any call by the calls before it. A stack too deep for its records to be
     * renewed may have overwritten those, and its own outermost calls. */
    if (frame && thread->frames[0].entered >= thread->flooded)
        thread->flooded = 0;
    struct model_node node = {.owner = MS_GLOBAL, .unknown = thread->flooded, .entered = thread->enters};
    if (frame)
        node = (struct model_node){.owner = frame->path, .unknown = frame->unknown, .entered = frame->entered};
    for (; count; count--) {
        thread->nodes = grow_array(thread->nodes, thread->made, sizeof *thread->nodes, &thread->node_room);
        thread->nodes[thread->made++] = node;
    }
}

uint64_t model_number(const struct model *model, uint32_t at, uint64_t age)
{
    const struct model_thread *thread = &model->threads[at];
    return thread->first + (age < thread->made ? thread->made - 1 - age : 0);
}

/* ---- answers ---- */

void model_check_node(struct model *model, uint32_t creator, uint64_t number)
{
    if (!model->failed && node_at(model, creator, number))
        right(model, creator, number, ms_node_path(model->watch, model->threads[creator].id, number));
}

static ms_phase phase_of(const struct model_thread *thread)
{
    if (!thread->depth)
        return MS_IDLE;
    if (thread->frames[thread->depth - 1].kind != MODEL_CALL)
        return MS_BACKWARD;
    for (uint32_t i = 0; i < thread->depth; i++)
        if (thread->frames[i].kind == MODEL_NODE)
            return MS_RECOMPUTE;
    return MS_FORWARD;
}

/* The path that the core must report while this frame is the innermost. */
static ms_path shown(const struct model_frame *frame)
{
    return frame->unknown ? MS_UNKNOWN : frame->path;
}

/* A node begins a context, and so does an override inside a call. Everything else continues one. */
static size_t contexts_of(const struct model_thread *thread, ms_path *paths)
{
    size_t count = 0;
    for (uint32_t i = 0; i < thread->depth; i++) {
        enum model_kind kind = thread->frames[i].kind;
        bool in_call = i && thread->frames[i - 1].kind == MODEL_CALL;
        if (!count || kind == MODEL_NODE || (kind == MODEL_OVERRIDE && in_call))
            count++;
        paths[count - 1] = shown(&thread->frames[i]);
    }
    return count;
}

static void check_contexts(struct model *model, const struct model_thread *thread)
{
    ms_path *wanted = calloc(2 * (size_t)thread->depth + 2, sizeof *wanted);
    if (!wanted)
        abort();
    ms_path *got = wanted + thread->depth + 1;
    size_t count = contexts_of(thread, wanted);
    if (ms_thread_contexts(thread->core, got, thread->depth) != count)
        say_wrong(model, "contexts are not %zu", count);
    else if (memcmp(got, wanted, count * sizeof *got) != 0)
        say_wrong(model, "the %zu contexts differ", count);
    free(wanted);
}

void model_check_thread(struct model *model, uint32_t at)
{
    const struct model_thread *thread = &model->threads[at];
    if (model->failed || !thread->core)
        return;
    const char *broken = ms__thread_check(thread->core);
    if (broken)
        say_wrong(model, "broken: %s", broken);
    if (ms_thread_depth(thread->core) != thread->depth)
        say_wrong(model, "depth is %zu, not %" PRIu32, ms_thread_depth(thread->core), thread->depth);
    if (thread->refused)
        return;
    ms_path path = thread->depth ? shown(&thread->frames[thread->depth - 1]) : MS_GLOBAL;
    if (ms_thread_path(thread->core) != path)
        say_wrong(model, "the path is %" PRIu32 ", not %" PRIu32, ms_thread_path(thread->core), path);
    if (ms_thread_phase(thread->core) != phase_of(thread))
        say_wrong(model, "the phase is %d, not %d", (int)ms_thread_phase(thread->core), (int)phase_of(thread));
    check_contexts(model, thread);
}

void model_check_all(struct model *model)
{
    for (uint32_t at = 0; at < model->thread_count; at++) {
        const struct model_thread *thread = &model->threads[at];
        model_check_thread(model, at);
        for (uint64_t i = 0; i < thread->made; i++)
            model_check_node(model, at, thread->first + i);
    }
}
