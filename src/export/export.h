/* export.h - converts a capture to formats that other programs read. Independent of Python; of the
 * core only include/ is used.
 *
 *     perfetto.c        a Perfetto trace            on perfetto_*.c, protobuf.c
 *     torch_snapshot.c  torch's memory snapshot     on torch_frames.c, pickle.c, segments.c
 *     event_rows.c      one row per event: CSV, JSON
 *     all of them       on replay.c, held_blocks.c, hash_map.c, output.c
 *
 * Category and owner of a block are those by all claims, later ones included, as in a snapshot of that moment. Memory
 * use grows with the blocks held at a time and with the names, not with the number of events. */
#ifndef MS_EXPORT_H
#define MS_EXPORT_H

#include "modscope_capture.h"

#include <string.h>

typedef struct mse_text {
    const char *bytes;
    size_t size;
} mse_text;

/* Where a block was made. A text whose `bytes` is NULL is not known; nor is line 0. */
typedef struct mse_place {
    mse_text file, function, operator_name;
    uint32_t line;
} mse_place;

typedef struct mse_job {
    ms_reader *reader;
    uint64_t last; /* the moment to end with, or the nearest one before it that can be known */
    /* Names by path and by device, quoted and escaped as the format needs them. */
    const mse_text *modules, *devices;
    size_t module_count, device_count;
    const mse_place *places; /* by stack, with texts like the names */
    size_t place_count;
    mse_text title; /* of the program */
    int32_t pid;
    uint64_t began; /* microseconds since 1970; 0: unknown */
    /* torch-snapshot: order[i] is the capture's number of torch's device i; UINT32_MAX: the capture does not have it.
     */
    const uint32_t *order;
    size_t order_count;
    /* Called with one part of the output after the other, and the part of the work that is done, 0 to 1. It returns
     * false to stop the export. */
    bool (*put)(void *context, const void *bytes, size_t size, double part);
    void *context;
} mse_job;

/* MS_ENOMEM, MS_EIO. MS_ESTOPPED: `put` returned false. mse_torch only: MS_EINVAL: the blocks do not fit into the
 * address space. */
int mse_perfetto(const mse_job *job);
int mse_csv(const mse_job *job);
int mse_json(const mse_job *job);
int mse_torch(const mse_job *job);

static inline mse_text mse_text_of(const char *string)
{
    return (mse_text){string, strlen(string)};
}

/* Whether a text is valid UTF-8 without surrogates. */
bool mse_is_utf8(const char *text);

/* The beginning of a text in UTF-8, of at most so many bytes. No character is divided. */
static inline mse_text mse_text_cut(mse_text text, size_t most)
{
    if (text.size <= most)
        return text;
    while (most && ((unsigned char)text.bytes[most] & 0xC0) == 0x80)
        most--;
    return (mse_text){text.bytes, most};
}

static inline mse_text mse_module(const mse_job *job, ms_path path)
{
    return path < job->module_count ? job->modules[path] : (mse_text){"?", 1};
}

static inline mse_text mse_device(const mse_job *job, uint32_t device)
{
    return device < job->device_count ? job->devices[device] : (mse_text){"?", 1};
}

/* A place of which nothing is known for a stack that has none. */
static inline mse_place mse_place_of(const mse_job *job, ms_stack stack)
{
    return stack < job->place_count ? job->places[stack] : (mse_place){{NULL, 0}, {NULL, 0}, {NULL, 0}, 0};
}

extern const char *const mse_categories[MS_CATEGORY_COUNT];
extern const char *const mse_kinds[MS_KIND_COUNT]; /* "" for MS_KIND_NONE */
extern const char *const mse_phases[MS_PHASE_COUNT];

#endif
