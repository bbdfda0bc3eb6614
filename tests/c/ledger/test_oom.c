/* test_oom.c - memory that is refused to a ledger: nothing leaks, the sums are those of the
 * blocks that were kept, and the loss is counted. */
#include "ledger_play.h"
#include "ledger_scene.h"
#include "random.h"

#include <stdio.h>

static void refuse_from_now_on(void)
{
    ledger_heap.refuse_at = ledger_heap.asked + 1;
    ledger_heap.forever = true;
}

static void refuse_no_more(void)
{
    ledger_heap.refuse_at = 0;
}

static void finish(void)
{
    CHECK(!ms_ledger_check(ledger));
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
    CHECK_EQ(ledger_heap.live, 0);
}

/* A path for which no ledger has allocated totals yet. */
static ms_path far_path(void)
{
    ms_path path = 0;
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "far%d", i);
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, name, &path), MS_OK);
    }
    return path;
}

/* ---- one refusal at a time ---- */

TEST(a_refused_block_changes_nothing)
{
    struct lane *t = ledger_start();
    ms_path far = far_path();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    add(t, 1, 100);
    refuse_from_now_on();
    CHECK_EQ(ms_block_add_as(ledger, t->thread, 2, 1000, 0, MS_PARAMETER, far, false), MS_ENOMEM);
    CHECK_EQ(ms_ledger_lost(ledger), 1);
    CHECK_EQ(ms_block_add(ledger, t->thread, 3, 1000, 40), MS_ENOMEM);
    CHECK_EQ(ms_ledger_lost(ledger), 2);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    CHECK_EQ(ms_ledger_devices(ledger), 1);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 100);
    CHECK_EQ(ms_block_drop(ledger, 2), MS_ENOBLOCK);
    refuse_no_more();
    add_as(2, 1000, MS_PARAMETER, far);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 1100);
    CHECK_EQ(ms_ledger_lost(ledger), 2);
    finish();
}

TEST(a_refused_block_at_a_known_address_keeps_the_old_one)
{
    struct lane *t = ledger_start();
    ms_path far = far_path();
    add(t, 1, 100);
    refuse_from_now_on();
    CHECK_EQ(ms_block_add_as(ledger, t->thread, 1, 30, 0, MS_PARAMETER, far, false), MS_ENOMEM);
    CHECK_EQ(ms_block_add(ledger, t->thread, 1, 30, 40), MS_ENOMEM);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    CHECK_EQ(ms_ledger_blocks(ledger), 1);
    drop(1);
    CHECK_SUMS(held(), NOTHING);
    finish();
}

TEST(a_refused_claim_does_not_change_the_block_s_owner)
{
    struct lane *t = ledger_start();
    ms_path far = far_path();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    add(t, 1, 100);
    refuse_from_now_on();
    CHECK_EQ(ms_block_claim(ledger, 1, MS_PARAMETER, far), MS_ENOMEM);
    CHECK_EQ(ms_ledger_lost(ledger), 1);
    CHECK_SUMS(held(), [MS_OTHER] = 100);
    CHECK_SUMS(held_by(far), NOTHING);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_OTHER] = 100);
    refuse_no_more();
    claim(1, MS_PARAMETER, far);
    CHECK_SUMS(held_by(far), [MS_PARAMETER] = 100);
    finish();
}

TEST(a_ledger_or_peak_tracker_without_memory_is_null)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 100);
    leave_call(t);
    refuse_from_now_on();
    CHECK(!ms_ledger_open(scene.watch));
    CHECK(!ms_peak_tracker_open(ledger));
    refuse_no_more();
    for (long n = 1; n < 4; n++) {
        ledger_heap.refuse_at = ledger_heap.asked + n;
        ledger_heap.forever = false;
        ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
        CHECK(!tracker || ms_peak_tracker_peak(tracker, 0).bytes == 100);
    }
    refuse_no_more();
    CHECK(ms_peak_tracker_open(ledger));
    finish();
}

/* The totals that were reserved for the refused block exist, and no peak tracker was open then. */
TEST(a_peak_tracker_opened_after_a_refused_block_counts_the_next_one)
{
    for (long n = 1; n < 12; n++) {
        struct lane *t = ledger_start();
        ledger_heap.refuse_at = ledger_heap.asked + n;
        int error = ms_block_add(ledger, t->thread, 1, 100, 5);
        CHECK(error == MS_OK || error == MS_ENOMEM);
        refuse_no_more();
        ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
        add_on(t, 1, 100, 5);
        CHECK_EQ(ms_peak_tracker_peak(tracker, 5).bytes, 100);
        CHECK_SUMS(ms_peak_tracker_peak_of(tracker, 5, MS_GLOBAL), [MS_OTHER] = 100);
        finish();
    }
}

