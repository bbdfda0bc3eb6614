/* test_node_stacks.c - where nodes were created: found from any thread, by number, or not known. */
#include "core/watch/watch.h"
#include "heap.h"
#include "modscope_ledger.h"
#include "runner.h"

#include <pthread.h>

static ms_watch *watch;
static ms_thread *creator, *other;

static void open_threads(void)
{
    watch = ms_watch_open(NULL);
    creator = ms_thread_open(watch, 7);
    other = ms_thread_open(watch, 8);
}

TEST(a_node_is_found_from_every_thread)
{
    open_threads();
    for (uint64_t number = 0; number < 100; number++)
        ms_node_created(creator, number, (ms_stack)(number + 2));
    for (uint64_t number = 0; number < 100; number++) {
        CHECK_EQ(ms_node_stack(other, 7, number), number + 2);
        CHECK_EQ(ms_node_stack(creator, 7, number), number + 2);
    }
    CHECK_EQ(ms_node_enter(other, 7, 50, 0), MS_OK);
    CHECK_EQ(ms_node_stack(other, 7, 50), 52); /* of the creator that was looked up last */
    CHECK_EQ(ms_node_leave(other, 0), MS_OK);
    ms_watch_close(watch);
}

TEST(a_node_that_was_not_seen_is_not_known)
{
    open_threads();
    CHECK_EQ(ms_node_stack(other, 7, 0), MS_STACK_NONE);
    ms_node_created(creator, 1000, 5);
    ms_node_created(creator, 1010, 6);
    CHECK_EQ(ms_node_stack(other, 7, 1000), 5);
    CHECK_EQ(ms_node_stack(other, 7, 1010), 6);
    const uint64_t unseen[] = {0, 999, 1001, 1009, 1011, 1000 + MS__NODES_KEPT, MS_NO_NUMBER, UINT64_MAX - 1};
    for (size_t i = 0; i < sizeof unseen / sizeof *unseen; i++)
        CHECK_EQ(ms_node_stack(other, 7, unseen[i]), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 8, 1000), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 99, 1000), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, MS_ANY_THREAD, 1000), MS_STACK_NONE);
    ms_node_created(creator, 1000, 9); /* numbers that go back: what was known may be of other nodes */
    CHECK_EQ(ms_node_stack(other, 7, 1000), 9);
    CHECK_EQ(ms_node_stack(other, 7, 1010), MS_STACK_NONE);
    ms_watch_close(watch);
}

TEST(the_oldest_nodes_are_forgotten)
{
    open_threads();
    for (uint64_t number = 0; number < MS__NODES_KEPT + 10; number++)
        ms_node_created(creator, number, (ms_stack)(number % 1000 + 2));
    CHECK_EQ(ms_node_stack(other, 7, 9), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 7, 10), 12);
    CHECK_EQ(ms_node_stack(other, 7, MS__NODES_KEPT + 9), (MS__NODES_KEPT + 9) % 1000 + 2);
    ms_node_created(creator, 10 * MS__NODES_KEPT, 3); /* so many were created unseen */
    CHECK_EQ(ms_node_stack(other, 7, MS__NODES_KEPT + 9), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 7, 9 * MS__NODES_KEPT + 12), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 7, 10 * MS__NODES_KEPT), 3);
    ms_watch_close(watch);
}

TEST(a_new_thread_does_not_have_the_nodes_of_an_ended_one)
{
    open_threads();
    ms_node_created(creator, 5, 77);
    ms_thread_close(creator);
    CHECK_EQ(ms_node_stack(other, 7, 5), 77); /* until its memory is used again */
    CHECK_EQ(ms_thread_open(watch, 9) == creator, true);
    CHECK_EQ(ms_node_stack(other, 7, 5), MS_STACK_NONE);
    CHECK_EQ(ms_node_stack(other, 9, 5), MS_STACK_NONE);
    ms_node_created(creator, 0, 4);
    CHECK_EQ(ms_node_stack(other, 9, 0), 4);
    CHECK_EQ(ms_node_stack(other, 9, 5), MS_STACK_NONE);
    ms_watch_close(watch);
}

static void *create_many(void *unused)
{
    (void)unused;
    for (uint64_t number = 0; number < 20 * (uint64_t)MS__NODES_KEPT; number++)
        ms_node_created(creator, number, (ms_stack)(number >> 10) + 2);
    return NULL;
}

TEST(a_reader_never_gets_the_stack_of_a_later_node)
{
    open_threads();
    pthread_t writer;
    CHECK_EQ(pthread_create(&writer, NULL, create_many, NULL), 0);
    for (uint64_t i = 0; i < 300000; i++) {
        uint64_t number = i * 7919 % (20 * (uint64_t)MS__NODES_KEPT);
        ms_stack found = ms_node_stack(other, 7, number);
        CHECK(found == MS_STACK_NONE || found == (number >> 10) + 2);
    }
    pthread_join(writer, NULL);
    ms_watch_close(watch);
}
