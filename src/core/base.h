/* base.h - what every part of the core uses: the public types, inlining and atomic access. */
#ifndef MS_BASE_H
#define MS_BASE_H

#include "modscope.h"
#include "modscope_ledger.h"

#include <stdatomic.h>
#include <stdbool.h>

#define MS__INLINE static inline __attribute__((always_inline)) /* on the way of every event */
#define MS__RARE static __attribute__((noinline))               /* kept out of that way */
#define MS__LIKELY(x) __builtin_expect(!!(x), 1)
#define MS__UNLIKELY(x) __builtin_expect(!!(x), 0)

#define MS__LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define MS__PEEK(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define MS__STORE(x, value) atomic_store_explicit(&(x), (value), memory_order_release)

#endif
