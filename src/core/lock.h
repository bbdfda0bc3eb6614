/* lock.h - a spin lock for short critical sections. Its holder waits for no other lock of the core, so a waiter spins,
 * and yields the processor after a while. */
#ifndef MS_LOCK_H
#define MS_LOCK_H

#include <sched.h>
#include <stdatomic.h>

struct ms__lock {
    _Atomic int held;
};

static inline void ms__lock(struct ms__lock *lock)
{
    for (int spins = 0; atomic_exchange_explicit(&lock->held, 1, memory_order_acquire); spins++)
        while (atomic_load_explicit(&lock->held, memory_order_relaxed))
            if (++spins > 64)
                sched_yield();
}

static inline void ms__unlock(struct ms__lock *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
