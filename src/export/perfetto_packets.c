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
static void open_packet(ms__export_packets *packets, uint64_t flags)
{
    ms__export_proto *packet = &packets->packet;
    packet->size = 0;
    packets->packet_start = ms__export_proto_open_message(packet, TRACE_PACKET);
    ms__export_proto_number(packet, PACKET_SEQUENCE, 1);
    if (flags)
        ms__export_proto_number(packet, PACKET_FLAGS, flags);
}

static void close_packet(ms__export_packets *packets)
{
    ms__export_proto_close_message(&packets->packet, packets->packet_start);
    packets->output.failed |= packets->packet.failed;
    ms__export_put(&packets->output, packets->packet.bytes, packets->packet.size);
}

bool ms__export_packets_open(ms__export_packets *packets, const ms_export_job *job)
{
    *packets = (ms__export_packets){0};
    return ms__export_output_open(&packets->output, job) && ms__export_proto_open(&packets->packet);
}

int ms__export_packets_end(ms__export_packets *packets)
{
    if (packets->packet.failed)
        return MS_ENOMEM;
    ms__export_output_flush(&packets->output);
    return packets->output.failed ? MS_ESTOPPED : MS_OK;
}

void ms__export_packets_close(ms__export_packets *packets)
{
    ms__export_output_close(&packets->output);
    ms__export_proto_close(&packets->packet);
}

static void put_clock(ms__export_proto *packet, uint64_t id, uint64_t time)
{
    size_t clock = ms__export_proto_open_message(packet, CLOCKS_CLOCK);
    ms__export_proto_number(packet, CLOCK_ID, id);
    ms__export_proto_number(packet, CLOCK_TIME, time);
    ms__export_proto_close_message(packet, clock);
}

void ms__export_packets_begin(ms__export_packets *packets, uint64_t began)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, STATE_CLEARED);
    size_t clocks = ms__export_proto_open_message(packet, PACKET_CLOCKS);
    put_clock(packet, BOOTTIME, 0);
    put_clock(packet, MONOTONIC_COARSE, 0); /* of heap profiles */
    if (began && began < UINT64_MAX / 1000)
        put_clock(packet, REALTIME, began * 1000);
    ms__export_proto_close_message(packet, clocks);
    close_packet(packets);
}

static void intern_text(ms__export_packets *packets, uint32_t field, uint64_t id, ms_export_text text)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = ms__export_proto_open_message(packet, PACKET_INTERNED),
           entry = ms__export_proto_open_message(packet, field);
    ms__export_proto_number(packet, INTERN_ID, id);
    ms__export_proto_text(packet, INTERN_TEXT, text);
    ms__export_proto_close_message(packet, entry);
    ms__export_proto_close_message(packet, data);
    close_packet(packets);
}

void ms__export_intern_name(ms__export_packets *packets, uint64_t id, ms_export_text text)
{
    intern_text(packets, INTERNED_NAMES, id, text);
}

void ms__export_intern_category(ms__export_packets *packets, uint64_t id, ms_export_text text)
{
    intern_text(packets, INTERNED_CATEGORIES, id, text);
}

static void put_name(ms__export_packets *packets, uint32_t field, ms__export_name name)
{
    ms__export_proto_texts(&packets->packet, field, name.a, name.b, name.c);
}

/* ---- tracks ---- */
static size_t open_track(ms__export_packets *packets, uint64_t track, uint64_t parent)
{
    open_packet(packets, 0);
    size_t at = ms__export_proto_open_message(&packets->packet, PACKET_TRACK);
    ms__export_proto_number(&packets->packet, TRACK_UUID, track);
    if (parent)
        ms__export_proto_number(&packets->packet, TRACK_PARENT, parent);
    return at;
}

static void close_track(ms__export_packets *packets, size_t at)
{
    ms__export_proto_close_message(&packets->packet, at);
    close_packet(packets);
}

void ms__export_track(ms__export_packets *packets, uint64_t track, uint64_t parent, ms_export_text name, uint64_t rank)
{
    size_t at = open_track(packets, track, parent);
    ms__export_proto_text(&packets->packet, TRACK_NAME, name);
    ms__export_proto_number(&packets->packet, TRACK_ORDERING, ORDER_EXPLICIT);
    ms__export_proto_number(&packets->packet, TRACK_RANK, rank);
    close_track(packets, at);
}

