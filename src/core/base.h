/* base.h - what every part of the core uses: the public types, inlining and atomic access. */
#ifndef MS_BASE_H
#define MS_BASE_H

#include "modscope.h"
#include "modscope_ledger.h"

#include <stdatomic.h>
#include <stdbool.h>

#define MS__INLINE static inline __attribute__((always_inline)) /* for the hot path: code that runs at every event */
#define MS__HOT __attribute__((hot)) /* for functions that run at every event: they lie together in memory */
#define MS__RARE static __attribute__((noinline)) /* for slow cases that the hot path must not contain */
#define MS__LIKELY(x) __builtin_expect(!!(x), 1)
#define MS__UNLIKELY(x) __builtin_expect(!!(x), 0)

/* MS__STORE publishes to other threads, and MS__LOAD sees everything published before. MS__PEEK gives no such order:
 * use it for a value that this thread wrote, that a lock guards, or that may be slightly old. */
#define MS__LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define MS__PEEK(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define MS__STORE(x, value) atomic_store_explicit(&(x), (value), memory_order_release)

#endif
