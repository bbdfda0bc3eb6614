/* cover.c - the greedy choice of modules to checkpoint. */
#include "modscope_replay.h"

#include <stdlib.h>

struct covering {
    const ms_cover_problem *problem;
    bool *chosen;
    int64_t *missing; /* by row: bytes above the target; not positive: it is met */
    uint32_t *above;  /* rows above the target */
    uint32_t *inside; /* chosen candidates that lie in the one that is looked at */
    uint32_t above_count, inside_count;
};

static const int64_t *savings_of(const struct covering *covering, uint32_t candidate)
{
    return covering->problem->saved + (size_t)candidate * covering->problem->rows;
}

static bool lies_in(const struct covering *covering, uint32_t inner, uint32_t outer)
{
    return covering->problem->lies_in[(size_t)inner * covering->problem->candidates + outer];
}

/* What choosing the candidate adds to the savings of a row: the chosen ones in it are left out then. */
static int64_t added_saving(const struct covering *covering, uint32_t candidate, uint32_t row)
{
    int64_t bytes = savings_of(covering, candidate)[row];
    for (uint32_t i = 0; i < covering->inside_count; i++)
        bytes -= savings_of(covering, covering->inside[i])[row];
    return bytes;
}

/* Find the chosen candidates in this one. False: it cannot be added, because it is chosen or lies in a chosen one. */
static bool look_at(struct covering *covering, uint32_t candidate)
{
    covering->inside_count = 0;
    if (covering->chosen[candidate])
        return false;
    for (uint32_t other = 0; other < covering->problem->candidates; other++) {
        if (!covering->chosen[other])
            continue;
        if (lies_in(covering, candidate, other))
            return false;
        if (lies_in(covering, other, candidate))
            covering->inside[covering->inside_count++] = other;
    }
    return true;
}

/* Bytes for each second that the candidate saves in rows above the target, no more than is missing; 0: none. */
static double rate_of(struct covering *covering, uint32_t candidate)
{
    const double least_cost = 1e-9;
    int64_t gain = 0;
    if (!look_at(covering, candidate))
        return 0;
    for (uint32_t i = 0; i < covering->above_count; i++) {
        uint32_t row = covering->above[i];
        int64_t saving = added_saving(covering, candidate, row);
        gain += saving < covering->missing[row] ? saving : covering->missing[row];
    }
    double cost = covering->problem->costs[candidate];
    for (uint32_t i = 0; i < covering->inside_count; i++)
        cost -= covering->problem->costs[covering->inside[i]];
    return gain > 0 ? (double)gain / (cost > least_cost ? cost : least_cost) : 0;
}

static void add(struct covering *covering, uint32_t candidate)
{
    look_at(covering, candidate);
    for (uint32_t row = 0; row < covering->problem->rows; row++)
        covering->missing[row] -= added_saving(covering, candidate, row);
    for (uint32_t i = 0; i < covering->inside_count; i++)
        covering->chosen[covering->inside[i]] = false;
    covering->chosen[candidate] = true;
}

static void find_rows_above(struct covering *covering)
{
    covering->above_count = 0;
    for (uint32_t row = 0; row < covering->problem->rows; row++)
        if (covering->missing[row] > 0)
            covering->above[covering->above_count++] = row;
}

/* Whether no row is above the target in the end. */
static bool cover(struct covering *covering)
{
    /* A candidate is better only if its rate is larger by more than rounding: equal modules keep their order. */
    const double larger = 1 + 1e-9;
    for (find_rows_above(covering); covering->above_count; find_rows_above(covering)) {
        uint32_t best = covering->problem->candidates;
        double best_rate = 0;
        for (uint32_t i = 0; i < covering->problem->candidates; i++) {
            double rate = rate_of(covering, i);
            if (rate > best_rate * larger)
                best = i, best_rate = rate;
        }
        if (best == covering->problem->candidates)
            return false;
        add(covering, best);
    }
    return true;
}

int ms_cover_choose(const ms_cover_problem *problem, int64_t target, bool *chosen, bool *is_covered)
{
    struct covering covering = {
        .problem = problem,
        .chosen = chosen,
        .missing = malloc(((size_t)problem->rows + 1) * sizeof *covering.missing),
        .above = malloc(((size_t)problem->rows + 1) * sizeof *covering.above),
        .inside = malloc(((size_t)problem->candidates + 1) * sizeof *covering.inside),
    };
    int error = MS_ENOMEM;
    if (covering.missing && covering.above && covering.inside) {
        for (uint32_t row = 0; row < problem->rows; row++)
            covering.missing[row] = problem->needed[row] - target;
        for (uint32_t i = 0; i < problem->candidates; i++)
            chosen[i] = false;
        *is_covered = cover(&covering);
        error = MS_OK;
    }
    free(covering.missing);
    free(covering.above);
    free(covering.inside);
    return error;
}
