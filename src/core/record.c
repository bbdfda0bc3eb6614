/* record.c - the calls of one thread as intervals of node numbers, and the search. */
#include "internal.h"

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define PEEK(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define STORE(x, value) atomic_store_explicit(&(x), (value), memory_order_release)

int ms__table_open(ms_watch *watch, struct ms__table *table, uint32_t kept)
{
    uint32_t chunks = kept / MS__CHUNK;
    table->kept = kept;
    table->chunks = ms__alloc(watch, chunks * sizeof *table->chunks);
    if (!table->chunks)
        return MS_ENOMEM;
    for (uint32_t i = 0; i < chunks; i++)
        atomic_init(&table->chunks[i], NULL);
    STORE(table->unsure_from, UINT64_MAX);
    return MS_OK;
}

void ms__table_close(ms_watch *watch, struct ms__table *table)
{
    for (uint32_t i = 0; i < table->kept / MS__CHUNK; i++)
        ms__free(watch, PEEK(table->chunks[i]));
    ms__free(watch, table->chunks);
}

void ms__table_clear(struct ms__table *table)
{
    uint64_t count = PEEK(table->count);
    STORE(table->low, count);
    STORE(table->origin, count);
    STORE(table->unsure_below, 0);
    STORE(table->unsure_from, UINT64_MAX);
}

uint64_t ms__table_push(ms_watch *watch, struct ms__table *table, uint64_t in, uint64_t encloser, ms_path path)
{
    uint64_t index = PEEK(table->count);
    uint32_t chunk = (uint32_t)(index & (table->kept - 1)) / MS__CHUNK;
    if (MS__UNLIKELY(!PEEK(table->chunks[chunk]))) {
        struct ms__record *fresh = ms__alloc(watch, MS__CHUNK * sizeof *fresh);
        if (!fresh)
            return MS__NONE;
        STORE(table->chunks[chunk], fresh);
    }
    if (index - PEEK(table->low) >= table->kept)
        STORE(table->low, index - table->kept + 1);
    struct ms__record *record = ms__table_at(table, index);
    STORE(record->in, in);
    STORE(record->encloser, encloser);
    STORE(record->len, MS__OPEN);
    STORE(record->path, path);
    STORE(table->count, index + 1);
    return index;
}

void ms__table_end(struct ms__table *table, uint64_t index, uint64_t out)
{
    struct ms__record *record = ms__table_at(table, index);
    uint64_t in = PEEK(record->in);
    if (out == in && index + 1 == PEEK(table->count)) {
        STORE(table->count, index);
        return;
    }
    uint64_t len = out - in;
    STORE(record->len, len < MS__OPEN ? (uint32_t)len : MS__OPEN - 1);
}

/* The last record with in <= number, among [low, count); MS__NONE if there is none.
 * Backward walks the numbers down, so it is mostly the record found last or one just
 * before it: look there first. */
static uint64_t last_before(const struct ms__table *table, uint64_t number, uint64_t low, uint64_t count, uint64_t hint)
{
    uint64_t from = low, to = count; /* in[from - 1] <= number < in[to] */
    if (hint >= low && hint < count) {
        if (LOAD(ms__table_at(table, hint)->in) <= number) {
            if (hint + 1 == count || LOAD(ms__table_at(table, hint + 1)->in) > number)
                return hint;
            from = hint + 1;
        } else {
            to = hint;
            for (int step = 0; step < 4 && to > from; step++, to--)
                if (LOAD(ms__table_at(table, to - 1)->in) <= number)
                    return to - 1;
        }
    }
    while (from < to) {
        uint64_t middle = from + (to - from) / 2;
        if (LOAD(ms__table_at(table, middle)->in) <= number)
            from = middle + 1;
        else
            to = middle;
    }
    return from > low ? from - 1 : MS__NONE;
}

ms_path ms__table_find(struct ms__table *table, uint64_t number, uint64_t *hint)
{
    uint64_t low = LOAD(table->low), count = LOAD(table->count);
    bool forgot = low > LOAD(table->origin);
    if (number < LOAD(table->unsure_below) || number >= LOAD(table->unsure_from))
        return MS_UNKNOWN;
    if (low >= count)
        return forgot ? MS_UNKNOWN : MS_GLOBAL;
    uint64_t at = last_before(table, number, low, count, *hint);
    if (at == MS__NONE)
        return forgot ? MS_UNKNOWN : MS_GLOBAL;
    *hint = at;
    ms_path path;
    for (;;) {
        const struct ms__record *record = ms__table_at(table, at);
        uint32_t len = LOAD(record->len);
        if (len == MS__OPEN || number - LOAD(record->in) < len) {
            path = LOAD(record->path);
            break;
        }
        at = LOAD(record->encloser);
        if (at == MS__NONE) {
            path = MS_GLOBAL;
            break;
        }
        if (at < low)
            return MS_UNKNOWN;
    }
    /* The writer may have come round meanwhile; `at` is the lowest index read. */
    if (at != MS__NONE && at < LOAD(table->low))
        return MS_UNKNOWN;
    return *hint < LOAD(table->low) ? MS_UNKNOWN : path;
}
