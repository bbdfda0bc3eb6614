/* load.c - reads a capture into a stream: every event that matters for a replay, the blocks and the calls. */
#include "replay/calls.h"
#include "replay/edit.h"

#include <stdlib.h>
#include <string.h>

static int append_event(ms__replay_loader *loader, const ms_replay_event *event)
{
    ms_replay_stream *stream = loader->stream;
    if (stream->event_count == MS_REPLAY_NONE - 1)
        return MS_EINVAL;
    if (!MS__ARRAY_GROW(stream->events, loader->event_room, stream->event_count + 1))
        return MS_ENOMEM;
    stream->events[stream->event_count++] = *event;
    return MS_OK;
}

/* ---- threads ---- */
static int index_of_thread(ms__replay_loader *loader, uint32_t number, uint32_t *index)
{
    ms_replay_stream *stream = loader->stream;
    *index = ms__map_index(&loader->by_number, number);
    if (*index != MS_REPLAY_NONE)
        return MS_OK;
    if (stream->thread_count == UINT16_MAX) { /* further threads share one */
        *index = UINT16_MAX - 1;
        return MS_OK;
    }
    if (!MS__ARRAY_GROW(loader->threads, loader->thread_room, stream->thread_count + 1) ||
        !ms__map_set(&loader->by_number, number, stream->thread_count))
        return MS_ENOMEM;
    loader->threads[stream->thread_count] = (ms__replay_loading_thread){.path = MS_GLOBAL};
    *index = stream->thread_count++;
    return MS_OK;
}

/* ---- blocks ---- */
static int append_block(ms__replay_loader *loader, uint32_t slot, const ms_replay_block *block)
{
    ms_replay_stream *stream = loader->stream;
    if (stream->block_count == MS_REPLAY_NONE - 1)
        return MS_EINVAL;
    if (!MS__ARRAY_GROW(stream->blocks, loader->block_room, stream->block_count + 1) ||
        !ms__map_set(&loader->by_slot, slot, stream->block_count))
        return MS_ENOMEM;
    stream->blocks[stream->block_count++] = *block;
    return MS_OK;
}

static int drop_at(ms__replay_loader *loader, uint32_t slot, ms_replay_event *event)
{
    uint32_t index = ms__map_index(&loader->by_slot, slot);
    if (index == MS_REPLAY_NONE)
        return MS_OK;
    ms_replay_block *block = &loader->stream->blocks[index];
    block->drop = loader->stream->event_count;
    block->drop_phase = loader->threads[event->thread].phase;
    ms__replay_loader_note_drop(loader, event->thread, block);
    ms__map_remove(&loader->by_slot, slot);
    event->kind = MS_REPLAY_DROP;
    event->value = index;
    return append_event(loader, event);
}

static ms_replay_block block_of_key_frame(const ms_captured_block *captured, uint32_t add)
{
    return (ms_replay_block){.bytes = captured->bytes,
                             .requested = captured->bytes,
                             .add = add,
                             .drop = MS_REPLAY_NONE,
                             .last_use = MS_REPLAY_NONE,
                             .call = MS_REPLAY_NONE,
                             .path = captured->path,
                             .device = (uint8_t)captured->device,
                             .category = captured->category,
                             .kind = captured->kind,
                             .phase = captured->phase,
                             .outside = captured->outside};
}

static int by_slot_order(const void *a, const void *b)
{
    uint32_t first = ((const ms_captured_block *)a)->slot, second = ((const ms_captured_block *)b)->slot;
    return first < second ? -1 : first > second;
}

/* The blocks of a key frame, by slot, so that the order does not depend on the cursor's hash table. */
static int read_key_frame(const ms_cursor *cursor, ms_captured_block **blocks, size_t *count)
{
    *count = 0;
    *blocks = malloc(((size_t)ms_cursor_blocks(cursor) + 1) * sizeof **blocks);
    if (!*blocks)
        return MS_ENOMEM;
    for (uint32_t at = 0; ms_cursor_block(cursor, &at, &(*blocks)[*count]);)
        ++*count;
    qsort(*blocks, *count, sizeof **blocks, by_slot_order);
    return MS_OK;
}