void ms__export_track_process(ms__export_packets *packets, uint64_t track, int32_t pid, ms_export_text name)
{
    size_t at = open_track(packets, track, 0), process = ms__export_proto_open_message(&packets->packet, TRACK_PROCESS);
    ms__export_proto_number(&packets->packet, PROCESS_PID, (uint64_t)pid);
    ms__export_proto_text(&packets->packet, PROCESS_NAME, name);
    ms__export_proto_close_message(&packets->packet, process);
    ms__export_proto_number(&packets->packet, TRACK_ORDERING, ORDER_EXPLICIT);
    close_track(packets, at);
}

void ms__export_track_thread(ms__export_packets *packets, uint64_t track, int32_t pid, uint32_t tid,
                             ms_export_text name)
{
    size_t at = open_track(packets, track, 0), thread = ms__export_proto_open_message(&packets->packet, TRACK_THREAD);
    ms__export_proto_number(&packets->packet, THREAD_PID, (uint64_t)pid);
    ms__export_proto_number(&packets->packet, THREAD_TID, tid);
    ms__export_proto_text(&packets->packet, THREAD_NAME, name);
    ms__export_proto_close_message(&packets->packet, thread);
    close_track(packets, at);
}

void ms__export_track_counter(ms__export_packets *packets, uint64_t track, uint64_t parent, ms__export_name name,
                              uint64_t rank)
{
    size_t at = open_track(packets, track, parent);
    put_name(packets, TRACK_NAME, name);
    ms__export_proto_number(&packets->packet, TRACK_RANK, rank);
    size_t counter = ms__export_proto_open_message(&packets->packet, TRACK_COUNTER);
    ms__export_proto_number(&packets->packet, COUNTER_UNIT, UNIT_BYTES);
    ms__export_proto_close_message(&packets->packet, counter);
    close_track(packets, at);
}

/* ---- events ---- */
static void open_event(ms__export_packets *packets, uint32_t type, uint64_t track)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    ms__export_proto_number(packet, PACKET_TIMESTAMP, packets->time);
    packets->event_start = ms__export_proto_open_message(packet, PACKET_EVENT);
    ms__export_proto_number(packet, EVENT_TYPE, type);
    ms__export_proto_number(packet, EVENT_TRACK, track);
}

void ms__export_close_event(ms__export_packets *packets)
{
    ms__export_proto_close_message(&packets->packet, packets->event_start);
    close_packet(packets);
}

void ms__export_begin_slice(ms__export_packets *packets, uint64_t track, uint64_t name, uint64_t category)
{
    open_event(packets, SLICE_BEGIN, track);
    ms__export_proto_number(&packets->packet, EVENT_NAME, name);
    ms__export_proto_number(&packets->packet, EVENT_CATEGORY, category);
    ms__export_close_event(packets);
}

void ms__export_end_slice(ms__export_packets *packets, uint64_t track)
{
    open_event(packets, SLICE_END, track);
    ms__export_close_event(packets);
}

void ms__export_set_counter(ms__export_packets *packets, uint64_t track, int64_t value, uint64_t other,
                            int64_t other_value)
{
    open_event(packets, COUNTER, track);
    ms__export_proto_number(&packets->packet, EVENT_VALUE, (uint64_t)value);
    if (other) {
        ms__export_proto_number(&packets->packet, EVENT_EXTRA_TRACK, other);
        ms__export_proto_number(&packets->packet, EVENT_EXTRA_VALUE, (uint64_t)other_value);
    }
    ms__export_close_event(packets);
}

void ms__export_open_named_slice(ms__export_packets *packets, uint64_t track, ms__export_name name)
{
    open_event(packets, SLICE_BEGIN, track);
    put_name(packets, EVENT_NAME_TEXT, name);
}

void ms__export_open_instant(ms__export_packets *packets, uint64_t track, ms__export_name name)
{
    open_event(packets, INSTANT, track);
    put_name(packets, EVENT_NAME_TEXT, name);
}

void ms__export_annotate(ms__export_packets *packets, const char *name, uint64_t number)
{
    size_t at = ms__export_proto_open_message(&packets->packet, EVENT_ANNOTATION);
    ms__export_proto_text(&packets->packet, ANNOTATION_NAME, ms__export_text_of(name));
    ms__export_proto_number(&packets->packet, ANNOTATION_UINT, number);
    ms__export_proto_close_message(&packets->packet, at);
}

void ms__export_annotate_text(ms__export_packets *packets, const char *name, ms_export_text text)
{
    size_t at = ms__export_proto_open_message(&packets->packet, EVENT_ANNOTATION);
    ms__export_proto_text(&packets->packet, ANNOTATION_NAME, ms__export_text_of(name));
    ms__export_proto_text(&packets->packet, ANNOTATION_STRING, text);
    ms__export_proto_close_message(&packets->packet, at);
}

