/* log_steps.c - a log as steps: which allocation each entry frees, which survive their step, and which steps have the
 * same actions. */
#include "replay/epoch/epoch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static ms_log_kind kind_of(uint64_t entry)
{
    return (ms_log_kind)(entry & ((1U << MS_LOG_KIND_BITS) - 1));
}

static uint64_t value_of(uint64_t entry)
{
    return entry >> MS_LOG_KIND_BITS;
}

/* ---- allocations ---- */
static bool is_in_range(const ms_epoch_source *source)
{
    bool is_good = source->steps > source->first && source->width <= MS_EPOCH_MOST_FEATURES &&
                   source->marks[source->steps] <= source->entries;
    for (uint32_t i = 0; is_good && i < source->steps; i++)
        is_good = source->marks[i] <= source->marks[i + 1] && source->shapes[i] < source->shape_count;
    return is_good;
}

static uint64_t count_allocated(const uint64_t *log, size_t from, size_t to)
{
    uint64_t count = 0;
    for (size_t i = from; i < to; i++)
        count += kind_of(log[i]) == MS_LOG_ALLOCATE;
    return count;
}

static void list_log_steps(ms_epoch *epoch, const ms_epoch_source *source)
{
    uint64_t made = count_allocated(source->log, 0, source->marks[0]);
    for (uint32_t i = 0; i < source->steps; i++) {
        struct ms__epoch_step *step = &epoch->steps[i];
        *step = (struct ms__epoch_step){.begin = source->marks[i],
                                        .end = source->marks[i + 1],
                                        .first = made,
                                        .shape = source->shapes[i],
                                        .kind = source->kinds[i]};
        step->count = (uint32_t)count_allocated(source->log, step->begin, step->end);
        made += step->count;
    }
}

/* False: the log frees what it did not allocate. */
static bool find_lives(ms_epoch *epoch)
{
    uint64_t made = 0, run_began = 0, running = 0;
    uint32_t step = MS_EPOCH_NONE;
    for (size_t i = 0; i < epoch->steps[epoch->step_count - 1].end; i++) {
        while (step + 1 < epoch->step_count && epoch->steps[step + 1].begin <= i)
            step++;
        uint64_t value = value_of(epoch->log[i]);
        if (kind_of(epoch->log[i]) == MS_LOG_ALLOCATE) {
            epoch->bytes[made] = value;
            epoch->made_in[made] = step;
            epoch->tokens[made] = running << 1;
            epoch->freed_in[made++] = MS_EPOCH_NONE;
        } else if (kind_of(epoch->log[i]) == MS_LOG_FREE) {
            if (value >= made)
                return false;
            epoch->freed_in[value] = step;
            if (value >= run_began) /* nothing but this operator has allocated since */
                epoch->tokens[value] |= 1;
        } else if (kind_of(epoch->log[i]) == MS_LOG_OPERATOR) {
            running = value;
            run_began = made;
        }
    }
    return true;
}

static void rank_survivors(ms_epoch *epoch)
{
    for (uint32_t i = 0; i < epoch->step_count; i++) {
        const struct ms__epoch_step *step = &epoch->steps[i];
        uint32_t rank = 0;
        for (uint64_t j = step->first; j < step->first + step->count; j++)
            epoch->ranks[j] = epoch->freed_in[j] == i ? MS_EPOCH_NONE : rank++;
    }
}

/* ---- actions ---- */
/* `made`: how many allocations of the step precede it. */
static struct ms__epoch_action action_of(const ms_epoch *epoch, uint32_t step, uint64_t entry, uint32_t made)
{
    struct ms__epoch_action action = {.value = value_of(entry), .kind = (uint8_t)kind_of(entry)};
    if (action.kind == MS_LOG_ALLOCATE) {
        action.value = made;
    } else if (action.kind == MS_LOG_FREE) {
        uint64_t number = action.value;
        uint32_t from = epoch->made_in[number];
        if (from == step) {
            action.value = number - epoch->steps[step].first;
        } else if (from != MS_EPOCH_NONE && step - from <= MS__EPOCH_MOST_AGE) {
            action.age = (uint16_t)(step - from);
            action.value = epoch->ranks[number];
        } else {
            action.age = MS__EPOCH_OF_BEGINNING;
            action.value = from == MS_EPOCH_NONE ? number : UINT64_MAX; /* too old: it is never freed */
        }
    }
    return action;
}

