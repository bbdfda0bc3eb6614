/* sink.h - bytes on their way out. What is put after a failure goes nowhere. */
#ifndef MS_EXPORT_SINK_H
#define MS_EXPORT_SINK_H

#include "export/export.h"

enum {
    MSE_SINK = 256 * 1024, /* bytes that are given away at once */
    MSE_ROOM = 256,        /* that one call may ask for */
    MSE_DIGITS = 20,       /* of the largest number */
};

typedef struct mse_sink {
    const mse_job *job;
    uint8_t *begin, *at, *full; /* at > full: less than MSE_ROOM is left */
    double part;
    bool failed;
} mse_sink;

/* False when memory runs out. */
bool mse_sink_open(mse_sink *sink, const mse_job *job);
void mse_sink_flush(mse_sink *sink);
/* Without what was not flushed. */
void mse_sink_close(mse_sink *sink);

/* Where MSE_ROOM bytes may be written; say how many were by sink->at. */
static inline uint8_t *mse_room(mse_sink *sink)
{
    if (sink->at > sink->full)
        mse_sink_flush(sink);
    return sink->at;
}

void mse_put(mse_sink *sink, const void *bytes, size_t size);
void mse_put_number(mse_sink *sink, uint64_t number);

static inline void mse_put_byte(mse_sink *sink, uint8_t byte)
{
    *mse_room(sink) = byte;
    sink->at++;
}

static inline void mse_put_text(mse_sink *sink, mse_text text)
{
    mse_put(sink, text.bytes, text.size);
}

void mse_put_word(mse_sink *sink, const char *word);

/* Digits at `to`; returns what comes after them. At most MSE_DIGITS. */
uint8_t *mse_digits(uint8_t *to, uint64_t number);

#endif
