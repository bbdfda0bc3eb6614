/* test_fork.c - a process forks while other threads use its ledger: the child can use it too. */
#include "forks.h"
#include "modscope_ledger.h"
#include "runner.h"

#define FORKS 150

static struct scene scene;
static ms_ledger *ledger;

static void *hammer(void *argument)
{
    struct lane *t = argument;
    for (uint64_t i = 0; !forks_over(); i++) {
        uint64_t address = t->id << 32 | i % 100;
        call(t, scene.a);
        if (ms_block_add(ledger, t->thread, address, 8, 0) != MS_OK)
            FAIL("block not added");
        leave_call(t);
        if (ms_block_drop(ledger, address) != MS_OK)
            FAIL("block not dropped");
    }
    return NULL;
}

/* 0, or the number of the first step that failed. */
static int use_the_ledger(void)
{
    if (ms_ledger_check(ledger))
        return 1;
    ms_thread *thread = ms_thread_open(scene.watch, 99);
    if (!thread || ms_call_enter(thread, scene.d, 0) != MS_OK)
        return 2;
    if (ms_block_add(ledger, thread, 1, 100, 3) != MS_OK || ms_call_leave(thread, 1) != MS_OK)
        return 3;
    if (ms_ledger_now_of(ledger, 3, scene.d).of[MS_ACTIVATION] != 100)
        return 4;
    ms_ledger_detach(ledger);
    ms_ledger *own = ms_ledger_open(scene.watch);
    return own && ms_ledger_attach(own) == MS_OK && ms_block_drop(own, 1) == MS_ENOBLOCK ? 0 : 5;
}

TEST(a_child_forked_while_threads_use_the_ledger_can_use_it)
{
    forks_open(&scene);
    ledger = ms_ledger_open(scene.watch);
    CHECK(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    forks_run(FORKS, hammer, (void *const[2]){scene_lane(&scene, 7), scene_lane(&scene, 8)}, use_the_ledger);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}
