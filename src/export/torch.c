/* torch.c - a capture as torch.cuda.memory._snapshot() would have told it: the pickle that torch's memory_viz and its
 * viewer read, for any device.
 *
 * A capture has no addresses: heap.h makes some, a segment for each. The frames of a block are its category, its
 * module, those that called it, the phase it was made in, and the device. What a block becomes is told as its end and a
 * new beginning. Each device's trace is a list of its own, so the capture is played once for each. */
#include "export/torch.h"
#include "export/heap.h"
#include "export/play.h"

#include <stdlib.h>

enum { BATCH = 1000 }; /* entries of a list that are appended at once, as Python does */

/* What is known of a device at the end of its trace. */
struct device {
    mse_live live;
    mse_heap heap;
    uint64_t reserved;
};

struct writer {
    const mse_job *job;
    mse_torch_pickle torch;
    struct device *devices; /* as torch numbers them */
    struct device *now;
    uint32_t now_number; /* the capture's */
    uint64_t time;       /* microseconds since 1970, or since the beginning */
    size_t batch;        /* entries since the mark */
    bool told_unknown, is_lower_bound;
};

static void op(struct writer *writer, uint8_t op)
{
    mse_pickle_op(&writer->torch.pickle, op);
}

static void word(struct writer *writer, enum mse_torch_word word)
{
    mse_torch_put(&writer->torch, word);
}

static void field(struct writer *writer, enum mse_torch_word word, uint64_t number)
{
    mse_torch_field(&writer->torch, word, number);
}

static int frames(struct writer *writer, ms_path path, uint8_t category, uint8_t phase)
{
    return mse_torch_frames(&writer->torch, writer->now_number, path, category, phase);
}

/* ---- entries of a trace ---- */
static void open_entry(struct writer *writer, enum mse_torch_word action)
{
    if (writer->batch == BATCH) {
        op(writer, MSE_APPENDS);
        op(writer, MSE_MARK);
        writer->batch = 0;
    }
    writer->batch++;
    op(writer, MSE_DICT);
    op(writer, MSE_MARK);
    word(writer, W_action);
    word(writer, action);
    field(writer, W_stream, 0);
    field(writer, W_time_us, writer->time);
}

static int close_entry(struct writer *writer)
{
    op(writer, MSE_ITEMS);
    return MS_OK;
}

static int put_entry(struct writer *writer, enum mse_torch_word action, const mse_block *block)
{
    open_entry(writer, action);
    field(writer, W_addr, writer->now->heap.places[block->place].address);
    field(writer, W_size, block->bytes);
    if (action == W_alloc) {
        word(writer, W_category);
        mse_torch_category(&writer->torch, block->category);
    }
    word(writer, W_frames);
    int error = frames(writer, block->path, block->category, block->phase);
    return error ? error : close_entry(writer);
}

static int put_end(struct writer *writer, const mse_block *block)
{
    int error = put_entry(writer, W_free_requested, block);
    return error ? error : put_entry(writer, W_free_completed, block);
}

static void let_go(struct writer *writer, uint32_t at)
{
    const mse_place *place = &writer->now->heap.places[at];
    open_entry(writer, W_segment_free);
    field(writer, W_addr, place->address);
    field(writer, W_size, place->size);
    word(writer, W_frames);
    op(writer, MSE_LIST);
    close_entry(writer);
    mse_heap_drop(&writer->now->heap, at);
}

/* Let idle places go until `more` can come without more than is reserved, where that is told. */
static void keep_to_reserved(struct writer *writer, uint64_t more)
{
    mse_heap *heap = &writer->now->heap;
    uint64_t reserved = writer->now->reserved;
    while (reserved && heap->oldest != MSE_NONE && heap->total + more > reserved)
        let_go(writer, heap->oldest);
}

static int put_oom(struct writer *writer, const ms_event *event)
{
    open_entry(writer, W_oom);
    field(writer, W_size, event->bytes);
    field(writer, W_device_free, 0); /* a capture does not tell */
    word(writer, W_frames);
    int error = frames(writer, event->path, MSE_NO_CATEGORY, event->phase);
    return error ? error : close_entry(writer);
}

/* The viewer wants a category "unknown" where there are categories. */
static void put_snapshot(struct writer *writer)
{
    open_entry(writer, W_snapshot);
    field(writer, W_addr, 0);
    field(writer, W_size, 0);
    word(writer, W_category);
    word(writer, W_unknown);
    word(writer, W_frames);
    op(writer, MSE_LIST);
    close_entry(writer);
    writer->told_unknown = true;
}