/* ---- key frames ---- */
static int load_threads(ms__replay_loader *loader, const ms_cursor *cursor)
{
    uint32_t number, thread;
    uint64_t id;
    ms_phase phase;
    ms_path path;
    int error = MS_OK;
    for (size_t i = 0; !error && ms_cursor_thread(cursor, i, &number, &id, &phase, &path); i++) {
        error = index_of_thread(loader, number, &thread);
        if (!error)
            error = ms__replay_loader_move(loader, thread, loader->stream->event_count, phase, path);
        if (!error)
            error = append_event(loader, &(ms_replay_event){.number = ms_cursor_moment(cursor),
                                                            .time = ms_cursor_time(cursor),
                                                            .value = path,
                                                            .thread = (uint16_t)thread,
                                                            .kind = MS_REPLAY_POSITION,
                                                            .phase = (uint8_t)phase});
    }
    return error;
}

static int begin_stream(ms__replay_loader *loader, const ms_cursor *cursor)
{
    ms_captured_block *blocks;
    size_t count;
    uint32_t thread;
    loader->step = ms_cursor_step(cursor);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++)
        loader->stream->reserved_first[device] = ms_cursor_reserved(cursor, device);
    int error = read_key_frame(cursor, &blocks, &count);
    for (size_t i = 0; !error && i < count; i++) {
        ms_replay_block block = block_of_key_frame(&blocks[i], MS_REPLAY_NONE);
        error = append_block(loader, blocks[i].slot, &block);
    }
    free(blocks);
    if (!error)
        error = index_of_thread(loader, 0, &thread);
    return error ? error : load_threads(loader, cursor);
}

/* Events are lost: every block is dropped, and those of the key frame are added. What was lost between is not known. */
static int jump(ms__replay_loader *loader, const ms_cursor *cursor)
{
    ms_captured_block *blocks;
    size_t count;
    ms_replay_event event = {.number = ms_cursor_moment(cursor), .time = ms_cursor_time(cursor)};
    loader->stream->is_lower_bound = true;
    ms__replay_loader_skip_times(loader, event.number);
    loader->step = ms_cursor_step(cursor);
    int error = read_key_frame(cursor, &blocks, &count);
    for (size_t i = 0; !error && i < ms__map_room(&loader->by_slot); i++)
        while (!error && loader->by_slot.entries[i].value_plus_1) /* removing a key may move another one here */
            error = drop_at(loader, (uint32_t)loader->by_slot.entries[i].key, &event);
    for (size_t i = 0; !error && i < count; i++) {
        ms_replay_block block = block_of_key_frame(&blocks[i], loader->stream->event_count);
        event.kind = MS_REPLAY_ADD;
        event.value = loader->stream->block_count;
        error = append_block(loader, blocks[i].slot, &block);
        if (!error)
            error = append_event(loader, &event);
    }
    free(blocks);
    return error ? error : load_threads(loader, cursor);
}

/* ---- notes ---- */
static int next_note(ms__replay_loader *loader)
{
    int error = ms_notes_next(loader->notes, &loader->note);
    loader->has_note = error == MS_OK;
    return error == MS_EEND ? MS_OK : error;
}

static int apply_note(ms__replay_loader *loader, const ms_note *note)
{
    uint32_t index = ms__map_index(&loader->by_slot, note->slot);
    if (index == MS_REPLAY_NONE)
        return MS_OK;
    ms_replay_block *block = &loader->stream->blocks[index];
    switch (note->kind) {
    case MS_NOTE_SAVED:
        return ms__replay_loader_note_use(loader, index, MS_REPLAY_SAVE);
    case MS_NOTE_INPUT:
    case MS_NOTE_OUTPUT:
        loader->stream->has_inputs = true;
        return ms__replay_loader_note_use(loader, index,
                                          note->kind == MS_NOTE_INPUT ? MS_REPLAY_INPUT : MS_REPLAY_OUTPUT);
    case MS_NOTE_REQUESTED:
        if (note->value < block->bytes)
            block->requested = note->value;
        break;
    case MS_NOTE_STREAM:
        block->stream = loader->streams[block->device] = note->value;
        break;
    case MS_NOTE_SEGMENT:
        block->segment = note->value;
        break;
    default:
        break;
    }
    return MS_OK;
}

/* Apply the notes that were made before event `number`. */
static int apply_notes(ms__replay_loader *loader, uint64_t number)
{
    int error = MS_OK;
    while (!error && loader->has_note && loader->note.event <= number) {
        error = apply_note(loader, &loader->note);
        if (!error)
            error = next_note(loader);
    }
    return error;
}

