/* test_midway.c - a reader asks while the writer is in the middle of an event.
 *
 * The writer accesses a guard page; at that moment the reader asks, and then the event continues.
 * Each test runs with the page in every place, so that the event is interrupted wherever
 * it first accesses a part of its memory. The other way round is in test_overtaken.c. */
#include "core/watch/watch.h"
#include "guard_page.h"
#include "runner.h"
#include "scene.h"

#ifdef GUARD_WORKS

#define KEPT 256
#define RECORDS (KEPT * sizeof(struct ms__call_record))
#define ASKED 12 /* the last numbers, and the first */

static struct scene scene;
static struct lane *writer;

/* The owner of each node that the races below create. */
static ms_path owners[20 * KEPT];

static void made(uint64_t count, ms_path path)
{
    for (uint64_t number = make(writer, count); number < writer->seq; number++)
        owners[number] = path;
}

static void check_number(uint64_t number)
{
    ms_path got = owner(writer, number);
    if (got != owners[number] && got != MS_UNKNOWN)
        FAIL("node %llu is in path %u, not %u", (unsigned long long)number, got, owners[number]);
}

static void ask(void)
{
    for (uint64_t i = 0; i < ASKED && i < writer->seq; i++) {
        check_number(i);
        check_number(writer->seq - 1 - i);
    }
}

struct race {
    void (*before)(void);
    void (*event)(void); /* interrupted once */
};

static bool run_race(const struct race *race, size_t size, size_t boundary)
{
    ms_options options = guard_options();
    options.calls_kept = KEPT;
    options.paths_kept = 64;
    scene_open(&scene, &options);
    guard_place(size, boundary);
    writer = scene_lane(&scene, 7);
    race->before();
    ask();
    guard(false, ask);
    race->event();
    bool touched = guard_touched();
    ask();
    scene_close(&scene);
    guard_forget();
    return touched;
}

static void run_everywhere(const struct race *race)
{
    unsigned touched = 0;
    for (size_t at = 0; at < RECORDS; at += sizeof(uint64_t))
        touched += run_race(race, RECORDS, at);
    for (size_t at = offsetof(ms_thread, frames); at < sizeof(ms_thread); at += sizeof(uint64_t))
        touched += run_race(race, sizeof(ms_thread), at);
    CHECK(touched > 0);
}

#define RACE(title, before, event)                     \
    TEST(title)                                        \
    {                                                  \
        run_everywhere(&(struct race){before, event}); \
    }

/* These go straight to the core: the checks of a lane would access the page first. */
static void enter(ms_path path)
{
    ms_call_enter(writer->thread, path, writer->seq);
}

static void leave(void)
{
    ms_call_leave(writer->thread, writer->seq);
}

static void run(uint64_t number)
{
    ms_node_enter(writer->thread, writer->id, number, writer->seq);
}

static void end(void)
{
    ms_node_leave(writer->thread, writer->seq);
}

static void calls(int count)
{
    for (int i = 0; i < count; i++) {
        ms_path path = i % 3 ? scene.a : scene.d;
        enter(path);
        made(1, path);
        leave();
        made(i % 2, MS_GLOBAL);
    }
}

/* ---- calls ---- */

static void open_call_in_a_young_ring(void)
{
    calls(5);
    enter(scene.a);
    made(2, scene.a);
}

static void open_call_in_a_full_ring(void)
{
    calls(KEPT + 5);
    enter(scene.a);
    made(2, scene.a);
}

static void enter_b(void)
{
    enter(scene.b);
}

RACE(a_reader_asks_while_a_call_is_entered, open_call_in_a_young_ring, enter_b)
RACE(a_reader_asks_while_a_call_is_entered_in_a_full_ring, open_call_in_a_full_ring, enter_b)
RACE(a_reader_asks_while_a_call_is_left, open_call_in_a_young_ring, leave)
RACE(a_reader_asks_while_a_call_is_left_in_a_full_ring, open_call_in_a_full_ring, leave)

static void open_call_without_nodes(void)
{
    open_call_in_a_full_ring();
    enter(scene.b);
}

RACE(a_reader_asks_while_a_call_without_nodes_is_left, open_call_without_nodes, leave)

/* Until the next calls make the core renew the open records. */
static void calls_open_for_long(void)
{
    calls(3);
    enter(scene.a);
    made(1, scene.a);
    enter(scene.b);
    made(1, scene.b);
    while (writer->thread->ring.end < KEPT - KEPT / 4 + 3) {
        enter(scene.c);
        made(1, scene.c);
        leave();
        made(1, scene.b);
    }
}

static void two_more_calls(void)
{
    for (int i = 0; i < 2; i++) {
        enter(scene.c);
        made(1, scene.c);
        leave();
        made(1, scene.b);
    }
}

RACE(a_reader_asks_while_open_records_are_renewed, calls_open_for_long, two_more_calls)

/* ---- nodes ---- */

static void node_that_made_some(void)
{
    calls(5);
    run(0);
    made(2, owners[0]);
}

static void enter_node(void)
{
    run(1);
}

RACE(a_reader_asks_while_a_node_is_left, node_that_made_some, end)
RACE(a_reader_asks_while_a_node_inside_it_is_entered, node_that_made_some, enter_node)
RACE(a_reader_asks_while_a_call_inside_a_node_is_entered, node_that_made_some, enter_b)

static void node_in_a_node(void)
{
    calls(5);
    run(0);
    run(3);
    made(1, owners[3]);
}

RACE(a_reader_asks_while_a_node_in_a_node_is_left, node_in_a_node, end)
RACE(a_reader_asks_while_a_call_in_two_nodes_is_entered, node_in_a_node, enter_b)

static void node_that_made_none(void)
{
    calls(5);
    run(0);
    run(3);
}

RACE(a_reader_asks_while_a_node_that_made_none_is_left, node_that_made_none, end)

#endif
