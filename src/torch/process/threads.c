/* threads.c - the shared state: the only watch of the process, the threads in it, and fork. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"
#include "torch/virtual/virtual.h"

#include "base/map.h"

#include <pthread.h>

#define X(field) .field = -1,
struct mst_state mst = {
    .layout = {MST_LAYOUT(X)},
    .node_layout = {.number = -1, .thread = -1, .function = -1, .object = -1},
};
#undef X

MST_THREAD_LOCAL ms_thread *mst_this_thread;
MST_THREAD_LOCAL struct mst_call *mst_open_call;

static pthread_key_t thread_key;         /* its destructor closes a thread that ends */
static _Atomic uint64_t own_next_id = 1; /* where torch numbers no threads */

static void close_thread(void *thread)
{
    mst_this_thread = NULL;
    ms_thread_close(thread);
}

static void before_fork(void)
{
    mst_gradient_setters_before_fork();
    mst_virtual_lock(); /* first: it is held while a block is reported, which takes the others */
    mst_owners_lock();
    mst_devices_lock();
    ms_watch_lock(mst.watch);
}

static void after_fork(void)
{
    ms_watch_unlock(mst.watch);
    mst_devices_unlock();
    mst_owners_unlock();
    mst_virtual_unlock();
}

static void after_fork_in_child(void)
{
    mst_gradient_setters_forked(mst_accumulations_forked());
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

static bool runs_python(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    Py_XDECREF(frame);
    return frame != NULL;
}

bool mst_other_threads_run_python(void)
{
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    while (thread && (thread == here || !runs_python(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}

/* The ids of the Python threads that train, those that have ended included until there are too many; guarded by the
 * GIL. A Python thread ends before its pthread does, so the pthread's end would come too late. */
static struct ms__map training;
static unsigned training_count, training_cleared;
static MST_THREAD_LOCAL uint64_t training_id;      /* the id under which this thread is in the map */
static MST_THREAD_LOCAL unsigned training_version; /* training_cleared at that time */

static uint64_t id_of(PyThreadState *thread)
{
    return PyThreadState_GetID(thread) + 1; /* 0 is the training_id of a thread that is not in the map. */
}

void mst_thread_trains(void)
{
    enum { MOST_REMEMBERED = 1024 };
    uint64_t id = id_of(PyThreadState_Get());
    if (LIKELY(training_id == id && training_version == training_cleared))
        return;
    if (training_count >= MOST_REMEMBERED) {
        ms__map_clear(&training);
        training_count = 0;
        training_cleared++;
    }
    if (ms__map_set(&training, id, 1)) {
        training_id = id;
        training_version = training_cleared;
        training_count++;
    }
}

bool mst_other_threads_train(void)
{
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = training_count ? PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here)) : NULL;
    /* Autograd's threads call modules when they recompute, and then wait without a frame for the next backward. */
    while (thread && (thread == here || !ms__map_has(&training, id_of(thread)) || !runs_python(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}
