/* export.h - a capture's events in formats that other programs read. Knows nothing of Python, and
 * sees the core through include/ alone.
 *
 * Every figure is as it turns out to be by all claims, also later ones: what a snapshot of that
 * moment tells. Memory is needed for what is held at a time and for names, not for events. */
#ifndef MS_EXPORT_H
#define MS_EXPORT_H

#include "modscope_capture.h"

#include <string.h>

typedef struct mse_text {
    const char *bytes;
    size_t size;
} mse_text;

typedef struct mse_job {
    ms_reader *reader;
    uint64_t last; /* the moment to end with, or what can be known before it */
    /* Names as the format writes them, with its quotes and escapes: by path, and by device. */
    const mse_text *modules, *devices;
    size_t module_count, device_count;
    mse_text title; /* of the program */
    int32_t pid;
    uint64_t began; /* microseconds since 1970; 0: not known */
    /* torch-snapshot: the capture's device that is this one of torch's; UINT32_MAX: none is. */
    const uint32_t *order;
    size_t order_count;
    /* What is written, bit by bit, and the part of the work that is done. False: stop. */
    bool (*put)(void *context, const void *bytes, size_t size, double part);
    void *context;
} mse_job;

/* Each returns MS_OK, MS_ENOMEM, MS_EIO, or MS_ESTOPPED: `put` said no. mse_torch also MS_EINVAL: there are more
 * bytes than addresses. */
int mse_perfetto(const mse_job *job);
int mse_csv(const mse_job *job);
int mse_json(const mse_job *job);
int mse_torch(const mse_job *job);

static inline mse_text mse_word(const char *word)
{
    return (mse_text){word, strlen(word)};
}

static inline mse_text mse_module(const mse_job *job, ms_path path)
{
    return path < job->module_count ? job->modules[path] : (mse_text){"?", 1};
}

static inline mse_text mse_device(const mse_job *job, uint32_t device)
{
    return device < job->device_count ? job->devices[device] : (mse_text){"?", 1};
}

extern const char *const mse_categories[MS_CATEGORY_COUNT];
extern const char *const mse_phases[MS_OPTIMIZER + 1];

#endif
