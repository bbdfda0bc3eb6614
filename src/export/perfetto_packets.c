/* perfetto_packets.c - writes Perfetto's TracePackets. */
#include "export/perfetto_packets.h"

/* Field numbers. */
enum {
    TRACE_PACKET = 1,
    PACKET_CLOCKS = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_PROFILE = 37,
    PACKET_TRACK = 60,
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_THREAD = 4,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_ORDERING = 11,
    TRACK_RANK = 12,
    PROCESS_PID = 1,
    PROCESS_NAME = 6,
    THREAD_PID = 1,
    THREAD_TID = 2,
    THREAD_NAME = 5,
    COUNTER_UNIT = 3,
    EVENT_CATEGORY = 3,
    EVENT_ANNOTATION = 4,
    EVENT_TYPE = 9,
    EVENT_NAME = 10,
    EVENT_TRACK = 11,
    EVENT_EXTRA_VALUE = 12,
    EVENT_NAME_TEXT = 23,
    EVENT_VALUE = 30,
    EVENT_EXTRA_TRACK = 31,
    INTERNED_CATEGORIES = 1,
    INTERNED_NAMES = 2,
    INTERNED_FUNCTIONS = 5,
    INTERNED_FRAMES = 6,
    INTERNED_CALLSTACKS = 7,
    INTERNED_PATHS = 17,
    INTERNED_MAPPINGS = 19,
    MAPPING_PATHS = 7,
    FRAME_FUNCTION = 2,
    FRAME_MAPPING = 3,
    FRAME_ADDRESS = 4,
    CALLSTACK_FRAMES = 2,
    PROFILE_DUMPS = 5,
    PROFILE_INDEX = 7,
    DUMP_PID = 1,
    DUMP_SAMPLES = 2,
    DUMP_TIME = 9,
    DUMP_HEAP = 11,
    SAMPLE_CALLSTACK = 1,
    SAMPLE_BYTES = 2,
    SAMPLE_COUNT = 5,
    INTERN_ID = 1,
    INTERN_TEXT = 2,
    ANNOTATION_UINT = 3,
    ANNOTATION_STRING = 6,
    ANNOTATION_NAME = 10,
    CLOCKS_CLOCK = 1,
    CLOCK_ID = 1,
    CLOCK_TIME = 2,
};

enum { SLICE_BEGIN = 1, SLICE_END, INSTANT, COUNTER }; /* TrackEvent.Type */
enum { STATE_CLEARED = 1, NEEDS_STATE };               /* TracePacket.SequenceFlags */
enum {
    ORDER_EXPLICIT = 3,
    UNIT_BYTES = 3,
    REALTIME = 1,
    MONOTONIC_COARSE = 4,
    BOOTTIME = 6
}; /* of other enumerations */

/* ---- packets ---- */
static void open_packet(mse_packets *packets, uint64_t flags)
{
    mse_proto *packet = &packets->packet;
    packet->size = 0;
    packets->packet_start = mse_proto_open_message(packet, TRACE_PACKET);
    mse_proto_number(packet, PACKET_SEQUENCE, 1);
    if (flags)
        mse_proto_number(packet, PACKET_FLAGS, flags);
}

static void close_packet(mse_packets *packets)
{
    mse_proto_close_message(&packets->packet, packets->packet_start);
    packets->output.failed |= packets->packet.failed;
    mse_put(&packets->output, packets->packet.bytes, packets->packet.size);
}

bool mse_packets_open(mse_packets *packets, const mse_job *job)
{
    *packets = (mse_packets){0};
    return mse_output_open(&packets->output, job) && mse_proto_open(&packets->packet);
}

int mse_packets_end(mse_packets *packets)
{
    if (packets->packet.failed)
        return MS_ENOMEM;
    mse_output_flush(&packets->output);
    return packets->output.failed ? MS_ESTOPPED : MS_OK;
}

void mse_packets_close(mse_packets *packets)
{
    mse_output_close(&packets->output);
    mse_proto_close(&packets->packet);
}

static void put_clock(mse_proto *packet, uint64_t id, uint64_t time)
{
    size_t clock = mse_proto_open_message(packet, CLOCKS_CLOCK);
    mse_proto_number(packet, CLOCK_ID, id);
    mse_proto_number(packet, CLOCK_TIME, time);
    mse_proto_close_message(packet, clock);
}

void mse_packets_begin(mse_packets *packets, uint64_t began)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, STATE_CLEARED);
    size_t clocks = mse_proto_open_message(packet, PACKET_CLOCKS);
    put_clock(packet, BOOTTIME, 0);
    put_clock(packet, MONOTONIC_COARSE, 0); /* of heap profiles */
    if (began && began < UINT64_MAX / 1000)
        put_clock(packet, REALTIME, began * 1000);
    mse_proto_close_message(packet, clocks);
    close_packet(packets);
}

