/* protobuf.h - builds a message in the wire format of Protocol Buffers. */
#ifndef MS_EXPORT_PROTOBUF_H
#define MS_EXPORT_PROTOBUF_H

#include "export/output.h"

typedef struct ms__export_proto {
    uint8_t *bytes;
    size_t size, room;
    bool failed; /* out of memory; the content is undefined */
} ms__export_proto;

/* False: out of memory. */
bool ms__export_proto_open(ms__export_proto *proto);
void ms__export_proto_close(ms__export_proto *proto);

void ms__export_proto_number(ms__export_proto *proto, uint32_t field, uint64_t number);
void ms__export_proto_text(ms__export_proto *proto, uint32_t field, ms_export_text text);
/* Put the concatenation of three texts. */
void ms__export_proto_texts(ms__export_proto *proto, uint32_t field, ms_export_text a, ms_export_text b,
                            ms_export_text c);
/* Begin and end an embedded message; pass the number that open returned to close. */
size_t ms__export_proto_open_message(ms__export_proto *proto, uint32_t field);
void ms__export_proto_close_message(ms__export_proto *proto, size_t at);

#endif
