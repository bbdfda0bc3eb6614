/* perfetto_packets.h - writes Perfetto's TracePackets, as defined in its protos/perfetto/trace: tracks, slices,
 * counters and instants, and what they are written with. */
#ifndef MS_EXPORT_PERFETTO_PACKETS_H
#define MS_EXPORT_PERFETTO_PACKETS_H

#include "export/output.h"

/* ---- protobuf.c: builds a message in the wire format of Protocol Buffers ---- */
typedef struct ms__export_proto {
    uint8_t *bytes;
    size_t size, room;
    bool failed; /* out of memory; the content is undefined */
} ms__export_proto;

/* Returns false if memory runs out. */
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

/* ---- perfetto_packets.c ---- */
typedef struct ms__export_packets {
    ms__export_output output;
    ms__export_proto packet;
    uint64_t time;                    /* of the next event, in nanoseconds */
    size_t packet_start, event_start; /* the open packet and the open event in it, for ms__export_proto_close_message */
} ms__export_packets;

/* A name that is the concatenation of three texts. */
typedef struct ms__export_name {
    ms_export_text a, b, c;
} ms__export_name;

/* Returns false if memory runs out. Close it in any case. */
bool ms__export_packets_open(ms__export_packets *packets, const ms_export_job *job);
/* Flush the output. MS_ENOMEM, MS_ESTOPPED. */
int ms__export_packets_end(ms__export_packets *packets);
void ms__export_packets_close(ms__export_packets *packets);

/* Write the first packet. `began`: the real time at timestamp 0, in microseconds since 1970; 0: unknown. */
void ms__export_packets_begin(ms__export_packets *packets, uint64_t began);
/* Give names and categories of slices the ids by which ms__export_begin_slice refers to them. */
void ms__export_intern_name(ms__export_packets *packets, uint64_t id, ms_export_text text);
void ms__export_intern_category(ms__export_packets *packets, uint64_t id, ms_export_text text);

/* ---- tracks: each has a number of its own; all but those of process and threads have a parent ---- */
void ms__export_track(ms__export_packets *packets, uint64_t track, uint64_t parent, ms_export_text name, uint64_t rank);
void ms__export_track_process(ms__export_packets *packets, uint64_t track, int32_t pid, ms_export_text name);
void ms__export_track_thread(ms__export_packets *packets, uint64_t track, int32_t pid, uint32_t tid,
                             ms_export_text name);
void ms__export_track_counter(ms__export_packets *packets, uint64_t track, uint64_t parent, ms__export_name name,
                              uint64_t rank);

/* ---- events ---- */
void ms__export_begin_slice(ms__export_packets *packets, uint64_t track, uint64_t name, uint64_t category);
void ms__export_end_slice(ms__export_packets *packets, uint64_t track);
/* Set a counter, and in the same event the counter of the track `other`; 0: only the first. */
void ms__export_set_counter(ms__export_packets *packets, uint64_t track, int64_t value, uint64_t other,
                            int64_t other_value);
/* Begin a slice, or put an instant. Annotations may follow until ms__export_close_event. */
void ms__export_open_named_slice(ms__export_packets *packets, uint64_t track, ms__export_name name);
void ms__export_open_instant(ms__export_packets *packets, uint64_t track, ms__export_name name);
void ms__export_annotate(ms__export_packets *packets, const char *name, uint64_t number);
void ms__export_annotate_text(ms__export_packets *packets, const char *name, ms_export_text text);
void ms__export_close_event(ms__export_packets *packets);

/* ---- heap profiles: the bytes of each callstack at the time of the packet ---- */

/* Frames and callstacks are referred to by ids, as names are. Those of a line have a file, whose `bytes` is else NULL.
 */
void ms__export_intern_frame(ms__export_packets *packets, uint64_t id, ms__export_name name, ms_export_text file,
                             uint32_t line);
/* The outermost frame is the first. */
void ms__export_intern_callstack(ms__export_packets *packets, uint64_t id, const uint64_t *frames, size_t count);
typedef struct ms__export_profile_message {
    size_t packet, dump;
} ms__export_profile_message;
/* Samples may follow until ms__export_close_profile. `index`: how many profiles were written before. */
void ms__export_open_profile(ms__export_packets *packets, ms__export_profile_message *profile, uint64_t index,
                             int32_t pid, ms_export_text heap);
