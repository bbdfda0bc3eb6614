/* allocator_driver.c - the processor time that the allocator model takes for an event: a stream of requests and frees
 * like a training job's, with many free blocks. Prints the events and the nanoseconds of one. */
#define _POSIX_C_SOURCE 200809L
#include "modscope_allocator.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LIVE = 20000, EVENTS = 1000000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

int main(void)
{
    static ms_allocation *live[LIVE];
    ms_allocator *allocator = ms_allocator_open(NULL, NULL);
    uint64_t state = 1;
    struct timespec begin, end;
    if (!allocator)
        return 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    for (int i = 0; i < EVENTS; i++) {
        size_t at = next_random(&state) % LIVE;
        if (live[at]) {
            ms_allocator_free(allocator, live[at]);
            live[at] = NULL;
        } else if (ms_allocator_malloc(allocator, next_random(&state) % (4 << 20) + 1, 0, &live[at]) != MS_OK) {
            return 1;
        }
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    printf("%d events in %.3f s: %.0f ns an event\n", EVENTS, seconds, seconds * 1e9 / EVENTS);
    ms_allocator_close(allocator);
    return 0;
}
