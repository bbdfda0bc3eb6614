/* ledger.c - a ledger, and what happens to blocks. */
#include "core/ledger/block_table.h"
#include "core/ledger/peaks.h"

#include <string.h>

const char *ms_category_name(ms_category category)
{
    switch (category) {
#define X(name, text) \
    case MS_##name:   \
        return text;
        MS_CATEGORIES(X)
#undef X
    default:
        return "no such category";
    }
}

/* ---- opening, attaching, closing ---- */

/* A closed ledger is kept for the next: a thread may still hold its address. */
ms_ledger *ms_ledger_open(ms_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    ms_ledger *ledger = watch->closed_ledgers;
    if (ledger) {
        watch->closed_ledgers = ledger->next;
    } else if ((ledger = ms__alloc(watch, sizeof *ledger))) {
        memset(ledger, 0, sizeof *ledger);
        ledger->watch = watch;
    } else {
        ms__count_lost(watch);
    }
    pthread_mutex_unlock(&watch->lock);
    return ledger;
}

/* With watch->lock held. */
static void detach(ms_ledger *ledger)
{
    if (!MS__PEEK(ledger->attached))
        return;
    MS__STORE(ledger->watch->ledger, NULL);
    ms__lock(&ledger->lock);
    MS__STORE(ledger->attached, false);
    ms__seats_leave(ledger);
    ms__unlock(&ledger->lock);
}

void ms_ledger_close(ms_ledger *ledger)
{
    if (!ledger)
        return;
    ms_watch *watch = ledger->watch;
    pthread_mutex_lock(&watch->lock);
    detach(ledger);
    ms__lock(&ledger->lock);
    ms__viewers_close(ledger);
    ms__stats_close(ledger);
    ms__cells_close(ledger);
    memset(ledger->outside, 0, sizeof ledger->outside);
    memset(ledger->reserved, 0, sizeof ledger->reserved);
    ms__blocks_close(watch, &ledger->blocks);
    ledger->device_count = 0;
    ledger->time = ledger->step = ledger->replaced = 0;
    ledger->steps_expected = ledger->step_left = false;
    atomic_store(&ledger->lost, 0);
    ms__unlock(&ledger->lock);
    ledger->next = watch->closed_ledgers;
    watch->closed_ledgers = ledger;
    pthread_mutex_unlock(&watch->lock);
}

void ms__ledgers_free(ms_watch *watch)
{
    while (watch->closed_ledgers) {
        ms_ledger *ledger = watch->closed_ledgers;
        watch->closed_ledgers = ledger->next;
        ms__free(watch, ledger);
    }
}

void ms__ledger_lock(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
}

void ms__ledger_unlock(ms_ledger *ledger)
{
    ms__unlock(&ledger->lock);
}

int ms_ledger_attach(ms_ledger *ledger)
{
    ms_watch *watch = ledger->watch;
    pthread_mutex_lock(&watch->lock);
    ms_ledger *other = MS__PEEK(watch->ledger);
    if (!other) {
        ms__lock(&ledger->lock);
        MS__STORE(ledger->attached, true);
        ms__unlock(&ledger->lock);
        MS__STORE(watch->ledger, ledger);
    }
    pthread_mutex_unlock(&watch->lock);
    return !other || other == ledger ? MS_OK : MS_EINVAL;
}

void ms_ledger_detach(ms_ledger *ledger)
{
    pthread_mutex_lock(&ledger->watch->lock);
    detach(ledger);
    pthread_mutex_unlock(&ledger->watch->lock);
}

uint64_t ms_ledger_lost(const ms_ledger *ledger)
{
    return atomic_load_explicit(&ledger->lost, memory_order_relaxed);
}

/* ---- blocks ---- */

MS__INLINE uint32_t number_at(const ms_ledger *ledger, uint32_t at)
{
    return (uint32_t)ledger->blocks.slots[at] - 1;
}

/* The block that was found in slot `at`. */
MS__INLINE void drop(ms_ledger *ledger, struct ms__block *block, uint32_t at)
{
    struct ms__device *on = &ledger->devices[block->device];
    int64_t bytes = (int64_t)block->bytes;
    ledger->time++;
    ms__cell_change(ledger, block->device, block->path, block->category, -bytes);
    on->total -= bytes;
    if (MS__UNLIKELY(block->outside))
        ledger->outside[block->device].of[block->category] -= bytes;
    if (MS__UNLIKELY(block->category <= MS_BUFFER))
        ledger->replaced++;
    if (ms__captured(ledger))
        ms__capture_drop(ledger, number_at(ledger, at));
    ms__block_take(&ledger->blocks, block, at);
}

