/* pinned.c - pinned memory of a virtual device: ordinary memory that torch is told is pinned. */
#include "torch/virtual/virtual.h"

#include <pthread.h>
#include <stdlib.h>

struct pinned {
    void *data;
    struct pinned *previous, *next;
};

enum { ALIGNMENT = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pinned *all; /* guarded by `lock` */

static void free_pinned(void *context)
{
    struct pinned *pinned = context;
    pthread_mutex_lock(&lock);
    if (pinned->previous)
        pinned->previous->next = pinned->next;
    else
        all = pinned->next;
    if (pinned->next)
        pinned->next->previous = pinned->previous;
    pthread_mutex_unlock(&lock);
    free(pinned->data);
    free(pinned);
}

mst_data_ptr *mst_virtual_allocate_pinned(mst_data_ptr *result, void *self, size_t bytes)
{
    (void)self;
    *result = (mst_data_ptr){.device_index = -1};
    struct pinned *pinned = calloc(1, sizeof *pinned);
    if (pinned)
        pinned->data = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (!pinned || !pinned->data) {
        free(pinned);
        return result;
    }
    pthread_mutex_lock(&lock);
    pinned->next = all;
    if (all)
        all->previous = pinned;
    all = pinned;
    pthread_mutex_unlock(&lock);
    result->data = pinned->data;
    result->deleter = free_pinned;
    result->context = pinned;
    return result;
}

bool mst_virtual_is_pinned(const void *self, const void *data)
{
    (void)self;
    pthread_mutex_lock(&lock);
    const struct pinned *pinned = all;
    while (pinned && pinned->data != data)
        pinned = pinned->next;
    pthread_mutex_unlock(&lock);
    return pinned;
}
