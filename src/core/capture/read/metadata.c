/* metadata.c - the texts of a capture: info about the run, names of devices and of modules, the table of stacks. */
#include "core/capture/read/reader.h"

#include <stdlib.h>

/* A path takes at least three bytes, which limits how many paths a file of a given size can have. So does a stack. */
enum { MIN_PATH_BYTES = 3, MIN_STACK_BYTES = 3, MAX_PATHS = 1 << 24 };

struct payload {
    struct ms__bytes bytes;
    uint8_t *start; /* the first byte of the payload */
};

/* Read a string, and make it end with a 0 byte. For that the string moves one byte back in the payload, over the last
 * byte of its length, which has been read. NULL: the payload ends before the string does. */
static const char *get_string(struct payload *payload)
{
    uint64_t size = ms__get_varint(&payload->bytes);
    const uint8_t *at = ms__get_bytes(&payload->bytes, size);
    if (!at)
        return NULL;
    uint8_t *text = payload->start + (at - payload->start) - 1;
    memmove(text, at, size);
    text[size] = 0;
    return (const char *)text;
}

static bool has_more(const struct payload *payload)
{
    return payload->bytes.at < payload->bytes.end;
}

static int read_pairs(const ms_reader *reader, struct ms__pairs *pairs, struct payload *payload)
{
    while (has_more(payload)) {
        const char *key = get_string(payload), *value = get_string(payload);
        if (!key || !value)
            return MS_EFORMAT;
        struct ms__pair *grown = ms__reader_grow(reader, pairs->at, &pairs->room, pairs->count + 1, sizeof *grown);
        if (!grown)
            return MS_ENOMEM;
        pairs->at = grown;
        pairs->at[pairs->count++] = (struct ms__pair){key, value};
    }
    return MS_OK;
}

static int read_devices(ms_reader *reader, struct payload *payload)
{
    while (has_more(payload)) {
        uint64_t device = ms__get_varint(&payload->bytes);
        const char *name = get_string(payload);
        if (!name || device >= MS_MAX_DEVICES)
            return MS_EFORMAT;
        reader->device_names[device] = name;
        ms__reader_note_device(reader, (uint32_t)device);
    }
    return MS_OK;
}

/* Make room for a path. Paths before it that the file has not named get no name. */
static bool grow_paths(ms_reader *reader, uint64_t path)
{
    if (path < reader->path_count)
        return true;
    struct ms__name *grown = ms__reader_grow(reader, reader->paths, &reader->path_room, path + 1, sizeof *grown);
    if (!grown)
        return false;
    reader->paths = grown;
    while (reader->path_count <= path)
        reader->paths[reader->path_count++] = (struct ms__name){0};
    return true;
}

static int read_names(ms_reader *reader, struct payload *payload)
{
    uint64_t limit = reader->bytes / MIN_PATH_BYTES < MAX_PATHS ? reader->bytes / MIN_PATH_BYTES : MAX_PATHS;
    for (uint64_t path = ms__get_varint(&payload->bytes); has_more(payload); path++) {
        uint64_t parent = ms__get_varint(&payload->bytes), nth = ms__get_varint(&payload->bytes);
        const char *name = get_string(payload);
        if (!name || path >= limit || (parent >= path && path > MS_UNKNOWN) || nth > UINT32_MAX)
            return MS_EFORMAT;
        if (!grow_paths(reader, path))
            return MS_ENOMEM;
        if (path > MS_UNKNOWN)
            reader->paths[path] = (struct ms__name){name, (ms_path)parent, (uint32_t)nth};
    }
    return payload->bytes.bad ? MS_EFORMAT : MS_OK;
}

/* ---- the table of stacks ---- */

/* A text, or that of a stack `before`, which must have one. NULL: damaged. */
static const char *get_stack_text(const ms_reader *reader, struct payload *payload, uint64_t stack, bool is_file)
{
    uint64_t back = ms__get_varint(&payload->bytes);
    if (!back)
        return get_string(payload);
    if (payload->bytes.bad || back > stack || stack - back >= reader->stack_count)
        return NULL;
    const ms_frame *before = &reader->stacks[stack - back];
    return is_file ? before->file : before->function;
}

