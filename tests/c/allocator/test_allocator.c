/* test_allocator.c - what torch's allocator reserves, gives and gives back, case by case. */
#include "modscope_allocator.h"
#include "runner.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static ms_allocator_settings settings;
static ms_allocator *allocator;

static void start(void)
{
    allocator = ms_allocator_open(&settings, NULL);
    CHECK(allocator);
}

static void start_default(void)
{
    ms_allocator_settings_default(&settings, "2.13");
    start();
}

static void end(void)
{
    const char *wrong = ms_allocator_check(allocator);
    if (wrong)
        FAIL("%s", wrong);
    ms_allocator_close(allocator);
}

static ms_allocation *take(uint64_t bytes)
{
    ms_allocation *allocation;
    CHECK_EQ(ms_allocator_malloc(allocator, bytes, 0, &allocation), MS_OK);
    return allocation;
}

static void give(ms_allocation *allocation)
{
    ms_allocator_free(allocator, allocation);
}

static uint64_t reserved(void)
{
    return (uint64_t)ms_allocator_read(allocator)->reserved_bytes[MS_BOTH_POOLS].now;
}

static uint64_t allocated(void)
{
    return (uint64_t)ms_allocator_read(allocator)->allocated_bytes[MS_BOTH_POOLS].now;
}

