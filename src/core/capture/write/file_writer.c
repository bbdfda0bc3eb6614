/* file_writer.c - a capture's pages go to its file, by a thread of their own. What cannot be written
 * is lost and counted; the file is good up to its last whole chunk at any time. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/write/writer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- pages ---- */
struct ms__page *ms__page_take(ms_capture *capture, uint32_t room)
{
    pthread_mutex_lock(&capture->lock);
    struct ms__page *page = capture->free;
    if (page)
        capture->free = page->next;
    bool more = !page && capture->pages < MS__PAGES_MOST;
    capture->pages += more;
    pthread_mutex_unlock(&capture->lock);
    if (!more)
        return page;
    page = ms__alloc(capture->watch, sizeof *page + MS__CHUNK_HEAD + room);
    if (page) {
        page->room = room;
        return page;
    }
    pthread_mutex_lock(&capture->lock);
    capture->pages--;
    pthread_mutex_unlock(&capture->lock);
    return NULL;
}

void ms__page_give(ms_capture *capture, struct ms__page *page)
{
    pthread_mutex_lock(&capture->lock);
    page->next = NULL;
    *(capture->full_last ? &capture->full_last->next : &capture->full_first) = page;
    capture->full_last = page;
    capture->waiting++;
    pthread_cond_signal(&capture->wake);
    pthread_mutex_unlock(&capture->lock);
}

bool ms__pages_calm(ms_capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    bool calm = capture->waiting <= MS__PAGES_MOST / 2;
    pthread_mutex_unlock(&capture->lock);
    return calm;
}

/* Events' pages are used again. */
static void give_back(ms_capture *capture, struct ms__page *page)
{
    bool kept = page->head.kind == MS__CHUNK_EVENTS;
    pthread_mutex_lock(&capture->lock);
    if (kept) {
        page->next = capture->free;
        capture->free = page;
    }
    pthread_mutex_unlock(&capture->lock);
    if (!kept)
        ms__free(capture->watch, page);
}

static void free_pages(ms_watch *watch, struct ms__page *page)
{
    while (page) {
        struct ms__page *next = page->next;
        ms__free(watch, page);
        page = next;
    }
}

/* ---- the file ---- */

static bool file_of(int fd, uint64_t file[2])
{
    struct stat found;
    if (fstat(fd, &found) != 0)
        return false;
    file[0] = found.st_dev;
    file[1] = found.st_ino;
    return true;
}

/* A program that closes what it did not open may have given the number to a file of its own. */
static bool is_ours(const ms_capture *capture)
{
    uint64_t file[2];
    return file_of(capture->fd, file) && file[0] == capture->file[0] && file[1] == capture->file[1];
}

