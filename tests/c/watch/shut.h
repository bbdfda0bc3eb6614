/* shut.h - memory of which one page can be shut, so that the first touch of it is a moment
 * at which something else happens. A race that takes luck to meet then happens every time,
 * in one thread.
 *
 * Not under the thread sanitizer, which does a program's atomic reads itself. */
#ifndef MS_TEST_SHUT_H
#define MS_TEST_SHUT_H

#include "modscope.h"

#include <stdbool.h>

#define SHUT_WORKS 1
#if defined(__SANITIZE_THREAD__)
#undef SHUT_WORKS
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef SHUT_WORKS
#endif
#endif

/* Options whose memory can be shut; the rest is zero. */
ms_options shut_options(void);
/* Of the next allocation of `size` bytes, byte `boundary` lies at a page's start. */
void shut_place(size_t size, size_t boundary);
/* From now on the page that begins at the boundary, or the one below it, is shut. At the
 * first touch it is opened, then `happens` is called, and then the touch goes through. */
void shut(bool below, void (*happens)(void));
/* Opens the page; whether it was touched. */
bool shut_touched(void);
/* Gives the pages back. */
void shut_forget(void);

extern bool shut_refuse; /* refuse all allocations */

#endif
