/* cudnn.c - ask cuDNN's backend API. Its numbers are those of NVIDIA's header of graphs, which keeps them
 * through a major version. */
#define _GNU_SOURCE
#include "torch/plans/plans.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef void *descriptor;

enum { /* cudnnBackendDescriptorType_t */
       CONVOLUTION = 1,
       ENGINE = 2,
       ENGINE_CONFIG = 3,
       HEURISTICS = 4,
       PLAN = 5,
       KNOB = 7,
       FORWARD = 10,
       BACKWARD_FILTER = 11,
       BACKWARD_DATA = 12,
       GRAPH = 15,
       TENSOR = 17,
       DEVICE = 38
};

enum { /* cudnnBackendAttributeType_t */
       DATA_TYPE = 1,
       INT64 = 3,
       FLOAT = 4,
       DOUBLE = 5,
       CONVOLUTION_MODE = 7,
       HEURISTICS_MODE = 8,
       KNOB_TYPE = 9,
       NUMERICAL_NOTE = 11,
       DESCRIPTOR = 15,
       CHAR = 24
};

enum { /* cudnnBackendAttributeName_t */
       CONVOLUTION_TYPE = 100,
       CONVOLUTION_KIND,
       CONVOLUTION_DILATIONS,
       CONVOLUTION_STRIDES,
       CONVOLUTION_POST_PADDINGS,
       CONVOLUTION_PRE_PADDINGS,
       CONVOLUTION_SPATIAL,
       HEURISTICS_CHOSEN_MODE = 200,
       HEURISTICS_GRAPH,
       HEURISTICS_RESULTS,
       HEURISTICS_DEVICE = 204,
       CONFIG_ENGINE = 300,
       CONFIG_KNOBS = 302,
       PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402,
       PLAN_DEVICE = 407,
       KNOB_KIND = 600,
       KNOB_VALUE,
       FORWARD_ALPHA = 700,
       BACKWARD_DATA_ALPHA = 706,
       BACKWARD_FILTER_ALPHA = 712,
       GRAPH_OPERATIONS = 801,
       TENSOR_ALIGNMENT = 900,
       TENSOR_TYPE,
       TENSOR_DIMENSIONS,
       TENSOR_STRIDES,
       TENSOR_ID = 906,
       ENGINE_INDEX = 1301,
       ENGINE_NOTES = 1303,
       DEVICE_JSON = 2702
};

enum { INSTANT = 0, FALLBACK = 2 };                                /* cudnnBackendHeurMode_t, as torch uses them */
enum { TENSOR_CORE = 0, DOWN_CONVERT = 1, NOT_DETERMINISTIC = 4 }; /* cudnnBackendNumericalNote_t */
enum {
    TILE_SIZE = 2,
    TILE_DEPTH = 13,
    WORKSPACE = 25,
    CLUSTER_ROWS = 27,
    CLUSTER_COLUMNS
}; /* cudnnBackendKnobType_t */
enum { CROSS_CORRELATION = 1, INFORMATION = 1 << 3 };
enum { OLDEST = 90800, NEXT_MAJOR = 100000, ALIGNMENT = 32, MOST_CONFIGS = 256, MOST_NOTES = 32, MOST_KNOBS = 16 };

static struct {
    int (*create)(int, descriptor *);
    int (*destroy)(descriptor);
    int (*finalize)(descriptor);
    int (*set)(descriptor, int, int, int64_t, const void *);
    int (*get)(descriptor, int, int, int64_t, int64_t *, void *);
    int (*set_callback)(unsigned, void *, void (*)(int, void *, const void *, const char *));
    size_t (*version)(void);
} cudnn;

static descriptor device;
static int64_t hopper;

/* ---- the library ---- */

