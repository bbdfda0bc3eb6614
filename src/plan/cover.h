/* cover.h - which modules to checkpoint so that no moment needs more than a target, chosen greedily.
 *
 * A row is a moment at which memory is needed; a candidate is a module that may be checkpointed. The savings of
 * candidates are taken to add up. Of candidates that lie in each other, one at most is chosen. */
#ifndef MSL_COVER_H
#define MSL_COVER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msl_problem {
    uint32_t candidates, rows;
    const double *costs;    /* by candidate */
    const int64_t *needed;  /* by row: bytes without a choice */
    const int64_t *saved;   /* by candidate, then by row: bytes, negative where a recomputation needs more */
    const uint8_t *lies_in; /* by candidate, then by candidate: whether the first lies in the second */
} msl_problem;

/* Add the candidate that saves most for its cost in rows above the target, until no row is above it. `chosen` has room
 * for a flag of each candidate. Returns 1; 0: nothing saves anything in the rows that are left; -1: out of memory. */
int msl_cover(const msl_problem *problem, int64_t target, bool *chosen);

#endif
