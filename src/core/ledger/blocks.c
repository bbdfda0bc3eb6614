/* blocks.c - block events: a block is added, dropped, claimed or resized. */
#include "core/capture/write/encoder.h"
#include "core/ledger/call_spans.h"
#include "core/ledger/kinds.h"
#include "core/ledger/reported_backwards.h"

/* ---- adding and dropping ---- */

/* Count the bytes of a block that is from outside or has a kind; `bytes` are negative when it is dropped. */
MS__RARE void count_marked_block(ms_ledger *ledger, const struct ms__block *block, int64_t bytes)
{
    if (block->outside)
        ledger->outside[block->device].of[block->category] += bytes;
    if (block->kind)
        ms__kind_change(ledger, block->device, block->path, block->kind, bytes);
}

MS__INLINE void drop_block(ms_ledger *ledger, struct ms__block *block, uint32_t bucket)
{
    struct ms__device_totals *totals = &ledger->totals[block->device];
    int64_t bytes = (int64_t)block->bytes;
    ledger->time++;
    ms__total_change(ledger, block->device, block->path, block->category, -bytes);
    totals->total -= bytes;
    if (MS__UNLIKELY(block->marks))
        count_marked_block(ledger, block, -bytes);
    if (MS__UNLIKELY(block->category <= MS_BUFFER))
        ledger->parameters_dropped += block->kind != MS_KIND_UNSHARDED_PARAM;
    if (ms__captured(ledger))
        ms__capture_drop(ledger, ms__block_number(&ledger->blocks, bucket));
    ms__block_remove(&ledger->blocks, block, bucket);
}

static void drop_block_found_by_scan(ms_ledger *ledger, struct ms__block *block)
{
    uint32_t bucket;
    ms__block_find_bucket(&ledger->blocks, block->address, &bucket);
    drop_block(ledger, block, bucket);
}

/* The position of the thread that adds a block. */
struct origin {
    ms_phase phase;
    ms_path path;
    const ms_thread *thread; /* or NULL */
    ms_stack stack;
};

static inline struct origin find_origin(const ms_thread *thread)
{
    return thread ? (struct origin){ms__phase(thread), ms__path_of(thread), thread, MS_STACK_NONE}
                  : (struct origin){MS_IDLE, MS_GLOBAL, NULL, MS_STACK_NONE};
}

/* The old block at this address was freed without a report. *bucket becomes the bucket of the new one. */
MS__RARE void drop_stale_block(ms_ledger *ledger, uint64_t address, uint32_t *bucket)
{
    struct ms__block *block = ms__block_find_bucket(&ledger->blocks, address, bucket);
    drop_block(ledger, block, *bucket);
    ms__block_find_bucket(&ledger->blocks, address, bucket);
}

/* With the lock held. Everything that may fail comes before the first change. */
MS__INLINE int add_block(ms_ledger *ledger, struct origin origin, const struct ms__block *added)
{
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        return MS_EDETACHED;
    if (MS__UNLIKELY(!ms__block_table_reserve(ledger->watch, &ledger->blocks) ||
                     !ms__totals_reserve(ledger, added->device, added->path))) {
        ms__ledger_count_lost(ledger);
        return MS_ENOMEM;
    }
    uint32_t bucket;
    struct ms__block *stale = ms__block_find_bucket(&ledger->blocks, added->address, &bucket);
    if (MS__UNLIKELY(stale != NULL))
        drop_stale_block(ledger, added->address, &bucket);
    struct ms__block *block = ms__block_insert(&ledger->blocks, added->address, bucket);
    block->bytes = added->bytes;
    block->since = ++ledger->time;
    block->path = added->path;
    block->device = added->device;
    block->category = added->category;
    block->marks = added->marks;
    block->claim_pass = ledger->claim_pass;
    uint32_t number = ms__block_number(&ledger->blocks, bucket);
    *ms__block_stack(&ledger->blocks, number) = origin.stack;
    struct ms__device_totals *totals = &ledger->totals[added->device];
    if (MS__UNLIKELY(added->device >= ledger->device_count))
        ledger->device_count = added->device + 1u;
    ms__total_change(ledger, added->device, added->path, added->category, (int64_t)added->bytes);
    totals->total += (int64_t)added->bytes;
    if (MS__UNLIKELY(added->marks))
        count_marked_block(ledger, block, (int64_t)added->bytes);
    ms__peaks_raise(ledger, added->device, origin.phase, origin.path, added->path);
    ms__spans_grow(ledger, added->device);
    if (MS__UNLIKELY(ledger->reported_backward_count))
        ms__reported_backwards_grow(ledger, added->device);
    if (ms__captured(ledger))
        ms__capture_add(ledger, origin.thread, origin.phase, block, number);
    return MS_OK;
}

