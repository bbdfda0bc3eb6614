/* totals.h - totals: the bytes that are allocated now, by device, path and category. */
#ifndef MS_TOTALS_H
#define MS_TOTALS_H

#include "core/base.h"

#include <assert.h>

#define MS__PATHS_PER_CHUNK 64u
#define MS__TOTALS_PER_PATH 8u /* one for each category; the last is unused, so that a row is a cache line */
static_assert(MS_CATEGORY_COUNT <= MS__TOTALS_PER_PATH, "a path has a total for each category");

struct ms__totals_chunk {
    int64_t bytes[MS__PATHS_PER_CHUNK * MS__TOTALS_PER_PATH]; /* see ms__total_index */
};

/*   now.of[c] = sum over paths of the path's total of category c = sum over the device's live blocks of category c
 *   total     = sum over c of now.of[c] */
struct ms__device_totals {
    ms_sums now;
    int64_t total;
    struct ms__totals_chunk **chunks; /* by path / MS__PATHS_PER_CHUNK; NULL: no block was ever there */
    struct ms__totals_chunk **kinds;  /* the same by path and kind (ms__kind_index); see kinds.h */
    uint32_t room;                    /* pointers in `chunks` */
    uint32_t kinds_room;              /* pointers in `kinds` */
    uint8_t unused[40];
};
static_assert(sizeof(struct ms__device_totals) == 128, "a power of two: every block event indexes an array of these");

static inline uint32_t ms__total_index(ms_path path, uint32_t category)
{
    return path % MS__PATHS_PER_CHUNK * MS__TOTALS_PER_PATH + category;
}

/* The path's totals, by category; NULL if no block was ever there. */
static inline const int64_t *ms__totals_of_path(const struct ms__device_totals *totals, ms_path path)
{
    uint32_t chunk = path / MS__PATHS_PER_CHUNK;
    return chunk < totals->room && totals->chunks[chunk] ? &totals->chunks[chunk]->bytes[ms__total_index(path, 0)]
                                                         : NULL;
}

int64_t ms__sums_total(const ms_sums *sums);
void ms__totals_close(ms_ledger *ledger);

#endif
