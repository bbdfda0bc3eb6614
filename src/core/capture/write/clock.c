/* clock.c - a capture's time: the processor's own count, compared with the clock now and then. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/write/writer.h"

#include <time.h>

uint64_t ms__clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* How fast the processor counts does not change: a capture begins with what the one before found out. */
static _Atomic uint64_t known_rate, known_second;

void ms__capture_begin_clock(ms_capture *capture)
{
    capture->compared = capture->compared_first =
        (struct ms__compared){(ms__clock() - capture->began) / 1000, ms__ticks()};
    capture->rate = atomic_load_explicit(&known_rate, memory_order_relaxed);
    capture->second = capture->rate ? atomic_load_explicit(&known_second, memory_order_relaxed) : 0;
}

void ms__capture_compare(ms_capture *capture)
{
    struct ms__compared now = {(ms__clock() - capture->began) / 1000, ms__ticks()};
    const struct ms__compared *first = &capture->compared_first;
    uint64_t counted = now.ticks - first->ticks, passed = now.time - first->time;
    double rate = counted ? (double)passed / (double)counted : 0;
    bool plausible = rate > 1e-5 && rate < 1e-2; /* 100 MHz to 100 GHz */
    capture->compared = now;
    capture->rate = plausible ? (uint64_t)(rate * 4294967296.0) : 0;
    capture->second = plausible ? (uint64_t)(1e6 / rate) : 0;
    atomic_store_explicit(&known_second, capture->second, memory_order_relaxed);
    atomic_store_explicit(&known_rate, capture->rate, memory_order_relaxed);
}
