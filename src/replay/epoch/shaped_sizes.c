/* shaped_sizes.c - the size of each allocation of a step as a function of the shape.
 *
 * Sizes of tensors are products of a few lengths, plus a constant where something is concatenated or padded; kernels
 * round lengths up. So each product of features, also with features that are rounded up, is a candidate: the line
 * through two samples is right if it gives every sample's size to the byte. */
#include "replay/epoch/epoch.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_POWER = 2, MOST_DEGREE = 3, MULTIPLES = 7 };
static const uint8_t multiples[MULTIPLES] = {2, 4, 8, 16, 32, 64, 128};

/* ---- products ---- */
static double power_of(double value, unsigned power)
{
    double product = 1;
    while (power--)
        product *= value;
    return product;
}

static double round_up(double value, uint8_t multiple)
{
    uint64_t whole = (uint64_t)value, multiples_in = (whole + multiple - 1) / multiple;
    return (double)(multiples_in * multiple);
}

double ms__epoch_product_of(const ms_epoch *epoch, const struct ms__epoch_product *product, uint32_t shape)
{
    const double *features = &epoch->features[(size_t)shape * epoch->width];
    double value = 1;
    for (uint32_t i = 0; i < epoch->width; i++)
        if (product->powers[i]) {
            bool is_rounded = product->rounded >> i & 1;
            value *= power_of(is_rounded ? round_up(features[i], product->multiple) : features[i], product->powers[i]);
        }
    return value;
}

/* All products of at most MOST_DEGREE features, those of a lower degree first. Returns how many there are. */
static uint32_t list_powers(uint32_t width, uint8_t powers[][MS_EPOCH_MOST_FEATURES])
{
    uint32_t count = 0, codes = 1;
    for (uint32_t i = 0; i < width; i++)
        codes *= MOST_POWER + 1;
    for (uint32_t degree = 1; degree <= MOST_DEGREE; degree++)
        for (uint32_t code = 1; code < codes; code++) {
            uint32_t rest = code, sum = 0;
            for (uint32_t i = 0; i < MS_EPOCH_MOST_FEATURES; i++, rest /= MOST_POWER + 1) {
                powers[count][i] = (uint8_t)(rest % (MOST_POWER + 1));
                sum += powers[count][i];
            }
            count += sum == degree;
        }
    return count;
}

enum { MOST_POWERS = 81 }; /* (MOST_POWER + 1) ** MS_EPOCH_MOST_FEATURES */

/* For the caller to free. NULL: memory runs out. */
static struct ms__epoch_product *list_products(uint32_t width, uint32_t *count)
{
    uint8_t powers[MOST_POWERS + 1][MS_EPOCH_MOST_FEATURES];
    uint32_t power_count = list_powers(width, powers), masks = 1U << width;
    struct ms__epoch_product *list = malloc(((size_t)power_count * masks * MULTIPLES + 1) * sizeof *list);
    *count = 0;
    for (uint32_t mask = 0; list && mask < masks; mask++)
        for (uint32_t m = 0; m < (mask ? MULTIPLES : 1); m++)
            for (uint32_t i = 0; i < power_count; i++) {
                struct ms__epoch_product product = {.rounded = (uint8_t)mask, .multiple = multiples[m]};
                memcpy(product.powers, powers[i], sizeof product.powers);
                bool is_new = true; /* a rounded feature that is not in the product changes nothing */
                for (uint32_t j = 0; j < width; j++)
                    is_new = is_new && (!(mask >> j & 1) || powers[i][j]);
                if (is_new)
                    list[(*count)++] = product;
            }
    return list;
}

/* ---- lines through the samples of a slot ---- */
/* The values of one product for all samples. */
struct column {
    const double *values;
    uint16_t product; /* of the list of all */
    uint8_t lag;
};

struct fit {
    ms_epoch *epoch;
    const struct ms__epoch_product *products;
    double *values;
    struct column *columns;
    uint32_t *samples; /* that have the slot */
    double *sizes;     /* of the slot, by item of `samples` */
    int16_t *used;     /* by product: its index in ms_epoch.used, or -1 */
    uint32_t product_count, column_count, sample_count, lags;
};

