/* call_events.c - what the ledger does when calls, nodes and optimizer steps begin and end. */
#include "core/ledger/call_events.h"
#include "core/capture/write/encoder.h"
#include "core/ledger/backward_spans.h"

static void set_nodes_open(struct ms__thread_spans *spans, const ms_thread *thread)
{
    atomic_store_explicit(&spans->nodes_open, thread->nodes_open, memory_order_relaxed);
}

/* ---- calls ---- */

static void begin_step(ms_ledger *ledger)
{
    ledger->step++;
    ledger->step_open = true;
    if (ms__captured(ledger))
        ms__capture_step(ledger);
}

static void begin_root_call(ms_ledger *ledger, struct ms__thread_spans *spans, ms_thread *thread,
                            struct ms__path_stats *path)
{
    ledger->reported_backward_count = 0;
    if (!ledger->optimizer_expected && path->step == ledger->step)
        ledger->step_open = false;
    bool evaluation = thread->without_grad && !ledger->step_open;
    thread->evaluation_at = evaluation ? thread->depth : 0;
    bool begins_step = !evaluation && !ledger->step_open;
    if (begins_step)
        begin_step(ledger);
    if (!evaluation)
        path->step = ledger->step;
    if (evaluation || begins_step || ledger->iteration_root_calls == MS__ROOT_CALLS_KEPT) {
        ledger->iteration = ++ledger->watch->iterations;
        ledger->iteration_root_calls = 0;
    }
    ledger->iteration_root_calls++;
    spans->iteration = ledger->iteration;
}

/* Whether the thread's innermost frame is its only call. */
static bool is_only_call(const ms_thread *thread)
{
    uint32_t at = 0;
    while (thread->frames[at].kind != MS__CALL)
        at++;
    return at + 1 == thread->depth;
}

/* A thread whose outer calls began before the ledger was attached has no root call yet. */
static bool is_root_call(const struct ms__thread_spans *spans, const ms_thread *thread)
{
    return !thread->nodes_open && (is_only_call(thread) || !spans->iteration);
}

/* Append the stats of the call that begins, and set span->call to refer to them. NULL when memory runs out. */
static struct ms__call_stats *append_call(ms_ledger *ledger, const struct ms__thread_spans *spans,
                                          struct ms__path_stats *path, struct ms__span *span)
{
    bool recompute = span->kind == MS__SPAN_RECOMPUTE;
    if (!recompute && path->iteration != spans->iteration) {
        path->iteration = spans->iteration;
        path->forward.count = path->recompute.count = 0;
        path->forward.read_state = path->recompute.read_state = UINT32_MAX;
    }
    struct ms__call_stats_list *list = recompute ? &path->recompute : &path->forward;
    struct ms__call_stats *stats = ms__call_stats_append(ledger, list);
    span->call.iteration = path->iteration;
    span->call.index = list->count - 1;
    return stats;
}

/* False when memory runs out. */
static bool begin_call(ms_ledger *ledger, struct ms__thread_spans *spans, ms_thread *thread, ms_path path)
{
    bool is_root = is_root_call(spans, thread), is_kept = ms__keeps_call_snapshots(ledger);
    if (!is_root && !is_kept)
        return true;
    struct ms__path_stats *path_stats = ms__path_stats_find(ledger, path);
    if (MS__UNLIKELY(!path_stats) && !(path_stats = ms__path_stats_add(ledger, path)))
        return false;
    if (is_root)
        begin_root_call(ledger, spans, thread, path_stats);
    if (!is_kept)
        return true;
    bool recompute = thread->nodes_open > 0;
    struct ms__span span = {
        .call = {.path = path}, .kind = recompute ? MS__SPAN_RECOMPUTE : MS__SPAN_FORWARD, .frame = thread->depth};
    struct ms__call_stats *stats = append_call(ledger, spans, path_stats, &span);
    if (!stats)
        return false;
    ms__call_stats_record(ledger, stats, recompute ? (uint32_t)MS__RECOMPUTE_PRE : (uint32_t)MS_PRE_FW);
    if (!recompute)
        ms__call_stats_mark(ledger, stats, MS_PEAK_FW); /* the span keeps its figures until it is popped */
    ms__span_push(ledger, spans, &span);
    ms__call_ref_store(ledger, thread, path_stats);
    return true;
}

