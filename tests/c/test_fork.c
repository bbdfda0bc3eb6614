/* test_fork.c - a process forks while other threads use the watch: the child can go on. */
#define _GNU_SOURCE
#include "runner.h"
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 200
#define ARENA ((size_t)1 << 28)

static struct scene scene;
static atomic_bool stop;
static unsigned char *arena;
static atomic_size_t arena_used;

/* Takes no lock, so that what is tested is the watch's lock and not the allocator's. */
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
    uint64_t id = *(const uint64_t *)argument;
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        char name[24];
        ms_path path = 0;
        snprintf(name, sizeof name, "p%u", i % 5000);
        ms_path_add(scene.watch, MS_GLOBAL, name, &path);
        ms_thread *thread = ms_thread_open(scene.watch, id + i);
        if (thread)
            ms_thread_close(thread);
    }
    return NULL;
}

/* 0 if all is well, else which step was not. */
static int use_the_watch(void)
{
    ms_path path = 0;
    if (ms_path_add(scene.watch, scene.a, "child", &path) != MS_OK || strcmp(ms_path_name(scene.watch, path), "child"))
        return 1;
    ms_thread *thread = ms_thread_open(scene.watch, 99);
    if (!thread)
        return 2;
    if (ms_call_enter(thread, path, 0) != MS_OK || ms_call_leave(thread, 1) != MS_OK)
        return 3;
    if (ms_node_path(scene.watch, 99, 0) != path)
        return 4;
    if (ms_node_path(scene.watch, 7, 0) != scene.a)
        return 5;
    return 0;
}

TEST(a_child_forked_while_threads_use_the_watch_can_use_it)
{
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(arena != MAP_FAILED);
    ms_options options = {.alloc = arena_alloc, .free = arena_free, .calls_kept = 256};
    scene_open(&scene, &options);
    small_call(scene_lane(&scene, 7), scene.a, 1);
    CHECK(!pthread_atfork(lock, unlock, unlock));
    pthread_t threads[2];
    uint64_t ids[2] = {UINT64_C(1) << 32, UINT64_C(2) << 32};
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, hammer, &ids[i]));
    for (int i = 0; i < FORKS; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(20);
            _exit(use_the_watch());
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
    scene_close(&scene);
}
