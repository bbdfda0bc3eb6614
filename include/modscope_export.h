/* modscope_export.h - converts a capture to formats that other programs read; docs/export.md describes them.
 *
 * Category and owner of a block are those by all claims, later ones included, as in a snapshot of that moment.
 *
 * Names      The caller gives the names of modules, devices and lines (ms_export_job), because what a reader of the
 *            output sees is the caller's choice: full names, or shortened ones. They are written as they are.
 * Errors     Functions return MS_OK or a negative MS_E* code. After an error the output ends somewhere.
 * Memory     malloc and free. It grows with the blocks held at a time and with the names, not with the number of
 *            events. Everything is freed before a function returns. The job, and what it points to, stays the caller's.
 * Threads    An export uses the job's reader, which one thread at a time may use. */
#ifndef MODSCOPE_EXPORT_H
#define MODSCOPE_EXPORT_H

#include "modscope_capture.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_export_text {
    const char *bytes;
    size_t size;
} ms_export_text;

/* Where a block was made. A text whose `bytes` is NULL is not known; nor is line 0. */
typedef struct ms_export_place {
    ms_export_text file, function, operator_name;
    uint32_t line;
} ms_export_place;

typedef struct ms_export_job {
    ms_reader *reader;
    uint64_t last; /* the moment to end with, or the nearest one before it that can be known */
    /* Names by path and by device, quoted and escaped as the format needs them. */
    const ms_export_text *modules, *devices;
    size_t module_count, device_count;
    const ms_export_place *places; /* by stack, with texts like the names */
    size_t place_count;
    ms_export_text title; /* of the program */
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
} ms_export_job;

/* Each writes the whole capture up to job->last. MS_ENOMEM. MS_EIO: the capture cannot be read, and errno says why.
 * MS_ESTOPPED: `put` returned false. */
int ms_export_perfetto(const ms_export_job *job); /* a trace for ui.perfetto.dev; names are UTF-8 */
int ms_export_csv(const ms_export_job *job);      /* a row for each event; names are quoted as RFC 4180 has it */
int ms_export_json(const ms_export_job *job);     /* an object for each event, in a line; names are JSON strings */
/* The pickle that torch.cuda._memory_viz reads; names are UTF-8. MS_EINVAL, too: the blocks do not fit into the address
 * space. */
int ms_export_torch(const ms_export_job *job);

#ifdef __cplusplus
}
#endif
#endif
