/* call_spans.c - pushing and popping call spans, and passing their peaks on. */
#include "core/ledger/call_spans.h"

#include <string.h>

/* Call it when the innermost span is another one, or `peaks` moved. */
static void update_innermost(struct ms__thread_spans *spans)
{
    spans->innermost_peak = spans->count ? ms__span_peaks(spans, spans->count - 1) : NULL;
    spans->innermost_level = spans->count ? spans->open[spans->count - 1].level : 0;
}

MS__RARE bool grow_spans(struct ms__thread_spans *spans, uint32_t room, uint32_t devices)
{
    ms_watch *watch = MS__PEEK(spans->ledger)->watch;
    struct ms__span *open = ms__alloc(watch, room * sizeof *open);
    struct ms__span_peak *peaks = open ? ms__alloc(watch, ((size_t)room + 1) * devices * sizeof *peaks) : NULL;
    if (!peaks) {
        ms__free(watch, open);
        return false;
    }
    memset(peaks, 0, ((size_t)room + 1) * devices * sizeof *peaks);
    if (spans->count)
        memcpy(open, spans->open, spans->count * sizeof *open);
    for (uint32_t i = 0; i < spans->count; i++)
        memcpy(peaks + (size_t)i * devices, ms__span_peaks(spans, i), spans->devices * sizeof *peaks);
    if (spans->after_last_node)
        memcpy(peaks + (size_t)room * devices, spans->after_last_node, spans->devices * sizeof *peaks);
    ms__free(watch, spans->open);
    ms__free(watch, spans->peaks);
    spans->open = open;
    spans->peaks = peaks;
    spans->after_last_node = peaks + (size_t)room * devices;
    spans->room = room;
    spans->devices = devices;
    update_innermost(spans);
    return true;
}

MS__HOT bool ms__spans_reserve(struct ms__thread_spans *spans)
{
    const ms_ledger *ledger = MS__PEEK(spans->ledger);
    uint32_t devices = ledger->device_count ? ledger->device_count : 1;
    if (MS__LIKELY(spans->count < spans->room && devices <= spans->devices))
        return true;
    uint32_t room = spans->count < spans->room ? spans->room : spans->room ? spans->room * 2 : 32;
    return grow_spans(spans, room, devices);
}

MS__RARE struct ms__thread_spans *attach_thread(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__thread_spans *spans = thread->spans;
    if (!spans) {
        if (!(spans = ms__alloc(ledger->watch, sizeof *spans)))
            return NULL;
        memset(spans, 0, sizeof *spans);
        thread->spans = spans;
    }
    MS__STORE(spans->ledger, ledger);
    spans->count = 0;
    spans->innermost_peak = NULL;
    spans->iteration = 0;
    atomic_store_explicit(&spans->added_between_nodes, false, memory_order_relaxed);
    atomic_store_explicit(&spans->nodes_open, 0, memory_order_relaxed);
    MS__STORE(spans->last_record, MS__NONE);
    spans->next = ledger->threads;
    ledger->threads = spans;
    return spans;
}

MS__HOT struct ms__thread_spans *ms__thread_spans_get(ms_ledger *ledger, ms_thread *thread)
{
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        return NULL;
    struct ms__thread_spans *spans = thread->spans;
    if (MS__UNLIKELY(!spans || MS__LOAD(spans->ledger) != ledger))
        spans = attach_thread(ledger, thread);
    if (!spans || !ms__spans_reserve(spans)) {
        ms__ledger_count_lost(ledger);
        return NULL;
    }
    return spans;
}

static struct ms__span_peak peak_now(const ms_ledger *ledger, uint32_t device)
{
    return (struct ms__span_peak){ledger->totals[device].total, ledger->totals[device].now};
}

static void save_now(const ms_ledger *ledger, const struct ms__thread_spans *spans, struct ms__span_peak *peaks)
{
    for (uint32_t device = 0; device < spans->devices; device++)
        peaks[device] = peak_now(ledger, device);
}

void ms__spans_save_node_end(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    if (!spans->count)
        return;
    if (ms__spans_reserve(spans))
        save_now(ledger, spans, spans->after_last_node);
    else
        ms__ledger_count_lost(ledger);
}

void ms__span_raise(const ms_ledger *ledger, struct ms__thread_spans *spans)
{
    struct ms__span_peak *peaks = spans->innermost_peak;
    for (uint32_t device = 0; peaks && device < spans->devices; device++)
        if (ledger->totals[device].total > peaks[device].total)
            peaks[device] = peak_now(ledger, device);
}

void ms__span_push(ms_ledger *ledger, struct ms__thread_spans *spans, const struct ms__span *span)
{
    save_now(ledger, spans, ms__span_peaks(spans, spans->count));
    spans->open[spans->count++] = *span;
    update_innermost(spans);
}