/* ---- blocks ---- */
static int find_place(struct writer *writer, mse_block *block, bool *is_new)
{
    mse_heap *heap = &writer->now->heap;
    block->place = mse_heap_again(heap, block->bytes);
    *is_new = block->place == MSE_NONE;
    if (!*is_new)
        return MS_OK;
    keep_to_reserved(writer, block->bytes);
    return mse_heap_new(heap, block->bytes, &block->place);
}

/* One without bytes has no place. */
static int begin(void *self, mse_block *block, mse_how how)
{
    struct writer *writer = self;
    bool is_new;
    (void)how;
    if (!block->bytes)
        return MS_OK;
    int error = find_place(writer, block, &is_new);
    if (!error && is_new)
        error = put_entry(writer, W_segment_alloc, block);
    return error ? error : put_entry(writer, W_alloc, block);
}

static int end(void *self, const mse_block *block, mse_how how)
{
    struct writer *writer = self;
    (void)how;
    if (!block->bytes)
        return MS_OK;
    int error = put_end(writer, block);
    if (!error && !mse_heap_leave(&writer->now->heap, block->place))
        error = MS_ENOMEM;
    return error;
}

static int change(void *self, const mse_block *before, mse_block *block)
{
    struct writer *writer = self;
    if (!block->bytes)
        return MS_OK;
    int error = put_end(writer, before);
    return error ? error : put_entry(writer, W_alloc, block);
}

/* ---- the player ---- */
static void see_moment(struct writer *writer, const ms_cursor *cursor)
{
    writer->time = writer->job->began + ms_cursor_time(cursor);
    writer->now->reserved = ms_cursor_reserved(cursor, writer->now_number);
}

static int on_key(void *self, const ms_cursor *cursor, bool first)
{
    struct writer *writer = self;
    (void)first;
    writer->is_lower_bound |= ms_cursor_is_lower_bound(cursor);
    see_moment(writer, cursor);
    return mse_live_key(&writer->now->live, cursor);
}

static int on_event(void *self, const ms_cursor *cursor, const ms_event *event)
{
    struct writer *writer = self;
    see_moment(writer, cursor);
    if (event->op == MS_OP_OOM && event->device == writer->now_number)
        return put_oom(writer, event);
    return mse_live_event(&writer->now->live, cursor, event);
}

/* ---- a device's trace ---- */
static int put_trace(struct writer *writer, size_t number)
{
    static const mse_player player = {on_key, on_event};
    const mse_job *job = writer->job;
    double share = 1.0 / (double)job->order_count;
    writer->batch = 0;
    op(writer, MSE_MARK);
    int error = mse_play(job, &player, writer, &writer->torch.pickle.sink, (double)number * share, share);
    if (error)
        return error;
    mse_heap *heap = &writer->now->heap;
    while (!writer->now->reserved && heap->oldest != MSE_NONE)
        let_go(writer, heap->oldest);
    keep_to_reserved(writer, 0);
    if (!writer->told_unknown)
        put_snapshot(writer);
    op(writer, MSE_APPENDS);
    return MS_OK;
}

static void turn_to(struct writer *writer, size_t number)
{
    writer->now = &writer->devices[number];
    writer->now_number = writer->job->order[number];
}

static int put_traces(struct writer *writer)
{
    word(writer, W_device_traces);
    op(writer, MSE_LIST);
    op(writer, MSE_MARK);
    for (size_t i = 0; i < writer->job->order_count; i++) {
        turn_to(writer, i);
        op(writer, MSE_LIST);
        int error = writer->now_number < MS_MAX_DEVICES ? put_trace(writer, i) : MS_OK;
        if (error)
            return error;
    }
    op(writer, MSE_APPENDS);
    return MS_OK;
}

/* ---- segments ---- */

/* The only block of a segment. */
static int put_block(struct writer *writer, uint64_t address, uint64_t size, const mse_block *block)
{
    int error = MS_OK;
    op(writer, MSE_DICT);
    op(writer, MSE_MARK);
    field(writer, W_address, address);
    field(writer, W_size, size);
    field(writer, W_requested_size, size);
    word(writer, W_state);
    word(writer, block ? W_active_allocated : W_inactive);
    word(writer, W_frames);
    if (block)
        error = frames(writer, block->path, block->category, block->phase);
    else
        op(writer, MSE_LIST);
    op(writer, MSE_ITEMS);
    return error;
}

