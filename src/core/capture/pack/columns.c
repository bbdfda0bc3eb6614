/* columns.c - writes a pack: lifetimes that are alike share a template, and most numbers are small. */
#include "core/capture/pack/pack.h"

#include <stdlib.h>

/* ---- columns ---- */
bool ms__column_put(struct ms__packer *packer, ms_pack_column column, uint64_t value)
{
    struct ms__column *to = &packer->columns[column];
    uint8_t *bytes = ms__reader_grow(packer->reader, to->bytes, &to->room, to->count + MS__VARINT_MAX, 1);
    if (!bytes)
        return false;
    to->bytes = bytes;
    to->count = (size_t)(ms__put_varint(to->bytes + to->count, value) - to->bytes);
    return true;
}

bool ms__column_put_delta(struct ms__packer *packer, ms_pack_column column, uint64_t value)
{
    uint64_t latest = packer->columns[column].latest;
    packer->columns[column].latest = value;
    return ms__column_put(packer, column, value - latest);
}

/* ---- templates ---- */
struct template
{
    uint64_t bytes;
    ms_path path;
    ms_stack stack;
    uint8_t attributes, device, kind;
};

/* A set of templates, with open addressing as in slot_map.h; the key is the whole template. */
struct templates {
    struct template *all;
    size_t count, room;
    uint32_t *buckets; /* index + 1; 0: empty */
    uint32_t bits;
};

static bool is_same_template(const struct template *a, const struct template *b)
{
    return a->bytes == b->bytes && a->path == b->path && a->attributes == b->attributes && a->device == b->device &&
           a->kind == b->kind && a->stack == b->stack;
}