static bool read_position(struct payload *payload, ms_frame *frame)
{
    uint64_t line = ms__get_varint(&payload->bytes), lines = ms__get_varint(&payload->bytes);
    uint64_t column = lines ? ms__get_varint(&payload->bytes) : 0, end = lines ? ms__get_varint(&payload->bytes) : 0;
    if (payload->bytes.bad || line > INT32_MAX || lines > INT32_MAX || column > INT32_MAX || end > INT32_MAX)
        return false;
    frame->line = (uint32_t)line;
    frame->end_line = lines ? (uint32_t)(line + lines - 1) : 0;
    frame->column = (uint32_t)column;
    frame->end_column = (uint32_t)end;
    return true;
}

static bool read_forward(struct payload *payload, uint64_t stack, ms_frame *frame)
{
    uint64_t back = ms__get_varint(&payload->bytes);
    if (payload->bytes.bad || !back || back > stack || stack - back <= MS_STACK_LOST)
        return false;
    frame->forward = (ms_stack)(stack - back);
    return true;
}

static bool read_stack(const ms_reader *reader, struct payload *payload, uint64_t stack, ms_frame *frame)
{
    uint64_t out = ms__get_varint(&payload->bytes), kind = ms__get_varint(&payload->bytes);
    *frame = (ms_frame){.function = get_stack_text(reader, payload, stack, false)};
    if (!frame->function || out > stack || kind > MS__STACK_NODE)
        return false;
    frame->outer = out ? (ms_stack)(stack - out) : (ms_stack)MS_STACK_NONE;
    if (out && frame->outer <= MS_STACK_LOST)
        return false;
    if (kind != MS__STACK_FRAME)
        return kind == MS__STACK_OPERATOR || read_forward(payload, stack, frame);
    frame->file = get_stack_text(reader, payload, stack, true);
    return frame->file && read_position(payload, frame);
}

static int read_stacks(ms_reader *reader, struct payload *payload)
{
    uint64_t limit = reader->bytes / MIN_STACK_BYTES < MS_STACKS_MAX ? reader->bytes / MIN_STACK_BYTES : MS_STACKS_MAX;
    for (uint64_t stack = ms__get_varint(&payload->bytes); has_more(payload); stack++) {
        ms_frame frame;
        if (stack > limit || !read_stack(reader, payload, stack, &frame))
            return MS_EFORMAT;
        ms_frame *grown = stack < reader->stack_count ? reader->stacks
                                                      : ms__reader_grow(reader, reader->stacks, &reader->stack_room,
                                                                        stack + 1, sizeof *reader->stacks);
        if (!grown)
            return MS_ENOMEM;
        reader->stacks = grown;
        while (reader->stack_count <= stack)
            reader->stacks[reader->stack_count++] = (ms_frame){0};
        reader->stacks[stack] = frame;
    }
    return payload->bytes.bad ? MS_EFORMAT : MS_OK;
}

/* What is called in a frame: a text, or that of a stack before, if that could be read. False: damaged. */
static bool read_called(const ms_reader *reader, struct payload *payload, uint64_t stack, const char **called)
{
    uint64_t code = ms__get_varint(&payload->bytes);
    *called = code == MS__CALLED_TEXT ? get_string(payload) : NULL;
    if (payload->bytes.bad || code <= MS__CALLED_TEXT)
        return !payload->bytes.bad;
    uint64_t back = code - MS__CALLED_TEXT;
    *called = back < stack ? reader->stacks[stack - back].called : NULL;
    return back < stack;
}

static int read_all_called(const ms_reader *reader, struct payload *payload)
{
    for (uint64_t stack = ms__get_varint(&payload->bytes); has_more(payload); stack++) {
        const char *called;
        if (stack >= reader->stack_count || !read_called(reader, payload, stack, &called))
            return MS_EFORMAT;
        if (reader->stacks[stack].file)
            reader->stacks[stack].called = called;
    }
    return payload->bytes.bad ? MS_EFORMAT : MS_OK;
}

static int read_model_frames(const ms_reader *reader, struct payload *payload)
{
    for (uint64_t stack = 0; has_more(payload);) {
        uint64_t more = ms__get_varint(&payload->bytes);
        if (payload->bytes.bad || more >= reader->stack_count - stack)
            return MS_EFORMAT;
        stack += more;
        reader->stacks[stack].is_model = reader->stacks[stack].file != NULL;
    }
    return MS_OK;
}