static void intern_text(mse_packets *packets, uint32_t field, uint64_t id, mse_text text)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = mse_proto_open_message(packet, PACKET_INTERNED), entry = mse_proto_open_message(packet, field);
    mse_proto_number(packet, INTERN_ID, id);
    mse_proto_text(packet, INTERN_TEXT, text);
    mse_proto_close_message(packet, entry);
    mse_proto_close_message(packet, data);
    close_packet(packets);
}

void mse_intern_name(mse_packets *packets, uint64_t id, mse_text text)
{
    intern_text(packets, INTERNED_NAMES, id, text);
}

void mse_intern_category(mse_packets *packets, uint64_t id, mse_text text)
{
    intern_text(packets, INTERNED_CATEGORIES, id, text);
}

static void put_name(mse_packets *packets, uint32_t field, mse_name name)
{
    mse_proto_texts(&packets->packet, field, name.a, name.b, name.c);
}

/* ---- tracks ---- */
static size_t open_track(mse_packets *packets, uint64_t track, uint64_t parent)
{
    open_packet(packets, 0);
    size_t at = mse_proto_open_message(&packets->packet, PACKET_TRACK);
    mse_proto_number(&packets->packet, TRACK_UUID, track);
    if (parent)
        mse_proto_number(&packets->packet, TRACK_PARENT, parent);
    return at;
}

static void close_track(mse_packets *packets, size_t at)
{
    mse_proto_close_message(&packets->packet, at);
    close_packet(packets);
}

void mse_track(mse_packets *packets, uint64_t track, uint64_t parent, mse_text name, uint64_t rank)
{
    size_t at = open_track(packets, track, parent);
    mse_proto_text(&packets->packet, TRACK_NAME, name);
    mse_proto_number(&packets->packet, TRACK_ORDERING, ORDER_EXPLICIT);
    mse_proto_number(&packets->packet, TRACK_RANK, rank);
    close_track(packets, at);
}

void mse_track_process(mse_packets *packets, uint64_t track, int32_t pid, mse_text name)
{
    size_t at = open_track(packets, track, 0), process = mse_proto_open_message(&packets->packet, TRACK_PROCESS);
    mse_proto_number(&packets->packet, PROCESS_PID, (uint64_t)pid);
    mse_proto_text(&packets->packet, PROCESS_NAME, name);
    mse_proto_close_message(&packets->packet, process);
    mse_proto_number(&packets->packet, TRACK_ORDERING, ORDER_EXPLICIT);
    close_track(packets, at);
}

void mse_track_thread(mse_packets *packets, uint64_t track, int32_t pid, uint32_t tid, mse_text name)
{
    size_t at = open_track(packets, track, 0), thread = mse_proto_open_message(&packets->packet, TRACK_THREAD);
    mse_proto_number(&packets->packet, THREAD_PID, (uint64_t)pid);
    mse_proto_number(&packets->packet, THREAD_TID, tid);
    mse_proto_text(&packets->packet, THREAD_NAME, name);
    mse_proto_close_message(&packets->packet, thread);
    close_track(packets, at);
}

void mse_track_counter(mse_packets *packets, uint64_t track, uint64_t parent, mse_name name, uint64_t rank)
{
    size_t at = open_track(packets, track, parent);
    put_name(packets, TRACK_NAME, name);
    mse_proto_number(&packets->packet, TRACK_RANK, rank);
    size_t counter = mse_proto_open_message(&packets->packet, TRACK_COUNTER);
    mse_proto_number(&packets->packet, COUNTER_UNIT, UNIT_BYTES);
    mse_proto_close_message(&packets->packet, counter);
    close_track(packets, at);
}

/* ---- events ---- */
static void open_event(mse_packets *packets, uint32_t type, uint64_t track)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    mse_proto_number(packet, PACKET_TIMESTAMP, packets->time);
    packets->event_start = mse_proto_open_message(packet, PACKET_EVENT);
    mse_proto_number(packet, EVENT_TYPE, type);
    mse_proto_number(packet, EVENT_TRACK, track);
}

void mse_close_event(mse_packets *packets)
{
    mse_proto_close_message(&packets->packet, packets->event_start);
    close_packet(packets);
}

void mse_begin_slice(mse_packets *packets, uint64_t track, uint64_t name, uint64_t category)
{
    open_event(packets, SLICE_BEGIN, track);
    mse_proto_number(&packets->packet, EVENT_NAME, name);
    mse_proto_number(&packets->packet, EVENT_CATEGORY, category);
    mse_close_event(packets);
}

void mse_end_slice(mse_packets *packets, uint64_t track)
{
    open_event(packets, SLICE_END, track);
    mse_close_event(packets);
}

void mse_set_counter(mse_packets *packets, uint64_t track, int64_t value, uint64_t other, int64_t other_value)
{
    open_event(packets, COUNTER, track);
    mse_proto_number(&packets->packet, EVENT_VALUE, (uint64_t)value);
    if (other) {
        mse_proto_number(&packets->packet, EVENT_EXTRA_TRACK, other);
        mse_proto_number(&packets->packet, EVENT_EXTRA_VALUE, (uint64_t)other_value);
    }
    mse_close_event(packets);
}

