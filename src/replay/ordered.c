/* ordered.c - lists of blocks and calls, ordered by what they belong to. */
#include "replay/ordered.h"

#include "base/array.h"

#include <stdlib.h>

static int compare_entries(const void *a, const void *b)
{
    const ms__replay_entry *first = a, *second = b;
    if (first->key != second->key)
        return first->key < second->key ? -1 : 1;
    if (first->value != second->value)
        return first->value < second->value ? -1 : 1;
    return first->index < second->index ? -1 : first->index > second->index;
}

bool ms__replay_ordered_add(ms__replay_ordered *list, uint32_t key, uint64_t value, uint32_t index)
{
    if (!MS__ARRAY_GROW(list->at, list->room, (size_t)list->count + 1))
        return false;
    list->at[list->count++] = (ms__replay_entry){.key = key, .index = index, .value = value};
    return true;
}

void ms__replay_ordered_sort(ms__replay_ordered *list)
{
    if (list->count)
        qsort(list->at, list->count, sizeof *list->at, compare_entries);
}

uint32_t ms__replay_ordered_find(const ms__replay_ordered *list, uint32_t key, uint64_t value)
{
    ms__replay_entry wanted = {.key = key, .value = value};
    uint32_t from = 0, to = list->count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (compare_entries(&list->at[middle], &wanted) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}
