/* columns.c - a stretch of a capture in columns: stays that are alike are one kind, and numbers are small. */
#include "core/capture/pack/pack.h"

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

bool ms__column_on(struct ms__packer *packer, ms_pack_column column, uint64_t value)
{
    uint64_t latest = packer->columns[column].latest;
    packer->columns[column].latest = value;
    return ms__column_put(packer, column, value - latest);
}

/* ---- kinds ---- */
struct kind {
    uint64_t bytes;
    ms_path path;
    uint8_t what, device;
};

/* Open addressing, as in map.h, but by all that makes a kind. */
struct kinds {
    struct kind *all;
    size_t count, room;
    uint32_t *slots; /* index + 1; 0: empty */
    uint32_t bits;
};

static bool is_same(const struct kind *a, const struct kind *b)
{
    return a->bytes == b->bytes && a->path == b->path && a->what == b->what && a->device == b->device;
}

static uint32_t seek(const struct kinds *kinds, const struct kind *kind, uint64_t seed)
{
    uint64_t hash = (kind->bytes ^ seed) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 32 ^ ((uint64_t)kind->path << 16 | (uint64_t)kind->what << 8 | kind->device);
    hash = (hash ^ seed) * UINT64_C(0xD6E8FEB86659FD93);
    uint32_t at = (uint32_t)(hash >> (64 - kinds->bits)), mask = (1u << kinds->bits) - 1;
    while (kinds->slots[at] && !is_same(&kinds->all[kinds->slots[at] - 1], kind))
        at = (at + 1) & mask;
    return at;
}

/* Room for one more. */
static bool grow_kinds(const ms_reader *reader, struct kinds *kinds)
{
    struct kind *all = ms__reader_grow(reader, kinds->all, &kinds->room, kinds->count + 1, sizeof *all);
    if (!all)
        return false;
    kinds->all = all;
    if (kinds->bits && kinds->count < (UINT64_C(1) << kinds->bits) / 2)
        return true;
    struct kinds grown = *kinds;
    grown.bits = kinds->bits ? kinds->bits + 1 : 8;
    size_t bytes = sizeof *grown.slots << grown.bits;
    grown.slots = grown.bits < 32 ? ms__reader_alloc(reader, bytes) : NULL;
    if (!grown.slots)
        return false;
    memset(grown.slots, 0, bytes);
    for (size_t i = 0; i < kinds->count; i++)
        grown.slots[seek(&grown, &kinds->all[i], reader->seed)] = (uint32_t)i + 1;
    ms__reader_free(reader, kinds->slots);
    *kinds = grown;
    return true;
}

/* How many kinds before the next new one the stay's kind is; 0: it is that one. False when memory runs out. */
static bool find_kind(const ms_reader *reader, struct kinds *kinds, const struct ms__stay *stay, size_t *before)
{
    struct kind kind = {.bytes = stay->bytes, .path = stay->path, .what = stay->what, .device = stay->device};
    if (!grow_kinds(reader, kinds))
        return false;
    uint32_t *slot = &kinds->slots[seek(kinds, &kind, reader->seed)];
    *before = *slot ? kinds->count + 1 - *slot : 0;
    if (!*slot) {
        kinds->all[kinds->count++] = kind;
        *slot = (uint32_t)kinds->count;
    }
    return true;
}

static bool put_kinds(struct ms__packer *packer, const struct kinds *kinds)
{
    bool done = true;
    for (size_t i = 0; i < kinds->count && done; i++)
        done = ms__column_put(packer, MS_PACK_BYTES, kinds->all[i].bytes) &&
               ms__column_put(packer, MS_PACK_WHAT, kinds->all[i].what) &&
               ms__column_put(packer, MS_PACK_DEVICE, kinds->all[i].device) &&
               ms__column_put(packer, MS_PACK_PATH, kinds->all[i].path);
    return done;
}

/* ---- stays ---- */
static bool put_birth(struct ms__packer *packer, size_t index)
{
    const struct ms__stay *stay = &packer->stays[index];
    bool done = true;
    if (stay->again)
        done = ms__column_on(packer, MS_PACK_AGAIN, index) && ms__column_put(packer, MS_PACK_AGAIN, stay->again);
    if (stay->old)
        done = ms__column_on(packer, MS_PACK_OLD, index) && ms__column_put(packer, MS_PACK_OLD, stay->steps_ago) &&
               ms__column_put(packer, MS_PACK_OLD, stay->ago);
    return done;
}

static bool put_stays(struct ms__packer *packer, struct kinds *kinds)
{
    for (size_t i = 0; i < packer->count; i++) {
        const struct ms__stay *stay = &packer->stays[i];
        size_t kind;
        if (!find_kind(packer->reader, kinds, stay, &kind) || !ms__column_on(packer, MS_PACK_BEGIN, stay->begin) ||
            !ms__column_put(packer, MS_PACK_LASTED, stay->lasted) || !ms__column_put(packer, MS_PACK_KIND, kind) ||
            !put_birth(packer, i))
            return false;
    }
    return put_kinds(packer, kinds);
}

/* ---- all of it ---- */
static int join(struct ms__packer *packer, ms_pack *pack)
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

static int fill(struct ms__packer *packer, ms_pack *pack)
{
    struct kinds kinds = {0};
    int error = put_stays(packer, &kinds) ? MS_OK : MS_ENOMEM;
    *pack = (ms_pack){.ticks = packer->tick + 1, .stays = (uint32_t)packer->count, .kinds = (uint32_t)kinds.count};
    ms__reader_free(packer->reader, kinds.all);
    ms__reader_free(packer->reader, kinds.slots);
    return error ? error : join(packer, pack);
}

static void close_packer(struct ms__packer *packer)
{
    ms_cursor_close(packer->cursor);
    ms__reader_free(packer->reader, packer->stays);
    ms__reader_free(packer->reader, packer->open.slots);
    ms__reader_free(packer->reader, packer->later.bytes);
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
        error = ms__packer_walk(packer, last);
    if (!error)
        error = fill(packer, pack);
    close_packer(packer);
    return error;
}

void ms_pack_free(const ms_reader *reader, ms_pack *pack)
{
    ms__reader_free(reader, pack->bytes);
    *pack = (ms_pack){0};
}
