/* root_inputs.c - reads the shapes of the inputs of root calls that a capture has. */
#include "core/capture/read/reader.h"

int ms__inputs_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    return ms__reader_list_chunk(reader, &reader->inputs, &reader->inputs_count, &reader->inputs_room, at, head);
}

struct found_inputs {
    ms_root_inputs all;
    size_t call_room, input_room;
    struct {
        uint32_t first, count;
    } lists[MS__INPUT_LISTS]; /* of this chunk */
    uint32_t list_count;
};

static bool read_input(struct ms__bytes *bytes, ms_input *input)
{
    uint64_t head = ms__get_varint(bytes), element = head & ((1u << MS__ELEMENT_BITS) - 1);
    *input = (ms_input){.element = element < MS_ELEMENT_COUNT ? (ms_element)element : MS_ELEMENT_OTHER};
    if (bytes->bad || head >> MS__ELEMENT_BITS > MS_INPUT_DIMS)
        return false;
    input->dim_count = (uint32_t)(head >> MS__ELEMENT_BITS);
    for (uint32_t dim = 0; dim < input->dim_count; dim++)
        input->dims[dim] = ms__get_varint(bytes);
    return !bytes->bad;
}

/* MS_EFORMAT: it is no list of inputs. */
static int read_list(ms_reader *reader, struct ms__bytes *bytes, struct found_inputs *found)
{
    uint64_t count = ms__get_varint(bytes);
    size_t first = found->all.input_count;
    if (bytes->bad || count > MS_INPUTS || first > UINT32_MAX - MS_INPUTS)
        return MS_EFORMAT;
    for (size_t i = 0; i < count; i++) {
        ms_input *inputs =
            ms__reader_grow(reader, found->all.inputs, &found->input_room, first + i + 1, sizeof *inputs);
        if (!inputs)
            return MS_ENOMEM;
        found->all.inputs = inputs;
        if (!read_input(bytes, &inputs[first + i]))
            return MS_EFORMAT;
    }
    found->all.input_count = first + (size_t)count;
    found->lists[found->list_count].first = (uint32_t)first;
    found->lists[found->list_count++].count = (uint32_t)count;
    return MS_OK;
}

/* Decode the root calls of one chunk, up to the first that is invalid. */
static int decode_inputs(ms_reader *reader, struct ms__bytes bytes, struct found_inputs *found)
{
    uint64_t step = 0;
    found->list_count = 0;
    while (bytes.at < bytes.end) {
        uint64_t later = ms__get_varint(&bytes), number = ms__get_varint(&bytes);
        if (bytes.bad || number > found->list_count || number == MS__INPUT_LISTS || later > UINT64_MAX - step)
            break;
        int error = number == found->list_count ? read_list(reader, &bytes, found) : MS_OK;
        if (error)
            return error == MS_EFORMAT ? MS_OK : error;
        ms_root_call *calls =
            ms__reader_grow(reader, found->all.calls, &found->call_room, found->all.count + 1, sizeof *calls);
        if (!calls)
            return MS_ENOMEM;
        found->all.calls = calls;
        step += later;
        calls[found->all.count++] = (ms_root_call){step, found->lists[number].first, found->lists[number].count};
    }
    return MS_OK;
}

int ms_root_inputs_read(ms_reader *reader, ms_root_inputs *inputs)
{
    struct ms__buffer buffer = {0};
    struct found_inputs found = {.call_room = 0};
    int error = MS_OK;
    for (size_t i = 0; !error && i < reader->inputs_count; i++) {
        struct ms__chunk *chunk = &reader->inputs[i];
        error = ms__reader_read_payload(reader, chunk, &buffer);
        if (!error)
            error = decode_inputs(reader, (struct ms__bytes){.at = buffer.bytes, .end = buffer.bytes + chunk->size},
                                  &found);
        else if (error == MS_EFORMAT)
            error = MS_OK; /* a damaged chunk is passed over */
    }
    ms__reader_free(reader, buffer.bytes);
    if (error)
        ms_root_inputs_free(reader, &found.all);
    else
        *inputs = found.all;
    return error;
}

void ms_root_inputs_free(ms_reader *reader, ms_root_inputs *inputs)
{
    ms__reader_free(reader, inputs->calls);
    ms__reader_free(reader, inputs->inputs);
    *inputs = (ms_root_inputs){.count = 0};
}
