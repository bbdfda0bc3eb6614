/* moment.c - what was held around calls: before, after, and at most between. */
#include "ledger.h"

#include <string.h>

const char *ms_moment_name(ms_moment moment)
{
    switch (moment) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_MOMENTS(X)
#undef X
    default:
        return "no such moment";
    }
}

/* ---- where moments are kept ---- */
static struct ms__stat *stat_at(const ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__CELL_PATHS;
    if (chunk >= ledger->stats_room || !ledger->stats[chunk])
        return NULL;
    return &ledger->stats[chunk][path % MS__CELL_PATHS];
}

MS__RARE struct ms__stat *new_stats(ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__CELL_PATHS;
    struct ms__stat *stats = NULL;
    if (ms__directory_grow(ledger->watch, (void ***)&ledger->stats, &ledger->stats_room, chunk))
        stats = ms__alloc(ledger->watch, MS__CELL_PATHS * sizeof *stats);
    if (!stats)
        return NULL;
    memset(stats, 0, MS__CELL_PATHS * sizeof *stats);
    ledger->stats[chunk] = stats;
    return &stats[path % MS__CELL_PATHS];
}

static void free_entries(ms_watch *watch, struct ms__entries *entries)
{
    for (uint32_t i = 0; i < entries->room; i++)
        ms__free(watch, entries->at[i].sums);
    ms__free(watch, entries->at);
}

void ms__stats_close(ms_ledger *ledger)
{
    ms_watch *watch = ledger->watch;
    for (uint32_t chunk = 0; chunk < ledger->stats_room; chunk++)
        for (uint32_t row = 0; ledger->stats[chunk] && row < MS__CELL_PATHS; row++) {
            free_entries(watch, &ledger->stats[chunk][row].forward);
            free_entries(watch, &ledger->stats[chunk][row].again);
        }
    for (uint32_t chunk = 0; chunk < ledger->stats_room; chunk++)
        ms__free(watch, ledger->stats[chunk]);
    ms__free(watch, ledger->stats);
    ms__free(watch, ledger->loose);
    ledger->stats = NULL;
    ledger->loose = NULL;
    ledger->stats_room = ledger->loose_count = ledger->loose_room = 0;
}

MS__RARE bool grow_entries(ms_watch *watch, struct ms__entries *entries)
{
    uint32_t room = entries->room ? entries->room * 2 : 1;
    struct ms__entry *at = ms__alloc(watch, room * sizeof *at);
    if (!at)
        return false;
    memset(at, 0, room * sizeof *at);
    if (entries->room)
        memcpy(at, entries->at, entries->room * sizeof *at);
    ms__free(watch, entries->at);
    entries->at = at;
    entries->room = room;
    return true;
}

MS__RARE bool widen_entry(ms_ledger *ledger, struct ms__entry *entry)
{
    uint32_t devices = ledger->device_count ? ledger->device_count : 1;
    ms_sums *sums = ms__alloc(ledger->watch, MS__ENTRY_MOMENTS * devices * sizeof *sums);
    if (!sums)
        return false;
    memset(sums, 0, MS__ENTRY_MOMENTS * devices * sizeof *sums);
    for (uint32_t moment = 0; moment < MS__ENTRY_MOMENTS && entry->devices; moment++)
        memcpy(&sums[moment * devices], &entry->sums[moment * entry->devices], entry->devices * sizeof *sums);
    ms__free(ledger->watch, entry->sums);
    entry->sums = sums;
    entry->devices = devices;
    return true;
}

/* A new entry with room for every device known. NULL when memory runs out. */
static struct ms__entry *append(ms_ledger *ledger, struct ms__entries *entries)
{
    if (entries->count == entries->room && !grow_entries(ledger->watch, entries))
        return NULL;
    struct ms__entry *entry = &entries->at[entries->count];
    if ((!entry->sums || entry->devices < ledger->device_count) && !widen_entry(ledger, entry))
        return NULL;
    entry->has = 0;
    entry->input = entry->output = 0;
    entries->count++;
    return entry;
}

