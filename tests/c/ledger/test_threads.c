/* test_threads.c - several OS threads use one ledger: nothing is lost, nothing is counted twice.
 * Clean under the thread sanitizer. */
#include "modscope_ledger.h"
#include "random.h"
#include "runner.h"
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>

#define WORKERS 4
#define OWN_BLOCKS 64

static struct scene scene;
static _Atomic(ms_ledger *) current;
static atomic_bool stop;

struct worker {
    struct lane *lane;
    uint64_t seed, base; /* addresses from `base` on are its own */
    uint64_t held[OWN_BLOCKS];
    int64_t now, most;
    int steps;
    pthread_t thread;
    bool swapped; /* the ledger is replaced meanwhile */
};

static struct worker workers[WORKERS];

static int64_t total(ms_sums sums)
{
    int64_t all = 0;
    for (int i = 0; i < MS_CATEGORY_COUNT; i++)
        all += sums.of[i];
    return all;
}

/* Whether the event succeeded. A ledger that is replaced meanwhile may be detached, or not know the block. */
static bool check_event(const struct worker *worker, int error)
{
    if (error != MS_OK && !(worker->swapped && (error == MS_EDETACHED || error == MS_ENOBLOCK)))
        FAIL("a block's event gave %d: %s", error, ms_error_text(error));
    return error == MS_OK;
}

static void add_or_drop(struct worker *worker)
{
    ms_ledger *ledger = atomic_load(&current);
    uint64_t which = random_below(&worker->seed, OWN_BLOCKS), bytes = 1 + random_below(&worker->seed, 1000);
    uint64_t *held = &worker->held[which], address = worker->base + which;
    if (*held) {
        check_event(worker, ms_block_drop(ledger, address));
        worker->now -= (int64_t)*held;
        *held = 0;
    } else if (check_event(worker, ms_block_add(ledger, worker->lane->thread, address, bytes, 0))) {
        *held = bytes;
        worker->now += (int64_t)bytes;
        worker->most = worker->now > worker->most ? worker->now : worker->most;
    }
}

static void claim_one(struct worker *worker)
{
    uint64_t which = random_below(&worker->seed, OWN_BLOCKS);
    ms_category category = (ms_category)random_below(&worker->seed, MS_CATEGORY_COUNT);
    if (worker->held[which])
        check_event(worker, ms_block_claim(atomic_load(&current), worker->base + which, category, scene.d));
}

static void drop_all(struct worker *worker)
{
    for (uint64_t i = 0; i < OWN_BLOCKS; i++)
        if (worker->held[i])
            check_event(worker, ms_block_drop(atomic_load(&current), worker->base + i));
}

/* A forward, a backward with a recompute in it, and an optimizer step; with blocks in all of them. */
static void iterate(struct worker *worker)
{
    struct lane *t = worker->lane;
    ms_path paths[] = {scene.a, scene.b, scene.c};
    for (int i = 0; i < 3; i++) {
        call(t, paths[i]);
        make(t, 1);
        ms_call_set_size(t->thread, false, 10);
        add_or_drop(worker);
        add_or_drop(worker);
    }
    for (int i = 0; i < 3; i++)
        leave_call(t);
    for (uint64_t i = 1; i <= 3; i++) {
        node(t, t, t->seq - i);
        add_or_drop(worker);
        claim_one(worker);
        if (i == 2) {
            call(t, scene.d);
            add_or_drop(worker);
            leave_call(t);
        }
        leave_node(t);
    }
    ms_optimizer_enter(t->thread);
    add_or_drop(worker);
    ms_optimizer_leave(t->thread);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (int i = 0; i < worker->steps; i++)
        iterate(worker);
    drop_all(worker);
    return NULL;
}

