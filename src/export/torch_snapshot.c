/* torch_snapshot.c - writes a capture as torch.cuda.memory._snapshot() would have returned it, pickled, for any device.
 * torch's memory_viz and its viewer read it.
 *
 * A capture has no addresses: segments.c makes some up, one segment for each block. The stack frames of a block are its
 * category, its kind, the Python frames that made it, its owner, the owner's parents, the phase in which it was added,
 * and the device. A block that changes is shown as freed and allocated again. Each device has a trace of its own, so
 * the capture is walked through once for each. */
#include "export/torch_snapshot.h"
#include "export/walk.h"

#include <stdlib.h>

enum { MAX_BATCH = 1000 }; /* items that are appended to a list at once, as Python's pickle does it */

/* A device: what is held, and where it is. After its trace was written this is the state at the end. */
struct device {
    ms__export_held held;
    ms__export_segments segments;
    uint64_t reserved;
};

struct writer {
    const ms_export_job *job;
    ms__export_torch_pickle torch;
    struct device *devices; /* as torch numbers them */
    struct device *device;  /* the selected one... */
    uint32_t device_number; /* ...and its number in the capture */
    uint64_t time;          /* microseconds since 1970, or since the start of the capture if that is unknown */
    size_t batch;           /* entries since the mark */
    bool has_unknown, is_lower_bound;
};

static void put_op(struct writer *writer, uint8_t op)
{
    ms__export_pickle_op(&writer->torch.pickle, op);
}

static void put_string(struct writer *writer, enum ms__export_torch_string string)
{
    ms__export_torch_put_string(&writer->torch, string);
}

static void put_field(struct writer *writer, enum ms__export_torch_string string, uint64_t number)
{
    ms__export_torch_put_field(&writer->torch, string, number);
}

static int put_frames(struct writer *writer, ms_path path, uint8_t category, uint8_t kind, uint8_t phase,
                      ms_stack stack)
{
    return ms__export_torch_put_frames(&writer->torch, writer->device_number, path, category, kind, phase, stack);
}

/* ---- entries of a trace ---- */
static void open_entry(struct writer *writer, enum ms__export_torch_string action)
{
    if (writer->batch == MAX_BATCH) {
        put_op(writer, MS_EXPORT_APPENDS);
        put_op(writer, MS_EXPORT_MARK);
        writer->batch = 0;
    }
    writer->batch++;
    put_op(writer, MS_EXPORT_DICT);
    put_op(writer, MS_EXPORT_MARK);
    put_string(writer, S_action);
    put_string(writer, action);
    put_field(writer, S_stream, 0);
    put_field(writer, S_time_us, writer->time);
}

static int close_entry(struct writer *writer)
{
    put_op(writer, MS_EXPORT_ITEMS);
    return MS_OK;
}

static int put_entry(struct writer *writer, enum ms__export_torch_string action, const ms__export_block *block)
{
    open_entry(writer, action);
    put_field(writer, S_addr, writer->device->segments.all[block->segment].address);
    put_field(writer, S_size, block->bytes);
    if (action == S_alloc) {
        put_string(writer, S_category);
        ms__export_torch_put_category(&writer->torch, block->category);
    }
    put_string(writer, S_frames);
    int error = put_frames(writer, block->path, block->category, block->kind, block->phase, block->stack);
    return error ? error : close_entry(writer);
}

static int put_free_entries(struct writer *writer, const ms__export_block *block)
{
    int error = put_entry(writer, S_free_requested, block);
    return error ? error : put_entry(writer, S_free_completed, block);
}

static void remove_segment(struct writer *writer, uint32_t at)
{
    const ms__export_segment *segment = &writer->device->segments.all[at];
    open_entry(writer, S_segment_free);
    put_field(writer, S_addr, segment->address);
    put_field(writer, S_size, segment->size);
    put_string(writer, S_frames);
    put_op(writer, MS_EXPORT_LIST);
    close_entry(writer);
    ms__export_segments_remove(&writer->device->segments, at);
}

