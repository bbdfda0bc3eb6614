/* heap.c - addresses for blocks whose own are not in a capture. */
#include "export/heap.h"

#include "modscope_capture.h"

#include <stdlib.h>

#define FIRST_ADDRESS UINT64_C(0x7f0000000000) /* where a device's memory often begins */
#define LAST_ADDRESS (UINT64_C(1) << 62)
enum { ALIGNED = 512 };

void mse_heap_open(mse_heap *heap)
{
    *heap = (mse_heap){.unused = MSE_NONE, .oldest = MSE_NONE, .newest = MSE_NONE, .next = FIRST_ADDRESS};
}

void mse_heap_close(mse_heap *heap)
{
    free(heap->places);
    mse_index_close(&heap->by_size);
    mse_heap_open(heap);
}

static void link_newest(mse_heap *heap, uint32_t at)
{
    mse_place *place = &heap->places[at];
    place->older = heap->newest;
    place->newer = MSE_NONE;
    if (heap->newest == MSE_NONE)
        heap->oldest = at;
    else
        heap->places[heap->newest].newer = at;
    heap->newest = at;
}

static void unlink_by_age(mse_heap *heap, const mse_place *place)
{
    if (place->older == MSE_NONE)
        heap->oldest = place->newer;
    else
        heap->places[place->older].newer = place->newer;
    if (place->newer == MSE_NONE)
        heap->newest = place->older;
    else
        heap->places[place->newer].older = place->older;
}

/* The size is in the index already, or nothing is set there: it needs no memory. */
static void unlink_by_size(mse_heap *heap, const mse_place *place)
{
    if (place->below != MSE_NONE)
        heap->places[place->below].above = place->above;
    if (place->above != MSE_NONE)
        heap->places[place->above].below = place->below;
    else if (place->below == MSE_NONE)
        mse_index_drop(&heap->by_size, place->size);
    else
        mse_index_set(&heap->by_size, place->size, place->below);
}

static void wake(mse_heap *heap, mse_place *place)
{
    unlink_by_age(heap, place);
    unlink_by_size(heap, place);
    place->idle = false;
}

uint32_t mse_heap_again(mse_heap *heap, uint64_t size)
{
    uint32_t at = mse_index_get(&heap->by_size, size);
    if (at != MSE_NONE)
        wake(heap, &heap->places[at]);
    return at;
}

static bool find_unused(mse_heap *heap, uint32_t *at)
{
    *at = heap->unused;
    if (*at != MSE_NONE) {
        heap->unused = heap->places[*at].older;
        return true;
    }
    *at = (uint32_t)heap->count;
    return heap->count < MSE_NONE && mse_grow((void **)&heap->places, &heap->room, ++heap->count, sizeof(mse_place));
}

int mse_heap_new(mse_heap *heap, uint64_t size, uint32_t *at)
{
    if (size > LAST_ADDRESS || heap->next > LAST_ADDRESS - size)
        return MS_EINVAL;
    if (!find_unused(heap, at))
        return MS_ENOMEM;
    heap->places[*at] = (mse_place){.address = heap->next, .size = size};
    heap->next += (size + ALIGNED - 1) / ALIGNED * ALIGNED;
    heap->total += size;
    return MS_OK;
}

bool mse_heap_leave(mse_heap *heap, uint32_t at)
{
    mse_place *place = &heap->places[at];
    uint32_t below = mse_index_get(&heap->by_size, place->size);
    if (!mse_index_set(&heap->by_size, place->size, at))
        return false;
    place->below = below;
    place->above = MSE_NONE;
    if (below != MSE_NONE)
        heap->places[below].above = at;
    place->idle = true;
    link_newest(heap, at);
    return true;
}

void mse_heap_drop(mse_heap *heap, uint32_t at)
{
    mse_place *place = &heap->places[at];
    wake(heap, place);
    heap->total -= place->size;
    place->older = heap->unused;
    heap->unused = at;
}