static bool find_functions(void *library, char reason[MST_REASON])
{
    const struct {
        const char *name;
        void *place;
    } functions[] = {
        {"cudnnBackendCreateDescriptor", &cudnn.create},
        {"cudnnBackendDestroyDescriptor", &cudnn.destroy},
        {"cudnnBackendFinalize", &cudnn.finalize},
        {"cudnnBackendSetAttribute", &cudnn.set},
        {"cudnnBackendGetAttribute", &cudnn.get},
        {"cudnnSetCallback", &cudnn.set_callback},
        {"cudnnGetVersion", &cudnn.version},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) {
            snprintf(reason, MST_REASON, "it has no %s", functions[i].name);
            return false;
        }
        memcpy(functions[i].place, &function, sizeof function);
    }
    return true;
}

static bool is_usable(int64_t version, char reason[MST_REASON])
{
    if (version >= OLDEST && version < NEXT_MAJOR)
        return true;
    /* before 9 a version was 1000 * major + 100 * minor + patch */
    int64_t major = version < 10000 ? version / 1000 : version / 10000;
    int64_t minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
    snprintf(reason, MST_REASON, "it is cuDNN %lld.%lld, and modscope knows how to ask 9.8 and later versions of 9",
             (long long)major, (long long)minor);
    return false;
}

/* ---- descriptors: each function returns whether it succeeded ---- */

static bool set_integers(descriptor to, int name, const int64_t *values, int count)
{
    return cudnn.set(to, name, INT64, count, values) == 0;
}

static bool set_one(descriptor to, int name, int type, int value)
{
    return cudnn.set(to, name, type, 1, &value) == 0;
}

static bool set_descriptor(descriptor to, int name, descriptor value)
{
    return cudnn.set(to, name, DESCRIPTOR, 1, &value) == 0;
}

int64_t mst_cudnn_open(const char *path, const char *description, int64_t hopper_processors, char reason[MST_REASON])
{
    hopper = hopper_processors;
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(reason, MST_REASON, "it cannot be loaded: %s", dlerror());
        return 0;
    }
    if (!find_functions(library, reason))
        return 0;
    int64_t version = (int64_t)cudnn.version();
    if (!is_usable(version, reason))
        return 0;
    if (cudnn.create(DEVICE, &device) != 0 ||
        cudnn.set(device, DEVICE_JSON, CHAR, (int64_t)strlen(description) + 1, description) != 0 ||
        cudnn.finalize(device) != 0) {
        snprintf(reason, MST_REASON, "it does not know such a GPU");
        return 0;
    }
    return version;
}

/* ---- a convolution as a graph of one operation ---- */

/* The parts of a graph. */
enum { X, W, Y, DESCRIBED, OPERATION, WHOLE, PARTS };

static int type_of(const mst_convolution *asked)
{
    static const int types[] = {[MST_FLOAT32] = 0, [MST_BFLOAT16] = 9, [MST_FLOAT16] = 2, [MST_FLOAT64] = 1};
    return types[asked->type];
}

static void find_strides(const int64_t *sizes, int count, bool channels_last, int64_t *strides)
{
    int64_t stride = channels_last ? sizes[1] : 1;
    for (int i = count - 1; i >= (channels_last ? 2 : 0); i--) {
        strides[i] = stride;
        stride *= sizes[i];
    }
    if (channels_last) {
        strides[1] = 1;
        strides[0] = stride;
    }
}

static bool make_tensor(const mst_convolution *asked, const int64_t *sizes, int64_t id, descriptor *made)
{
    int count = asked->spatial + 2;
    int64_t strides[2 + MST_MOST_SPATIAL], alignment = ALIGNMENT; /* torch looks no further than 32 bytes */
    find_strides(sizes, count, asked->flags & MST_CHANNELS_LAST, strides);
    return cudnn.create(TENSOR, made) == 0 && set_one(*made, TENSOR_TYPE, DATA_TYPE, type_of(asked)) &&
           set_integers(*made, TENSOR_DIMENSIONS, sizes, count) &&
           set_integers(*made, TENSOR_STRIDES, strides, count) && set_integers(*made, TENSOR_ID, &id, 1) &&
           set_integers(*made, TENSOR_ALIGNMENT, &alignment, 1) && cudnn.finalize(*made) == 0;
}

