/* sink.c - bytes on their way out. */
#include "export/sink.h"

#include <stdlib.h>
#include <string.h>

const char *const mse_categories[MS_CATEGORY_COUNT] = {
#define X(name, text) text,
    MS_CATEGORIES(X)
#undef X
};
const char *const mse_phases[MS_OPTIMIZER + 1] = {"idle", "forward", "recompute", "backward", "optimizer"};

bool mse_sink_open(mse_sink *sink, const mse_job *job)
{
    uint8_t *begin = malloc(MSE_SINK);
    *sink = (mse_sink){.job = job, .begin = begin, .at = begin};
    if (begin)
        sink->full = begin + MSE_SINK - MSE_ROOM;
    return begin != NULL;
}

void mse_sink_flush(mse_sink *sink)
{
    size_t size = (size_t)(sink->at - sink->begin);
    sink->at = sink->begin;
    if (size && !sink->failed)
        sink->failed = !sink->job->put(sink->job->context, sink->begin, size, sink->part);
}

void mse_sink_close(mse_sink *sink)
{
    free(sink->begin);
    *sink = (mse_sink){0};
}

void mse_put(mse_sink *sink, const void *bytes, size_t size)
{
    const uint8_t *from = bytes;
    while (size) {
        uint8_t *to = mse_room(sink);
        size_t room = (size_t)(sink->full - to) + MSE_ROOM, part = size < room ? size : room;
        memcpy(to, from, part);
        sink->at += part;
        from += part;
        size -= part;
    }
}

void mse_put_word(mse_sink *sink, const char *word)
{
    mse_put(sink, word, strlen(word));
}

uint8_t *mse_digits(uint8_t *to, uint64_t number)
{
    uint8_t digits[MSE_DIGITS];
    size_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

void mse_put_number(mse_sink *sink, uint64_t number)
{
    sink->at = mse_digits(mse_room(sink), number);
}
