/* heap.h - addresses for blocks whose own are not in a capture: no two that are held at once overlap.
 *
 * A place is for blocks of one size. When its block is gone it is idle, until one of that size comes
 * again or it is let go; its addresses are then not used again. */
#ifndef MS_EXPORT_HEAP_H
#define MS_EXPORT_HEAP_H

#include "export/index.h"

typedef struct mse_place {
    uint64_t address, size;
    uint32_t older, newer; /* idle ones: in the order in which they became so */
    uint32_t below, above; /* idle ones of its size */
    bool idle;
} mse_place;

/* total = sum over places, idle or not */
typedef struct mse_heap {
    mse_place *places;
    size_t count, room;
    uint32_t unused;         /* a place that was let go; `older` leads to the next */
    uint32_t oldest, newest; /* idle one */
    mse_index by_size;       /* the idle one on top */
    uint64_t next;           /* address */
    uint64_t total;
} mse_heap;

void mse_heap_open(mse_heap *heap);
void mse_heap_close(mse_heap *heap);
/* An idle place of this size, or MSE_NONE. It is idle no more. */
uint32_t mse_heap_again(mse_heap *heap, uint64_t size);
/* A new place. MS_ENOMEM, MS_EINVAL: no address is left. */
int mse_heap_new(mse_heap *heap, uint64_t size, uint32_t *place);
/* Its block is gone. False when memory runs out. */
bool mse_heap_leave(mse_heap *heap, uint32_t place);
/* Let an idle place go. */
void mse_heap_drop(mse_heap *heap, uint32_t place);

#endif