/* Read every figure, over and over. */
static void *read_all(void *argument)
{
    ms_peak_tracker *tracker = argument;
    ms_ledger *ledger = atomic_load(&current);
    int64_t peak = 0;
    uint64_t time = 0;
    for (int i = 0; !atomic_load(&stop); i++) {
        if (total(ms_ledger_now(ledger, 0)) < 0)
            FAIL("less than nothing is held");
        ms_peak seen = ms_peak_tracker_peak(tracker, 0);
        if (seen.bytes < peak || total(seen.sums) != seen.bytes)
            FAIL("a peak went down, or is not its sum");
        peak = seen.bytes;
        total(ms_ledger_now_of(ledger, 0, scene.b));
        total(ms_peak_tracker_peak_of(tracker, 0, scene.b));
        ms_sums sums;
        if (ms_call_snapshot_count(ledger, scene.c, MS_POST_FW))
            ms_call_snapshot_at(ledger, scene.c, MS_PEAK_BW, 0, 0, &sums, NULL);
        if (ms_block_bytes(ledger, (uint64_t[]){workers[0].base, workers[1].base}, 2) > 2000)
            FAIL("two blocks are more than they can be");
        if (ms_ledger_time(ledger) < time || ms_ledger_devices(ledger) > 1 || ms_ledger_lost(ledger))
            FAIL("time, devices or loss");
        time = ms_ledger_time(ledger);
        if (i % 50 == 0 && ms_ledger_check(ledger))
            FAIL("this does not hold: %s", ms_ledger_check(ledger));
    }
    return NULL;
}

/* Open and close peak trackers, over and over. */
static void *open_and_close_trackers(void *unused)
{
    (void)unused;
    ms_ledger *ledger = atomic_load(&current);
    while (!atomic_load(&stop)) {
        ms_peak_tracker *one = ms_peak_tracker_open(ledger), *two = ms_peak_tracker_open(ledger);
        if (!one || !two)
            FAIL("no peak tracker");
        ms_peak_tracker_reset(one);
        if (total(ms_peak_tracker_peak(one, 0).sums) != ms_peak_tracker_peak(one, 0).bytes && ms_ledger_check(ledger))
            FAIL("this does not hold: %s", ms_ledger_check(ledger));
        ms_peak_tracker_close(one);
        ms_peak_tracker_close(two);
    }
    return NULL;
}