/* Write `count` bytes at the file's end, or nothing. */
static bool append(ms_capture *capture, const uint8_t *bytes, size_t count)
{
    if (!is_ours(capture)) {
        atomic_store(&capture->error, EBADF);
        return false;
    }
    uint64_t end = MS__PEEK(capture->bytes);
    for (size_t done = 0; done < count;) {
        ssize_t wrote = pwrite(capture->fd, bytes + done, count - done, (off_t)(end + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            atomic_store(&capture->error, wrote < 0 ? errno : ENOSPC);
            if (ftruncate(capture->fd, (off_t)end) != 0)
                return false; /* a reader sees that the chunk is not whole */
            return false;
        }
        done += (size_t)wrote;
    }
    MS__STORE(capture->bytes, end + count);
    return true;
}

/* `bytes`: room for the head, then the payload. */
static bool append_chunk(ms_capture *capture, struct ms__chunk_head *head, uint8_t *bytes)
{
    head->crc = ms__crc32c(0, bytes + MS__CHUNK_HEAD, head->size);
    ms__head_put(bytes, head);
    return append(capture, bytes, (size_t)MS__CHUNK_HEAD + head->size);
}

/* A chunk in the making that is not events. */
struct draft {
    ms_capture *capture;
    size_t used;
    bool failed;
};

static uint8_t *draft_room(struct draft *draft, size_t bytes)
{
    ms_capture *capture = draft->capture;
    if (draft->used + bytes > capture->scratch_room) {
        size_t room = capture->scratch_room ? capture->scratch_room * 2 : 4096;
        while (room < draft->used + bytes)
            room *= 2;
        uint8_t *scratch = ms__alloc(capture->watch, room);
        if (!scratch) {
            draft->failed = true;
            return NULL;
        }
        if (draft->used)
            memcpy(scratch, capture->scratch, draft->used);
        ms__free(capture->watch, capture->scratch);
        capture->scratch = scratch;
        capture->scratch_room = room;
    }
    return capture->scratch + draft->used;
}

static void draft_number(struct draft *draft, uint64_t number)
{
    uint8_t *at = draft_room(draft, MS__VARINT_MAX);
    if (at)
        draft->used = (size_t)(ms__put_varint(at, number) - draft->capture->scratch);
}

static void draft_string(struct draft *draft, const char *string)
{
    size_t length = strlen(string);
    draft_number(draft, length);
    uint8_t *at = draft_room(draft, length);
    if (!at)
        return;
    memcpy(at, string, length); /* NOLINT(bugprone-not-null-terminated-result): its length comes before it */
    draft->used += length;
}

static struct draft new_draft(ms_capture *capture)
{
    struct draft draft = {.capture = capture};
    if (draft_room(&draft, MS__CHUNK_HEAD))
        draft.used = MS__CHUNK_HEAD;
    return draft;
}

static bool append_draft(const struct draft *draft, enum ms__chunk_kind kind, uint64_t event, uint64_t time)
{
    if (draft->failed || draft->used - MS__CHUNK_HEAD > UINT32_MAX)
        return false;
    struct ms__chunk_head head = {.kind = kind,
                                  .size = (uint32_t)(draft->used - MS__CHUNK_HEAD),
                                  .event = event,
                                  .time = time,
                                  .oldest_claimed = MS__NO_CLAIM};
    return append_chunk(draft->capture, &head, draft->capture->scratch);
}

/* The names of the paths that came since. They are there before any event that mentions them. */
static bool append_names(ms_capture *capture, const struct ms__chunk_head *before)
{
    const ms_watch *watch = capture->watch;
    uint32_t count = ms_path_count(watch);
    if (count == capture->names_done)
        return true;
    struct draft draft = new_draft(capture);
    draft_number(&draft, capture->names_done);
    for (ms_path path = capture->names_done; path < count; path++) {
        draft_number(&draft, ms_path_parent(watch, path));
        draft_number(&draft, ms__path_nth(watch, path));
        draft_string(&draft, ms_path_name(watch, path));
    }
    if (!append_draft(&draft, MS__CHUNK_NAMES, before->event, before->time))
        return false;
    capture->names_done = count;
    return true;
}

static bool append_devices(ms_capture *capture, const struct ms__chunk_head *before)
{
    ms_watch *watch = capture->watch;
    struct draft draft = new_draft(capture);
    uint64_t found = 0;
    pthread_mutex_lock(&watch->lock);
    for (uint32_t device = 0; device < MS_MAX_DEVICES; device++) {
        if (!watch->device_names[device][0] || capture->devices_done >> device & 1)
            continue;
        found |= UINT64_C(1) << device;
        draft_number(&draft, device);
        draft_string(&draft, watch->device_names[device]);
    }
    pthread_mutex_unlock(&watch->lock);
    if (!found)
        return true;
    if (!append_draft(&draft, MS__CHUNK_DEVICES, before->event, before->time))
        return false;
    capture->devices_done |= found;
    return true;
}

static bool append_pairs(ms_capture *capture, enum ms__chunk_kind kind, const char *const *pairs)
{
    struct draft draft = new_draft(capture);
    for (; pairs && pairs[0] && pairs[1]; pairs += 2) {
        draft_string(&draft, pairs[0]);
        draft_string(&draft, pairs[1]);
    }
    uint64_t lost = atomic_load(&capture->lost);
    if (kind == MS__CHUNK_END && lost) {
        char number[24];
        snprintf(number, sizeof number, "%llu", (unsigned long long)lost);
        draft_string(&draft, "lost");
        draft_string(&draft, number);
    }
    return append_draft(&draft, kind, capture->event, capture->time);
}

/* ---- the thread ---- */

/* A page could not be written: what follows needs what was in it. Begin again after a while. */
static void halt(ms_capture *capture, uint64_t events)
{
    ms__lock(&capture->ledger->lock);
    struct ms__page *page = capture->page;
    capture->page = NULL;
    capture->at = capture->last = NULL;
    events += page ? capture->event - page->head.event : 0;
    capture->broken = capture->halted = true;
    atomic_fetch_add_explicit(&capture->lost, events, memory_order_relaxed);
    ms__unlock(&capture->ledger->lock);
    capture->needs_key = true;
    if (!page)
        return;
    page->head.kind = MS__CHUNK_EVENTS;
    give_back(capture, page);
}

static void write_page(ms_capture *capture, struct ms__page *page)
{
    if (capture->needs_key && page->head.kind != MS__CHUNK_KEY) {
        atomic_fetch_add_explicit(&capture->lost, page->head.events, memory_order_relaxed);
        return;
    }
    if (append_names(capture, &page->head) && append_devices(capture, &page->head) &&
        append_chunk(capture, &page->head, page->bytes))
        capture->needs_key = false;
    else
        halt(capture, page->head.events);
}

/* Once in a while: what waits is written, full or not, and a file that could not be written is tried again. */
static void look_round(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    capture->halted = false;
    ms__capture_key(capture);
    ms__capture_compare(capture);
    ms__capture_tell_left(capture, UINT64_C(10) * MS__LEFT_US);
    if (capture->page && capture->event > capture->page->head.event)
        ms__capture_seal(capture);
    ms__unlock(&capture->ledger->lock);
}

static bool nap(ms_capture *capture)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += MS__NAP_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    return pthread_cond_timedwait(&capture->wake, &capture->lock, &until) == ETIMEDOUT;
}

/* A first look at how fast the processor counts. */
static void compare_clocks(ms_capture *capture)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    ms__lock(&capture->ledger->lock);
    ms__capture_compare(capture);
    ms__unlock(&capture->ledger->lock);
}

