/* test_ledger_fork.c - a process forks while other threads are at its ledger: the child can go on. */
#define _GNU_SOURCE
#include "modscope_ledger.h"
#include "runner.h"
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 150
#define ARENA ((size_t)1 << 28)

static struct scene scene;
static ms_ledger *ledger;
static atomic_bool stop;
static unsigned char *arena;
static atomic_size_t arena_used;

/* Takes no lock, so that what is tested is the ledger's lock and not the allocator's. */
static void *arena_alloc(void *context, size_t bytes)
{
    (void)context;
    size_t wanted = (bytes + 15) & ~(size_t)15;
    size_t at = atomic_fetch_add(&arena_used, wanted);
    return at + wanted <= ARENA ? arena + at : NULL;
}

static void arena_free(void *context, void *memory)
{
    (void)context;
    (void)memory;
}

static void lock(void)
{
    ms_watch_lock(scene.watch);
}

static void unlock(void)
{
    ms_watch_unlock(scene.watch);
}

static void *hammer(void *argument)
{
    struct lane *t = argument;
    for (uint64_t i = 0; !atomic_load(&stop); i++) {
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

/* 0 if all is well, else which step was not. */
static int use_the_ledger(void)
{
    if (ms_ledger_broken(ledger))
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
    return own && ms_ledger_attach(own) == MS_OK && ms_block_drop(own, 1) == MS_EABSENT ? 0 : 5;
}

TEST(a_child_forked_while_threads_are_at_the_ledger_can_use_it)
{
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(arena != MAP_FAILED);
    ms_options options = {.alloc = arena_alloc, .free = arena_free, .calls_kept = 256};
    scene_open(&scene, &options);
    ledger = ms_ledger_open(scene.watch);
    CHECK(ledger);
    CHECK_EQ(ms_ledger_attach(ledger), MS_OK);
    CHECK(!pthread_atfork(lock, unlock, unlock));
    pthread_t threads[2];
    for (uint64_t i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, hammer, scene_lane(&scene, 7 + i)));
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(20);
            _exit(use_the_ledger());
        }
        int status = 0;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        if (WIFSIGNALED(status))
            FAIL("child %d was killed by signal %d", i, WTERMSIG(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(ms_ledger_blocks(ledger), 0);
    ms_ledger_detach(ledger);
    ms_ledger_close(ledger);
    scene_close(&scene);
}
