/* forks.h - a scene whose threads keep running while the process forks, again and again. */
#ifndef MS_TEST_FORKS_H
#define MS_TEST_FORKS_H

#include "scene.h"

#include <stdbool.h>

/* Opens a scene whose memory comes without a lock, so that what is tested is the core's lock and not
 * the allocator's; the watch is locked around every fork from now on. One scene a process. */
void forks_open(struct scene *scene);
/* Forks `count` times while two threads run `hammer` with these arguments; each child exits with what
 * `use` returns. Fails the test unless each child exits with 0. */
void forks_run(int count, void *(*hammer)(void *), void *const arguments[2], int (*use)(void));
/* Whether the threads that run `hammer` must return. */
bool forks_over(void);

#endif
