/* oom_lines.c - which lines of the program made what a device holds, for the out-of-memory report. Memory has just run
 * out, so nothing is allocated: of a program with more lines than fit here, the lines that are found first are shown.
 */
#include "core/ledger/oom_lines.h"

#include "core/ledger/block_table.h"
#include "core/ledger/ledger.h"

#include <string.h>

enum { MOST_LINES = 512 }; /* a power of two; at most three quarters are used */

/* The innermost frame that is of a file. What a backward node makes counts for the line of the forward, if that is
 * known; else an operator's stack is that of the frame around it. */
static bool find_frame(const ms_watch *watch, ms_stack stack, ms_frame *frame)
{
    bool found = ms_stack_frame(watch, stack, frame);
    while (found && !frame->file)
        found = ms_stack_frame(watch, frame->forward ? frame->forward : frame->outer, frame);
    return found;
}

/* The texts of frames are stored once, so their addresses identify them. */
static struct ms__oom_line *find_line(struct ms__oom_line *lines, uint32_t *used, const ms_frame *frame)
{
    uint64_t hash = ((uintptr_t)frame->file ^ (uint64_t)frame->line << 32) * UINT64_C(0x9E3779B97F4A7C15);
    for (uint32_t at = (uint32_t)(hash >> 40);; at++) {
        struct ms__oom_line *line = &lines[at % MOST_LINES];
        if (line->file == frame->file && line->line == frame->line && line->function == frame->function)
            return line;
        if (line->file)
            continue;
        if (*used >= MOST_LINES / 4 * 3)
            return NULL;
        ++*used;
        *line = (struct ms__oom_line){.file = frame->file, .function = frame->function, .line = frame->line};
        return line;
    }
}

uint32_t ms__oom_find_lines(const ms_ledger *ledger, uint32_t device, struct ms__oom_line *largest, uint32_t most)
{
    struct ms__oom_line lines[MOST_LINES];
    memset(lines, 0, sizeof lines);
    uint32_t used = 0, count = 0;
    const struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;) {
        ms_frame frame;
        struct ms__oom_line *line = NULL;
        if (block->device == device && find_frame(ledger->watch, *ms__block_stack(&ledger->blocks, at - 1), &frame))
            line = find_line(lines, &used, &frame);
        if (line)
            line->bytes += (int64_t)block->bytes;
    }
    for (; count < most; count++) {
        struct ms__oom_line *best = &lines[0];
        for (uint32_t i = 1; i < MOST_LINES; i++)
            best = lines[i].bytes > best->bytes ? &lines[i] : best;
        if (!best->bytes)
            break;
        largest[count] = *best;
        best->bytes = 0;
    }
    return count;
}