static void *write_pages(void *of)
{
    ms_capture *capture = of;
    compare_clocks(capture);
    uint64_t looked = ms__clock();
    pthread_mutex_lock(&capture->lock);
    while (capture->full_first || !capture->stopping) {
        struct ms__page *page = capture->full_first;
        bool late = page ? ms__clock() - looked > MS__NAP_MS * UINT64_C(1000000) : nap(capture);
        capture->busy = true;
        if (page) {
            capture->full_first = page->next;
            if (!capture->full_first)
                capture->full_last = NULL;
        }
        pthread_mutex_unlock(&capture->lock);
        if (page) {
            write_page(capture, page);
            give_back(capture, page);
        }
        if (late) {
            look_round(capture);
            looked = ms__clock();
        }
        pthread_mutex_lock(&capture->lock);
        capture->waiting -= page != NULL;
        capture->busy = false;
        pthread_cond_broadcast(&capture->idle);
    }
    pthread_mutex_unlock(&capture->lock);
    return NULL;
}

/* Signals are the program's: none comes to this thread. */
static int start(ms_capture *capture)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&capture->writer, NULL, write_pages, capture);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- beginning and ending ---- */
static ms_capture *new_capture(ms_ledger *ledger, int fd)
{
    ms_capture *capture = ms__alloc(ledger->watch, sizeof *capture);
    if (!capture)
        return NULL;
    memset(capture, 0, sizeof *capture);
    capture->ledger = ledger;
    capture->watch = ledger->watch;
    capture->fd = fd;
    capture->began = ms__clock();
    capture->broken = true; /* it begins with a key frame */
    capture->event = 1;     /* what is there already is older */
    pthread_mutex_init(&capture->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&capture->wake, &monotonic);
    pthread_cond_init(&capture->idle, NULL);
    pthread_condattr_destroy(&monotonic);
    return capture;
}

static void free_capture(ms_capture *capture)
{
    ms_watch *watch = capture->watch;
    free_pages(watch, capture->full_first);
    free_pages(watch, capture->free);
    ms__free(watch, capture->page);
    ms__free(watch, capture->births);
    ms__free(watch, capture->places);
    ms__free(watch, capture->scratch);
    pthread_cond_destroy(&capture->wake);
    pthread_cond_destroy(&capture->idle);
    pthread_mutex_destroy(&capture->lock);
    ms__free(watch, capture);
}

int ms_capture_begin(ms_ledger *ledger, int fd, const char *const *info, ms_capture **out)
{
    ms_capture *capture = new_capture(ledger, fd);
    if (!capture)
        return MS_ENOMEM;
    uint8_t head[MS__FILE_HEAD];
    ms__file_head_put(head);
    file_of(fd, capture->file);
    int error = append(capture, head, sizeof head) && append_pairs(capture, MS__CHUNK_INFO, info) ? MS_OK : MS_EIO;
    if (error && !capture->error)
        error = MS_ENOMEM;
    if (!error && start(capture) != 0)
        error = MS_ENOMEM;
    if (error) {
        free_capture(capture);
        return error;
    }
    ms__lock(&ledger->lock);
    memcpy(capture->reserved, ledger->reserved, sizeof capture->reserved);
    capture->next = MS__PEEK(ledger->captures);
    MS__STORE(ledger->captures, capture);
    ms__capture_start(capture);
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
                               .error = atomic_load(&capture->error)};
}

static void unlink_from(ms_ledger *ledger, const ms_capture *capture)
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
    ms__capture_tell_left(capture, 0);
    ms__capture_seal(capture);
    unlink_from(capture->ledger, capture);
    capture->time = (ms__clock() - capture->began) / 1000;
    ms__unlock(&capture->ledger->lock);
    pthread_mutex_lock(&capture->lock);
    capture->stopping = true;
    pthread_cond_signal(&capture->wake);
    pthread_mutex_unlock(&capture->lock);
    pthread_join(capture->writer, NULL);
    append_names(capture, &(struct ms__chunk_head){.event = capture->event, .time = capture->time});
    append_pairs(capture, MS__CHUNK_END, info);
    ms_capture_status last = ms_capture_get_status(capture);
    free_capture(capture);
    return last;
}

/* Its thread is not in this process, and what it was doing to the lock and the pages is not known. */
void ms_capture_abandon(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    unlink_from(capture->ledger, capture);
    ms__unlock(&capture->ledger->lock);
}

void ms_capture_flush(ms_capture *capture)
{
    ms__lock(&capture->ledger->lock);
    ms__capture_tell_left(capture, 0);
    ms__capture_seal(capture);
    ms__unlock(&capture->ledger->lock);
    pthread_mutex_lock(&capture->lock);
    while (capture->full_first || capture->busy)
        pthread_cond_wait(&capture->idle, &capture->lock);
    pthread_mutex_unlock(&capture->lock);
    ms__lock(&capture->ledger->lock);
    ms__capture_key(capture); /* after a loss the next event has its place */
    ms__unlock(&capture->ledger->lock);
}
