/* partial_sums.c - what Hopper's convolution kernels take for partial sums, which cuDNN counts for 18 multiprocessors
 * where it has a description in place of a GPU.
 *
 * These kernels compute tiles of the result, a wave of them at a time. Where the tiles of the last wave are too few to
 * occupy the GPU, each of them is split: several multiprocessors add up a part of the sum each, and a tree of pairs
 * adds the parts. The workspace has all parts, a counter for each pair, and 8 more:
 *
 *     bytes = copies of the tensors + parts of a tile * tiles of the last wave * bytes of a tile
 *             + 4 * (counters) + 127, so that they can be aligned
 *
 * Found by comparing the answers of cuDNN 9.19 on an H200 for 25,195 convolutions with those for its description: the
 * kernels and their knobs are the same for all, and this finds 94 % of the workspaces to the byte. When a kernel splits
 * into less than it could is a matter of time, which is known roughly (`most_parts`). */
#include "torch/plans/plans.h"

#include <stdbool.h>

enum { DESCRIBED = 18, WHOLE_HOPPER = 132, COUNTERS = 8, COUNTER = 4, ALIGNED = 127, ELEMENT = 4 };

static int64_t divided(int64_t number, int64_t by)
{
    return (number + by - 1) / by;
}

/* By the knob: rows and columns of a tile. Zero: not known. */
static const int16_t tile_sizes[][2] = {
    [0] = {128, 128}, [1] = {128, 64},  [2] = {128, 32},   [3] = {256, 128}, [4] = {256, 64},
    [5] = {64, 64},   [6] = {128, 256}, [7] = {64, 128},   [8] = {64, 32},   [9] = {64, 256},
    [16] = {256, 32}, [18] = {64, 192}, [19] = {128, 192}, [20] = {256, 96},
};
enum { TILE_SIZES = sizeof tile_sizes / sizeof *tile_sizes, MOST_IN_CLUSTER = 16 };

/* How many multiprocessors work at once in clusters of so many. A cluster lies within one of the GPU's parts, of 16 or
 * 18 multiprocessors each: some are left over. Measured with 132. */
static int64_t working_at_once(int64_t processors, int64_t cluster)
{
    static const int16_t clusters[] = {0, 132, 66, 39, 30, 22, 17, 15, 15, 14, 13, 12, 7, 7, 7, 7, 7};
    return cluster * (processors == WHOLE_HOPPER ? clusters[cluster] : processors / cluster);
}

struct work {
    int64_t tiles, parts; /* `parts`: into how many a tile's sum can be divided */
    int64_t tile_bytes;
};

static int64_t volume(const mst_convolution *asked, const int64_t *sizes)
{
    int64_t product = 1;
    for (int i = 0; i < asked->spatial; i++)
        product *= sizes[2 + i];
    return product;
}

static int64_t in_clusters(int64_t tiles, int64_t cluster)
{
    return divided(tiles, cluster) * cluster;
}

static struct work work_of(const mst_convolution *asked, const mst_knobs *knobs)
{
    int64_t rows = tile_sizes[knobs->tile][0], columns = tile_sizes[knobs->tile][1], depth = 32LL << knobs->depth;
    /* Each group is a convolution of its own. */
    int64_t inputs = asked->weight[1], groups = divided(asked->input[1], inputs);
    int64_t outputs = divided(asked->weight[0], groups), taps = volume(asked, asked->weight);
    int64_t before = asked->input[0] * volume(asked, asked->input);
    int64_t after = asked->input[0] * volume(asked, asked->output);
    int64_t high, wide, parts;
    if (asked->pass == MST_OF_WEIGHT) {
        high = divided(outputs, rows), wide = taps * divided(inputs, columns), parts = divided(after, depth);
    } else if (asked->pass == MST_FORWARD) {
        high = divided(after, rows), wide = divided(outputs, columns), parts = taps * divided(inputs, depth);
    } else {
        high = divided(before, rows), wide = divided(inputs, columns), parts = taps * divided(outputs, depth);
    }
    int64_t tiles = in_clusters(high, knobs->cluster_rows) * in_clusters(wide, knobs->cluster_columns);
    return (struct work){groups * tiles, parts, rows * columns * ELEMENT};
}

