/* threads.c - the one watch of the process, and each thread's part in it. */
#include "torch/memory.h"

#include <pthread.h>

ms_watch *mst_watch;
MST_THREAD_LOCAL ms_thread *mst_mine;

static pthread_key_t ending;
static _Atomic uint64_t next_id = 1;

static void thread_ended(void *thread)
{
    mst_mine = NULL;
    ms_thread_close(thread);
}

static void before_fork(void)
{
    mst_owners_lock();
    mst_devices_lock();
    ms_watch_lock(mst_watch);
}

static void after_fork(void)
{
    ms_watch_unlock(mst_watch);
    mst_devices_unlock();
    mst_owners_unlock();
}

static void after_fork_in_child(void)
{
    after_fork();
    mst_captures_forked();
    mst_tracker_forked();
}

int mst_threads_init(void)
{
    mst_watch = ms_watch_open(NULL);
    if (!mst_watch) {
        PyErr_NoMemory();
        return -1;
    }
    ms_device_set_name(mst_watch, 0, "cpu");
    if (pthread_key_create(&ending, thread_ended) != 0 ||
        pthread_atfork(before_fork, after_fork, after_fork_in_child) != 0) {
        PyErr_SetString(PyExc_ImportError, "modscope: cannot follow threads on this system");
        return -1;
    }
    return 0;
}

/* torch numbers threads from 1 and writes the number into every node. */
static uint64_t my_id(void)
{
    return mst_torch.thread_id ? mst_torch.thread_id() : atomic_fetch_add(&next_id, 1);
}

ms_thread *mst_thread_open(void)
{
    ms_thread *thread = ms_thread_open(mst_watch, my_id());
    if (!thread)
        return NULL;
    if (pthread_setspecific(ending, thread) != 0) {
        ms_thread_close(thread);
        return NULL;
    }
    mst_mine = thread;
    return thread;
}