/* ---- events ---- */
static int add_at(ms__replay_loader *loader, const ms_event *from, ms_replay_event *event)
{
    ms_replay_block block = {.bytes = from->bytes,
                             .requested = from->bytes,
                             .stream = loader->streams[from->device],
                             .add = loader->stream->event_count,
                             .drop = MS_REPLAY_NONE,
                             .last_use = MS_REPLAY_NONE,
                             .call = ms__replay_loader_call(loader, event->thread),
                             .path = from->path,
                             .device = (uint8_t)from->device,
                             .category = from->category,
                             .kind = from->kind,
                             .phase = from->phase,
                             .outside = from->outside};
    event->kind = MS_REPLAY_ADD;
    event->value = loader->stream->block_count;
    int error = append_block(loader, from->slot, &block);
    return error ? error : append_event(loader, event);
}

static int note_reserved(ms__replay_loader *loader, const ms_event *from, ms_replay_event *event, uint64_t *latest)
{
    int error = MS_OK;
    event->device = from->device;
    event->kind = MS_REPLAY_EMPTY_CACHE;
    if (from->bytes < latest[from->device]) {
        loader->decreases++;
        error = append_event(loader, event);
    }
    latest[from->device] = event->value = from->bytes;
    event->kind = MS_REPLAY_RESERVED;
    return error ? error : append_event(loader, event);
}

static int append_step(ms__replay_loader *loader, const ms_replay_event *event)
{
    ms_replay_stream *stream = loader->stream;
    if (!MS__ARRAY_GROW(stream->steps, loader->step_room, (size_t)stream->step_count + 1))
        return MS_ENOMEM;
    stream->steps[stream->step_count++] = (ms_replay_step){
        .number = event->value, .time = event->time, .first = event->number, .event = stream->event_count};
    return MS_OK;
}

static int load_event(ms__replay_loader *loader, const ms_event *from, uint64_t *latest_reserved)
{
    uint32_t thread;
    ms__replay_loader_apply_times(loader, from->number);
    int error = apply_notes(loader, from->number);
    if (!error)
        error = ms__replay_loader_apply_operators(loader, from->number);
    if (!error)
        error = index_of_thread(loader, from->thread, &thread);
    if (error)
        return error;
    loader->thread = thread;
    ms_replay_event event = {.number = from->number, .time = from->time, .thread = (uint16_t)thread};
    switch (from->op) {
    case MS_OP_ADD:
        return add_at(loader, from, &event);
    case MS_OP_DROP:
        return drop_at(loader, from->slot, &event);
    case MS_OP_POSITION:
        event.kind = MS_REPLAY_POSITION;
        event.phase = from->phase;
        event.value = from->path;
        error = ms__replay_loader_move(loader, thread, loader->stream->event_count, (ms_phase)from->phase, from->path);
        return error ? error : append_event(loader, &event);
    case MS_OP_STEP:
        event.kind = MS_REPLAY_STEP;
        event.value = loader->step = from->bytes;
        error = append_step(loader, &event);
        return error ? error : append_event(loader, &event);
    case MS_OP_RESERVED:
        return note_reserved(loader, from, &event, latest_reserved);
    default:
        return MS_OK;
    }
}

static int load_events(ms__replay_loader *loader, ms_cursor *cursor)
{
    uint64_t latest_reserved[MS_MAX_DEVICES];
    ms_event event;
    int error = begin_stream(loader, cursor);
    memcpy(latest_reserved, loader->stream->reserved_first, sizeof latest_reserved);
    while (!error) {
        error = ms_cursor_next_or_jump(cursor, &event);
        if (error == MS_JUMPED)
            error = jump(loader, cursor);
        else if (!error)
            error = load_event(loader, &event, latest_reserved);
    }
    return error == MS_EEND ? MS_OK : error;
}

/* ---- the whole ---- */
static int load_paths(ms_replay_stream *stream, const ms_reader *reader)
{
    uint32_t nth;
    stream->path_count = ms_reader_paths(reader);
    stream->parents = malloc(stream->path_count * sizeof *stream->parents);
    if (!stream->parents)
        return MS_ENOMEM;
    for (ms_path path = 0; path < stream->path_count; path++) {
        ms_reader_path(reader, path, &stream->parents[path], &nth);
        if (stream->parents[path] >= path) /* only that of MS_GLOBAL and of MS_UNKNOWN can be */
            stream->parents[path] = MS_GLOBAL;
    }
    return MS_OK;
}