/* Into how many parts a kernel splits a tile at most: each time the tree of pairs is one level deeper, the sum has to
 * be longer to be worth it, and more so where there is no wave before. */
static int64_t most_parts(int64_t parts, bool is_wide_type, bool is_first_wave)
{
    static const int16_t longest[2][2][4] = {
        /* for 1, 2, 4, 8 */
        {{48, 58, 66, 76}, {90, 115, 140, 190}},
        {{14, 28, 44, 54}, {45, 96, 140, 280}},
    };
    for (int i = 0; i < 4; i++)
        if (parts < longest[is_wide_type][is_first_wave][i])
            return 1LL << i;
    return parts;
}

static int64_t pairs_of(int64_t parts)
{
    int64_t pairs = 0;
    while (parts > 1) {
        parts = divided(parts, 2);
        pairs += parts;
    }
    return pairs;
}

struct wave {
    int64_t tiles;    /* of the last wave, where it is not whole */
    int64_t most;     /* into how many parts each can be split */
    bool has_counter; /* kernels that run for more than two waves have one counter more */
};

static struct wave last_wave(const struct work *work, int64_t processors)
{
    int64_t tiles = work->tiles % processors;
    return (struct wave){tiles, tiles ? processors / tiles : 1, work->tiles > 2 * processors};
}

static int64_t bytes_of(const struct wave *wave, const struct work *work, int64_t parts)
{
    int64_t counters = (parts > 1 ? wave->tiles * pairs_of(parts) + COUNTERS : 0) + wave->has_counter;
    return (parts > 1 ? parts * wave->tiles * work->tile_bytes : 0) + (counters ? COUNTER * counters + ALIGNED : 0);
}

static int64_t parts_on(const mst_convolution *asked, const mst_knobs *knobs, const struct work *work,
                        const struct wave *wave, bool is_first)
{
    if (knobs->keeps_whole || wave->most < 2)
        return 1;
    int64_t most = most_parts(work->parts, asked->type == MST_FLOAT32, is_first);
    most = wave->most < most ? wave->most : most;
    return divided(work->parts, divided(work->parts, most));
}

int64_t mst_bytes_on_hopper(const mst_convolution *asked, const mst_knobs *knobs, int64_t described, int64_t processors)
{
    int64_t cluster = knobs->cluster_rows * knobs->cluster_columns;
    if (knobs->tile < 0 || knobs->tile >= TILE_SIZES || !tile_sizes[knobs->tile][0] || knobs->depth < 0 ||
        knobs->depth > 3 || knobs->cluster_rows < 1 || knobs->cluster_columns < 1 || cluster > MOST_IN_CLUSTER ||
        asked->type == MST_FLOAT64 || asked->weight[1] < 1)
        return described;
    const struct work work = work_of(asked, knobs);
    const int64_t few = DESCRIBED / cluster * cluster, many = working_at_once(processors, cluster);
    if (!few || !many)
        return described;
    const struct wave counted = last_wave(&work, few), real = last_wave(&work, many);
    /* What is left of the answer without its partial sums are copies of tensors: whole numbers of 16 bytes. */
    int64_t guess = parts_on(asked, knobs, &work, &counted, work.tiles < few);
    int64_t copies = described - bytes_of(&counted, &work, guess);
    for (int64_t parts = 1; (copies < 0 || copies % 16) && parts <= counted.most; parts++)
        copies = described - bytes_of(&counted, &work, parts);
    if (copies < 0 || copies % 16)
        return described;
    return copies + bytes_of(&real, &work, parts_on(asked, knobs, &work, &real, work.tiles < many));
}
