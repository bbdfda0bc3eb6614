/* protobuf.c - builds a message in the wire format of Protocol Buffers. */
#include "export/perfetto_packets.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT, LENGTH = 2 };   /* wire types */
enum { MAX_FIELD_BYTES = 16 }; /* of a number with its tag */
enum { FIRST_ROOM = 4096, MAX_VARINT_BYTES = 10 };

bool ms__export_proto_open(ms__export_proto *proto)
{
    *proto = (ms__export_proto){.bytes = malloc(FIRST_ROOM), .room = FIRST_ROOM};
    return proto->bytes != NULL;
}

void ms__export_proto_close(ms__export_proto *proto)
{
    free(proto->bytes);
    *proto = (ms__export_proto){0};
}

/* Return where `size` bytes may be written. Out of memory: the message is failed, and is overwritten from its start,
 * since it is never read; NULL if that is too small. */
static uint8_t *reserve_bytes(ms__export_proto *proto, size_t size)
{
    if (proto->room - proto->size >= size)
        return proto->bytes + proto->size;
    size_t wanted = proto->room * 2 > proto->size + size ? proto->room * 2 : proto->size + size;
    uint8_t *grown = wanted > size ? realloc(proto->bytes, wanted) : NULL;
    if (grown) {
        proto->bytes = grown;
        proto->room = wanted;
        return grown + proto->size;
    }
    proto->failed = true;
    proto->size = 0;
    return size <= proto->room ? proto->bytes : NULL;
}

static uint8_t *write_varint(uint8_t *to, uint64_t number)
{
    for (; number > 0x7F; number >>= 7)
        *to++ = (uint8_t)(number | 0x80);
    *to++ = (uint8_t)number;
    return to;
}

static uint8_t *write_tag(uint8_t *to, uint32_t field, uint32_t type)
{
    return write_varint(to, (uint64_t)field << 3 | type);
}

void ms__export_proto_number(ms__export_proto *proto, uint32_t field, uint64_t number)
{
    uint8_t *to = reserve_bytes(proto, MAX_FIELD_BYTES);
    proto->size = (size_t)(write_varint(write_tag(to, field, VARINT), number) - proto->bytes);
}

static void append_text(ms__export_proto *proto, ms_export_text text)
{
    uint8_t *to = text.size ? reserve_bytes(proto, text.size) : NULL;
    if (!to)
        return;
    memcpy(to, text.bytes, text.size);
    proto->size += text.size;
}

void ms__export_proto_texts(ms__export_proto *proto, uint32_t field, ms_export_text a, ms_export_text b,
                            ms_export_text c)
{
    uint8_t *to = reserve_bytes(proto, MAX_FIELD_BYTES);
    proto->size = (size_t)(write_varint(write_tag(to, field, LENGTH), a.size + b.size + c.size) - proto->bytes);
    append_text(proto, a);
    append_text(proto, b);
    append_text(proto, c);
}

void ms__export_proto_text(ms__export_proto *proto, uint32_t field, ms_export_text text)
{
    ms__export_proto_texts(proto, field, text, (ms_export_text){0}, (ms_export_text){0});
}

/* One byte is left for the length, which is enough for most messages; ms__export_proto_close_message moves a longer
 * one.
 */
size_t ms__export_proto_open_message(ms__export_proto *proto, uint32_t field)
{
    uint8_t *to = write_tag(reserve_bytes(proto, MAX_FIELD_BYTES), field, LENGTH);
    proto->size = (size_t)(to + 1 - proto->bytes);
    return proto->size;
}

void ms__export_proto_close_message(ms__export_proto *proto, size_t at)
{
    uint8_t length[MAX_VARINT_BYTES];
    if (proto->failed)
        return;
    size_t inner = proto->size - at, size = (size_t)(write_varint(length, inner) - length);
    if (size > 1) {
        reserve_bytes(proto, size - 1);
        if (proto->failed)
            return;
        memmove(proto->bytes + at + size - 1, proto->bytes + at, inner);
        proto->size += size - 1;
    }
    memcpy(proto->bytes + at - 1, length, size);
}