static void fill_columns(struct fit *fit)
{
    uint32_t count = ms__epoch_sample_count(fit->epoch);
    for (uint32_t lag = 0; lag < fit->lags; lag++)
        for (uint32_t p = 0; p < fit->product_count; p++) {
            double *values = &fit->values[(size_t)fit->column_count * count];
            for (uint32_t i = 0; i < count; i++) {
                uint32_t shape = ms__epoch_shape_before(fit->epoch, fit->epoch->first + i, lag);
                values[i] = ms__epoch_product_of(fit->epoch, &fit->products[p], shape);
            }
            fit->columns[fit->column_count++] =
                (struct column){.values = values, .product = (uint16_t)p, .lag = (uint8_t)lag};
        }
}

/* Whether the line through the smallest and the largest sample gives all sizes. */
static bool is_on_line(const struct fit *fit, const struct column *column, struct ms__epoch_size *size)
{
    const double *x = column->values, *y = fit->sizes;
    uint32_t low = 0, high = 0;
    for (uint32_t i = 1; i < fit->sample_count; i++) {
        low = y[i] < y[low] ? i : low;
        high = y[i] > y[high] ? i : high;
    }
    double width = x[fit->samples[high]] - x[fit->samples[low]];
    if (width <= 0)
        return false;
    double slope = (y[high] - y[low]) / width, constant = y[low] - slope * x[fit->samples[low]];
    for (uint32_t i = 0; i < fit->sample_count; i++) {
        double off = constant + slope * x[fit->samples[i]] - y[i];
        if (off > 0.5 || off < -0.5)
            return false;
    }
    *size = (struct ms__epoch_size){constant, slope, column->product, MS__SIZE_LINE, column->lag, fit->sample_count};
    return true;
}

/* A column that was right for a slot before is tried first: most sizes are of few forms. */
static void move_to_front(struct column *columns, uint32_t at)
{
    struct column found = columns[at];
    memmove(&columns[1], &columns[0], at * sizeof *columns);
    columns[0] = found;
}

static bool find_line(struct fit *fit, struct ms__epoch_size *size)
{
    for (uint32_t i = 0; i < fit->column_count; i++)
        if (is_on_line(fit, &fit->columns[i], size)) {
            move_to_front(fit->columns, i);
            return true;
        }
    return false;
}

static void note_used(struct fit *fit, struct ms__epoch_size *size)
{
    ms_epoch *epoch = fit->epoch;
    if (fit->used[size->product] < 0) {
        fit->used[size->product] = (int16_t)epoch->used_count;
        epoch->used[epoch->used_count++] = fit->products[size->product];
    }
    size->product = (uint16_t)fit->used[size->product];
}

/* Of the samples that have the slot, those of one variant; NULL: of all. */
static void gather_samples(struct fit *fit, uint32_t slot, const struct ms__epoch_variant *variant)
{
    const ms_epoch *epoch = fit->epoch;
    fit->sample_count = 0;
    for (uint32_t i = 0; i < ms__epoch_sample_count(epoch); i++) {
        uint64_t bytes = epoch->slot_bytes[(size_t)i * epoch->slot_count + slot];
        bool is_of_it = !variant || &epoch->variants[epoch->steps[epoch->first + i].variant] == variant;
        if (bytes == UINT64_MAX || !is_of_it)
            continue;
        fit->samples[fit->sample_count] = i;
        fit->sizes[fit->sample_count++] = (double)bytes;
    }
}

static void fit_gathered(struct fit *fit, struct ms__epoch_size *size)
{
    bool is_constant = true;
    for (uint32_t i = 0; i < fit->sample_count; i++)
        is_constant = is_constant && fit->sizes[i] == fit->sizes[0];
    if (is_constant)
        *size = (struct ms__epoch_size){.constant = fit->sample_count ? fit->sizes[0] : 0, .form = MS__SIZE_CONSTANT};
    else if (find_line(fit, size))
        note_used(fit, size);
    else
        *size = (struct ms__epoch_size){.form = MS__SIZE_INEXACT};
    size->seen = fit->sample_count;
}