MS__HOT void ms__on_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path)
{
    ms__lock(&ledger->lock);
    struct ms__thread_spans *spans = ms__thread_spans_get(ledger, thread);
    if (spans) {
        ms__spans_pop_above(ledger, spans, thread->nodes_open);
        if (!begin_call(ledger, spans, thread, path))
            ms__ledger_count_lost(ledger);
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, false);
    ms__unlock(&ledger->lock);
}

MS__HOT void ms__on_call_leave(ms_ledger *ledger, ms_thread *thread)
{
    ms__lock(&ledger->lock);
    struct ms__thread_spans *spans = thread->spans;
    if (spans && MS__LOAD(spans->ledger) == ledger && MS__PEEK(ledger->attached)) {
        ms__spans_pop_above(ledger, spans, thread->nodes_open);
        const struct ms__span *span = spans->count ? &spans->open[spans->count - 1] : NULL;
        if (span && span->kind != MS__SPAN_BACKWARD && span->frame == thread->depth + 1) {
            struct ms__call_stats *stats = ms__span_stats(ledger, span);
            bool recompute = span->kind == MS__SPAN_RECOMPUTE;
            if (stats)
                ms__call_stats_record(ledger, stats, recompute ? (uint32_t)MS__RECOMPUTE_POST : (uint32_t)MS_POST_FW);
            ms__span_pop_call(ledger, spans);
        }
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, false);
    ms__unlock(&ledger->lock);
}

MS__HOT void ms_call_set_size(ms_thread *thread, bool output, uint64_t bytes)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger || !ms__keeps_call_snapshots(ledger))
        return;
    ms__lock(&ledger->lock);
    const struct ms__thread_spans *spans = thread->spans;
    if (spans && MS__LOAD(spans->ledger) == ledger && spans->count) {
        const struct ms__span *span = &spans->open[spans->count - 1];
        struct ms__call_stats *stats = span->kind == MS__SPAN_FORWARD ? ms__span_stats(ledger, span) : NULL;
        if (stats && span->frame == thread->depth)
            *(output ? &stats->output : &stats->input) = bytes;
    }
    ms__unlock(&ledger->lock);
}

/* ---- nodes ---- */

/* Whether the node is of the same call as the one before it, and nothing happened between them: then no span changes.
 */
MS__INLINE bool is_same_call(const struct ms__thread_spans *spans, const ms_thread *thread, uint64_t creator,
                             uint64_t record)
{
    return MS__LOAD(spans->last_record) == record && spans->last_creator == creator &&
           spans->last_level == thread->nodes_open && !MS__PEEK(spans->added_between_nodes);
}

MS__HOT void ms__on_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *creator, uint64_t record)
{
    struct ms__thread_spans *spans = thread->spans;
    uint64_t creator_id = creator ? MS__PEEK(creator->id) : 0;
    bool same_call = false;
    if (MS__LIKELY(spans && MS__LOAD(spans->ledger) == ledger && record != MS__NONE)) {
        set_nodes_open(spans, thread);
        same_call = is_same_call(spans, thread, creator_id, record);
        if (same_call && !ms__captured(ledger))
            return;
    }
    ms__lock(&ledger->lock);
    spans = same_call || !ms__keeps_call_snapshots(ledger) ? NULL : ms__thread_spans_get(ledger, thread);
    if (spans) {
        set_nodes_open(spans, thread);
        ms__spans_move_to_node(ledger, spans, creator, record, thread->nodes_open);
        ms__span_raise(ledger, spans);
        atomic_store_explicit(&spans->added_between_nodes, false, memory_order_relaxed);
        spans->last_creator = creator_id;
        spans->last_level = thread->nodes_open;
        MS__STORE(spans->last_record, record);
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, true);
    ms__unlock(&ledger->lock);
}

MS__HOT void ms__on_node_enter_as(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__thread_spans *spans = thread->spans;
    if (spans && MS__LOAD(spans->ledger) == ledger)
        set_nodes_open(spans, thread);
    if (ms__captured(ledger)) {
        ms__lock(&ledger->lock);
        ms__capture_position(ledger, thread, true);
        ms__unlock(&ledger->lock);
    }
}

