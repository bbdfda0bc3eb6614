/* proto.c - a message in Protocol Buffers' wire format. */
#include "export/proto.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT, LENGTH = 2 }; /* wire types */
enum { NUMBER_MOST = 16 };   /* bytes of a field with a number, tag included */
enum { FIRST_ROOM = 4096, VARINT_MOST = 10 };

bool mse_proto_start(mse_proto *proto)
{
    *proto = (mse_proto){.bytes = malloc(FIRST_ROOM), .room = FIRST_ROOM};
    return proto->bytes != NULL;
}

void mse_proto_stop(mse_proto *proto)
{
    free(proto->bytes);
    *proto = (mse_proto){0};
}

/* Where so many bytes may be written. Without memory it begins anew: nobody will read it. */
static uint8_t *room_for(mse_proto *proto, size_t size)
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

static uint8_t *put_varint(uint8_t *to, uint64_t number)
{
    for (; number > 0x7F; number >>= 7)
        *to++ = (uint8_t)(number | 0x80);
    *to++ = (uint8_t)number;
    return to;
}

static uint8_t *put_tag(uint8_t *to, uint32_t field, uint32_t type)
{
    return put_varint(to, (uint64_t)field << 3 | type);
}

void mse_proto_number(mse_proto *proto, uint32_t field, uint64_t number)
{
    uint8_t *to = room_for(proto, NUMBER_MOST);
    proto->size = (size_t)(put_varint(put_tag(to, field, VARINT), number) - proto->bytes);
}

static void put_bytes(mse_proto *proto, mse_text text)
{
    uint8_t *to = text.size ? room_for(proto, text.size) : NULL;
    if (!to)
        return;
    memcpy(to, text.bytes, text.size);
    proto->size += text.size;
}

void mse_proto_texts(mse_proto *proto, uint32_t field, mse_text a, mse_text b, mse_text c)
{
    uint8_t *to = room_for(proto, NUMBER_MOST);
    proto->size = (size_t)(put_varint(put_tag(to, field, LENGTH), a.size + b.size + c.size) - proto->bytes);
    put_bytes(proto, a);
    put_bytes(proto, b);
    put_bytes(proto, c);
}

void mse_proto_text(mse_proto *proto, uint32_t field, mse_text text)
{
    mse_proto_texts(proto, field, text, (mse_text){0}, (mse_text){0});
}

/* Its length takes one byte, as most do; a longer message is moved. */
size_t mse_proto_open(mse_proto *proto, uint32_t field)
{
    uint8_t *to = put_tag(room_for(proto, NUMBER_MOST), field, LENGTH);
    proto->size = (size_t)(to + 1 - proto->bytes);
    return proto->size;
}

void mse_proto_close(mse_proto *proto, size_t at)
{
    uint8_t length[VARINT_MOST];
    if (proto->failed)
        return;
    size_t inner = proto->size - at, size = (size_t)(put_varint(length, inner) - length);
    if (size > 1) {
        room_for(proto, size - 1);
        if (proto->failed)
            return;
        memmove(proto->bytes + at + size - 1, proto->bytes + at, inner);
        proto->size += size - 1;
    }
    memcpy(proto->bytes + at - 1, length, size);
}