/* ---- heap profiles ---- */
static void put_interned(ms__export_proto *packet, uint32_t field, uint64_t id, ms__export_name name)
{
    size_t entry = ms__export_proto_open_message(packet, field);
    ms__export_proto_number(packet, INTERN_ID, id);
    ms__export_proto_texts(packet, INTERN_TEXT, name.a, name.b, name.c);
    ms__export_proto_close_message(packet, entry);
}

/* Perfetto puts a slash before each part of a path. */
static ms_export_text without_slash(ms_export_text path)
{
    return path.size && path.bytes[0] == '/' ? (ms_export_text){path.bytes + 1, path.size - 1} : path;
}

static void put_mapping(ms__export_proto *packet, uint64_t id, ms_export_text file)
{
    if (file.bytes)
        put_interned(packet, INTERNED_PATHS, id, (ms__export_name){without_slash(file), {0}, {0}});
    size_t mapping = ms__export_proto_open_message(packet, INTERNED_MAPPINGS);
    ms__export_proto_number(packet, INTERN_ID, id);
    if (file.bytes)
        ms__export_proto_number(packet, MAPPING_PATHS, id);
    ms__export_proto_close_message(packet, mapping);
}

void ms__export_intern_frame(ms__export_packets *packets, uint64_t id, ms__export_name name, ms_export_text file,
                             uint32_t line)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = ms__export_proto_open_message(packet, PACKET_INTERNED);
    put_interned(packet, INTERNED_FUNCTIONS, id, name);
    put_mapping(packet, id, file);
    size_t frame = ms__export_proto_open_message(packet, INTERNED_FRAMES);
    ms__export_proto_number(packet, INTERN_ID, id);
    ms__export_proto_number(packet, FRAME_FUNCTION, id);
    ms__export_proto_number(packet, FRAME_MAPPING, id);
    ms__export_proto_number(packet, FRAME_ADDRESS, line);
    ms__export_proto_close_message(packet, frame);
    ms__export_proto_close_message(packet, data);
    close_packet(packets);
}

void ms__export_intern_callstack(ms__export_packets *packets, uint64_t id, const uint64_t *frames, size_t count)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    size_t data = ms__export_proto_open_message(packet, PACKET_INTERNED);
    size_t callstack = ms__export_proto_open_message(packet, INTERNED_CALLSTACKS);
    ms__export_proto_number(packet, INTERN_ID, id);
    for (size_t i = 0; i < count; i++)
        ms__export_proto_number(packet, CALLSTACK_FRAMES, frames[i]);
    ms__export_proto_close_message(packet, callstack);
    ms__export_proto_close_message(packet, data);
    close_packet(packets);
}

void ms__export_open_profile(ms__export_packets *packets, ms__export_profile_message *profile, uint64_t index,
                             int32_t pid, ms_export_text heap)
{
    ms__export_proto *packet = &packets->packet;
    open_packet(packets, NEEDS_STATE);
    ms__export_proto_number(packet, PACKET_TIMESTAMP, packets->time);
    profile->packet = ms__export_proto_open_message(packet, PACKET_PROFILE);
    ms__export_proto_number(packet, PROFILE_INDEX, index);
    profile->dump = ms__export_proto_open_message(packet, PROFILE_DUMPS);
    ms__export_proto_number(packet, DUMP_PID, (uint64_t)pid);
    ms__export_proto_number(packet, DUMP_TIME, packets->time);
    ms__export_proto_text(packet, DUMP_HEAP, heap);
}

void ms__export_profile_sample(ms__export_packets *packets, uint64_t callstack, uint64_t bytes, uint64_t count)
{
    size_t sample = ms__export_proto_open_message(&packets->packet, DUMP_SAMPLES);
    ms__export_proto_number(&packets->packet, SAMPLE_CALLSTACK, callstack);
    ms__export_proto_number(&packets->packet, SAMPLE_BYTES, bytes);
    ms__export_proto_number(&packets->packet, SAMPLE_COUNT, count);
    ms__export_proto_close_message(&packets->packet, sample);
}

void ms__export_close_profile(ms__export_packets *packets, const ms__export_profile_message *profile)
{
    ms__export_proto_close_message(&packets->packet, profile->dump);
    ms__export_proto_close_message(&packets->packet, profile->packet);
    close_packet(packets);
}
