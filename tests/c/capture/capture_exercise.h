/* capture_exercise.h - everything that can be done with a capture, good or not: it must come to an
 * end, and what it says must be possible. */
#ifndef MS_TEST_CAPTURE_EXERCISE_H
#define MS_TEST_CAPTURE_EXERCISE_H

#include "heap.h"

#include <stdint.h>

/* NULL, or what is wrong. The seed chooses the moments. `heap` may refuse memory, and must be empty again. */
const char *capture_exercise(int fd, uint64_t seed, struct heap *heap);

#endif
