/* variants.c - replays of an edit in which what Python holds lives shorter or longer, in several threads. */
#define _POSIX_C_SOURCE 200809L
#include "replay/edit.h"

#include <pthread.h>
#include <unistd.h>

enum { MOST_THREADS = 8, EVENTS_OF_A_THREAD = 20000 }; /* a thread costs about as much as so many events */

/* Replays of variants that several threads share. */
struct variants {
    const ms_replay_stream *stream;
    const ms_replay_edit *edit;
    uint32_t device, count;
    const ms_allocator_settings *settings;
    pthread_mutex_t lock;
    uint32_t begun; /* guarded by lock, as those below */
    uint64_t *least, *most;
    int error;
};

/* The next variant, or 0: there is none, or the result is known. */
static uint32_t next_variant(struct variants *variants)
{
    pthread_mutex_lock(&variants->lock);
    bool is_over = variants->error || *variants->most > variants->edit->most_reserved;
    uint32_t next = is_over || variants->begun == variants->count ? 0 : ++variants->begun;
    pthread_mutex_unlock(&variants->lock);
    return next;
}

static void *replay_variants(void *shared)
{
    struct variants *variants = shared;
    ms_replay_edit edit = *variants->edit;
    while ((edit.variant = next_variant(variants)) != 0) {
        ms_replay_result result;
        int error = ms_replay_run(variants->stream, &edit, variants->device, variants->settings, NULL, &result);
        pthread_mutex_lock(&variants->lock);
        variants->error = variants->error ? variants->error : error;
        if (!error && result.reserved_peak > *variants->most)
            *variants->most = result.reserved_peak;
        if (!error && result.reserved_peak < *variants->least)
            *variants->least = result.reserved_peak;
        pthread_mutex_unlock(&variants->lock);
    }
    return NULL;
}

static uint32_t threads_for(const ms_replay_stream *stream, uint32_t variants)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t most = (uint64_t)stream->event_count * variants / EVENTS_OF_A_THREAD;
    most = most < variants ? most : variants;
    most = most < MOST_THREADS ? most : MOST_THREADS;
    return processors > 0 && most > (uint64_t)processors ? (uint32_t)processors : (uint32_t)most;
}

int ms_replay_run_variants(const ms_replay_stream *stream, const ms_replay_edit *edit, uint32_t device,
                           const ms_allocator_settings *settings, uint32_t variants, uint64_t *least, uint64_t *most)
{
    if (!edit || !edit->call_count || !variants)
        return MS_OK;
    struct variants shared = {.stream = stream,
                              .edit = edit,
                              .device = device,
                              .count = variants,
                              .settings = settings,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .least = least,
                              .most = most};
    pthread_t threads[MOST_THREADS];
    uint32_t wanted = threads_for(stream, variants), others = 0; /* beside this thread, which does what is left */
    while (others + 1 < wanted && pthread_create(&threads[others], NULL, replay_variants, &shared) == 0)
        others++;
    replay_variants(&shared);
    while (others)
        pthread_join(threads[--others], NULL);
    pthread_mutex_destroy(&shared.lock);
    return shared.error;
}
