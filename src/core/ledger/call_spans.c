/* call_spans.c - a thread at a ledger: the stretches of its time whose peaks are kept. */
#include "core/ledger/ledger.h"

#include <string.h>

/* The innermost span changed, or where its peak is. */
void ms__seat_find_top(struct ms__seat *seat)
{
    seat->top = seat->count ? ms__most_of(seat, seat->count - 1) : NULL;
    seat->top_level = seat->count ? seat->spans[seat->count - 1].level : 0;
}

MS__RARE bool widen_seat(struct ms__seat *seat, uint32_t room, uint32_t devices)
{
    ms_watch *watch = MS__PEEK(seat->ledger)->watch;
    struct ms__span *spans = ms__alloc(watch, room * sizeof *spans);
    struct ms__most *most = spans ? ms__alloc(watch, ((size_t)room + 1) * devices * sizeof *most) : NULL;
    if (!most) {
        ms__free(watch, spans);
        return false;
    }
    memset(most, 0, ((size_t)room + 1) * devices * sizeof *most);
    if (seat->count)
        memcpy(spans, seat->spans, seat->count * sizeof *spans);
    for (uint32_t i = 0; i < seat->count; i++)
        memcpy(most + (size_t)i * devices, ms__most_of(seat, i), seat->devices * sizeof *most);
    if (seat->left)
        memcpy(most + (size_t)room * devices, seat->left, seat->devices * sizeof *most);
    ms__free(watch, seat->spans);
    ms__free(watch, seat->most);
    seat->spans = spans;
    seat->most = most;
    seat->left = most + (size_t)room * devices;
    seat->room = room;
    seat->devices = devices;
    ms__seat_find_top(seat);
    return true;
}

/* Whether the seat has room for one more span and every device. */
bool ms__seat_has_room(struct ms__seat *seat)
{
    const ms_ledger *ledger = MS__PEEK(seat->ledger);
    uint32_t devices = ledger->device_count ? ledger->device_count : 1;
    if (MS__LIKELY(seat->count < seat->room && devices <= seat->devices))
        return true;
    uint32_t room = seat->count < seat->room ? seat->room : seat->room ? seat->room * 2 : 32;
    return widen_seat(seat, room, devices);
}

MS__RARE struct ms__seat *take_seat(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    if (!seat) {
        if (!(seat = ms__alloc(ledger->watch, sizeof *seat)))
            return NULL;
        memset(seat, 0, sizeof *seat);
        thread->seat = seat;
    }
    MS__STORE(seat->ledger, ledger);
    seat->count = 0;
    seat->top = NULL;
    seat->round = 0;
    atomic_store_explicit(&seat->grown, false, memory_order_relaxed);
    atomic_store_explicit(&seat->inside, 0, memory_order_relaxed);
    MS__STORE(seat->last_record, MS__NONE);
    seat->next = ledger->seats;
    ledger->seats = seat;
    return seat;
}

/* This thread's seat, with the lock held; NULL when memory ran out or the ledger is no longer attached. */
struct ms__seat *ms__seat_of(ms_ledger *ledger, ms_thread *thread)
{
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        return NULL;
    struct ms__seat *seat = thread->seat;
    if (MS__UNLIKELY(!seat || MS__LOAD(seat->ledger) != ledger))
        seat = take_seat(ledger, thread);
    if (!seat || !ms__seat_has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return NULL;
    }
    return seat;
}

static void note_most(const ms_ledger *ledger, const struct ms__seat *seat, struct ms__most *most)
{
    for (uint32_t device = 0; device < seat->devices; device++)
        most[device] = (struct ms__most){ledger->devices[device].total, ledger->devices[device].now};
}

/* A node is left: if it is the last, the backwards it was in end with what is held now. */
void ms__seat_note_left(ms_ledger *ledger, struct ms__seat *seat)
{
    if (!seat->count)
        return;
    if (ms__seat_has_room(seat))
        note_most(ledger, seat, seat->left);
    else
        ms__ledger_count_lost(ledger);
}

/* What is held now is held in this span. */
void ms__span_raise(const ms_ledger *ledger, struct ms__seat *seat, uint32_t at)
{
    struct ms__most *most = ms__most_of(seat, at);
    for (uint32_t device = 0; device < seat->devices; device++)
        if (ledger->devices[device].total > most[device].total)
            most[device] = (struct ms__most){ledger->devices[device].total, ledger->devices[device].now};
}

/* There is room. */
void ms__span_push(ms_ledger *ledger, struct ms__seat *seat, const struct ms__span *span)
{
    note_most(ledger, seat, ms__most_of(seat, seat->count));
    seat->spans[seat->count++] = *span;
    ms__seat_find_top(seat);
}