MS__HOT void ms__on_node_leave(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__thread_spans *spans = thread->spans;
    bool has_spans = spans && MS__LOAD(spans->ledger) == ledger;
    if (!has_spans && !ms__captured(ledger))
        return;
    ms__lock(&ledger->lock);
    if (has_spans && MS__PEEK(ledger->attached) && MS__PEEK(spans->ledger) == ledger) {
        if (spans->count) {
            ms__spans_pop_above(ledger, spans, thread->nodes_open + 1);
            ms__spans_save_node_end(ledger, spans);
        }
        set_nodes_open(spans, thread);
    }
    if (ms__captured(ledger))
        ms__capture_node_left(ledger, thread);
    ms__unlock(&ledger->lock);
}

/* ---- optimizer steps ---- */

static bool has_stepped(const struct ms__turns *turns, uint64_t optimizer)
{
    for (uint32_t i = 0; i < turns->count; i++)
        if (turns->stepped[i] == optimizer)
            return true;
    return false;
}

static bool ends_step(const struct ms__turns *turns, uint64_t optimizer)
{
    return turns->expected < 2 || !optimizer || has_stepped(turns, optimizer) || turns->count + 1 == turns->expected;
}

/* An optimizer's step has ended. Returns whether the training step has, too. */
static bool take_turn(struct ms__turns *turns, uint64_t optimizer)
{
    bool ends = ends_step(turns, optimizer);
    if (turns->expected > 1 && optimizer && has_stepped(turns, optimizer)) {
        turns->lack_order = true;
        turns->expected = 0;
    }
    if (ends)
        turns->count = 0;
    else
        turns->stepped[turns->count++] = optimizer;
    return turns->ended = ends;
}

void ms__on_optimizer_step(ms_ledger *ledger, ms_thread *thread, bool left, uint64_t optimizer)
{
    ms__lock(&ledger->lock);
    if (MS__PEEK(ledger->attached)) {
        ledger->optimizer_expected = true;
        if (left && !thread->optimizer_steps_open && take_turn(&ledger->turns, optimizer))
            ledger->step_open = false;
        struct ms__thread_spans *spans = thread->spans;
        if (spans && MS__LOAD(spans->ledger) == ledger)
            ms__spans_pop_above(ledger, spans, thread->nodes_open);
        if (left && !thread->optimizer_steps_open && ms__captured(ledger))
            ms__capture_optimizer_step(ledger, thread);
        if (ms__captured(ledger))
            ms__capture_position(ledger, thread, false);
    }
    ms__unlock(&ledger->lock);
}

void ms_ledger_expect_optimizer(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->optimizer_expected = true;
    ms__unlock(&ledger->lock);
}

void ms_ledger_expect_optimizers(ms_ledger *ledger, uint32_t count)
{
    enum { MOST = sizeof ledger->turns.stepped / sizeof *ledger->turns.stepped };
    ms__lock(&ledger->lock);
    ledger->optimizer_expected |= count > 0;
    if (!ledger->turns.lack_order)
        ledger->turns.expected = count <= MOST ? count : 0;
    ms__unlock(&ledger->lock);
}

bool ms_ledger_ends_step(ms_ledger *ledger, uint64_t optimizer)
{
    ms__lock(&ledger->lock);
    bool ends = optimizer ? ends_step(&ledger->turns, optimizer) : ledger->turns.ended;
    ms__unlock(&ledger->lock);
    return ends;
}

bool ms_ledger_optimizers_lack_order(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    bool lack_order = ledger->turns.lack_order;
    ms__unlock(&ledger->lock);
    return lack_order;
}

/* ---- whether call snapshots are kept ---- */

void ms_ledger_keep_call_snapshots(ms_ledger *ledger, bool keep)
{
    ms__lock(&ledger->lock);
    if (keep != ms__keeps_call_snapshots(ledger)) {
        if (keep)
            ms__path_stats_forget_calls(ledger);
        else
            ms__spans_end_all(ledger);
        MS__STORE(ledger->without_call_snapshots, !keep);
    }
    ms__unlock(&ledger->lock);
}

/* ---- threads ---- */

/* With watch->lock held, no ledger is attached or detached meanwhile. */
void ms__on_thread_end(ms_thread *thread)
{
    struct ms__thread_spans *spans = thread->spans;
    if (!spans)
        return;
    ms_ledger *ledger = MS__PEEK(thread->watch->ledger);
    if (ledger && MS__PEEK(spans->ledger) == ledger) {
        ms__lock(&ledger->lock);
        ms__thread_spans_detach(ledger, spans);
        if (ms__captured(ledger))
            ms__capture_thread_ended(ledger, thread);
        ms__unlock(&ledger->lock);
    }
    ms__thread_spans_free(thread);
}
