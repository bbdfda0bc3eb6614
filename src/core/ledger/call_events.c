/* call_events.c - what calls, nodes and steps tell the ledger: what was held before, after, and at most between. */
#include "core/ledger/ledger.h"

#include <string.h>

void ms__loose_grow(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    for (uint32_t i = 0; i < ledger->loose_count; i++) {
        struct ms__entry *entry = ms__entry_of(ledger, &ledger->loose[i]);
        if (!entry)
            continue;
        if (device >= entry->devices && !ms__entry_widen(ledger, entry)) {
            ms__ledger_count_lost(ledger);
            continue;
        }
        ms_sums *sums = ms__sums_of(entry, MS_PEAK_BW, device);
        if (on->total > ms__total_of(sums))
            *sums = on->now;
    }
}

static void begin_round(ms_ledger *ledger, struct ms__seat *seat, struct ms__stat *stat)
{
    seat->round = ++ledger->watch->rounds;
    ledger->loose_count = 0;
    bool again = !ledger->steps_expected && stat->step == ledger->step;
    if (!ledger->step || ledger->step_left || again) {
        ledger->step++;
        if (ms__captured(ledger))
            ms__capture_step(ledger);
    }
    ledger->step_left = false;
    stat->step = ledger->step;
}

/* Whether the innermost call of a thread is the only one. */
static bool is_root(const ms_thread *thread)
{
    uint32_t at = 0;
    while (thread->frames[at].kind != MS__CALL)
        at++;
    return at + 1 == thread->depth;
}

static struct ms__entry *open_entry(ms_ledger *ledger, struct ms__seat *seat, bool root, struct ms__span *span)
{
    ms_path path = span->path;
    struct ms__stat *stat = ms__stat_at(ledger, path);
    if (MS__UNLIKELY(!stat) && !(stat = ms__stats_grow(ledger, path)))
        return NULL;
    bool again = span->kind == MS__SPAN_AGAIN;
    if (!again && (root || !seat->round))
        begin_round(ledger, seat, stat);
    if (!again && stat->round != seat->round) {
        stat->round = seat->round;
        stat->forward.count = stat->again.count = 0;
        stat->forward.read_moment = stat->again.read_moment = UINT32_MAX;
    }
    struct ms__entries *entries = again ? &stat->again : &stat->forward;
    struct ms__entry *entry = ms__entry_append(ledger, entries);
    span->round = stat->round;
    span->entry = entries->count - 1;
    return entry;
}

/* A thread's records and the entries of their calls. */
static void link_record(ms_ledger *ledger, ms_thread *thread, const struct ms__stat *stat)
{
    struct ms__call_ring *ring = &thread->ring;
    uint64_t record = thread->frames[thread->depth - 1].record;
    if (record >= MS__UNRECORDED || !stat->forward.count)
        return;
    if (MS__UNLIKELY(!ring->links)) {
        ring->links = ms__alloc_zeroed(thread->watch, ring->capacity * sizeof *ring->links);
        if (!ring->links) {
            ms__ledger_count_lost(ledger);
            return;
        }
    }
    ring->links[record & (ring->capacity - 1)] =
        (struct ms__link){(uint32_t)stat->round, stat->forward.count - 1, thread->frames[thread->depth - 1].path};
}

void ms__on_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path)
{
    ms__lock(&ledger->lock);
    struct ms__seat *seat = ms__seat_of(ledger, thread);
    if (seat) {
        ms__seat_settle(ledger, seat, thread->nodes_open);
        struct ms__span span = {
            .path = path, .kind = thread->nodes_open ? MS__SPAN_AGAIN : MS__SPAN_FORWARD, .frame = thread->depth};
        struct ms__entry *entry = open_entry(ledger, seat, is_root(thread), &span);
        if (entry) {
            bool again = span.kind == MS__SPAN_AGAIN;
            ms__entry_note(ledger, entry, again ? 0 : MS_PRE_FW);
            if (!again)
                ms__entry_mark(ledger, entry, MS_PEAK_FW); /* the span has the figures */
            ms__span_push(ledger, seat, &span);
            link_record(ledger, thread, ms__stat_at(ledger, path));
        } else {
            ms__ledger_count_lost(ledger);
        }
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, false);
    ms__unlock(&ledger->lock);
}

void ms__on_call_leave(ms_ledger *ledger, ms_thread *thread)
{
    ms__lock(&ledger->lock);
    struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger && MS__PEEK(ledger->attached)) {
        ms__seat_settle(ledger, seat, thread->nodes_open);
        const struct ms__span *span = seat->count ? &seat->spans[seat->count - 1] : NULL;
        if (span && span->kind != MS__SPAN_BACKWARD && span->frame == thread->depth + 1) {
            struct ms__entry *entry = ms__entry_of(ledger, span);
            if (entry)
                ms__entry_note(ledger, entry, span->kind == MS__SPAN_AGAIN ? 1 : MS_POST_FW);
            ms__span_hand_over(ledger, seat, seat->count - 1);
            seat->count--;
            ms__seat_find_top(seat);
        }
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, false);
    ms__unlock(&ledger->lock);
}

