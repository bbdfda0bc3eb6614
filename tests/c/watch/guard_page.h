/* guard_page.h - memory with a guard page: the first access to that page calls a function, and then goes through.
 * A race between a reader and a writer, which otherwise needs luck, then happens every time, in one thread.
 *
 * It does not work under the thread sanitizer, which carries out a program's atomic reads itself. */
#ifndef MS_TEST_GUARD_PAGE_H
#define MS_TEST_GUARD_PAGE_H

#include "modscope.h"

#include <stdbool.h>

#define GUARD_WORKS 1
#if defined(__SANITIZE_THREAD__)
#undef GUARD_WORKS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef GUARD_WORKS
#endif
#endif

/* Options with an allocator that can place a guard page; all else is zero. */
ms_options guard_options(void);
/* Place the next allocation of `size` bytes so that its byte `boundary` is the first of a page. */
void guard_place(size_t size, size_t boundary);
/* Guard the page that begins at the boundary, or the one below it. The first access calls `happens`. */
void guard(bool below, void (*happens)(void));
/* Remove the guard. True if the page was accessed. */
bool guard_touched(void);
/* Unmap the memory. */
void guard_forget(void);

extern bool refuse_allocations; /* every allocation fails */

#endif