/* Pass the peak of open[at] so far to the span around it, and to its call stats. */
static void pass_peak(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t at)
{
    const struct ms__span_peak *peaks = ms__span_peaks(spans, at);
    struct ms__span_peak *outer = at ? ms__span_peaks(spans, at - 1) : NULL;
    for (uint32_t device = 0; outer && device < spans->devices; device++)
        if (peaks[device].total > outer[device].total)
            outer[device] = peaks[device];
    const struct ms__span *span = &spans->open[at];
    struct ms__call_stats *stats = span->kind == MS__SPAN_RECOMPUTE ? NULL : ms__span_stats(ledger, span);
    uint32_t state = span->kind == MS__SPAN_FORWARD ? MS_PEAK_FW : MS_PEAK_BW;
    if (!stats)
        return;
    if (stats->devices < ledger->device_count && !ms__call_stats_widen(ledger, stats))
        ms__ledger_count_lost(ledger);
    for (uint32_t device = 0; device < spans->devices && device < stats->devices; device++) {
        ms_sums *sums = ms__call_sums(stats, state, device);
        if (!span->began_earlier || peaks[device].total > ms__sums_total(sums))
            *sums = peaks[device].sums;
    }
}

void ms__span_pop_call(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    pass_peak(ledger, spans, spans->count - 1);
    spans->count--;
    update_innermost(spans);
}

void ms__span_pop_backward(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    uint32_t at = spans->count - 1;
    pass_peak(ledger, spans, at); /* makes room in the stats for every device */
    struct ms__call_stats *stats = ms__span_stats(ledger, &spans->open[at]);
    if (stats) {
        for (uint32_t device = 0; device < spans->devices && device < stats->devices; device++)
            *ms__call_sums(stats, MS_POST_BW, device) = spans->after_last_node[device].sums;
        ms__call_stats_mark(ledger, stats, MS_POST_BW);
    }
    spans->count = at;
    update_innermost(spans);
}

static bool is_backward_above(const struct ms__thread_spans *spans, uint32_t count, uint32_t level)
{
    return count && spans->open[count - 1].kind == MS__SPAN_BACKWARD && spans->open[count - 1].level > level;
}

MS__HOT void ms__spans_pop_above(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t level)
{
    if (!is_backward_above(spans, spans->count, level))
        return;
    while (is_backward_above(spans, spans->count, level))
        ms__span_pop_backward(ledger, spans);
    MS__STORE(spans->last_record, MS__NONE);
}

void ms__span_grow(ms_ledger *ledger, struct ms__thread_spans *spans, uint32_t device)
{
    const struct ms__device_totals *totals = &ledger->totals[device];
    uint32_t count = spans->count, nodes_open = MS__PEEK(spans->nodes_open);
    while (is_backward_above(spans, count, nodes_open))
        count--;
    if (count < spans->count)
        atomic_store_explicit(&spans->added_between_nodes, true, memory_order_relaxed);
    if (!count)
        return;
    if (device >= spans->devices && !ms__spans_reserve(spans)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    struct ms__span_peak *peak = ms__span_peaks(spans, count - 1) + device;
    if (totals->total > peak->total)
        *peak = peak_now(ledger, device);
}

static void pop_all_spans(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    if (MS__PEEK(spans->nodes_open))
        ms__spans_save_node_end(ledger, spans);
    while (spans->count) {
        if (spans->open[spans->count - 1].kind == MS__SPAN_BACKWARD)
            ms__span_pop_backward(ledger, spans);
        else
            ms__span_pop_call(ledger, spans);
    }
    MS__STORE(spans->last_record, MS__NONE);
}

static void end_spans(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    pop_all_spans(ledger, spans);
    MS__STORE(spans->ledger, NULL);
}

void ms__spans_end_all(ms_ledger *ledger)
{
    for (struct ms__thread_spans *spans = ledger->threads; spans; spans = spans->next)
        pop_all_spans(ledger, spans);
}

void ms__spans_detach_all(ms_ledger *ledger)
{
    while (ledger->threads) {
        struct ms__thread_spans *spans = ledger->threads;
        ledger->threads = spans->next;
        end_spans(ledger, spans);
    }
}

void ms__thread_spans_detach(ms_ledger *ledger, struct ms__thread_spans *spans)
{
    struct ms__thread_spans **at = &ledger->threads;
    while (*at != spans)
        at = &(*at)->next;
    *at = spans->next;
    end_spans(ledger, spans);
}

void ms__thread_spans_free(ms_thread *thread)
{
    struct ms__thread_spans *spans = thread->spans;
    ms__free(thread->watch, spans->open);
    ms__free(thread->watch, spans->peaks);
    ms__free(thread->watch, spans->node_calls);
    ms__free(thread->watch, spans);
    thread->spans = NULL;
}

void ms__spans_update_stats(ms_ledger *ledger)
{
    for (struct ms__thread_spans *spans = ledger->threads; spans; spans = spans->next) {
        if (!MS__PEEK(spans->nodes_open))
            ms__spans_pop_above(ledger, spans, 0);
        for (uint32_t at = spans->count; at-- > 0;)
            pass_peak(ledger, spans, at);
    }
}
