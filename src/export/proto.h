/* proto.h - a message in Protocol Buffers' wire format, as it grows. */
#ifndef MS_EXPORT_PROTO_H
#define MS_EXPORT_PROTO_H

#include "export/export.h"

typedef struct mse_proto {
    uint8_t *bytes;
    size_t size, room;
    bool failed; /* for want of memory; what is there is then of no use */
} mse_proto;

/* False when memory runs out. */
bool mse_proto_start(mse_proto *proto);
void mse_proto_stop(mse_proto *proto);

void mse_proto_number(mse_proto *proto, uint32_t field, uint64_t number);
void mse_proto_text(mse_proto *proto, uint32_t field, mse_text text);
/* One text of three. */
void mse_proto_texts(mse_proto *proto, uint32_t field, mse_text a, mse_text b, mse_text c);
/* What follows until the other is a message within. */
size_t mse_proto_open(mse_proto *proto, uint32_t field);
void mse_proto_close(mse_proto *proto, size_t at);

#endif
