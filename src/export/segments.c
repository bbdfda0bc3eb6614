/* segments.c - made-up addresses for the blocks of a capture. */
#include "export/torch_snapshot.h"

#include "modscope_capture.h"

#include <stdlib.h>

#define FIRST_ADDRESS UINT64_C(0x7f0000000000) /* where the memory of a device often begins */
#define LAST_ADDRESS (UINT64_C(1) << 62)
enum { ALIGNMENT = 512 };

void ms__export_segments_open(ms__export_segments *segments)
{
    *segments = (ms__export_segments){
        .removed = MS_EXPORT_NONE, .oldest = MS_EXPORT_NONE, .newest = MS_EXPORT_NONE, .next = FIRST_ADDRESS};
}

void ms__export_segments_close(ms__export_segments *segments)
{
    free(segments->all);
    ms__map_clear(&segments->by_size);
    ms__export_segments_open(segments);
}

static void link_newest(ms__export_segments *segments, uint32_t index)
{
    ms__export_segment *segment = &segments->all[index];
    segment->older = segments->newest;
    segment->newer = MS_EXPORT_NONE;
    if (segments->newest == MS_EXPORT_NONE)
        segments->oldest = index;
    else
        segments->all[segments->newest].newer = index;
    segments->newest = index;
}

static void unlink_by_age(ms__export_segments *segments, const ms__export_segment *segment)
{
    if (segment->older == MS_EXPORT_NONE)
        segments->oldest = segment->newer;
    else
        segments->all[segment->older].newer = segment->newer;
    if (segment->newer == MS_EXPORT_NONE)
        segments->newest = segment->older;
    else
        segments->all[segment->newer].older = segment->older;
}

/* The size is in the map, or is removed from it: no memory is needed. */
static void unlink_by_size(ms__export_segments *segments, const ms__export_segment *segment)
{
    if (segment->below != MS_EXPORT_NONE)
        segments->all[segment->below].above = segment->above;
    if (segment->above != MS_EXPORT_NONE)
        segments->all[segment->above].below = segment->below;
    else if (segment->below == MS_EXPORT_NONE)
        ms__map_remove(&segments->by_size, segment->size);
    else
        ms__map_set(&segments->by_size, segment->size, segment->below);
}

static void take_idle(ms__export_segments *segments, ms__export_segment *segment)
{
    unlink_by_age(segments, segment);
    unlink_by_size(segments, segment);
    segment->idle = false;
}

uint32_t ms__export_segments_reuse(ms__export_segments *segments, uint64_t size)
{
    uint32_t index = ms__map_index(&segments->by_size, size);
    if (index != MS_EXPORT_NONE)
        take_idle(segments, &segments->all[index]);
    return index;
}

static bool new_entry(ms__export_segments *segments, uint32_t *index)
{
    *index = segments->removed;
    if (*index != MS_EXPORT_NONE) {
        segments->removed = segments->all[*index].older;
        return true;
    }
    *index = (uint32_t)segments->count;
    return segments->count < MS_EXPORT_NONE && MS__ARRAY_GROW(segments->all, segments->room, ++segments->count);
}

int ms__export_segments_add(ms__export_segments *segments, uint64_t size, uint32_t *index)
{
    if (size > LAST_ADDRESS || segments->next > LAST_ADDRESS - size)
        return MS_EINVAL;
    if (!new_entry(segments, index))
        return MS_ENOMEM;
    segments->all[*index] = (ms__export_segment){.address = segments->next, .size = size};
    segments->next += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    segments->total += size;
    return MS_OK;
}

bool ms__export_segments_release(ms__export_segments *segments, uint32_t index)
{
    ms__export_segment *segment = &segments->all[index];
    uint32_t below = ms__map_index(&segments->by_size, segment->size);
    if (!ms__map_set(&segments->by_size, segment->size, index))
        return false;
    segment->below = below;
    segment->above = MS_EXPORT_NONE;
    if (below != MS_EXPORT_NONE)
        segments->all[below].above = index;
    segment->idle = true;
    link_newest(segments, index);
    return true;
}

void ms__export_segments_remove(ms__export_segments *segments, uint32_t index)
{
    ms__export_segment *segment = &segments->all[index];
    take_idle(segments, segment);
    segments->total -= segment->size;
    segment->older = segments->removed;
    segments->removed = index;
}
