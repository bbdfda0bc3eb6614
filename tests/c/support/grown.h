/* grown.h - arrays of the models that grow; a model that has no memory cannot go on. */
#ifndef MS_TEST_GROWN_H
#define MS_TEST_GROWN_H

#include <stdint.h>
#include <stdlib.h>

static inline void *grown(void *memory, uint64_t used, size_t each, uint64_t *room)
{
    if (used < *room)
        return memory;
    *room = *room ? *room * 2 : 16;
    memory = realloc(memory, *room * each);
    if (!memory)
        abort();
    return memory;
}

#endif
