/* test_addresses.c - any address, any size, any device, and many of them. */
#include "ledger_scene.h"
#include "random.h"

/* ---- addresses and sizes ---- */

TEST(dropping_an_unknown_block_is_an_error_and_changes_nothing)
{
    struct lane *t = ledger_start();
    CHECK_EQ(ms_block_drop(ledger, 1), MS_ENOBLOCK);
    add(t, 1, 100);
    CHECK_EQ(ms_block_drop(ledger, 2), MS_ENOBLOCK);
    drop(1);
    CHECK_EQ(ms_block_drop(ledger, 1), MS_ENOBLOCK);
    CHECK_EQ(ms_block_claim(ledger, 1, MS_PARAMETER, scene.a), MS_ENOBLOCK);
    CHECK_SUMS(held(), NOTHING);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    ledger_end();
}

TEST(a_block_at_a_known_address_replaces_the_old_one)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    call(t, scene.a);
    add(t, 1, 30);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_SUMS(held(), [MS_ACTIVATION] = 30);
    CHECK_SUMS(held_by(MS_GLOBAL), NOTHING);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = 30);
    add_on(t, 1, 8, 2);
    CHECK_SUMS(held(), NOTHING);
    CHECK_SUMS(ms_ledger_now(ledger, 2), [MS_ACTIVATION] = 8);
    add_outside(1, 9, MS_PARAMETER, scene.d);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_SUMS(ms_ledger_now(ledger, 2), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), [MS_PARAMETER] = 9);
    drop(1);
    CHECK_SUMS(held(), NOTHING);
    CHECK_SUMS(ms_ledger_outside(ledger, 0), NOTHING);
    ledger_end();
}

TEST(a_block_of_0_bytes_is_ignored)
{
    struct lane *t = ledger_start();
    add(t, 1, 0);
    add_as(2, 0, MS_PARAMETER, scene.a);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    CHECK_SUMS(held(), NOTHING);
    CHECK_EQ(ms_block_drop(ledger, 1), MS_ENOBLOCK);
    CHECK_EQ(ms_block_drop(ledger, 2), MS_ENOBLOCK);
    ledger_end();
}

TEST(any_number_is_an_address)
{
    static const uint64_t odd[] = {0, 1, 2, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63, UINT32_MAX};
    struct lane *t = ledger_start();
    const uint64_t count = sizeof odd / sizeof odd[0];
    for (uint64_t i = 0; i < count; i++) {
        CHECK_EQ(ms_block_drop(ledger, odd[i]), MS_ENOBLOCK);
        add(t, odd[i], UINT64_C(1) << i);
    }
    CHECK_EQ(total(held()), (1 << count) - 1);
    for (uint64_t i = 0; i < count; i++) {
        CHECK_EQ(ms_block_bytes(ledger, &odd[i], 1), UINT64_C(1) << i);
        drop(odd[i]);
        CHECK_EQ(ms_block_drop(ledger, odd[i]), MS_ENOBLOCK);
    }
    ledger_end();
}

TEST(sums_go_beyond_32_bits)
{
    struct lane *t = ledger_start();
    for (uint64_t i = 1; i <= 100; i++)
        add(t, i, UINT64_C(3) << 40);
    CHECK_SUMS(held(), [MS_OTHER] = 100 * (INT64_C(3) << 40));
    ledger_end();
}

TEST(the_bytes_of_some_addresses_are_summed)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    add_on(t, 2, 20, 5);
    add(t, 3, 3);
    CHECK_EQ(ms_block_bytes(ledger, (uint64_t[]){1, 2, 99}, 3), 120);
    CHECK_EQ(ms_block_bytes(ledger, (uint64_t[]){98, 99}, 2), 0);
    CHECK_EQ(ms_block_bytes(ledger, NULL, 0), 0);
    drop(2);
    CHECK_EQ(ms_block_bytes(ledger, (uint64_t[]){3, 2, 1}, 3), 103);
    ledger_end();
}

/* ---- devices ---- */

TEST(each_device_has_its_own_sums)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add_on(t, 1, 100, 0);
    add_on(t, 2, 20, 1);
    CHECK_EQ(ms_ledger_devices(ledger), 2);
    CHECK_SUMS(ms_ledger_now(ledger, 0), [MS_ACTIVATION] = 100);
    CHECK_SUMS(ms_ledger_now(ledger, 1), [MS_ACTIVATION] = 20);
    CHECK_SUMS(ms_ledger_now_of(ledger, 1, scene.a), [MS_ACTIVATION] = 20);
    CHECK_SUMS(ms_ledger_now(ledger, 2), NOTHING);
    drop(2);
    CHECK_EQ(ms_ledger_devices(ledger), 2);
    CHECK_SUMS(ms_ledger_now(ledger, 1), NOTHING);
    CHECK_SUMS(ms_ledger_now_of(ledger, 1, scene.a), NOTHING);
    ledger_end();
}

TEST(the_last_device_is_a_device_and_the_next_is_out_of_range)
{
    struct lane *t = ledger_start();
    add_on(t, 1, 100, MS_MAX_DEVICES - 1);
    CHECK_EQ(ms_ledger_devices(ledger), MS_MAX_DEVICES);
    CHECK_SUMS(ms_ledger_now(ledger, MS_MAX_DEVICES - 1), [MS_OTHER] = 100);
    CHECK_SUMS(held(), NOTHING);
    CHECK_EQ(ms_block_add(ledger, t->thread, 2, 1, MS_MAX_DEVICES), MS_EINVAL);
    CHECK_EQ(ms_block_add(ledger, t->thread, 1, 1, UINT32_MAX), MS_EINVAL);
    CHECK_EQ(ms_block_add_as(ledger, NULL, 1, 1, MS_MAX_DEVICES, MS_TEMP, scene.a, false), MS_EINVAL);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_EQ(ms_ledger_devices(ledger), MS_MAX_DEVICES);
    CHECK_SUMS(ms_ledger_now(ledger, MS_MAX_DEVICES - 1), [MS_OTHER] = 100);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    ledger_end();
}

/* ---- many ---- */

TEST(a_hundred_thousand_blocks_are_kept_apart)
{
    enum { COUNT = 100000 };
    struct lane *t = ledger_start();
    call(t, scene.a);
    int64_t sum = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        add(t, i << 21, 1 + i % 1000);
        sum += (int64_t)(1 + i % 1000);
    }
    CHECK_EQ(ms_ledger_blocks(ledger), COUNT);
    CHECK_SUMS(held_by(scene.a), [MS_ACTIVATION] = sum);
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t at = i * 7919 % COUNT; /* each one once, in another order */
        sum -= (int64_t)(1 + at % 1000);
        drop(at << 21);
        if (i % 4096 == 0)
            CHECK_SUMS(held(), [MS_ACTIVATION] = sum);
    }
    CHECK_SUMS(held(), NOTHING);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    ledger_end();
}

TEST(adding_and_dropping_blocks_uses_no_more_memory)
{
    struct lane *t = ledger_start();
    uint64_t seed = 1, most = 0;
    for (int i = 0; i < 300000; i++) {
        uint64_t address = random_below(&seed, 1000) << 9 | random_below(&seed, 4) << 40;
        if (ms_block_drop(ledger, address) != MS_OK && ms_ledger_blocks(ledger) < 500)
            add(t, address, 8);
        if (i == 10000)
            most = ms_ledger_block_memory(ledger);
    }
    CHECK(most > 0);
    CHECK(most < 1 << 20);
    CHECK(ms_ledger_block_memory(ledger) <= 2 * most);
    ledger_end();
}
