/* settings.c - the defaults of each version of torch, and the text of PYTORCH_CUDA_ALLOC_CONF. */
#include "core/allocator/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ms_allocator_settings_default(ms_allocator_settings *settings, const char *torch_version)
{
    int major = 0, minor = 0;
    bool known = torch_version && sscanf(torch_version, "%d.%d", &major, &minor) == 2 && major >= 2;
    int version = known ? major * 1000 + minor : 9999;
    *settings = (ms_allocator_settings){
        .capacity = MS_UNLIMITED,
        .total_memory = MS_UNLIMITED,
        .ties = version <= 2011   ? MS_TIES_BY_ADDRESS
                : version == 2012 ? MS_TIES_BY_BLOCK
                                  : MS_TIES_BY_SEGMENT,
        .rounds_fraction = version >= 2013,
        .max_split_size = MS_UNLIMITED,
        .max_non_split_rounding = MS__LARGE_SEGMENT,
        .large_segment_size = MS__LARGE_SEGMENT,
        .memory_fraction = 1,
    };
    return known || !torch_version ? MS_OK : MS_EINVAL;
}

/* ---- the text: "key:value,key:[a:b,c:d],..."; white space is ignored ---- */
struct parser {
    const char *at;
    char *error;
    size_t room;
    char token[64];
};

