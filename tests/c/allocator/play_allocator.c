/* play_allocator.c - the first bytes choose the settings, the others what is requested and freed. */
#include "play_allocator.h"

#include "slow_allocator.h"

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
enum { LIVE = 200, SETTINGS = 4 };

struct live {
    ms_allocation *allocation;
    int slow;
};

static void choose_settings(ms_allocator_settings *settings, const uint8_t *bytes)
{
    static const char *const versions[] = {"2.11.0", "2.12.1", "2.13.0", NULL};
    ms_allocator_settings_default(settings, versions[bytes[0] & 3]);
    settings->total_memory = 512 * MIB;
    settings->capacity = bytes[0] & 4 ? 100 * MIB + (uint64_t)(bytes[1] & 31) * 8 * MIB : MS_UNLIMITED;
    settings->expandable_segments = (bytes[0] & 24) == 24;
    settings->max_split_size = bytes[0] & 32 ? 24 * MIB : MS_UNLIMITED;
    if (bytes[0] & 64)
        settings->memory_fraction = 0.15 + (bytes[1] >> 5) / 10.0;
    if (bytes[0] & 128)
        settings->garbage_collection_threshold = 0.5 + (bytes[2] & 3) / 10.0;
    for (int i = 0; bytes[2] & 4 && i < MS_ROUNDUP_INTERVALS; i++)
        settings->roundup_divisions[i] = 1u << ((bytes[2] >> 3) + (unsigned)i) % 6;
    if (bytes[3] & 1)
        settings->large_segment_size = 32 * MIB;
}

/* Sizes that programs have: many equal ones, few bytes and many megabytes. */
static uint64_t choose_size(uint8_t kind, uint8_t detail)
{
    switch (kind % 5) {
    case 0:
        return 1 + detail;
    case 1:
        return 512 * (uint64_t)(1 + detail);
    case 2:
        return MIB / 2 + (uint64_t)detail * 8192;
    case 3:
        return (uint64_t)(1 + detail % 12) * MIB + (detail & 64 ? 1 : 0);
    default:
        return (uint64_t)(1 + detail % 64) * MIB;
    }
}

static const char *compare(const ms_allocator *allocator, const struct slow_allocator *slow)
{
    const ms_allocator_stats *stats = ms_allocator_read(allocator);
    if (stats->reserved_bytes[MS_BOTH_POOLS].now != slow->reserved)
        return "reserved differs";
    if (stats->reserved_bytes[MS_BOTH_POOLS].peak != slow->peak_reserved)
        return "the peak of reserved differs";
    if (stats->allocated_bytes[MS_BOTH_POOLS].now != slow->allocated)
        return "allocated differs";
    if (stats->retries != slow->retries || stats->failures != slow->failures)
        return "retries or failures differ";
    return NULL;
}

static const char *request(ms_allocator *allocator, struct slow_allocator *slow, struct live *live, uint64_t bytes,
                           uint64_t stream)
{
    ms_allocator_place_next(allocator, slow->next_address);
    int error = ms_allocator_malloc(allocator, bytes, stream, &live->allocation);
    if (error == MS_ENOMEM)
        return "memory ran out";
    live->slow = slow_malloc(slow, bytes, stream);
    if (error != MS_OK)
        return live->slow == error ? NULL : "only one of the two failed";
    if (live->slow < 0)
        return "only one of the two succeeded";
    const struct slow_block *block = &slow->blocks[live->slow];
    if (ms_allocation_address(live->allocation) != block->address)
        return "another block was given";
    if (ms_allocation_bytes(live->allocation) != block->size)
        return "a block of another size was given";
    return NULL;
}