/* A span's peak so far goes to its entry, and to the span around it. */
void ms__span_hand_over(ms_ledger *ledger, struct ms__seat *seat, uint32_t at)
{
    const struct ms__most *most = ms__most_of(seat, at);
    struct ms__most *outer = at ? ms__most_of(seat, at - 1) : NULL;
    for (uint32_t device = 0; outer && device < seat->devices; device++)
        if (most[device].total > outer[device].total)
            outer[device] = most[device];
    const struct ms__span *span = &seat->spans[at];
    struct ms__entry *entry = span->kind == MS__SPAN_AGAIN ? NULL : ms__entry_of(ledger, span);
    uint32_t moment = span->kind == MS__SPAN_FORWARD ? MS_PEAK_FW : MS_PEAK_BW;
    if (!entry)
        return;
    if (entry->devices < ledger->device_count && !ms__entry_widen(ledger, entry))
        ms__ledger_count_lost(ledger);
    for (uint32_t device = 0; device < seat->devices && device < entry->devices; device++) {
        ms_sums *sums = ms__sums_of(entry, moment, device);
        if (!span->again || most[device].total > ms__total_of(sums))
            *sums = most[device].sums;
    }
}

static bool ends_backward(const struct ms__seat *seat, uint32_t level)
{
    return seat->count && seat->spans[seat->count - 1].kind == MS__SPAN_BACKWARD &&
           seat->spans[seat->count - 1].level > level;
}

/* The innermost span is a backward that ended when the last node was left. */
void ms__span_pop_backward(ms_ledger *ledger, struct ms__seat *seat)
{
    uint32_t at = seat->count - 1;
    ms__span_hand_over(ledger, seat, at); /* makes the entry as wide as can be */
    struct ms__entry *entry = ms__entry_of(ledger, &seat->spans[at]);
    if (entry) {
        for (uint32_t device = 0; device < seat->devices && device < entry->devices; device++)
            *ms__sums_of(entry, MS_POST_BW, device) = seat->left[device].sums;
        entry->has |= 1u << MS_POST_BW;
        entry->when[MS_POST_BW] = ++ledger->time;
    }
    seat->count = at;
    ms__seat_find_top(seat);
}

/* End the backwards that no node open now is in. */
void ms__seat_settle(ms_ledger *ledger, struct ms__seat *seat, uint32_t level)
{
    if (!ends_backward(seat, level))
        return;
    while (ends_backward(seat, level))
        ms__span_pop_backward(ledger, seat);
    MS__STORE(seat->last_record, MS__NONE);
}

/* The innermost span that goes on now, counted from 1: above it are backwards that ended. */
static uint32_t innermost(const struct ms__seat *seat)
{
    uint32_t at = seat->count, inside = atomic_load_explicit(&seat->inside, memory_order_relaxed);
    while (at && seat->spans[at - 1].kind == MS__SPAN_BACKWARD && seat->spans[at - 1].level > inside)
        at--;
    return at;
}

void ms__span_grow(ms_ledger *ledger, struct ms__seat *seat, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    uint32_t at = innermost(seat);
    if (at < seat->count)
        atomic_store_explicit(&seat->grown, true, memory_order_relaxed);
    if (!at)
        return;
    if (device >= seat->devices && !ms__seat_has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    struct ms__most *most = ms__most_of(seat, at - 1) + device;
    if (on->total > most->total)
        *most = (struct ms__most){on->total, on->now};
}

static void stand_up(ms_ledger *ledger, struct ms__seat *seat)
{
    if (atomic_load_explicit(&seat->inside, memory_order_relaxed))
        ms__seat_note_left(ledger, seat);
    while (seat->count) {
        if (seat->spans[seat->count - 1].kind == MS__SPAN_BACKWARD) {
            ms__span_pop_backward(ledger, seat);
        } else {
            ms__span_hand_over(ledger, seat, seat->count - 1);
            seat->count--;
            ms__seat_find_top(seat);
        }
    }
    MS__STORE(seat->last_record, MS__NONE);
    MS__STORE(seat->ledger, NULL);
}

void ms__seats_leave(ms_ledger *ledger)
{
    while (ledger->seats) {
        struct ms__seat *seat = ledger->seats;
        ledger->seats = seat->next;
        stand_up(ledger, seat);
    }
}

/* With watch->lock held: no ledger comes or goes. */
void ms__seat_free(ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    ms_watch *watch = thread->watch;
    if (!seat)
        return;
    ms_ledger *ledger = MS__PEEK(watch->ledger);
    if (ledger && MS__PEEK(seat->ledger) == ledger) {
        ms__lock(&ledger->lock);
        struct ms__seat **at = &ledger->seats;
        while (*at != seat)
            at = &(*at)->next;
        *at = seat->next;
        stand_up(ledger, seat);
        if (ms__captured(ledger))
            ms__capture_thread_ended(ledger, thread);
        ms__unlock(&ledger->lock);
    }
    ms__free(watch, seat->spans);
    ms__free(watch, seat->most);
    ms__free(watch, seat->chain);
    ms__free(watch, seat);
    thread->seat = NULL;
}

/* Bring entries up to date: backwards that are over, peaks of what is still open. */
void ms__seats_bring_up_to_date(ms_ledger *ledger)
{
    for (struct ms__seat *seat = ledger->seats; seat; seat = seat->next) {
        if (!atomic_load_explicit(&seat->inside, memory_order_relaxed))
            ms__seat_settle(ledger, seat, 0);
        for (uint32_t at = seat->count; at-- > 0;)
            ms__span_hand_over(ledger, seat, at);
    }
}
