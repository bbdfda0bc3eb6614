/* protobuf.h - builds a message in the wire format of Protocol Buffers. */
#ifndef MS_EXPORT_PROTOBUF_H
#define MS_EXPORT_PROTOBUF_H

#include "export/export.h"

typedef struct mse_proto {
    uint8_t *bytes;
    size_t size, room;
    bool failed; /* out of memory; the content is undefined */
} mse_proto;

/* False: out of memory. */
bool mse_proto_open(mse_proto *proto);
void mse_proto_close(mse_proto *proto);

void mse_proto_number(mse_proto *proto, uint32_t field, uint64_t number);
void mse_proto_text(mse_proto *proto, uint32_t field, mse_text text);
/* Put the concatenation of three texts. */
void mse_proto_texts(mse_proto *proto, uint32_t field, mse_text a, mse_text b, mse_text c);
/* Begin and end an embedded message; pass the number that open returned to close. */
size_t mse_proto_open_message(mse_proto *proto, uint32_t field);
void mse_proto_close_message(mse_proto *proto, size_t at);

#endif
