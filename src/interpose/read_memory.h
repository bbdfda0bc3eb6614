/* read_memory.h - read memory at an address that may not be mapped. */
#ifndef MS_READ_MEMORY_H
#define MS_READ_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MS_READ_MEMORY_MAX = 512 };

/* Copy `bytes` bytes, at most MS_READ_MEMORY_MAX. False if some of them are not readable. */
bool ms_read_memory(uintptr_t address, void *copy, size_t bytes);

#endif
