/* test_state.c - the state of an allocator: where that of two is equal, they answer equally from then on.
 *
 * Both do the same; then one takes a way around, requests and frees that leave nothing. Often the state is as it was,
 * although other blocks were made and joined meanwhile. */
#include "modscope_allocator.h"
#include "random.h"
#include "runner.h"

#include <stdlib.h>
#include <string.h>

enum { HELD = 12, BEFORE = 120, AROUND = 12, AFTER = 200 };

struct program { /* what it holds, by name - 1 */
    ms_allocator *allocator;
    ms_allocation *held[HELD];
};

static uint64_t random_bytes(uint64_t *random)
{
    static const uint64_t sizes[] = {512, 4096, 700 << 10, 3 << 20, 9 << 20, 14 << 20, 33 << 20};
    return sizes[random_below(random, 7)] - random_below(random, 3) * 512;
}

/* Free what has the name, if it is held, and else request it. Returns what was decided. */
static uint64_t turn(struct program *of, uint32_t index, uint64_t bytes, uint64_t stream)
{
    if (of->held[index]) {
        ms_allocator_free(of->allocator, of->held[index]);
        of->held[index] = NULL;
        return 0;
    }
    int error = ms_allocator_malloc(of->allocator, bytes, stream, &of->held[index]);
    CHECK(error == MS_OK || error == MS_EDEVICE);
    ms_allocation_set_name(of->held[index], index + 1);
    return of->held[index] ? ms_allocation_bytes(of->held[index]) : 1;
}

static void work(struct program *of, uint64_t random, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t index = (uint32_t)random_below(&random, HELD);
        uint64_t bytes = random_bytes(&random);
        turn(of, index, bytes, random_below(&random, 8) == 0);
    }
}

static void go_around(struct program *of, uint64_t random)
{
    ms_allocation *others[AROUND];
    uint32_t steps[] = {1, 5, 7, 11}; /* each visits all */
    for (int i = 0; i < AROUND; i++)
        ms_allocator_malloc(of->allocator, random_bytes(&random), random_below(&random, 8) == 0, &others[i]);
    uint32_t step = steps[random_below(&random, 4)];
    for (uint32_t i = 0; i < AROUND; i++)
        ms_allocator_free(of->allocator, others[i * step % AROUND]);
}

static struct program open_program(const ms_allocator_settings *settings)
{
    struct program of = {.allocator = ms_allocator_open(settings, NULL)};
    CHECK(of.allocator);
    return of;
}

static bool have_equal_states(const struct program *first, const struct program *second)
{
    size_t room[] = {ms_allocator_state_room(first->allocator), ms_allocator_state_room(second->allocator)};
    uint64_t *states[] = {malloc(room[0] * sizeof **states), malloc(room[1] * sizeof **states)};
    size_t counts[] = {ms_allocator_state(first->allocator, states[0]),
                       ms_allocator_state(second->allocator, states[1])};
    CHECK(counts[0] <= room[0] && counts[1] <= room[1]);
    bool equal = counts[0] == counts[1] && memcmp(states[0], states[1], counts[0] * sizeof **states) == 0;
    free(states[0]);
    free(states[1]);
    return equal;
}

/* Whether both decide the same. */
static bool answer_equally(struct program *first, struct program *second, uint64_t random)
{
    for (int i = 0; i < AFTER; i++) {
        uint32_t index = (uint32_t)random_below(&random, HELD);
        uint64_t bytes = random_bytes(&random), stream = random_below(&random, 8) == 0;
        const ms_allocator_stats *a = ms_allocator_read(first->allocator), *b = ms_allocator_read(second->allocator);
        if (turn(first, index, bytes, stream) != turn(second, index, bytes, stream) ||
            a->reserved_bytes[MS_BOTH_POOLS].now != b->reserved_bytes[MS_BOTH_POOLS].now ||
            a->allocated_bytes[MS_BOTH_POOLS].now != b->allocated_bytes[MS_BOTH_POOLS].now)
            return false;
    }
    return true;
}

