/* oom_lines.h - which lines of the program made what a device holds. */
#ifndef MS_OOM_LINES_H
#define MS_OOM_LINES_H

#include "core/base.h"

struct ms__oom_line {
    const char *file, *function; /* they belong to the watch */
    uint32_t line;
    int64_t bytes;
};

/* The lines that made most bytes, largest first; returns how many there are, at most `most`. The caller holds
 * ledger->lock. Never allocates. */
uint32_t ms__oom_find_lines(const ms_ledger *ledger, uint32_t device, struct ms__oom_line *largest, uint32_t most);

#endif
