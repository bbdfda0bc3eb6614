/* watch.c - opening and closing a watch and its threads, and the memory of both. */
#include "core/watch/watch.h"
#include "core/ledger/call_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ms_error_text(int error)
{
    switch (error) {
#define X(name, value, text) \
    case value:              \
        return text;
        MS_ERRORS(X)
#undef X
    default:
        return "no such error";
    }
}

void *ms__alloc(ms_watch *watch, size_t bytes)
{
    return watch->options.alloc ? watch->options.alloc(watch->options.context, bytes) : malloc(bytes);
}

void *ms__alloc_zeroed(ms_watch *watch, size_t bytes)
{
    if (!watch->options.alloc)
        return calloc(1, bytes);
    void *memory = ms__alloc(watch, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

void ms__free(ms_watch *watch, void *memory)
{
    if (!memory)
        return;
    if (watch->options.free)
        watch->options.free(watch->options.context, memory);
    else
        free(memory);
}

void ms__count_lost(ms_watch *watch)
{
    atomic_fetch_add_explicit(&watch->lost, 1, memory_order_relaxed);
}

static uint32_t round_up_capacity(uint32_t wanted)
{
    uint32_t size = MS__MIN_CAPACITY;
    while (size < wanted && size < 1u << 30)
        size *= 2;
    return size;
}

ms_watch *ms_watch_open(const ms_options *options)
{
    ms_options chosen = options ? *options : (ms_options){0};
    if (!chosen.alloc != !chosen.free)
        return NULL;
    chosen.calls_kept = round_up_capacity(chosen.calls_kept ? chosen.calls_kept : 131072);
    chosen.threads_kept = chosen.threads_kept ? chosen.threads_kept : 256;
    chosen.paths_kept = chosen.paths_kept ? chosen.paths_kept : 4194304;
    ms_watch *watch = chosen.alloc ? chosen.alloc(chosen.context, sizeof *watch) : malloc(sizeof *watch);
    if (!watch)
        return NULL;
    memset(watch, 0, sizeof *watch);
    watch->options = chosen;
    pthread_mutex_init(&watch->lock, NULL);
    if (ms__paths_open(watch, chosen.paths_kept) == MS_OK)
        return watch;
    ms_watch_close(watch);
    return NULL;
}

static void free_thread(ms_watch *watch, ms_thread *thread)
{
    if (thread->ring.records)
        ms__call_ring_close(watch, &thread->ring);
    ms__on_thread_end(thread);
    ms__free(watch, thread->frames);
    ms__free(watch, (void *)MS__PEEK(thread->node_stacks.stacks));
    ms__free(watch, thread);
}

void ms_watch_close(ms_watch *watch)
{
    if (!watch)
        return;
    while (watch->threads) {
        ms_thread *thread = watch->threads;
        watch->threads = thread->next;
        free_thread(watch, thread);
    }
    ms__ledgers_free(watch);
    ms__paths_close(watch);
    ms__stacks_close(watch);
    pthread_mutex_destroy(&watch->lock);
    if (watch->options.free)
        watch->options.free(watch->options.context, watch);
    else
        free(watch);
}

void ms_device_set_name(ms_watch *watch, uint32_t device, const char *name)
{
    if (device >= MS_MAX_DEVICES)
        return;
    pthread_mutex_lock(&watch->lock);
    snprintf(watch->device_names[device], MS__DEVICE_NAME, "%s", name);
    pthread_mutex_unlock(&watch->lock);
}

uint64_t ms_watch_lost(const ms_watch *watch)
{
    return atomic_load_explicit(&watch->lost, memory_order_relaxed);
}

void ms_watch_lock(ms_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    watch->locked_ledger = MS__PEEK(watch->ledger);
    if (watch->locked_ledger)
        ms__ledger_lock(watch->locked_ledger);
}

void ms_watch_unlock(ms_watch *watch)
{
    if (watch->locked_ledger)
        ms__ledger_unlock(watch->locked_ledger);
    watch->locked_ledger = NULL;
    pthread_mutex_unlock(&watch->lock);
}

/* Take an ended thread whose memory a new thread may use: one that recorded nothing, or the oldest if more have
 * ended than options.threads_kept. NULL if there is none. The caller holds watch->lock. */
static ms_thread *take_ended_thread(ms_watch *watch)
{
    ms_thread *thread = watch->ended_first;
    if (!thread)
        return NULL;
    bool empty = ms__call_ring_empty(&thread->ring);
    if (!empty && watch->ended_count <= watch->options.threads_kept)
        return NULL;
    watch->ended_first = thread->next_ended;
    if (!watch->ended_first)
        watch->ended_last = NULL;
    watch->ended_count--;
    watch->discarded += !empty;
    thread->next_ended = NULL;
    /* The id changes before the records do, so that a lookup in this ring notices. */
    atomic_store_explicit(&thread->id, 0, memory_order_release);
    ms__call_ring_clear(&thread->ring);
    ms__node_stacks_clear(thread);
    return thread;
}

static ms_thread *new_thread(ms_watch *watch)
{
    ms_thread *thread = ms__alloc(watch, sizeof *thread);
    if (!thread)
        return NULL;
    memset(thread, 0, sizeof *thread);
    thread->watch = watch;
    thread->number = ++watch->thread_count;
    if (ms__call_ring_open(watch, &thread->ring, watch->options.calls_kept) != MS_OK) {
        ms__free(watch, thread);
        return NULL;
    }
    thread->next = watch->threads;
    watch->threads = thread;
    return thread;
}

ms_thread *ms_thread_open(ms_watch *watch, uint64_t id)
{
    if (id == MS_ANY_THREAD || id == MS__NO_THREAD)
        return NULL;
    pthread_mutex_lock(&watch->lock);
    ms_thread *thread = take_ended_thread(watch);
    if (!thread)
        thread = new_thread(watch);
    if (thread) {
        thread->open = true;
        thread->lookup.creator_id = MS__NO_THREAD;
        thread->saved_unknown_to = 0;
        thread->renew_check_at = 0;
        thread->optimizer_at = thread->optimizer_steps_open = 0;
        atomic_store_explicit(&thread->id, id, memory_order_release);
    } else {
        watch->discarded++; /* the owner of its nodes is unknown */
        ms__count_lost(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    return thread;
}

void ms_thread_close(ms_thread *thread)
{
    ms_watch *watch = thread->watch;
    pthread_mutex_lock(&watch->lock);
    ms__thread_record_nodes(thread);
    ms__on_thread_end(thread);
    thread->depth = thread->nodes_open = thread->unrecorded = thread->unpushed = 0;
    MS__STORE(thread->ring.unrecorded_from, UINT64_MAX);
    thread->open = false;
    /* A thread that recorded nothing goes to the front of the list, so that its memory is used again first. */
    bool empty = ms__call_ring_empty(&thread->ring);
    if (empty || !watch->ended_last) {
        thread->next_ended = watch->ended_first;
        watch->ended_first = thread;
        if (!watch->ended_last)
            watch->ended_last = thread;
    } else {
        thread->next_ended = NULL;
        watch->ended_last->next_ended = thread;
        watch->ended_last = thread;
    }
    watch->ended_count++;
    pthread_mutex_unlock(&watch->lock);
}

ms_thread *ms__thread_find(ms_watch *watch, uint64_t id, bool *discarded)
{
    pthread_mutex_lock(&watch->lock);
    ms_thread *thread = watch->threads;
    while (thread && atomic_load_explicit(&thread->id, memory_order_relaxed) != id)
        thread = thread->next;
    *discarded = watch->discarded > 0;
    pthread_mutex_unlock(&watch->lock);
    return thread;
}