static ms_allocator_settings random_settings(uint64_t *random)
{
    static const char *versions[] = {"2.11", "2.12", "2.13"};
    ms_allocator_settings settings;
    CHECK_EQ(ms_allocator_settings_default(&settings, versions[random_below(random, 3)]), MS_OK);
    settings.expandable_segments = random_below(random, 4) == 0;
    settings.capacity = random_below(random, 3) ? MS_UNLIMITED : UINT64_C(150) << 20;
    if (random_below(random, 5) == 0) {
        settings.garbage_collection_threshold = 0.6;
        settings.total_memory = UINT64_C(200) << 20;
        settings.memory_fraction = 0.9;
    }
    return settings;
}

TEST(allocators_with_equal_states_answer_equally)
{
    int equal = 0, different = 0, told_apart = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint64_t random = seed;
        ms_allocator_settings settings = random_settings(&random);
        struct program first = open_program(&settings), second = open_program(&settings);
        work(&first, random, BEFORE);
        work(&second, random, BEFORE);
        CHECK(have_equal_states(&first, &second));
        go_around(&second, random);
        if (have_equal_states(&first, &second)) {
            equal++;
            if (!answer_equally(&first, &second, random_next(&random)))
                FAIL("seed %llu", (unsigned long long)seed);
        } else {
            different++;
            told_apart += !answer_equally(&first, &second, random_next(&random));
        }
        ms_allocator_close(first.allocator);
        ms_allocator_close(second.allocator);
    }
    CHECK(equal > 100 && different > 100 && told_apart > 100);
}

/* ---- states that differ in one thing ---- */
#define MIB (UINT64_C(1) << 20)

static struct program open_version(const char *version)
{
    ms_allocator_settings settings;
    CHECK_EQ(ms_allocator_settings_default(&settings, version), MS_OK);
    return open_program(&settings);
}

static void check_states_differ(struct program *first, struct program *second)
{
    CHECK_EQ(ms_allocator_read(first->allocator)->reserved_bytes[MS_BOTH_POOLS].now,
             ms_allocator_read(second->allocator)->reserved_bytes[MS_BOTH_POOLS].now);
    CHECK(!have_equal_states(first, second));
    ms_allocator_close(first->allocator);
    ms_allocator_close(second->allocator);
}

/* Two segments of 20 MiB, each with 5 MiB given and 15 free: in one program the first one is older, in the other one
 * the second. */
TEST(the_order_of_segments_is_a_part_of_the_state)
{
    const char *versions[] = {"2.12", "2.13"};
    for (int i = 0; i < 2; i++) {
        struct program first = open_version(versions[i]), second = open_version(versions[i]);
        turn(&first, 0, 5 * MIB, 0);
        turn(&first, 2, 15 * MIB, 0);
        turn(&first, 1, 5 * MIB, 0);
        turn(&first, 2, 0, 0);
        turn(&second, 2, 20 * MIB, 0);
        turn(&second, 1, 5 * MIB, 0);
        turn(&second, 2, 0, 0);
        CHECK_EQ(ms_allocator_empty_cache(second.allocator), MS_OK);
        turn(&second, 2, 15 * MIB, 0);
        turn(&second, 0, 5 * MIB, 0);
        turn(&second, 2, 0, 0);
        check_states_differ(&first, &second);
    }
}

/* The same four blocks: in two segments of 20 MiB, and in segments of 30 and 10 MiB. */
TEST(what_lies_beside_each_other_is_a_part_of_the_state)
{
    struct program first = open_version("2.13"), second = open_version("2.13");
    for (uint32_t i = 0; i < 2; i++) {
        turn(&first, 2 + i, 20 * MIB, 0);
        turn(&first, 2 + i, 0, 0);
        turn(&first, i, 10 * MIB, 0);
        turn(&first, 2 + i, 10 * MIB, 0);
    }
    turn(&second, 2, 30 * MIB, 0);
    turn(&second, 2, 0, 0);
    turn(&second, 0, 10 * MIB, 0);
    turn(&second, 2, 10 * MIB, 0);
    turn(&second, 1, 10 * MIB, 0);
    turn(&second, 3, 10 * MIB, 0);
    for (uint32_t i = 2; i < 4; i++) {
        turn(&first, i, 0, 0);
        turn(&second, i, 0, 0);
    }
    check_states_differ(&first, &second);
}