TEST(sizes_are_rounded_to_512_bytes_and_segments_to_2_20_or_a_multiple_of_2_MiB)
{
    static const struct {
        uint64_t bytes, block, segment;
    } cases[] = {
        {1, 512, 2 * MIB},
        {513, 1024, 2 * MIB},
        {MIB, MIB, 2 * MIB},
        {MIB + 1, MIB + 512, 20 * MIB},
        {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
        {10 * MIB, 10 * MIB, 10 * MIB},
        {11 * MIB, 12 * MIB, 12 * MIB}, /* The rest of exactly 1 MiB is too small to be split off. */
        {30 * MIB + 1, 30 * MIB + 512, 32 * MIB},
        {29 * MIB - 512, 29 * MIB - 512, 30 * MIB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start_default();
        CHECK_EQ(ms_allocation_bytes(take(cases[i].bytes)), cases[i].block);
        CHECK_EQ(allocated(), cases[i].block);
        CHECK_EQ(reserved(), cases[i].segment);
        end();
    }
}

TEST(a_request_of_0_bytes_takes_nothing)
{
    start_default();
    CHECK(!take(0));
    give(NULL);
    CHECK_EQ(reserved(), 0);
    end();
}

TEST(the_smallest_free_block_that_fits_is_given)
{
    start_default();
    ms_allocation *large = take(40 * MIB), *middle = take(30 * MIB), *small = take(20 * MIB);
    uint64_t address = ms_allocation_address(middle);
    give(large);
    give(middle);
    give(small);
    CHECK_EQ(ms_allocation_address(take(25 * MIB)), address);
    CHECK_EQ(reserved(), 90 * MIB);
    end();
}

TEST(free_neighbours_are_joined)
{
    start_default();
    ms_allocation *parts[4];
    for (int i = 0; i < 4; i++)
        parts[i] = take(5 * MIB);
    CHECK_EQ(reserved(), 20 * MIB);
    give(parts[1]);
    give(parts[2]);
    uint64_t address = ms_allocation_address(parts[0]) + 5 * MIB;
    CHECK_EQ(ms_allocation_address(take(9 * MIB)), address);
    CHECK_EQ(reserved(), 20 * MIB);
    end();
}

TEST(streams_share_nothing)
{
    start_default();
    give(take(5 * MIB));
    ms_allocation *other;
    CHECK_EQ(ms_allocator_malloc(allocator, 5 * MIB, 7, &other), MS_OK);
    CHECK_EQ(reserved(), 40 * MIB);
    end();
}

TEST(a_full_device_gives_back_what_is_free_and_tries_again)
{
    ms_allocator_settings_default(&settings, "2.13");
    settings.capacity = 100 * MIB;
    start();
    ms_allocation *kept = take(40 * MIB);
    give(take(50 * MIB));
    CHECK_EQ(reserved(), 90 * MIB);
    ms_allocation *grown = take(60 * MIB);
    CHECK_EQ(reserved(), 100 * MIB);
    CHECK_EQ(ms_allocator_read(allocator)->retries, 1);
    ms_allocation *failed = kept;
    CHECK_EQ(ms_allocator_malloc(allocator, 2 * MIB, 0, &failed), MS_EDEVICE);
    CHECK(!failed);
    CHECK_EQ(ms_allocator_read(allocator)->failures, 1);
    CHECK_EQ(allocated(), 100 * MIB);
    give(grown);
    give(kept);
    CHECK_EQ(ms_allocator_empty_cache(allocator), MS_OK);
    CHECK_EQ(reserved(), 0);
    end();
}

TEST(a_fragmented_device_fails_although_enough_is_free)
{
    ms_allocator_settings_default(&settings, "2.13");
    settings.capacity = 60 * MIB;
    start();
    ms_allocation *parts[12];
    for (int i = 0; i < 12; i++)
        parts[i] = take(5 * MIB);
    for (int i = 0; i < 12; i += 2)
        give(parts[i]);
    ms_allocation *failed;
    CHECK_EQ(allocated(), 30 * MIB);
    CHECK_EQ(ms_allocator_malloc(allocator, 12 * MIB, 0, &failed), MS_EDEVICE);
    end();
}

TEST(expandable_segments_grow_by_pages_and_join)
{
    ms_allocator_settings_default(&settings, "2.13");
    settings.total_memory = 1024 * MIB;
    settings.expandable_segments = true;
    start();
    ms_allocation *first = take(30 * MIB), *second = take(30 * MIB);
    CHECK_EQ(reserved(), 60 * MIB);
    CHECK_EQ(ms_allocation_address(second), ms_allocation_address(first) + 30 * MIB);
    give(first);
    give(second);
    CHECK_EQ(ms_allocation_address(take(61 * MIB)), 0x100000000000);
    CHECK_EQ(reserved(), 80 * MIB);
    end();
}

TEST(a_block_used_on_another_stream_waits_before_it_is_used_again)
{
    start_default();
    ms_allocator_delay_events(allocator, true);
    ms_allocation *block = take(20 * MIB);
    ms_allocator_record_stream(block, 1);
    give(block);
    CHECK_EQ(allocated(), 0);
    CHECK_EQ(ms_allocator_read(allocator)->active_bytes[MS_BOTH_POOLS].now, 20 * MIB);
    take(20 * MIB);
    CHECK_EQ(reserved(), 40 * MIB);
    ms_allocator_synchronize(allocator);
    take(20 * MIB);
    CHECK_EQ(reserved(), 40 * MIB);
    end();
}

TEST(peaks_and_accumulated_statistics_are_reset)
{
    start_default();
    ms_allocation *kept = take(MIB);
    give(take(50 * MIB));
    const ms_allocator_stat *stat = &ms_allocator_read(allocator)->allocated_bytes[MS_LARGE_POOL];
    CHECK_EQ(stat->peak, 50 * MIB);
    CHECK_EQ(stat->total_removed, 50 * MIB);
    ms_allocator_reset_peaks(allocator);
    ms_allocator_reset_accumulated(allocator);
    CHECK_EQ(stat->peak, 0);
    CHECK_EQ(stat->total_added, 0);
    CHECK_EQ(ms_allocator_read(allocator)->allocated_bytes[MS_BOTH_POOLS].peak, MIB);
    CHECK_EQ(ms_allocation_requested(kept), MIB);
    end();
}

struct change {
    ms_segment_change kind;
    uint64_t address, bytes;
    int count;
};

static void note(void *context, ms_segment_change kind, uint64_t address, uint64_t bytes, uint64_t stream)
{
    struct change *change = context;
    CHECK_EQ(stream, 0);
    *change = (struct change){kind, address, bytes, change->count + 1};
}

TEST(each_segment_is_reported_and_may_be_placed)
{
    start_default();
    struct change change = {0};
    ms_allocator_on_segment(allocator, note, &change);
    ms_allocator_place_next(allocator, 0x500000000);
    ms_allocation *block = take(32 * MIB);
    CHECK(change.count == 1 && change.kind == MS_SEGMENT_TAKEN && change.address == 0x500000000);
    CHECK_EQ(ms_allocation_address(block), 0x500000000);
    give(block);
    CHECK_EQ(change.count, 1);
    CHECK_EQ(ms_allocator_empty_cache(allocator), MS_OK);
    CHECK(change.count == 2 && change.kind == MS_SEGMENT_GIVEN_BACK && change.bytes == 32 * MIB);
    end();
}

/* As cudaMalloc did on a real GPU: chunks of 32 MiB, each below the one before, the lowest free place first. */
TEST(segments_get_the_addresses_that_the_driver_gives)
{
    start_default();
    uint64_t filler = ms_allocation_address(take(416 * MIB));
    uint64_t first = ms_allocation_address(take(48 * MIB)), second = ms_allocation_address(take(48 * MIB));
    CHECK_EQ(first, filler - 64 * MIB);
    CHECK_EQ(second, first - 64 * MIB);
    CHECK_EQ(ms_allocation_address(take(12 * MIB)), second + 48 * MIB);
    CHECK_EQ(ms_allocation_address(take(12 * MIB)), first + 48 * MIB);
    CHECK_EQ(ms_allocation_address(take(12 * MIB)), second - 32 * MIB);
    end();
}

struct listed {
    int count[3]; /* by state */
    uint64_t bytes, requested;
};

static void list(void *context, const ms_block_info *block)
{
    struct listed *listed = context;
    listed->count[block->state]++;
    listed->bytes += block->bytes;
    listed->requested += block->requested;
    CHECK(block->address >= block->segment_address);
    CHECK(block->address + block->bytes <= block->segment_address + block->segment_bytes);
    CHECK(!block->is_small && !block->is_expandable && block->stream == 0);
}

TEST(every_block_is_listed_with_its_state)
{
    start_default();
    ms_allocation *given = take(3 * MIB + 1), *waiting = take(5 * MIB);
    ms_allocator_record_stream(waiting, 7);
    give(waiting);
    struct listed listed = {0};
    ms_allocator_each_block(allocator, list, &listed);
    CHECK(listed.count[MS_BLOCK_GIVEN] == 1 && listed.count[MS_BLOCK_WAITING] == 1 && listed.count[MS_BLOCK_FREE] == 1);
    CHECK_EQ(listed.bytes, 20 * MIB);
    CHECK_EQ(listed.requested, 8 * MIB + 1);
    give(given);
    end();
}

TEST(settings_can_be_changed_while_it_is_used)
{
    ms_allocator_settings_default(&settings, "2.13");
    settings.capacity = settings.total_memory = 100 * MIB;
    start();
    ms_allocation *none = NULL;
    ms_allocator_set_fraction(allocator, 0.5);
    CHECK_EQ(ms_allocator_malloc(allocator, 60 * MIB, 0, &none), MS_EDEVICE);
    CHECK_EQ(ms_allocator_apply(allocator, "per_process_memory_fraction:0.75", NULL, 0), MS_OK);
    CHECK(take(60 * MIB));
    CHECK_EQ(ms_allocator_apply(allocator, "no_such_key:1", NULL, 0), MS_EINVAL);
    ms_allocator_set_fraction(allocator, 1);
    ms_allocator_set_capacity(allocator, 80 * MIB);
    CHECK_EQ(ms_allocator_malloc(allocator, 30 * MIB, 0, &none), MS_EDEVICE);
    ms_allocator_set_capacity(allocator, 100 * MIB);
    CHECK(take(30 * MIB));
    end();
}

/* ---- private pools ---- */
static ms_allocation *take_in(uint64_t pool, uint64_t bytes)
{
    ms_allocation *allocation;
    CHECK_EQ(ms_allocator_malloc(allocator, bytes, ms_stream_in_pool(0, pool), &allocation), MS_OK);
    return allocation;
}

TEST(a_private_pool_and_the_default_one_share_no_segment)
{
    start_default();
    give(take(30 * MIB));
    give(take_in(1, 30 * MIB));
    CHECK_EQ(reserved(), 60 * MIB);
    ms_allocation *first = take(20 * MIB), *second = take_in(1, 20 * MIB), *third = take_in(2, 20 * MIB);
    CHECK_EQ(reserved(), 80 * MIB);
    give(first);
    give(second);
    give(third);
    end();
}

TEST(a_pool_gives_its_memory_back_only_after_its_last_user)
{
    start_default();
    CHECK_EQ(ms_allocator_hold_pool(allocator, 1, 0), MS_OK);
    CHECK_EQ(ms_allocator_hold_pool(allocator, 1, 0), MS_OK);
    ms_allocation *kept = take_in(1, 5 * MIB);
    give(take_in(1, 30 * MIB));
    ms_allocator_release_pool(allocator, 1);
    CHECK_EQ(ms_allocator_empty_pool(allocator, 1), MS_OK);
    CHECK_EQ(ms_allocator_empty_cache(allocator), MS_OK);
    CHECK_EQ(reserved(), 50 * MIB);
    ms_allocator_release_pool(allocator, 1);
    CHECK_EQ(ms_allocator_empty_cache(allocator), MS_OK);
    CHECK_EQ(reserved(), 20 * MIB); /* of the block that is still given */
    give(kept);
    CHECK_EQ(ms_allocator_empty_pool(allocator, 1), MS_OK);
    CHECK_EQ(reserved(), 0);
    end();
}

TEST(a_full_device_keeps_the_free_memory_of_pools_and_takes_it_where_they_allow_it)
{
    ms_allocator_settings_default(&settings, "2.13");
    settings.capacity = 100 * MIB;
    start();
    ms_allocation *allocation;
    give(take_in(1, 60 * MIB));
    CHECK_EQ(ms_allocator_malloc(allocator, 50 * MIB, 0, &allocation), MS_EDEVICE);
    CHECK_EQ(ms_allocator_hold_pool(allocator, 1, MS_POOL_ON_OOM), MS_OK);
    allocation = take(50 * MIB);
    CHECK_EQ(reserved(), 60 * MIB);
    give(allocation);
    give(take(40 * MIB)); /* of the GPU, which has them */
    CHECK_EQ(reserved(), 100 * MIB);
    /* In a pool nothing of the default one is given back. */
    CHECK_EQ(ms_allocator_malloc(allocator, 80 * MIB, ms_stream_in_pool(0, 2), &allocation), MS_EDEVICE);
    CHECK_EQ(reserved(), 100 * MIB);
    end();
}

TEST(a_pool_that_splits_nothing_gives_whole_segments)
{
    start_default();
    CHECK_EQ(ms_allocator_hold_pool(allocator, 1, MS_POOL_NO_SPLIT), MS_OK);
    ms_allocation *first = take_in(1, 4 * KIB), *second = take_in(1, 4 * KIB);
    CHECK_EQ(allocated(), 4 * MIB);
    give(first);
    give(second);
    end();
}

TEST(addresses_are_given_again_where_they_are_free)
{
    start_default();
    ms_allocation *blocks[3], *again;
    uint64_t addresses[3];
    for (int i = 0; i < 3; i++) {
        blocks[i] = take_in(1, 3 * MIB);
        addresses[i] = ms_allocation_address(blocks[i]);
    }
    for (int i = 0; i < 3; i++)
        give(blocks[i]);
    uint64_t stream = ms_stream_in_pool(0, 1);
    CHECK_EQ(ms_allocator_malloc_at(allocator, 3 * MIB, stream, addresses[1], &again), MS_OK);
    CHECK_EQ(ms_allocation_address(again), addresses[1]);
    CHECK_EQ(ms_allocator_malloc_at(allocator, 512, stream, addresses[1], &blocks[0]), MS_EINVAL);
    CHECK_EQ(ms_allocator_malloc_at(allocator, 512, 0, addresses[0], &blocks[0]), MS_EINVAL);
    CHECK_EQ(ms_allocation_address(take_in(1, 3 * MIB)), addresses[0]);
    CHECK_EQ(reserved(), 20 * MIB);
    end();
}
