/* perfetto_profile.c - what each device holds at its peak, as a heap profile, which Perfetto shows as a flame graph. A
 * callstack is the owner with the modules around it, the program's lines, the operator, the kind, and the category. */
#include "export/perfetto_packets.h"

#include <stdlib.h>

enum { MOST_STACKS = 4096 };                   /* of a profile: those that hold least become one */
enum { MOST_MODULES = 128, MOST_LINES = 128 }; /* of a callstack */
enum { MOST_NAME = 256, MOST_FILE = 1024 };    /* bytes of a text */

/* Ids of frames: those of categories, of kinds, of what is left out, and then
 *     MODULES + path,    lines + stack,    operators + stack */
enum { CATEGORIES = 1, KINDS = CATEGORIES + MS_CATEGORY_COUNT, REST = KINDS + MS_KIND_COUNT, MODULES };

/* Blocks that have the same callstack. */
struct held {
    uint64_t bytes, count;
    ms_path path;
    ms_stack stack;
    uint8_t category, kind;
};

struct ms__export_peak_profiles {
    const ms_export_job *job;
    uint64_t lines, operators;     /* the first ids */
    bool *is_known;                /* by id: the frame was written */
    uint64_t callstacks, profiles; /* how many were written */
};

int ms__export_peak_profiles_open(const ms_export_job *job, ms__export_peak_profiles **out)
{
    ms__export_peak_profiles *profiles = calloc(1, sizeof *profiles);
    if (!profiles)
        return MS_ENOMEM;
    *out = profiles;
    profiles->job = job;
    profiles->lines = MODULES + (uint64_t)ms_reader_paths(job->reader);
    profiles->operators = profiles->lines + ms_reader_stacks(job->reader);
    profiles->is_known = calloc((size_t)profiles->operators + ms_reader_stacks(job->reader) + 1, sizeof(bool));
    return profiles->is_known ? MS_OK : MS_ENOMEM;
}

void ms__export_peak_profiles_close(ms__export_peak_profiles *profiles)
{
    if (profiles)
        free(profiles->is_known);
    free(profiles);
}

/* ---- what is held ---- */
static int compare_callstacks(const void *left, const void *right)
{
    const struct held *a = left, *b = right;
    if (a->path != b->path)
        return a->path < b->path ? -1 : 1;
    if (a->stack != b->stack)
        return a->stack < b->stack ? -1 : 1;
    if (a->category != b->category)
        return a->category < b->category ? -1 : 1;
    return (a->kind > b->kind) - (a->kind < b->kind);
}

static int compare_bytes(const void *left, const void *right)
{
    const struct held *a = left, *b = right;
    return a->bytes != b->bytes ? (a->bytes > b->bytes ? -1 : 1) : compare_callstacks(left, right);
}

static size_t read_held(const ms_cursor *cursor, uint32_t device, struct held *held)
{
    size_t count = 0;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);)
        if (block.device == device) {
            held[count] = (struct held){.bytes = block.bytes,
                                        .count = 1,
                                        .path = block.path,
                                        .stack = block.stack,
                                        .category = block.category,
                                        .kind = block.kind};
            count++;
        }
    return count;
}

/* Make one of those that have the same callstack; those that hold most are then first. Returns how many there are. */
static size_t unite_held(struct held *held, size_t count)
{
    size_t united = 0;
    qsort(held, count, sizeof *held, compare_callstacks);
    for (size_t i = 0; i < count; i++) {
        if (united && compare_callstacks(&held[united - 1], &held[i]) == 0) {
            held[united - 1].bytes += held[i].bytes;
            held[united - 1].count++;
        } else {
            held[united++] = held[i];
        }
    }
    qsort(held, united, sizeof *held, compare_bytes);
    return united;
}

/* ---- frames ---- */
static uint64_t know_frame(ms__export_peak_profiles *profiles, ms__export_packets *packets, uint64_t id,
                           ms__export_name name, ms_export_text file, uint32_t line)
{
    if (!profiles->is_known[id])
        ms__export_intern_frame(packets, id, name, file, line);
    profiles->is_known[id] = true;
    return id;
}

static uint64_t know_word(ms__export_peak_profiles *profiles, ms__export_packets *packets, uint64_t id,
                          ms_export_text word)
{
    ms__export_name name = {ms__export_text_cut(word, MOST_NAME), {0}, {0}};
    return know_frame(profiles, packets, id, name, (ms_export_text){0}, 0);
}

static ms_export_text last_part(ms_export_text path)
{
    size_t at = path.size;
    while (at && path.bytes[at - 1] != '/')
        at--;
    return (ms_export_text){path.bytes + at, path.size - at};
}

