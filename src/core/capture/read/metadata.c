/* metadata.c - what a capture says in words: about the run, its devices and its modules. */
#include "core/capture/read/reader.h"

#include <stdlib.h>

/* Every path takes three bytes of the file, at the least: no file has more paths than this. And no program. */
enum { PATH_BYTES = 3, PATHS_MOST = 1 << 24 };

struct words {
    struct ms__bytes bytes;
    uint8_t *first; /* of the payload */
};

/* It moves one byte forward, over its length, so that there is room for its end: no memory is needed. NULL: it is cut
 * off. */
static const char *get_string(struct words *words)
{
    uint64_t size = ms__get_varint(&words->bytes);
    const uint8_t *at = ms__get_bytes(&words->bytes, size);
    if (!at)
        return NULL;
    uint8_t *text = words->first + (at - words->first) - 1;
    memmove(text, at, size);
    text[size] = 0;
    return (const char *)text;
}

static bool more(const struct words *words)
{
    return words->bytes.at < words->bytes.end;
}

static int read_pairs(const ms_reader *reader, struct ms__pairs *pairs, struct words *words)
{
    while (more(words)) {
        const char *key = get_string(words), *value = get_string(words);
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

static int read_devices(ms_reader *reader, struct words *words)
{
    while (more(words)) {
        uint64_t device = ms__get_varint(&words->bytes);
        const char *name = get_string(words);
        if (!name || device >= MS_MAX_DEVICES)
            return MS_EFORMAT;
        reader->device_names[device] = name;
        ms__reader_met_device(reader, (uint32_t)device);
    }
    return MS_OK;
}

/* Room for a path. What lies before it and was not named has no name. */
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

static int read_names(ms_reader *reader, struct words *words)
{
    uint64_t most = reader->bytes / PATH_BYTES < PATHS_MOST ? reader->bytes / PATH_BYTES : PATHS_MOST;
    for (uint64_t path = ms__get_varint(&words->bytes); more(words); path++) {
        uint64_t parent = ms__get_varint(&words->bytes), nth = ms__get_varint(&words->bytes);
        const char *name = get_string(words);
        if (!name || path >= most || (parent >= path && path > MS_UNKNOWN) || nth > UINT32_MAX)
            return MS_EFORMAT;
        if (!grow_paths(reader, path))
            return MS_ENOMEM;
        if (path > MS_UNKNOWN)
            reader->paths[path] = (struct ms__name){name, (ms_path)parent, (uint32_t)nth};
    }
    return words->bytes.bad ? MS_EFORMAT : MS_OK;
}

/* How many events were lost is the last thing that the writer says. */
static void read_lost(ms_reader *reader)
{
    for (size_t i = 0; i < reader->end.count; i++) {
        if (strcmp(reader->end.at[i].key, "lost") != 0)
            continue;
        unsigned long long lost = strtoull(reader->end.at[i].value, NULL, 10);
        reader->lost = lost > reader->lost ? lost : reader->lost;
    }
}

int ms__words_read(ms_reader *reader, uint32_t kind, uint8_t *bytes, size_t size)
{
    struct words words = {.bytes = {.at = bytes, .end = bytes + size}, .first = bytes};
    int error = MS_OK;
    switch (kind) {
    case MS__CHUNK_INFO:
        return read_pairs(reader, &reader->info, &words);
    case MS__CHUNK_NAMES:
        return read_names(reader, &words);
    case MS__CHUNK_DEVICES:
        return read_devices(reader, &words);
    default:
        error = read_pairs(reader, &reader->end, &words);
        read_lost(reader);
        return error;
    }
}

void ms__words_close(ms_reader *reader)
{
    while (reader->kept) {
        struct ms__kept *kept = reader->kept;
        reader->kept = kept->next;
        ms__reader_free(reader, kept);
    }
    ms__reader_free(reader, reader->info.at);
    ms__reader_free(reader, reader->end.at);
    ms__reader_free(reader, reader->paths);
}

/* ---- what is asked ---- */
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

/* The two that every capture has are there even where nothing was named. */
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
