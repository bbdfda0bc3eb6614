/* open.c - an epoch is opened from the log of some steps, described, and closed. */
#include "replay/epoch/epoch.h"

#include <stdlib.h>

/* ---- open, close ---- */
static void free_variant(struct ms__epoch_variant *variant)
{
    free(variant->actions);
    free(variant->slots);
    free(variant->survivors);
    free(variant->ages);
    free(variant->samples);
}

void ms_epoch_close(ms_epoch *epoch)
{
    if (!epoch)
        return;
    for (uint32_t i = 0; i < epoch->variant_count; i++)
        free_variant(&epoch->variants[i]);
    free(epoch->log);
    free(epoch->steps);
    free(epoch->bytes);
    free(epoch->made_in);
    free(epoch->freed_in);
    free(epoch->ranks);
    free(epoch->tokens);
    free(epoch->sizes);
    free(epoch->slot_bytes);
    free(epoch->features);
    free(epoch->used);
    free(epoch->variants);
    free(epoch);
}

static int copy_features(ms_epoch *epoch, const ms_epoch_source *source)
{
    size_t count = (size_t)source->shape_count * source->width;
    epoch->shape_count = source->shape_count;
    epoch->width = source->width;
    epoch->features = malloc((count + 1) * sizeof *epoch->features);
    if (!epoch->features)
        return MS_ENOMEM;
    for (size_t i = 0; i < count; i++)
        epoch->features[i] = source->features[i];
    return MS_OK;
}

int ms_epoch_open(const ms_epoch_source *source, ms_epoch **opened)
{
    ms_epoch *epoch = calloc(1, sizeof *epoch);
    int error = epoch ? ms__epoch_read_log(epoch, source) : MS_ENOMEM;
    if (!error)
        error = copy_features(epoch, source);
    if (!error)
        error = ms__epoch_fit_sizes(epoch);
    if (error) {
        ms_epoch_close(epoch);
        return error;
    }
    *opened = epoch;
    return MS_OK;
}

/* ---- what is known of sizes ---- */
enum { LEAST_SAMPLES = 3 }; /* any two samples are on a line */

static bool is_inexact(const struct ms__epoch_size *size)
{
    return size->form == MS__SIZE_INEXACT || (size->form == MS__SIZE_LINE && size->seen < LEAST_SAMPLES);
}

static void describe_variant(const ms_epoch *epoch, const struct ms__epoch_variant *variant, ms_epoch_facts *facts)
{
    uint64_t bytes = 0, inexact = 0;
    for (uint32_t i = 0; i < variant->allocation_count; i++) {
        const struct ms__epoch_size *size = &epoch->sizes[variant->slots[i]];
        uint64_t most = 0;
        for (uint32_t j = 0; j < variant->sample_count; j++) {
            uint64_t of = epoch->bytes[epoch->steps[variant->samples[j]].first + i];
            most = of > most ? of : most;
        }
        facts->blocks++;
        facts->varying += size->form != MS__SIZE_CONSTANT;
        facts->inexact += is_inexact(size);
        bytes += most;
        inexact += is_inexact(size) ? most : 0;
    }
    facts->bytes = bytes > facts->bytes ? bytes : facts->bytes;
    facts->inexact_bytes = inexact > facts->inexact_bytes ? inexact : facts->inexact_bytes;
}

ms_epoch_facts ms_epoch_describe(const ms_epoch *epoch)
{
    ms_epoch_facts facts = {.variants = epoch->variant_count, .lag = epoch->lag};
    for (uint32_t i = 0; i < epoch->variant_count; i++)
        describe_variant(epoch, &epoch->variants[i], &facts);
    return facts;
}

uint64_t ms_epoch_requests_before(const ms_epoch *epoch, uint32_t step)
{
    if (step < epoch->step_count)
        return epoch->steps[step].first;
    const struct ms__epoch_step *last = &epoch->steps[epoch->step_count - 1];
    return last->first + last->count;
}

uint64_t ms_epoch_operator_of(const ms_epoch *epoch, uint64_t request)
{
    return request < epoch->allocation_count ? epoch->tokens[request] >> 1 : 0;
}
