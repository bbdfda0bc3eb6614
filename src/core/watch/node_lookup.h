/* node_lookup.h - the search: whose is a node? Without a lock, while the table's own thread writes.
 *
 * In a header because it is on the way of every backward node; frame.c is its one user. */
#ifndef MS_FIND_H
#define MS_FIND_H

#include "core/watch/watch.h"

/* The last record with in <= number among [from, to); from - 1 if there is none. */
MS__RARE uint64_t search(const struct ms__call_ring *table, uint64_t number, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t middle = from + (to - from) / 2;
        if (MS__LOAD(ms__call_ring_at(table, middle)->in) <= number)
            from = middle + 1;
        else
            to = middle;
    }
    return from - 1;
}

/* The last record with in <= number among [low, count), or low - 1 if there is none.
 * Backward walks the numbers down, so it is mostly the record found last or one just
 * before it: look there first. */
MS__INLINE uint64_t last_before(const struct ms__call_ring *table, uint64_t number, uint64_t low, uint64_t count,
                                uint64_t hint)
{
    if (MS__UNLIKELY(hint - low >= count - low))
        return search(table, number, low, count);
    if (MS__LOAD(ms__call_ring_at(table, hint)->in) <= number) {
        if (hint + 1 == count || MS__LOAD(ms__call_ring_at(table, hint + 1)->in) > number)
            return hint;
        return search(table, number, hint + 1, count);
    }
    for (int step = 0; step < 4 && hint > low; step++)
        if (MS__LOAD(ms__call_ring_at(table, --hint)->in) <= number)
            return hint;
    return search(table, number, low, hint);
}

/* Whose `number` is, going out from record `at`, the last that begins at or before it. What
 * lies between the last inner record's end and `number` is whose `number` is. */
MS__INLINE ms_path owner(const struct ms__call_ring *table, uint64_t number, uint64_t at, uint64_t low, uint64_t *from,
                         uint64_t *lowest)
{
    for (uint64_t inner_end = 0;;) {
        *lowest = at;
        const struct ms__record *record = ms__call_ring_at(table, at);
        uint64_t in = MS__LOAD(record->in);
        uint32_t len = MS__LOAD(record->len);
        *from = in > inner_end ? in : inner_end;
        if (len == MS__OPEN || number - in < len)
            return MS__LOAD(record->path);
        inner_end = in + len;
        uint64_t outer = MS__LOAD(record->encloser);
        if (outer == MS__NONE) {
            *from = inner_end;
            return MS_GLOBAL;
        }
        if (outer < low || outer >= at) /* let go; or overwritten while we read it */
            return MS_UNKNOWN;
        at = outer;
    }
}

/* Whose node `number` is. `hint` is where to look first and is updated. All numbers
 * [*from, number] have the same answer, now and for ever, if it is not MS_UNKNOWN. *record is
 * its call's, or MS__NONE. */
MS__INLINE ms_path ms__call_ring_find(const struct ms__call_ring *table, uint64_t number, uint64_t *hint,
                                      uint64_t *from, uint64_t *record)
{
    *from = number;
    *record = MS__NONE;
    uint64_t pending = MS__LOAD(table->pending_in);
    if (MS__UNLIKELY(number >= MS__LOAD(table->unsure_from) && number < MS__LOAD(table->unsure_to)))
        return MS_UNKNOWN;
    if (MS__UNLIKELY(number >= pending)) {
        ms_path path = MS__LOAD(table->pending_path);
        if (MS__LOAD(table->pending_in) == pending)
            return path; /* else it has its record by now */
    }
    uint64_t low = MS__LOAD(table->low), count = MS__LOAD(table->count);
    uint64_t at = last_before(table, number, low, count, *hint);
    if (MS__UNLIKELY(at + 1 <= low))
        return MS__LOAD(table->low) > MS__LOAD(table->origin) ? MS_UNKNOWN : MS_GLOBAL;
    *hint = at;
    uint64_t lowest;
    ms_path path = owner(table, number, at, low, from, &lowest);
    /* The writer may have come round meanwhile. */
    if (MS__UNLIKELY(lowest < MS__LOAD(table->low)))
        return MS_UNKNOWN;
    if (path != MS_GLOBAL)
        *record = lowest;
    return path;
}

#endif
