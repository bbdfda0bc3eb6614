/* decoder.c - decodes the events of a chunk one after the other. It checks that each is well formed;
 * state.c checks whether it is possible at its moment. */
#include "core/capture/read/reader.h"

void ms__decoder_open(struct ms__decoder *decoder, const struct ms__chunk *chunk, const uint8_t *payload)
{
    *decoder = (struct ms__decoder){.bytes = {.at = payload, .end = payload + chunk->size},
                                    .number = chunk->event,
                                    .time = chunk->time,
                                    .left = chunk->events};
}

/* A number that is written relative to the latest one of its kind. False: it exceeds `limit`. */
MS__INLINE bool decode_relative(struct ms__bytes *bytes, uint32_t *latest, uint32_t limit)
{
    uint64_t value = *latest + (uint64_t)ms__get_zigzag(bytes);
    *latest = (uint32_t)value;
    return value <= limit;
}

MS__INLINE bool decode_slot(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    bool valid = decode_relative(&decoder->bytes, &decoder->slot, MS__SLOT_MAX);
    decoded->event.slot = decoder->slot;
    return valid;
}

MS__INLINE bool decode_path(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    bool valid = decode_relative(&decoder->bytes, &decoder->path, UINT32_MAX);
    decoded->event.path = decoder->path;
    return valid;
}

MS__INLINE bool decode_device(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    uint64_t device = ms__get_varint(&decoder->bytes);
    decoder->device = decoded->event.device = (uint32_t)device;
    return device < MS_MAX_DEVICES;
}

MS__INLINE bool decode_add(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    bool valid = decode_slot(decoder, decoded);
    decoded->event.bytes = ms__get_varint(&decoder->bytes);
    decoded->event.device = decoder->device;
    if (decoded->bits & MS__ADD_DEVICE)
        valid &= decode_device(decoder, decoded);
    if (decoded->bits & MS__ADD_EXPLICIT) {
        decoded->attributes = ms__get_byte(&decoder->bytes);
        valid &= ms__attributes_are_valid(decoded->attributes) && decode_path(decoder, decoded);
    }
    return valid && !(decoded->bits & ~(MS__ADD_DEVICE | MS__ADD_EXPLICIT));
}

static bool decode_claim(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    bool valid = decode_slot(decoder, decoded);
    decoded->attributes = ms__get_byte(&decoder->bytes);
    valid &= decode_path(decoder, decoded);
    decoded->age = ms__get_varint(&decoder->bytes);
    decoded->event.from_now_on = decoded->bits & MS__CLAIM_FROM_NOW_ON;
    return valid && decoded->attributes < MS_CATEGORY_COUNT && decoded->age <= decoded->event.number &&
           !(decoded->bits & ~MS__CLAIM_FROM_NOW_ON);
}

static bool decode_thread(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    uint64_t number = ms__get_varint(&decoder->bytes);
    decoder->thread = (uint32_t)number;
    if (decoded->bits & MS__THREAD_NEW)
        decoded->event.bytes = ms__get_varint(&decoder->bytes);
    return number <= UINT32_MAX && !(decoded->bits & ~MS__THREAD_NEW);
}

static bool decode_oom(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    bool valid = decode_device(decoder, decoded);
    decoded->event.bytes = ms__get_varint(&decoder->bytes);
    decoded->event.allocated = ms__get_varint(&decoder->bytes);
    decoded->event.reserved = ms__get_varint(&decoder->bytes);
    return valid && !decoded->bits;
}

MS__INLINE bool decode_operands(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    switch (decoded->event.op) {
    case MS_OP_ADD:
        return decode_add(decoder, decoded);
    case MS_OP_DROP:
        return decode_slot(decoder, decoded) && !decoded->bits;
    case MS_OP_CLAIM:
        return decode_claim(decoder, decoded);
    case MS_OP_POSITION:
        decoded->event.phase = ms__known_phase(decoded->bits >> MS__POSITION_PHASE);
        return decode_path(decoder, decoded);
    case MS_OP_THREAD:
        return decode_thread(decoder, decoded);
    case MS_OP_STEP:
        decoded->event.bytes = ms__get_varint(&decoder->bytes);
        return !decoded->bits;
    case MS_OP_OPTIMIZER_STEP:
        return !decoded->bits;
    case MS_OP_RESERVED:
        if (!decode_device(decoder, decoded))
            return false;
        decoded->event.bytes = ms__get_varint(&decoder->bytes);
        return !decoded->bits;
    case MS_OP_OOM:
        return decode_oom(decoder, decoded);
    default:
        return false;
    }
}

bool ms__decoder_next(struct ms__decoder *decoder, struct ms__decoded_event *decoded)
{
    uint8_t first = ms__get_byte(&decoder->bytes);
    uint64_t delta = first & MS__EVENT_TIMED ? ms__get_varint(&decoder->bytes) : 0;
    if (delta > UINT64_MAX - decoder->time)
        return false;
    *decoded = (struct ms__decoded_event){
        .event = {.number = decoder->number, .time = decoder->time + delta, .op = (ms_op)(first & MS__EVENT_OP)},
        .bits = first & ~(MS__EVENT_OP | MS__EVENT_TIMED)};
    if (!decode_operands(decoder, decoded) || decoder->bytes.bad)
        return false;
    decoded->event.thread = decoder->thread;
    decoder->time += delta;
    decoder->number++;
    decoder->left--;
    /* The last event must end where the payload ends. */
    return decoder->left || decoder->bytes.at == decoder->bytes.end;
}
