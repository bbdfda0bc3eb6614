/* server.c - a process of its own that asks cuDNN. It reads convolutions (mst_convolution) from a socket and writes a
 * plan (mst_plan) for each, until the other end is closed. First it writes whether it can. */
#define _GNU_SOURCE
#include "torch/api/api.h"
#include "torch/plans/plans.h"
#include "torch/process/process.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST_SECONDS = 600 /* of processor time, for all answers */ };

struct what { /* to be loaded */
    const char *library, *description, *driver, *before;
    long long hopper_processors;
};

struct hello {
    int64_t version, pid;
    char reason[MST_REASON]; /* where the version is 0 */
};

/* The library stays until the process ends. Returns whether it is there. */
static bool load_for_all(const char *path, int mode)
{
    static void *latest;
    latest = dlopen(path, RTLD_LAZY | RTLD_GLOBAL | mode);
    return latest != NULL;
}

/* cuDNN opens the driver's library to load the kernels of some plans. Where there is none, it finds ours, which says
 * that each is loaded: that one has the driver's name inside. */
static void load_driver(const char *ours)
{
    if (!load_for_all("libcuda.so.1", RTLD_NOLOAD))
        (void)load_for_all(ours, 0);
}

/* The libraries that cuDNN opens by their names are in folders that it does not search. `paths`: one a line. */
static void load_before(const char *paths)
{
    for (const char *path = paths; *path;) {
        size_t length = strcspn(path, "\n");
        char *one = strndup(path, length);
        if (one && *one)
            (void)load_for_all(one, 0);
        free(one);
        path += length + (path[length] == '\n');
    }
}

static void serve(int end, const void *argument)
{
    const struct what *what = argument;
    struct hello hello = {.pid = getpid()};
    setrlimit(RLIMIT_CPU, &(struct rlimit){MOST_SECONDS, MOST_SECONDS});
    load_driver(what->driver);
    load_before(what->before);
    hello.version = mst_cudnn_open(what->library, what->description, what->hopper_processors, hello.reason);
    if (write(end, &hello, sizeof hello) != (ssize_t)sizeof hello || !hello.version)
        return;
    mst_convolution asked;
    while (read(end, &asked, sizeof asked) == (ssize_t)sizeof asked) {
        mst_plan plan = mst_cudnn_plan(&asked);
        if (write(end, &plan, sizeof plan) != (ssize_t)sizeof plan)
            return;
    }
}

static PyObject *plans_open(PyObject *self, PyObject *args)
{
    (void)self;
    struct what what;
    if (!PyArg_ParseTuple(args, "ssssL:plans_open", &what.library, &what.description, &what.driver, &what.before,
                          &what.hopper_processors))
        return NULL;
    int end = mst_fork_apart(serve, &what);
    return end < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(end);
}

PyMethodDef mst_plans_methods[] = {
    {"plans_open", plans_open, METH_VARARGS,
     "Start a process that asks cuDNN: (library, description of the device, a library for the driver's place, "
     "libraries\n"
     "to load before, one a line, multiprocessors if it is Hopper's or 0). The number of a socket for packets, which "
     "answers as src/torch/plans/server.c "
     "says."},
    {NULL, NULL, 0, NULL},
};
