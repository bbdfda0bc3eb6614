/* test_threads.c - real threads: one makes calls and nodes while others ask and run them.
 * Clean under the thread sanitizer. */
#include "runner.h"
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define QUEUE 64
#define READERS 3

struct item {
    uint64_t creator, number;
    ms_path owner;
};

/* Passes nodes from thread to thread, as the engine's queue does. */
struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item items[QUEUE]; /* guarded by lock */
    unsigned head, count;     /* guarded by lock */
    bool over;                /* guarded by lock */
};

static struct scene scene;
static struct queue queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static atomic_ulong known, unknown;
static atomic_bool stop;

static void put(struct item item)
{
    pthread_mutex_lock(&queue.lock);
    while (queue.count == QUEUE)
        pthread_cond_wait(&queue.changed, &queue.lock);
    queue.items[(queue.head + queue.count++) % QUEUE] = item;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
}

static bool get(struct item *item)
{
    pthread_mutex_lock(&queue.lock);
    while (!queue.count && !queue.over)
        pthread_cond_wait(&queue.changed, &queue.lock);
    bool got = queue.count > 0;
    if (got) {
        *item = queue.items[queue.head++ % QUEUE];
        queue.count--;
        pthread_cond_broadcast(&queue.changed);
    }
    pthread_mutex_unlock(&queue.lock);
    return got;
}

static void end_queue(void)
{
    pthread_mutex_lock(&queue.lock);
    queue.over = true;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
}

static void check_answer(ms_path got, ms_path wanted)
{
    if (got == wanted)
        atomic_fetch_add(&known, 1);
    else if (got == MS_UNKNOWN)
        atomic_fetch_add(&unknown, 1);
    else
        FAIL("path %u instead of %u", got, wanted);
}

/* Creates nodes in a, a.b, a.b.c and outside, and passes each on. */
static void make_and_put(struct lane *t, ms_path path)
{
    uint64_t number = make(t, 1);
    put((struct item){t->id, number, path});
}

static void produce(struct lane *t, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        call(t, scene.a);
        make_and_put(t, scene.a);
        call(t, scene.b);
        make_and_put(t, scene.b);
        call(t, scene.c);
        make_and_put(t, scene.c);
        leave_call(t);
        leave_call(t);
        for (int k = 0; k < 20; k++)
            small_call(t, scene.d, 1);
        make_and_put(t, scene.a);
        leave_call(t);
        make_and_put(t, MS_GLOBAL);
    }
}

/* Runs the nodes that are passed on, creates nodes in them, and looks those up too. */
static void *consume(void *argument)
{
    struct lane *t = argument;
    struct item item;
    while (get(&item)) {
        check_answer(ms_node_path(scene.watch, item.creator, item.number), item.owner);
        if (ms_node_enter(t->thread, item.creator, item.number, t->seq) != MS_OK)
            FAIL("node not entered");
        ms_path running = ms_thread_path(t->thread);
        check_answer(running, item.owner);
        uint64_t mine = make(t, 1);
        if (ms_node_leave(t->thread, t->seq) != MS_OK)
            FAIL("node not left");
        check_answer(ms_node_path(scene.watch, t->id, mine), running);
    }
    return NULL;
}

/* Asks for old nodes over and over, so that some are overwritten while they are looked up. */
static void *pester(void *argument)
{
    const struct lane *t = argument;
    while (!atomic_load(&stop))
        for (uint64_t number = 0; number < 300; number += 7)
            check_answer(ms_node_path(scene.watch, t->id, number), scene.a);
    return NULL;
}

static void produce_and_consume(uint32_t calls_kept, int rounds)
{
    ms_options options = {.calls_kept = calls_kept};
    scene_open(&scene, &options);
    struct lane *creator = scene_lane(&scene, 1);
    pthread_t threads[READERS];
    for (uint64_t i = 0; i < READERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, consume, scene_lane(&scene, 10 + i)));
    produce(creator, rounds);
    end_queue();
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&known) > 0);
    scene_close(&scene);
}

