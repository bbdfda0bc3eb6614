/* test_stacks.c - every distinct frame in its context is one stack; the table is bounded, and says what it lost. */
#include "heap.h"
#include "modscope_ledger.h"
#include "runner.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static ms_frame frame_at(const char *file, const char *function, uint32_t line, ms_stack outer)
{
    return (ms_frame){.file = file, .function = function, .line = line, .outer = outer};
}

TEST(equal_frames_in_the_same_context_are_one_stack)
{
    ms_watch *watch = ms_watch_open(NULL);
    ms_frame main_frame = frame_at("train.py", "main", 10, MS_STACK_NONE), found;
    CHECK_EQ(ms_stack_count(watch), MS_STACK_LOST + 1);
    ms_stack main_stack = ms_stack_add(watch, &main_frame);
    char file[] = "model.py", function[] = "forward"; /* the texts are copied */
    ms_frame inner = frame_at(file, function, 3, main_stack);
    ms_stack stack = ms_stack_add(watch, &inner);
    CHECK_EQ(ms_stack_add(watch, &inner), stack);
    file[0] = function[0] = '?';
    CHECK(ms_stack_frame(watch, stack, &found));
    CHECK(strcmp(found.file, "model.py") == 0 && strcmp(found.function, "forward") == 0);
    CHECK_EQ(found.line, 3);
    CHECK_EQ(found.outer, main_stack);
    inner = frame_at("model.py", "forward", 3, MS_STACK_NONE);
    CHECK(ms_stack_add(watch, &inner) != stack);
    inner = frame_at("model.py", "forward", 4, main_stack);
    CHECK(ms_stack_add(watch, &inner) != stack);
    inner = frame_at("model.py", "forward", 3, main_stack);
    char called[] = "torch.relu";
    inner.called = called;
    ms_stack calling = ms_stack_add(watch, &inner);
    CHECK(calling != stack && ms_stack_add(watch, &inner) == calling);
    called[0] = '?';
    CHECK(ms_stack_add(watch, &inner) != calling);
    CHECK(ms_stack_frame(watch, calling, &found) && strcmp(found.called, "torch.relu") == 0);
    inner = (ms_frame){.function = "AddmmBackward0", .outer = stack};
    CHECK(ms_stack_frame(watch, ms_stack_add(watch, &inner), &found));
    CHECK(!found.file && found.outer == stack && !found.forward);
    ms_stack node = ms_stack_add(watch, &inner);
    inner.forward = main_stack;
    CHECK(ms_stack_add(watch, &inner) != node);
    CHECK(ms_stack_frame(watch, ms_stack_add(watch, &inner), &found) && found.forward == main_stack);
    inner.forward = 4711; /* there is no such stack */
    CHECK_EQ(ms_stack_add(watch, &inner), node);
    CHECK_EQ(ms_stacks_lost(watch), 0);
    ms_watch_close(watch);
}

TEST(a_stack_that_is_not_there_has_no_frame)
{
    ms_watch *watch = ms_watch_open(NULL);
    ms_frame frame = frame_at("a", "b", 1, 77);
    CHECK(!ms_stack_frame(watch, MS_STACK_NONE, &frame));
    CHECK(!ms_stack_frame(watch, MS_STACK_LOST, &frame));
    CHECK(!ms_stack_frame(watch, 2, &frame));
    CHECK_EQ(ms_stack_add(watch, &frame), MS_STACK_LOST); /* there is no stack 77 around it */
    CHECK_EQ(ms_stacks_lost(watch), 1);
    ms_watch_close(watch);
}

TEST(more_stacks_than_fit_are_lost_and_counted)
{
    ms_watch *watch = ms_watch_open(NULL);
    ms_stack last = 0;
    for (uint32_t line = 1; line <= MS_STACKS_MAX + 10; line++) {
        ms_frame frame = frame_at("a.py", "f", line, MS_STACK_NONE);
        last = ms_stack_add(watch, &frame);
    }
    CHECK_EQ(last, MS_STACK_LOST);
    CHECK_EQ(ms_stack_count(watch), MS_STACKS_MAX);
    CHECK_EQ(ms_stacks_lost(watch), 10 + MS_STACK_LOST + 1);
    ms_frame known = frame_at("a.py", "f", 1, MS_STACK_NONE);
    CHECK_EQ(ms_stack_add(watch, &known), MS_STACK_LOST + 1);
    ms_watch_close(watch);
}

TEST(more_text_than_fits_is_lost_and_counted)
{
    static char text[1 << 16];
    ms_watch *watch = ms_watch_open(NULL);
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < MS_STACK_TEXT_MAX / (int)sizeof text + 2; i++) {
        snprintf(text, sizeof text, "%d", i);
        text[strlen(text)] = 'x';
        ms_frame frame = frame_at(text, "f", 1, MS_STACK_NONE);
        ms_stack_add(watch, &frame);
    }
    CHECK(ms_stacks_lost(watch) > 0 && ms_stacks_lost(watch) <= 3);
    ms_watch_close(watch);
}

TEST(a_refused_allocation_loses_the_stack_and_nothing_else)
{
    for (long refused = 1; refused < 12; refused++) {
        struct heap heap = {0};
        ms_options options = heap_options(&heap);
        ms_watch *watch = ms_watch_open(&options);
        ms_frame frame = frame_at("a.py", "f", 1, MS_STACK_NONE), found;
        heap.refuse_at = heap.asked + refused;
        ms_stack first = ms_stack_add(watch, &frame);
        CHECK_EQ(first == MS_STACK_LOST, heap.refused > 0);
        heap.refuse_at = 0;
        ms_stack again = ms_stack_add(watch, &frame);
        CHECK(again > MS_STACK_LOST && (first == MS_STACK_LOST || first == again));
        CHECK(ms_stack_frame(watch, again, &found) && strcmp(found.file, "a.py") == 0);
        ms_watch_close(watch);
        CHECK_EQ(heap.live, 0);
    }
}

static void *add_lines(void *watch)
{
    for (uint32_t line = 1; line <= 5000; line++) {
        ms_frame frame = frame_at("a.py", "f", line, MS_STACK_NONE), found;
        ms_stack stack = ms_stack_add(watch, &frame);
        if (!ms_stack_frame(watch, stack, &found) || found.line != line)
            return watch;
    }
    return NULL;
}

TEST(threads_add_the_same_stacks_at_once)
{
    ms_watch *watch = ms_watch_open(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, add_lines, watch);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        CHECK(!wrong);
    }
    CHECK_EQ(ms_stack_count(watch), 5000 + MS_STACK_LOST + 1);
    ms_watch_close(watch);
}