/* A kernel works in another way from some size on, and so do others in the same step: within a variant the size may be
 * on a line. Then that allocation of the variant gets a size of its own. */
static void fit_in_variant(struct fit *fit, struct ms__epoch_variant *variant)
{
    enum { LEAST = 2 };
    ms_epoch *epoch = fit->epoch;
    for (uint32_t i = 0; i < variant->allocation_count; i++) {
        struct ms__epoch_size size;
        if (variant->slots[i] >= epoch->slot_count || epoch->sizes[variant->slots[i]].form != MS__SIZE_INEXACT)
            continue;
        gather_samples(fit, variant->slots[i], variant);
        if (fit->sample_count < LEAST)
            continue;
        fit_gathered(fit, &size);
        if (size.form == MS__SIZE_INEXACT)
            continue;
        epoch->sizes[epoch->size_count] = size;
        variant->slots[i] = epoch->size_count++;
    }
}

static int fill_slot_bytes(ms_epoch *epoch)
{
    uint32_t count = ms__epoch_sample_count(epoch);
    size_t sizes = (size_t)epoch->slot_count + 1;
    for (uint32_t v = 0; v < epoch->variant_count; v++)
        sizes += epoch->variants[v].allocation_count;
    epoch->sizes = calloc(sizes, sizeof *epoch->sizes);
    epoch->size_count = epoch->slot_count;
    epoch->slot_bytes = malloc(((size_t)epoch->slot_count * count + 1) * sizeof *epoch->slot_bytes);
    if (!epoch->sizes || !epoch->slot_bytes)
        return MS_ENOMEM;
    memset(epoch->slot_bytes, 0xff, (size_t)epoch->slot_count * count * sizeof *epoch->slot_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const struct ms__epoch_step *step = &epoch->steps[epoch->first + i];
        const uint32_t *slots = epoch->variants[step->variant].slots;
        for (uint32_t j = 0; j < step->count; j++)
            epoch->slot_bytes[(size_t)i * epoch->slot_count + slots[j]] = epoch->bytes[step->first + j];
    }
    return MS_OK;
}

static int fit_slots(struct fit *fit)
{
    ms_epoch *epoch = fit->epoch;
    size_t columns = (size_t)fit->product_count * fit->lags + 1, count = ms__epoch_sample_count(epoch);
    fit->values = malloc((columns * count + 1) * sizeof *fit->values);
    fit->columns = malloc(columns * sizeof *fit->columns);
    fit->samples = malloc((count + 1) * sizeof *fit->samples);
    fit->sizes = malloc((count + 1) * sizeof *fit->sizes);
    bool has_room = fit->values && fit->columns && fit->samples && fit->sizes;
    if (has_room)
        fill_columns(fit);
    for (uint32_t slot = 0; has_room && slot < epoch->slot_count; slot++) {
        gather_samples(fit, slot, NULL);
        fit_gathered(fit, &epoch->sizes[slot]);
    }
    for (uint32_t v = 0; has_room && v < epoch->variant_count; v++)
        fit_in_variant(fit, &epoch->variants[v]);
    free(fit->values);
    free(fit->columns);
    free(fit->samples);
    free(fit->sizes);
    return has_room ? MS_OK : MS_ENOMEM;
}

/* ---- lags ---- */
static void find_lags(ms_epoch *epoch)
{
    uint64_t votes[MS__EPOCH_MOST_LAG + 1] = {0};
    for (uint32_t i = 0; i < epoch->size_count; i++) {
        const struct ms__epoch_size *size = &epoch->sizes[i];
        if (size->form != MS__SIZE_LINE)
            continue;
        votes[size->lag]++;
        epoch->longest_lag = size->lag > epoch->longest_lag ? size->lag : epoch->longest_lag;
    }
    for (uint32_t lag = 1; lag <= MS__EPOCH_MOST_LAG; lag++)
        epoch->lag = votes[lag] > votes[epoch->lag] ? lag : epoch->lag;
}

