/* segments.c - made-up addresses for the blocks of a capture. */
#include "export/segments.h"

#include "modscope_capture.h"

#include <stdlib.h>

#define FIRST_ADDRESS UINT64_C(0x7f0000000000) /* where the memory of a device often begins */
#define LAST_ADDRESS (UINT64_C(1) << 62)
enum { ALIGNMENT = 512 };

void mse_segments_open(mse_segments *segments)
{
    *segments = (mse_segments){.removed = MSE_NONE, .oldest = MSE_NONE, .newest = MSE_NONE, .next = FIRST_ADDRESS};
}

void mse_segments_close(mse_segments *segments)
{
    free(segments->all);
    mse_map_close(&segments->by_size);
    mse_segments_open(segments);
}

static void link_newest(mse_segments *segments, uint32_t index)
{
    mse_segment *segment = &segments->all[index];
    segment->older = segments->newest;
    segment->newer = MSE_NONE;
    if (segments->newest == MSE_NONE)
        segments->oldest = index;
    else
        segments->all[segments->newest].newer = index;
    segments->newest = index;
}

static void unlink_by_age(mse_segments *segments, const mse_segment *segment)
{
    if (segment->older == MSE_NONE)
        segments->oldest = segment->newer;
    else
        segments->all[segment->older].newer = segment->newer;
    if (segment->newer == MSE_NONE)
        segments->newest = segment->older;
    else
        segments->all[segment->newer].older = segment->older;
}

/* The size is in the map, or is removed from it: no memory is needed. */
static void unlink_by_size(mse_segments *segments, const mse_segment *segment)
{
    if (segment->below != MSE_NONE)
        segments->all[segment->below].above = segment->above;
    if (segment->above != MSE_NONE)
        segments->all[segment->above].below = segment->below;
    else if (segment->below == MSE_NONE)
        mse_map_remove(&segments->by_size, segment->size);
    else
        mse_map_set(&segments->by_size, segment->size, segment->below);
}

static void take_idle(mse_segments *segments, mse_segment *segment)
{
    unlink_by_age(segments, segment);
    unlink_by_size(segments, segment);
    segment->idle = false;
}

uint32_t mse_segments_reuse(mse_segments *segments, uint64_t size)
{
    uint32_t index = mse_map_get(&segments->by_size, size);
    if (index != MSE_NONE)
        take_idle(segments, &segments->all[index]);
    return index;
}

static bool new_entry(mse_segments *segments, uint32_t *index)
{
    *index = segments->removed;
    if (*index != MSE_NONE) {
        segments->removed = segments->all[*index].older;
        return true;
    }
    *index = (uint32_t)segments->count;
    return segments->count < MSE_NONE &&
           mse_grow((void **)&segments->all, &segments->room, ++segments->count, sizeof(mse_segment));
}

int mse_segments_add(mse_segments *segments, uint64_t size, uint32_t *index)
{
    if (size > LAST_ADDRESS || segments->next > LAST_ADDRESS - size)
        return MS_EINVAL;
    if (!new_entry(segments, index))
        return MS_ENOMEM;
    segments->all[*index] = (mse_segment){.address = segments->next, .size = size};
    segments->next += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    segments->total += size;
    return MS_OK;
}

bool mse_segments_release(mse_segments *segments, uint32_t index)
{
    mse_segment *segment = &segments->all[index];
    uint32_t below = mse_map_get(&segments->by_size, segment->size);
    if (!mse_map_set(&segments->by_size, segment->size, index))
        return false;
    segment->below = below;
    segment->above = MSE_NONE;
    if (below != MSE_NONE)
        segments->all[below].above = index;
    segment->idle = true;
    link_newest(segments, index);
    return true;
}

void mse_segments_remove(mse_segments *segments, uint32_t index)
{
    mse_segment *segment = &segments->all[index];
    take_idle(segments, segment);
    segments->total -= segment->size;
    segment->older = segments->removed;
    segments->removed = index;
}
