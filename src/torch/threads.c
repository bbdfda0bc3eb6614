/* threads.c - the only watch of the process, the threads in it, and fork. */
#include "torch/threads.h"

#include "torch/api.h"
#include "torch/claims.h"
#include "torch/devices.h"

#include <pthread.h>

static pthread_key_t thread_key;         /* its destructor closes a thread that ends */
static _Atomic uint64_t own_next_id = 1; /* where torch numbers no threads */
static _Atomic uint32_t training_threads;
static MST_THREAD_LOCAL bool trains; /* this thread is one of them */

static void close_thread(void *thread)
{
    mst_this_thread = NULL;
    if (trains)
        atomic_fetch_sub(&training_threads, 1);
    trains = false;
    ms_thread_close(thread);
}

static void before_fork(void)
{
    mst_gradient_setters_before_fork();
    mst_owners_lock();
    mst_devices_lock();
    ms_watch_lock(mst.watch);
}

static void after_fork(void)
{
    ms_watch_unlock(mst.watch);
    mst_devices_unlock();
    mst_owners_unlock();
}

static void after_fork_in_child(void)
{
    mst_gradient_setters_forked(mst_accumulations_forked());
    atomic_store(&training_threads, trains ? 1 : 0);
    after_fork();
    mst_captures_forked();
    mst_trackers_forked();
}

int mst_threads_init(void)
{
    mst.watch = ms_watch_open(NULL);
    if (!mst.watch) {
        PyErr_NoMemory();
        return -1;
    }
    ms_device_set_name(mst.watch, 0, "cpu");
    if (pthread_key_create(&thread_key, close_thread) != 0 ||
        pthread_atfork(before_fork, after_fork, after_fork_in_child) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "modscope: this system does not support thread-specific data or fork handlers");
        return -1;
    }
    return 0;
}

/* torch numbers threads from 1 and stores the number in every node that the thread creates. */
static uint64_t this_thread_id(void)
{
    return mst.torch.thread_id ? mst.torch.thread_id() : atomic_fetch_add(&own_next_id, 1);
}

ms_thread *mst_thread_open(void)
{
    ms_thread *thread = ms_thread_open(mst.watch, this_thread_id());
    if (!thread)
        return NULL;
    if (pthread_setspecific(thread_key, thread) != 0) {
        ms_thread_close(thread);
        return NULL;
    }
    mst_this_thread = thread;
    return thread;
}

/* ---- other threads ---- */

bool mst_other_threads_run_python(void)
{
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    for (; thread; thread = PyThreadState_Next(thread)) {
        PyFrameObject *frame = thread == here ? NULL : PyThreadState_GetFrame(thread);
        Py_XDECREF(frame);
        if (frame)
            return true;
    }
    return false;
}

void mst_thread_trains(void)
{
    if (LIKELY(trains) || !mst_this_thread)
        return;
    trains = true;
    atomic_fetch_add(&training_threads, 1);
}

/* The count alone would include threads that Python has joined and that have not ended yet. */
bool mst_other_threads_train(void)
{
    return atomic_load(&training_threads) > (trains ? 1u : 0u) && mst_other_threads_run_python();
}
