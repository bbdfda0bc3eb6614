/* system.h - what macOS does otherwise than POSIX says. All other files of the core use only what both have, which
 * tools/check_layers.py proves. */
#ifndef MS_SYSTEM_H
#define MS_SYSTEM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* When the file was changed last, in microseconds since 1970. */
uint64_t ms__modified(const struct stat *file);

/* A condition variable for ms__cond_wait_for: waiting does not depend on changes of the system's time. */
void ms__cond_open(pthread_cond_t *cond);
/* Wait for a signal, for `milliseconds` at most. True if they have passed. The caller holds the lock. */
bool ms__cond_wait_for(pthread_cond_t *cond, pthread_mutex_t *lock, long milliseconds);

#endif
