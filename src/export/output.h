/* output.h - a buffer in front of job->put. After a failure, bytes are discarded. */
#ifndef MS_EXPORT_OUTPUT_H
#define MS_EXPORT_OUTPUT_H

#include "export/export.h"

enum {
    MSE_OUTPUT_BYTES = 256 * 1024, /* size of the buffer */
    MSE_RESERVE_BYTES = 256,       /* that mse_output_reserve guarantees */
    MSE_MAX_DIGITS = 20,           /* of a 64-bit number */
};

typedef struct mse_output {
    const mse_job *job;
    uint8_t *begin, *at, *reserve_limit; /* at > reserve_limit: less than MSE_RESERVE_BYTES is left */
    double part;                         /* of the work that is done, 0 to 1 */
    bool failed;
} mse_output;

/* False: out of memory. */
bool mse_output_open(mse_output *output, const mse_job *job);
void mse_output_flush(mse_output *output);
/* Bytes that were not flushed are discarded. */
void mse_output_close(mse_output *output);

/* Return where MSE_RESERVE_BYTES may be written. The caller advances output->at by what it has written. */
static inline uint8_t *mse_output_reserve(mse_output *output)
{
    if (output->at > output->reserve_limit)
        mse_output_flush(output);
    return output->at;
}

void mse_put(mse_output *output, const void *bytes, size_t size);
void mse_put_number(mse_output *output, uint64_t number);

static inline void mse_put_byte(mse_output *output, uint8_t byte)
{
    *mse_output_reserve(output) = byte;
    output->at++;
}

static inline void mse_put_text(mse_output *output, mse_text text)
{
    mse_put(output, text.bytes, text.size);
}

void mse_put_string(mse_output *output, const char *string);

/* Write a number in decimal, at most MSE_MAX_DIGITS bytes. Returns the end. */
uint8_t *mse_digits(uint8_t *to, uint64_t number);

#endif