void mse_open_named_slice(mse_packets *packets, uint64_t track, mse_name name)
{
    open_event(packets, SLICE_BEGIN, track);
    put_name(packets, EVENT_NAME_TEXT, name);
}

void mse_open_instant(mse_packets *packets, uint64_t track, mse_name name)
{
    open_event(packets, INSTANT, track);
    put_name(packets, EVENT_NAME_TEXT, name);
}

void mse_annotate(mse_packets *packets, const char *name, uint64_t number)
{
    size_t at = mse_proto_open_message(&packets->packet, EVENT_ANNOTATION);
    mse_proto_text(&packets->packet, ANNOTATION_NAME, mse_text_of(name));
    mse_proto_number(&packets->packet, ANNOTATION_UINT, number);
    mse_proto_close_message(&packets->packet, at);
}

void mse_annotate_text(mse_packets *packets, const char *name, mse_text text)
{
    size_t at = mse_proto_open_message(&packets->packet, EVENT_ANNOTATION);
    mse_proto_text(&packets->packet, ANNOTATION_NAME, mse_text_of(name));
    mse_proto_text(&packets->packet, ANNOTATION_STRING, text);
    mse_proto_close_message(&packets->packet, at);
}

/* ---- heap profiles ---- */
static void put_interned(mse_proto *packet, uint32_t field, uint64_t id, mse_name name)
{
    size_t entry = mse_proto_open_message(packet, field);
    mse_proto_number(packet, INTERN_ID, id);
    mse_proto_texts(packet, INTERN_TEXT, name.a, name.b, name.c);
    mse_proto_close_message(packet, entry);
}

/* Perfetto puts a slash before each part of a path. */
static mse_text without_slash(mse_text path)
{
    return path.size && path.bytes[0] == '/' ? (mse_text){path.bytes + 1, path.size - 1} : path;
}

static void put_mapping(mse_proto *packet, uint64_t id, mse_text file)
{
    if (file.bytes)
        put_interned(packet, INTERNED_PATHS, id, (mse_name){without_slash(file), {0}, {0}});
    size_t mapping = mse_proto_open_message(packet, INTERNED_MAPPINGS);
    mse_proto_number(packet, INTERN_ID, id);
    if (file.bytes)
        mse_proto_number(packet, MAPPING_PATHS, id);
    mse_proto_close_message(packet, mapping);
}

void mse_intern_frame(mse_packets *packets, uint64_t id, mse_name name, mse_text file, uint32_t line)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = mse_proto_open_message(packet, PACKET_INTERNED);
    put_interned(packet, INTERNED_FUNCTIONS, id, name);
    put_mapping(packet, id, file);
    size_t frame = mse_proto_open_message(packet, INTERNED_FRAMES);
    mse_proto_number(packet, INTERN_ID, id);
    mse_proto_number(packet, FRAME_FUNCTION, id);
    mse_proto_number(packet, FRAME_MAPPING, id);
    mse_proto_number(packet, FRAME_ADDRESS, line);
    mse_proto_close_message(packet, frame);
    mse_proto_close_message(packet, data);
    close_packet(packets);
}

void mse_intern_callstack(mse_packets *packets, uint64_t id, const uint64_t *frames, size_t count)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = mse_proto_open_message(packet, PACKET_INTERNED);
    size_t callstack = mse_proto_open_message(packet, INTERNED_CALLSTACKS);
    mse_proto_number(packet, INTERN_ID, id);
    for (size_t i = 0; i < count; i++)
        mse_proto_number(packet, CALLSTACK_FRAMES, frames[i]);
    mse_proto_close_message(packet, callstack);
    mse_proto_close_message(packet, data);
    close_packet(packets);
}

void mse_open_profile(mse_packets *packets, mse_profile_message *profile, uint64_t index, int32_t pid, mse_text heap)
{
    mse_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    mse_proto_number(packet, PACKET_TIMESTAMP, packets->time);
    profile->packet = mse_proto_open_message(packet, PACKET_PROFILE);
    mse_proto_number(packet, PROFILE_INDEX, index);
    profile->dump = mse_proto_open_message(packet, PROFILE_DUMPS);
    mse_proto_number(packet, DUMP_PID, (uint64_t)pid);
    mse_proto_number(packet, DUMP_TIME, packets->time);
    mse_proto_text(packet, DUMP_HEAP, heap);
}

void mse_profile_sample(mse_packets *packets, uint64_t callstack, uint64_t bytes, uint64_t count)
{
    size_t sample = mse_proto_open_message(&packets->packet, DUMP_SAMPLES);
    mse_proto_number(&packets->packet, SAMPLE_CALLSTACK, callstack);
    mse_proto_number(&packets->packet, SAMPLE_BYTES, bytes);
    mse_proto_number(&packets->packet, SAMPLE_COUNT, count);
    mse_proto_close_message(&packets->packet, sample);
}

void mse_close_profile(mse_packets *packets, const mse_profile_message *profile)
{
    mse_proto_close_message(&packets->packet, profile->dump);
    mse_proto_close_message(&packets->packet, profile->packet);
    close_packet(packets);
}
