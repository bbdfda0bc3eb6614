/* encoder.c - a ledger's events, as bytes. Everything here runs with ledger->lock held, on the
 * program's own threads: it writes into a page in memory and never waits. */
#include "core/capture/write/writer.h"

#include "core/ledger/block_table.h"

/* It takes its number with it: a reader sees that it is missing even where the key frame after it is damaged. */
static void lose_one(ms_capture *capture)
{
    capture->event++;
    atomic_fetch_add_explicit(&capture->lost, 1, memory_order_relaxed);
}

/* ---- pages ---- */
void ms__capture_seal(ms_capture *capture)
{
    struct ms__page *page = capture->page;
    capture->page = NULL;
    uint8_t *end = capture->at;
    capture->at = capture->last = NULL;
    if (!page)
        return;
    page->head.kind = MS__CHUNK_EVENTS;
    page->head.size = (uint32_t)(end - page->bytes) - MS__CHUNK_HEAD;
    page->head.events = (uint32_t)(capture->event - page->head.event);
    page->head.oldest_claimed = capture->oldest;
    ms__page_give(capture, page);
}

/* ---- events ---- */

/* Something is not in the file that later events need: until a key frame can be made all is lost. */
MS__RARE void break_off(ms_capture *capture)
{
    ms__capture_seal(capture);
    capture->broken = true;
    lose_one(capture);
}

/* The next page. False: there is none, and until a key frame can be made all is lost. */
MS__RARE bool turn_page(ms_capture *capture)
{
    ms__capture_seal(capture);
    struct ms__page *page = capture->broken ? NULL : ms__page_take(capture, MS__PAGE);
    capture->broken = !page;
    if (!page)
        return false;
    page->head = (struct ms__chunk_head){.event = capture->event, .time = capture->time};
    capture->page = page;
    capture->at = page->bytes + MS__CHUNK_HEAD;
    capture->last = capture->at + MS__PAGE - MS__EVENT_MAX;
    capture->slot = capture->device = capture->path = 0;
    capture->oldest = MS__NO_CLAIM;
    if (capture->thread) { /* a page begins with thread 0 */
        *capture->at++ = MS_OP_THREAD;
        capture->at = ms__put_varint(capture->at, capture->thread);
        capture->event++;
    }
    return true;
}

void ms__capture_start(ms_capture *capture)
{
    ms__capture_begin_clock(capture);
    capture->first_step = capture->ledger->step;
    ms__capture_key(capture);
}

/* An event's first byte, and the time if it is known. NULL: the event is lost. */
MS__INLINE uint8_t *begin_at(ms_capture *capture, uint32_t first, uint64_t now)
{
    if (MS__UNLIKELY(capture->at >= capture->last) && !turn_page(capture)) {
        lose_one(capture);
        return NULL;
    }
    uint8_t *at = capture->at;
    if (now <= capture->time) {
        *at++ = (uint8_t)first;
        return at;
    }
    *at++ = (uint8_t)(first | MS__EVENT_TIMED);
    at = ms__put_varint(at, now - capture->time);
    capture->time = now;
    return at;
}

MS__INLINE uint8_t *begin(ms_capture *capture, uint32_t first)
{
    return begin_at(capture, first, ms__microseconds(capture));
}

/* The same for what comes often: the clock is looked at now and then. */
MS__INLINE uint8_t *begin_often(ms_capture *capture, uint32_t first)
{
    bool look = ++capture->untimed % MS__CLOCK_EVERY == 0;
    return begin_at(capture, first, look ? ms__microseconds(capture) : 0);
}

MS__INLINE void finish(ms_capture *capture, uint8_t *at)
{
    capture->at = at;
    capture->event++;
}

MS__INLINE uint8_t *put_relative(uint8_t *at, uint32_t *latest, uint32_t value)
{
    at = ms__put_zigzag(at, (int64_t)value - (int64_t)*latest);
    *latest = value;
    return at;
}

/* ---- threads ---- */
MS__RARE bool grow_places(ms_capture *capture, uint32_t number)
{
    uint32_t room = capture->place_room ? capture->place_room * 2 : 16;
    while (room <= number)
        room *= 2;
    struct ms__place *places = ms__alloc(capture->watch, room * sizeof *places);
    if (!places)
        return false;
    memset(places, 0, room * sizeof *places);
    if (capture->place_room)
        memcpy(places, capture->places, capture->place_room * sizeof *places);
    ms__free(capture->watch, capture->places);
    capture->places = places;
    capture->place_room = room;
    return true;
}

static void write_where(ms_capture *capture, const struct ms__place *place, uint64_t now)
{
    uint8_t *at = begin_at(capture, MS_OP_POSITION | (uint32_t)place->phase << MS__POSITION_PHASE, now);
    if (at)
        finish(capture, put_relative(at, &capture->path, place->path));
}