/* What is held now is what was held at this moment. A device that came since the entry was
 * made may not fit: then it is lost. */
static void note(ms_ledger *ledger, struct ms__entry *entry, uint32_t moment)
{
    if (MS__UNLIKELY(entry->devices < ledger->device_count) && !widen_entry(ledger, entry)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    for (uint32_t device = 0; device < ledger->device_count; device++)
        entry->sums[moment * entry->devices + device] = ledger->devices[device].now;
    entry->has |= 1u << moment;
    entry->when[moment] = ++ledger->time;
}

/* The entry a span stands for; NULL if a newer round took its place. */
static struct ms__entry *entry_of(const ms_ledger *ledger, const struct ms__span *span)
{
    struct ms__stat *stat = stat_at(ledger, span->path);
    struct ms__entries *entries = !stat ? NULL : span->kind == MS__SPAN_AGAIN ? &stat->again : &stat->forward;
    return entries && stat->round == span->round && span->entry < entries->count ? &entries->at[span->entry] : NULL;
}

static int64_t total_of(const ms_sums *sums)
{
    int64_t total = 0;
    for (uint32_t category = 0; category < MS_CATEGORY_COUNT; category++)
        total += sums->of[category];
    return total;
}

/* ---- seats ---- */

/* The innermost span changed, or where its peak is. */
static void find_top(struct ms__seat *seat)
{
    seat->top = seat->count ? &seat->most[(seat->count - 1) * seat->devices] : NULL;
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
        memcpy(&most[i * devices], &seat->most[i * seat->devices], seat->devices * sizeof *most);
    if (seat->left)
        memcpy(&most[room * devices], seat->left, seat->devices * sizeof *most);
    ms__free(watch, seat->spans);
    ms__free(watch, seat->most);
    seat->spans = spans;
    seat->most = most;
    seat->left = &most[room * devices];
    seat->room = room;
    seat->devices = devices;
    find_top(seat);
    return true;
}

/* Whether the seat has room for one more span and every device. */
static bool has_room(struct ms__seat *seat)
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
static struct ms__seat *seat_of(ms_ledger *ledger, ms_thread *thread)
{
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        return NULL;
    struct ms__seat *seat = thread->seat;
    if (MS__UNLIKELY(!seat || MS__LOAD(seat->ledger) != ledger))
        seat = take_seat(ledger, thread);
    if (!seat || !has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return NULL;
    }
    return seat;
}

/* ---- spans ---- */

static void note_most(const ms_ledger *ledger, const struct ms__seat *seat, struct ms__most *most)
{
    for (uint32_t device = 0; device < seat->devices; device++)
        most[device] = (struct ms__most){ledger->devices[device].total, ledger->devices[device].now};
}

/* A node is left: if it is the last, the backwards it was in end with what is held now. */
static void note_left(ms_ledger *ledger, struct ms__seat *seat)
{
    if (!seat->count)
        return;
    if (has_room(seat))
        note_most(ledger, seat, seat->left);
    else
        ms__ledger_count_lost(ledger);
}

/* What is held now is held in this span. */
static void raise_most(const ms_ledger *ledger, struct ms__seat *seat, uint32_t at)
{
    struct ms__most *most = &seat->most[at * seat->devices];
    for (uint32_t device = 0; device < seat->devices; device++)
        if (ledger->devices[device].total > most[device].total)
            most[device] = (struct ms__most){ledger->devices[device].total, ledger->devices[device].now};
}

/* There is room. */
static void push(ms_ledger *ledger, struct ms__seat *seat, const struct ms__span *span)
{
    note_most(ledger, seat, &seat->most[seat->count * seat->devices]);
    seat->spans[seat->count++] = *span;
    find_top(seat);
}

/* A span's peak so far goes to its entry, and to the span around it. */
static void hand_over(ms_ledger *ledger, struct ms__seat *seat, uint32_t at)
{
    const struct ms__most *most = &seat->most[at * seat->devices];
    struct ms__most *outer = at ? &seat->most[(at - 1) * seat->devices] : NULL;
    for (uint32_t device = 0; outer && device < seat->devices; device++)
        if (most[device].total > outer[device].total)
            outer[device] = most[device];
    const struct ms__span *span = &seat->spans[at];
    struct ms__entry *entry = span->kind == MS__SPAN_AGAIN ? NULL : entry_of(ledger, span);
    uint32_t moment = span->kind == MS__SPAN_FORWARD ? MS_PEAK_FW : MS_PEAK_BW;
    if (!entry)
        return;
    if (entry->devices < ledger->device_count && !widen_entry(ledger, entry))
        ms__ledger_count_lost(ledger);
    for (uint32_t device = 0; device < seat->devices && device < entry->devices; device++) {
        ms_sums *sums = &entry->sums[moment * entry->devices + device];
        if (!span->again || most[device].total > total_of(sums))
            *sums = most[device].sums;
    }
}

static bool ends_backward(const struct ms__seat *seat, uint32_t level)
{
    return seat->count && seat->spans[seat->count - 1].kind == MS__SPAN_BACKWARD &&
           seat->spans[seat->count - 1].level > level;
}

/* The innermost span is a backward that ended when the last node was left. */
static void pop_backward(ms_ledger *ledger, struct ms__seat *seat)
{
    uint32_t at = seat->count - 1;
    hand_over(ledger, seat, at); /* makes the entry as wide as can be */
    struct ms__entry *entry = entry_of(ledger, &seat->spans[at]);
    if (entry) {
        for (uint32_t device = 0; device < seat->devices && device < entry->devices; device++)
            entry->sums[MS_POST_BW * entry->devices + device] = seat->left[device].sums;
        entry->has |= 1u << MS_POST_BW;
        entry->when[MS_POST_BW] = ++ledger->time;
    }
    seat->count = at;
    find_top(seat);
}

/* End the backwards that no node open now is in. */
static void settle(ms_ledger *ledger, struct ms__seat *seat, uint32_t level)
{
    if (!ends_backward(seat, level))
        return;
    while (ends_backward(seat, level))
        pop_backward(ledger, seat);
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
    if (device >= seat->devices && !has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    struct ms__most *most = &seat->most[(at - 1) * seat->devices + device];
    if (on->total > most->total)
        *most = (struct ms__most){on->total, on->now};
}

void ms__loose_grow(ms_ledger *ledger, uint32_t device)
{
    const struct ms__device *on = &ledger->devices[device];
    for (uint32_t i = 0; i < ledger->loose_count; i++) {
        struct ms__entry *entry = entry_of(ledger, &ledger->loose[i]);
        if (!entry)
            continue;
        if (device >= entry->devices && !widen_entry(ledger, entry)) {
            ms__ledger_count_lost(ledger);
            continue;
        }
        ms_sums *sums = &entry->sums[MS_PEAK_BW * entry->devices + device];
        if (on->total > total_of(sums))
            *sums = on->now;
    }
}

/* ---- calls ---- */
static void begin_round(ms_ledger *ledger, struct ms__seat *seat, struct ms__stat *stat)
{
    seat->round = ++ledger->watch->rounds;
    ledger->loose_count = 0;
    bool again = !ledger->steps_expected && stat->iteration == ledger->iteration;
    if (!ledger->iteration || ledger->step_left || again)
        ledger->iteration++;
    ledger->step_left = false;
    stat->iteration = ledger->iteration;
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
    struct ms__stat *stat = stat_at(ledger, path);
    if (MS__UNLIKELY(!stat) && !(stat = new_stats(ledger, path)))
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
    struct ms__entry *entry = append(ledger, entries);
    span->round = stat->round;
    span->entry = entries->count - 1;
    return entry;
}

/* A thread's records and the entries of their calls. */
static void link_record(ms_ledger *ledger, ms_thread *thread, const struct ms__stat *stat)
{
    struct ms__table *table = &thread->table;
    uint64_t record = thread->frames[thread->depth - 1].record;
    if (record >= MS__PENDING || !stat->forward.count)
        return;
    if (MS__UNLIKELY(!table->links)) {
        table->links = ms__alloc(thread->watch, table->kept * sizeof *table->links);
        if (!table->links) {
            ms__ledger_count_lost(ledger);
            return;
        }
        memset(table->links, 0, table->kept * sizeof *table->links);
    }
    table->links[record & (table->kept - 1)] =
        (struct ms__link){(uint32_t)stat->round, stat->forward.count - 1, thread->frames[thread->depth - 1].path};
}

void ms__moment_call_enter(ms_ledger *ledger, ms_thread *thread, ms_path path)
{
    ms__lock(&ledger->lock);
    struct ms__seat *seat = seat_of(ledger, thread);
    if (seat) {
        settle(ledger, seat, thread->nodes_open);
        struct ms__span span = {
            .path = path, .kind = thread->nodes_open ? MS__SPAN_AGAIN : MS__SPAN_FORWARD, .frame = thread->depth};
        struct ms__entry *entry = open_entry(ledger, seat, is_root(thread), &span);
        if (entry) {
            bool again = span.kind == MS__SPAN_AGAIN;
            note(ledger, entry, again ? 0 : MS_PRE_FW);
            if (!again)
                note(ledger, entry, MS_PEAK_FW);
            push(ledger, seat, &span);
            link_record(ledger, thread, stat_at(ledger, path));
        } else {
            ms__ledger_count_lost(ledger);
        }
    }
    ms__unlock(&ledger->lock);
}

void ms__moment_call_leave(ms_ledger *ledger, ms_thread *thread)
{
    ms__lock(&ledger->lock);
    struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger && MS__PEEK(ledger->attached)) {
        settle(ledger, seat, thread->nodes_open);
        const struct ms__span *span = seat->count ? &seat->spans[seat->count - 1] : NULL;
        if (span && span->kind != MS__SPAN_BACKWARD && span->frame == thread->depth + 1) {
            struct ms__entry *entry = entry_of(ledger, span);
            if (entry)
                note(ledger, entry, span->kind == MS__SPAN_AGAIN ? 1 : MS_POST_FW);
            hand_over(ledger, seat, seat->count - 1);
            seat->count--;
            find_top(seat);
        }
    }
    ms__unlock(&ledger->lock);
}

void ms_call_note(ms_thread *thread, bool output, uint64_t bytes)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    const struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger && seat->count) {
        const struct ms__span *span = &seat->spans[seat->count - 1];
        struct ms__entry *entry = span->kind == MS__SPAN_FORWARD ? entry_of(ledger, span) : NULL;
        if (entry && span->frame == thread->depth)
            *(output ? &entry->output : &entry->input) = bytes;
    }
    ms__unlock(&ledger->lock);
}

