/* operators.c - reads the operators that a capture has. */
#include "core/capture/read/reader.h"

#include <string.h>

int ms__operators_list_chunk(ms_reader *reader, uint64_t at, const struct ms__chunk_head *head)
{
    return ms__reader_list_chunk(reader, &reader->operators, &reader->operator_count, &reader->operator_room, at, head);
}

struct found_operators {
    ms_operators list;
    size_t room, name_room;
    uint32_t names[MS__OPERATOR_NAMES]; /* of this chunk: indices of list.names */
    uint32_t name_count;
};

static int add_name(ms_reader *reader, struct found_operators *found, const ms_operator_name *name)
{
    size_t i = 0;
    while (i < found->list.name_count && strcmp(found->list.names[i].text, name->text) != 0)
        i++;
    if (i == found->list.name_count) {
        ms_operator_name *names = ms__reader_grow(reader, found->list.names, &found->name_room, i + 1, sizeof *names);
        if (!names)
            return MS_ENOMEM;
        found->list.names = names;
        names[found->list.name_count++] = *name;
    }
    found->names[found->name_count++] = (uint32_t)i;
    return MS_OK;
}

/* MS_EFORMAT: it is no name. */
static int read_name(ms_reader *reader, struct ms__bytes *bytes, struct found_operators *found)
{
    ms_operator_name name = {.flags = 0};
    uint64_t length = ms__get_varint(bytes);
    if (bytes->bad || length > MS_OPERATOR_NAME_MAX || length > (uint64_t)(bytes->end - bytes->at) ||
        memchr(bytes->at, 0, (size_t)length))
        return MS_EFORMAT;
    memcpy(name.text, bytes->at, (size_t)length);
    bytes->at += length;
    uint64_t flags = ms__get_varint(bytes);
    name.flags = (uint32_t)(flags & UINT32_MAX);
    return bytes->bad ? MS_EFORMAT : add_name(reader, found, &name);
}

/* Decode the operators of one chunk, up to the first that is invalid. */
static int decode_operators(ms_reader *reader, const struct ms__chunk *chunk, struct ms__bytes bytes,
                            struct found_operators *found)
{
    uint64_t end = chunk->event;
    found->name_count = 0;
    while (bytes.at < bytes.end) {
        uint64_t name = ms__get_varint(&bytes);
        if (bytes.bad || name > found->name_count || name == MS__OPERATOR_NAMES)
            break;
        int error = name == found->name_count ? read_name(reader, &bytes, found) : MS_OK;
        if (error)
            return error == MS_EFORMAT ? MS_OK : error;
        uint32_t index = found->names[name];
        uint64_t later = ms__get_varint(&bytes), events = ms__get_varint(&bytes), thread = ms__get_varint(&bytes);
        uint64_t nanoseconds = ms__get_varint(&bytes);
        uint64_t slot = found->list.names[index].flags & MS_OPERATOR_IN_PLACE ? ms__get_varint(&bytes) : 0;
        if (bytes.bad || later > reader->events || end + later > reader->events || events > end + later ||
            thread > UINT32_MAX || slot > (uint64_t)MS__SLOT_MAX + 1)
            break;
        end += later;
        ms_operator_run *runs =
            ms__reader_grow(reader, found->list.runs, &found->room, found->list.count + 1, sizeof *runs);
        if (!runs)
            return MS_ENOMEM;
        found->list.runs = runs;
        runs[found->list.count++] = (ms_operator_run){.begin = end - events,
                                                      .end = end,
                                                      .nanoseconds = nanoseconds,
                                                      .thread = (uint32_t)thread,
                                                      .name = index,
                                                      .slot = slot ? (uint32_t)slot - 1 : MS_OPERATOR_NO_SLOT};
    }
    return MS_OK;
}

int ms_operators_read(ms_reader *reader, ms_operators *operators)
{
    struct ms__buffer buffer = {0};
    struct found_operators found = {.room = 0};
    int error = MS_OK;
    for (size_t i = 0; !error && i < reader->operator_count; i++) {
        struct ms__chunk *chunk = &reader->operators[i];
        error = ms__reader_read_payload(reader, chunk, &buffer);
        if (!error)
            error = decode_operators(reader, chunk,
                                     (struct ms__bytes){.at = buffer.bytes, .end = buffer.bytes + chunk->size}, &found);
        else if (error == MS_EFORMAT)
            error = MS_OK; /* a damaged chunk is passed over */
    }
    ms__reader_free(reader, buffer.bytes);
    if (error)
        ms_operators_free(reader, &found.list);
    else
        *operators = found.list;
    return error;
}

void ms_operators_free(ms_reader *reader, ms_operators *operators)
{
    ms__reader_free(reader, operators->runs);
    ms__reader_free(reader, operators->names);
    *operators = (ms_operators){.count = 0};
}