static bool make_convolution(const mst_convolution *asked, descriptor *made)
{
    int count = asked->spatial;
    int64_t spatial = count;
    /* sums of 16-bit types are made in float32 */
    int type = asked->type == MST_FLOAT64 ? type_of(asked) : 0;
    return cudnn.create(CONVOLUTION, made) == 0 && set_one(*made, CONVOLUTION_TYPE, DATA_TYPE, type) &&
           set_one(*made, CONVOLUTION_KIND, CONVOLUTION_MODE, CROSS_CORRELATION) &&
           set_integers(*made, CONVOLUTION_SPATIAL, &spatial, 1) &&
           set_integers(*made, CONVOLUTION_DILATIONS, asked->dilation, count) &&
           set_integers(*made, CONVOLUTION_STRIDES, asked->stride, count) &&
           set_integers(*made, CONVOLUTION_PRE_PADDINGS, asked->padding, count) &&
           set_integers(*made, CONVOLUTION_POST_PADDINGS, asked->padding, count) && cudnn.finalize(*made) == 0;
}

static bool set_scales(descriptor operation, int alpha, bool is_double)
{
    static const float one = 1, zero = 0;
    static const double one_double = 1, zero_double = 0;
    int type = is_double ? DOUBLE : FLOAT;
    return cudnn.set(operation, alpha, type, 1, is_double ? (const void *)&one_double : &one) == 0 &&
           cudnn.set(operation, alpha + 1, type, 1, is_double ? (const void *)&zero_double : &zero) == 0;
}

static bool make_operation(const mst_convolution *asked, descriptor *parts)
{
    static const int kinds[] = {
        [MST_FORWARD] = FORWARD, [MST_OF_INPUT] = BACKWARD_DATA, [MST_OF_WEIGHT] = BACKWARD_FILTER};
    static const int alphas[] = {
        [MST_FORWARD] = FORWARD_ALPHA, [MST_OF_INPUT] = BACKWARD_DATA_ALPHA, [MST_OF_WEIGHT] = BACKWARD_FILTER_ALPHA};
    const int alpha = alphas[asked->pass]; /* the others follow it in the same order */
    descriptor *made = &parts[OPERATION];
    return cudnn.create(kinds[asked->pass], made) == 0 && set_scales(*made, alpha, asked->type == MST_FLOAT64) &&
           set_descriptor(*made, alpha + 2, parts[DESCRIBED]) && set_descriptor(*made, alpha + 3, parts[W]) &&
           set_descriptor(*made, alpha + 4, parts[X]) && set_descriptor(*made, alpha + 5, parts[Y]) &&
           cudnn.finalize(*made) == 0;
}

static bool make_graph(const mst_convolution *asked, descriptor *parts)
{
    return make_tensor(asked, asked->input, 'x', &parts[X]) && make_tensor(asked, asked->weight, 'w', &parts[W]) &&
           make_tensor(asked, asked->output, 'y', &parts[Y]) && make_convolution(asked, &parts[DESCRIBED]) &&
           make_operation(asked, parts) && cudnn.create(GRAPH, &parts[WHOLE]) == 0 &&
           set_descriptor(parts[WHOLE], GRAPH_OPERATIONS, parts[OPERATION]) && cudnn.finalize(parts[WHOLE]) == 0;
}

static void destroy(descriptor *each, size_t count)
{
    for (size_t i = count; i-- > 0;)
        if (each[i])
            cudnn.destroy(each[i]);
}

/* ---- what cuDNN leaves to cuBLAS ---- */

/* Products of matrices are the first choice of cuDNN for convolutions of one pixel. It asks cuBLAS whether it can run
 * them, which says no without a GPU, and goes on to the next choice. Only its log tells that: a message for all configs
 * that it rejected, in lines that each end with a zero. */

