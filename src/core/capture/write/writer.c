/* writer.c - beginning and ending a capture, and the thread that writes its file. What cannot be written is lost and
 * counted. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/write/writer.h"
#include "core/system.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* ---- the writing thread ---- */

/* A page of `events` events could not be written, and later events refer to what was in it. Lose all events until the
 * next periodic work, which makes a key frame. */
static void discard_after_failed_write(ms_capture *capture, uint64_t events)
{
    ms__lock(&capture->ledger->lock);
    struct ms__page *page = capture->page;
    capture->page = NULL;
    capture->at = capture->limit = NULL;
    ms__capture_close_notes(capture);
    ms__capture_close_times(capture);
    ms__capture_close_operators(capture);
    ms__capture_close_collectives(capture);
    ms__capture_close_stacks(capture);
    events += page ? capture->event - page->head.event : 0;
    capture->losing = capture->write_failed = true;
    atomic_fetch_add_explicit(&capture->lost, events, memory_order_relaxed);
    ms__unlock(&capture->ledger->lock);
    capture->skip_to_key_frame = true;
    if (!page)
        return;
    page->head.kind = MS__CHUNK_EVENTS;
    ms__page_release(capture, page);
}

static void write_page(ms_capture *capture, struct ms__page *page)
{
    if (capture->skip_to_key_frame && page->head.kind != MS__CHUNK_KEY) {
        atomic_fetch_add_explicit(&capture->lost, page->head.events, memory_order_relaxed);
        return;
    }
    if (ms__file_append_page(capture, page))
        capture->skip_to_key_frame = false;
    else
        discard_after_failed_write(capture, page->head.events);
}

/* Every MS__FLUSH_INTERVAL_MS: queue the page even if it is not full, and try again to write a file that could not be
 * written. */
static void do_periodic_work(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    capture->write_failed = false;
    ms__capture_check_key_frame(capture);
    ms__capture_calibrate(capture);
    ms__capture_write_deferred(capture, UINT64_C(10) * MS__SHORT_GAP_US);
    if (capture->page && capture->event > capture->page->head.event)
        ms__capture_close_page(capture);
    ms__unlock(&capture->ledger->lock);
}

/* Wait until a page is queued or the capture ends. True if MS__FLUSH_INTERVAL_MS have passed instead. The caller holds
 * capture->lock. */
static bool wait_for_page(ms_capture *capture)
{
    return ms__cond_wait_for(&capture->wake, &capture->lock, MS__FLUSH_INTERVAL_MS);
}

/* Measure the tick rate for the first time, over two milliseconds. */
static void calibrate_first(ms_capture *capture)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    ms__lock(&capture->ledger->lock);
    ms__capture_calibrate(capture);
    ms__unlock(&capture->ledger->lock);
}

/* The moment at which the program's events end: later ones are not written. The page so far is queued. */
static struct ms__chunk_head close_last_page(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    ms__capture_write_deferred(capture, 0);
    ms__capture_close_page(capture);
    struct ms__chunk_head end = {.event = capture->event, .time = ms__microseconds_by_clock(capture)};
    ms__unlock(&capture->ledger->lock);
    return end;
}

/* The next page of events before `end`; NULL if there is none. */
static struct ms__page *dequeue_before(ms_capture *capture, const struct ms__chunk_head *end)
{
    pthread_mutex_lock(&capture->lock);
    struct ms__page *first = capture->queue_first;
    struct ms__page *page = first && first->head.event < end->event ? ms__page_dequeue(capture) : NULL;
    pthread_mutex_unlock(&capture->lock);
    return page;
}

/* The program goes on meanwhile. What it allocates from now on is not in the file. */
static void end_as_requested(ms_capture *capture)
{
    struct ms__chunk_head end = close_last_page(capture);
    struct ms__page *page;
    while ((page = dequeue_before(capture, &end)))
        write_page(capture, page);
    ms__file_append_names(capture, &end);
    ms__file_append_pairs(capture, MS__CHUNK_END, capture->requested_info, &end);
    ms_capture_status status = ms_capture_get_status(capture);
    capture->after_requested_end(&status);
}

static bool end_is_requested(const ms_capture *capture)
{
    return capture->is_end_requested && capture->is_end_requested();
}