/* Remove idle segments until `extra` bytes more do not exceed what is reserved. 0 reserved: it is unknown. */
static void shrink_to_reserved(struct writer *writer, uint64_t extra)
{
    ms__export_segments *segments = &writer->device->segments;
    uint64_t reserved = writer->device->reserved;
    while (reserved && segments->oldest != MS_EXPORT_NONE && segments->total + extra > reserved)
        remove_segment(writer, segments->oldest);
}

static int put_oom_entry(struct writer *writer, const ms_event *event)
{
    open_entry(writer, S_oom);
    put_field(writer, S_size, event->bytes);
    put_field(writer, S_device_free, 0); /* a capture does not say */
    put_string(writer, S_frames);
    int error = put_frames(writer, event->path, MS_EXPORT_NO_CATEGORY, MS_KIND_NONE, event->phase, MS_STACK_NONE);
    return error ? error : close_entry(writer);
}

/* The viewer expects a category "unknown" if there are categories at all. */
static void put_snapshot_entry(struct writer *writer)
{
    open_entry(writer, S_snapshot);
    put_field(writer, S_addr, 0);
    put_field(writer, S_size, 0);
    put_string(writer, S_category);
    put_string(writer, S_unknown);
    put_string(writer, S_frames);
    put_op(writer, MS_EXPORT_LIST);
    close_entry(writer);
    writer->has_unknown = true;
}

/* ---- blocks ---- */
static int find_segment(struct writer *writer, ms__export_block *block, bool *is_new)
{
    ms__export_segments *segments = &writer->device->segments;
    block->segment = ms__export_segments_reuse(segments, block->bytes);
    *is_new = block->segment == MS_EXPORT_NONE;
    if (!*is_new)
        return MS_OK;
    shrink_to_reserved(writer, block->bytes);
    return ms__export_segments_add(segments, block->bytes, &block->segment);
}

/* A block of 0 bytes has no segment, and is not shown. */
static int torch_begin(void *self, ms__export_block *block, ms__export_cause cause)
{
    struct writer *writer = self;
    bool is_new;
    (void)cause;
    if (!block->bytes)
        return MS_OK;
    int error = find_segment(writer, block, &is_new);
    if (!error && is_new)
        error = put_entry(writer, S_segment_alloc, block);
    return error ? error : put_entry(writer, S_alloc, block);
}

static int torch_end(void *self, const ms__export_block *block, ms__export_cause cause)
{
    struct writer *writer = self;
    (void)cause;
    if (!block->bytes)
        return MS_OK;
    int error = put_free_entries(writer, block);
    if (!error && !ms__export_segments_release(&writer->device->segments, block->segment))
        error = MS_ENOMEM;
    return error;
}

static int torch_change(void *self, const ms__export_block *before, ms__export_block *block)
{
    struct writer *writer = self;
    if (!block->bytes)
        return MS_OK;
    int error = put_free_entries(writer, before);
    return error ? error : put_entry(writer, S_alloc, block);
}

/* ---- events ---- */
static void set_moment(struct writer *writer, const ms_cursor *cursor)
{
    writer->time = writer->job->began + ms_cursor_time(cursor);
    writer->device->reserved = ms_cursor_reserved(cursor, writer->device_number);
}

static int torch_on_key_frame(void *self, const ms_cursor *cursor, bool first)
{
    struct writer *writer = self;
    (void)first;
    writer->is_lower_bound |= ms_cursor_is_lower_bound(cursor);
    set_moment(writer, cursor);
    return ms__export_held_load_key_frame(&writer->device->held, cursor);
}

static int torch_on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct writer *writer = self;
    set_moment(writer, cursor);
    if (event->op == MS_OP_OOM && event->device == writer->device_number)
        return put_oom_entry(writer, event);
    return ms__export_held_apply_event(&writer->device->held, cursor, event);
}