void ms_call_set_size(ms_thread *thread, bool output, uint64_t bytes)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    const struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger && seat->count) {
        const struct ms__span *span = &seat->spans[seat->count - 1];
        struct ms__entry *entry = span->kind == MS__SPAN_FORWARD ? ms__entry_of(ledger, span) : NULL;
        if (entry && span->frame == thread->depth)
            *(output ? &entry->output : &entry->input) = bytes;
    }
    ms__unlock(&ledger->lock);
}

static bool grow_chain(ms_ledger *ledger, struct ms__seat *seat, uint32_t count)
{
    uint32_t room = count ? count * 2 : 32;
    struct ms__span *chain = ms__alloc(ledger->watch, room * sizeof *chain);
    if (!chain)
        return false;
    if (count)
        memcpy(chain, seat->chain, count * sizeof *chain);
    ms__free(ledger->watch, seat->chain);
    seat->chain = chain;
    seat->chain_room = room;
    return true;
}

/* The call that a record is of; false if it is of none whose moments are kept. */
static bool call_of(const ms_ledger *ledger, const ms_thread *maker, uint64_t record, struct ms__span *span)
{
    const struct ms__call_ring *ring = &maker->ring;
    struct ms__link link = ring->links[record & (ring->capacity - 1)];
    const struct ms__stat *stat = ms__stat_at(ledger, link.path);
    *span = (struct ms__span){.record = record,
                              .maker = MS__PEEK(maker->id),
                              .round = stat ? stat->round : 0,
                              .path = link.path,
                              .entry = link.entry,
                              .kind = MS__SPAN_BACKWARD};
    return stat && link.round && (uint32_t)span->round == link.round && link.entry < stat->forward.count &&
           link.path == MS__LOAD(ms__call_ring_at(ring, record)->path);
}

/* Walk out from `record` until a call that is open already, one of spans[base...]; *shared counts
 * those that stay open. The calls met on the way are seat->chain, innermost first. Records go down
 * on the way out, in the chain and in the spans: so they are compared like two sorted lists. */
static uint32_t chain_of(ms_ledger *ledger, struct ms__seat *seat, const ms_thread *maker, uint64_t record,
                         uint32_t base, uint32_t *shared)
{
    uint32_t count = 0, open = seat->count;
    uint64_t id = maker ? MS__PEEK(maker->id) : 0;
    if (open > base && seat->spans[open - 1].maker != id)
        open = base;
    while (maker && record != MS__NONE && maker->ring.links) {
        while (open > base && seat->spans[open - 1].record > record)
            open--;
        uint64_t outer = MS__LOAD(ms__call_ring_at(&maker->ring, record)->outer);
        struct ms__span span;
        bool known = call_of(ledger, maker, record, &span);
        if (record < MS__LOAD(maker->ring.oldest))
            break; /* let go: what encloses it, too */
        if (known && open > base && seat->spans[open - 1].record == record && seat->spans[open - 1].round == span.round)
            goto met;
        if (known && count == seat->chain_room && !grow_chain(ledger, seat, count)) {
            ms__ledger_count_lost(ledger);
            break;
        }
        if (known)
            seat->chain[count++] = span;
        record = outer < record ? outer : MS__NONE;
    }
    open = base;
met:
    *shared = open - base;
    return count;
}

static void open_backward(ms_ledger *ledger, struct ms__seat *seat, struct ms__span *span)
{
    struct ms__entry *entry = ms__entry_of(ledger, span);
    if (!entry || !ms__seat_has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    span->again = entry->has >> MS_PRE_BW & 1;
    if (!span->again) {
        ms__entry_note(ledger, entry, MS_PRE_BW);
        ms__entry_mark(ledger, entry, MS_PEAK_BW);
    }
    ms__span_push(ledger, seat, span);
}

MS__RARE void go_to(ms_ledger *ledger, struct ms__seat *seat, ms_thread *maker, uint64_t record, uint32_t level)
{
    ms__seat_settle(ledger, seat, level);
    uint32_t base = seat->count, shared;
    while (base && seat->spans[base - 1].kind == MS__SPAN_BACKWARD && seat->spans[base - 1].level == level)
        base--;
    uint32_t length = chain_of(ledger, seat, maker, record, base, &shared);
    while (seat->count > base + shared)
        ms__span_pop_backward(ledger, seat);
    while (length-- > 0) {
        struct ms__span span = seat->chain[length];
        span.level = level;
        open_backward(ledger, seat, &span);
    }
}

/* Whether the node is in the same call as the one before it, so that nothing changes. */
MS__INLINE bool goes_on(const struct ms__seat *seat, const ms_thread *thread, uint64_t maker, uint64_t record)
{
    return MS__LOAD(seat->last_record) == record && seat->last_maker == maker &&
           seat->last_level == thread->nodes_open && !atomic_load_explicit(&seat->grown, memory_order_relaxed);
}

void ms__on_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *maker, uint64_t record)
{
    struct ms__seat *seat = thread->seat;
    uint64_t maker_id = maker ? MS__PEEK(maker->id) : 0;
    bool same = false;
    if (MS__LIKELY(seat && MS__LOAD(seat->ledger) == ledger && record != MS__NONE)) {
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
        same = goes_on(seat, thread, maker_id, record);
        if (same && !ms__captured(ledger))
            return;
    }
    ms__lock(&ledger->lock);
    seat = same ? NULL : ms__seat_of(ledger, thread);
    if (seat) {
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
        go_to(ledger, seat, maker, record, thread->nodes_open);
        if (seat->count)
            ms__span_raise(ledger, seat, seat->count - 1);
        atomic_store_explicit(&seat->grown, false, memory_order_relaxed);
        seat->last_maker = maker_id;
        seat->last_level = thread->nodes_open;
        MS__STORE(seat->last_record, record);
    }
    if (ms__captured(ledger))
        ms__capture_position(ledger, thread, true);
    ms__unlock(&ledger->lock);
}

