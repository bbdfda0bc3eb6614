/* array.h - arrays that grow. The owner keeps the pointer, the count and the room; all three begin as zero. */
#ifndef MS_BASE_ARRAY_H
#define MS_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Make `array` large enough for `count` items: MS__ARRAY_GROW(list->items, list->room, list->count + 1). `room` is a
 * size_t. False if memory runs out; nothing has changed then. */
#define MS__ARRAY_GROW(array, room, count) ms__array_grow((void **)&(array), &(room), (count), sizeof *(array))

static inline bool ms__array_grow(void **array, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return true;
    size_t wanted = *room ? *room * 2 : 64;
    wanted = wanted < count ? count : wanted;
    void *grown = wanted <= SIZE_MAX / size ? realloc(*array, wanted * size) : NULL;
    if (!grown)
        return false;
    *array = grown;
    *room = wanted;
    return true;
}

#endif