/* Free it, and take the same addresses again. */
static const char *free_and_take_again(ms_allocator *allocator, struct slow_allocator *slow, struct live *one)
{
    uint64_t address = ms_allocation_address(one->allocation), bytes = ms_allocation_requested(one->allocation);
    uint64_t stream = slow->blocks[one->slow].stream;
    ms_allocator_free(allocator, one->allocation);
    slow_free(slow, one->slow);
    int error = ms_allocator_malloc_at(allocator, bytes, stream, address, &one->allocation);
    if (error)
        return error == MS_ENOMEM ? "memory ran out" : "its addresses are not given again";
    one->slow = slow_malloc_at(slow, bytes, stream, address);
    if (one->slow < 0 || ms_allocation_address(one->allocation) != address)
        return "other addresses are given";
    return ms_allocation_bytes(one->allocation) == slow->blocks[one->slow].size ? NULL : "another size is given again";
}

static const char *change_pool(ms_allocator *allocator, struct slow_allocator *slow, uint8_t action, uint64_t pool)
{
    unsigned flags = pool == 2 ? MS_POOL_ON_OOM : pool == 3 ? MS_POOL_NO_SPLIT : 0;
    switch (action & 3) {
    case 0:
        slow_release_pool(slow, pool);
        ms_allocator_release_pool(allocator, pool);
        return NULL;
    case 1:
        slow_empty_pool(slow, pool);
        return ms_allocator_empty_pool(allocator, pool) == MS_OK ? NULL : "memory ran out";
    default:
        if (ms_allocator_hold_pool(allocator, pool, flags) != MS_OK)
            return "memory ran out";
        slow_hold_pool(slow, pool, flags);
        return NULL;
    }
}

const char *play_allocator(const uint8_t *bytes, size_t count, const ms_options *options)
{
    if (count < SETTINGS)
        return NULL;
    ms_allocator_settings settings;
    choose_settings(&settings, bytes);
    static struct slow_allocator slow;
    slow_open(&slow, &settings);
    slow.next_address = 1024 * MIB;
    ms_allocator *allocator = ms_allocator_open(&settings, options);
    if (!allocator)
        return "memory ran out";
    struct live live[LIVE] = {{0}};
    const char *wrong = NULL;
    for (size_t i = SETTINGS; !wrong && i + 2 < count; i += 3) {
        uint8_t action = bytes[i], kind = bytes[i + 1], detail = bytes[i + 2];
        struct live *one = &live[(kind * 7 + detail) % LIVE];
        if (action < 4) {
            slow_empty_cache(&slow);
            if (ms_allocator_empty_cache(allocator) != MS_OK)
                wrong = "memory ran out";
        } else if (action < 8) {
            slow.delay = action & 1;
            ms_allocator_delay_events(allocator, action & 1);
        } else if (action < 12) {
            slow_synchronize(&slow);
            ms_allocator_synchronize(allocator);
        } else if (action < 16) {
            wrong = change_pool(allocator, &slow, action, 1 + kind % 3);
        } else if (one->allocation && action >= 240 && !slow.blocks[one->slow].used_elsewhere) {
            wrong = free_and_take_again(allocator, &slow, one);
        } else if (one->allocation) {
            if (action < 30 && slow.blocks[one->slow].stream != 2) {
                ms_allocator_record_stream(one->allocation, 2);
                slow.blocks[one->slow].used_elsewhere = true;
            }
            ms_allocator_free(allocator, one->allocation);
            slow_free(&slow, one->slow);
            one->allocation = NULL;
        } else {
            uint64_t stream = action & 7 ? 0 : 1 + (action >> 7), pool = (action & 48) == 48 ? 1 + (kind >> 4) % 3 : 0;
            wrong = request(allocator, &slow, one, choose_size(kind, detail), ms_stream_in_pool(stream, pool));
        }
        if (!wrong)
            wrong = compare(allocator, &slow);
        if (!wrong && i % 24 == 1)
            wrong = ms_allocator_check(allocator);
    }
    if (!wrong)
        wrong = ms_allocator_check(allocator);
    ms_allocator_close(allocator);
    return wrong;
}
