/* ledger_model_calls.c - the calls and nodes of the model's threads, and what was held around the calls. */
#include "grow_array.h"
#include "ledger_model.h"

#include <stdlib.h>
#include <string.h>

/* ---- threads ---- */

/* Enter an override once, so that the thread has allocated its stack of frames. */
bool lm_thread_open(struct ledger_model *model, uint32_t at)
{
    struct lm_thread *thread = &model->threads[at];
    thread->id = 100 + model->next_id++;
    thread->core = ms_thread_open(model->watch, thread->id);
    if (!thread->core)
        return false;
    if (ms_override_enter(thread->core, MS_GLOBAL) != MS_OK || ms_override_leave(thread->core) != MS_OK)
        lm_wrong(model, "a thread could not be entered");
    return true;
}

void lm_calls_close(struct ledger_model *model)
{
    for (int i = 0; i < LM_THREADS; i++)
        free(model->threads[i].made);
    free(model->calls);
}

void lm_thread_renew(struct ledger_model *model, uint32_t at)
{
    struct lm_thread *thread = &model->threads[at];
    if (thread->depth || model->refused)
        return;
    ms_thread_close(thread->core);
    free(thread->made);
    *thread = (struct lm_thread){0};
    if (!lm_thread_open(model, at))
        lm_wrong(model, "no thread");
}

ms_phase lm_phase(const struct lm_thread *thread)
{
    if (thread->step_at == thread->depth + 1)
        return MS_OPTIMIZER;
    if (!thread->depth)
        return MS_IDLE;
    if (thread->frames[thread->depth - 1].kind != LM_CALL)
        return MS_BACKWARD;
    for (uint32_t i = 0; i < thread->depth; i++)
        if (thread->frames[i].kind == LM_NODE)
            return MS_RECOMPUTE;
    return thread->evaluation ? MS_EVALUATION : MS_FORWARD;
}

uint32_t lm_path(const struct lm_thread *thread)
{
    return thread->depth ? thread->frames[thread->depth - 1].path : 0;
}

uint32_t lm_open_of_kind(const struct lm_thread *thread, enum lm_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < thread->depth; i++)
        count += thread->frames[i].kind == kind;
    return count;
}

static bool is_full(const struct lm_thread *thread)
{
    return thread->depth == LM_DEEPEST;
}

static void push(struct lm_thread *thread, enum lm_kind kind, uint32_t path, uint32_t call)
{
    thread->frames[thread->depth++] = (struct lm_frame){kind, path, call};
}

static void expect_ok(struct ledger_model *model, int error)
{
    if (error != MS_OK)
        lm_wrong(model, "an event of a thread gave %d (%s)", error, ms_error_text(error));
}

/* ---- peaks ---- */

/* Keep for each device the higher total; the older one if they are the same. */
static void raise(struct lm_sums *peak, const struct lm_sums *now)
{
    for (int device = 0; device < LM_DEVICES; device++) {
        int64_t more = lm_total(&now->on[device]) - lm_total(&peak->on[device]);
        if (more == 0 && memcmp(&now->on[device], &peak->on[device], sizeof now->on[device]) != 0)
            peak->tied[device] = true;
        if (more <= 0)
            continue;
        peak->on[device] = now->on[device];
        peak->tied[device] = false;
    }
}

void lm_calls_grow(struct ledger_model *model)
{
    struct lm_sums now = lm_now(model);
    for (uint64_t i = 0; i < model->call_count; i++) {
        struct lm_call *call = &model->calls[i];
        if (call->iteration != model->iteration_of[call->path])
            continue; /* it is no longer compared */
        if (call->open)
            raise(&call->peak, &now);
        if (call->begun)
            raise(&call->most_so_far, &now);
        if (call->nodes_open)
            raise(&call->least, &now);
    }
}

/* ---- calls ---- */
static void begin_root_call(struct ledger_model *model, struct lm_thread *thread, uint32_t path, bool without_grad)
{
    bool repeated = !model->steps && model->step && model->step_of[path] == model->step;
    bool step_open = model->step && !model->step_left && !repeated;
    thread->evaluation = without_grad && !step_open;
    model->step_left = thread->evaluation;
    if (thread->evaluation || !step_open || model->root_calls == 256) {
        model->iterations++;
        model->root_calls = 0;
    }
    model->root_calls++;
    thread->iteration = model->iterations;
    if (thread->evaluation)
        return;
    model->step += !step_open;
    model->step_of[path] = model->step;
}

static uint32_t innermost_call(const struct lm_thread *thread)
{
    for (uint32_t i = thread->depth; i-- > 0;)
        if (thread->frames[i].kind != LM_OVERRIDE)
            return thread->frames[i].kind == LM_CALL ? thread->frames[i].call : 0;
    return 0;
}

void lm_call_enter(struct ledger_model *model, uint32_t at, uint32_t path, bool without_grad)
{
    struct lm_thread *thread = &model->threads[at];
    if (is_full(thread) || model->open_of[path])
        return;
    bool recompute = lm_open_of_kind(thread, LM_NODE) > 0;
    expect_ok(model, (without_grad ? ms_call_enter_without_grad : ms_call_enter)(thread->core, model->paths[path],
                                                                                 thread->made_count));
    if (!recompute && !lm_open_of_kind(thread, LM_CALL))
        begin_root_call(model, thread, path, without_grad);
    if (!recompute)
        model->iteration_of[path] = thread->iteration;
    struct lm_sums now = lm_now(model);
    model->calls = grow_array(model->calls, model->call_count, sizeof *model->calls, &model->call_room);
    model->calls[model->call_count++] = (struct lm_call){.path = path,
                                                         .outer = innermost_call(thread),
                                                         .iteration = model->iteration_of[path],
                                                         .recompute = recompute,
                                                         .open = true,
                                                         .pre = now,
                                                         .peak = now};
    push(thread, LM_CALL, path, (uint32_t)model->call_count);
    model->open_of[path]++;
}