static void write_thread(ms_capture *capture, uint32_t number, const struct ms__place *place, bool new)
{
    uint8_t *at = begin_often(capture, MS_OP_THREAD | (new ? MS__THREAD_NEW : 0u));
    capture->thread = number;
    if (!at)
        return;
    at = ms__put_varint(at, number);
    finish(capture, new ? ms__put_varint(at, place->id) : at);
}

/* What follows is this thread's. NULL: memory ran out. */
MS__INLINE struct ms__place *turn_to(ms_capture *capture, const ms_thread *thread)
{
    uint32_t number = thread ? thread->number : 0;
    uint64_t id = thread ? MS__PEEK(thread->id) : 0;
    if (MS__UNLIKELY(number >= capture->place_room) && !grow_places(capture, number)) {
        break_off(capture);
        return NULL;
    }
    struct ms__place *place = &capture->places[number];
    bool new = MS__UNLIKELY(!place->known || place->id != id);
    if (new)
        *place = (struct ms__place){.known = true, .id = id};
    if (MS__UNLIKELY(number != capture->thread || new))
        write_thread(capture, number, place, new);
    if (MS__UNLIKELY(new &&thread && thread->depth)) { /* it was somewhere before the capture began */
        place->phase = (uint8_t)ms__phase(thread);
        place->path = ms__path_of(thread);
        write_where(capture, place, ms__microseconds(capture));
    }
    return place;
}

/* The thread left a node some time ago, and went on elsewhere: tell it first. */
static void write_left(ms_capture *capture, struct ms__place *place)
{
    place->left = false;
    if (place->phase == place->left_phase && place->path == place->left_path)
        return;
    place->phase = place->left_phase;
    place->path = place->left_path;
    write_where(capture, place, place->left_at);
}

/* From a node to one of the same module nothing is told; what takes longer in between is found by
 * ms__capture_tell_left. */
static void go_to(ms_capture *capture, const ms_thread *thread, bool to_node)
{
    struct ms__place *place = turn_to(capture, thread);
    if (!place)
        return;
    uint8_t phase = (uint8_t)ms__phase(thread);
    ms_path path = ms__path_of(thread);
    bool same = place->phase == phase && place->path == path;
    if (same && (to_node || !place->left)) {
        place->left = false;
        return;
    }
    uint64_t now = ms__microseconds(capture);
    if (place->left && (!to_node || now - place->left_at > MS__LEFT_US))
        write_left(capture, place);
    place->left = false;
    if (place->phase == phase && place->path == path)
        return;
    place->phase = phase;
    place->path = path;
    write_where(capture, place, now);
}

void ms__capture_position(ms_ledger *ledger, const ms_thread *thread, bool to_node)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        ms__capture_key(capture);
        go_to(capture, thread, to_node);
    }
}

/* The thread is out of a node, or at its end, and nowhere else yet. */
static struct ms__place *leave(ms_capture *capture, const ms_thread *thread, ms_phase phase, ms_path path)
{
    struct ms__place *place = turn_to(capture, thread);
    if (!place)
        return NULL;
    place->left = true;
    place->left_at = ms__microseconds(capture);
    place->left_phase = (uint8_t)phase;
    place->left_path = path;
    return place;
}

/* Mostly another node of the same module comes at once: then nothing is told. */
void ms__capture_left(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        leave(capture, thread, ms__phase(thread), ms__path_of(thread));
}

void ms__capture_gone(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__place *place = leave(capture, thread, MS_IDLE, MS_GLOBAL);
        if (place)
            write_left(capture, place);
    }
}

void ms__capture_tell_left(ms_capture *capture, uint64_t longer_than)
{
    uint64_t now = ms__microseconds(capture);
    for (uint32_t number = 0; number < capture->place_room; number++) {
        struct ms__place *place = &capture->places[number];
        if (!place->left || now - place->left_at < longer_than)
            continue;
        if (number != capture->thread)
            write_thread(capture, number, place, false);
        write_left(capture, place);
    }
}

/* ---- blocks ---- */
MS__RARE bool grow_births(ms_capture *capture)
{
    uint32_t room = capture->ledger->blocks.room;
    if (room < capture->birth_room * 2)
        room = capture->birth_room * 2; /* the ledger's own room grows evenly; this is copied */
    struct ms__birth *births = ms__alloc(capture->watch, room * sizeof *births);
    if (!births)
        return false;
    for (uint32_t i = 0; i < room; i++)
        births[i] = ms__birth_of(capture, i);
    ms__free(capture->watch, capture->births);
    capture->births = births;
    capture->birth_room = room;
    return true;
}

