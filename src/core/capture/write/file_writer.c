/* file_writer.c - appending chunks to a capture's file. A chunk is written as a whole or not at all, so the file can be
 * read up to its last chunk at any time. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/write/writer.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- bytes ---- */

static void remember_identity(ms_capture *capture)
{
    struct stat found = {0};
    fstat(capture->fd, &found);
    capture->file_identity[0] = found.st_dev;
    capture->file_identity[1] = found.st_ino;
}

/* A program may close descriptors that it did not open. fd may then be another file of the program. */
static bool is_our_file(const ms_capture *capture, const struct stat *found)
{
    return found->st_dev == capture->file_identity[0] && found->st_ino == capture->file_identity[1];
}

/* Another program made the file shorter. If not even its header is left, the file begins anew: false then, because the
 * events that come need a key frame. Otherwise it continues where it would have, and a reader skips the gap. */
static bool continue_truncated(ms_capture *capture, uint64_t bytes_left)
{
    atomic_store(&capture->truncated, true);
    if (bytes_left >= MS__FILE_HEAD)
        return true;
    uint8_t head[MS__FILE_HEAD];
    ms__file_head_put(head);
    if (pwrite(capture->fd, head, sizeof head, 0) == (ssize_t)sizeof head) {
        MS__STORE(capture->bytes, sizeof head);
        ms__file_forget_names(capture); /* All are written again, as they are then. */
        capture->devices_written = 0;
        capture->stacks_written = 0;
    }
    return false;
}

/* Whether bytes can be appended to the file now. */
static bool check_file(ms_capture *capture)
{
    struct stat found;
    if (fstat(capture->fd, &found) != 0 || !is_our_file(capture, &found)) {
        atomic_store(&capture->error, EBADF);
        return false;
    }
    uint64_t size = (uint64_t)found.st_size;
    return !S_ISREG(found.st_mode) || size >= MS__PEEK(capture->bytes) || continue_truncated(capture, size);
}

