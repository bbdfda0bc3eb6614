/* call_snapshots.c - reading the call stats. */
#include "core/ledger/call_spans.h"

const char *ms_call_state_name(ms_call_state state)
{
    switch (state) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_CALL_STATES(X)
#undef X
    default:
        return "no such call state";
    }
}

/* The list that the state is in, or NULL. *recorded_as becomes the state's number in the stats of that list. */
static struct ms__call_stats_list *find_list(const ms_ledger *ledger, ms_path path, ms_call_state state,
                                             uint32_t *recorded_as)
{
    struct ms__path_stats *stats = ms__path_stats_find(ledger, path);
    bool recompute = state == MS_PRE_FW_AC || state == MS_POST_FW_AC;
    *recorded_as = recompute ? state - MS_PRE_FW_AC : state;
    return !stats || state >= MS_CALL_STATE_COUNT ? NULL : recompute ? &stats->recompute : &stats->forward;
}

size_t ms_call_snapshot_count(ms_ledger *ledger, ms_path path, ms_call_state state)
{
    size_t count = 0;
    uint32_t recorded_as;
    ms__lock(&ledger->lock);
    ms__spans_update_stats(ledger);
    const struct ms__call_stats_list *list = find_list(ledger, path, state, &recorded_as);
    for (uint32_t i = 0; list && i < list->count; i++)
        count += list->calls[i].recorded >> recorded_as & 1;
    ms__unlock(&ledger->lock);
    return count;
}

bool ms_call_snapshot_at(ms_ledger *ledger, ms_path path, ms_call_state state, size_t index, uint32_t device,
                         ms_sums *sums, uint64_t *time)
{
    bool found = false;
    uint32_t recorded_as;
    ms__lock(&ledger->lock);
    ms__spans_update_stats(ledger);
    struct ms__call_stats_list *list = find_list(ledger, path, state, &recorded_as);
    bool resume = list && list->read_state == recorded_as && list->read_index <= index;
    uint32_t i = resume ? list->read_at : 0;
    size_t to_skip = resume ? index - list->read_index : index;
    for (; !found && list && i < list->count; i++) {
        const struct ms__call_stats *stats = &list->calls[i];
        if (!(stats->recorded >> recorded_as & 1) || to_skip-- != 0)
            continue;
        found = true;
        list->read_state = recorded_as;
        list->read_index = (uint32_t)index;
        list->read_at = i;
        *sums = device < stats->devices ? *ms__call_sums(stats, recorded_as, device) : (ms_sums){{0}};
        if (time)
            *time = stats->time[recorded_as];
    }
    ms__unlock(&ledger->lock);
    return found;
}

void ms_call_sizes(ms_ledger *ledger, ms_path path, uint64_t *input, uint64_t *output)
{
    ms__lock(&ledger->lock);
    const struct ms__path_stats *stats = ms__path_stats_find(ledger, path);
    const struct ms__call_stats_list *list = stats ? &stats->forward : NULL;
    const struct ms__call_stats *latest = list && list->count ? &list->calls[list->count - 1] : NULL;
    *input = latest ? latest->input : 0;
    *output = latest ? latest->output : 0;
    ms__unlock(&ledger->lock);
}