/* ---- between the samples ---- */
double ms__epoch_distance(const ms_epoch *epoch, uint32_t shape, uint32_t other)
{
    double sum = 0;
    for (uint32_t i = 0; shape != other && i < epoch->width; i++) {
        double here = epoch->features[(size_t)shape * epoch->width + i];
        double there = epoch->features[(size_t)other * epoch->width + i];
        double range = epoch->ranges[i] > 0 ? epoch->ranges[i] : 1;
        sum += (here > there ? here - there : there - here) / range;
    }
    return sum;
}

void ms__epoch_order_samples(const ms_epoch *epoch, uint32_t shape, uint32_t *order)
{
    uint32_t count = ms__epoch_sample_count(epoch);
    for (uint32_t i = 0; i < count; i++) { /* few: they are inserted where they belong */
        double distance = ms__epoch_distance(epoch, shape, ms__epoch_shape_before(epoch, epoch->first + i, epoch->lag));
        uint32_t at = i;
        while (at > 0 &&
               distance <= ms__epoch_distance(
                               epoch, shape, ms__epoch_shape_before(epoch, epoch->first + order[at - 1], epoch->lag))) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

/* The nearest sample that has the slot, and the nearest one beyond the shape as seen from there. */
uint64_t ms__epoch_inexact_size(const ms_epoch *epoch, uint32_t slot, uint32_t shape, const uint32_t *order)
{
    uint32_t nearest = MS_EPOCH_NONE;
    double near_feature = 0, feature = epoch->width ? epoch->features[(size_t)shape * epoch->width] : 0;
    for (uint32_t i = 0; i < ms__epoch_sample_count(epoch); i++) {
        uint64_t bytes = epoch->slot_bytes[(size_t)order[i] * epoch->slot_count + slot];
        if (bytes == UINT64_MAX)
            continue;
        uint32_t of = ms__epoch_shape_before(epoch, epoch->first + order[i], epoch->lag);
        double there = epoch->width ? epoch->features[(size_t)of * epoch->width] : 0;
        if (nearest == MS_EPOCH_NONE) {
            if (epoch->width != 1 || there == feature)
                return bytes;
            nearest = order[i], near_feature = there;
        } else if ((there > feature) != (near_feature > feature)) {
            double from = (double)epoch->slot_bytes[(size_t)nearest * epoch->slot_count + slot];
            double part = (feature - near_feature) / (there - near_feature);
            return (uint64_t)(from + ((double)bytes - from) * part + 0.5);
        }
    }
    return nearest == MS_EPOCH_NONE ? 0 : epoch->slot_bytes[(size_t)nearest * epoch->slot_count + slot];
}

/* ---- the whole ---- */
static void find_ranges(ms_epoch *epoch)
{
    for (uint32_t i = 0; i < epoch->width; i++) {
        double low = epoch->features[i], high = low;
        for (uint32_t shape = 1; shape < epoch->shape_count; shape++) {
            double value = epoch->features[(size_t)shape * epoch->width + i];
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
        epoch->ranges[i] = high - low;
    }
}

int ms__epoch_fit_sizes(ms_epoch *epoch)
{
    uint32_t count;
    struct ms__epoch_product *products = list_products(epoch->width, &count);
    struct fit fit = {.epoch = epoch, .products = products, .product_count = count};
    fit.lags = epoch->first + 1 < MS__EPOCH_MOST_LAG ? epoch->first + 1 : MS__EPOCH_MOST_LAG;
    fit.used = malloc(((size_t)count + 1) * sizeof *fit.used);
    epoch->used = malloc(((size_t)count + 1) * sizeof *epoch->used);
    int error = products && fit.used && epoch->used ? MS_OK : MS_ENOMEM;
    find_ranges(epoch);
    for (uint32_t i = 0; !error && i < count; i++)
        fit.used[i] = -1;
    if (!error)
        error = ms__epoch_find_slots(epoch);
    if (!error)
        error = fill_slot_bytes(epoch);
    if (!error)
        error = fit_slots(&fit);
    free(products);
    free(fit.used);
    if (!error)
        find_lags(epoch);
    return error;
}
