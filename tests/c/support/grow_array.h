/* grow_array.h - arrays of the models that grow. The program aborts when memory runs out. */
#ifndef MS_TEST_GROW_ARRAY_H
#define MS_TEST_GROW_ARRAY_H

#include <stdint.h>
#include <stdlib.h>

static inline void *grow_array(void *memory, uint64_t used, size_t each, uint64_t *room)
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