TEST(threads_with_a_small_ring_are_right_or_unknown)
{
    produce_and_consume(256, 5000);
}

TEST(threads_with_a_big_ring_are_never_unknown)
{
    produce_and_consume(1 << 17, 2000);
    CHECK_EQ(atomic_load(&unknown), 0);
}

TEST(a_reader_of_old_nodes_is_right_or_unknown_while_the_ring_comes_round)
{
    for (int round = 0; round < 30; round++) {
        scene_open_small(&scene);
        struct lane *creator = scene_lane(&scene, 1);
        for (int i = 0; i < 100; i++) {
            call(creator, scene.a);
            make(creator, 3);
            leave_call(creator);
        }
        atomic_store(&stop, false);
        pthread_t reader;
        CHECK(!pthread_create(&reader, NULL, pester, creator));
        for (int i = 0; i < 2000; i++) {
            call(creator, scene.d);
            make(creator, 1);
            small_call(creator, scene.b, 1);
            leave_call(creator);
        }
        atomic_store(&stop, true);
        pthread_join(reader, NULL);
        scene_close(&scene);
    }
}

/* ---- threads that come and go ---- */

static atomic_ulong next_id = 100, last_id;

/* Each thread makes one call of `a` or of `d`, as its id says, and ends. */
static void *come_and_go(void *unused)
{
    (void)unused;
    for (int i = 0; i < 500; i++) {
        uint64_t id = atomic_fetch_add(&next_id, 1);
        ms_thread *thread = ms_thread_open(scene.watch, id);
        if (!thread)
            FAIL("thread not opened");
        ms_call_enter(thread, id % 2 ? scene.a : scene.d, 0);
        ms_call_leave(thread, 1);
        atomic_store(&last_id, id);
        ms_thread_close(thread);
    }
    return NULL;
}

static void *run_their_nodes(void *argument)
{
    struct lane *t = argument;
    while (!atomic_load(&stop)) {
        uint64_t id = atomic_load(&last_id);
        if (!id)
            continue;
        if (ms_node_enter(t->thread, id, 0, t->seq) != MS_OK)
            FAIL("node not entered");
        check_answer(ms_thread_path(t->thread), id % 2 ? scene.a : scene.d);
        ms_node_leave(t->thread, t->seq);
    }
    return NULL;
}

TEST(threads_that_come_and_go_are_right_or_unknown)
{
    ms_options options = {.calls_kept = 256, .threads_kept = 2};
    scene_open(&scene, &options);
    pthread_t creators[2], reader;
    CHECK(!pthread_create(&reader, NULL, run_their_nodes, scene_lane(&scene, 1)));
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&creators[i], NULL, come_and_go, NULL));
    for (int i = 0; i < 2; i++)
        pthread_join(creators[i], NULL);
    atomic_store(&stop, true);
    pthread_join(reader, NULL);
    scene_close(&scene);
}

/* ---- paths ---- */

static void *add_paths(void *unused)
{
    (void)unused;
    ms_path parent = scene.a;
    for (int i = 0; i < 3000; i++) {
        char name[3] = {(char)('a' + i % 26), (char)('a' + i / 26 % 26), 0};
        ms_path path = 0;
        if (ms_path_add(scene.watch, parent, name, &path) != MS_OK)
            FAIL("path not added");
        if (ms_path_parent(scene.watch, path) != parent || ms_path_name(scene.watch, path)[0] != name[0])
            FAIL("path %u is not what was added", path);
        if (ms_path_depth(scene.watch, path) != ms_path_depth(scene.watch, parent) + 1)
            FAIL("path %u is not one deeper", path);
        parent = i % 100 ? parent : path;
    }
    return NULL;
}

TEST(threads_that_add_the_same_paths_get_the_same)
{
    scene_open(&scene, NULL);
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_create(&threads[i], NULL, add_paths, NULL));
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    ms_path next = 0;
    CHECK_EQ(ms_path_add(scene.watch, MS_GLOBAL, "one more", &next), MS_OK);
    CHECK_EQ(next, scene.d + 3000 + 1);
    scene_close(&scene);
}
