/* call_prediction.c - record calls in the order in which they begin, to predict the next one. */
#include "torch/names/names.h"

enum { MAX_PREDICTED_CALLS = 1 << 20 };

static bool is_predicted_at(size_t at, const struct mst_module *known, uint64_t context)
{
    const struct mst_call_prediction *prediction = &mst.prediction;
    return at < prediction->count && prediction->calls[at].module == known->module &&
           prediction->calls[at].context == context;
}

void mst_prediction_record(struct mst_module *known, uint64_t context, ms_path path)
{
    struct mst_call_prediction *prediction = &mst.prediction;
    uint32_t at = known->predicted_at;
    if (!is_predicted_at(at, known, context))
        at = prediction->next < MAX_PREDICTED_CALLS ? (uint32_t)prediction->next : 0;
    if (!MS__ARRAY_GROW(prediction->calls, prediction->room, at + 1))
        return;
    int32_t weakrefs_at = (int32_t)((char *)known->weakrefs - (char *)known->module);
    prediction->calls[at] = (struct mst_predicted_call){known->module, known->ref, context, weakrefs_at, path};
    prediction->next = at + 1;
    if (at == prediction->count)
        prediction->count++;
    known->predicted_at = at;
}