/* ---- nodes ---- */

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
    const struct ms__table *table = &maker->table;
    struct ms__link link = table->links[record & (table->kept - 1)];
    const struct ms__stat *stat = stat_at(ledger, link.path);
    *span = (struct ms__span){.record = record,
                              .maker = MS__PEEK(maker->id),
                              .round = stat ? stat->round : 0,
                              .path = link.path,
                              .entry = link.entry,
                              .kind = MS__SPAN_BACKWARD};
    return link.round && (uint32_t)span->round == link.round && link.entry < stat->forward.count &&
           link.path == MS__LOAD(ms__table_at(table, record)->path);
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
    while (maker && record != MS__NONE && maker->table.links) {
        while (open > base && seat->spans[open - 1].record > record)
            open--;
        uint64_t outer = MS__LOAD(ms__table_at(&maker->table, record)->encloser);
        struct ms__span span;
        bool known = call_of(ledger, maker, record, &span);
        if (record < MS__LOAD(maker->table.low))
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
    struct ms__entry *entry = entry_of(ledger, span);
    if (!entry || !has_room(seat)) {
        ms__ledger_count_lost(ledger);
        return;
    }
    span->again = entry->has >> MS_PRE_BW & 1;
    if (!span->again) {
        note(ledger, entry, MS_PRE_BW);
        note(ledger, entry, MS_PEAK_BW);
    }
    push(ledger, seat, span);
}