static ms_ledger *attach_new(void)
{
    ms_ledger *ledger = ms_ledger_open(scene.watch);
    CHECK(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    atomic_store(&current, ledger);
    return ledger;
}

static void start_workers(int steps, bool swapped)
{
    for (uint64_t i = 0; i < WORKERS; i++) {
        struct lane *lane = scene_lane(&scene, 10 + i);
        workers[i] =
            (struct worker){.lane = lane, .seed = i + 1, .base = (i + 1) << 40, .steps = steps, .swapped = swapped};
    }
    for (int i = 0; i < WORKERS; i++)
        CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
}

static void join_workers(void)
{
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
}

static void check_peak_and_close(ms_ledger *ledger, ms_peak_tracker *tracker)
{
    CHECK(!ms_ledger_check(ledger));
    CHECK_EQ(total(ms_ledger_now(ledger, 0)), 0);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    int64_t together = 0;
    for (int i = 0; i < WORKERS; i++) {
        CHECK(ms_peak_tracker_peak(tracker, 0).bytes >= workers[i].most);
        together += workers[i].most;
    }
    CHECK(ms_peak_tracker_peak(tracker, 0).bytes <= together);
    CHECK_EQ(total(ms_peak_tracker_peak(tracker, 0).sums), ms_peak_tracker_peak(tracker, 0).bytes);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}

TEST(threads_that_add_drop_and_claim_lose_nothing)
{
    scene_open_small(&scene);
    ms_ledger *ledger = attach_new();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    start_workers(2000, false);
    join_workers();
    check_peak_and_close(ledger, tracker);
}

TEST(threads_that_read_meanwhile_get_consistent_sums)
{
    scene_open_small(&scene);
    ms_ledger *ledger = attach_new();
    ms_peak_tracker *tracker = ms_peak_tracker_open(ledger);
    start_workers(800, false);
    pthread_t readers[2];
    CHECK(!pthread_create(&readers[0], NULL, read_all, tracker));
    CHECK(!pthread_create(&readers[1], NULL, open_and_close_trackers, NULL));
    join_workers();
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    check_peak_and_close(ledger, tracker);
}

/* Drop blocks that another thread adds. */
static void *drop_blocks_of_another(void *argument)
{
    const uint64_t *addresses = argument;
    uint64_t gone = 0;
    for (uint64_t i = 0; gone < 3000; i = (i + 1) % 3000)
        gone += ms_block_drop(atomic_load(&current), addresses[i]) == MS_OK;
    return NULL;
}

TEST(blocks_added_by_one_thread_and_dropped_by_another_are_gone)
{
    static uint64_t addresses[3000];
    scene_open_small(&scene);
    ms_ledger *ledger = attach_new();
    struct lane *t = scene_lane(&scene, 1);
    for (uint64_t i = 0; i < 3000; i++)
        addresses[i] = 1 + i * 512;
    pthread_t other;
    CHECK(!pthread_create(&other, NULL, drop_blocks_of_another, addresses));
    call(t, scene.a);
    for (int i = 0; i < 3000; i++)
        CHECK_EQ(ms_block_add(ledger, t->thread, addresses[i], 8, 0), MS_OK);
    leave_call(t);
    pthread_join(other, NULL);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    CHECK_EQ(total(ms_ledger_now_of(ledger, 0, scene.a)), 0);
    CHECK(!ms_ledger_check(ledger));
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}

/* ---- ledgers are replaced while threads run ---- */

TEST(a_ledger_is_detached_and_attached_while_threads_run)
{
    scene_open_small(&scene);
    ms_ledger *ledger = attach_new();
    start_workers(1000, true);
    for (int i = 0; i < 300; i++) {
        ms_ledger_detach(ledger);
        if (i % 3 == 0)
            ms_ledger_clear(ledger);
        CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
        CHECK(!ms_ledger_check(ledger));
        ms_claims_begin(ledger);
        ms_claims_end(ledger);
    }
    join_workers();
    CHECK(!ms_ledger_check(ledger));
    CHECK_EQ(ms_ledger_lost(ledger), 0);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}

TEST(ledgers_are_opened_and_closed_while_threads_run)
{
    scene_open_small(&scene);
    ms_ledger *ledger = attach_new();
    start_workers(1000, true);
    for (int i = 0; i < 300; i++) {
        ms_ledger *before = ledger;
        CHECK(ms_peak_tracker_open(before));
        ms_ledger_detach(before);
        ledger = attach_new();
        ms_ledger_close(before); /* a thread may be about to call with it */
    }
    join_workers();
    CHECK(!ms_ledger_check(ledger));
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}

/* ---- threads begin and end while ledgers are replaced ---- */

static atomic_ulong next_id = 1000;

static void *begin_and_end(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300; i++) {
        ms_thread *thread = ms_thread_open(scene.watch, atomic_fetch_add(&next_id, 1));
        if (!thread)
            FAIL("thread not opened");
        ms_call_enter(thread, scene.a, 0);
        ms_call_enter(thread, scene.b, 1);
        ms_block_add(atomic_load(&current), thread, (uint64_t)(uintptr_t)thread, 8, 0);
        if (i % 2)
            ms_call_leave(thread, 2);
        if (i % 3)
            ms_optimizer_enter(thread);
        ms_thread_close(thread);
    }
    return NULL;
}

TEST(threads_end_in_their_calls_while_ledgers_are_opened_and_closed)
{
    ms_options options = {.calls_kept = 256, .threads_kept = 2};
    scene_open(&scene, &options);
    ms_ledger *ledger = attach_new();
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, begin_and_end, NULL));
    for (int i = 0; i < 200; i++) {
        ms_ledger *before = ledger;
        ms_ledger_detach(before);
        ledger = attach_new();
        ms_ledger_close(before);
        ms_call_snapshot_count(ledger, scene.b, MS_PEAK_FW);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(!ms_ledger_check(ledger));
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}
