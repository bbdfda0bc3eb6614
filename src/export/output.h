/* output.h - what all exporters share: texts, names of a job, and a buffer in front of job->put, which discards bytes
 * after a failure.
 *
 *     perfetto.c        a Perfetto trace            on perfetto_*.c, protobuf.c
 *     torch_snapshot.c  torch's memory snapshot     on torch_frames.c, pickle.c, segments.c
 *     event_rows.c      one row per event: CSV, JSON
 *     all of them       on walk.c, output.c */
#ifndef MS_EXPORT_OUTPUT_H
#define MS_EXPORT_OUTPUT_H

#include "modscope_export.h"

#include <string.h>

#define MS_EXPORT_NONE UINT32_MAX /* no index, device, phase or path; as ms__map_index says of an absent key */

static inline ms_export_text ms__export_text_of(const char *string)
{
    return (ms_export_text){string, strlen(string)};
}

/* Whether a text is valid UTF-8 without surrogates. */
bool ms__export_is_utf8(const char *text);

/* The beginning of a text in UTF-8, of at most so many bytes. No character is divided. */
static inline ms_export_text ms__export_text_cut(ms_export_text text, size_t most)
{
    if (text.size <= most)
        return text;
    while (most && ((unsigned char)text.bytes[most] & 0xC0) == 0x80)
        most--;
    return (ms_export_text){text.bytes, most};
}

static inline ms_export_text ms__export_module(const ms_export_job *job, ms_path path)
{
    return path < job->module_count ? job->modules[path] : (ms_export_text){"?", 1};
}

static inline ms_export_text ms__export_device(const ms_export_job *job, uint32_t device)
{
    return device < job->device_count ? job->devices[device] : (ms_export_text){"?", 1};
}

/* A place of which nothing is known for a stack that has none. */
static inline ms_export_place ms__export_place_of(const ms_export_job *job, ms_stack stack)
{
    return stack < job->place_count ? job->places[stack] : (ms_export_place){{NULL, 0}, {NULL, 0}, {NULL, 0}, 0};
}

enum {
    MS_EXPORT_OUTPUT_BYTES = 256 * 1024, /* size of the buffer */
    MS_EXPORT_RESERVE_BYTES = 256,       /* that ms__export_output_reserve guarantees */
    MS_EXPORT_MAX_DIGITS = 20,           /* of a 64-bit number */
};

typedef struct ms__export_output {
    const ms_export_job *job;
    uint8_t *begin, *at, *reserve_limit; /* at > reserve_limit: less than MS_EXPORT_RESERVE_BYTES is left */
    double part;                         /* of the work that is done, 0 to 1 */
    bool failed;
} ms__export_output;

/* Returns false if memory runs out. */
bool ms__export_output_open(ms__export_output *output, const ms_export_job *job);
void ms__export_output_flush(ms__export_output *output);
/* Bytes that were not flushed are discarded. */
void ms__export_output_close(ms__export_output *output);

/* Return where MS_EXPORT_RESERVE_BYTES may be written. The caller advances output->at by what it has written. */
static inline uint8_t *ms__export_output_reserve(ms__export_output *output)
{
    if (output->at > output->reserve_limit)
        ms__export_output_flush(output);
    return output->at;
}

void ms__export_put(ms__export_output *output, const void *bytes, size_t size);
void ms__export_put_number(ms__export_output *output, uint64_t number);

static inline void ms__export_put_byte(ms__export_output *output, uint8_t byte)
{
    *ms__export_output_reserve(output) = byte;
    output->at++;
}

static inline void ms__export_put_text(ms__export_output *output, ms_export_text text)
{
    ms__export_put(output, text.bytes, text.size);
}

void ms__export_put_string(ms__export_output *output, const char *string);

/* Write a number in decimal, at most MS_EXPORT_MAX_DIGITS bytes. Returns the end. */
uint8_t *ms__export_digits(uint8_t *to, uint64_t number);

#endif