static uint64_t mix(uint64_t hash, uint64_t number)
{
    hash = (hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t hash_of(const ms_epoch *epoch, uint32_t index)
{
    const struct ms__epoch_step *step = &epoch->steps[index];
    uint64_t hash = mix(step->kind, step->count);
    uint32_t made = 0;
    for (size_t i = step->begin; i < step->end; i++) {
        struct ms__epoch_action action = action_of(epoch, index, epoch->log[i], made);
        if (action.kind == MS_LOG_OPERATOR)
            continue;
        made += action.kind == MS_LOG_ALLOCATE;
        hash = mix(mix(hash, action.value), (uint64_t)action.age << 8 | action.kind);
    }
    return hash;
}

/* ---- variants ---- */
static int make_variant(ms_epoch *epoch, uint32_t index, uint64_t hash)
{
    const struct ms__epoch_step *step = &epoch->steps[index];
    struct ms__epoch_variant *variant = &epoch->variants[epoch->variant_count++];
    *variant = (struct ms__epoch_variant){.hash = hash, .kind = step->kind, .allocation_count = step->count};
    variant->actions = malloc((step->end - step->begin + 1) * sizeof *variant->actions);
    variant->slots = calloc((size_t)step->count + 1, sizeof *variant->slots);
    variant->survivors = malloc(((size_t)step->count + 1) * sizeof *variant->survivors);
    variant->ages = calloc((size_t)step->count + 1, sizeof *variant->ages);
    variant->samples = malloc(((size_t)epoch->step_count + 1) * sizeof *variant->samples);
    if (!variant->actions || !variant->slots || !variant->survivors || !variant->ages || !variant->samples)
        return MS_ENOMEM;
    uint32_t made = 0;
    for (size_t i = step->begin; i < step->end; i++) {
        struct ms__epoch_action action = action_of(epoch, index, epoch->log[i], made);
        made += action.kind == MS_LOG_ALLOCATE;
        if (action.kind == MS_LOG_OPERATOR)
            continue;
        variant->actions[variant->action_count++] = action;
    }
    for (uint32_t i = 0; i < step->count; i++)
        if (epoch->ranks[step->first + i] != MS_EPOCH_NONE)
            variant->survivors[variant->survivor_count++] = i;
    return MS_OK;
}

static void add_sample(ms_epoch *epoch, struct ms__epoch_variant *variant, uint32_t index)
{
    const struct ms__epoch_step *step = &epoch->steps[index];
    assert(variant->samples && "each variant was made with room for them");
    variant->samples[variant->sample_count++] = index;
    for (uint32_t i = 0; i < variant->survivor_count; i++) {
        uint32_t end = epoch->freed_in[step->first + variant->survivors[i]];
        uint32_t age = end == MS_EPOCH_NONE ? 0 : end - index;
        if (age > variant->ages[i] && age <= MS__EPOCH_MOST_AGE)
            variant->ages[i] = (uint16_t)age;
        if (variant->ages[i] > epoch->longest_age)
            epoch->longest_age = variant->ages[i];
    }
}

static int sort_into_variants(ms_epoch *epoch)
{
    for (uint32_t i = epoch->first; i < epoch->step_count; i++) {
        uint64_t hash = hash_of(epoch, i);
        uint32_t at = 0;
        while (at < epoch->variant_count && epoch->variants[at].hash != hash)
            at++;
        int error = at == epoch->variant_count ? make_variant(epoch, i, hash) : MS_OK;
        if (error)
            return error;
        epoch->steps[i].variant = at;
        add_sample(epoch, &epoch->variants[at], i);
    }
    return MS_OK;
}

/* What the last steps leave had no time to die: it is taken to live as long as others do. */
static void complete_ages(ms_epoch *epoch)
{
    uint32_t age = epoch->longest_age ? epoch->longest_age : 1;
    for (uint32_t v = 0; v < epoch->variant_count; v++) {
        struct ms__epoch_variant *variant = &epoch->variants[v];
        assert(variant->samples && variant->sample_count && "each variant has a step");
        for (uint32_t i = 0; variant->samples[0] + age >= epoch->step_count && i < variant->survivor_count; i++)
            if (!variant->ages[i])
                variant->ages[i] = (uint16_t)age;
    }
    epoch->longest_age = age;
}

int ms__epoch_read_log(ms_epoch *epoch, const ms_epoch_source *source)
{
    if (!is_in_range(source))
        return MS_EINVAL;
    size_t entries = source->marks[source->steps];
    uint64_t count = count_allocated(source->log, 0, entries);
    epoch->step_count = source->steps;
    epoch->first = source->first;
    epoch->allocation_count = count;
    epoch->log = calloc(entries + 1, sizeof *epoch->log);
    epoch->steps = calloc(source->steps, sizeof *epoch->steps);
    epoch->variants = calloc(source->steps, sizeof *epoch->variants);
    epoch->bytes = malloc((count + 1) * sizeof *epoch->bytes);
    epoch->made_in = calloc(count + 1, sizeof *epoch->made_in);
    epoch->freed_in = calloc(count + 1, sizeof *epoch->freed_in);
    epoch->ranks = calloc(count + 1, sizeof *epoch->ranks);
    epoch->tokens = malloc((count + 1) * sizeof *epoch->tokens);
    if (!epoch->log || !epoch->steps || !epoch->variants || !epoch->bytes || !epoch->made_in || !epoch->freed_in ||
        !epoch->ranks || !epoch->tokens)
        return MS_ENOMEM;
    memcpy(epoch->log, source->log, entries * sizeof *epoch->log);
    list_log_steps(epoch, source);
    if (!find_lives(epoch))
        return MS_EINVAL;
    rank_survivors(epoch);
    int error = sort_into_variants(epoch);
    if (!error)
        complete_ages(epoch);
    return error;
}
