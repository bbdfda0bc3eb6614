/* layout.c - Stream.layout: where the allocator's model puts blocks, and its segments, as columns for the page. */
#include "capture_api/capture_api.h"

#include <string.h>

enum {
    UNIT = 512,
    VARINT = 10
}; /* addresses and sizes are multiples of the unit; a varint has at most so many bytes */

static uint8_t *put_number(uint8_t *at, uint64_t value)
{
    for (; value > 127; value >>= 7)
        *at++ = (uint8_t)(value & 127) | 128;
    *at++ = (uint8_t)value;
    return at;
}

/* Put the size of a column, which lies at `begin` + VARINT, before it. */
static uint8_t *end_column(uint8_t *begin, const uint8_t *end)
{
    size_t size = (size_t)(end - begin) - VARINT;
    uint8_t *at = put_number(begin, size);
    memmove(at, begin + VARINT, size);
    return at + size;
}

static bool is_listed(const ms_replay_block *block, uint32_t device)
{
    return block->device == device && !block->outside;
}

static uint8_t *put_addresses(uint8_t *begin, const ms_replay_stream *stream, uint32_t device,
                              const ms_replay_layout *layout)
{
    uint8_t *at = begin + VARINT;
    int64_t latest = 0;
    for (uint32_t i = 0; i < stream->block_count; i++) {
        if (!is_listed(&stream->blocks[i], device))
            continue;
        int64_t address = (int64_t)(layout->addresses[i] / UNIT), by = address - latest;
        at = put_number(at, address ? 1 + (by < 0 ? (uint64_t)-by * 2 - 1 : (uint64_t)by * 2) : 0);
        latest = address ? address : latest;
    }
    return end_column(begin, at);
}

static uint8_t *put_sizes(uint8_t *begin, const ms_replay_stream *stream, uint32_t device,
                          const ms_replay_layout *layout)
{
    uint8_t *at = begin + VARINT;
    for (uint32_t i = 0; i < stream->block_count; i++)
        if (is_listed(&stream->blocks[i], device))
            at = put_number(at, layout->bytes[i] / UNIT);
    return end_column(begin, at);
}

static uint8_t *put_segments(uint8_t *begin, const ms_replay_layout *layout)
{
    uint8_t *at = begin + VARINT;
    uint64_t latest = 0;
    for (size_t i = 0; i < layout->segment_count; i++) {
        const ms_replay_segment *segment = &layout->segments[i];
        at = put_number(at, segment->number - latest);
        at = put_number(at, (uint64_t)segment->change);
        at = put_number(at, segment->address / UNIT);
        at = put_number(at, segment->bytes / UNIT);
        latest = segment->number;
    }
    return end_column(begin, at);
}

PyObject *msr_layout(const ms_replay_stream *stream, PyObject *args, PyObject *named)
{
    static char *names[] = {"device", "version", "conf", NULL};
    unsigned device;
    const char *version = NULL, *conf = NULL;
    ms_allocator_settings settings;
    ms_replay_layout layout;
    ms_replay_result result;
    uint8_t *columns = NULL, *end = NULL;
    int error;
    if (!PyArg_ParseTupleAndKeywords(args, named, "I|$zz:layout", names, &device, &version, &conf) ||
        !msr_allocator_settings(&settings, version, conf, NULL, NULL))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = ms_replay_layout_open(stream, device, &settings, &layout, &result);
    if (!error) {
        columns = PyMem_RawMalloc((2 * (size_t)stream->block_count + 4 * layout.segment_count + 3) * VARINT);
        if (columns)
            end = put_segments(put_sizes(put_addresses(columns, stream, device, &layout), stream, device, &layout),
                               &layout);
        ms_replay_layout_close(&layout);
    }
    Py_END_ALLOW_THREADS
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_ValueError, "layout: the stream is folded, or it has no device %u", device);
    if (error)
        return msr_raise(error);
    PyObject *bytes = columns ? PyBytes_FromStringAndSize((const char *)columns, end - columns) : PyErr_NoMemory();
    PyMem_RawFree(columns);
    return bytes;
}
