/* stacks.c - the tree of stacks: each distinct (outer, file, function, position, called) is stored once, and so is each
 * text. */
#include "core/watch/watch.h"

#include <string.h>

enum { TEXT_BUCKETS = 4096, FIRST_BUCKETS = 256, CHUNKS = MS_STACKS_MAX / MS__STACK_CHUNK };

static struct ms__stack *stack_at(const struct ms__stacks *stacks, ms_stack stack)
{
    return MS__LOAD(MS__LOAD(stacks->chunks)[stack / MS__STACK_CHUNK]) + stack % MS__STACK_CHUNK;
}

/* ---- texts; with watch->lock held ---- */

static uint32_t hash_text(const char *text)
{
    uint32_t hash = 2166136261u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash ^ hash >> 15;
}

/* The copy of the text; NULL if there is no room for it. */
static struct ms__stack_text *intern_text(ms_watch *watch, const char *text)
{
    struct ms__stacks *stacks = &watch->stacks;
    uint32_t hash = hash_text(text);
    struct ms__stack_text **bucket = &stacks->texts[hash % TEXT_BUCKETS];
    for (struct ms__stack_text *at = *bucket; at; at = at->next)
        if (at->hash == hash && strcmp(at->text, text) == 0)
            return at;
    size_t bytes = strlen(text) + 1;
    struct ms__stack_text *added =
        stacks->text_bytes + bytes <= MS_STACK_TEXT_MAX ? ms__alloc(watch, sizeof *added + bytes) : NULL;
    if (!added)
        return NULL;
    stacks->text_bytes += bytes;
    *added = (struct ms__stack_text){.next = *bucket, .hash = hash};
    memcpy(added->text, text, bytes);
    *bucket = added;
    return added;
}

/* ---- stacks; with watch->lock held ---- */