/* A segment with one block in it, which is `block` or nobody's. */
static int put_segment(struct writer *writer, uint64_t address, uint64_t size, const mse_block *block)
{
    uint64_t used = block ? size : 0;
    op(writer, MSE_DICT);
    op(writer, MSE_MARK);
    field(writer, W_device, (uint64_t)(writer->now - writer->devices));
    field(writer, W_address, address);
    field(writer, W_total_size, size);
    field(writer, W_allocated_size, used);
    field(writer, W_active_size, used);
    field(writer, W_requested_size, used);
    field(writer, W_stream, 0);
    word(writer, W_segment_type);
    word(writer, W_large);
    field(writer, W_segment_pool_id, 0);
    mse_pickle_number(&writer->torch.pickle, 0);
    op(writer, MSE_PAIR);
    word(writer, W_is_expandable);
    op(writer, MSE_FALSE);
    word(writer, W_frames);
    op(writer, MSE_LIST);
    word(writer, W_blocks);
    op(writer, MSE_LIST);
    op(writer, MSE_MARK);
    int error = put_block(writer, address, size, block);
    op(writer, MSE_APPENDS);
    op(writer, MSE_ITEMS);
    return error;
}

static void end_batch(struct writer *writer)
{
    op(writer, MSE_APPENDS);
    op(writer, MSE_MARK);
}

/* What is held, what is idle, and the rest of what is reserved. */
static int put_segments_of(struct writer *writer)
{
    const mse_heap *heap = &writer->now->heap;
    const mse_live *live = &writer->now->live;
    int error = MS_OK;
    for (size_t i = 0; i < live->count && !error; i++) {
        const mse_block *block = &live->blocks[i];
        if (block->bytes)
            error = put_segment(writer, heap->places[block->place].address, block->bytes, block);
        if (i % BATCH == BATCH - 1)
            end_batch(writer);
    }
    end_batch(writer);
    size_t count = 0;
    for (uint32_t at = heap->oldest; at != MSE_NONE && !error; at = heap->places[at].newer) {
        error = put_segment(writer, heap->places[at].address, heap->places[at].size, NULL);
        if (++count % BATCH == 0)
            end_batch(writer);
    }
    if (!error && writer->now->reserved > heap->total)
        error = put_segment(writer, heap->next, writer->now->reserved - heap->total, NULL);
    return error;
}

static int put_segments(struct writer *writer)
{
    int error = MS_OK;
    word(writer, W_segments);
    op(writer, MSE_LIST);
    op(writer, MSE_MARK);
    for (size_t i = 0; i < writer->job->order_count && !error; i++) {
        turn_to(writer, i);
        if (writer->now_number < MS_MAX_DEVICES)
            error = put_segments_of(writer);
    }
    op(writer, MSE_APPENDS);
    return error;
}

/* ---- all of it ---- */

/* No reader asks for it, but whoever looks into the file finds it. */
static void put_note(struct writer *writer)
{
    word(writer, W_modscope);
    op(writer, MSE_DICT);
    op(writer, MSE_MARK);
    word(writer, W_program);
    mse_pickle_text(&writer->torch.pickle, writer->job->title);
    word(writer, W_note);
    mse_pickle_text(&writer->torch.pickle,
                    mse_word(writer->is_lower_bound ? "events are missing: every figure is at least so much. Addresses "
                                                      "and segments are made up"
                                                    : "addresses and segments are made up"));
    op(writer, MSE_ITEMS);
}

static int write_all(struct writer *writer)
{
    op(writer, MSE_PROTO);
    op(writer, 4);
    op(writer, MSE_DICT);
    op(writer, MSE_MARK);
    int error = put_traces(writer);
    if (!error)
        error = put_segments(writer);
    if (error)
        return error;
    word(writer, W_allocator_settings);
    op(writer, MSE_DICT);
    put_note(writer);
    op(writer, MSE_ITEMS);
    op(writer, MSE_STOP);
    mse_sink_flush(&writer->torch.pickle.sink);
    return writer->torch.pickle.sink.failed ? MS_ESTOPPED : MS_OK;
}

static bool make_ready(struct writer *writer)
{
    static const mse_watcher watcher = {begin, end, change};
    const mse_job *job = writer->job;
    writer->devices = calloc(job->order_count + 1, sizeof *writer->devices);
    for (size_t i = 0; writer->devices && i < job->order_count; i++) {
        uint64_t devices = job->order[i] < MS_MAX_DEVICES ? UINT64_C(1) << job->order[i] : 0;
        writer->devices[i].live = (mse_live){.watcher = &watcher, .self = writer, .devices = devices};
        mse_heap_open(&writer->devices[i].heap);
    }
    return mse_torch_open(&writer->torch, job) && writer->devices;
}

int mse_torch(const mse_job *job)
{
    struct writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return MS_ENOMEM;
    writer->job = job;
    int error = make_ready(writer) ? write_all(writer) : MS_ENOMEM;
    for (size_t i = 0; writer->devices && i < job->order_count; i++) {
        mse_live_close(&writer->devices[i].live);
        mse_heap_close(&writer->devices[i].heap);
    }
    mse_torch_close(&writer->torch);
    free(writer->devices);
    free(writer);
    return error;
}
