/* test_overtaken.c - the writer overtakes a reader, at each of the reader's reads.
 *
 * The reader accesses a guard page; at that moment the writer's events happen, and then the
 * read goes through. Each test runs with the page in every place, so that each of the
 * reader's reads is once interrupted. */
#include "core/watch/watch.h"
#include "guard_page.h"
#include "runner.h"
#include "scene.h"

#ifdef GUARD_WORKS

#define KEPT 256
#define RECORDS (KEPT * sizeof(struct ms__call_record))

static struct scene scene;
static struct lane *writer, *reader;

struct race {
    uint64_t (*before)(void); /* what the writer did; returns the number that the reader asks for */
    void (*meanwhile)(void);  /* what it does while the reader reads */
    ms_path *owner;           /* the node's owner */
};

static ms_path by_node_path(uint64_t number)
{
    return owner(writer, number);
}

static ms_path by_node_enter(uint64_t number)
{
    node(reader, writer, number);
    ms_path path = ms_thread_path(reader->thread);
    leave_node(reader);
    return path;
}

/* Runs the race once. True if the reader accessed the page. */
static bool run_race(const struct race *race, ms_path (*ask)(uint64_t), size_t size, size_t boundary, bool below)
{
    ms_options options = guard_options();
    options.calls_kept = KEPT;
    options.paths_kept = 64;
    options.threads_kept = 1;
    scene_open(&scene, &options);
    guard_place(size, boundary);
    writer = scene_lane(&scene, 7);
    reader = scene_lane(&scene, 8);
    uint64_t number = race->before();
    guard(below, race->meanwhile);
    ms_path got = ask(number);
    bool touched = guard_touched();
    if (got != *race->owner && got != MS_UNKNOWN)
        FAIL("%s guarded at byte %zu: path %u, not %u", size == RECORDS ? "records" : "thread", boundary, got,
             *race->owner);
    scene_close(&scene);
    guard_forget();
    return touched;
}

static void run_everywhere(const struct race *race, ms_path (*ask)(uint64_t))
{
    unsigned touched = 0;
    for (size_t at = sizeof(struct ms__call_record); at < RECORDS; at += sizeof(struct ms__call_record)) {
        touched += run_race(race, ask, RECORDS, at, true);
        touched += run_race(race, ask, RECORDS, at, false);
    }
    /* The first fields of a thread are read with the watch's lock held, so nothing can happen then. */
    for (size_t at = offsetof(ms_thread, frames); at < sizeof(ms_thread); at += sizeof(void *))
        touched += run_race(race, ask, sizeof(ms_thread), at, false);
    CHECK(touched > 0);
}