struct origin {
    ms_phase phase;
    ms_path path;
    const ms_thread *thread;
};

static inline struct origin origin_of(const ms_thread *thread)
{
    return thread ? (struct origin){ms__phase(thread), ms__path_of(thread), thread}
                  : (struct origin){MS_IDLE, MS_GLOBAL, NULL};
}

/* A block was freed unseen, and its address given out again. */
MS__RARE void drop_again(ms_ledger *ledger, uint64_t address, uint32_t *at)
{
    struct ms__block *block = ms__block_seek(&ledger->blocks, address, at);
    drop(ledger, block, *at);
    ms__block_seek(&ledger->blocks, address, at);
}

/* With the lock held. Reserve before writing: past that nothing can fail. */
MS__INLINE int add(ms_ledger *ledger, struct origin origin, const struct ms__block *made)
{
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        return MS_EDETACHED;
    if (MS__UNLIKELY(!ms__blocks_reserve(ledger->watch, &ledger->blocks) ||
                     !ms__cells_reserve(ledger, made->device, made->path))) {
        ms__ledger_count_lost(ledger);
        return MS_ENOMEM;
    }
    uint32_t at;
    struct ms__block *before = ms__block_seek(&ledger->blocks, made->address, &at);
    if (MS__UNLIKELY(before != NULL))
        drop_again(ledger, made->address, &at);
    struct ms__block *block = ms__block_put(&ledger->blocks, made->address, at);
    block->bytes = made->bytes;
    block->since = ++ledger->time;
    block->path = made->path;
    block->device = made->device;
    block->category = made->category;
    block->outside = made->outside;
    block->mark = ledger->mark;
    struct ms__device *on = &ledger->devices[made->device];
    if (MS__UNLIKELY(made->device >= ledger->device_count))
        ledger->device_count = made->device + 1u;
    ms__cell_change(ledger, made->device, made->path, made->category, (int64_t)made->bytes);
    on->total += (int64_t)made->bytes;
    if (MS__UNLIKELY(made->outside))
        ledger->outside[made->device].of[made->category] += (int64_t)made->bytes;
    ms__peaks_grow(ledger, made->device, origin.phase, origin.path, made->path);
    ms__spans_grow(ledger, made->device);
    if (ms__captured(ledger))
        ms__capture_add(ledger, origin.thread, origin.phase, block, number_at(ledger, at));
    return MS_OK;
}

