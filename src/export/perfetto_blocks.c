/* perfetto_blocks.c - the largest blocks that each device holds at its peak, as slices of a Perfetto trace: how long
 * each was held, what for, and the line that made it. Slices of one track must not overlap, so each block has a track
 * of its own; the tracks of a device have one name, by which Perfetto shows them as one. */
#include "export/hash_map.h"
#include "export/perfetto_packets.h"

#include <stdlib.h>

enum { MOST_NAME = 256, MOST_FILE = 1024 }; /* bytes of a text */

struct chosen {
    ms_captured_block block; /* as it is at the peak */
    bool has_track, is_open, in_key_frame;
};

struct mse_block_tracks {
    const mse_job *job;
    mse_counters *counters;
    uint64_t first;
    struct chosen *chosen; /* those of a device are together, the largest first */
    size_t count, room;
    mse_map by_add;       /* key_of_add -> index in chosen */
    mse_map open_by_slot; /* slot -> index in chosen */
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
static void keep_largest(mse_block_tracks *tracks, size_t first)
{
    size_t found = tracks->count - first;
    if (found > 1)
        qsort(&tracks->chosen[first], found, sizeof *tracks->chosen, compare_chosen);
    tracks->count = first + (found < MSE_MOST_BLOCKS ? found : MSE_MOST_BLOCKS);
}

static int choose_on_device(mse_block_tracks *tracks, const ms_cursor *cursor, uint32_t device)
{
    enum { SORTED_AT_ONCE = 8 * MSE_MOST_BLOCKS };
    size_t first = tracks->count;
    ms_captured_block block;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);) {
        if (block.device != device || !block.bytes)
            continue;
        if (tracks->count == first + SORTED_AT_ONCE)
            keep_largest(tracks, first);
        if (!mse_grow((void **)&tracks->chosen, &tracks->room, tracks->count + 1, sizeof *tracks->chosen))
            return MS_ENOMEM;
        tracks->chosen[tracks->count++] = (struct chosen){.block = block};
    }
    keep_largest(tracks, first);
    return MS_OK;
}

static int choose_blocks(mse_block_tracks *tracks, const ms_survey *survey)
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
        error = mse_map_set(&tracks->by_add, key_of_add(block->slot, block->made_at), (uint32_t)i) ? MS_OK : MS_ENOMEM;
    }
    return error;
}

int mse_block_tracks_open(const mse_job *job, const ms_survey *survey, mse_counters *counters, uint64_t first,
                          mse_block_tracks **out)
{
    mse_block_tracks *tracks = calloc(1, sizeof *tracks);
    if (!tracks)
        return MS_ENOMEM;
    *out = tracks;
    *tracks = (mse_block_tracks){.job = job, .counters = counters, .first = first};
    return choose_blocks(tracks, survey);
}

void mse_block_tracks_close(mse_block_tracks *tracks)
{
    if (!tracks)
        return;
    free(tracks->chosen);
    mse_map_close(&tracks->by_add);
    mse_map_close(&tracks->open_by_slot);
    free(tracks);
}

/* ---- slices ---- */
static void annotate_known(mse_packets *packets, const char *name, mse_text text, size_t most)
{
    if (text.bytes)
        mse_annotate_text(packets, name, mse_text_cut(text, most));
}

static void annotate_block(const mse_block_tracks *tracks, mse_packets *packets, const ms_captured_block *block)
{
    mse_place place = mse_place_of(tracks->job, block->stack);
    mse_annotate(packets, "bytes", block->bytes);
    mse_annotate_text(packets, "category", mse_text_of(mse_categories[block->category]));
    if (block->kind)
        mse_annotate_text(packets, "kind", mse_text_of(mse_kinds[block->kind]));
    mse_annotate_text(packets, "module", mse_text_cut(mse_module(tracks->job, block->path), MOST_NAME));
    mse_annotate_text(packets, "phase", mse_text_of(mse_phases[block->phase]));
    mse_annotate(packets, "step", block->step);
    annotate_known(packets, "file", place.file, MOST_FILE);
    if (place.line)
        mse_annotate(packets, "line", place.line);
    annotate_known(packets, "function", place.function, MOST_NAME);
    annotate_known(packets, "operator", place.operator_name, MOST_NAME);
}

static int begin_block(mse_block_tracks *tracks, mse_packets *packets, uint32_t index)
{
    struct chosen *chosen = &tracks->chosen[index];
    const ms_captured_block *block = &chosen->block;
    uint64_t track = tracks->first + index;
    mse_text module = mse_text_cut(mse_module(tracks->job, block->path), MOST_NAME);
    if (!mse_map_set(&tracks->open_by_slot, block->slot, index))
        return MS_ENOMEM;
    if (!chosen->has_track)
        mse_track(packets, track, mse_counters_device_track(tracks->counters, packets, block->device),
                  mse_text_of("largest blocks at the peak"), MSE_DEVICE_TRACKS);
    chosen->has_track = chosen->is_open = true;
    mse_open_named_slice(packets, track,
                         (mse_name){mse_text_of(mse_categories[block->category]), mse_text_of(" of "), module});
    annotate_block(tracks, packets, block);
    mse_close_event(packets);
    return MS_OK;
}

static void end_block(mse_block_tracks *tracks, mse_packets *packets, uint32_t index)
{
    tracks->chosen[index].is_open = false;
    mse_map_remove(&tracks->open_by_slot, tracks->chosen[index].block.slot);
    mse_end_slice(packets, tracks->first + index);
}

/* MSE_NONE: it was not chosen. */
static uint32_t find_chosen(const mse_block_tracks *tracks, uint32_t slot, uint64_t made_at, uint64_t bytes,
                            uint32_t device)
{
    uint32_t index = mse_map_get(&tracks->by_add, key_of_add(slot, made_at));
    if (index == MSE_NONE)
        return MSE_NONE;
    const ms_captured_block *block = &tracks->chosen[index].block;
    bool is_it = block->slot == slot && block->made_at == made_at && block->bytes == bytes && block->device == device;
    return is_it ? index : MSE_NONE;
}

/* ---- events ---- */
int mse_block_tracks_apply(mse_block_tracks *tracks, mse_packets *packets, const ms_event *event)
{
    uint32_t index;
    if (event->op == MS_OP_ADD) {
        index = find_chosen(tracks, event->slot, event->time, event->bytes, event->device);
        return index == MSE_NONE || tracks->chosen[index].is_open ? MS_OK : begin_block(tracks, packets, index);
    }
    index = event->op == MS_OP_DROP ? mse_map_get(&tracks->open_by_slot, event->slot) : MSE_NONE;
    if (index != MSE_NONE)
        end_block(tracks, packets, index);
    return MS_OK;
}

/* Blocks that the key frame does not contain end before others begin: the slot may be the same. */
int mse_block_tracks_load_key_frame(mse_block_tracks *tracks, mse_packets *packets, const ms_cursor *cursor)
{
    ms_captured_block block;
    int error = MS_OK;
    for (size_t i = 0; i < tracks->count; i++)
        tracks->chosen[i].in_key_frame = false;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &block);) {
        uint32_t index = find_chosen(tracks, block.slot, block.made_at, block.bytes, block.device);
        if (index != MSE_NONE)
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

void mse_block_tracks_end(mse_block_tracks *tracks, mse_packets *packets)
{
    for (uint32_t i = 0; i < tracks->count; i++)
        if (tracks->chosen[i].is_open)
            end_block(tracks, packets, i);
}
