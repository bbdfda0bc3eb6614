/* heap.h - memory for a watch under test: counted, never zeroed, refused on demand.
 * Several threads may use it at once; refuse_at and forever are set while only one does. */
#ifndef MS_TEST_HEAP_H
#define MS_TEST_HEAP_H

#include "modscope.h"

#include <stdatomic.h>
#include <stdbool.h>

struct heap {
    long refuse_at; /* the allocation to refuse, counting from 1; 0: none */
    bool forever;   /* refuse all later ones, too */
    _Atomic long asked;
    _Atomic long refused;
    _Atomic long live;         /* blocks not yet freed */
    _Atomic size_t live_bytes; /* what they hold */
};

/* Options that take all memory from `heap`; the rest is zero. */
ms_options heap_options(struct heap *heap);

#endif
