/* call_stats.h - call stats: what was allocated at each call state of a path's calls, and when.
 *
 *   path_stats of a path: its calls in the latest iteration that called it
 *     forward    [0] [1] ... [count - 1]   for each call, the states MS_PRE_FW to MS_POST_BW
 *     recompute  [0] [1] ... [count - 1]   for each recompute, the states before and after */
#ifndef MS_CALL_STATS_H
#define MS_CALL_STATS_H

#include "core/ledger/ledger.h"

/* An iteration is what a path's snapshots are of: the root calls of a step, or one root call of an evaluation. A step
 * with more root calls than MS__ROOT_CALLS_KEPT has several. Iterations of a watch are numbered from 1. */
enum { MS__ROOT_CALLS_KEPT = 256 };

enum { MS__STATES_PER_CALL = MS_POST_BW + 1 };
enum { MS__RECOMPUTE_PRE, MS__RECOMPUTE_POST }; /* the states of a recompute's stats */
static_assert((int)MS_PRE_FW_AC == MS__STATES_PER_CALL && MS_POST_FW_AC == MS_PRE_FW_AC + 1,
              "the states of a recompute follow those of a call");

struct ms__call_stats {
    ms_sums *sums;     /* state * devices + device */
    uint32_t devices;  /* for which there is room */
    uint32_t recorded; /* bit i: state i is recorded */
    uint64_t time[MS__STATES_PER_CALL];
    uint64_t input, output; /* bytes */
};

struct ms__call_stats_list {
    struct ms__call_stats *calls;
    uint32_t count, room; /* elements from `count` on keep their memory for the next iteration */
    /* The latest read of ms_call_snapshot_at, so that reading all in order takes linear time. */
    uint32_t read_state, read_index, read_at;
};

struct ms__path_stats {
    uint64_t iteration; /* the number of the iteration that the lists are of; 0: none yet */
    uint64_t step;      /* the latest step in which the path had a root call */
    struct ms__call_stats_list forward, recompute;
};

/* Refers to the stats of one call, until the path is called in a later iteration. */
struct ms__call_ref {
    uint64_t iteration;
    ms_path path;
    uint32_t index; /* in the path's list */
};

static inline ms_sums *ms__call_sums(const struct ms__call_stats *stats, uint32_t state, uint32_t device)
{
    return stats->sums + ((size_t)state * stats->devices + device);
}

/* NULL if there is none. */
static inline struct ms__path_stats *ms__path_stats_find(const ms_ledger *ledger, ms_path path)
{
    uint32_t chunk = path / MS__PATHS_PER_CHUNK;
    if (chunk >= ledger->path_stats_room || !ledger->path_stats[chunk])
        return NULL;
    return &ledger->path_stats[chunk][path % MS__PATHS_PER_CHUNK];
}

/* Make the stats of a path that has none. NULL when memory runs out. */
struct ms__path_stats *ms__path_stats_add(ms_ledger *ledger, ms_path path);
void ms__path_stats_close(ms_ledger *ledger);
/* Forget the calls of all paths, but not their steps. */
void ms__path_stats_forget_calls(ms_ledger *ledger);

/* Append the stats of one more call, with room for every known device and no state recorded. NULL when memory runs
 * out: the list is unchanged. */
struct ms__call_stats *ms__call_stats_append(ms_ledger *ledger, struct ms__call_stats_list *list);
/* The stats that `call` refers to, or NULL. */
struct ms__call_stats *ms__call_stats_find(const ms_ledger *ledger, const struct ms__call_ref *call, bool recompute);
/* Make room for every known device. False when memory runs out: nothing changed. */
bool ms__call_stats_widen(ms_ledger *ledger, struct ms__call_stats *stats);
/* Record that the call is in this state now. The caller writes the sums, at once or later. */
static inline void ms__call_stats_mark(ms_ledger *ledger, struct ms__call_stats *stats, uint32_t state)
{
    stats->recorded |= 1u << state;
    stats->time[state] = ++ledger->time;
}
/* Record the state, with what is allocated now. Where memory for a new device runs out, the state is lost. */
void ms__call_stats_record(ms_ledger *ledger, struct ms__call_stats *stats, uint32_t state);

#endif