static bool is_product_rejected;

static void read_message(int severity, void *data, const void *about, const char *line)
{
    (void)severity, (void)data, (void)about;
    if (!strstr(line, "engine_config_support_checks"))
        return;
    bool after_first = false;
    for (line += strlen(line) + 1; *line; line += strlen(line) + 1) {
        if (after_first) {
            is_product_rejected = strstr(line, "Reason: engine_iface->getStatus()");
            return;
        }
        after_first = strstr(line, "engineConfig") && strstr(line, "\"knobChoices\":{}");
        if (!after_first)
            return;
    }
}

static bool is_pixelwise(const mst_convolution *asked)
{
    if (asked->weight[1] != asked->input[1]) /* there are groups */
        return false;
    for (int i = 0; i < asked->spatial; i++)
        if (asked->weight[i + 2] != 1 || asked->stride[i] != 1 || asked->padding[i] != 0)
            return false;
    return true;
}

/* ---- configs and plans ---- */

/* Returns how many configs there are, at most `most`. Those are to be destroyed. */
static int64_t find_configs(descriptor graph, int mode, descriptor *configs, int64_t most)
{
    descriptor heuristics = NULL;
    int64_t made = 0, count = 0;
    if (cudnn.create(HEURISTICS, &heuristics) == 0 && set_descriptor(heuristics, HEURISTICS_GRAPH, graph) &&
        set_one(heuristics, HEURISTICS_CHOSEN_MODE, HEURISTICS_MODE, mode) &&
        set_descriptor(heuristics, HEURISTICS_DEVICE, device) && cudnn.finalize(heuristics) == 0 &&
        cudnn.get(heuristics, HEURISTICS_RESULTS, DESCRIPTOR, 0, &count, NULL) == 0) {
        for (most = count < most ? count : most; made < most; made++)
            if (cudnn.create(ENGINE_CONFIG, &configs[made]) != 0)
                break;
        count = 0;
        if (made && cudnn.get(heuristics, HEURISTICS_RESULTS, DESCRIPTOR, made, &count, configs) != 0)
            count = 0;
    }
    if (heuristics)
        cudnn.destroy(heuristics);
    destroy(configs + count, (size_t)(made - count));
    return count;
}

static bool begins_with_product(descriptor graph)
{
    descriptor first[1];
    is_product_rejected = false;
    if (cudnn.set_callback(INFORMATION, NULL, read_message) != 0)
        return false;
    destroy(first, (size_t)find_configs(graph, INSTANT, first, 1));
    cudnn.set_callback(0, NULL, NULL);
    return is_product_rejected;
}

/* Whether torch takes a plan with these notes. */
static bool is_taken(const mst_convolution *asked, const int *notes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == DOWN_CONVERT || (notes[i] == NOT_DETERMINISTIC && asked->flags & MST_DETERMINISTIC) ||
            (notes[i] == TENSOR_CORE && asked->type == MST_FLOAT32 && asked->flags & MST_NO_TF32))
            return false;
    return true;
}

/* Whether torch may run this config, and the number of its engine. */
static bool read_engine(const mst_convolution *asked, descriptor config, int64_t *index)
{
    descriptor engine = NULL;
    int notes[MOST_NOTES];
    int64_t count = 0, found = 0;
    bool is_read = cudnn.create(ENGINE, &engine) == 0 &&
                   cudnn.get(config, CONFIG_ENGINE, DESCRIPTOR, 1, &found, &engine) == 0 &&
                   cudnn.get(engine, ENGINE_INDEX, INT64, 1, &found, index) == 0 &&
                   cudnn.get(engine, ENGINE_NOTES, NUMERICAL_NOTE, MOST_NOTES, &count, notes) == 0;
    if (engine)
        cudnn.destroy(engine);
    return is_read && is_taken(asked, notes, count);
}