MS__RARE void go_to(ms_ledger *ledger, struct ms__seat *seat, ms_thread *maker, uint64_t record, uint32_t level)
{
    settle(ledger, seat, level);
    uint32_t base = seat->count, shared;
    while (base && seat->spans[base - 1].kind == MS__SPAN_BACKWARD && seat->spans[base - 1].level == level)
        base--;
    uint32_t length = chain_of(ledger, seat, maker, record, base, &shared);
    while (seat->count > base + shared)
        pop_backward(ledger, seat);
    while (length-- > 0) {
        struct ms__span span = seat->chain[length];
        span.level = level;
        open_backward(ledger, seat, &span);
    }
}

void ms__moment_node_enter(ms_ledger *ledger, ms_thread *thread, ms_thread *maker, uint64_t record)
{
    struct ms__seat *seat = thread->seat;
    uint64_t maker_id = maker ? MS__PEEK(maker->id) : 0;
    if (MS__LIKELY(seat && MS__LOAD(seat->ledger) == ledger && record != MS__NONE)) {
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
        if (MS__LOAD(seat->last_record) == record && seat->last_maker == maker_id &&
            seat->last_level == thread->nodes_open && !atomic_load_explicit(&seat->grown, memory_order_relaxed))
            return;
    }
    ms__lock(&ledger->lock);
    seat = seat_of(ledger, thread);
    if (seat) {
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
        go_to(ledger, seat, maker, record, thread->nodes_open);
        if (seat->count)
            raise_most(ledger, seat, seat->count - 1);
        atomic_store_explicit(&seat->grown, false, memory_order_relaxed);
        seat->last_maker = maker_id;
        seat->last_level = thread->nodes_open;
        MS__STORE(seat->last_record, record);
    }
    ms__unlock(&ledger->lock);
}

