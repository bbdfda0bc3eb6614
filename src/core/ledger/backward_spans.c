/* backward_spans.c - from the record of a node's call to the backward spans of the call and the calls around it. */
#include "core/ledger/backward_spans.h"

#include <string.h>

bool ms__call_refs_alloc(ms_ledger *ledger, struct ms__call_ring *ring)
{
    ring->call_refs = ms__alloc_zeroed(ledger->watch, ring->capacity * sizeof *ring->call_refs);
    if (!ring->call_refs)
        ms__ledger_count_lost(ledger);
    return ring->call_refs != NULL;
}

static bool grow_node_calls(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t count)
{
    uint32_t room = count ? count * 2 : 32;
    struct ms__span *node_calls = ms__alloc(ledger->watch, room * sizeof *node_calls);
    if (!node_calls)
        return false;
    if (count)
        memcpy(node_calls, spans->node_calls, count * sizeof *node_calls);
    ms__free(ledger->watch, spans->node_calls);
    spans->node_calls = node_calls;
    spans->node_calls_room = room;
    return true;
}

/* The backward span of a record's call. False if the call has no stats, or no longer. */
static bool make_backward_span(const ms_ledger *ledger, const ms_thread *creator, uint64_t record,
                               struct ms__span *span)
{
    const struct ms__call_ring *ring = &creator->ring;
    struct ms__packed_call_ref ref = ring->call_refs[record & (ring->capacity - 1)];
    const struct ms__path_stats *path = ms__path_stats_find(ledger, ref.path);
    *span = (struct ms__span){.record = record,
                              .creator = MS__PEEK(creator->id),
                              .call = {.iteration = path ? path->iteration : 0, .path = ref.path, .index = ref.index},
                              .kind = MS__SPAN_BACKWARD};
    return path && ref.iteration && (uint32_t)path->iteration == ref.iteration && ref.index < path->forward.count &&
           ref.path == MS__LOAD(ms__call_ring_at(ring, record)->path);
}

/* Collect in spans->node_calls the call of `record` and the calls around it, innermost first, up to the first one whose
 * span is open already as one of open[base ...]. Returns how many were collected; *kept is how many of open[base ...]
 * stay open.
 *
 * Records decrease from a call to the calls around it, in the ring as well as in the open spans. So both are walked
 * side by side, like two sorted lists. */
static uint32_t collect_node_calls(ms_ledger *ledger, struct ms__thread_spans *spans, const ms_thread *creator,
                                   uint64_t record, uint32_t base, uint32_t *kept)
{
    uint32_t count = 0, open = spans->count;
    uint64_t creator_id = creator ? MS__PEEK(creator->id) : 0;
    if (open > base && spans->open[open - 1].creator != creator_id)
        open = base;
    *kept = 0;
    while (creator && record != MS__NONE && creator->ring.call_refs) {
        while (open > base && spans->open[open - 1].record > record)
            open--;
        uint64_t outer = MS__LOAD(ms__call_ring_at(&creator->ring, record)->outer);
        struct ms__span span;
        bool has_stats = make_backward_span(ledger, creator, record, &span);
        if (record < MS__LOAD(creator->ring.oldest))
            break; /* The ring has overwritten this record, and with it all older ones. */
        if (has_stats && open > base && spans->open[open - 1].record == record &&
            spans->open[open - 1].call.iteration == span.call.iteration) {
            *kept = open - base;
            break;
        }
        if (has_stats && count == spans->node_calls_room && !grow_node_calls(ledger, spans, count)) {
            ms__ledger_count_lost(ledger);
            break;
        }
        if (has_stats)
            spans->node_calls[count++] = span;
        record = outer < record ? outer : MS__NONE;
    }
    return count;
}

static void push_backward_span(ms_ledger *ledger, struct ms__thread_spans *spans, struct ms__span *span)
{
    struct ms__call_stats *stats = ms__span_stats(ledger, span);
    if (!stats || !ms__spans_reserve(spans)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    span->began_earlier = stats->recorded >> MS_PRE_BW & 1;
    if (!span->began_earlier) {
        ms__call_stats_record(ledger, stats, MS_PRE_BW);
        ms__call_stats_mark(ledger, stats, MS_PEAK_BW); /* the span keeps its figures until it is popped */
    }
    ms__span_push(ledger, spans, span);
}

void ms__spans_move_to_node(ms_ledger *ledger, struct ms__thread_spans *spans, ms_thread *creator, uint64_t record,
                            uint32_t level)
{
    ms__spans_pop_above(ledger, spans, level);
    uint32_t base = spans->count, kept;
    while (base && spans->open[base - 1].kind == MS__SPAN_BACKWARD && spans->open[base - 1].level == level)
        base--;
    uint32_t count = collect_node_calls(ledger, spans, creator, record, base, &kept);
    while (spans->count > base + kept)
        ms__span_pop_backward(ledger, spans);
    while (count-- > 0) {
        struct ms__span span = spans->node_calls[count];
        span.level = level;
        push_backward_span(ledger, spans, &span);
    }
}