static void leave_call(struct ledger_model *model, const struct lm_thread *thread, struct lm_call *call)
{
    expect_ok(model, ms_call_leave(thread->core, thread->made_count));
    call->open = false;
    call->ended = true;
    call->post = lm_now(model);
    model->open_of[call->path]--;
}

/* ---- nodes ---- */
static bool is_within(const struct ledger_model *model, uint32_t call, uint64_t outer)
{
    while (call && call - 1 != outer)
        call = model->calls[call - 1].outer;
    return call != 0;
}

/* The thread begins a node created in `call` (an index, plus 1): the backwards of that call and the calls around it
 * begin or go on. */
static void go_to(struct ledger_model *model, uint32_t call)
{
    struct lm_sums now = lm_now(model);
    for (uint64_t i = 0; i < model->call_count; i++) {
        struct lm_call *left = &model->calls[i];
        if (left->begun && !left->nodes_open && !left->went_on && !is_within(model, call, i)) {
            left->went_on = true;
            left->went_back = now;
        }
    }
    for (; call; call = model->calls[call - 1].outer) {
        struct lm_call *here = &model->calls[call - 1];
        if (!here->begun) {
            here->pre_back = here->least = here->most_so_far = now;
            here->begun = true;
            model->backwards++;
        }
        here->went_on = false;
        here->nodes_open++;
        raise(&here->least, &now);
    }
}

void lm_node_enter(struct ledger_model *model, uint32_t at, uint32_t creator, uint64_t number)
{
    struct lm_thread *thread = &model->threads[at];
    if (is_full(thread))
        return;
    const struct lm_thread *by = &model->threads[creator];
    struct lm_node node = number < by->made_count ? by->made[number] : (struct lm_node){0};
    expect_ok(model, ms_node_enter(thread->core, by->id, number, thread->made_count));
    model->no_backward |= node.odd || number == MS_NO_NUMBER;
    push(thread, LM_NODE, node.path, node.call);
    go_to(model, node.call);
}

void lm_node_enter_as(struct ledger_model *model, uint32_t at, uint32_t path)
{
    struct lm_thread *thread = &model->threads[at];
    if (is_full(thread))
        return;
    expect_ok(model, ms_node_enter_as(thread->core, model->paths[path], thread->made_count));
    model->no_backward = true;
    push(thread, LM_NODE, path, 0);
}

static void leave_node(struct ledger_model *model, const struct lm_thread *thread, uint32_t call)
{
    expect_ok(model, ms_node_leave(thread->core, thread->made_count));
    for (; call; call = model->calls[call - 1].outer) {
        struct lm_call *here = &model->calls[call - 1];
        here->nodes_open--;
        here->post_back = here->went_back = lm_now(model);
        here->most = here->most_so_far;
    }
}

/* ---- the rest of what a thread does ---- */
void lm_override_enter(struct ledger_model *model, uint32_t at, uint32_t path)
{
    struct lm_thread *thread = &model->threads[at];
    if (is_full(thread))
        return;
    expect_ok(model, ms_override_enter(thread->core, model->paths[path]));
    push(thread, LM_OVERRIDE, path, 0);
}

void lm_leave(struct ledger_model *model, uint32_t at)
{
    struct lm_thread *thread = &model->threads[at];
    if (!thread->depth)
        return;
    struct lm_frame frame = thread->frames[--thread->depth];
    if (thread->step_at > thread->depth + 1)
        thread->step_at = 0;
    if (frame.kind == LM_CALL)
        leave_call(model, thread, &model->calls[frame.call - 1]);
    else if (frame.kind == LM_NODE)
        leave_node(model, thread, frame.call);
    else
        expect_ok(model, ms_override_leave(thread->core));
}

void lm_make(struct ledger_model *model, uint32_t at, uint64_t count)
{
    struct lm_thread *thread = &model->threads[at];
    uint32_t inner = thread->depth;
    while (inner && thread->frames[inner - 1].kind == LM_OVERRIDE)
        inner--;
    struct lm_node node = {0};
    if (inner) {
        const struct lm_frame *frame = &thread->frames[inner - 1];
        bool forward = frame->kind == LM_CALL && !model->calls[frame->call - 1].recompute;
        node = (struct lm_node){.path = frame->path, .call = forward ? frame->call : 0, .odd = !forward};
    }
    for (; count; count--) {
        thread->made = grow_array(thread->made, thread->made_count, sizeof *thread->made, &thread->made_room);
        thread->made[thread->made_count++] = node;
    }
}

void lm_step_enter(struct ledger_model *model, uint32_t at)
{
    struct lm_thread *thread = &model->threads[at];
    if (thread->step_at)
        return;
    ms_optimizer_enter(thread->core);
    thread->step_at = thread->depth + 1;
    model->steps = true;
}

/* Does nothing unless the thread is where it entered the step. */
void lm_step_leave(struct ledger_model *model, uint32_t at)
{
    struct lm_thread *thread = &model->threads[at];
    if (thread->step_at && thread->step_at != thread->depth + 1)
        return;
    ms_optimizer_leave(thread->core);
    model->step_left |= thread->step_at != 0;
    thread->step_at = 0;
}