/* Write the pages until the capture is paused, or has ended and none is left. */
static void write_pages(ms_capture *capture)
{
    uint64_t last_periodic = ms__clock();
    pthread_mutex_lock(&capture->lock);
    while (!capture->pauses && (capture->queue_first || !capture->ending)) {
        struct ms__page *page = ms__page_dequeue(capture);
        bool due =
            page ? ms__clock() - last_periodic > MS__FLUSH_INTERVAL_MS * UINT64_C(1000000) : wait_for_page(capture);
        capture->writing = true;
        bool requested = end_is_requested(capture);
        pthread_mutex_unlock(&capture->lock);
        if (page) {
            write_page(capture, page);
            ms__page_release(capture, page);
        }
        if (due) {
            do_periodic_work(capture);
            last_periodic = ms__clock();
        }
        if (requested)
            end_as_requested(capture);
        pthread_mutex_lock(&capture->lock);
        capture->unwritten -= page != NULL;
        capture->writing = false;
        pthread_cond_broadcast(&capture->written);
    }
    pthread_mutex_unlock(&capture->lock);
}

static void *run_writer(void *argument)
{
    ms_capture *capture = argument;
    ssize_t length = readlink("/proc/thread-self", capture->writer_name, sizeof capture->writer_name - 1);
    capture->writer_name[length > 0 ? length : 0] = '\0';
    calibrate_first(capture);
    write_pages(capture);
    return NULL;
}

