/* layout.c - where the allocator's model puts the blocks of a stream, and what it takes from the GPU for them. */
#include "replay/feed.h"

#include <stdlib.h>

static void note_segment(void *context, ms_segment_change change, uint64_t address, uint64_t bytes, uint64_t stream)
{
    (void)stream;
    ms__replay_feed *feed = context;
    ms_replay_layout *layout = feed->layout;
    if (!MS__ARRAY_GROW(layout->segments, layout->segment_room, layout->segment_count + 1))
        feed->lacks_memory = true;
    if (!feed->lacks_memory)
        layout->segments[layout->segment_count++] =
            (ms_replay_segment){.number = feed->now.number, .address = address, .bytes = bytes, .change = change};
}

void ms__replay_layout_begin(ms__replay_feed *feed)
{
    ms_allocator_on_segment(feed->allocator, note_segment, feed);
}

void ms__replay_layout_place(ms__replay_feed *feed, uint32_t block)
{
    const ms_allocation *allocation = feed->blocks[block].allocation;
    if (!allocation)
        return;
    feed->layout->addresses[block] = ms_allocation_address(allocation);
    feed->layout->bytes[block] = ms_allocation_bytes(allocation);
}

int ms_replay_layout_open(const ms_replay_stream *stream, uint32_t device, const ms_allocator_settings *settings,
                          ms_replay_layout *layout, ms_replay_result *result)
{
    *layout = (ms_replay_layout){0};
    *result = (ms_replay_result){0};
    if (stream->fold_count || !settings)
        return MS_EINVAL;
    layout->addresses = calloc((size_t)stream->block_count + 1, sizeof *layout->addresses);
    layout->bytes = calloc((size_t)stream->block_count + 1, sizeof *layout->bytes);
    ms__replay_feed feed = {.stream = stream, .device = device, .result = result, .layout = layout};
    int error = layout->addresses && layout->bytes ? ms__replay_feed_run(&feed, settings) : MS_ENOMEM;
    if (feed.lacks_memory)
        error = MS_ENOMEM;
    if (error)
        ms_replay_layout_close(layout);
    return error;
}

void ms_replay_layout_close(ms_replay_layout *layout)
{
    free(layout->addresses);
    free(layout->bytes);
    free(layout->segments);
    *layout = (ms_replay_layout){0};
}