/* "forward (gpt.py:41)" */
static uint64_t know_line(ms__export_peak_profiles *profiles, ms__export_packets *packets, ms_stack stack)
{
    enum { WITH_LINE = MOST_NAME + MS_EXPORT_MAX_DIGITS + 2 };
    ms_export_place place = ms__export_place_of(profiles->job, stack);
    ms_export_text file = ms__export_text_cut(last_part(place.file), MOST_NAME);
    uint8_t where[WITH_LINE], *at = where;
    memcpy(at, file.bytes, file.size);
    at += file.size;
    *at++ = ':';
    at = ms__export_digits(at, place.line);
    *at++ = ')';
    ms__export_name name = {ms__export_text_cut(place.function, MOST_NAME),
                            ms__export_text_of(" ("),
                            {(const char *)where, (size_t)(at - where)}};
    return know_frame(profiles, packets, profiles->lines + stack, name, ms__export_text_cut(place.file, MOST_FILE),
                      place.line);
}

struct frames {
    uint64_t of[MOST_MODULES + MOST_LINES + 4];
    size_t count;
};

static void push_modules(ms__export_peak_profiles *profiles, ms__export_packets *packets, struct frames *frames,
                         ms_path path)
{
    ms_path around[MOST_MODULES], parent;
    size_t count = 0;
    uint32_t nth, paths = ms_reader_paths(profiles->job->reader);
    for (; count < MOST_MODULES && path < paths; path = parent) {
        around[count++] = path;
        ms_reader_path(profiles->job->reader, path, &parent, &nth);
        if (path == MS_GLOBAL || parent == MS_GLOBAL || parent >= path)
            break;
    }
    while (count) {
        ms_path next = around[--count];
        frames->of[frames->count++] =
            know_word(profiles, packets, MODULES + (uint64_t)next, ms__export_module(profiles->job, next));
    }
}

static void push_lines(ms__export_peak_profiles *profiles, ms__export_packets *packets, struct frames *frames,
                       ms_stack stack)
{
    ms_stack around[MOST_LINES];
    size_t count = 0;
    ms_frame frame;
    ms_export_text operator_name = ms__export_place_of(profiles->job, stack).operator_name;
    uint64_t operator_id = profiles->operators + stack;
    for (; count < MOST_LINES && ms_reader_stack(profiles->job->reader, stack, &frame); stack = frame.outer) {
        if (frame.file && ms__export_place_of(profiles->job, stack).file.bytes)
            around[count++] = stack;
        if (frame.outer >= stack)
            break;
    }
    while (count)
        frames->of[frames->count++] = know_line(profiles, packets, around[--count]);
    if (operator_name.bytes)
        frames->of[frames->count++] = know_word(profiles, packets, operator_id, operator_name);
}

/* Returns the callstack's id. */
static uint64_t put_callstack(ms__export_peak_profiles *profiles, ms__export_packets *packets, const struct held *held)
{
    struct frames frames;
    frames.count = 0;
    push_modules(profiles, packets, &frames, held->path);
    if (held->stack < ms_reader_stacks(profiles->job->reader))
        push_lines(profiles, packets, &frames, held->stack);
    if (held->kind)
        frames.of[frames.count++] =
            know_word(profiles, packets, KINDS + (uint64_t)held->kind, ms__export_text_of(ms_kind_name(held->kind)));
    frames.of[frames.count++] = know_word(profiles, packets, CATEGORIES + (uint64_t)held->category,
                                          ms__export_text_of(ms_category_name(held->category)));
    ms__export_intern_callstack(packets, ++profiles->callstacks, frames.of, frames.count);
    return profiles->callstacks;
}

static uint64_t put_rest_callstack(ms__export_peak_profiles *profiles, ms__export_packets *packets)
{
    uint64_t frame = know_word(profiles, packets, REST, ms__export_text_of("(all that hold less)"));
    ms__export_intern_callstack(packets, ++profiles->callstacks, &frame, 1);
    return profiles->callstacks;
}

/* ---- a profile ---- */
static void put_profile(ms__export_peak_profiles *profiles, ms__export_packets *packets, uint32_t device,
                        const struct held *held, size_t count)
{
    size_t shown = count > MOST_STACKS ? MOST_STACKS : count;
    uint64_t first = profiles->callstacks + 1, bytes = 0, blocks = 0;
    ms__export_profile_message message;
    for (size_t i = 0; i < shown; i++)
        put_callstack(profiles, packets, &held[i]);
    uint64_t rest = shown < count ? put_rest_callstack(profiles, packets) : 0;
    ms__export_open_profile(packets, &message, profiles->profiles++, profiles->job->pid,
                            ms__export_device(profiles->job, device));
    for (size_t i = 0; i < shown; i++)
        ms__export_profile_sample(packets, first + i, held[i].bytes, held[i].count);
    for (size_t i = shown; i < count; i++) {
        bytes += held[i].bytes;
        blocks += held[i].count;
    }
    if (rest)
        ms__export_profile_sample(packets, rest, bytes, blocks);
    ms__export_close_profile(packets, &message);
}

int ms__export_peak_profiles_write(ms__export_peak_profiles *profiles, ms__export_packets *packets,
                                   const ms_cursor *cursor, uint32_t device)
{
    struct held *held = malloc(((size_t)ms_cursor_blocks(cursor) + 1) * sizeof *held);
    if (!held)
        return MS_ENOMEM;
    size_t count = unite_held(held, read_held(cursor, device, held));
    put_profile(profiles, packets, device, held, count);
    free(held);
    return MS_OK;
}