TEST(addresses_are_a_part_of_the_state_where_torch_prefers_the_lower_one)
{
    struct program first = open_version("2.11"), second = open_version("2.11");
    ms_allocator_place_next(first.allocator, UINT64_C(1) << 40);
    turn(&first, 0, 20 * MIB, 0);
    ms_allocator_place_next(second.allocator, UINT64_C(1) << 47);
    turn(&second, 0, 20 * MIB, 0);
    check_states_differ(&first, &second);
}

TEST(the_users_of_pools_are_a_part_of_the_state)
{
    struct program first = open_program(NULL), second = open_program(NULL);
    turn(&first, 0, 4096, ms_stream_in_pool(0, 1));
    turn(&second, 0, 4096, ms_stream_in_pool(0, 1));
    CHECK(have_equal_states(&first, &second));
    ms_allocator_release_pool(second.allocator, 1);
    check_states_differ(&first, &second);
}

TEST(allocations_of_other_names_are_another_state)
{
    struct program of = open_program(NULL);
    turn(&of, 0, 4096, 0);
    turn(&of, 1, 4096, 0);
    uint64_t *before = malloc(ms_allocator_state_room(of.allocator) * sizeof *before);
    uint64_t *after = malloc(ms_allocator_state_room(of.allocator) * sizeof *after);
    size_t count = ms_allocator_state(of.allocator, before);
    ms_allocation_set_name(of.held[0], 2);
    ms_allocation_set_name(of.held[1], 1);
    CHECK_EQ(ms_allocator_state(of.allocator, after), count);
    CHECK(memcmp(before, after, count * sizeof *before) != 0);
    free(before);
    free(after);
    ms_allocator_close(of.allocator);
}

TEST(a_segment_is_not_placed_where_another_one_is)
{
    ms_allocator_settings settings;
    CHECK_EQ(ms_allocator_settings_default(&settings, "2.11"), MS_OK);
    ms_allocator *allocator = ms_allocator_open(&settings, NULL);
    ms_allocation *found[20];
    CHECK_EQ(ms_allocator_malloc(allocator, 32 << 20, 0, &found[0]), MS_OK);
    uint64_t taken = ms_allocation_address(found[0]);
    ms_allocator_place_next(allocator, taken + (2 << 20));
    CHECK_EQ(ms_allocator_malloc(allocator, 32 << 20, 0, &found[1]), MS_OK);
    CHECK(ms_allocation_address(found[1]) != taken + (2 << 20));
    ms_allocator_place_next(allocator, taken - (64 << 20)); /* where the model would take addresses later */
    for (int i = 2; i < 20; i++)
        CHECK_EQ(ms_allocator_malloc(allocator, 32 << 20, 0, &found[i]), MS_OK);
    CHECK_EQ(ms_allocation_address(found[2]), taken - (64 << 20));
    for (int i = 0; i < 20; i++)
        for (int j = 0; j < i; j++)
            CHECK(ms_allocation_address(found[i]) >= ms_allocation_address(found[j]) + (32 << 20) ||
                  ms_allocation_address(found[j]) >= ms_allocation_address(found[i]) + (32 << 20));
    ms_allocator_place_next(allocator, UINT64_C(1) << 40);
    ms_allocator_place_next(allocator, 0);
    CHECK_EQ(ms_allocator_malloc(allocator, 64 << 20, 0, &found[0]), MS_OK);
    CHECK(ms_allocation_address(found[0]) != UINT64_C(1) << 40);
    ms_allocator_close(allocator);
}