/* A node that has no number: it is in no call, and ends none. */
void ms__moment_node_enter_as(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    if (seat && MS__LOAD(seat->ledger) == ledger)
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
}

/* nodes_open no longer counts the node that was left. */
void ms__moment_node_leave(ms_ledger *ledger, ms_thread *thread)
{
    struct ms__seat *seat = thread->seat;
    if (!seat || MS__LOAD(seat->ledger) != ledger)
        return;
    ms__lock(&ledger->lock);
    if (MS__PEEK(ledger->attached) && MS__PEEK(seat->ledger) == ledger) {
        settle(ledger, seat, thread->nodes_open + 1);
        note_left(ledger, seat);
        atomic_store_explicit(&seat->inside, thread->nodes_open, memory_order_relaxed);
    }
    ms__unlock(&ledger->lock);
}

/* ---- backward told without nodes ---- */
void ms_backward_enter(ms_thread *thread, ms_path path)
{
    ms_ledger *ledger = MS__LOAD(thread->watch->ledger);
    if (!ledger)
        return;
    ms__lock(&ledger->lock);
    struct ms__stat *stat = MS__PEEK(ledger->attached) ? stat_at(ledger, path) : NULL;
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
            note(ledger, entry, MS_PRE_BW);
            note(ledger, entry, MS_PEAK_BW);
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
        struct ms__entry *entry = entry_of(ledger, &ledger->loose[at - 1]);
        if (entry)
            note(ledger, entry, MS_POST_BW);
        memmove(&ledger->loose[at - 1], &ledger->loose[at], (ledger->loose_count - at) * sizeof *ledger->loose);
        ledger->loose_count--;
    }
    ms__unlock(&ledger->lock);
}

/* ---- steps ---- */
void ms__moment_step(ms_ledger *ledger, ms_thread *thread, bool left)
{
    ms__lock(&ledger->lock);
    if (MS__PEEK(ledger->attached)) {
        ledger->steps_expected = true;
        ledger->step_left |= left;
        struct ms__seat *seat = thread->seat;
        if (seat && MS__LOAD(seat->ledger) == ledger)
            settle(ledger, seat, thread->nodes_open);
    }
    ms__unlock(&ledger->lock);
}