MS__INLINE int add_made(ms_ledger *ledger, struct origin origin, uint64_t address, uint64_t bytes, uint32_t device)
{
    bool passing = origin.phase == MS_BACKWARD || origin.phase == MS_OPTIMIZER;
    struct ms__block made = {.address = address,
                             .bytes = bytes,
                             .path = origin.path,
                             .device = (uint8_t)device,
                             .category = passing ? MS_TEMP : MS_ACTIVATION};
    ms__lock(&ledger->lock);
    int error = add(ledger, origin, &made);
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_add(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device)
{
    if (MS__UNLIKELY(device >= MS_MAX_DEVICES || bytes > INT64_MAX))
        return MS_EINVAL;
    return bytes ? add_made(ledger, origin_of(thread), address, bytes, device) : MS_OK;
}

int ms_block_add_in(ms_ledger *ledger, ms_phase phase, ms_path path, uint64_t address, uint64_t bytes, uint32_t device)
{
    if (device >= MS_MAX_DEVICES || bytes > INT64_MAX || path >= ms_path_count(ledger->watch) || phase > MS_OPTIMIZER)
        return MS_EINVAL;
    return bytes ? add_made(ledger, (struct origin){phase, path, NULL}, address, bytes, device) : MS_OK;
}

int ms_block_add_as(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device,
                    ms_category category, ms_path path, bool outside)
{
    if (device >= MS_MAX_DEVICES || bytes > INT64_MAX || category >= MS_CATEGORY_COUNT ||
        path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    if (!bytes)
        return MS_OK;
    struct ms__block made = {.address = address,
                             .bytes = bytes,
                             .path = path,
                             .device = (uint8_t)device,
                             .category = (uint8_t)category,
                             .outside = outside};
    struct origin origin = origin_of(thread);
    ms__lock(&ledger->lock);
    int error = add(ledger, origin, &made);
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_drop(ms_ledger *ledger, uint64_t address)
{
    int error = MS_OK;
    uint32_t at;
    ms__lock(&ledger->lock);
    struct ms__block *block = ledger->blocks.count ? ms__block_seek(&ledger->blocks, address, &at) : NULL;
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        error = MS_EDETACHED;
    else if (MS__UNLIKELY(!block))
        error = MS_ENOBLOCK;
    else
        drop(ledger, block, at);
    ms__unlock(&ledger->lock);
    return error;
}

static bool is_held_by_an_object(uint32_t category)
{
    return category == MS_PARAMETER || category == MS_BUFFER || category == MS_GRADIENT || category == MS_OPTSTATE;
}

/* `always`: it has been so since it was made. */
static int claim(ms_ledger *ledger, struct ms__block *block, uint32_t category, ms_path path, bool always)
{
    bool claimed = ledger->claiming && block->mark == ledger->mark && is_held_by_an_object(block->category);
    if (always && block->category < category && (claimed || (category == MS_OPTSTATE && block->category <= MS_BUFFER)))
        return MS_OK;
    block->mark = ledger->mark;
    if (block->category == category && block->path == path)
        return MS_OK;
    if (!ms__cells_reserve(ledger, block->device, path)) {
        ms__ledger_count_lost(ledger);
        return MS_ENOMEM;
    }
    ledger->time++;
    ms__cell_change(ledger, block->device, block->path, block->category, -(int64_t)block->bytes);
    ms__cell_change(ledger, block->device, path, category, (int64_t)block->bytes);
    if (always)
        ms__peaks_move(ledger, block, path, category);
    else
        block->since = ledger->time;
    if (block->outside) {
        ms_sums *outside = &ledger->outside[block->device];
        outside->of[block->category] -= (int64_t)block->bytes;
        outside->of[category] += (int64_t)block->bytes;
    }
    block->path = path;
    block->category = (uint8_t)category;
    if (ms__captured(ledger)) {
        uint32_t at;
        ms__block_seek(&ledger->blocks, block->address, &at);
        ms__capture_claim(ledger, number_at(ledger, at), category, path, !always);
    }
    return MS_OK;
}

int ms_block_claim(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path)
{
    if (category >= MS_CATEGORY_COUNT || path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    struct ms__block *block = ms__block_find(&ledger->blocks, address);
    int error = block ? MS_OK : MS_ENOBLOCK;
    if (!MS__PEEK(ledger->attached))
        error = MS_EDETACHED;
    else if (block)
        error = claim(ledger, block, category, path, true);
    ms__unlock(&ledger->lock);
    return error;
}

/* A block whose slot is not known. */
static void strike_off(ms_ledger *ledger, struct ms__block *block)
{
    uint32_t at;
    ms__block_seek(&ledger->blocks, block->address, &at);
    drop(ledger, block, at);
}

int ms_block_resize(ms_ledger *ledger, uint64_t address, uint64_t bytes)
{
    if (bytes > INT64_MAX)
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    struct ms__block *block = ms__block_find(&ledger->blocks, address);
    int error = block ? MS_OK : MS_ENOBLOCK;
    if (!MS__PEEK(ledger->attached)) {
        error = MS_EDETACHED;
    } else if (block && block->bytes != bytes) {
        struct ms__block made = *block;
        made.bytes = bytes;
        if (bytes)
            error = add(ledger, (struct origin){MS_IDLE, block->path, NULL}, &made);
        else
            strike_off(ledger, block);
    }
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_device(ms_ledger *ledger, uint64_t address, uint32_t *device)
{
    ms__lock(&ledger->lock);
    const struct ms__block *block = ms__block_find(&ledger->blocks, address);
    if (block)
        *device = block->device;
    ms__unlock(&ledger->lock);
    return block ? MS_OK : MS_ENOBLOCK;
}

uint64_t ms_block_bytes(ms_ledger *ledger, const uint64_t *addresses, size_t count)
{
    uint64_t bytes = 0;
    ms__lock(&ledger->lock);
    for (size_t i = 0; i < count; i++) {
        const struct ms__block *block = ms__block_find(&ledger->blocks, addresses[i]);
        bytes += block ? block->bytes : 0;
    }
    ms__unlock(&ledger->lock);
    return bytes;
}

void ms_ledger_clear(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;)
        strike_off(ledger, block);
    ms__unlock(&ledger->lock);
}

/* ---- claims as a whole ---- */
void ms_claims_begin(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->mark++;
    ledger->claiming = true;
    ms__unlock(&ledger->lock);
}

/* A mark comes round after 256 claims as a whole; whatever was not claimed in one of them is
 * of no category that is looked at here in the next. */
void ms_claims_end(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->claiming = false;
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;) {
        if (block->mark == ledger->mark)
            continue;
        if (block->outside)
            strike_off(ledger, block);
        else if (is_held_by_an_object(block->category))
            claim(ledger, block, MS_OTHER, block->path, false);
    }
    ms__unlock(&ledger->lock);
}