/* The thread blocks all signals, so that the program's own threads get them. */
static int start_thread(ms_capture *capture)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&capture->writer, NULL, run_writer, capture);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Wait for a thread that ends. A thread that was joined still counts as one of the process for some microseconds. */
static void join_thread(ms_capture *capture)
{
    pthread_join(capture->writer, NULL);
    char path[sizeof "/proc/" + sizeof capture->writer_name];
    snprintf(path, sizeof path, "/proc/%s", capture->writer_name);
    for (int i = 0; i < 1000 && capture->writer_name[0] && access(path, F_OK) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
}

void ms_capture_pause(ms_capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    bool first = capture->pauses++ == 0 && capture->running;
    pthread_cond_signal(&capture->wake);
    pthread_mutex_unlock(&capture->lock);
    if (!first)
        return;
    join_thread(capture);
    pthread_mutex_lock(&capture->lock);
    capture->running = false;
    pthread_mutex_unlock(&capture->lock);
}

bool ms_capture_resume(ms_capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    if (capture->pauses && --capture->pauses == 0 && !capture->running) {
        capture->running = start_thread(capture) == 0;
        pthread_cond_broadcast(&capture->written); /* for ms_capture_flush, if there is no thread */
    }
    bool has_thread = capture->running || capture->pauses;
    pthread_mutex_unlock(&capture->lock);
    return has_thread;
}

/* ---- beginning and ending ---- */

/* The process may have used other models before. A capture names those of their modules that it mentions. */
static bool begin_names(ms_capture *capture)
{
    uint32_t paths = ms_path_count(capture->watch);
    size_t bytes = (paths / 64 + 1) * sizeof(uint64_t);
    capture->mentioned = ms__alloc(capture->watch, bytes);
    capture->older_written = ms__alloc(capture->watch, bytes);
    if (!capture->mentioned || !capture->older_written)
        return false;
    for (uint32_t word = 0; word <= paths / 64; word++)
        atomic_init(&capture->mentioned[word], 0);
    MS__STORE(capture->mentioned[0], UINT64_C(1) << MS_GLOBAL | UINT64_C(1) << MS_UNKNOWN);
    memset(capture->older_written, 0, bytes);
    capture->older_paths = paths;
    return true;
}

static ms_capture *new_capture(ms_ledger *ledger, int fd)
{
    ms_capture *capture = ms__alloc(ledger->watch, sizeof *capture);
    if (!capture)
        return NULL;
    memset(capture, 0, sizeof *capture);
    capture->ledger = ledger;
    capture->watch = ledger->watch;
    capture->fd = fd;
    ms__capture_choose_clock(capture);
    capture->losing = true; /* until the first key frame */
    capture->event = 1;     /* since_event 0 means: before the capture began */
    pthread_mutex_init(&capture->lock, NULL);
    ms__cond_open(&capture->wake);
    pthread_cond_init(&capture->written, NULL);
    return capture;
}

static void free_capture(ms_capture *capture)
{
    ms_watch *watch = capture->watch;
    ms__pages_free(capture);
    ms__free(watch, capture->origins);
    ms__free(watch, capture->mentioned);
    ms__free(watch, capture->older_written);
    ms__free(watch, capture->positions);
    ms__free(watch, capture->timed_calls);
    ms__free(watch, capture->stack_history);
    ms__free(watch, capture->chunk);
    pthread_cond_destroy(&capture->wake);
    pthread_cond_destroy(&capture->written);
    pthread_mutex_destroy(&capture->lock);
    ms__free(watch, capture);
}

int ms_capture_begin(ms_ledger *ledger, int fd, const char *const *info, ms_capture **out)
{
    ms_capture *capture = new_capture(ledger, fd);
    if (!capture)
        return MS_ENOMEM;
    const struct ms__chunk_head start = {.event = capture->event};
    int error =
        begin_names(capture) && ms__file_begin(capture) && ms__file_append_pairs(capture, MS__CHUNK_INFO, info, &start)
            ? MS_OK
            : MS_EIO;
    if (error && !capture->error)
        error = MS_ENOMEM;
    capture->running = true;
    if (!error && start_thread(capture) != 0)
        error = MS_ENOMEM;
    if (error) {
        free_capture(capture);
        return error;
    }
    ms__lock(&ledger->lock);
    memcpy(capture->reserved, ledger->reserved, sizeof capture->reserved);
    capture->next = MS__PEEK(ledger->captures);
    MS__STORE(ledger->captures, capture);
    ms__capture_begin_clock(capture);
    capture->first_step = ledger->step;
    ms__capture_check_key_frame(capture);
    ms__unlock(&ledger->lock);
    *out = capture;
    return MS_OK;
}

ms_capture_status ms_capture_get_status(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    uint64_t events = capture->event - 1 - atomic_load(&capture->lost);
    ms__unlock(&capture->ledger->lock);
    return (ms_capture_status){.events = events,
                               .lost = atomic_load(&capture->lost),
                               .bytes = MS__PEEK(capture->bytes),
                               .error = atomic_load(&capture->error),
                               .truncated = atomic_load(&capture->truncated)};
}

/* The caller holds ledger->lock. */
static void remove_from_ledger(ms_ledger *ledger, const ms_capture *capture)
{
    ms_capture *at = MS__PEEK(ledger->captures);
    if (at == capture) {
        MS__STORE(ledger->captures, capture->next);
        return;
    }
    while (at->next != capture)
        at = at->next;
    at->next = capture->next;
}

ms_capture_status ms_capture_end(ms_capture *capture, const char *const *info)
{
    ms__lock(&capture->ledger->lock);
    ms__capture_write_deferred(capture, 0);
    ms__capture_close_page(capture);
    remove_from_ledger(capture->ledger, capture);
    capture->time = ms__microseconds_by_clock(capture);
    ms__unlock(&capture->ledger->lock);
    pthread_mutex_lock(&capture->lock);
    capture->ending = true;
    bool running = capture->running;
    if (!running)
        capture->pauses = 0;
    pthread_cond_signal(&capture->wake);
    pthread_mutex_unlock(&capture->lock);
    if (running)
        pthread_join(capture->writer, NULL);
    else
        write_pages(capture);
    const struct ms__chunk_head end = {.event = capture->event, .time = capture->time};
    ms__file_append_names(capture, &end);
    ms__file_append_pairs(capture, MS__CHUNK_END, info, &end);
    ms_capture_status last = ms_capture_get_status(capture);
    free_capture(capture);
    return last;
}

void ms_capture_end_on_request(ms_capture *capture, bool (*is_requested)(void), const char *const *info,
                               void (*then)(const ms_capture_status *status))
{
    pthread_mutex_lock(&capture->lock);
    capture->is_end_requested = is_requested;
    capture->requested_info = info;
    capture->after_requested_end = then;
    pthread_mutex_unlock(&capture->lock);
}

/* The memory stays allocated: the writing thread does not exist in this process, and it may have been in the middle of
 * changing the queue. */
void ms_capture_abandon(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    remove_from_ledger(capture->ledger, capture);
    ms__unlock(&capture->ledger->lock);
}

void ms_capture_flush(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    ms__capture_write_deferred(capture, 0);
    ms__capture_close_page(capture);
    ms__unlock(&capture->ledger->lock);
    pthread_mutex_lock(&capture->lock);
    while ((capture->queue_first || capture->writing) && (capture->running || capture->pauses))
        pthread_cond_wait(&capture->written, &capture->lock);
    pthread_mutex_unlock(&capture->lock);
    ms__lock(&capture->ledger->lock);
    ms__capture_check_key_frame(capture); /* so that events after a loss can be written again */
    ms__unlock(&capture->ledger->lock);
}