TEST(dropping_clearing_and_reading_need_no_memory)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    call(t, scene.a);
    make(t, 1);
    for (uint64_t i = 0; i < 5000; i++)
        add(t, i, 1 + i % 7);
    leave_call(t);
    node(t, t, 0);
    leave_node(t);
    refuse_from_now_on();
    long asked = ledger_heap.asked;
    for (uint64_t i = 0; i < 4000; i++)
        drop(i);
    ms_peak_tracker_reset(tracker);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, total(held()));
    CHECK_EQ(total(ms_peak_tracker_peak_of(tracker, 0, scene.a)), total(held_by(scene.a)));
    ms_claims_begin(ledger);
    ms_claims_end(ledger);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_BW), 1);
    CHECK(total(call_snapshot(scene.a, MS_PEAK_FW, 0)) > 0);
    ms_ledger_clear(ledger);
    CHECK_SUMS(held(), NOTHING);
    ms_ledger_detach(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    CHECK_EQ(ledger_heap.asked, asked);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    finish();
}

TEST(snapshots_that_could_not_be_kept_are_lost)
{
    struct lane *t = ledger_start();
    ms_path far = far_path();
    call(t, scene.a);
    refuse_from_now_on();
    call(t, far);
    ms_call_set_size(t->thread, false, 77); /* this must not become the outer call's size */
    leave_call(t);
    uint64_t input, output;
    ms_call_sizes(ledger, scene.a, &input, &output);
    CHECK_EQ(input, 0);
    CHECK(ms_ledger_lost(ledger) > 0);
    CHECK_EQ(ms_call_snapshot_count(ledger, far, MS_POST_FW), 0);
    refuse_no_more();
    leave_call(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    call(t, far);
    leave_call(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, far, MS_POST_FW), 1);
    finish();
}

/* A call that the watch has no memory for is not reported to the ledger. */
TEST(calls_that_the_watch_lost_do_not_confuse_the_ledger)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    refuse_from_now_on();
    while (ms_call_enter(t->thread, scene.b, t->seq) == MS_OK)
        ;
    for (int i = 0; i < 10; i++)
        CHECK_EQ(ms_call_enter(t->thread, scene.c, t->seq), MS_ENOMEM);
    refuse_no_more();
    while (ms_thread_depth(t->thread))
        CHECK_EQ(ms_call_leave(t->thread, t->seq), MS_OK);
    call(t, scene.a);
    add(t, 2, 20);
    drop(2);
    leave_call(t);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.a, MS_POST_FW), 1);
    CHECK_EQ(ms_call_snapshot_count(ledger, scene.c, MS_PRE_FW), 0);
    CHECK_EQ(total(call_snapshot(scene.a, MS_PEAK_FW, 0)), 20);
    finish();
}

/* ---- every refusal ---- */

enum outcome { UNTOUCHED, REFUSED };

static enum outcome run_bytes(uint64_t seed, unsigned bounds, long n, bool forever)
{
    uint8_t bytes[500];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_next(&seed);
    struct heap heap = {.refuse_at = n, .forever = forever};
    static struct ledger_play play;
    if (ledger_play_open(&play, &heap, bounds | LEDGER_PLAY_FOREVER)) {
        ledger_play_bytes(&play, bytes, sizeof bytes, 32);
        heap.refuse_at = 0; /* there is memory again, so blocks are accepted again */
        lm_add(&play.model, 0, 1, 1, 0);
        ledger_play_finish(&play);
        uint64_t lost = ms_ledger_lost(play.model.ledger);
        if (play.model.failed)
            FAIL("refused allocation %ld%s: %s", n, forever ? " and all later" : "", play.model.wrong);
        if ((play.model.refused && !lost) || (lost && !heap.refused))
            FAIL("refused allocation %ld: %llu events failed, %llu lost", n, (unsigned long long)play.model.refused,
                 (unsigned long long)lost);
    } else {
        CHECK(heap.refused);
    }
    ledger_play_close(&play);
    if (heap.live)
        FAIL("refused allocation %ld: %ld blocks leaked", n, heap.live);
    return heap.refused ? REFUSED : UNTOUCHED;
}

/* There is one OS thread, so the thread sanitizer would only be slow. */
#ifdef __SANITIZE_THREAD__
#define SEEDS 1
#else
#define SEEDS 4
#endif

