/* kinds.h - totals by kind, now and at each peak. They are kept as those by category are (totals.h, peaks.h), in chunks
 * of their own, so that blocks without a kind, which are most, cost nothing more. */
#ifndef MS_KINDS_H
#define MS_KINDS_H

#include "core/ledger/peaks.h"

/* A chunk has rows of sixteen totals for half as many paths as one of categories, whose type it shares. */
#define MS__KINDS_PER_PATH 16u
#define MS__PATHS_PER_KINDS_CHUNK (MS__PATHS_PER_CHUNK * MS__TOTALS_PER_PATH / MS__KINDS_PER_PATH)
static_assert(MS_KIND_COUNT - 1 <= MS__KINDS_PER_PATH, "a path has a total for each kind");
static_assert(MS_KIND_COUNT <= 128, "a block has seven bits for its kind");

/* The index of a path's total of a kind in its chunk; the kind is not MS_KIND_NONE. */
static inline uint32_t ms__kind_index(ms_path path, uint32_t kind)
{
    return path % MS__PATHS_PER_KINDS_CHUNK * MS__KINDS_PER_PATH + kind - 1;
}

/* Make room for the totals by kind of a path, in each tracker too. False when memory runs out: no figure changed. */
bool ms__kinds_reserve(ms_ledger *ledger, uint32_t device, ms_path path);
/* Add `bytes` to a total that was reserved. The caller has counted ledger->time up. */
void ms__kind_change(ms_ledger *ledger, uint32_t device, ms_path path, uint32_t kind, int64_t bytes);
/* A retroactive claim gives the block another path or kind: its bytes move in each peak at which it was live. The
 * totals have changed already; `block` is still as it was. */
void ms__kinds_move_block(ms_ledger *ledger, const struct ms__block *block, ms_path path, uint32_t kind);
/* What is allocated on the device by kind. With the lock held. */
ms_kind_sums ms__kinds_sum(const ms_ledger *ledger, uint32_t device);
void ms__kinds_close(ms_ledger *ledger);
/* Make room in a tracker wherever the device's totals by kind have a chunk. False when memory runs out. */
bool ms__saved_kinds_reserve(ms_peak_tracker *tracker, uint32_t device);
void ms__saved_kinds_free(ms_peak_tracker *tracker);
/* NULL if the totals by kind of a device are right, now and at each peak, else the invariant that does not hold. */
const char *ms__kinds_check(const ms_ledger *ledger, uint32_t device);

#endif
