/* packet.h - Perfetto's TracePackets, as its protos/perfetto/trace has them: tracks, slices, counters, marks. */
#ifndef MS_EXPORT_PACKET_H
#define MS_EXPORT_PACKET_H

#include "export/proto.h"
#include "export/sink.h"

typedef struct mse_packets {
    mse_sink sink;
    mse_proto packet;
    uint64_t time;       /* of what happens next, in nanoseconds */
    size_t whole, event; /* where the packet and the event in it begin, while they are open */
} mse_packets;

/* A name of three parts. */
typedef struct mse_name {
    mse_text a, b, c;
} mse_name;

/* False when memory runs out; it must be closed in any case. */
bool mse_packets_open(mse_packets *packets, const mse_job *job);
/* MS_ENOMEM, MS_ESTOPPED, or MS_OK: all is written. */
int mse_packets_end(mse_packets *packets);
void mse_packets_close(mse_packets *packets);

/* The first packet, and what time it was at 0: microseconds since 1970, or 0 if that is not known. */
void mse_packets_begin(mse_packets *packets, uint64_t began);
/* Names and categories of slices are told once. */
void mse_intern_name(mse_packets *packets, uint64_t id, mse_text text);
void mse_intern_category(mse_packets *packets, uint64_t id, mse_text text);

/* ---- tracks: each has a number of its own, and all but the process's another one above it ---- */
void mse_track(mse_packets *packets, uint64_t track, uint64_t above, mse_text name, uint64_t rank);
void mse_track_process(mse_packets *packets, uint64_t track, int32_t pid, mse_text name);
void mse_track_thread(mse_packets *packets, uint64_t track, int32_t pid, uint32_t tid, mse_text name);
void mse_track_bytes(mse_packets *packets, uint64_t track, uint64_t above, mse_name name, uint64_t rank);

/* ---- what happens ---- */
void mse_begin(mse_packets *packets, uint64_t track, uint64_t name, uint64_t category);
void mse_end(mse_packets *packets, uint64_t track);
/* `other` is another counter's track that goes along; 0: none does. */
void mse_count(mse_packets *packets, uint64_t track, int64_t value, uint64_t other, int64_t other_value);
/* A slice begins, or a mark of no duration is made; notes may follow until it is closed. */
void mse_open_slice(mse_packets *packets, uint64_t track, mse_name name);
void mse_open_mark(mse_packets *packets, uint64_t track, mse_name name);
void mse_note(mse_packets *packets, const char *name, uint64_t number);
void mse_note_text(mse_packets *packets, const char *name, mse_text text);
void mse_close(mse_packets *packets);

#endif
