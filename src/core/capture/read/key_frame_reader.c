/* key_frame_reader.c - loads a state from a key frame.
 *
 * A key frame is read twice, so that a damaged one changes nothing: first with `state` NULL, which only checks it. */
#include "core/capture/read/reader.h"

enum { MIN_BLOCK_BYTES = 8 }; /* a block takes at least so many bytes of a key frame */

static int load_threads(const ms_reader *reader, struct ms__state *state, struct ms__bytes *bytes)
{
    for (uint64_t left = ms__get_varint(bytes); left; left--) {
        uint64_t number = ms__get_varint(bytes), id = ms__get_varint(bytes);
        uint64_t phase = ms__get_varint(bytes), path = ms__get_varint(bytes);
        if (bytes->bad || number > UINT32_MAX || phase > MS__PHASE_MAX || path > UINT32_MAX)
            return MS_EFORMAT;
        struct ms__captured_thread thread = {.id = id,
                                             .number = (uint32_t)number,
                                             .path = ms__checked_path(reader, (ms_path)path),
                                             .phase = ms__known_phase((uint32_t)phase)};
        if (state && ms__state_set_thread(reader, state, &thread) != MS_OK)
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int load_devices(ms_reader *reader, struct ms__state *state, struct ms__bytes *bytes)
{
    for (uint64_t left = ms__get_varint(bytes); left; left--) {
        uint64_t device = ms__get_varint(bytes), reserved = ms__get_varint(bytes);
        if (bytes->bad || device >= MS_MAX_DEVICES)
            return MS_EFORMAT;
        if (!state)
            continue;
        state->reserved[device] = reserved;
        ms__reader_note_device(reader, (uint32_t)device);
    }
    return MS_OK;
}

/* `step`: that of the key frame. `*lowest_slot`: the lowest slot that the block may have; it is advanced. */
static bool decode_block(const ms_reader *reader, const struct ms__chunk *chunk, uint64_t step, struct ms__bytes *bytes,
                         uint64_t *lowest_slot, ms_captured_block *block)
{
    uint64_t skipped = ms__get_varint(bytes), size = ms__get_varint(bytes), device = ms__get_varint(bytes);
    uint8_t attributes = ms__get_byte(bytes);
    uint64_t path = ms__get_varint(bytes), age = ms__get_varint(bytes);
    uint64_t steps_ago = ms__get_varint(bytes), micros_ago = ms__get_varint(bytes);
    if (bytes->bad || skipped > MS__SLOT_MAX || *lowest_slot + skipped > MS__SLOT_MAX || device >= MS_MAX_DEVICES ||
        !ms__attributes_are_valid(attributes) || path > UINT32_MAX || age > chunk->event || steps_ago > step ||
        micros_ago > chunk->time)
        return false;
    *block = (ms_captured_block){.bytes = size,
                                 .since_event = chunk->event - age,
                                 .made_at = chunk->time - micros_ago,
                                 .step = step - steps_ago,
                                 .slot = (uint32_t)(*lowest_slot + skipped),
                                 .device = (uint32_t)device,
                                 .path = ms__checked_path(reader, (ms_path)path),
                                 .category = attributes & MS__ATTRIBUTES_CATEGORY,
                                 .phase = ms__known_phase(attributes >> MS__ATTRIBUTES_PHASE),
                                 .outside = attributes & MS__ATTRIBUTES_OUTSIDE};
    *lowest_slot = block->slot + UINT64_C(1);
    return true;
}

static int load_blocks(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk, uint64_t step,
                       struct ms__bytes *bytes, struct ms__stack_decoder *stacks)
{
    uint64_t total[MS_MAX_DEVICES] = {0}, lowest_slot = 0, count = ms__get_varint(bytes);
    if (count > (uint64_t)(bytes->end - bytes->at) / MIN_BLOCK_BYTES)
        return MS_EFORMAT;
    if (state && count && !ms__state_reserve_blocks(reader, state, count))
        return MS_ENOMEM;
    for (; count; count--) {
        ms_captured_block block;
        if (!decode_block(reader, chunk, step, bytes, &lowest_slot, &block) ||
            block.bytes > INT64_MAX - total[block.device])
            return MS_EFORMAT;
        total[block.device] += block.bytes;
        block.stack = state ? ms__stack_decoder_next(reader, stacks) : (ms_stack)MS_STACK_NONE;
        if (state && ms__state_add_block(reader, state, &block) != MS_OK)
            return MS_ENOMEM;
    }
    return MS_OK;
}

static int load_or_check(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk,
                         const uint8_t *payload, struct ms__stack_decoder *stacks)
{
    struct ms__bytes bytes = {.at = payload, .end = payload + chunk->size};
    uint64_t step = ms__get_varint(&bytes), optimizer_steps = ms__get_varint(&bytes), lost = ms__get_varint(&bytes);
    if (state) {
        state->step = step;
        state->optimizer_steps = optimizer_steps;
        state->lost = lost;
    }
    int error = load_threads(reader, state, &bytes);
    if (!error)
        error = load_devices(reader, state, &bytes);
    if (!error)
        error = load_blocks(reader, state, chunk, step, &bytes, stacks);
    if (!error && (bytes.bad || bytes.at != bytes.end))
        error = MS_EFORMAT;
    return error;
}

int ms__state_load_key_frame(ms_reader *reader, struct ms__state *state, const struct ms__chunk *chunk,
                             const uint8_t *payload, struct ms__stack_decoder *stacks)
{
    int error = load_or_check(reader, NULL, chunk, payload, NULL);
    if (error)
        return error;
    ms__state_clear(state);
    return load_or_check(reader, state, chunk, payload, stacks);
}
