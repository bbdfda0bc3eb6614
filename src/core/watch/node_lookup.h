/* node_lookup.h - the search for the call in which a node was created. It takes no lock, and the ring's own
 * thread may write meanwhile. It is a header because every backward node passes through it; call_stack.c is
 * its one user.
 *
 *     node numbers    0    1    2    3    4    5    6    7
 *     record 0        [-------------- Model -------------)     [0, 7)
 *     record 1             [---- block ------)                 [1, 5)  outer 0
 *     record 2                  [-- act -)                     [2, 4)  outer 1
 *     record 3                                 [head)          [5, 6)  outer 0
 *
 * To find the call of node 4: record 2 is the last that begins at or before 4. It has ended by then, so
 * follow `outer` to record 1, which contains 4. Node 7 is in no call: it belongs to MS_GLOBAL. */
#ifndef MS_NODE_LOOKUP_H
#define MS_NODE_LOOKUP_H

#include "core/watch/watch.h"

/* The index of the last record in [from, to) with begin <= number; from - 1 if there is none. */
MS__RARE uint64_t search_records(const struct ms__call_ring *ring, uint64_t number, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t middle = from + (to - from) / 2;
        if (MS__LOAD(ms__call_ring_at(ring, middle)->begin) <= number)
            from = middle + 1;
        else
            to = middle;
    }
    return from - 1;
}

/* The same among [oldest, end). Backward runs the nodes in descending order, so the record is usually `start`,
 * where the last search ended, or one shortly before it: try those first. */
MS__INLINE uint64_t find_last_record(const struct ms__call_ring *ring, uint64_t number, uint64_t oldest, uint64_t end,
                                     uint64_t start)
{
    if (MS__UNLIKELY(start - oldest >= end - oldest))
        return search_records(ring, number, oldest, end);
    if (MS__LOAD(ms__call_ring_at(ring, start)->begin) <= number) {
        if (start + 1 == end || MS__LOAD(ms__call_ring_at(ring, start + 1)->begin) > number)
            return start;
        return search_records(ring, number, start + 1, end);
    }
    for (int step = 0; step < 4 && start > oldest; step++)
        if (MS__LOAD(ms__call_ring_at(ring, --start)->begin) <= number)
            return start;
    return search_records(ring, number, oldest, start);
}

/* The path of the innermost call that contains `number`. `index` is the last record that begins at or before
 * it; *outermost becomes the last record that was read. All numbers [*from, number] have the same owner. */
MS__INLINE ms_path find_containing_call(const struct ms__call_ring *ring, uint64_t number, uint64_t index,
                                        uint64_t oldest, uint64_t *from, uint64_t *outermost)
{
    for (uint64_t inner_end = 0;;) {
        *outermost = index;
        const struct ms__call_record *record = ms__call_ring_at(ring, index);
        uint64_t begin = MS__LOAD(record->begin);
        uint32_t length = MS__LOAD(record->length);
        *from = begin > inner_end ? begin : inner_end;
        if (length == MS__OPEN || number - begin < length)
            return MS__LOAD(record->path);
        inner_end = begin + length;
        uint64_t outer = MS__LOAD(record->outer);
        if (outer == MS__NONE) {
            *from = inner_end;
            return MS_GLOBAL;
        }
        if (outer < oldest || outer >= index) /* discarded before, or overwritten while we read it */
            return MS_UNKNOWN;
        index = outer;
    }
}

/* ms__call_ring_find without regard to calls that have no record. */
MS__INLINE ms_path find_by_records(const struct ms__call_ring *ring, uint64_t number, uint64_t *start, uint64_t *from,
                                   uint64_t *record)
{
    uint64_t unrecorded = MS__LOAD(ring->unrecorded_from);
    if (MS__UNLIKELY(number >= unrecorded)) {
        ms_path path = MS__LOAD(ring->unrecorded_path);
        if (MS__LOAD(ring->unrecorded_from) == unrecorded)
            return path; /* otherwise the node has its record by now */
    }
    uint64_t oldest = MS__LOAD(ring->oldest), end = MS__LOAD(ring->end);
    uint64_t index = find_last_record(ring, number, oldest, end, *start);
    if (MS__UNLIKELY(index + 1 <= oldest))
        return MS__LOAD(ring->oldest) > MS__LOAD(ring->first) ? MS_UNKNOWN : MS_GLOBAL;
    *start = index;
    uint64_t outermost;
    ms_path path = find_containing_call(ring, number, index, oldest, from, &outermost);
    /* The writer may have overwritten what we read. */
    if (MS__UNLIKELY(outermost < MS__LOAD(ring->oldest)))
        return MS_UNKNOWN;
    if (path != MS_GLOBAL)
        *record = outermost;
    return path;
}

/* The path of the call in which node `number` was created. The search begins near record *start, and stores
 * there where it ended. Unless the answer is MS_UNKNOWN, all numbers [*from, number] have the same answer, and
 * it never changes. *record is the index of the call's record, or MS__NONE. */
MS__INLINE ms_path ms__call_ring_find(const struct ms__call_ring *ring, uint64_t number, uint64_t *start,
                                      uint64_t *from, uint64_t *record)
{
    *from = number;
    *record = MS__NONE;
    ms_path path = find_by_records(ring, number, start, from, record);
    if (MS__UNLIKELY(number >= MS__LOAD(ring->unknown_from))) {
        uint64_t unknown_to = MS__LOAD(ring->unknown_to);
        if (number < unknown_to) {
            *record = MS__NONE;
            return MS_UNKNOWN;
        }
        if (*from < unknown_to) /* the call that contains the node may also contain the unknown ones before it */
            *from = unknown_to;
    }
    return path;
}

#endif