/* Write `count` bytes at the end of the file, or none. */
static bool append_bytes(ms_capture *capture, const uint8_t *bytes, size_t count)
{
    if (!check_file(capture))
        return false;
    uint64_t end = MS__PEEK(capture->bytes);
    for (size_t done = 0; done < count;) {
        ssize_t wrote = pwrite(capture->fd, bytes + done, count - done, (off_t)(end + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            atomic_store(&capture->error, wrote < 0 ? errno : ENOSPC);
            if (ftruncate(capture->fd, (off_t)end) != 0)
                return false; /* a reader notices that the last chunk is incomplete */
            return false;
        }
        done += (size_t)wrote;
    }
    MS__STORE(capture->bytes, end + count);
    return true;
}

bool ms__file_begin(ms_capture *capture)
{
    uint8_t head[MS__FILE_HEAD];
    ms__file_head_put(head);
    remember_identity(capture);
    return append_bytes(capture, head, sizeof head);
}

/* `bytes`: space for the header, then the payload. */
static bool append_chunk(ms_capture *capture, struct ms__chunk_head *head, uint8_t *bytes)
{
    head->crc = ms__crc32c(0, bytes + MS__CHUNK_HEAD, head->size);
    ms__head_put(bytes, head);
    return append_bytes(capture, bytes, (size_t)MS__CHUNK_HEAD + head->size);
}

/* ---- building a chunk that has no page, in capture->chunk ---- */

struct builder {
    ms_capture *capture;
    size_t used;
    bool failed; /* memory ran out */
};

/* Where the next `bytes` bytes go; NULL if memory runs out. */
static uint8_t *builder_reserve(struct builder *builder, size_t bytes)
{
    ms_capture *capture = builder->capture;
    if (builder->used + bytes > capture->chunk_capacity) {
        size_t capacity = capture->chunk_capacity ? capture->chunk_capacity * 2 : 4096;
        while (capacity < builder->used + bytes)
            capacity *= 2;
        uint8_t *chunk = ms__alloc(capture->watch, capacity);
        if (!chunk) {
            builder->failed = true;
            return NULL;
        }
        if (builder->used)
            memcpy(chunk, capture->chunk, builder->used);
        ms__free(capture->watch, capture->chunk);
        capture->chunk = chunk;
        capture->chunk_capacity = capacity;
    }
    return capture->chunk + builder->used;
}

static void build_number(struct builder *builder, uint64_t number)
{
    uint8_t *at = builder_reserve(builder, MS__VARINT_MAX);
    if (at)
        builder->used = (size_t)(ms__put_varint(at, number) - builder->capture->chunk);
}

static void build_string(struct builder *builder, const char *string)
{
    size_t length = strlen(string);
    build_number(builder, length);
    uint8_t *at = builder_reserve(builder, length);
    if (!at)
        return;
    memcpy(at, string, length); /* NOLINT(bugprone-not-null-terminated-result): its length comes before it */
    builder->used += length;
}

static struct builder new_builder(ms_capture *capture)
{
    struct builder builder = {.capture = capture};
    if (builder_reserve(&builder, MS__CHUNK_HEAD))
        builder.used = MS__CHUNK_HEAD;
    return builder;
}

static bool append_built(const struct builder *builder, enum ms__chunk_kind kind, uint64_t event, uint64_t time)
{
    if (builder->failed || builder->used - MS__CHUNK_HEAD > UINT32_MAX)
        return false;
    struct ms__chunk_head head = {.kind = kind,
                                  .size = (uint32_t)(builder->used - MS__CHUNK_HEAD),
                                  .event = event,
                                  .time = time,
                                  .oldest_claimed = MS__NO_CLAIM};
    return append_chunk(builder->capture, &head, builder->capture->chunk);
}

/* ---- chunks ---- */

/* The file does not have the names of paths that were renamed. Renames are rare, so all newer paths from the first one
 * that changed are written again. */
static void forget_renamed(ms_capture *capture, const struct ms__rename *latest)
{
    for (const struct ms__rename *rename = latest; rename != capture->renames_written; rename = rename->older) {
        if (rename->path < capture->older_paths)
            capture->older_written[rename->path / 64] &= ~(UINT64_C(1) << rename->path % 64);
        else if (rename->path < capture->paths_written)
            capture->paths_written = rename->path;
    }
}

void ms__file_forget_names(ms_capture *capture)
{
    capture->paths_written = 0;
    if (capture->older_written)
        memset(capture->older_written, 0, (capture->older_paths / 64 + 1) * sizeof *capture->older_written);
}

/* Whether the file needs the path's name. From now on it has the name. */
static bool take_needed(ms_capture *capture, ms_path path)
{
    uint64_t bit = UINT64_C(1) << path % 64;
    if (path < capture->older_paths && !(MS__LOAD(capture->mentioned[path / 64]) & bit))
        return false;
    if (path < capture->older_paths)
        capture->older_written[path / 64] |= bit;
    return true;
}

/* Name the paths from `first` up to `end`. An older path that is not mentioned gets an empty name. */
static bool append_range(ms_capture *capture, const struct ms__chunk_head *next, ms_path first, ms_path end)
{
    const ms_watch *watch = capture->watch;
    struct builder builder = new_builder(capture);
    build_number(&builder, first);
    for (ms_path path = first; path < end; path++) {
        bool needed = take_needed(capture, path);
        build_number(&builder, needed ? ms_path_parent(watch, path) : MS_GLOBAL);
        build_number(&builder, needed ? ms__path_nth(watch, path) : 0);
        build_string(&builder, needed ? ms_path_shown(watch, path) : "");
    }
    if (append_built(&builder, MS__CHUNK_NAMES, next->event, next->time))
        return true;
    ms__file_forget_names(capture);
    return false;
}

/* Name the older paths that are mentioned for the first time, if there are any. */
static bool append_older(ms_capture *capture, const struct ms__chunk_head *next)
{
    ms_path first = capture->older_paths, end = 0;
    for (ms_path path = 0; path < capture->older_paths; path += 64) {
        uint64_t added = MS__LOAD(capture->mentioned[path / 64]) & ~capture->older_written[path / 64];
        if (!added)
            continue;
        first = end ? first : path + (ms_path)__builtin_ctzll(added);
        end = path + 64 - (ms_path)__builtin_clzll(added);
    }
    return !end || append_range(capture, next, first, end);
}

bool ms__file_append_names(ms_capture *capture, const struct ms__chunk_head *next)
{
    const ms_watch *watch = capture->watch;
    const struct ms__rename *latest = atomic_load_explicit(&watch->paths.renames, memory_order_acquire);
    uint32_t count = ms_path_count(watch);
    forget_renamed(capture, latest);
    ms_path first = capture->paths_written;
    if ((first && !append_older(capture, next)) || (first < count && !append_range(capture, next, first, count)))
        return false;
    capture->paths_written = count;
    capture->renames_written = latest;
    return true;
}

/* A text is written once; later stacks refer to the first stack that has it. `of`: that one. */
static void build_text(struct builder *builder, ms_stack stack, ms_stack of, const char *text)
{
    build_number(builder, stack - of);
    if (of == stack)
        build_string(builder, text);
}

static void build_stack(struct builder *builder, const ms_watch *watch, ms_stack number)
{
    const struct ms__stack *stack = ms__stack_at(watch, number);
    const ms_frame *frame = &stack->frame;
    build_number(builder, frame->outer ? number - frame->outer : 0);
    build_number(builder, frame->file ? MS__STACK_FRAME : frame->forward ? MS__STACK_NODE : MS__STACK_OPERATOR);
    build_text(builder, number, stack->function_in, frame->function);
    if (!frame->file && frame->forward)
        build_number(builder, number - frame->forward);
    if (!frame->file)
        return;
    build_text(builder, number, stack->file_in, frame->file);
    build_number(builder, frame->line);
    build_number(builder, frame->end_line ? frame->end_line - frame->line + UINT64_C(1) : 0);
    if (!frame->end_line)
        return;
    build_number(builder, frame->column);
    build_number(builder, frame->end_column);
}

static void build_called(struct builder *builder, const ms_watch *watch, ms_stack number)
{
    const struct ms__stack *stack = ms__stack_at(watch, number);
    if (!stack->frame.called) {
        build_number(builder, MS__CALLED_NONE);
    } else if (stack->called_in != number) {
        build_number(builder, number - stack->called_in + MS__CALLED_TEXT);
    } else {
        build_number(builder, MS__CALLED_TEXT);
        build_string(builder, stack->frame.called);
    }
}

/* The stacks from `first` on are new in the file. */
static bool append_called(ms_capture *capture, const struct ms__chunk_head *next, ms_stack first, ms_stack count)
{
    struct builder builder = new_builder(capture);
    build_number(&builder, first);
    for (ms_stack stack = first; stack < count; stack++)
        build_called(&builder, capture->watch, stack);
    return append_built(&builder, MS__CHUNK_CALLED, next->event, next->time);
}

/* Each as the difference to the one before. A program without such frames has no such chunk. */
static bool append_model_frames(ms_capture *capture, const struct ms__chunk_head *next, ms_stack first, ms_stack count)
{
    struct builder builder = new_builder(capture);
    ms_stack latest = MS_STACK_NONE;
    for (ms_stack stack = first; stack < count; stack++) {
        if (!ms__stack_at(capture->watch, stack)->frame.is_model)
            continue;
        build_number(&builder, stack - latest);
        latest = stack;
    }
    return !latest || append_built(&builder, MS__CHUNK_MODEL_FRAMES, next->event, next->time);
}

static bool append_sources(ms_capture *capture, const struct ms__chunk_head *next, ms_stack first, ms_stack count)
{
    struct builder builder = new_builder(capture);
    for (ms_stack number = first; number < count; number++) {
        const struct ms__stack *stack = ms__stack_at(capture->watch, number);
        ms_source source;
        if (stack->file_in != number || !ms_source_read(stack->frame.file, &source))
            continue;
        build_number(&builder, number);
        build_number(&builder, source.bytes);
        build_number(&builder, source.modified);
        build_number(&builder, source.checksum);
    }
    return builder.used == MS__CHUNK_HEAD || append_built(&builder, MS__CHUNK_SOURCES, next->event, next->time);
}

static bool append_stacks(ms_capture *capture, const struct ms__chunk_head *next)
{
    const ms_watch *watch = capture->watch;
    uint32_t count = ms_stack_count(watch);
    ms_stack first = capture->stacks_written ? capture->stacks_written : MS_STACK_LOST + 1u;
    if (first >= count)
        return true;
    struct builder builder = new_builder(capture);
    build_number(&builder, first);
    for (ms_stack stack = first; stack < count; stack++)
        build_stack(&builder, watch, stack);
    if (!append_built(&builder, MS__CHUNK_STACKS, next->event, next->time) ||
        !append_called(capture, next, first, count) || !append_model_frames(capture, next, first, count) ||
        !append_sources(capture, next, first, count))
        return false;
    capture->stacks_written = count;
    return true;
}

static bool append_devices(ms_capture *capture, const struct ms__chunk_head *next)
{
    ms_watch *watch = capture->watch;
    struct builder builder = new_builder(capture);
    uint64_t added = 0;
    pthread_mutex_lock(&watch->lock);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        if (!watch->device_names[device][0] || capture->devices_written >> device & 1)
            continue;
        added |= UINT64_C(1) << device;
        build_number(&builder, device);
        build_string(&builder, watch->device_names[device]);
    }
    pthread_mutex_unlock(&watch->lock);
    if (!added)
        return true;
    if (!append_built(&builder, MS__CHUNK_DEVICES, next->event, next->time))
        return false;
    capture->devices_written |= added;
    return true;
}

bool ms__file_append_page(ms_capture *capture, struct ms__page *page)
{
    bool has_stacks = page->head.kind == MS__CHUNK_ADD_STACKS || page->head.kind == MS__CHUNK_KEY_STACKS;
    return ms__file_append_names(capture, &page->head) && append_devices(capture, &page->head) &&
           (!has_stacks || append_stacks(capture, &page->head)) && append_chunk(capture, &page->head, page->bytes);
}

bool ms__file_append_pairs(ms_capture *capture, enum ms__chunk_kind kind, const char *const *pairs,
                           const struct ms__chunk_head *at)
{
    struct builder builder = new_builder(capture);
    for (; pairs && pairs[0] && pairs[1]; pairs += 2) {
        build_string(&builder, pairs[0]);
        build_string(&builder, pairs[1]);
    }
    uint64_t lost = atomic_load(&capture->lost);
    if (kind == MS__CHUNK_END && lost) {
        char number[24];
        snprintf(number, sizeof number, "%llu", (unsigned long long)lost);
        build_string(&builder, "lost");
        build_string(&builder, number);
    }
    return append_built(&builder, kind, at->event, at->time);
}
