/* perfetto_blocks.c - the largest blocks that each device holds at its peak, as slices of a Perfetto trace: how long
 * each was held, what for, and the line that made it. Slices of one track must not overlap, so each block has a track
 * of its own; the tracks of a device have one name, by which Perfetto shows them as one. */
#include "base/array.h"
#include "base/map.h"
#include "export/perfetto_packets.h"

#include <stdlib.h>

enum { MOST_NAME = 256, MOST_FILE = 1024 }; /* bytes of a text */

struct chosen {
    ms_captured_block block; /* as it is at the peak */
    bool has_track, is_open, in_key_frame;
};

struct ms__export_block_tracks {
    const ms_export_job *job;
    ms__export_counters *counters;
    uint64_t first;
    struct chosen *chosen; /* those of a device are together, the largest first */
    size_t count, room;
    struct ms__map by_add;       /* key_of_add -> index in chosen */
    struct ms__map open_by_slot; /* slot -> index in chosen */
};

/* ---- which blocks ---- */

/* Two blocks have the same key only if one was dropped and the other added in the same microsecond. */
static uint64_t key_of_add(uint32_t slot, uint64_t made_at)
{
    return (uint64_t)slot << 32 ^ made_at;
}

/* The largest first, then the oldest. */
static int compare_chosen(const void *left, const void *right)
{
    const ms_captured_block *a = &((const struct chosen *)left)->block, *b = &((const struct chosen *)right)->block;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->made_at != b->made_at)
        return a->made_at < b->made_at ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Keep the largest of the blocks from `first` on. */
static void keep_largest(ms__export_block_tracks *tracks, size_t first)
{
    size_t found = tracks->count - first;
    if (found > 1)
        qsort(&tracks->chosen[first], found, sizeof *tracks->chosen, compare_chosen);
    tracks->count = first + (found < MS_EXPORT_MOST_BLOCKS ? found : MS_EXPORT_MOST_BLOCKS);
}

static int choose_on_device(ms__export_block_tracks *tracks, const ms_cursor *cursor, uint32_t device)
{
    enum { SORTED_AT_ONCE = 8 * MS_EXPORT_MOST_BLOCKS };
    size_t first = tracks->count;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);) {
        if (block.device != device || !block.bytes)
            continue;
        if (tracks->count == first + SORTED_AT_ONCE)
            keep_largest(tracks, first);
        if (!MS__ARRAY_GROW(tracks->chosen, tracks->room, tracks->count + 1))
            return MS_ENOMEM;
        tracks->chosen[tracks->count++] = (struct chosen){.block = block};
    }
    keep_largest(tracks, first);
    return MS_OK;
}

static int choose_blocks(ms__export_block_tracks *tracks, const ms_survey *survey)
{
    ms_cursor *cursor;
    int error = ms_cursor_open(tracks->job->reader, &cursor);
    if (error)
        return error;
    error = ms_cursor_load_later_claims(cursor);
    for (uint32_t device = 0; !error && device < survey->devices; device++) {
        const ms_capture_peak *peak = &survey->peaks[device];
        if (peak->bytes && !(error = ms_cursor_seek(cursor, peak->moment)))
            error = choose_on_device(tracks, cursor, device);
    }
    ms_cursor_close(cursor);
    for (size_t i = 0; !error && i < tracks->count; i++) {
        const ms_captured_block *block = &tracks->chosen[i].block;
        error = ms__map_set(&tracks->by_add, key_of_add(block->slot, block->made_at), (uint32_t)i) ? MS_OK : MS_ENOMEM;
    }
    return error;
}

int ms__export_block_tracks_open(const ms_export_job *job, const ms_survey *survey, ms__export_counters *counters,
                                 uint64_t first, ms__export_block_tracks **out)
{
    ms__export_block_tracks *tracks = calloc(1, sizeof *tracks);
    if (!tracks)
        return MS_ENOMEM;
    *out = tracks;
    *tracks = (ms__export_block_tracks){.job = job, .counters = counters, .first = first};
    return choose_blocks(tracks, survey);
}

void ms__export_block_tracks_close(ms__export_block_tracks *tracks)
{
    if (!tracks)
        return;
    free(tracks->chosen);
    ms__map_clear(&tracks->by_add);
    ms__map_clear(&tracks->open_by_slot);
    free(tracks);
}

/* ---- slices ---- */
static void annotate_known(ms__export_packets *packets, const char *name, ms_export_text text, size_t most)
{
    if (text.bytes)
        ms__export_annotate_text(packets, name, ms__export_text_cut(text, most));
}

