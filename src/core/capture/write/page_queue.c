/* page_queue.c - pages on their way from the encoder to the writing thread, and back for use again. */
#include "core/capture/write/writer.h"

struct ms__page *ms__page_take(ms_capture *capture, uint32_t capacity)
{
    pthread_mutex_lock(&capture->lock);
    struct ms__page *page = capture->free_pages;
    if (page)
        capture->free_pages = page->next;
    bool allocate = !page && capture->page_count < MS__MAX_PAGES;
    capture->page_count += allocate;
    pthread_mutex_unlock(&capture->lock);
    if (!allocate)
        return page;
    page = ms__alloc(capture->watch, sizeof *page + MS__CHUNK_HEAD + capacity);
    if (page) {
        page->capacity = capacity;
        return page;
    }
    pthread_mutex_lock(&capture->lock);
    capture->page_count--;
    pthread_mutex_unlock(&capture->lock);
    return NULL;
}

void ms__page_queue(ms_capture *capture, struct ms__page *page)
{
    pthread_mutex_lock(&capture->lock);
    page->next = NULL;
    *(capture->queue_last ? &capture->queue_last->next : &capture->queue_first) = page;
    capture->queue_last = page;
    capture->unwritten++;
    pthread_cond_signal(&capture->wake);
    pthread_mutex_unlock(&capture->lock);
}

struct ms__page *ms__page_dequeue(ms_capture *capture)
{
    struct ms__page *page = capture->queue_first;
    if (!page)
        return NULL;
    capture->queue_first = page->next;
    if (!capture->queue_first)
        capture->queue_last = NULL;
    return page;
}

void ms__page_release(ms_capture *capture, struct ms__page *page)
{
    /* key frames have pages of other sizes */
    bool reusable = page->head.kind != MS__CHUNK_KEY && page->head.kind != MS__CHUNK_KEY_STACKS;
    pthread_mutex_lock(&capture->lock);
    if (reusable) {
        page->next = capture->free_pages;
        capture->free_pages = page;
    }
    pthread_mutex_unlock(&capture->lock);
    if (!reusable)
        ms__free(capture->watch, page);
}

bool ms__queue_has_room(ms_capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    bool room = capture->unwritten <= MS__MAX_PAGES / 2;
    pthread_mutex_unlock(&capture->lock);
    return room;
}

static void free_list(ms_watch *watch, struct ms__page *page)
{
    while (page) {
        struct ms__page *next = page->next;
        ms__free(watch, page);
        page = next;
    }
}

void ms__pages_free(ms_capture *capture)
{
    free_list(capture->watch, capture->queue_first);
    free_list(capture->watch, capture->free_pages);
    ms__free(capture->watch, capture->page);
    ms__free(capture->watch, capture->notes);
    ms__free(capture->watch, capture->times);
    ms__free(capture->watch, capture->collectives);
    ms__free(capture->watch, capture->stacks);
}