static void add(ms_capture *capture, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                uint32_t number)
{
    bool room = MS__LIKELY(number < capture->birth_room) || grow_births(capture);
    if (room) /* also if the event is lost: a key frame tells of the block */
        capture->births[number] =
            (struct ms__birth){capture->event, capture->time, (uint32_t)capture->ledger->step, (uint8_t)phase};
    else
        break_off(capture);
    struct ms__place *place = turn_to(capture, thread);
    if (MS__UNLIKELY(!place || !room))
        return;
    if (MS__UNLIKELY(place->left))
        write_left(capture, place);
    uint32_t usual = place->phase == MS_BACKWARD || place->phase == MS_OPTIMIZER ? MS_TEMP : MS_ACTIVATION;
    bool explicit = phase != place->phase || block->path != place->path || block->category != usual || block->outside;
    uint8_t *at = begin_often(capture, MS_OP_ADD | (explicit ? MS__ADD_EXPLICIT : 0u));
    if (!at)
        return;
    capture->births[number].since_event = capture->event;
    capture->births[number].time = capture->time;
    uint8_t *first = capture->at;
    at = put_relative(at, &capture->slot, number);
    at = ms__put_varint(at, block->bytes);
    if (block->device != capture->device) {
        *first |= MS__ADD_DEVICE;
        at = ms__put_varint(at, capture->device = block->device);
    }
    if (explicit) {
        *at++ = ms__attributes(block->category, block->outside, phase);
        at = put_relative(at, &capture->path, block->path);
    }
    finish(capture, at);
}

void ms__capture_add(ms_ledger *ledger, const ms_thread *thread, ms_phase phase, const struct ms__block *block,
                     uint32_t number)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next)
        add(capture, thread, phase, block, number);
}

/* The block is still there, so that a key frame may come before it. An add is told when the block is there already. */
void ms__capture_drop(ms_ledger *ledger, uint32_t number)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        ms__capture_key(capture);
        uint8_t *at = begin_often(capture, MS_OP_DROP);
        if (at)
            finish(capture, put_relative(at, &capture->slot, number));
    }
}

void ms__capture_claim(ms_ledger *ledger, uint32_t number, uint32_t category, ms_path path, bool from_now_on)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        uint64_t since_event = ms__birth_of(capture, number).since_event;
        uint8_t *at = begin_often(capture, MS_OP_CLAIM | (from_now_on ? MS__CLAIM_FROM_NOW_ON : 0u));
        if (from_now_on && number < capture->birth_room)
            capture->births[number].since_event = capture->event;
        if (!at)
            continue;
        at = put_relative(at, &capture->slot, number);
        *at++ = ms__attributes(category, false, 0);
        at = put_relative(at, &capture->path, path);
        at = ms__put_varint(at, capture->event - since_event);
        if (!from_now_on && since_event < capture->oldest)
            capture->oldest = since_event;
        finish(capture, at);
    }
}

/* ---- the rest ---- */
void ms__capture_step(ms_ledger *ledger)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        uint8_t *at = begin(capture, MS_OP_STEP);
        if (at)
            finish(capture, ms__put_varint(at, ledger->step));
    }
}

void ms__capture_optimizer_step(ms_ledger *ledger, const ms_thread *thread)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        turn_to(capture, thread);
        capture->optimizer_steps++;
        uint8_t *at = begin(capture, MS_OP_OPTIMIZER_STEP);
        if (at)
            finish(capture, at);
    }
}

void ms_ledger_reserved(ms_ledger *ledger, uint32_t device, uint64_t bytes)
{
    if (device >= MS_MAX_DEVICES)
        return;
    ms__lock(&ledger->lock);
    ledger->reserved[device] = bytes;
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        if (capture->reserved[device] == bytes)
            continue;
        capture->reserved[device] = bytes;
        uint8_t *at = begin_often(capture, MS_OP_RESERVED);
        if (at)
            finish(capture, ms__put_varint(ms__put_varint(at, capture->device = device), bytes));
    }
    ms__unlock(&ledger->lock);
}

void ms__capture_oom(ms_ledger *ledger, const ms_thread *thread, const ms_oom *oom)
{
    for (ms_capture *capture = MS__PEEK(ledger->captures); capture; capture = capture->next) {
        struct ms__place *place = turn_to(capture, thread);
        if (place && place->left)
            write_left(capture, place);
        uint8_t *at = begin(capture, MS_OP_OOM);
        if (!at)
            continue;
        at = ms__put_varint(at, capture->device = oom->device);
        at = ms__put_varint(at, oom->requested);
        at = ms__put_varint(at, oom->allocated);
        finish(capture, ms__put_varint(at, oom->reserved));
        if (!capture->oom_time || capture->time - capture->oom_time > UINT64_C(1000) * MS__NAP_MS)
            ms__capture_seal(capture); /* nobody knows how much longer the program lives */
        capture->oom_time = capture->time;
    }
}
