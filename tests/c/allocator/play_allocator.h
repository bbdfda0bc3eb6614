/* play_allocator.h - bytes as requests and frees, to the allocator model and to the slow one, which must agree. */
#ifndef MS_TEST_PLAY_ALLOCATOR_H
#define MS_TEST_PLAY_ALLOCATOR_H

#include "modscope_allocator.h"

#include <stddef.h>

/* NULL, or what differs. `options`: where the model takes its own memory from; may be NULL. */
const char *play_allocator(const uint8_t *bytes, size_t count, const ms_options *options);

#endif
