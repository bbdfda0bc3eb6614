/* test_kinds.c - kinds of blocks: now, by path, at the peaks, and when claims take them away. */
#include "ledger_scene.h"
#include "random.h"

#include <string.h>

#define CHECK_KINDS(got, ...) check_kinds(__FILE__, __LINE__, #got, got, (ms_kind_sums){{__VA_ARGS__}})
#define NO_KIND [MS_KIND_NONE] = 0

static void check_kinds(const char *file, int line, const char *what, ms_kind_sums got, ms_kind_sums wanted)
{
    for (int kind = 0; kind < MS_KIND_COUNT; kind++)
        if (got.of[kind] != wanted.of[kind])
            FAIL("%s:%d: %s: %s is %lld, not %lld", file, line, what, ms_kind_name((ms_kind)kind),
                 (long long)got.of[kind], (long long)wanted.of[kind]);
}

static void claim_kind(uint64_t address, ms_kind kind, ms_path path)
{
    CHECK_EQ(ms_block_claim_kind(ledger, address, kind, path), MS_OK);
    CHECK(!ms_ledger_check(ledger));
}

TEST(a_claim_of_a_kind_sets_the_category_too)
{
    struct lane *t = ledger_start();
    call(t, scene.a);
    add(t, 1, 100);
    add(t, 2, 20);
    claim_kind(1, MS_KIND_UNSHARDED_PARAM, scene.b);
    claim_kind(2, MS_KIND_ALL_GATHER, scene.a);
    CHECK_SUMS(held(), [MS_PARAMETER] = 100, [MS_TEMP] = 20);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), [MS_KIND_UNSHARDED_PARAM] = 100, [MS_KIND_ALL_GATHER] = 20);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.b), [MS_KIND_UNSHARDED_PARAM] = 100);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 1, scene.b), NO_KIND);
    drop(1);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), [MS_KIND_ALL_GATHER] = 20);
    CHECK_EQ(ms_block_claim_kind(ledger, 2, MS_KIND_NONE, scene.a), MS_EINVAL);
    CHECK_EQ(ms_block_claim_kind(ledger, 2, MS_KIND_COUNT, scene.a), MS_EINVAL);
    CHECK_EQ(ms_block_claim_kind(ledger, 1, MS_KIND_SHARDED_GRAD, scene.a), MS_ENOBLOCK);
    leave_call(t);
    ledger_end();
}

TEST(a_block_keeps_its_kind_until_it_gets_another_category)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    claim_kind(1, MS_KIND_UNSHARDED_GRAD, scene.a);
    claim(1, MS_GRADIENT, scene.b);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.a), [MS_KIND_UNSHARDED_GRAD] = 100);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.b), NO_KIND);
    claim_kind(1, MS_KIND_UNSHARDED_GRAD, scene.b);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.b), [MS_KIND_UNSHARDED_GRAD] = 100);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.a), NO_KIND);
    CHECK_EQ(ms_block_resize(ledger, 1, 40), MS_OK);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), [MS_KIND_UNSHARDED_GRAD] = 40);
    claim(1, MS_BUFFER, scene.b);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), NO_KIND);
    claim_kind(1, MS_KIND_SHARDED_GRAD, scene.b);
    ms_claims_begin(ledger);
    ms_claims_end(ledger); /* nothing holds it any more */
    CHECK_SUMS(held(), [MS_OTHER] = 40);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), NO_KIND);
    ledger_end();
}

TEST(a_bucket_stays_one_until_it_is_dropped)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    claim_kind(1, MS_KIND_BUCKET, scene.a);
    ms_claims_begin(ledger);
    ms_claims_end(ledger); /* no object tells who holds it */
    CHECK_SUMS(held(), [MS_GRADIENT] = 100);
    CHECK_KINDS(ms_ledger_kinds_of(ledger, 0, scene.a), [MS_KIND_BUCKET] = 100);
    drop(1);
    add(t, 1, 30);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), NO_KIND);
    ledger_end();
}

TEST(a_kind_is_retroactive_at_the_peak)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    add(t, 2, 30);
    drop(2);
    claim_kind(1, MS_KIND_UNSHARDED_GRAD, scene.a);
    drop(1);
    add(t, 3, 50);
    claim_kind(3, MS_KIND_REDUCE_SCATTER, scene.b);
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, 130);
    CHECK_SUMS(ms_peak_tracker_peak(tracker, 0).sums, [MS_GRADIENT] = 100, [MS_OTHER] = 30);
    CHECK_KINDS(ms_peak_tracker_kinds(tracker, 0), [MS_KIND_UNSHARDED_GRAD] = 100);
    CHECK_KINDS(ms_peak_tracker_kinds_of(tracker, 0, scene.a), [MS_KIND_UNSHARDED_GRAD] = 100);
    CHECK_KINDS(ms_peak_tracker_kinds_of(tracker, 0, scene.b), NO_KIND);
    CHECK_KINDS(ms_ledger_kinds(ledger, 0), [MS_KIND_REDUCE_SCATTER] = 50);
    ms_peak_tracker *later = open_tracker();
    CHECK_KINDS(ms_peak_tracker_kinds(later, 0), [MS_KIND_REDUCE_SCATTER] = 50);
    drop(3);
    CHECK_KINDS(ms_peak_tracker_kinds(later, 0), [MS_KIND_REDUCE_SCATTER] = 50);
    ms_peak_tracker_reset(later);
    CHECK_KINDS(ms_peak_tracker_kinds(later, 0), NO_KIND);
    ledger_end();
}