static uint32_t hash_pointer(const char *text)
{
    return (uint32_t)((uintptr_t)text * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

/* The texts are interned, so their addresses identify them. */
static uint32_t hash_frame(const ms_frame *frame)
{
    uint32_t hash = frame->outer * 2654435761u ^ hash_pointer(frame->file) ^ hash_pointer(frame->function) << 1;
    hash += frame->forward * 374761393u + hash_pointer(frame->called) * 3u;
    hash ^= (frame->line * 40503u + frame->column) * 2246822519u + frame->end_column;
    return hash ^ hash >> 15;
}

static bool is_same_frame(const ms_frame *a, const ms_frame *b)
{
    return a->outer == b->outer && a->forward == b->forward && a->file == b->file && a->function == b->function &&
           a->called == b->called && a->line == b->line && a->column == b->column && a->end_line == b->end_line &&
           a->end_column == b->end_column && a->is_model == b->is_model;
}

/* Allocate the tables when the first stack is added. */
static bool open_stacks(ms_watch *watch)
{
    struct ms__stacks *stacks = &watch->stacks;
    if (MS__PEEK(stacks->chunks))
        return true;
    struct ms__stack *_Atomic *chunks = ms__alloc(watch, CHUNKS * sizeof *chunks);
    stacks->buckets = ms__alloc_zeroed(watch, FIRST_BUCKETS * sizeof *stacks->buckets);
    stacks->texts = ms__alloc_zeroed(watch, TEXT_BUCKETS * sizeof *stacks->texts);
    if (!chunks || !stacks->buckets || !stacks->texts) {
        ms__free(watch, (void *)chunks);
        ms__free(watch, stacks->buckets);
        ms__free(watch, (void *)stacks->texts);
        stacks->buckets = NULL;
        stacks->texts = NULL;
        return false;
    }
    for (size_t i = 0; i < CHUNKS; i++)
        atomic_init(&chunks[i], NULL);
    stacks->bucket_count = FIRST_BUCKETS;
    MS__STORE(stacks->chunks, chunks);
    return true;
}

/* Double the buckets when there are as many stacks. If memory runs out they stay as they are, which is only slower. */
static void grow_stack_buckets(ms_watch *watch, uint32_t count)
{
    struct ms__stacks *stacks = &watch->stacks;
    uint32_t doubled = stacks->bucket_count * 2;
    uint32_t *buckets = count >= stacks->bucket_count ? ms__alloc_zeroed(watch, doubled * sizeof *buckets) : NULL;
    if (!buckets)
        return;
    for (ms_stack at = MS_STACK_LOST + 1; at < count; at++) {
        struct ms__stack *stack = stack_at(stacks, at);
        stack->next = buckets[stack->hash % doubled];
        buckets[stack->hash % doubled] = at;
    }
    ms__free(watch, stacks->buckets);
    stacks->buckets = buckets;
    stacks->bucket_count = doubled;
}

struct texts {
    struct ms__stack_text *file, *function, *called; /* NULL: the frame has none */
};

static ms_stack append_stack(ms_watch *watch, const struct ms__stack *stack, const struct texts *texts)
{
    struct ms__stacks *stacks = &watch->stacks;
    uint32_t at = MS__PEEK(stacks->count) ? MS__PEEK(stacks->count) : MS_STACK_LOST + 1u;
    if (at >= MS_STACKS_MAX)
        return MS_STACK_LOST;
    struct ms__stack *_Atomic *chunk = &MS__PEEK(stacks->chunks)[at / MS__STACK_CHUNK];
    if (!MS__PEEK(*chunk)) {
        struct ms__stack *added = ms__alloc(watch, MS__STACK_CHUNK * sizeof *added);
        if (!added)
            return MS_STACK_LOST;
        MS__STORE(*chunk, added);
    }
    grow_stack_buckets(watch, at);
    if (texts->file && !texts->file->file_in)
        texts->file->file_in = at;
    if (!texts->function->function_in)
        texts->function->function_in = at;
    if (texts->called && !texts->called->called_in)
        texts->called->called_in = at;
    uint32_t *bucket = &stacks->buckets[stack->hash % stacks->bucket_count];
    *stack_at(stacks, at) = (struct ms__stack){.frame = stack->frame,
                                               .next = *bucket,
                                               .hash = stack->hash,
                                               .file_in = texts->file ? texts->file->file_in : 0,
                                               .function_in = texts->function->function_in,
                                               .called_in = texts->called ? texts->called->called_in : 0};
    *bucket = at;
    MS__STORE(stacks->count, at + 1);
    return at;
}

static ms_stack find_or_append(ms_watch *watch, const ms_frame *frame)
{
    const struct ms__stacks *stacks = &watch->stacks;
    ms_frame own = *frame;
    if (!open_stacks(watch) || (own.outer && (own.outer == MS_STACK_LOST || own.outer >= MS__PEEK(stacks->count))))
        return MS_STACK_LOST;
    if (own.forward == MS_STACK_LOST || own.forward >= MS__PEEK(stacks->count))
        own.forward = MS_STACK_NONE;
    struct texts texts = {.file = frame->file ? intern_text(watch, frame->file) : NULL,
                          .function = intern_text(watch, frame->function),
                          .called = frame->called ? intern_text(watch, frame->called) : NULL};
    if (!texts.function || (frame->file && !texts.file) || (frame->called && !texts.called))
        return MS_STACK_LOST;
    own.file = texts.file ? texts.file->text : NULL;
    own.function = texts.function->text;
    own.called = texts.called ? texts.called->text : NULL;
    uint32_t hash = hash_frame(&own);
    for (ms_stack at = stacks->buckets[hash % stacks->bucket_count]; at; at = stack_at(stacks, at)->next)
        if (stack_at(stacks, at)->hash == hash && is_same_frame(&stack_at(stacks, at)->frame, &own))
            return at;
    return append_stack(watch, &(struct ms__stack){.frame = own, .hash = hash}, &texts);
}

/* ---- for everyone ---- */

ms_stack ms_stack_add(ms_watch *watch, const ms_frame *frame)
{
    pthread_mutex_lock(&watch->lock);
    ms_stack stack = find_or_append(watch, frame);
    pthread_mutex_unlock(&watch->lock);
    if (stack == MS_STACK_LOST)
        atomic_fetch_add_explicit(&watch->stacks.lost, 1, memory_order_relaxed);
    return stack;
}

uint32_t ms_stack_count(const ms_watch *watch)
{
    uint32_t count = MS__LOAD(watch->stacks.count);
    return count ? count : MS_STACK_LOST + 1u;
}

const struct ms__stack *ms__stack_at(const ms_watch *watch, ms_stack stack)
{
    return stack_at(&watch->stacks, stack);
}

bool ms_stack_frame(const ms_watch *watch, ms_stack stack, ms_frame *frame)
{
    if (stack <= MS_STACK_LOST || stack >= ms_stack_count(watch))
        return false;
    *frame = stack_at(&watch->stacks, stack)->frame;
    return true;
}

uint64_t ms_stacks_lost(const ms_watch *watch)
{
    return MS__PEEK(watch->stacks.lost);
}

void ms__stacks_close(ms_watch *watch)
{
    struct ms__stacks *stacks = &watch->stacks;
    struct ms__stack *_Atomic *chunks = MS__PEEK(stacks->chunks);
    for (size_t i = 0; chunks && i < CHUNKS && MS__PEEK(chunks[i]); i++)
        ms__free(watch, MS__PEEK(chunks[i]));
    for (size_t i = 0; stacks->texts && i < TEXT_BUCKETS; i++) {
        for (struct ms__stack_text *text = stacks->texts[i], *next; text; text = next) {
            next = text->next;
            ms__free(watch, text);
        }
    }
    ms__free(watch, (void *)chunks);
    ms__free(watch, stacks->buckets);
    ms__free(watch, (void *)stacks->texts);
}