#define RACE(title, before, meanwhile, owner)                                       \
    TEST(title##_when_asked)                                                        \
    {                                                                               \
        run_everywhere(&(struct race){before, meanwhile, &(owner)}, by_node_path);  \
    }                                                                               \
    TEST(title##_when_entered)                                                      \
    {                                                                               \
        run_everywhere(&(struct race){before, meanwhile, &(owner)}, by_node_enter); \
    }

/* ---- the ring wraps ---- */

static uint64_t full_ring(void)
{
    for (int i = 0; i < KEPT; i++)
        small_call(writer, scene.a, 1);
    return 0;
}

static uint64_t full_ring_and_a_search_before(void)
{
    full_ring();
    CHECK_EQ(by_node_enter(KEPT - 1), scene.a);
    return 0;
}

static void two_calls(void)
{
    small_call(writer, scene.d, 1);
    small_call(writer, scene.d, 1);
}

RACE(a_first_search_that_the_ring_overtakes_is_right_or_unknown, full_ring, two_calls, scene.a)
RACE(a_later_search_that_the_ring_overtakes_is_right_or_unknown, full_ring_and_a_search_before, two_calls, scene.a)

/* The node belongs to the outer call: the search finds an inner call first, and follows it outwards. */
static uint64_t node_of_an_outer_call(bool another_stays_open)
{
    call(writer, scene.a);
    for (int i = 0; i < 40; i++)
        small_call(writer, scene.b, 1);
    uint64_t number = make(writer, 1);
    leave_call(writer);
    if (another_stays_open)
        call(writer, scene.d);
    while (writer->thread->ring.end < KEPT)
        small_call(writer, scene.b, 1);
    CHECK_EQ(by_node_enter(number - 1), scene.b);
    return number;
}

static uint64_t node_of_an_outer_call_in_a_full_ring(void)
{
    return node_of_an_outer_call(false);
}

static uint64_t node_of_an_outer_call_and_another_open(void)
{
    return node_of_an_outer_call(true);
}

static void open_call(void)
{
    call(writer, scene.d);
    make(writer, 1);
}

RACE(an_outer_call_overwritten_by_finished_ones_is_right_or_unknown, node_of_an_outer_call_in_a_full_ring, two_calls,
     scene.a)
RACE(an_outer_call_overwritten_by_an_open_one_is_right_or_unknown, node_of_an_outer_call_in_a_full_ring, open_call,
     scene.a)
RACE(an_outer_call_overwritten_by_ones_in_an_open_one_is_right_or_unknown, node_of_an_outer_call_and_another_open,
     two_calls, scene.a)

static uint64_t node_of_an_open_call(void)
{
    call(writer, scene.a);
    small_call(writer, scene.b, 1);
    return make(writer, 1);
}

static void many_calls(void)
{
    for (int i = 0; i < KEPT - 20; i++)
        small_call(writer, scene.d, 1);
    leave_call(writer);
    two_calls();
}

RACE(an_open_call_whose_record_is_renewed_is_right_or_unknown, node_of_an_open_call, many_calls, scene.a)

static void leave_and_go_on(void)
{
    leave_call(writer);
    two_calls();
}

RACE(an_open_call_that_ends_is_right_or_unknown, node_of_an_open_call, leave_and_go_on, scene.a)

/* ---- nodes created by a running node ---- */

static uint64_t node_of_a_running_node(void)
{
    uint64_t a = small_call(writer, scene.a, 1);
    small_call(writer, scene.d, 1);
    node(writer, writer, a);
    return make(writer, 1);
}

static void end_the_node(void)
{
    leave_node(writer);
    make(writer, 1);
}

static void end_the_node_and_run_another(void)
{
    leave_node(writer);
    node(writer, writer, 1);
    make(writer, 1);
}

static void run_another_inside(void)
{
    node(writer, writer, 1);
    make(writer, 1);
}

static void call_inside(void)
{
    call(writer, scene.d);
    make(writer, 1);
}

RACE(a_node_that_ends_while_one_it_made_is_looked_up, node_of_a_running_node, end_the_node, scene.a)
RACE(a_node_that_another_follows_while_one_it_made_is_looked_up, node_of_a_running_node, end_the_node_and_run_another,
     scene.a)
RACE(a_node_that_runs_another_while_one_it_made_is_looked_up, node_of_a_running_node, run_another_inside, scene.a)
RACE(a_node_that_makes_a_call_while_one_it_made_is_looked_up, node_of_a_running_node, call_inside, scene.a)

/* ---- unknown owners ---- */

static uint64_t node_of_a_refused_call(void)
{
    refuse_allocations = true;
    CHECK_EQ(ms_call_enter(writer->thread, scene.a, writer->seq), MS_ENOMEM);
    refuse_allocations = false;
    return make(writer, 1);
}

RACE(a_refused_call_that_ends_while_its_node_is_looked_up_is_unknown, node_of_a_refused_call, leave_and_go_on, scene.a)

/* The writer ends, and another thread, whose node numbers are all higher, takes over its ring. */
static void discard_the_writer(void)
{
    ms_thread_close(writer->thread);
    for (uint64_t id = 20; id < 24; id++) {
        struct lane *t = scene_lane(&scene, id);
        t->seq = 1000000;
        small_call(t, scene.d, 1);
        end_lane(t);
    }
}

RACE(a_thread_discarded_while_its_node_is_looked_up_is_right_or_unknown, full_ring, discard_the_writer, scene.a)
RACE(a_thread_discarded_while_a_node_of_its_open_call_is_looked_up, node_of_an_open_call, discard_the_writer, scene.a)

#endif
