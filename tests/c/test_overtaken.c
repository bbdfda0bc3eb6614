/* test_overtaken.c - a reader that the writer overtakes, at every read there is.
 *
 * What the reader is about to read lies in a page it may not touch. The fault that this
 * gives is the moment at which the writer's events happen; then the read goes through.
 * So a race that takes luck to meet happens every time, in one thread. Each test is run
 * with the page in every place, so that each of the reader's reads is once the moment. */
#define _GNU_SOURCE
#include "internal.h"
#include "runner.h"
#include "scene.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define CAN_FAULT 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CAN_FAULT 0
#endif
#endif
#ifndef CAN_FAULT
#define CAN_FAULT 1
#endif

/* The thread sanitizer does a program's atomic reads itself, where a fault is fatal. */
#if CAN_FAULT

#define KEPT 256
#define RECORDS (KEPT * sizeof(struct ms__record))

static struct scene scene;
static struct lane *writer, *reader;

/* ---- memory of which one page can be shut ---- */

static size_t watched_size;     /* the allocation to place; 0: none */
static size_t watched_boundary; /* its byte that is to lie at a page's start */
static char *watched;
static void *watched_pages;
static size_t watched_room;
static bool refuse; /* all allocations */
static char *shut;  /* the page that may not be touched */
static void (*meanwhile)(void);

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *placing_alloc(void *context, size_t bytes)
{
    (void)context;
    if (refuse)
        return NULL;
    if (bytes != watched_size || watched)
        return malloc(bytes);
    size_t before = (watched_boundary + page() - 1) / page() * page();
    watched_room = before + bytes + 2 * page();
    watched_pages = mmap(NULL, watched_room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (watched_pages == MAP_FAILED)
        return NULL;
    return watched = (char *)watched_pages + before - watched_boundary;
}

static void placing_free(void *context, void *memory)
{
    (void)context;
    if (memory != watched)
        free(memory);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    void (*events)(void) = meanwhile;
    if (!events)
        _exit(70);
    meanwhile = NULL;
    mprotect(shut, page(), PROT_READ | PROT_WRITE);
    events();
}

/* ---- one story, told with the page in every place ---- */

struct story {
    uint64_t (*before)(void); /* what the writer did; the number that the reader asks for */
    void (*meanwhile)(void);  /* what it does while the reader reads */
    ms_path *owner;           /* whose the node is */
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

/* Tells it once; whether the reader came by the page. */
static bool tell(const struct story *story, ms_path (*ask)(uint64_t), size_t size, size_t boundary, bool below)
{
    ms_options options = {.alloc = placing_alloc, .free = placing_free, .calls_kept = KEPT, .threads_kept = 1};
    watched = NULL;
    watched_size = 0;
    scene_open(&scene, &options);
    watched_size = size;
    watched_boundary = boundary;
    writer = scene_lane(&scene, 7);
    reader = scene_lane(&scene, 8);
    uint64_t number = story->before();
    CHECK(watched);
    meanwhile = story->meanwhile;
    shut = watched + boundary - (below ? page() : 0);
    CHECK(!mprotect(shut, page(), PROT_NONE));
    ms_path got = ask(number);
    bool came_by = !meanwhile;
    mprotect(shut, page(), PROT_READ | PROT_WRITE);
    if (got != *story->owner && got != MS_UNKNOWN)
        FAIL("%s %zu bytes in: path %u, not %u", size == RECORDS ? "records shut" : "thread shut", boundary, got,
             *story->owner);
    scene_close(&scene);
    munmap(watched_pages, watched_room);
    return came_by;
}

static void tell_everywhere(const struct story *story, ms_path (*ask)(uint64_t))
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    unsigned came_by = 0;
    for (size_t at = sizeof(struct ms__record); at < RECORDS; at += sizeof(struct ms__record)) {
        came_by += tell(story, ask, RECORDS, at, true);
        came_by += tell(story, ask, RECORDS, at, false);
    }
    /* A thread's first words are read with the watch's lock held, when nothing can happen. */
    for (size_t at = offsetof(ms_thread, frames); at < sizeof(ms_thread); at += sizeof(void *))
        came_by += tell(story, ask, sizeof(ms_thread), at, false);
    CHECK(came_by > 0);
}

#define STORY(title, before, meanwhile, owner)                                        \
    TEST(title##_when_asked)                                                          \
    {                                                                                 \
        tell_everywhere(&(struct story){before, meanwhile, &(owner)}, by_node_path);  \
    }                                                                                 \
    TEST(title##_when_entered)                                                        \
    {                                                                                 \
        tell_everywhere(&(struct story){before, meanwhile, &(owner)}, by_node_enter); \
    }

/* ---- the ring comes round ---- */

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

STORY(a_first_search_that_the_ring_overtakes_is_right_or_unknown, full_ring, two_calls, scene.a)
STORY(a_later_search_that_the_ring_overtakes_is_right_or_unknown, full_ring_and_a_search_before, two_calls, scene.a)

/* The node is the outer call's own: the search finds an inner call and goes out from there. */
static uint64_t node_of_an_outer_call(bool another_stays_open)
{
    call(writer, scene.a);
    for (int i = 0; i < 40; i++)
        small_call(writer, scene.b, 1);
    uint64_t number = make(writer, 1);
    leave_call(writer);
    if (another_stays_open)
        call(writer, scene.d);
    while (writer->thread->table.count < KEPT)
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

STORY(an_outer_call_overwritten_by_finished_ones_is_right_or_unknown, node_of_an_outer_call_in_a_full_ring, two_calls,
      scene.a)
STORY(an_outer_call_overwritten_by_an_open_one_is_right_or_unknown, node_of_an_outer_call_in_a_full_ring, open_call,
      scene.a)
STORY(an_outer_call_overwritten_by_ones_in_an_open_one_is_right_or_unknown, node_of_an_outer_call_and_another_open,
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

STORY(an_open_call_that_is_opened_anew_is_right_or_unknown, node_of_an_open_call, many_calls, scene.a)

static void leave_and_go_on(void)
{
    leave_call(writer);
    two_calls();
}

STORY(an_open_call_that_ends_is_right_or_unknown, node_of_an_open_call, leave_and_go_on, scene.a)

/* ---- nodes made by a running node ---- */

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

STORY(a_node_that_ends_while_one_it_made_is_looked_up, node_of_a_running_node, end_the_node, scene.a)
STORY(a_node_that_another_follows_while_one_it_made_is_looked_up, node_of_a_running_node, end_the_node_and_run_another,
      scene.a)
STORY(a_node_that_runs_another_while_one_it_made_is_looked_up, node_of_a_running_node, run_another_inside, scene.a)
STORY(a_node_that_makes_a_call_while_one_it_made_is_looked_up, node_of_a_running_node, call_inside, scene.a)

/* ---- what cannot be placed ---- */

static uint64_t node_of_a_refused_call(void)
{
    refuse = true;
    CHECK_EQ(ms_call_enter(writer->thread, scene.a, writer->seq), MS_ENOMEM);
    refuse = false;
    return make(writer, 1);
}

STORY(a_refused_call_that_ends_while_its_node_is_looked_up_is_unknown, node_of_a_refused_call, leave_and_go_on, scene.a)

/* The writer's table goes to another thread, whose numbers are all higher. */
static void let_the_writer_go(void)
{
    ms_thread_close(writer->thread);
    for (uint64_t id = 20; id < 24; id++) {
        struct lane *t = scene_lane(&scene, id);
        t->seq = 1000000;
        small_call(t, scene.d, 1);
        end_lane(t);
    }
}

STORY(a_thread_let_go_while_its_node_is_looked_up_is_right_or_unknown, full_ring, let_the_writer_go, scene.a)
STORY(a_thread_let_go_while_a_node_of_its_open_call_is_looked_up, node_of_an_open_call, let_the_writer_go, scene.a)

#endif