/* What a module's forward makes is mostly kept for backward. What is made while no call, node or optimizer step is open
 * is anything: data, metrics, copies of parameters. */
static inline uint32_t category_in(ms_phase phase)
{
    if (phase == MS_BACKWARD || phase == MS_OPTIMIZER)
        return MS_TEMP;
    return phase == MS_IDLE ? MS_OTHER : MS_ACTIVATION;
}

MS__INLINE int add_block_of(ms_ledger *ledger, struct origin origin, uint64_t address, uint64_t bytes, uint32_t device)
{
    struct ms__block added = {.address = address,
                              .bytes = bytes,
                              .path = origin.path,
                              .device = (uint8_t)device,
                              .category = (uint8_t)category_in(origin.phase)};
    ms__lock(&ledger->lock);
    int error = add_block(ledger, origin, &added);
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_add(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device)
{
    if (MS__UNLIKELY(device >= MS_MAX_DEVICES || bytes > INT64_MAX))
        return MS_EINVAL;
    return bytes ? add_block_of(ledger, find_origin(thread), address, bytes, device) : MS_OK;
}

MS__HOT int ms_block_add_at(ms_ledger *ledger, const ms_thread *thread, ms_stack stack, uint64_t address,
                            uint64_t bytes, uint32_t device)
{
    if (MS__UNLIKELY(device >= MS_MAX_DEVICES || bytes > INT64_MAX))
        return MS_EINVAL;
    struct origin origin = find_origin(thread);
    origin.stack = stack;
    return bytes ? add_block_of(ledger, origin, address, bytes, device) : MS_OK;
}

int ms_block_add_for(ms_ledger *ledger, const ms_thread *thread, ms_path path, ms_stack stack, uint64_t address,
                     uint64_t bytes, uint32_t device)
{
    if (device >= MS_MAX_DEVICES || bytes > INT64_MAX || path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    struct origin origin = find_origin(thread);
    origin.phase = origin.phase == MS_IDLE ? MS_FORWARD : origin.phase;
    origin.path = path;
    origin.stack = stack;
    return bytes ? add_block_of(ledger, origin, address, bytes, device) : MS_OK;
}

int ms_block_add_in_at(ms_ledger *ledger, ms_phase phase, ms_path path, ms_stack stack, uint64_t address,
                       uint64_t bytes, uint32_t device)
{
    if (device >= MS_MAX_DEVICES || bytes > INT64_MAX || path >= ms_path_count(ledger->watch) ||
        phase >= MS_PHASE_COUNT)
        return MS_EINVAL;
    return bytes ? add_block_of(ledger, (struct origin){phase, path, NULL, stack}, address, bytes, device) : MS_OK;
}

int ms_block_add_in(ms_ledger *ledger, ms_phase phase, ms_path path, uint64_t address, uint64_t bytes, uint32_t device)
{
    return ms_block_add_in_at(ledger, phase, path, MS_STACK_NONE, address, bytes, device);
}

int ms_block_add_as(ms_ledger *ledger, const ms_thread *thread, uint64_t address, uint64_t bytes, uint32_t device,
                    ms_category category, ms_path path, bool outside)
{
    if (device >= MS_MAX_DEVICES || bytes > INT64_MAX || category >= MS_CATEGORY_COUNT ||
        path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    if (!bytes)
        return MS_OK;
    struct ms__block added = {.address = address,
                              .bytes = bytes,
                              .path = path,
                              .device = (uint8_t)device,
                              .category = (uint8_t)category,
                              .outside = outside};
    struct origin origin = find_origin(thread);
    ms__lock(&ledger->lock);
    int error = add_block(ledger, origin, &added);
    ms__unlock(&ledger->lock);
    return error;
}

MS__HOT int ms_block_drop(ms_ledger *ledger, uint64_t address)
{
    int error = MS_OK;
    uint32_t bucket;
    ms__lock(&ledger->lock);
    struct ms__block *block = ledger->blocks.count ? ms__block_find_bucket(&ledger->blocks, address, &bucket) : NULL;
    if (MS__UNLIKELY(!MS__PEEK(ledger->attached)))
        error = MS_EDETACHED;
    else if (MS__UNLIKELY(!block))
        error = MS_ENOBLOCK;
    else
        drop_block(ledger, block, bucket);
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_drop_outside(ms_ledger *ledger, uint64_t address, ms_path path)
{
    int error = MS_OK;
    ms__lock(&ledger->lock);
    struct ms__block *block = ms__block_find(&ledger->blocks, address);
    if (!MS__PEEK(ledger->attached))
        error = MS_EDETACHED;
    else if (!block || !block->outside || block->path != path)
        error = MS_ENOBLOCK;
    else
        drop_block_found_by_scan(ledger, block);
    ms__unlock(&ledger->lock);
    return error;
}

void ms_ledger_clear(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;)
        drop_block_found_by_scan(ledger, block);
    ms__unlock(&ledger->lock);
}

/* With the lock held. The block, or NULL with the error: the ledger is not attached, or knows no such block. */
MS__HOT static struct ms__block *find_attached_block(const ms_ledger *ledger, uint64_t address, int *error)
{
    struct ms__block *block = MS__PEEK(ledger->attached) ? ms__block_find(&ledger->blocks, address) : NULL;
    *error = block ? MS_OK : MS__PEEK(ledger->attached) ? MS_ENOBLOCK : MS_EDETACHED;
    return block;
}

MS__HOT static uint32_t number_of(const ms_ledger *ledger, const struct ms__block *block)
{
    uint32_t bucket;
    ms__block_find_bucket(&ledger->blocks, block->address, &bucket);
    return ms__block_number(&ledger->blocks, bucket);
}

ms_stack ms_block_stack(ms_ledger *ledger, uint64_t address)
{
    ms__lock(&ledger->lock);
    const struct ms__block *block = ms__block_find(&ledger->blocks, address);
    ms_stack stack = block ? *ms__block_stack(&ledger->blocks, number_of(ledger, block)) : (ms_stack)MS_STACK_NONE;
    ms__unlock(&ledger->lock);
    return stack;
}

int ms_block_resize(ms_ledger *ledger, uint64_t address, uint64_t bytes)
{
    if (bytes > INT64_MAX)
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    int error;
    struct ms__block *block = find_attached_block(ledger, address, &error);
    if (block && block->bytes != bytes) {
        struct ms__block resized = *block;
        resized.bytes = bytes;
        ms_stack stack = *ms__block_stack(&ledger->blocks, number_of(ledger, block));
        if (bytes)
            error = add_block(ledger, (struct origin){MS_IDLE, block->path, NULL, stack}, &resized);
        else
            drop_block_found_by_scan(ledger, block);
    }
    ms__unlock(&ledger->lock);
    return error;
}

/* ---- claiming ---- */

static bool is_held_by_object(uint32_t category)
{
    return category == MS_PARAMETER || category == MS_BUFFER || category == MS_GRADIENT || category == MS_OPTSTATE;
}

/* Whether the claim has no effect: the block was claimed in this pass for a category that comes earlier, or it is a
 * parameter or buffer that is claimed as optimizer state. */
MS__HOT static bool has_stronger_claim(const ms_ledger *ledger, const struct ms__block *block, uint32_t category)
{
    bool claimed = ledger->claiming && block->claim_pass == ledger->claim_pass && is_held_by_object(block->category);
    return block->category < category && (claimed || (category == MS_OPTSTATE && block->category <= MS_BUFFER));
}

/* Totals by kind, when the block gets another path or kind. There is room, and ledger->time was counted up. */
MS__RARE void change_kind(ms_ledger *ledger, const struct ms__block *block, uint32_t kind, ms_path path,
                          bool retroactive)
{
    if (block->kind)
        ms__kind_change(ledger, block->device, block->path, block->kind, -(int64_t)block->bytes);
    if (kind)
        ms__kind_change(ledger, block->device, path, kind, (int64_t)block->bytes);
    if (retroactive)
        ms__kinds_move_block(ledger, block, path, kind);
}

/* With the lock held. Give the block another category, kind and path: retroactively, or from now on. */
MS__HOT static int change_block_and_kind(ms_ledger *ledger, struct ms__block *block, uint32_t category, uint32_t kind,
                                         ms_path path, bool retroactive)
{
    if (block->category == category && block->path == path && block->kind == kind)
        return MS_OK;
    if (!ms__totals_reserve(ledger, block->device, path) || (kind && !ms__kinds_reserve(ledger, block->device, path))) {
        ms__ledger_count_lost(ledger);
        return MS_ENOMEM;
    }
    bool moved = block->category != category || block->path != path, other_kind = block->kind != kind;
    ledger->time++;
    if (block->kind || kind)
        change_kind(ledger, block, kind, path, retroactive);
    block->kind = kind & 0x7Fu;
    ms__total_change(ledger, block->device, block->path, block->category, -(int64_t)block->bytes);
    ms__total_change(ledger, block->device, path, category, (int64_t)block->bytes);
    if (retroactive)
        ms__peaks_move_block(ledger, block, path, category);
    else
        block->since = ledger->time;
    if (block->outside) {
        ms_sums *outside = &ledger->outside[block->device];
        outside->of[block->category] -= (int64_t)block->bytes;
        outside->of[category] += (int64_t)block->bytes;
    }
    block->path = path;
    block->category = (uint8_t)category;
    if (moved && ms__captured(ledger))
        ms__capture_claim(ledger, number_of(ledger, block), category, path, !retroactive);
    if (kind && (other_kind || !retroactive) && ms__captured(ledger))
        ms__capture_note_kind(ledger, number_of(ledger, block));
    return MS_OK;
}

/* The same for a claim that names no kind: it says nothing new about a block of this category that has one. */
MS__HOT static int change_block(ms_ledger *ledger, struct ms__block *block, uint32_t category, ms_path path,
                                bool retroactive)
{
    if (block->kind && block->category == category)
        return MS_OK;
    return change_block_and_kind(ledger, block, category, MS_KIND_NONE, path, retroactive);
}

int ms_block_claim_unheld(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path)
{
    if (category >= MS_CATEGORY_COUNT || path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    int error;
    struct ms__block *block = find_attached_block(ledger, address, &error);
    if (block) {
        bool up_to_date = !ledger->claiming || block->claim_pass == ledger->claim_pass || block->category == category;
        block->claim_pass = ledger->claim_pass;
        if (!is_held_by_object(block->category) || !up_to_date)
            error = change_block(ledger, block, category, path, true);
    }
    ms__unlock(&ledger->lock);
    return error;
}

/* With the lock held. The block if it is MS_OTHER, else NULL. */
static struct ms__block *find_other_block(const ms_ledger *ledger, uint64_t address, int *error)
{
    struct ms__block *block = find_attached_block(ledger, address, error);
    return block && block->category == MS_OTHER ? block : NULL;
}

MS__HOT static void note_saved(ms_ledger *ledger, const struct ms__block *block, uint64_t requested)
{
    if (!ms__captured(ledger) || is_held_by_object(block->category))
        return;
    uint32_t number = number_of(ledger, block);
    ms__capture_note(ledger, MS_NOTE_SAVED, number, 0);
    if (requested && requested < block->bytes)
        ms__capture_note_storage(ledger, number, requested);
}

int ms_block_saved(ms_ledger *ledger, uint64_t address)
{
    int error;
    ms__lock(&ledger->lock);
    struct ms__block *block = find_attached_block(ledger, address, &error);
    if (block && block->category == MS_OTHER)
        error = change_block(ledger, block, MS_ACTIVATION, block->path, true);
    if (block)
        note_saved(ledger, block, 0);
    ms__unlock(&ledger->lock);
    return error;
}

/* The block to note something about, with the lock held; NULL, without it: there is none, or nothing is captured. */
MS__HOT static const struct ms__block *lock_block_to_note(ms_ledger *ledger, uint64_t address, int *error)
{
    *error = MS_OK;
    if (!ms__captured(ledger))
        return NULL;
    ms__lock(&ledger->lock);
    const struct ms__block *block = find_attached_block(ledger, address, error);
    if (!block)
        ms__unlock(&ledger->lock);
    return block;
}

void ms_operator_note(ms_ledger *ledger, const ms_thread *thread, const ms_operator *ran, uint64_t before,
                      uint64_t nanoseconds, uint64_t address)
{
    int error;
    if (!ms__captured(ledger) || !thread)
        return;
    ms__lock(&ledger->lock);
    const struct ms__block *block = address ? find_attached_block(ledger, address, &error) : NULL;
    ms__capture_note_operator(ledger, thread, ran, before, nanoseconds,
                              block ? (uint64_t)number_of(ledger, block) + 1 : 0);
    ms__unlock(&ledger->lock);
}

MS__HOT int ms_block_note_saved(ms_ledger *ledger, uint64_t address, uint64_t requested)
{
    int error;
    const struct ms__block *block = lock_block_to_note(ledger, address, &error);
    if (block) {
        note_saved(ledger, block, requested);
        ms__unlock(&ledger->lock);
    }
    return error;
}

int ms_block_note_request(ms_ledger *ledger, uint64_t address, uint64_t requested, uint64_t stream)
{
    int error;
    const struct ms__block *block = lock_block_to_note(ledger, address, &error);
    if (block) {
        ms__capture_note_request(ledger, number_of(ledger, block), requested, stream);
        ms__unlock(&ledger->lock);
    }
    return error;
}

int ms_block_note_segment(ms_ledger *ledger, uint64_t address)
{
    int error;
    const struct ms__block *block = lock_block_to_note(ledger, address, &error);
    if (block) {
        ms__capture_note(ledger, MS_NOTE_SEGMENT, number_of(ledger, block), address);
        ms__unlock(&ledger->lock);
    }
    return error;
}

bool ms_ledger_is_captured(const ms_ledger *ledger)
{
    return ms__captured(ledger);
}

int ms_block_claim_input(ms_ledger *ledger, uint64_t address, ms_path path)
{
    int error;
    if (path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    struct ms__block *block = find_other_block(ledger, address, &error);
    if (block && block->path == MS_GLOBAL)
        error = change_block(ledger, block, MS_OTHER, path, true);
    ms__unlock(&ledger->lock);
    return error;
}

MS__HOT int ms_block_claim(ms_ledger *ledger, uint64_t address, ms_category category, ms_path path)
{
    if (category >= MS_CATEGORY_COUNT || path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    int error;
    struct ms__block *block = find_attached_block(ledger, address, &error);
    if (block && !has_stronger_claim(ledger, block, category)) {
        block->claim_pass = ledger->claim_pass;
        error = change_block(ledger, block, category, path, true);
    }
    ms__unlock(&ledger->lock);
    return error;
}

int ms_block_claim_kind(ms_ledger *ledger, uint64_t address, ms_kind kind, ms_path path)
{
    if (kind <= MS_KIND_NONE || kind >= MS_KIND_COUNT || path >= ms_path_count(ledger->watch))
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    int error;
    struct ms__block *block = find_attached_block(ledger, address, &error);
    if (block && !has_stronger_claim(ledger, block, ms_kind_category(kind))) {
        block->claim_pass = ledger->claim_pass;
        error = change_block_and_kind(ledger, block, ms_kind_category(kind), kind, path, true);
    }
    ms__unlock(&ledger->lock);
    return error;
}

void ms_claims_begin(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->claim_pass++;
    ledger->claiming = true;
    ledger->kept = 0;
    ms__unlock(&ledger->lock);
}

_Static_assert(MS_CATEGORY_COUNT <= 8, "ms_ledger.kept has a bit for each category");

int ms_claims_keep(ms_ledger *ledger, ms_category category)
{
    if ((unsigned)category >= MS_CATEGORY_COUNT)
        return MS_EINVAL;
    ms__lock(&ledger->lock);
    int error = ledger->claiming ? MS_OK : MS_EINVAL;
    if (!error)
        ledger->kept |= (uint8_t)(1u << category);
    ms__unlock(&ledger->lock);
    return error;
}

/* claim_pass is 8 bits and wraps. That is safe: blocks left unclaimed become MS_OTHER or are kept and get the number
 * of this pass, and later passes ignore the claim_pass of MS_OTHER. */
void ms_claims_end(ms_ledger *ledger)
{
    ms__lock(&ledger->lock);
    ledger->claiming = false;
    struct ms__block *block;
    for (uint32_t at = 0; (block = ms__block_next(&ledger->blocks, &at)) != NULL;) {
        if (block->claim_pass == ledger->claim_pass)
            continue;
        if (ledger->kept & 1u << block->category || block->kind == MS_KIND_BUCKET) {
            block->claim_pass = ledger->claim_pass;
        } else if (block->outside) {
            drop_block_found_by_scan(ledger, block);
        } else if (is_held_by_object(block->category)) {
            block->claim_pass = ledger->claim_pass;
            change_block(ledger, block, MS_OTHER, block->path, false);
        }
    }
    ms__unlock(&ledger->lock);
}

/* ---- reading ---- */

bool ms_block_is_unowned(ms_ledger *ledger, uint64_t address, bool *known)
{
    ms__lock(&ledger->lock);
    const struct ms__block *block = ms__block_find(&ledger->blocks, address);
    bool unowned = block && block->category == MS_OTHER && block->path == MS_GLOBAL;
    *known = block != NULL;
    ms__unlock(&ledger->lock);
    return unowned;
}

enum { NO_NOTE = MS_NOTE_COUNT };

MS__HOT static uint64_t sum_and_note(ms_ledger *ledger, const uint64_t *addresses, size_t count, uint32_t note)
{
    uint64_t bytes = 0;
    ms__lock(&ledger->lock);
    bool is_noted = note != NO_NOTE && ms__captured(ledger);
    for (size_t i = 0; i < count; i++) {
        uint32_t bucket;
        const struct ms__block *block =
            ledger->blocks.count ? ms__block_find_bucket(&ledger->blocks, addresses[i], &bucket) : NULL;
        bytes += block ? block->bytes : 0;
        if (is_noted && block && !is_held_by_object(block->category))
            ms__capture_note(ledger, (ms_note_kind)note, ms__block_number(&ledger->blocks, bucket), 0);
    }
    ms__unlock(&ledger->lock);
    return bytes;
}

uint64_t ms_block_bytes(ms_ledger *ledger, const uint64_t *addresses, size_t count)
{
    return sum_and_note(ledger, addresses, count, NO_NOTE);
}

MS__HOT uint64_t ms_block_note_uses(ms_ledger *ledger, const uint64_t *addresses, size_t count, bool output)
{
    return sum_and_note(ledger, addresses, count, output ? MS_NOTE_OUTPUT : MS_NOTE_INPUT);
}