static uint32_t find_template_bucket(const struct templates *templates, const struct template *template, uint64_t seed)
{
    uint64_t hash = (template->bytes ^ (uint64_t) template->stack << 40 ^ seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 32 ^ ((uint64_t) template->kind << 48 | (uint64_t) template->path << 16 |
                          (uint64_t) template->attributes << 8 | template->device);
    hash = (hash ^ seed) * UINT64_C(0xD6E8FEB86659FD93);
    uint32_t at = (uint32_t)(hash >> (64 - templates->bits)), mask = (1u << templates->bits) - 1;
    while (templates->buckets[at] && !is_same_template(&templates->all[templates->buckets[at] - 1], template))
        at = (at + 1) & mask;
    return at;
}

/* Make room for one more template. False: out of memory. */
static bool reserve_template(const ms_reader *reader, struct templates *templates)
{
    struct template *all = ms__reader_grow(reader, templates->all, &templates->room, templates->count + 1, sizeof *all);
    if (!all)
        return false;
    templates->all = all;
    if (templates->bits && templates->count < (UINT64_C(1) << templates->bits) / 2)
        return true;
    struct templates grown = *templates;
    grown.bits = templates->bits ? templates->bits + 1 : 8;
    size_t bytes = sizeof *grown.buckets << grown.bits;
    grown.buckets = grown.bits < 32 ? ms__reader_alloc(reader, bytes) : NULL;
    if (!grown.buckets)
        return false;
    memset(grown.buckets, 0, bytes);
    for (size_t i = 0; i < templates->count; i++)
        grown.buckets[find_template_bucket(&grown, &templates->all[i], reader->seed)] = (uint32_t)i + 1;
    ms__reader_free(reader, templates->buckets);
    *templates = grown;
    return true;
}

/* Find the template of the lifetime, or add it. `*before`: it is so many templates before the next new one; 0: it was
 * added. False: out of memory. */
static bool find_template(const ms_reader *reader, struct templates *templates, const struct ms__lifetime *lifetime,
                          size_t *before)
{
    struct template template = {.bytes = lifetime->bytes,
                                .path = lifetime->path,
                                .stack = lifetime->stack,
                                .attributes = lifetime->attributes,
                                .device = lifetime->device,
                                .kind = ms__kind_in(lifetime->kind, lifetime->attributes & MS__ATTRIBUTES_CATEGORY)};
    if (!reserve_template(reader, templates))
        return false;
    uint32_t *bucket = &templates->buckets[find_template_bucket(templates, &template, reader->seed)];
    *before = *bucket ? templates->count + 1 - *bucket : 0;
    if (!*bucket) {
        templates->all[templates->count++] = template;
        *bucket = (uint32_t)templates->count;
    }
    return true;
}

static bool put_templates(struct ms__packer *packer, const struct templates *templates)
{
    bool done = true;
    for (size_t i = 0; i < templates->count && done; i++)
        done = ms__column_put(packer, MS_PACK_BYTES, templates->all[i].bytes) &&
               ms__column_put(packer, MS_PACK_ATTRIBUTES,
                              templates->all[i].attributes | (uint64_t)templates->all[i].kind << 8) &&
               ms__column_put(packer, MS_PACK_DEVICE, templates->all[i].device) &&
               ms__column_put(packer, MS_PACK_PATH, templates->all[i].path);
    return done;
}

/* ---- the stacks that the templates have ---- */
static int compare_stacks(const void *left, const void *right)
{
    ms_stack a = *(const ms_stack *)left, b = *(const ms_stack *)right;
    return (a > b) - (a < b);
}

/* Put each template's stack, unless none is known, and list those that there are in the pack. False: out of memory. */
static bool put_stacks(struct ms__packer *packer, const struct templates *templates, ms_pack *pack)
{
    size_t known = 0;
    for (size_t i = 0; i < templates->count; i++)
        known += templates->all[i].stack != MS_STACK_NONE;
    if (!known)
        return true;
    pack->stacks = ms__reader_alloc(packer->reader, known * sizeof *pack->stacks);
    if (!pack->stacks)
        return false;
    bool done = true;
    for (size_t i = 0, at = 0; i < templates->count && done; i++) {
        done = ms__column_put(packer, MS_PACK_STACK, templates->all[i].stack);
        if (templates->all[i].stack != MS_STACK_NONE)
            pack->stacks[at++] = templates->all[i].stack;
    }
    qsort(pack->stacks, known, sizeof *pack->stacks, compare_stacks);
    for (size_t i = 0; i < known; i++)
        if (!i || pack->stacks[i] != pack->stacks[pack->stack_count - 1])
            pack->stacks[pack->stack_count++] = pack->stacks[i];
    return done;
}

/* ---- lifetimes ---- */
static bool put_history(struct ms__packer *packer, size_t index)
{
    const struct ms__lifetime *lifetime = &packer->lifetimes[index];
    bool done = true;
    if (lifetime->previous)
        done = ms__column_put_delta(packer, MS_PACK_PREVIOUS, index) &&
               ms__column_put(packer, MS_PACK_PREVIOUS, lifetime->previous);
    if (lifetime->is_older)
        done = ms__column_put_delta(packer, MS_PACK_AGE, index) &&
               ms__column_put(packer, MS_PACK_AGE, lifetime->steps_ago) &&
               ms__column_put(packer, MS_PACK_AGE, lifetime->micros_ago);
    return done;
}

static bool put_lifetimes(struct ms__packer *packer, struct templates *templates)
{
    for (size_t i = 0; i < packer->count; i++) {
        const struct ms__lifetime *lifetime = &packer->lifetimes[i];
        size_t template;
        if (!find_template(packer->reader, templates, lifetime, &template) ||
            !ms__column_put_delta(packer, MS_PACK_BEGIN, lifetime->begin) ||
            !ms__column_put(packer, MS_PACK_DURATION, lifetime->duration) ||
            !ms__column_put(packer, MS_PACK_TEMPLATE, template) || !put_history(packer, i))
            return false;
    }
    return put_templates(packer, templates);
}

/* ---- the whole pack ---- */
static int join_columns(struct ms__packer *packer, ms_pack *pack)
{
    for (int i = 0; i < MS_PACK_COLUMNS; i++)
        pack->size += ms__varint_size(packer->columns[i].count) + packer->columns[i].count;
    uint8_t *at = pack->bytes = ms__reader_alloc(packer->reader, pack->size);
    for (int i = 0; at && i < MS_PACK_COLUMNS; i++) {
        const struct ms__column *column = &packer->columns[i];
        at = ms__put_varint(at, column->count);
        if (column->count)
            memcpy(at, column->bytes, column->count);
        at += column->count;
    }
    return at ? MS_OK : MS_ENOMEM;
}

static int fill_pack(struct ms__packer *packer, ms_pack *pack)
{
    struct templates templates = {0};
    *pack = (ms_pack){.ticks = packer->tick + 1, .lifetimes = (uint32_t)packer->count};
    bool done = put_lifetimes(packer, &templates) && put_stacks(packer, &templates, pack);
    pack->templates = (uint32_t)templates.count;
    ms__reader_free(packer->reader, templates.all);
    ms__reader_free(packer->reader, templates.buckets);
    int error = done ? join_columns(packer, pack) : MS_ENOMEM;
    if (error)
        ms_pack_free(packer->reader, pack);
    return error;
}

static void close_packer(struct ms__packer *packer)
{
    ms_cursor_close(packer->cursor);
    ms__reader_free(packer->reader, packer->lifetimes);
    ms__reader_free(packer->reader, packer->open.buckets);
    ms__reader_free(packer->reader, packer->claims_buffer.bytes);
    for (int i = 0; i < MS_PACK_COLUMNS; i++)
        ms__reader_free(packer->reader, packer->columns[i].bytes);
    ms__reader_free(packer->reader, packer);
}

int ms_reader_pack(ms_reader *reader, uint64_t first, uint64_t last, ms_pack *pack)
{
    struct ms__packer *packer = ms__reader_alloc(reader, sizeof *packer);
    if (!packer)
        return MS_ENOMEM;
    *packer = (struct ms__packer){.reader = reader, .open = {.seed = reader->seed}};
    int error = ms_cursor_open(reader, &packer->cursor);
    if (!error)
        error = ms_cursor_seek(packer->cursor, first);
    if (!error)
        error = ms__packer_collect(packer, last);
    if (!error)
        error = fill_pack(packer, pack);
    close_packer(packer);
    return error;
}

void ms_pack_free(const ms_reader *reader, ms_pack *pack)
{
    ms__reader_free(reader, pack->bytes);
    ms__reader_free(reader, pack->stacks);
    *pack = (ms_pack){0};
}