void ms_ledger_expect_steps(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->steps_expected = true;
    ms__unlock(&ledger->lock);
}

uint64_t ms_ledger_iteration(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    uint64_t iteration = ledger->iteration;
    ms__unlock(&ledger->lock);
    return iteration;
}

/* ---- leaving ---- */
static void stand_up(ms_ledger *ledger, struct ms__seat *seat)
{
    if (atomic_load_explicit(&seat->inside, memory_order_relaxed))
        note_left(ledger, seat);
    while (seat->count) {
        if (seat->spans[seat->count - 1].kind == MS__SPAN_BACKWARD) {
            pop_backward(ledger, seat);
        } else {
            hand_over(ledger, seat, seat->count - 1);
            seat->count--;
            find_top(seat);
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
        ms__unlock(&ledger->lock);
    }
    ms__free(watch, seat->spans);
    ms__free(watch, seat->most);
    ms__free(watch, seat->chain);
    ms__free(watch, seat);
    thread->seat = NULL;
}

/* ---- reading ---- */

/* Bring entries up to date: backwards that are over, peaks of what is still open. */
static void bring_up_to_date(ms_ledger *ledger)
{
    for (struct ms__seat *seat = ledger->seats; seat; seat = seat->next) {
        if (!atomic_load_explicit(&seat->inside, memory_order_relaxed))
            settle(ledger, seat, 0);
        for (uint32_t at = seat->count; at-- > 0;)
            hand_over(ledger, seat, at);
    }
}

static struct ms__entries *entries_for(const ms_ledger *ledger, ms_path path, ms_moment moment, uint32_t *slot)
{
    struct ms__stat *stat = stat_at(ledger, path);
    bool again = moment == MS_PRE_FW_AC || moment == MS_POST_FW_AC;
    *slot = again ? moment - MS_PRE_FW_AC : moment;
    return !stat || moment >= MS_MOMENT_COUNT ? NULL : again ? &stat->again : &stat->forward;
}

size_t ms_moments_count(ms_ledger *ledger, ms_path path, ms_moment moment)
{
    size_t count = 0;
    uint32_t slot;
    ms__lock(&ledger->lock);
    bring_up_to_date(ledger);
    const struct ms__entries *entries = entries_for(ledger, path, moment, &slot);
    for (uint32_t i = 0; entries && i < entries->count; i++)
        count += entries->at[i].has >> slot & 1;
    ms__unlock(&ledger->lock);
    return count;
}

bool ms_moments_at(ms_ledger *ledger, ms_path path, ms_moment moment, size_t index, uint32_t device, ms_sums *sums,
                   uint64_t *when)
{
    bool found = false;
    uint32_t slot;
    ms__lock(&ledger->lock);
    bring_up_to_date(ledger);
    struct ms__entries *entries = entries_for(ledger, path, moment, &slot);
    bool on = entries && entries->read_moment == slot && entries->read_index <= index;
    uint32_t i = on ? entries->read_at : 0;
    size_t left = on ? index - entries->read_index : index;
    for (; !found && entries && i < entries->count; i++) {
        const struct ms__entry *entry = &entries->at[i];
        if (!(entry->has >> slot & 1) || left-- != 0)
            continue;
        found = true;
        entries->read_moment = slot;
        entries->read_index = (uint32_t)index;
        entries->read_at = i;
        *sums = device < entry->devices ? entry->sums[slot * entry->devices + device] : (ms_sums){{0}};
        if (when)
            *when = entry->when[slot];
    }
    ms__unlock(&ledger->lock);
    return found;
}

void ms_call_noted(ms_ledger *ledger, ms_path path, uint64_t *input, uint64_t *output)
{
    ms__lock(&ledger->lock);
    const struct ms__stat *stat = stat_at(ledger, path);
    const struct ms__entry *entry = stat && stat->forward.count ? &stat->forward.at[stat->forward.count - 1] : NULL;
    *input = entry ? entry->input : 0;
    *output = entry ? entry->output : 0;
    ms__unlock(&ledger->lock);
}
