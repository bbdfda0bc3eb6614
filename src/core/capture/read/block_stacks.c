/* block_stacks.c - which stack made each block. A chunk of events, or a key frame, may have a chunk of stacks with the
 * same event. What is damaged or missing there is MS_STACK_NONE; nothing else depends on it. */
#include "core/capture/read/reader.h"

int ms__stacks_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    struct ms__stack_chunks *list = &reader->stack_chunks[head->kind == MS__CHUNK_KEY_STACKS];
    if (list->count && list->at[list->count - 1].event > head->event)
        return MS_EFORMAT;
    struct ms__chunk *chunks = ms__reader_grow(reader, list->at, &list->room, list->count + 1, sizeof *chunks);
    if (!chunks)
        return MS_ENOMEM;
    list->at = chunks;
    list->at[list->count++] =
        (struct ms__chunk){.at = at, .event = head->event, .time = head->time, .size = head->size, .crc = head->crc};
    return MS_OK;
}

static struct ms__chunk *find_stack_chunk(const struct ms__stack_chunks *list, uint64_t event)
{
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (list->at[middle].event < event)
            low = middle + 1;
        else
            high = middle;
    }
    return low < list->count && list->at[low].event == event ? &list->at[low] : NULL;
}

int ms__stack_decoder_open(ms_reader *reader, struct ms__stack_decoder *decoder, const struct ms__chunk *of)
{
    decoder->bytes = (struct ms__bytes){0};
    decoder->run = 0;
    struct ms__chunk *chunk = find_stack_chunk(&reader->stack_chunks[of->is_key_frame], of->event);
    if (!chunk || chunk->damaged)
        return MS_OK;
    if (!decoder->history)
        decoder->history = ms__reader_alloc(reader, sizeof *decoder->history);
    int error = decoder->history ? ms__reader_read_payload(reader, chunk, &decoder->buffer) : MS_ENOMEM;
    if (error)
        return error == MS_EFORMAT ? MS_OK : error;
    *decoder->history = (struct ms__stack_history){0};
    decoder->bytes = (struct ms__bytes){.at = decoder->buffer.bytes, .end = decoder->buffer.bytes + chunk->size};
    return MS_OK;
}

void ms__stack_decoder_close(const ms_reader *reader, struct ms__stack_decoder *decoder)
{
    ms__reader_free(reader, decoder->history);
    ms__reader_free(reader, decoder->buffer.bytes);
}

ms_stack ms__stack_decoder_next(const ms_reader *reader, struct ms__stack_decoder *decoder)
{
    if (!decoder->run && decoder->bytes.at == decoder->bytes.end)
        return MS_STACK_NONE;
    ms_stack *prediction = ms__stack_prediction(decoder->history), stack = *prediction;
    if (decoder->run) {
        decoder->run--;
    } else {
        uint64_t code = ms__get_varint(&decoder->bytes);
        if (decoder->bytes.bad)
            return MS_STACK_NONE;
        if (code & 1)
            decoder->run = code >> 1;
        else
            stack = code >> 1 < reader->stack_count || code >> 1 == MS_STACK_LOST ? (ms_stack)(code >> 1) : 0;
    }
    ms__stack_follow(decoder->history, prediction, stack);
    return stack;
}

/* ---- the table ---- */

uint32_t ms_reader_stacks(const ms_reader *reader)
{
    return reader->stack_count > MS_STACK_LOST ? (uint32_t)reader->stack_count : MS_STACK_LOST + 1u;
}

bool ms_reader_stack(const ms_reader *reader, ms_stack stack, ms_frame *frame)
{
    if (stack <= MS_STACK_LOST || stack >= reader->stack_count || !reader->stacks[stack].function)
        return false;
    *frame = reader->stacks[stack];
    return true;
}

bool ms_reader_source(const ms_reader *reader, size_t index, ms_source *source)
{
    if (index >= reader->source_count)
        return false;
    *source = reader->sources[index];
    return true;
}
