/* read_memory.c - read memory at an address that may not be mapped.
 *
 * A write from unmapped memory into a pipe fails with EFAULT instead of raising a signal.
 * The copy fits into the pipe's buffer, so the write does not block. */
#include "interpose/read_memory.h"

#include <unistd.h>

bool ms_read_memory(uintptr_t address, void *copy, size_t bytes)
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    bool copied =
        write(ends[1], (const void *)address, bytes) == (ssize_t)bytes && read(ends[0], copy, bytes) == (ssize_t)bytes;
    close(ends[0]);
    close(ends[1]);
    return copied;
}