static int read_sources(ms_reader *reader, struct payload *payload)
{
    while (has_more(payload)) {
        uint64_t stack = ms__get_varint(&payload->bytes);
        ms_source source = {.bytes = ms__get_varint(&payload->bytes)};
        source.modified = ms__get_varint(&payload->bytes);
        source.checksum = (uint32_t)ms__get_varint(&payload->bytes);
        source.file = stack < reader->stack_count ? reader->stacks[stack].file : NULL;
        if (payload->bytes.bad)
            return MS_EFORMAT;
        if (!source.file)
            continue;
        ms_source *grown =
            ms__reader_grow(reader, reader->sources, &reader->source_room, reader->source_count + 1, sizeof *grown);
        if (!grown)
            return MS_ENOMEM;
        reader->sources = grown;
        reader->sources[reader->source_count++] = source;
    }
    return MS_OK;
}

/* The end chunk says how many events were lost in all. Losses after the last key frame are recorded only there. */
static void count_lost_events(ms_reader *reader)
{
    for (size_t i = 0; i < reader->end.count; i++) {
        if (strcmp(reader->end.at[i].key, "lost") != 0)
            continue;
        unsigned long long lost = strtoull(reader->end.at[i].value, NULL, 10);
        reader->lost = lost > reader->lost ? lost : reader->lost;
    }
}

int ms__metadata_read(ms_reader *reader, uint32_t kind, uint8_t *bytes, size_t size)
{
    struct payload payload = {.bytes = {.at = bytes, .end = bytes + size}, .start = bytes};
    int error = MS_OK;
    switch (kind) {
    case MS__CHUNK_INFO:
        return read_pairs(reader, &reader->info, &payload);
    case MS__CHUNK_NAMES:
        return read_names(reader, &payload);
    case MS__CHUNK_STACKS:
        return read_stacks(reader, &payload);
    case MS__CHUNK_CALLED:
        return read_all_called(reader, &payload);
    case MS__CHUNK_MODEL_FRAMES:
        return read_model_frames(reader, &payload);
    case MS__CHUNK_SOURCES:
        return read_sources(reader, &payload);
    case MS__CHUNK_DEVICES:
        return read_devices(reader, &payload);
    default:
        error = read_pairs(reader, &reader->end, &payload);
        count_lost_events(reader);
        return error;
    }
}

void ms__metadata_free(ms_reader *reader)
{
    while (reader->payloads) {
        struct ms__payload *payload = reader->payloads;
        reader->payloads = payload->next;
        ms__reader_free(reader, payload);
    }
    ms__reader_free(reader, reader->info.at);
    ms__reader_free(reader, reader->end.at);
    ms__reader_free(reader, reader->paths);
    ms__reader_free(reader, reader->stacks);
    ms__reader_free(reader, reader->sources);
}

/* ---- answers ---- */
bool ms_reader_info(const ms_reader *reader, bool of_end, size_t index, const char **key, const char **value)
{
    const struct ms__pairs *pairs = of_end ? &reader->end : &reader->info;
    if (index >= pairs->count)
        return false;
    *key = pairs->at[index].key;
    *value = pairs->at[index].value;
    return true;
}

uint32_t ms_reader_devices(const ms_reader *reader)
{
    return reader->devices;
}

const char *ms_reader_device(const ms_reader *reader, uint32_t device)
{
    return device < MS_MAX_DEVICES ? reader->device_names[device] : NULL;
}

/* MS_GLOBAL and MS_UNKNOWN count even if the file names no path. */
uint32_t ms_reader_paths(const ms_reader *reader)
{
    return reader->path_count > MS_UNKNOWN ? (uint32_t)reader->path_count : MS_UNKNOWN + 1;
}

const char *ms_reader_path(const ms_reader *reader, ms_path path, ms_path *parent, uint32_t *nth)
{
    const struct ms__name *name = path > MS_UNKNOWN && path < reader->path_count ? &reader->paths[path] : NULL;
    *parent = name ? name->parent : MS_GLOBAL;
    *nth = name ? name->nth : 0;
    if (path <= MS_UNKNOWN)
        return path == MS_GLOBAL ? "Global" : "unknown";
    return name && name->name ? name->name : "?";
}