static int fail(struct parser *parser, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (parser->room)
        vsnprintf(parser->error, parser->room, format, arguments);
    va_end(arguments);
    return MS_EINVAL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(struct parser *parser)
{
    while (is_space(*parser->at))
        parser->at++;
}

/* Read the next character if it is this one. */
static bool accept(struct parser *parser, char c)
{
    skip_space(parser);
    bool found = *parser->at == c;
    parser->at += found;
    return found;
}

/* Read a key or a value into parser->token. False if there is none, or it is too long. */
static bool read_token(struct parser *parser)
{
    size_t length = 0;
    skip_space(parser);
    for (; *parser->at && !strchr(",:[]", *parser->at); parser->at++) {
        if (is_space(*parser->at))
            continue;
        if (length + 1 >= sizeof parser->token)
            return false;
        parser->token[length++] = *parser->at;
    }
    parser->token[length] = '\0';
    return length > 0;
}

static bool read_number(struct parser *parser, double *number)
{
    char *end;
    if (!read_token(parser))
        return false;
    *number = strtod(parser->token, &end);
    return *end == '\0' && *number >= 0 && *number < 1e15;
}

static int read_megabytes(struct parser *parser, const char *key, double least, uint64_t *bytes)
{
    double number;
    if (!read_number(parser, &number) || number != (double)(uint64_t)number)
        return fail(parser, "%s needs a whole number of MiB", key);
    if (number <= least)
        return fail(parser, "%s must be above %.0f MiB, and is %.0f", key, least, number);
    *bytes = (uint64_t)number << 20;
    return MS_OK;
}

static int read_fraction(struct parser *parser, const char *key, bool with_one, double *fraction)
{
    double number;
    if (!read_number(parser, &number) || number <= 0 || number > 1 || (number == 1 && !with_one))
        return fail(parser, "%s must be above 0 and %s 1", key, with_one ? "at most" : "below");
    *fraction = number;
    return MS_OK;
}

static int read_bool(struct parser *parser, const char *key, bool *value)
{
    if (!read_token(parser) || (strcmp(parser->token, "True") != 0 && strcmp(parser->token, "False") != 0))
        return fail(parser, "%s must be True or False", key);
    *value = parser->token[0] == 'T';
    return MS_OK;
}

static int read_power_of_two(struct parser *parser, const char *what, uint32_t *value)
{
    double number = 0;
    if (!read_number(parser, &number) || number < 1 || number > 1 << 30 || number != (double)(uint32_t)number ||
        ((uint32_t)number & ((uint32_t)number - 1)))
        return fail(parser, "roundup_power2_divisions: %s must be a power of two", what);
    *value = (uint32_t)number;
    return MS_OK;
}

/* One number for all sizes, or [256:1,512:2,>:4]: an interval's size in MiB and its divisions. As in torch, the first
 * interval's divisions are those of all smaller sizes too, and '>' also sets the interval before it. */
static int read_divisions(struct parser *parser, uint32_t *divisions)
{
    uint32_t value = 0, interval = 1;
    if (!accept(parser, '[')) {
        int error = read_power_of_two(parser, "the number of divisions", &value);
        for (int i = 0; !error && i < MS_ROUNDUP_INTERVALS; i++)
            divisions[i] = value;
        return error;
    }
    unsigned last = 0;
    for (bool first = true; first || accept(parser, ','); first = false) {
        skip_space(parser);
        bool rest = *parser->at == '>';
        int error = rest ? (read_token(parser), MS_OK) : read_power_of_two(parser, "an interval", &interval);
        if (!error && !accept(parser, ':'))
            error = fail(parser, "roundup_power2_divisions: each interval needs a ':' and a number of divisions");
        if (!error)
            error = read_power_of_two(parser, "the number of divisions", &value);
        if (error)
            return error;
        unsigned at = rest ? last : 31u - (unsigned)__builtin_clz(interval);
        at = at < MS_ROUNDUP_INTERVALS ? at : MS_ROUNDUP_INTERVALS - 1;
        for (unsigned i = rest ? at : first ? 0 : at; i < (rest ? MS_ROUNDUP_INTERVALS : at + 1); i++)
            divisions[i] = value;
        last = at;
    }
    return accept(parser, ']') ? MS_OK : fail(parser, "roundup_power2_divisions: the list needs a ']' at its end");
}

/* Keys that change how fast memory is taken, or host memory, but not how much of the GPU's is reserved. */
static bool has_no_effect(const char *key)
{
    static const char *const keys[] = {
        "release_lock_on_cudamalloc",     "release_lock_on_hipmalloc",           "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",   "pinned_num_register_threads",         "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb", "pinned_max_register_threads",         "graph_capture_record_stream_reuse",
        "expandable_segments_reserve",    "expandable_segments_reserve_by_class"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

static void skip_value(struct parser *parser)
{
    int depth = 0;
    for (; *parser->at && (depth > 0 || *parser->at != ','); parser->at++)
        depth += (*parser->at == '[') - (*parser->at == ']');
}

static int read_pair(struct parser *parser, ms_allocator_settings *settings)
{
    char key[sizeof parser->token];
    if (!read_token(parser))
        return fail(parser, "a key is missing before '%.20s'", parser->at);
    memcpy(key, parser->token, sizeof key);
    if (!accept(parser, ':'))
        return fail(parser, "%s needs a ':' and a value", key);
    if (strcmp(key, "max_split_size_mb") == 0)
        return read_megabytes(parser, key, (double)(MS__LARGE_SEGMENT >> 20), &settings->max_split_size);
    if (strcmp(key, "max_non_split_rounding_mb") == 0)
        return read_megabytes(parser, key, (double)(MS__LARGE_SEGMENT >> 20), &settings->max_non_split_rounding);
    if (strcmp(key, "large_segment_size_mb") == 0)
        return read_megabytes(parser, key, (double)(MS__MIN_LARGE_SEGMENT >> 20), &settings->large_segment_size);
    if (strcmp(key, "garbage_collection_threshold") == 0)
        return read_fraction(parser, key, false, &settings->garbage_collection_threshold);
    if (strcmp(key, "per_process_memory_fraction") == 0)
        return read_fraction(parser, key, true, &settings->memory_fraction);
    if (strcmp(key, "expandable_segments") == 0)
        return read_bool(parser, key, &settings->expandable_segments);
    if (strcmp(key, "roundup_power2_divisions") == 0)
        return read_divisions(parser, settings->roundup_divisions);
    if (strcmp(key, "backend") == 0) {
        if (read_token(parser) && strcmp(parser->token, "native") == 0)
            return MS_OK;
        return fail(parser, "the backend '%s' is not supported: only 'native' is", parser->token);
    }
    if (!has_no_effect(key))
        return fail(parser, "'%s' is not a key that is known", key);
    skip_value(parser);
    return MS_OK;
}

int ms_allocator_settings_apply(ms_allocator_settings *settings, const char *text, char *error, size_t room)
{
    struct parser parser = {.at = text, .error = error, .room = room};
    ms_allocator_settings changed = *settings;
    skip_space(&parser);
    while (*parser.at) {
        int failed = read_pair(&parser, &changed);
        if (failed)
            return failed;
        skip_space(&parser);
        if (*parser.at && !accept(&parser, ','))
            return fail(&parser, "a ',' is missing before '%.20s'", parser.at);
        skip_space(&parser);
    }
    *settings = changed;
    return MS_OK;
}