/* ---- a device's trace ---- */
static int put_trace(struct writer *writer, size_t number)
{
    static const ms__export_walk_handler handler = {torch_on_key_frame, torch_on_event};
    const ms_export_job *job = writer->job;
    double share = 1.0 / (double)job->order_count;
    writer->batch = 0;
    put_op(writer, MS_EXPORT_MARK);
    int error = ms__export_walk(job, &handler, writer, &writer->torch.pickle.output, (double)number * share, share);
    if (error)
        return error;
    ms__export_segments *segments = &writer->device->segments;
    while (!writer->device->reserved && segments->oldest != MS_EXPORT_NONE)
        remove_segment(writer, segments->oldest);
    shrink_to_reserved(writer, 0);
    if (!writer->has_unknown)
        put_snapshot_entry(writer);
    put_op(writer, MS_EXPORT_APPENDS);
    return MS_OK;
}

static void select_device(struct writer *writer, size_t number)
{
    writer->device = &writer->devices[number];
    writer->device_number = writer->job->order[number];
}

static int put_traces(struct writer *writer)
{
    put_string(writer, S_device_traces);
    put_op(writer, MS_EXPORT_LIST);
    put_op(writer, MS_EXPORT_MARK);
    for (size_t i = 0; i < writer->job->order_count; i++) {
        select_device(writer, i);
        put_op(writer, MS_EXPORT_LIST);
        int error = writer->device_number < MS_MAX_DEVICES ? put_trace(writer, i) : MS_OK;
        if (error)
            return error;
    }
    put_op(writer, MS_EXPORT_APPENDS);
    return MS_OK;
}

/* ---- segments ---- */

/* Put the only block of a segment; NULL: nothing is allocated in it. */
static int put_segment_block(struct writer *writer, uint64_t address, uint64_t size, const ms__export_block *block)
{
    int error = MS_OK;
    put_op(writer, MS_EXPORT_DICT);
    put_op(writer, MS_EXPORT_MARK);
    put_field(writer, S_address, address);
    put_field(writer, S_size, size);
    put_field(writer, S_requested_size, size);
    put_string(writer, S_state);
    put_string(writer, block ? S_active_allocated : S_inactive);
    put_string(writer, S_frames);
    if (block)
        error = put_frames(writer, block->path, block->category, block->kind, block->phase, block->stack);
    else
        put_op(writer, MS_EXPORT_LIST);
    put_op(writer, MS_EXPORT_ITEMS);
    return error;
}

/* Put a segment, in which `block` is allocated, or nothing if it is NULL. */
static int put_segment(struct writer *writer, uint64_t address, uint64_t size, const ms__export_block *block)
{
    uint64_t used = block ? size : 0;
    put_op(writer, MS_EXPORT_DICT);
    put_op(writer, MS_EXPORT_MARK);
    put_field(writer, S_device, (uint64_t)(writer->device - writer->devices));
    put_field(writer, S_address, address);
    put_field(writer, S_total_size, size);
    put_field(writer, S_allocated_size, used);
    put_field(writer, S_active_size, used);
    put_field(writer, S_requested_size, used);
    put_field(writer, S_stream, 0);
    put_string(writer, S_segment_type);
    put_string(writer, S_large);
    put_field(writer, S_segment_pool_id, 0);
    ms__export_pickle_number(&writer->torch.pickle, 0);
    put_op(writer, MS_EXPORT_PAIR);
    put_string(writer, S_is_expandable);
    put_op(writer, MS_EXPORT_FALSE);
    put_string(writer, S_frames);
    put_op(writer, MS_EXPORT_LIST);
    put_string(writer, S_blocks);
    put_op(writer, MS_EXPORT_LIST);
    put_op(writer, MS_EXPORT_MARK);
    int error = put_segment_block(writer, address, size, block);
    put_op(writer, MS_EXPORT_APPENDS);
    put_op(writer, MS_EXPORT_ITEMS);
    return error;
}

static void end_batch(struct writer *writer)
{
    put_op(writer, MS_EXPORT_APPENDS);
    put_op(writer, MS_EXPORT_MARK);
}

