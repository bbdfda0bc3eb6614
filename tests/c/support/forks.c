/* forks.c - forking while threads use the core. */
#define _GNU_SOURCE
#include "forks.h"

#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARENA ((size_t)1 << 28)

static ms_watch *watch;
static atomic_bool stop;
static unsigned char *arena;
static atomic_size_t arena_used;

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
    ms_watch_lock(watch);
}

static void unlock(void)
{
    ms_watch_unlock(watch);
}

void forks_open(struct scene *scene)
{
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(arena != MAP_FAILED);
    ms_options options = {.alloc = arena_alloc, .free = arena_free, .calls_kept = 256};
    scene_open(scene, &options);
    watch = scene->watch;
    CHECK(!pthread_atfork(lock, unlock, unlock));
}

bool forks_over(void)
{
    return atomic_load(&stop);
}

static void fork_one(int number, int (*use)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(20);
        _exit(use());
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        FAIL("child %d was killed by signal %d", number, WTERMSIG(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

void forks_run(int count, void *(*hammer)(void *), void *const arguments[2], int (*use)(void))
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, hammer, arguments[i]));
    for (int i = 0; i < count; i++)
        fork_one(i, use);
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}