void ms__export_profile_sample(ms__export_packets *packets, uint64_t callstack, uint64_t bytes, uint64_t count);
void ms__export_close_profile(ms__export_packets *packets, const ms__export_profile_message *profile);

/* ---- perfetto_profile.c: what each device holds at its peak, as a heap profile ---- */
typedef struct ms__export_peak_profiles ms__export_peak_profiles;
int ms__export_peak_profiles_open(const ms_export_job *job, ms__export_peak_profiles **profiles); /* MS_ENOMEM */
void ms__export_peak_profiles_close(ms__export_peak_profiles *profiles);                          /* NULL is allowed */
/* Write what the device holds at the cursor's moment. MS_ENOMEM. */
int ms__export_peak_profiles_write(ms__export_peak_profiles *profiles, ms__export_packets *packets,
                                   const ms_cursor *cursor, uint32_t device);

/* ---- perfetto_counters.c: what each device holds, in tracks ---- */
enum { MS_EXPORT_DEVICE_TRACKS = 32 }; /* numbers of tracks that a device needs */
typedef struct ms__export_counters ms__export_counters;
/* `parent`: the track around those of the devices. `first`: the number of the first track. MS_ENOMEM. */
int ms__export_counters_open(const ms_export_job *job, uint64_t parent, uint64_t first, ms__export_counters **counters);
void ms__export_counters_close(ms__export_counters *counters); /* NULL is allowed */
/* The number of a device's track, which is written if it was not yet. */
uint64_t ms__export_counters_device_track(ms__export_counters *counters, ms__export_packets *packets, uint32_t device);
/* Write the counters that have changed: at a key frame, and after an add, a drop or a claim. MS_ENOMEM. */
int ms__export_counters_load_key_frame(ms__export_counters *counters, ms__export_packets *packets,
                                       const ms_cursor *cursor);
int ms__export_counters_apply(ms__export_counters *counters, ms__export_packets *packets, const ms_cursor *cursor,
                              const ms_event *event);
void ms__export_counters_set_reserved(ms__export_counters *counters, ms__export_packets *packets,
                                      const ms_cursor *cursor, uint32_t device);

/* ---- perfetto_blocks.c: slices of the largest blocks that each device holds at its peak ---- */
enum { MS_EXPORT_MOST_BLOCKS = 64 }; /* of a device */
typedef struct ms__export_block_tracks ms__export_block_tracks;
/* Choose the blocks, for which it reads the capture. `first`: the number of the first track. MS_ENOMEM, MS_EIO. */
int ms__export_block_tracks_open(const ms_export_job *job, const ms_survey *survey, ms__export_counters *counters,
                                 uint64_t first, ms__export_block_tracks **tracks);
void ms__export_block_tracks_close(ms__export_block_tracks *tracks); /* NULL is allowed */
/* Begin and end the slices of the blocks that a key frame, or an add or a drop, makes known or ends. MS_ENOMEM. */
int ms__export_block_tracks_load_key_frame(ms__export_block_tracks *tracks, ms__export_packets *packets,
                                           const ms_cursor *cursor);
int ms__export_block_tracks_apply(ms__export_block_tracks *tracks, ms__export_packets *packets, const ms_event *event);
/* End the slices of blocks that are still held. */
void ms__export_block_tracks_end(ms__export_block_tracks *tracks, ms__export_packets *packets);

/* ---- perfetto_collectives.c: the track of a capture's collectives ---- */
typedef struct ms__export_collective_track ms__export_collective_track;
/* `uuid`: the track's number. MS_ENOMEM, MS_EIO. */
int ms__export_collective_track_open(const ms_export_job *job, uint64_t uuid, ms__export_collective_track **track);
void ms__export_collective_track_close(ms__export_collective_track *track); /* NULL is allowed */
/* Write the track itself, unless there are no collectives. */
void ms__export_collective_track_begin(ms__export_collective_track *track, ms__export_packets *packets,
                                       uint64_t parent);
/* Write the collectives that begin or end before a time in nanoseconds. packets->time may become that time. */
void ms__export_collective_track_write(ms__export_collective_track *track, ms__export_packets *packets,
                                       const ms_export_job *job, uint64_t until);

#endif
