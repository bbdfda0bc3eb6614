/* edit.c - edits of a stream: sizes and devices of blocks, blocks that are inserted; and the ordered lists that edits
 * search. */
#include "replay/edit.h"

#include <stdlib.h>

#define MOST_BYTES (UINT64_C(1) << 62)

ms_replay_edit *ms_replay_edit_open(const ms_replay_stream *stream)
{
    ms_replay_edit *edit = calloc(1, sizeof *edit);
    ms__replay_changed_block *blocks = malloc(((size_t)stream->block_count + 1) * sizeof *blocks);
    uint8_t *marks = calloc((size_t)stream->call_count + 1, 1);
    if (!edit || !blocks || !marks) {
        free(edit);
        free(blocks);
        free(marks);
        return NULL;
    }
    *edit = (ms_replay_edit){.stream = stream,
                             .blocks = blocks,
                             .marks = marks,
                             .last_event = stream->event_count,
                             .most_reserved = UINT64_MAX};
    for (uint32_t i = 0; i < stream->block_count; i++)
        blocks[i] = (ms__replay_changed_block){
            .bytes = stream->blocks[i].requested, .device = stream->blocks[i].device, .end = stream->blocks[i].drop};
    return edit;
}

void ms_replay_edit_close(ms_replay_edit *edit)
{
    if (!edit)
        return;
    free(edit->blocks);
    free(edit->inserted);
    free(edit->calls);
    free(edit->marks);
    free(edit);
}

/* ---- blocks ---- */

bool ms_replay_block_is_selected(const ms_replay_stream *stream, uint32_t index, const ms_replay_selection *selection)
{
    const ms_replay_block *block = &stream->blocks[index];
    return (!selection->categories || selection->categories >> block->category & 1) &&
           (!selection->phases || selection->phases >> block->phase & 1) &&
           (selection->device == MS_REPLAY_NONE || selection->device == block->device) &&
           (!selection->kinds || selection->kinds >> block->kind & 1) && block->requested >= selection->min_bytes &&
           ms_replay_path_is_below(stream, block->path, selection->root);
}

/* The device is the one that earlier edits gave the block. */
static bool is_selected(const ms_replay_edit *edit, uint32_t index, const ms_replay_selection *selection)
{
    const ms_replay_block *block = &edit->stream->blocks[index];
    return (!selection->categories || selection->categories >> block->category & 1) &&
           (!selection->phases || selection->phases >> block->phase & 1) &&
           (selection->device == MS_REPLAY_NONE || selection->device == edit->blocks[index].device) &&
           (!selection->kinds || selection->kinds >> block->kind & 1) && block->requested >= selection->min_bytes &&
           edit->blocks[index].bytes && ms_replay_path_is_below(edit->stream, block->path, selection->root);
}

uint64_t ms__replay_scaled(uint64_t bytes, uint64_t numerator, uint64_t denominator)
{
    long double exact = (long double)bytes * (long double)numerator / (long double)denominator;
    if (exact >= (long double)MOST_BYTES)
        return MOST_BYTES;
    uint64_t whole = (uint64_t)exact;
    return whole + ((long double)whole < exact);
}

int ms_replay_edit_scale(ms_replay_edit *edit, const ms_replay_selection *selection, uint64_t numerator,
                         uint64_t denominator, uint64_t *count)
{
    uint64_t selected = 0;
    if (!denominator)
        return MS_EINVAL;
    for (uint32_t i = 0; i < edit->stream->block_count; i++)
        if (is_selected(edit, i, selection)) {
            edit->blocks[i].bytes = ms__replay_scaled(edit->blocks[i].bytes, numerator, denominator);
            selected++;
        }
    if (count)
        *count = selected;
    return MS_OK;
}

int ms_replay_edit_move(ms_replay_edit *edit, const ms_replay_selection *selection, uint32_t device, uint64_t *count)
{
    uint64_t selected = 0;
    if (device >= MS_MAX_DEVICES)
        return MS_EINVAL;
    for (uint32_t i = 0; i < edit->stream->block_count; i++)
        if (is_selected(edit, i, selection)) {
            edit->blocks[i].device = device;
            selected++;
        }
    if (count)
        *count = selected;
    return MS_OK;
}

int ms_replay_edit_remove(ms_replay_edit *edit, const ms_replay_selection *selection, uint64_t *count)
{
    return ms_replay_edit_scale(edit, selection, 0, 1, count);
}

int ms_replay_edit_resize(ms_replay_edit *edit, uint32_t block, uint64_t bytes)
{
    if (block >= edit->stream->block_count || bytes > MOST_BYTES)
        return MS_EINVAL;
    edit->blocks[block].bytes = bytes;
    return MS_OK;
}

int ms_replay_edit_insert(ms_replay_edit *edit, uint32_t begin, uint32_t end, uint64_t bytes, uint32_t device,
                          uint64_t stream)
{
    if (begin > edit->stream->event_count || end < begin || device >= MS_MAX_DEVICES || bytes > MOST_BYTES)
        return MS_EINVAL;
    if (edit->inserted_count == MS_REPLAY_NONE - 1 ||
        !MS__ARRAY_GROW(edit->inserted, edit->inserted_room, edit->inserted_count + 1))
        return MS_ENOMEM;
    edit->inserted[edit->inserted_count++] = (ms__replay_inserted_block){begin, end, bytes, stream, device};
    return MS_OK;
}

/* ---- ordered lists ---- */

static int compare_entries(const void *a, const void *b)
{
    const ms__replay_entry *first = a, *second = b;
    if (first->key != second->key)
        return first->key < second->key ? -1 : 1;
    if (first->value != second->value)
        return first->value < second->value ? -1 : 1;
    return first->index < second->index ? -1 : first->index > second->index;
}

bool ms__replay_ordered_add(ms__replay_ordered *list, uint32_t key, uint64_t value, uint32_t index)
{
    if (!MS__ARRAY_GROW(list->at, list->room, (size_t)list->count + 1))
        return false;
    list->at[list->count++] = (ms__replay_entry){.key = key, .index = index, .value = value};
    return true;
}

void ms__replay_ordered_sort(ms__replay_ordered *list)
{
    if (list->count)
        qsort(list->at, list->count, sizeof *list->at, compare_entries);
}

uint32_t ms__replay_ordered_find(const ms__replay_ordered *list, uint32_t key, uint64_t value)
{
    ms__replay_entry wanted = {.key = key, .value = value};
    uint32_t from = 0, to = list->count;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (compare_entries(&list->at[middle], &wanted) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}