TEST(unsharded_parameters_are_freed_without_making_claims_due)
{
    struct lane *t = ledger_start();
    add(t, 1, 100);
    claim_kind(1, MS_KIND_UNSHARDED_PARAM, scene.a);
    drop(1);
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 0);
    add(t, 1, 100);
    claim_kind(1, MS_KIND_SHARDED_PARAM, scene.a);
    drop(1);
    CHECK_EQ(ms_ledger_parameters_dropped(ledger), 1);
    ledger_end();
}

TEST(a_refused_kind_changes_nothing)
{
    struct lane *t = ledger_start();
    ms_peak_tracker *tracker = open_tracker();
    add(t, 1, 100);
    for (uint64_t refused = 1; refused <= 2; refused++) {
        ledger_heap.refuse_at = ledger_heap.asked + refused;
        ledger_heap.forever = true;
        CHECK_EQ(ms_block_claim_kind(ledger, 1, MS_KIND_SHARDED_GRAD, MS_GLOBAL), MS_ENOMEM);
        CHECK_EQ(ms_ledger_lost(ledger), refused);
        CHECK_SUMS(held(), [MS_OTHER] = 100);
        CHECK_KINDS(ms_peak_tracker_kinds(tracker, 0), NO_KIND);
        CHECK(!ms_ledger_check(ledger));
    }
    ledger_heap.refuse_at = 0;
    claim_kind(1, MS_KIND_SHARDED_GRAD, MS_GLOBAL);
    CHECK_KINDS(ms_peak_tracker_kinds(tracker, 0), [MS_KIND_SHARDED_GRAD] = 100);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
    CHECK_EQ(ledger_heap.live, 0);
}

/* ---- against a slow model: an array of blocks, and a copy of it at the peak ---- */
enum { BLOCKS = 24, PATHS_USED = 4, EVENTS = 3000 };

struct model_block {
    int64_t bytes; /* 0: not live */
    uint32_t kind, path;
    uint64_t since;
};

static struct model {
    struct model_block now[BLOCKS], at_peak[BLOCKS];
    int64_t total, peak;
    uint64_t events;
} model;

static ms_kind_sums model_kinds(const struct model_block *blocks, uint32_t path)
{
    ms_kind_sums sums = {{0}};
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].bytes && blocks[i].kind && blocks[i].path == path)
            sums.of[blocks[i].kind] += blocks[i].bytes;
    return sums;
}

static void model_add(uint32_t at, int64_t bytes)
{
    model.now[at] = (struct model_block){.bytes = bytes, .since = ++model.events};
    model.total += bytes;
    if (model.total > model.peak) {
        model.peak = model.total;
        memcpy(model.at_peak, model.now, sizeof model.now);
    }
}

static void model_claim(uint32_t at, uint32_t kind, uint32_t path)
{
    model.now[at].kind = kind;
    model.now[at].path = path;
    if (model.at_peak[at].bytes && model.at_peak[at].since == model.now[at].since) {
        model.at_peak[at].kind = kind;
        model.at_peak[at].path = path;
    }
}

TEST(kinds_agree_with_a_slow_model)
{
    struct lane *t = ledger_start();
    const ms_path used[PATHS_USED] = {MS_GLOBAL, scene.a, scene.b, scene.d};
    ms_peak_tracker *tracker = open_tracker();
    model = (struct model){0};
    uint64_t random = 42;
    for (int event = 0; event < EVENTS; event++) {
        uint32_t at = (uint32_t)(random_next(&random) % BLOCKS), choice = (uint32_t)(random_next(&random) % 8);
        uint32_t path = (uint32_t)(random_next(&random) % PATHS_USED);
        uint32_t kind = 1 + (uint32_t)(random_next(&random) % (MS_KIND_COUNT - 1));
        if (!model.now[at].bytes) {
            int64_t bytes = 1 + (int64_t)(random_next(&random) % 1000);
            add(t, at + 1, (uint64_t)bytes);
            model_add(at, bytes);
        } else if (choice < 3) {
            drop(at + 1);
            model.total -= model.now[at].bytes;
            model.now[at].bytes = 0;
        } else if (choice < 7) {
            claim_kind(at + 1, (ms_kind)kind, used[path]);
            model_claim(at, kind, path);
        } else {
            claim(at + 1, MS_OPTSTATE, used[path]); /* parameters stay parameters */
            bool kept = model.now[at].kind && ms_kind_category((ms_kind)model.now[at].kind) == MS_PARAMETER;
            if (!kept)
                model_claim(at, MS_KIND_NONE, path);
        }
        for (uint32_t i = 0; i < PATHS_USED; i++) {
            ms_kind_sums now = ms_ledger_kinds_of(ledger, 0, used[i]), wanted = model_kinds(model.now, i);
            CHECK(memcmp(&now, &wanted, sizeof now) == 0);
            ms_kind_sums peak = ms_peak_tracker_kinds_of(tracker, 0, used[i]);
            wanted = model_kinds(model.at_peak, i);
            CHECK(memcmp(&peak, &wanted, sizeof peak) == 0);
        }
    }
    CHECK_EQ(ms_peak_tracker_peak(tracker, 0).bytes, model.peak);
    ledger_end();
}
