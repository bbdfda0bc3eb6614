/* random.h - numbers that look random and are the same every time (splitmix64). */
#ifndef MS_TEST_RANDOM_H
#define MS_TEST_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* In [0, bound). */
static inline uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return random_next(state) % bound;
}

#endif
