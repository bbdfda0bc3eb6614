/* clock.c - a capture's time: the processor's tick counter, calibrated with the system's clock now and then; or a clock
 * of the caller's. */
#define _POSIX_C_SOURCE 200809L
#include "core/capture/write/writer.h"

#include <time.h>

uint64_t ms__clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static uint64_t (*_Atomic clock_to_use)(void); /* of captures that begin; NULL: ms__clock */

void ms_capture_use_clock(uint64_t (*nanoseconds)(void))
{
    atomic_store(&clock_to_use, nanoseconds);
}

/* The tick rate does not change, so a new capture begins with the rate that an earlier one measured. */
static _Atomic uint64_t known_rate, known_ticks_per_second;

static struct ms__calibration read_both_clocks(const ms_capture *capture)
{
    return (struct ms__calibration){(ms__clock() - capture->began) / 1000, ms__ticks()};
}

void ms__capture_choose_clock(ms_capture *capture)
{
    uint64_t (*chosen)(void) = atomic_load(&clock_to_use);
    capture->clock = chosen ? chosen : ms__clock;
    capture->clock_read_mask = chosen ? 0 : MS__EVENTS_PER_CLOCK_READ - 1;
    capture->began = capture->clock();
}

void ms__capture_begin_clock(ms_capture *capture)
{
    if (capture->clock != ms__clock)
        return;
    capture->calibration = capture->first_calibration = read_both_clocks(capture);
    capture->rate = atomic_load_explicit(&known_rate, memory_order_relaxed);
    capture->ticks_per_second = capture->rate ? atomic_load_explicit(&known_ticks_per_second, memory_order_relaxed) : 0;
}

void ms__capture_calibrate(ms_capture *capture)
{
    if (capture->clock != ms__clock)
        return;
    struct ms__calibration now = read_both_clocks(capture);
    const struct ms__calibration *first = &capture->first_calibration;
    uint64_t ticks = now.ticks - first->ticks, microseconds = now.time - first->time;
    double rate = ticks ? (double)microseconds / (double)ticks : 0;
    bool plausible = rate > 1e-5 && rate < 1e-2; /* 100 MHz to 100 GHz */
    capture->calibration = now;
    capture->rate = plausible ? (uint64_t)(rate * 4294967296.0) : 0;
    capture->ticks_per_second = plausible ? (uint64_t)(1e6 / rate) : 0;
    atomic_store_explicit(&known_ticks_per_second, capture->ticks_per_second, memory_order_relaxed);
    atomic_store_explicit(&known_rate, capture->rate, memory_order_relaxed);
}
