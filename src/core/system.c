/* system.c - what macOS does otherwise than POSIX says. Not tried on macOS. */
#ifdef __APPLE__
#define _DARWIN_C_SOURCE
#else
#define _POSIX_C_SOURCE 200809L
#endif
#include "core/system.h"

#include <errno.h>
#include <time.h>

static uint64_t microseconds(struct timespec time)
{
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

#ifdef __APPLE__

uint64_t ms__modified(const struct stat *file)
{
    return microseconds(file->st_mtimespec);
}

void ms__cond_open(pthread_cond_t *cond)
{
    pthread_cond_init(cond, NULL);
}

bool ms__cond_wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, long milliseconds)
{
    struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    return pthread_cond_timedwait_relative_np(cond, lock, &time) == ETIMEDOUT;
}

#else

uint64_t ms__modified(const struct stat *file)
{
    return microseconds(file->st_mtim);
}

void ms__cond_open(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool ms__cond_wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, long milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(cond, lock, &until) == ETIMEDOUT;
}

#endif
