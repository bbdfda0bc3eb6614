/* pack_read.c - decodes a pack. */
#include "pack_read.h"

#include <stdlib.h>
#include <string.h>

/* ---- columns ---- */
static bool number(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; *at < end && shift < 70; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool read_column(struct pack_column *column, const uint8_t *at, const uint8_t *end)
{
    column->at = malloc(((size_t)(end - at) + 1) * sizeof *column->at);
    if (!column->at)
        abort();
    while (at < end)
        if (!number(&at, end, &column->at[column->count++]))
            return false;
    return true;
}

static void sum_up(struct pack_column *column, size_t width)
{
    for (size_t i = width; i < column->count; i += width)
        column->at[i] += column->at[i - width];
}

/* Replace the encoded templates by their numbers. */
static void number_templates(struct pack_column *templates)
{
    uint64_t next = 0;
    for (size_t i = 0; i < templates->count; i++)
        templates->at[i] = templates->at[i] ? next - templates->at[i] : next++;
}

/* How many numbers a row of the column has; the first one is delta-encoded. 0: the column is not delta-encoded. */
static const size_t widths[MS_PACK_COLUMNS] = {
    [MS_PACK_TIME] = 1,    [MS_PACK_JUMP] = 2, [MS_PACK_BEGIN] = 1,    [MS_PACK_PREVIOUS] = 2, [MS_PACK_AGE] = 3,
    [MS_PACK_RUNNING] = 1, [MS_PACK_STEP] = 2, [MS_PACK_RESERVED] = 3, [MS_PACK_OOM] = 7};

static bool rows_grow(const struct pack_column *column, size_t width, uint64_t below)
{
    for (size_t i = 0; i < column->count; i += width)
        if (column->at[i] >= below || (i && column->at[i] < column->at[i - width]))
            return false;
    return true;
}

/* ---- checks ---- */
static const char *check_counts(const struct pack *pack)
{
    const struct pack_column *c = pack->columns;
    if (c[MS_PACK_TIME].count != pack->raw.ticks || !pack->raw.ticks)
        return "every tick has a time";
    for (int i = MS_PACK_BEGIN; i <= MS_PACK_TEMPLATE; i++)
        if (c[i].count != pack->raw.lifetimes)
            return "every lifetime has a begin, a duration and a template";
    for (int i = MS_PACK_BYTES; i <= MS_PACK_PATH; i++)
        if (c[i].count != pack->raw.templates)
            return "every template has bytes, category, device and path";
    if (c[MS_PACK_STACK].count && c[MS_PACK_STACK].count != pack->raw.templates)
        return "every template has a stack, or none has";
    if (c[MS_PACK_RUNNING].count != c[MS_PACK_RUNNING_PHASE].count ||
        c[MS_PACK_RUNNING].count != c[MS_PACK_RUNNING_PATH].count)
        return "whatever runs has a phase and a path";
    if (!c[MS_PACK_RUNNING].count || !c[MS_PACK_JUMP].count || !c[MS_PACK_STEP].count)
        return "tick 0 has a moment, a step and something that runs";
    return NULL;
}

static const char *check_lifetimes(const struct pack *pack)
{
    const struct pack_column *c = pack->columns;
    for (size_t i = 0; i < pack->raw.lifetimes; i++) {
        if (c[MS_PACK_BEGIN].at[i] >= pack->raw.ticks)
            return "a lifetime begins at a tick";
        if (c[MS_PACK_BEGIN].at[i] + c[MS_PACK_DURATION].at[i] >= pack->raw.ticks && c[MS_PACK_DURATION].at[i])
            return "a lifetime ends at a tick";
        if (c[MS_PACK_TEMPLATE].at[i] >= pack->raw.templates)
            return "a lifetime has a template";
    }
    for (size_t i = 0; i < pack->raw.templates; i++)
        if ((c[MS_PACK_ATTRIBUTES].at[i] & 7) >= MS_CATEGORY_COUNT ||
            (c[MS_PACK_ATTRIBUTES].at[i] >> 4 & 15) >= MS_PHASE_COUNT ||
            c[MS_PACK_ATTRIBUTES].at[i] >> 8 >= MS_KIND_COUNT || c[MS_PACK_DEVICE].at[i] >= MS_MAX_DEVICES)
            return "a template has a category, a phase, a kind and a device";
    for (size_t i = 0; i < c[MS_PACK_PREVIOUS].count; i += 2) {
        uint64_t before = c[MS_PACK_PREVIOUS].at[i] - c[MS_PACK_PREVIOUS].at[i + 1];
        if (before >= c[MS_PACK_PREVIOUS].at[i])
            return "a previous lifetime comes before";
        if (c[MS_PACK_BEGIN].at[before] + c[MS_PACK_DURATION].at[before] !=
            c[MS_PACK_BEGIN].at[c[MS_PACK_PREVIOUS].at[i]])
            return "a previous lifetime ends where the next one begins";
    }
    return NULL;
}

static bool is_listed(const ms_pack *raw, uint64_t stack)
{
    for (uint32_t i = 0; i < raw->stack_count; i++)
        if (raw->stacks[i] == stack)
            return true;
    return false;
}

static const char *check_stacks(const struct pack *pack)
{
    const struct pack_column *c = &pack->columns[MS_PACK_STACK];
    bool known = false;
    for (size_t i = 0; i < c->count; i++) {
        known = known || c->at[i];
        if (c->at[i] && !is_listed(&pack->raw, c->at[i]))
            return "every stack is listed";
    }
    if (known != (c->count > 0) || known != (pack->raw.stack_count > 0))
        return "there are no stacks where none is known";
    for (uint32_t i = 0; i < pack->raw.stack_count; i++) {
        size_t at = 0;
        while (at < c->count && c->at[at] != pack->raw.stacks[i])
            at++;
        if (at == c->count || (i && pack->raw.stacks[i] <= pack->raw.stacks[i - 1]))
            return "each listed stack made blocks, and is listed once";
    }
    return NULL;
}

const char *pack_read(struct pack *pack, ms_pack raw)
{
    *pack = (struct pack){.raw = raw};
    const uint8_t *at = raw.bytes, *end = raw.bytes + raw.size;
    for (int i = 0; i < MS_PACK_COLUMNS; i++) {
        uint64_t size;
        if (!number(&at, end, &size) || size > (uint64_t)(end - at) || !read_column(&pack->columns[i], at, at + size))
            return "a column is as long as it says";
        at += size;
        if (!widths[i])
            continue;
        if (pack->columns[i].count % widths[i])
            return "rows are whole";
        sum_up(&pack->columns[i], widths[i]);
    }
    if (at != end)
        return "nothing comes after the columns";
    number_templates(&pack->columns[MS_PACK_TEMPLATE]);
    const char *wrong = check_counts(pack);
    for (int i = 0; i < MS_PACK_COLUMNS && !wrong; i++) {
        bool of_lifetime = i == MS_PACK_PREVIOUS || i == MS_PACK_AGE;
        uint64_t below = i == MS_PACK_TIME ? UINT64_C(1) << 53 : of_lifetime ? raw.lifetimes : raw.ticks;
        if (widths[i] && !rows_grow(&pack->columns[i], widths[i], below))
            wrong = "what is on grows, and is there";
    }
    wrong = wrong ? wrong : check_lifetimes(pack);
    return wrong ? wrong : check_stacks(pack);
}

void pack_free(struct pack *pack)
{
    for (int i = 0; i < MS_PACK_COLUMNS; i++)
        free(pack->columns[i].at);
}

/* ---- answers ---- */

/* The index in the column of the row that holds at the tick; -1: none does. */
static ptrdiff_t row_at(const struct pack *pack, ms_pack_column column, uint64_t tick)
{
    const struct pack_column *c = &pack->columns[column];
    ptrdiff_t found = -1;
    for (size_t i = 0; i < c->count && c->at[i] <= tick; i += widths[column])
        found = (ptrdiff_t)i;
    return found;
}

uint64_t pack_moment(const struct pack *pack, uint64_t tick)
{
    const uint64_t *row = &pack->columns[MS_PACK_JUMP].at[row_at(pack, MS_PACK_JUMP, tick)];
    return row[1] + (tick - row[0]);
}

uint64_t pack_tick(const struct pack *pack, uint64_t moment)
{
    uint64_t found = 0;
    for (uint64_t tick = 0; tick < pack->raw.ticks; tick++)
        if (pack_moment(pack, tick) <= moment)
            found = tick;
    return found;
}

uint64_t pack_time(const struct pack *pack, uint64_t tick)
{
    return pack->columns[MS_PACK_TIME].at[tick];
}

uint64_t pack_step(const struct pack *pack, uint64_t tick)
{
    return pack->columns[MS_PACK_STEP].at[row_at(pack, MS_PACK_STEP, tick) + 1];
}

uint64_t pack_reserved(const struct pack *pack, uint64_t tick, uint32_t device)
{
    const struct pack_column *c = &pack->columns[MS_PACK_RESERVED];
    uint64_t found = 0;
    for (size_t i = 0; i < c->count && c->at[i] <= tick; i += 3)
        if (c->at[i + 1] == device)
            found = c->at[i + 2];
    return found;
}

void pack_running(const struct pack *pack, uint64_t tick, uint64_t *phase, uint64_t *path)
{
    ptrdiff_t row = row_at(pack, MS_PACK_RUNNING, tick);
    *phase = pack->columns[MS_PACK_RUNNING_PHASE].at[row];
    *path = pack->columns[MS_PACK_RUNNING_PATH].at[row];
}

/* The row of a lifetime; NULL: the column has none for it. */
static const uint64_t *row_of(const struct pack *pack, ms_pack_column column, size_t lifetime)
{
    const struct pack_column *c = &pack->columns[column];
    for (size_t i = 0; i < c->count; i += widths[column])
        if (c->at[i] == lifetime)
            return &c->at[i];
    return NULL;
}

static void set_added(const struct pack *pack, size_t lifetime, ms_captured_block *block)
{
    for (const uint64_t *row; (row = row_of(pack, MS_PACK_PREVIOUS, lifetime)) != NULL;)
        lifetime -= row[1];
    const uint64_t *age = row_of(pack, MS_PACK_AGE, lifetime);
    uint64_t tick = pack->columns[MS_PACK_BEGIN].at[lifetime];
    block->step = pack_step(pack, tick) - (age ? age[1] : 0);
    block->made_at = pack_time(pack, tick) - (age ? age[2] : 0);
}

bool pack_block(const struct pack *pack, uint64_t tick, size_t *at, ms_captured_block *block)
{
    const struct pack_column *c = pack->columns;
    for (; *at < pack->raw.lifetimes; (*at)++) {
        uint64_t begin = c[MS_PACK_BEGIN].at[*at], duration = c[MS_PACK_DURATION].at[*at],
                 template = c[MS_PACK_TEMPLATE].at[*at];
        if (begin > tick || (duration && tick >= begin + duration))
            continue;
        uint64_t attributes = c[MS_PACK_ATTRIBUTES].at[template];
        memset(block, 0, sizeof *block);
        block->bytes = c[MS_PACK_BYTES].at[template];
        block->device = (uint32_t)c[MS_PACK_DEVICE].at[template];
        block->path = (ms_path)c[MS_PACK_PATH].at[template];
        block->stack = c[MS_PACK_STACK].count ? (ms_stack)c[MS_PACK_STACK].at[template] : (ms_stack)MS_STACK_NONE;
        block->category = attributes & 7;
        block->outside = attributes >> 3 & 1;
        block->phase = (uint8_t)(attributes >> 4 & 15);
        block->kind = (uint8_t)(attributes >> 8);
        set_added(pack, (*at)++, block);
        return true;
    }
    return false;
}
