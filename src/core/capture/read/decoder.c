/* decoder.c - events as they are written, one after the other. It knows what an event says, and
 * nothing of whether that can be. */
#include "core/capture/read/reader.h"

void ms__scan_open(struct ms__scan *scan, const struct ms__chunk *chunk, const uint8_t *payload)
{
    *scan = (struct ms__scan){.bytes = {.at = payload, .end = payload + chunk->size},
                              .number = chunk->event,
                              .time = chunk->time,
                              .left = chunk->events};
}

/* The word's latest number plus what is written; false if it is beyond `most`. */
MS__INLINE bool get_relative(struct ms__bytes *bytes, uint32_t *latest, uint32_t most)
{
    uint64_t value = *latest + (uint64_t)ms__get_zigzag(bytes);
    *latest = (uint32_t)value;
    return value <= most;
}

MS__INLINE bool get_slot(struct ms__scan *scan, struct ms__raw *raw)
{
    bool good = get_relative(&scan->bytes, &scan->slot, MS__SLOT_MAX);
    raw->event.slot = scan->slot;
    return good;
}

MS__INLINE bool get_path(struct ms__scan *scan, struct ms__raw *raw)
{
    bool good = get_relative(&scan->bytes, &scan->path, UINT32_MAX);
    raw->event.path = scan->path;
    return good;
}

MS__INLINE bool get_device(struct ms__scan *scan, struct ms__raw *raw)
{
    uint64_t device = ms__get_varint(&scan->bytes);
    scan->device = raw->event.device = (uint32_t)device;
    return device < MS_MAX_DEVICES;
}

MS__INLINE bool get_add(struct ms__scan *scan, struct ms__raw *raw)
{
    bool good = get_slot(scan, raw);
    raw->event.bytes = ms__get_varint(&scan->bytes);
    raw->event.device = scan->device;
    if (raw->bits & MS__ADD_DEVICE)
        good &= get_device(scan, raw);
    if (raw->bits & MS__ADD_EXPLICIT) {
        raw->what = ms__get_byte(&scan->bytes);
        good &= ms__is_what(raw->what) && get_path(scan, raw);
    }
    return good && !(raw->bits & ~(MS__ADD_DEVICE | MS__ADD_EXPLICIT));
}

static bool get_claim(struct ms__scan *scan, struct ms__raw *raw)
{
    bool good = get_slot(scan, raw);
    raw->what = ms__get_byte(&scan->bytes);
    good &= get_path(scan, raw);
    raw->age = ms__get_varint(&scan->bytes);
    raw->event.from_now_on = raw->bits & MS__CLAIM_FROM_NOW_ON;
    return good && raw->what < MS_CATEGORY_COUNT && raw->age <= raw->event.number &&
           !(raw->bits & ~MS__CLAIM_FROM_NOW_ON);
}

static bool get_thread(struct ms__scan *scan, struct ms__raw *raw)
{
    uint64_t number = ms__get_varint(&scan->bytes);
    scan->thread = (uint32_t)number;
    if (raw->bits & MS__THREAD_NEW)
        raw->event.bytes = ms__get_varint(&scan->bytes);
    return number <= UINT32_MAX && !(raw->bits & ~MS__THREAD_NEW);
}

static bool get_oom(struct ms__scan *scan, struct ms__raw *raw)
{
    bool good = get_device(scan, raw);
    raw->event.bytes = ms__get_varint(&scan->bytes);
    raw->event.allocated = ms__get_varint(&scan->bytes);
    raw->event.reserved = ms__get_varint(&scan->bytes);
    return good && !raw->bits;
}

MS__INLINE bool get_operands(struct ms__scan *scan, struct ms__raw *raw)
{
    switch (raw->event.op) {
    case MS_OP_ADD:
        return get_add(scan, raw);
    case MS_OP_DROP:
        return get_slot(scan, raw) && !raw->bits;
    case MS_OP_CLAIM:
        return get_claim(scan, raw);
    case MS_OP_POSITION:
        raw->event.phase = raw->bits >> MS__POSITION_PHASE;
        return get_path(scan, raw) && raw->event.phase <= MS_OPTIMIZER;
    case MS_OP_THREAD:
        return get_thread(scan, raw);
    case MS_OP_STEP:
        raw->event.bytes = ms__get_varint(&scan->bytes);
        return !raw->bits;
    case MS_OP_OPTIMIZER_STEP:
        return !raw->bits;
    case MS_OP_RESERVED:
        if (!get_device(scan, raw))
            return false;
        raw->event.bytes = ms__get_varint(&scan->bytes);
        return !raw->bits;
    case MS_OP_OOM:
        return get_oom(scan, raw);
    default:
        return false;
    }
}

bool ms__scan_next(struct ms__scan *scan, struct ms__raw *raw)
{
    uint8_t first = ms__get_byte(&scan->bytes);
    uint64_t later = first & MS__EVENT_TIMED ? ms__get_varint(&scan->bytes) : 0;
    if (later > UINT64_MAX - scan->time)
        return false;
    *raw = (struct ms__raw){
        .event = {.number = scan->number, .time = scan->time + later, .op = (ms_op)(first & MS__EVENT_OP)},
        .bits = first & ~(MS__EVENT_OP | MS__EVENT_TIMED)};
    if (!get_operands(scan, raw) || scan->bytes.bad)
        return false;
    raw->event.thread = scan->thread;
    scan->time += later;
    scan->number++;
    scan->left--;
    /* The last event and the payload end together. */
    return scan->left || scan->bytes.at == scan->bytes.end;
}