TEST(every_allocation_of_a_random_ledger_may_be_refused)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        for (int forever = 0; forever <= 1; forever++)
            for (long n = 1; run_bytes(seed, seed % 2 ? LEDGER_PLAY_PLAIN : 0, n, forever) == REFUSED; n++)
                ;
}

/* ---- every refusal, where tables grow ---- */

enum { BLOCKS = 1200, PATHS = 70, DEEP = 40 };

struct large {
    ms_path paths[PATHS];
    uint64_t bytes[BLOCKS]; /* of the blocks that were kept */
    bool refused;
};

static bool kept(struct large *large, int error)
{
    CHECK(error == MS_OK || error == MS_ENOMEM);
    large->refused |= error != MS_OK;
    return error == MS_OK;
}

static uint32_t device_of(uint64_t block)
{
    return block % 3 == 0 ? 9 : 0;
}

static void add_blocks(struct large *large)
{
    for (uint64_t i = 0; i < BLOCKS; i++) {
        ms_path path = large->paths[i % PATHS];
        if (kept(large, ms_block_add_as(ledger, NULL, i, 1 + i, device_of(i), MS_TEMP, path, false)))
            large->bytes[i] = 1 + i;
    }
}

static void call_deep(struct large *large, struct lane *lane)
{
    for (uint64_t i = 0; i < DEEP; i++) {
        call(lane, large->paths[i]);
        make(lane, 1);
        if (kept(large, ms_block_add(ledger, lane->thread, i, 5000, device_of(i))))
            large->bytes[i] = 5000;
    }
    for (uint64_t i = 0; i < DEEP; i++)
        leave_call(lane);
    for (uint64_t i = 0; i < DEEP; i++) {
        node(lane, lane, lane->seq - 1 - i);
        leave_node(lane);
    }
    for (int i = 0; i < DEEP; i++)
        ms_backward_enter(lane->thread, large->paths[i]);
    for (int i = 0; i < DEEP; i++)
        ms_backward_leave(lane->thread, large->paths[i]);
}

static void check_large(const struct large *large)
{
    int64_t wanted[2] = {0};
    uint64_t count = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        wanted[device_of(i) != 0] += (int64_t)large->bytes[i];
        count += large->bytes[i] > 0;
    }
    CHECK_EQ(ms_ledger_blocks(ledger), count);
    CHECK_EQ(total(ms_ledger_now(ledger, 0)), wanted[0]);
    CHECK_EQ(total(ms_ledger_now(ledger, 9)), wanted[1]);
    const char *fault = ms_ledger_check(ledger);
    if (fault)
        FAIL("this does not hold: %s", fault);
    for (int i = 0; i < DEEP && !ms_ledger_lost(ledger); i++) {
        CHECK_EQ(ms_call_snapshot_count(ledger, large->paths[i], MS_POST_FW), 1);
        CHECK_EQ(ms_call_snapshot_count(ledger, large->paths[i], MS_POST_BW), 1);
    }
}

static void everything(struct large *large, struct lane *lane)
{
    ledger = ms_ledger_open(scene.watch);
    if (!ledger)
        return;
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    add_blocks(large);
    call_deep(large, lane);
    check_large(large);
    CHECK(!tracker || ms_peak_tracker_peak(tracker, 0).bytes >= total(ms_ledger_now(ledger, 0)));
    for (uint64_t i = 0; i < BLOCKS; i++)
        CHECK_EQ(ms_block_drop(ledger, i), large->bytes[i] ? MS_OK : MS_ENOBLOCK);
    CHECK_SUMS(held(), NOTHING);
    CHECK(!large->refused || ms_ledger_lost(ledger));
    CHECK(ledger_heap.refused || !ms_ledger_lost(ledger));
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
}

static enum outcome run_large(long n, bool forever)
{
    struct lane *t = ledger_start();
    ms_ledger_detach(ledger);
    static struct large large;
    large = (struct large){0};
    for (int i = 0; i < PATHS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, name, &large.paths[i]), MS_OK);
    }
    small_call(t, scene.a, 1); /* so that the thread has allocated its frames */
    ms_ledger *first = ledger;
    ledger_heap.refuse_at = ledger_heap.asked + n;
    ledger_heap.forever = forever;
    everything(&large, t);
    ms_ledger_close(first);
    scene_close(&scene);
    if (ledger_heap.live)
        FAIL("refused allocation %ld: %ld blocks leaked", n, ledger_heap.live);
    return ledger_heap.refused ? REFUSED : UNTOUCHED;
}

TEST(every_allocation_of_a_ledger_that_grows_may_be_refused)
{
    for (int forever = 0; forever <= 1; forever++)
        for (long n = 1; run_large(n, forever) == REFUSED; n++)
            ;
}
