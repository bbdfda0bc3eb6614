/* heap.c - malloc that counts, fills memory with a pattern, and fails when asked to. */
#include "heap.h"

#include <stdlib.h>
#include <string.h>

#define NEW_BYTE 0xA5  /* not zero: the core must not expect zeroed memory */
#define DEAD_BYTE 0x5A /* overwrites freed memory, so that later reads are noticed */

#define SPOILED 65536 /* bytes of a block that are filled; more would slow the tests down */

union header {
    size_t bytes;
    max_align_t align;
};

static void *spoil(void *memory, int byte, size_t bytes)
{
    return memset(memory, byte, bytes < SPOILED ? bytes : SPOILED);
}

static void *heap_alloc(void *context, size_t bytes)
{
    struct heap *heap = context;
    long asked = ++heap->asked;
    if (heap->refuse_at && (asked == heap->refuse_at || (heap->forever && asked > heap->refuse_at))) {
        heap->refused++;
        return NULL;
    }
    union header *block = malloc(sizeof *block + bytes);
    if (!block)
        abort();
    block->bytes = bytes;
    heap->live++;
    heap->live_bytes += bytes;
    return spoil(block + 1, NEW_BYTE, bytes);
}

static void heap_free(void *context, void *memory)
{
    struct heap *heap = context;
    union header *block = (union header *)memory - 1;
    heap->live--;
    heap->live_bytes -= block->bytes;
    spoil(memory, DEAD_BYTE, block->bytes);
    free(block);
}

ms_options heap_options(struct heap *heap)
{
    return (ms_options){.alloc = heap_alloc, .free = heap_free, .context = heap};
}