/* A node that has no number: it is in no call, and ends none. */
void ms__on_node_enter_as(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger)
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
    if (ms__captured(ledger)) {
        ms__lock(&ledger->lock);
        ms__capture_position(ledger, thread, true);
        ms__unlock(&ledger->lock);
    }
}

/* nodes_open no longer counts the node that was left. */
void ms__on_node_leave(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    bool here = seat && MS__LOAD(seat->ledger) == ledger;
    if (!here && !ms__captured(ledger))
        return;
    ms__lock(&ledger->lock);
    if (here && MS__PEEK(ledger->attached) && MS__PEEK(seat->ledger) == ledger) {
        ms__seat_settle(ledger, seat, thread->nodes_open + 1);
        ms__seat_note_left(ledger, seat);
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
    }
    if (ms__captured(ledger))
        ms__capture_node_left(ledger, thread);
    ms__unlock(&ledger->lock);
}

void ms_backward_enter(ms_thread *thread, ms_path path)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    struct ms__stat *stat = MS__PEEK(ledger->attached) ? ms__stat_at(ledger, path) : NULL;
    uint32_t at = stat ? stat->forward.count : 0;
    while (at > 1 && stat->forward.at[at - 1].has & 1u << MS_PRE_BW)
        at--;
    if (at && ledger->loose_count == ledger->loose_room) {
        uint32_t room = ledger->loose_room ? ledger->loose_room * 2 : 32;
        struct ms__span *loose = ms__alloc(ledger->watch, room * sizeof *loose);
        if (loose) {
            if (ledger->loose_count)
                memcpy(loose, ledger->loose, ledger->loose_count * sizeof *loose);
            ms__free(ledger->watch, ledger->loose);
            ledger->loose = loose;
            ledger->loose_room = room;
        } else {
            ms__ledger_count_lost(ledger);
            at = 0;
        }
    }
    if (at) {
        struct ms__entry *entry = &stat->forward.at[at - 1];
        if (!(entry->has & 1u << MS_PRE_BW)) {
            ms__entry_note(ledger, entry, MS_PRE_BW);
            ms__entry_note(ledger, entry, MS_PEAK_BW);
        }
        ledger->loose[ledger->loose_count++] =
            (struct ms__span){.path = path, .round = stat->round, .entry = at - 1, .kind = MS__SPAN_BACKWARD};
    }
    ms__unlock(&ledger->lock);
}

void ms_backward_leave(ms_thread *thread, ms_path path)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    uint32_t at = ledger->loose_count;
    while (at && ledger->loose[at - 1].path != path)
        at--;
    if (at && MS__PEEK(ledger->attached)) {
        struct ms__entry *entry = ms__entry_of(ledger, &ledger->loose[at - 1]);
        if (entry)
            ms__entry_note(ledger, entry, MS_POST_BW);
        memmove(&ledger->loose[at - 1], &ledger->loose[at], (ledger->loose_count - at) * sizeof *ledger->loose);
        ledger->loose_count--;
    }
    ms__unlock(&ledger->lock);
}

void ms__on_optimizer_step(ms_ledger *ledger, ms_thread *thread, bool left)
{
    ms__lock(&ledger->lock);
    if (MS__PEEK(ledger->attached)) {
        ledger->steps_expected = true;
        ledger->step_left |= left;
        struct ms__seat *seat = thread->seat;
        if (seat && MS__LOAD(seat->ledger) == ledger)
            ms__seat_settle(ledger, seat, thread->nodes_open);
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
    ledger->steps_expected = true;
    ms__unlock(&ledger->lock);
}

uint64_t ms_ledger_step(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t step = ledger->step;
    ms__unlock(&ledger->lock);
    return step;
}
