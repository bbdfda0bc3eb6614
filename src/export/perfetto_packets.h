/* perfetto_packets.h - writes Perfetto's TracePackets, as defined in its protos/perfetto/trace: tracks, slices,
 * counters and instants. */
#ifndef MS_EXPORT_PERFETTO_PACKETS_H
#define MS_EXPORT_PERFETTO_PACKETS_H

#include "export/output.h"
#include "export/protobuf.h"

typedef struct mse_packets {
    mse_output output;
    mse_proto packet;
    uint64_t time;                    /* of the next event, in nanoseconds */
    size_t packet_start, event_start; /* the open packet and the open event in it, for mse_proto_close_message */
} mse_packets;

/* A name that is the concatenation of three texts. */
typedef struct mse_name {
    mse_text a, b, c;
} mse_name;

/* False: out of memory. Close it in any case. */
bool mse_packets_open(mse_packets *packets, const mse_job *job);
/* Flush the output. MS_ENOMEM, MS_ESTOPPED. */
int mse_packets_end(mse_packets *packets);
void mse_packets_close(mse_packets *packets);

/* Write the first packet. `began`: the real time at timestamp 0, in microseconds since 1970; 0: unknown. */
void mse_packets_begin(mse_packets *packets, uint64_t began);
/* Give names and categories of slices the ids by which mse_begin_slice refers to them. */
void mse_intern_name(mse_packets *packets, uint64_t id, mse_text text);
void mse_intern_category(mse_packets *packets, uint64_t id, mse_text text);

/* ---- tracks: each has a number of its own; all but those of process and threads have a parent ---- */
void mse_track(mse_packets *packets, uint64_t track, uint64_t parent, mse_text name, uint64_t rank);
void mse_track_process(mse_packets *packets, uint64_t track, int32_t pid, mse_text name);
void mse_track_thread(mse_packets *packets, uint64_t track, int32_t pid, uint32_t tid, mse_text name);
void mse_track_counter(mse_packets *packets, uint64_t track, uint64_t parent, mse_name name, uint64_t rank);

/* ---- events ---- */
void mse_begin_slice(mse_packets *packets, uint64_t track, uint64_t name, uint64_t category);
void mse_end_slice(mse_packets *packets, uint64_t track);
/* Set a counter, and in the same event the counter of the track `other`; 0: only the first. */
void mse_set_counter(mse_packets *packets, uint64_t track, int64_t value, uint64_t other, int64_t other_value);
/* Begin a slice, or put an instant. Annotations may follow until mse_close_event. */
void mse_open_named_slice(mse_packets *packets, uint64_t track, mse_name name);
void mse_open_instant(mse_packets *packets, uint64_t track, mse_name name);
void mse_annotate(mse_packets *packets, const char *name, uint64_t number);
void mse_annotate_text(mse_packets *packets, const char *name, mse_text text);
void mse_close_event(mse_packets *packets);

/* ---- heap profiles: the bytes of each callstack at the time of the packet ---- */

/* Frames and callstacks are referred to by ids, as names are. Those of a line have a file, whose `bytes` is else NULL.
 */
void mse_intern_frame(mse_packets *packets, uint64_t id, mse_name name, mse_text file, uint32_t line);
/* The outermost frame is the first. */
void mse_intern_callstack(mse_packets *packets, uint64_t id, const uint64_t *frames, size_t count);
typedef struct mse_profile_message {
    size_t packet, dump;
} mse_profile_message;
/* Samples may follow until mse_close_profile. `index`: how many profiles were written before. */
void mse_open_profile(mse_packets *packets, mse_profile_message *profile, uint64_t index, int32_t pid, mse_text heap);
void mse_profile_sample(mse_packets *packets, uint64_t callstack, uint64_t bytes, uint64_t count);
void mse_close_profile(mse_packets *packets, const mse_profile_message *profile);

/* ---- perfetto_profile.c: what each device holds at its peak, as a heap profile ---- */
typedef struct mse_peak_profiles mse_peak_profiles;
int mse_peak_profiles_open(const mse_job *job, mse_peak_profiles **profiles); /* MS_ENOMEM */
void mse_peak_profiles_close(mse_peak_profiles *profiles);                    /* NULL is allowed */
/* Write what the device holds at the cursor's moment. MS_ENOMEM. */
int mse_peak_profiles_write(mse_peak_profiles *profiles, mse_packets *packets, const ms_cursor *cursor,
                            uint32_t device);

/* ---- perfetto_counters.c: what each device holds, in tracks ---- */
enum { MSE_DEVICE_TRACKS = 32 }; /* numbers of tracks that a device needs */
typedef struct mse_counters mse_counters;
/* `parent`: the track around those of the devices. `first`: the number of the first track. MS_ENOMEM. */
int mse_counters_open(const mse_job *job, uint64_t parent, uint64_t first, mse_counters **counters);
void mse_counters_close(mse_counters *counters); /* NULL is allowed */
/* The number of a device's track, which is written if it was not yet. */
uint64_t mse_counters_device_track(mse_counters *counters, mse_packets *packets, uint32_t device);
/* Write the counters that have changed: at a key frame, and after an add, a drop or a claim. MS_ENOMEM. */
int mse_counters_load_key_frame(mse_counters *counters, mse_packets *packets, const ms_cursor *cursor);
int mse_counters_apply(mse_counters *counters, mse_packets *packets, const ms_cursor *cursor, const ms_event *event);
void mse_counters_set_reserved(mse_counters *counters, mse_packets *packets, const ms_cursor *cursor, uint32_t device);

/* ---- perfetto_blocks.c: slices of the largest blocks that each device holds at its peak ---- */
enum { MSE_MOST_BLOCKS = 64 }; /* of a device */
typedef struct mse_block_tracks mse_block_tracks;
/* Choose the blocks, for which it reads the capture. `first`: the number of the first track. MS_ENOMEM, MS_EIO. */
int mse_block_tracks_open(const mse_job *job, const ms_survey *survey, mse_counters *counters, uint64_t first,
                          mse_block_tracks **tracks);
void mse_block_tracks_close(mse_block_tracks *tracks); /* NULL is allowed */
/* Begin and end the slices of the blocks that a key frame, or an add or a drop, makes known or ends. MS_ENOMEM. */
int mse_block_tracks_load_key_frame(mse_block_tracks *tracks, mse_packets *packets, const ms_cursor *cursor);
int mse_block_tracks_apply(mse_block_tracks *tracks, mse_packets *packets, const ms_event *event);
/* End the slices of blocks that are still held. */
void mse_block_tracks_end(mse_block_tracks *tracks, mse_packets *packets);

/* ---- perfetto_collectives.c: the track of a capture's collectives ---- */
typedef struct mse_collective_track mse_collective_track;
/* `uuid`: the track's number. MS_ENOMEM, MS_EIO. */
int mse_collective_track_open(const mse_job *job, uint64_t uuid, mse_collective_track **track);
void mse_collective_track_close(mse_collective_track *track); /* NULL is allowed */
/* Write the track itself, unless there are no collectives. */
void mse_collective_track_begin(mse_collective_track *track, mse_packets *packets, uint64_t parent);
/* Write the collectives that begin or end before a time in nanoseconds. packets->time may become that time. */
void mse_collective_track_write(mse_collective_track *track, mse_packets *packets, const mse_job *job, uint64_t until);

#endif
