/* output.c - a buffer in front of job->put. */
#include "export/output.h"

#include <stdlib.h>
#include <string.h>

bool ms__export_output_open(ms__export_output *output, const ms_export_job *job)
{
    uint8_t *begin = malloc(MS_EXPORT_OUTPUT_BYTES);
    *output = (ms__export_output){.job = job, .begin = begin, .at = begin};
    if (begin)
        output->reserve_limit = begin + MS_EXPORT_OUTPUT_BYTES - MS_EXPORT_RESERVE_BYTES;
    return begin != NULL;
}

void ms__export_output_flush(ms__export_output *output)
{
    size_t size = (size_t)(output->at - output->begin);
    output->at = output->begin;
    if (size && !output->failed)
        output->failed = !output->job->put(output->job->context, output->begin, size, output->part);
}

void ms__export_output_close(ms__export_output *output)
{
    free(output->begin);
    *output = (ms__export_output){0};
}

void ms__export_put(ms__export_output *output, const void *bytes, size_t size)
{
    const uint8_t *from = bytes;
    while (size) {
        uint8_t *to = ms__export_output_reserve(output);
        size_t room = (size_t)(output->reserve_limit - to) + MS_EXPORT_RESERVE_BYTES, part = size < room ? size : room;
        memcpy(to, from, part);
        output->at += part;
        from += part;
        size -= part;
    }
}

void ms__export_put_string(ms__export_output *output, const char *string)
{
    ms__export_put(output, string, strlen(string));
}

uint8_t *ms__export_digits(uint8_t *to, uint64_t number)
{
    uint8_t digits[MS_EXPORT_MAX_DIGITS];
    size_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

void ms__export_put_number(ms__export_output *output, uint64_t number)
{
    output->at = ms__export_digits(ms__export_output_reserve(output), number);
}

bool ms__export_is_utf8(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t more = *at < 0x80 ? 0 : *at < 0xC2 ? 4 : *at < 0xE0 ? 1 : *at < 0xF0 ? 2 : *at < 0xF5 ? 3 : 4;
        uint32_t letter = more == 0 ? *at : *at & (0x3Fu >> more);
        if (more == 4)
            return false;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xC0) != 0x80)
                return false;
            letter = letter << 6 | (at[i] & 0x3Fu);
        }
        bool is_overlong = (more == 2 && letter < 0x800) || (more == 3 && letter < 0x10000);
        if (is_overlong || letter > 0x10FFFF || (letter >= 0xD800 && letter < 0xE000))
            return false;
        at += more + 1;
    }
    return true;
}
