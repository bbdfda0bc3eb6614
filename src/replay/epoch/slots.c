/* slots.c - which allocations of several variants are the same one: an operator takes a workspace for some shapes only,
 * and the allocations around it stay what they are.
 *
 *   slots      a  b     c  d  e        variants are aligned one after the other by the operators that allocate;
 *   variant 1  a  b     c     e        what a variant has beside the slots becomes new ones between them
 *   variant 2  a  b  x  c  d  e
 */
#include "replay/epoch/epoch.h"

#include "base/array.h"

#include <stdlib.h>

enum { MOST_DIFFERENCES = 4096 };

/* The slots so far, in their order. */
struct slot_order {
    uint64_t *tokens;
    uint32_t *slots;
    uint32_t count;
};

/* ---- the fewest differences of two lists of tokens (E. Myers, An O(ND) difference algorithm, 1986) ----
 *
 * `reach` has for each number of differences d a row of 2 d + 1 items: how far into `here` one comes on diagonal
 * here - there = k with d differences, for k from -d to d. */
struct alignment {
    const uint64_t *here, *there;
    uint32_t here_count, there_count;
    int32_t *reach;
    size_t room;
    uint32_t differences;
};

static size_t row_of(uint32_t d)
{
    return (size_t)d * d;
}

static int32_t reach_of(const struct alignment *of, uint32_t d, int32_t k)
{
    return of->reach[row_of(d) + (size_t)((int32_t)d + k)];
}

/* Whether diagonal k was reached with d differences by an item of `there` that `here` does not have. */
static bool is_down(const struct alignment *of, uint32_t d, int32_t k)
{
    int32_t most = (int32_t)d;
    return k == -most || (k != most && reach_of(of, d - 1, k - 1) < reach_of(of, d - 1, k + 1));
}

static int32_t step_to(const struct alignment *of, uint32_t d, int32_t k)
{
    if (d == 0)
        return 0;
    /* Diagonals of a row that are not of its parity are not reached; -1 and +1 are within the row before. */
    return is_down(of, d, k) ? reach_of(of, d - 1, k + 1) : reach_of(of, d - 1, k - 1) + 1;
}

static int32_t follow(const struct alignment *of, int32_t x, int32_t k)
{
    while (x < (int32_t)of->here_count && x - k < (int32_t)of->there_count && x - k >= 0 &&
           of->here[x] == of->there[x - k])
        x++;
    return x;
}

/* MS_EINVAL: there are more differences than are looked for. */
static int find_differences(struct alignment *of)
{
    for (uint32_t d = 0; d <= MOST_DIFFERENCES; d++) {
        if (!MS__ARRAY_GROW(of->reach, of->room, row_of(d + 1)))
            return MS_ENOMEM;
        for (int32_t k = -(int32_t)d; k <= (int32_t)d; k++)
            of->reach[row_of(d) + (size_t)((int32_t)d + k)] = -1;
        for (int32_t k = -(int32_t)d; k <= (int32_t)d; k += 2) {
            int32_t x = follow(of, step_to(of, d, k), k);
            of->reach[row_of(d) + (size_t)((int32_t)d + k)] = x;
            if (x >= (int32_t)of->here_count && x - k >= (int32_t)of->there_count) {
                of->differences = d;
                return MS_OK;
            }
        }
    }
    return MS_EINVAL;
}

/* By item of `here`: the item of `there` that is the same one, or MS_EPOCH_NONE. */
static void trace_back(const struct alignment *of, uint32_t *same)
{
    int32_t x = (int32_t)of->here_count, y = (int32_t)of->there_count;
    for (uint32_t d = of->differences;; d--) {
        int32_t k = x - y, from = step_to(of, d, k);
        for (; x > from; x--)
            same[x - 1] = (uint32_t)(x - 1 - k);
        if (d == 0)
            return;
        bool down = is_down(of, d, k);
        x = down ? from : from - 1;
        y = down ? from - k - 1 : from - k;
    }
}

static int find_same(const uint64_t *here, uint32_t here_count, const uint64_t *there, uint32_t there_count,
                     uint32_t *same)
{
    struct alignment of = {.here = here, .there = there, .here_count = here_count, .there_count = there_count};
    for (uint32_t i = 0; i < here_count; i++)
        same[i] = MS_EPOCH_NONE;
    int error = find_differences(&of);
    if (!error)
        trace_back(&of, same);
    free(of.reach);
    return error == MS_EINVAL ? MS_OK : error; /* too different: nothing is the same */
}

/* ---- slots ---- */
static void put_known(const struct slot_order *known, uint32_t at, struct slot_order *merged)
{
    merged->tokens[merged->count] = known->tokens[at];
    merged->slots[merged->count++] = known->slots[at];
}

/* `merged` has room for both; so has `same`. */
static int align_variant(ms_epoch *epoch, struct ms__epoch_variant *variant, const struct slot_order *known,
                         struct slot_order *merged, uint32_t *same)
{
    const uint64_t *tokens = &epoch->tokens[epoch->steps[variant->samples[0]].first];
    uint32_t j = 0;
    int error = find_same(tokens, variant->allocation_count, known->tokens, known->count, same);
    if (error)
        return error;
    merged->count = 0;
    for (uint32_t i = 0; i < variant->allocation_count; i++) {
        if (same[i] == MS_EPOCH_NONE) {
            variant->slots[i] = epoch->slot_count++;
            merged->tokens[merged->count] = tokens[i];
            merged->slots[merged->count++] = variant->slots[i];
            continue;
        }
        while (j <= same[i])
            put_known(known, j++, merged);
        variant->slots[i] = known->slots[same[i]];
    }
    while (j < known->count)
        put_known(known, j++, merged);
    return MS_OK;
}

int ms__epoch_find_slots(ms_epoch *epoch)
{
    struct slot_order orders[2] = {{NULL, NULL, 0}, {NULL, NULL, 0}};
    size_t room = 1;
    for (uint32_t v = 0; v < epoch->variant_count; v++)
        room += epoch->variants[v].allocation_count;
    uint32_t *same = malloc(room * sizeof *same);
    bool has_room = same != NULL;
    for (int i = 0; i < 2; i++) {
        orders[i].tokens = calloc(room, sizeof *orders[i].tokens);
        orders[i].slots = calloc(room, sizeof *orders[i].slots);
        has_room = has_room && orders[i].tokens && orders[i].slots;
    }
    int error = has_room ? MS_OK : MS_ENOMEM;
    for (uint32_t v = 0; !error && v < epoch->variant_count; v++)
        error = align_variant(epoch, &epoch->variants[v], &orders[v % 2], &orders[(v + 1) % 2], same);
    free(same);
    for (int i = 0; i < 2; i++) {
        free(orders[i].tokens);
        free(orders[i].slots);
    }
    return error;
}