static bool make_plan(descriptor config, int64_t *bytes)
{
    descriptor plan = NULL;
    int64_t found = 0;
    bool is_made = cudnn.create(PLAN, &plan) == 0 && set_descriptor(plan, PLAN_CONFIG, config) &&
                   set_descriptor(plan, PLAN_DEVICE, device) && cudnn.finalize(plan) == 0 &&
                   cudnn.get(plan, PLAN_WORKSPACE, INT64, 1, &found, bytes) == 0;
    if (plan)
        cudnn.destroy(plan);
    return is_made;
}

/* Whether the config is of Hopper's kernels, and what its knobs say. */
static bool read_knobs(descriptor config, mst_knobs *knobs)
{
    descriptor each[MOST_KNOBS] = {0};
    int64_t made = 0, count = 0, found = 0;
    int64_t values[CLUSTER_COLUMNS + 1];
    for (int i = 0; i <= CLUSTER_COLUMNS; i++)
        values[i] = -1;
    while (made < MOST_KNOBS && cudnn.create(KNOB, &each[made]) == 0)
        made++;
    if (made && cudnn.get(config, CONFIG_KNOBS, DESCRIPTOR, made, &count, each) != 0)
        count = 0;
    for (int64_t i = 0; i < count && i < made; i++) {
        int kind = -1;
        int64_t value = -1;
        if (cudnn.get(each[i], KNOB_KIND, KNOB_TYPE, 1, &found, &kind) == 0 &&
            cudnn.get(each[i], KNOB_VALUE, INT64, 1, &found, &value) == 0 && kind >= 0 && kind <= CLUSTER_COLUMNS)
            values[kind] = value;
    }
    destroy(each, (size_t)made);
    *knobs = (mst_knobs){values[TILE_SIZE], values[TILE_DEPTH], values[WORKSPACE], values[CLUSTER_ROWS],
                         values[CLUSTER_COLUMNS]};
    return knobs->tile >= 0 && knobs->depth >= 0 && knobs->keeps_whole >= 0 && knobs->cluster_rows > 0 &&
           knobs->cluster_columns > 0;
}

/* The first config that torch takes and that has a plan. */
static bool find_plan(const mst_convolution *asked, descriptor graph, int mode, mst_plan *plan)
{
    descriptor configs[MOST_CONFIGS] = {0};
    int64_t count = find_configs(graph, mode, configs, MOST_CONFIGS), index = -1, bytes = 0;
    bool found = false;
    mst_knobs knobs;
    for (int64_t i = 0; i < count && !found; i++) {
        found = read_engine(asked, configs[i], &index) && make_plan(configs[i], &bytes);
        if (found && hopper && read_knobs(configs[i], &knobs))
            bytes = mst_bytes_on_hopper(asked, &knobs, bytes, hopper);
    }
    destroy(configs, (size_t)count);
    if (found)
        *plan = (mst_plan){MST_PLANNED, (int32_t)index, bytes};
    return found;
}

static bool is_convolution(const mst_convolution *asked)
{
    return asked->pass >= MST_FORWARD && asked->pass <= MST_OF_WEIGHT && asked->type >= MST_FLOAT32 &&
           asked->type <= MST_FLOAT64 && asked->spatial >= 2 && asked->spatial <= MST_MOST_SPATIAL;
}

mst_plan mst_cudnn_plan(const mst_convolution *asked)
{
    mst_plan plan = {MST_NO_ANSWER, -1, 0};
    descriptor parts[PARTS] = {0};
    if (is_convolution(asked) && make_graph(asked, parts)) {
        plan.result = MST_NO_PLAN;
        if (is_pixelwise(asked) && begins_with_product(parts[WHOLE]))
            plan.result = MST_PRODUCT;
        else if (!find_plan(asked, parts[WHOLE], INSTANT, &plan))
            find_plan(asked, parts[WHOLE], FALLBACK, &plan);
    }
    destroy(parts, PARTS);
    return plan;
}