/* How often the allocator gave free segments back before a request was served, as the capture's end says it. */
static uint64_t retries_of(const ms_reader *reader)
{
    const char *key, *value;
    for (size_t i = 0; ms_reader_info(reader, true, i, &key, &value); i++)
        if (strcmp(key, "retries") == 0)
            return strtoull(value, NULL, 10);
    return 0;
}

/* A damaged capture may have devices without a name. */
static uint32_t find_cpu(const ms_reader *reader)
{
    uint32_t count = ms_reader_devices(reader);
    for (uint32_t i = 0; i < count; i++) {
        const char *name = ms_reader_device(reader, i);
        if (name && strcmp(name, "cpu") == 0)
            return i;
    }
    return MS_REPLAY_NONE;
}

static int load_with_cursor(ms__replay_loader *loader, ms_reader *reader)
{
    ms_cursor *cursor;
    int error = load_paths(loader->stream, reader);
    if (!error)
        error = ms_cursor_open(reader, &cursor);
    if (error)
        return error;
    error = ms_cursor_load_later_claims(cursor);
    if (!error)
        error = ms_notes_open(reader, &loader->notes);
    if (!error)
        error = next_note(loader);
    if (!error)
        error = ms__replay_loader_open_times(loader, reader);
    if (!error)
        error = ms__replay_loader_open_operators(loader, reader);
    loader->cpu = find_cpu(reader);
    if (!error)
        error = load_events(loader, cursor);
    ms__replay_loader_apply_times(loader, UINT64_MAX);
    if (!error)
        error = ms__replay_loader_complete_times(loader);
    loader->stream->is_lower_bound |= ms_cursor_is_lower_bound(cursor);
    loader->stream->lacked_room = loader->decreases && loader->decreases <= retries_of(reader);
    ms_cursor_close(cursor);
    loader->stream->device_count = ms_reader_devices(reader);
    return error;
}

int ms__replay_list_parameters(ms_replay_stream *stream)
{
    ms__replay_ordered found = {NULL, 0, 0};
    bool done = true;
    for (uint32_t i = 0; done && i < stream->block_count; i++)
        if (stream->blocks[i].category == MS_PARAMETER)
            done = ms__replay_ordered_add(&found, stream->blocks[i].path, stream->blocks[i].requested, i);
    ms__replay_ordered_sort(&found);
    stream->parameters = done ? malloc(((size_t)found.count + 1) * sizeof *stream->parameters) : NULL;
    stream->parameter_count = found.count;
    for (uint32_t i = 0; stream->parameters && i < found.count; i++)
        stream->parameters[i] = found.at[i].index;
    free(found.at);
    return stream->parameters ? MS_OK : MS_ENOMEM;
}

int ms_replay_stream_load(ms_reader *reader, ms_replay_stream **stream)
{
    ms__replay_loader loader = {.stream = calloc(1, sizeof *loader.stream)};
    if (!loader.stream)
        return MS_ENOMEM;
    int error = load_with_cursor(&loader, reader);
    if (!error)
        error = ms__replay_list_parameters(loader.stream);
    for (uint32_t i = 0; loader.threads && i < loader.stream->thread_count; i++) {
        free(loader.threads[i].calls.at);
        free(loader.threads[i].nodes.at);
    }
    ms_notes_close(loader.notes);
    ms_call_times_free(reader, loader.times);
    ms_operators_free(reader, &loader.operators);
    free(loader.threads);
    ms__map_clear(&loader.by_number);
    ms__map_clear(&loader.by_slot);
    if (error)
        ms_replay_stream_free(loader.stream);
    else
        *stream = loader.stream;
    return error;
}

void ms_replay_stream_free(ms_replay_stream *stream)
{
    if (!stream)
        return;
    free(stream->events);
    free(stream->blocks);
    free(stream->calls);
    free(stream->uses);
    free(stream->parents);
    free(stream->parameters);
    free(stream->steps);
    free(stream->folds);
    free(stream->operators);
    free(stream->operator_names);
    free(stream);
}

bool ms_replay_path_is_below(const ms_replay_stream *stream, ms_path path, ms_path root)
{
    while (path > root)
        path = stream->parents[path];
    return path == root || root == MS_GLOBAL;
}