/* Put the segments of blocks, then idle ones, then one for the rest of what is reserved. */
static int put_segments_of(struct writer *writer)
{
    const ms__export_segments *segments = &writer->device->segments;
    const ms__export_held *held = &writer->device->held;
    int error = MS_OK;
    for (size_t i = 0; i < held->count && !error; i++) {
        const ms__export_block *block = &held->blocks[i];
        if (block->bytes)
            error = put_segment(writer, segments->all[block->segment].address, block->bytes, block);
        if (i % MAX_BATCH == MAX_BATCH - 1)
            end_batch(writer);
    }
    end_batch(writer);
    size_t count = 0;
    for (uint32_t at = segments->oldest; at != MS_EXPORT_NONE && !error; at = segments->all[at].newer) {
        error = put_segment(writer, segments->all[at].address, segments->all[at].size, NULL);
        if (++count % MAX_BATCH == 0)
            end_batch(writer);
    }
    if (!error && writer->device->reserved > segments->total)
        error = put_segment(writer, segments->next, writer->device->reserved - segments->total, NULL);
    return error;
}

static int put_segments(struct writer *writer)
{
    int error = MS_OK;
    put_string(writer, S_segments);
    put_op(writer, MS_EXPORT_LIST);
    put_op(writer, MS_EXPORT_MARK);
    for (size_t i = 0; i < writer->job->order_count && !error; i++) {
        select_device(writer, i);
        if (writer->device_number < MS_MAX_DEVICES)
            error = put_segments_of(writer);
    }
    put_op(writer, MS_EXPORT_APPENDS);
    return error;
}

/* ---- the whole snapshot ---- */

/* Programs ignore this key; it is for people who look into the file. */
static void put_note(struct writer *writer)
{
    put_string(writer, S_modscope);
    put_op(writer, MS_EXPORT_DICT);
    put_op(writer, MS_EXPORT_MARK);
    put_string(writer, S_program);
    ms__export_pickle_text(&writer->torch.pickle, writer->job->title);
    put_string(writer, S_note);
    ms__export_pickle_text(&writer->torch.pickle,
                           ms__export_text_of(writer->is_lower_bound
                                                  ? "events are missing: every figure is at least so much. Addresses "
                                                    "and segments are made up"
                                                  : "addresses and segments are made up"));
    put_op(writer, MS_EXPORT_ITEMS);
}

static int write_snapshot(struct writer *writer)
{
    put_op(writer, MS_EXPORT_PROTO);
    put_op(writer, 4);
    put_op(writer, MS_EXPORT_DICT);
    put_op(writer, MS_EXPORT_MARK);
    int error = put_traces(writer);
    if (!error)
        error = put_segments(writer);
    if (error)
        return error;
    put_string(writer, S_allocator_settings);
    put_op(writer, MS_EXPORT_DICT);
    put_note(writer);
    put_op(writer, MS_EXPORT_ITEMS);
    put_op(writer, MS_EXPORT_STOP);
    ms__export_output_flush(&writer->torch.pickle.output);
    return writer->torch.pickle.output.failed ? MS_ESTOPPED : MS_OK;
}

static bool open_writer(struct writer *writer)
{
    static const ms__export_block_handler handler = {torch_begin, torch_end, torch_change};
    const ms_export_job *job = writer->job;
    writer->devices = calloc(job->order_count + 1, sizeof *writer->devices);
    for (size_t i = 0; writer->devices && i < job->order_count; i++) {
        uint64_t devices = job->order[i] < MS_MAX_DEVICES ? UINT64_C(1) << job->order[i] : 0;
        writer->devices[i].held = (ms__export_held){.handler = &handler, .self = writer, .devices = devices};
        ms__export_segments_open(&writer->devices[i].segments);
    }
    return ms__export_torch_open(&writer->torch, job) && writer->devices;
}

int ms_export_torch(const ms_export_job *job)
{
    struct writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return MS_ENOMEM;
    writer->job = job;
    int error = open_writer(writer) ? write_snapshot(writer) : MS_ENOMEM;
    for (size_t i = 0; writer->devices && i < job->order_count; i++) {
        ms__export_held_close(&writer->devices[i].held);
        ms__export_segments_close(&writer->devices[i].segments);
    }
    ms__export_torch_close(&writer->torch);
    free(writer->devices);
    free(writer);
    return error;
}