static void annotate_block(const ms__export_block_tracks *tracks, ms__export_packets *packets,
                           const ms_captured_block *block)
{
    ms_export_place place = ms__export_place_of(tracks->job, block->stack);
    ms__export_annotate(packets, "bytes", block->bytes);
    ms__export_annotate_text(packets, "category", ms__export_text_of(ms_category_name(block->category)));
    if (block->kind)
        ms__export_annotate_text(packets, "kind", ms__export_text_of(ms_kind_name(block->kind)));
    ms__export_annotate_text(packets, "module",
                             ms__export_text_cut(ms__export_module(tracks->job, block->path), MOST_NAME));
    ms__export_annotate_text(packets, "phase", ms__export_text_of(ms_phase_name(block->phase)));
    ms__export_annotate(packets, "step", block->step);
    annotate_known(packets, "file", place.file, MOST_FILE);
    if (place.line)
        ms__export_annotate(packets, "line", place.line);
    annotate_known(packets, "function", place.function, MOST_NAME);
    annotate_known(packets, "operator", place.operator_name, MOST_NAME);
}

static int begin_block(ms__export_block_tracks *tracks, ms__export_packets *packets, uint32_t index)
{
    struct chosen *chosen = &tracks->chosen[index];
    const ms_captured_block *block = &chosen->block;
    uint64_t track = tracks->first + index;
    ms_export_text module = ms__export_text_cut(ms__export_module(tracks->job, block->path), MOST_NAME);
    if (!ms__map_set(&tracks->open_by_slot, block->slot, index))
        return MS_ENOMEM;
    if (!chosen->has_track)
        ms__export_track(packets, track, ms__export_counters_device_track(tracks->counters, packets, block->device),
                         ms__export_text_of("largest blocks at the peak"), MS_EXPORT_DEVICE_TRACKS);
    chosen->has_track = chosen->is_open = true;
    ms__export_open_named_slice(
        packets, track,
        (ms__export_name){ms__export_text_of(ms_category_name(block->category)), ms__export_text_of(" of "), module});
    annotate_block(tracks, packets, block);
    ms__export_close_event(packets);
    return MS_OK;
}

static void end_block(ms__export_block_tracks *tracks, ms__export_packets *packets, uint32_t index)
{
    tracks->chosen[index].is_open = false;
    ms__map_remove(&tracks->open_by_slot, tracks->chosen[index].block.slot);
    ms__export_end_slice(packets, tracks->first + index);
}

/* MS_EXPORT_NONE: it was not chosen. */
static uint32_t find_chosen(const ms__export_block_tracks *tracks, uint32_t slot, uint64_t made_at, uint64_t bytes,
                            uint32_t device)
{
    uint32_t index = ms__map_index(&tracks->by_add, key_of_add(slot, made_at));
    if (index == MS_EXPORT_NONE)
        return MS_EXPORT_NONE;
    const ms_captured_block *block = &tracks->chosen[index].block;
    bool is_it = block->slot == slot && block->made_at == made_at && block->bytes == bytes && block->device == device;
    return is_it ? index : MS_EXPORT_NONE;
}

/* ---- events ---- */
int ms__export_block_tracks_apply(ms__export_block_tracks *tracks, ms__export_packets *packets, const ms_event *event)
{
    uint32_t index;
    if (event->op == MS_OP_ADD) {
        index = find_chosen(tracks, event->slot, event->time, event->bytes, event->device);
        return index == MS_EXPORT_NONE || tracks->chosen[index].is_open ? MS_OK : begin_block(tracks, packets, index);
    }
    index = event->op == MS_OP_DROP ? ms__map_index(&tracks->open_by_slot, event->slot) : MS_EXPORT_NONE;
    if (index != MS_EXPORT_NONE)
        end_block(tracks, packets, index);
    return MS_OK;
}

/* Blocks that the key frame does not contain end before others begin: the slot may be the same. */
int ms__export_block_tracks_load_key_frame(ms__export_block_tracks *tracks, ms__export_packets *packets,
                                           const ms_cursor *cursor)
{
    ms_captured_block block;
    int error = MS_OK;
    for (size_t i = 0; i < tracks->count; i++)
        tracks->chosen[i].in_key_frame = false;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);) {
        uint32_t index = find_chosen(tracks, block.slot, block.made_at, block.bytes, block.device);
        if (index != MS_EXPORT_NONE)
            tracks->chosen[index].in_key_frame = true;
    }
    for (uint32_t i = 0; i < tracks->count; i++)
        if (tracks->chosen[i].is_open && !tracks->chosen[i].in_key_frame)
            end_block(tracks, packets, i);
    for (uint32_t i = 0; !error && i < tracks->count; i++)
        if (tracks->chosen[i].in_key_frame && !tracks->chosen[i].is_open)
            error = begin_block(tracks, packets, i);
    return error;
}

void ms__export_block_tracks_end(ms__export_block_tracks *tracks, ms__export_packets *packets)
{
    for (uint32_t i = 0; i < tracks->count; i++)
        if (tracks->chosen[i].is_open)
            end_block(tracks, packets, i);
}
