/* capture_writer_api.c - the type through which Python begins and ends a capture. */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

#include "modscope_capture.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct capture {
    PyObject_HEAD
    ms_capture *capture; /* NULL: it has ended, or belongs to the parent process */
    PyObject *ledger;
    struct capture *next;   /* in open_captures */
    ms_capture_status last; /* the status at its end */
    int fd;
    bool watches_sigterm;
    struct stat file; /* identifies the file that fd was opened for */
} capture;

static capture *open_captures;

/* The lowest number for our file descriptor: above those that the program gets for its own files. */
static int lowest_fd(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < 200)
        return 3;
    return limit.rlim_cur < 4096 ? (int)limit.rlim_cur - 60 : 4000;
}

/* A dict of str to str as alternating keys and values, with a NULL at the end. The strings are borrowed from
 * the dict, the array must be freed. NULL with an error set. */
static const char **pairs_of(PyObject *dict)
{
    const char **pairs = PyMem_Calloc((size_t)PyDict_GET_SIZE(dict) * 2 + 1, sizeof *pairs);
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (!pairs)
        return (const char **)PyErr_NoMemory();
    for (size_t i = 0; PyDict_Next(dict, &position, &key, &value); i += 2) {
        pairs[i] = PyUnicode_AsUTF8(key);
        pairs[i + 1] = pairs[i] ? PyUnicode_AsUTF8(value) : NULL;
        if (!pairs[i + 1]) {
            PyMem_Free(pairs);
            return NULL;
        }
    }
    return pairs;
}

/* ---- begin and end ---- */
static int begin_capture(capture *self, PyObject *info)
{
    const char **pairs = pairs_of(info);
    if (!pairs)
        return -1;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = ms_capture_begin(mst_ledger_of(self->ledger), self->fd, pairs, &self->capture);
    Py_END_ALLOW_THREADS
    PyMem_Free(pairs);
    if (error == MS_EIO)
        PyErr_SetFromErrno(PyExc_OSError);
    else if (error)
        PyErr_SetString(PyExc_MemoryError, ms_error_text(error));
    return error ? -1 : 0;
}

/* CaptureWriter(ledger, fd, info): the file descriptor is duplicated, so the caller may close it. */
static PyObject *capture_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"ledger", "fd", "info", NULL};
    PyObject *ledger, *info;
    int fd;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!iO!:CaptureWriter", names, &mst_ledger_type, &ledger, &fd,
                                     &PyDict_Type, &info))
        return NULL;
    capture *self = (capture *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->ledger = Py_NewRef(ledger);
    self->fd = fcntl(fd, F_DUPFD_CLOEXEC, lowest_fd());
    if (self->fd < 0) /* That number is above the limit. */
        self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (self->fd >= 0)
        fstat(self->fd, &self->file);
    if (self->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    } else if (begin_capture(self, info) != 0) {
        Py_CLEAR(self);
    } else {
        self->next = open_captures;
        open_captures = self;
        mst_cuda_times_recording();
        mst_collectives_begin(mst_ledger_of(self->ledger));
    }
    return (PyObject *)self;
}

static void remove_open_capture(capture *self)
{
    capture **at = &open_captures;
    while (*at && *at != self)
        at = &(*at)->next;
    if (*at)
        *at = self->next;
}

static void end_capture(capture *self, const char *const *pairs)
{
    ms_capture *ending = self->capture;
    if (!ending)
        return;
    mst_cuda_times_note();
    self->capture = NULL;
    remove_open_capture(self);
    if (!open_captures)
        mst_collectives_end();
    if (self->watches_sigterm)
        mst_sigterm_forget();
    ms_capture_status last = {0};
    Py_BEGIN_ALLOW_THREADS
    last = ms_capture_end(ending, pairs);
    Py_END_ALLOW_THREADS
    self->last = last;
    if (self->watches_sigterm)
        mst_sigterm_ended(&last);
}

static void capture_dealloc(capture *self)
{
    end_capture(self, NULL);
    struct stat now; /* The program may have closed fd, and its number may belong to another file now. */
    if (self->fd >= 0 && fstat(self->fd, &now) == 0 && now.st_dev == self->file.st_dev &&
        now.st_ino == self->file.st_ino)
        close(self->fd);
    Py_XDECREF(self->ledger);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

void mst_captures_end(void)
{
    while (open_captures)
        end_capture(open_captures, NULL);
}

void mst_captures_forked(void)
{
    mst_cuda_times_forked();
    mst_collectives_forked();
    for (; open_captures; open_captures = open_captures->next) {
        ms_capture_abandon(open_captures->capture);
        open_captures->capture = NULL;
        if (open_captures->watches_sigterm)
            mst_sigterm_forget();
    }
}

/* ---- around fork ---- */

/* The GIL stays held, so that no capture begins or ends meanwhile. The writing thread never needs it. */
static PyObject *pause_captures(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (capture *each = open_captures; each; each = each->next)
        ms_capture_pause(each->capture);
    Py_RETURN_NONE;
}

static int resume_now(void *unused)
{
    (void)unused;
    for (capture *each = open_captures; each; each = each->next)
        if (!ms_capture_resume(each->capture) && each->watches_sigterm)
            mst_sigterm_forget();
    return 0;
}

/* From 3.12 on Python warns of a fork in a process with several threads, and 3.13 counts them after this: the writing
 * threads begin when the main thread goes on with Python's code. Other threads' forks do not wait for the main one. */
static PyObject *resume_captures(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    bool later = PY_VERSION_HEX >= 0x030d0000 && mst_in_main_thread();
    if (!later || Py_AddPendingCall(resume_now, NULL) != 0)
        resume_now(NULL);
    Py_RETURN_NONE;
}

PyMethodDef mst_capture_methods[] = {
    {"pause_captures", pause_captures, METH_NOARGS, "Before a fork: end the threads that write captures."},
    {"resume_captures", resume_captures, METH_NOARGS, "After a fork, in the parent: start them again."},
    {NULL, NULL, 0, NULL},
};

/* ---- from Python ---- */
static PyObject *capture_status(capture *self, PyObject *unused)
{
    (void)unused;
    ms_capture_status now = self->capture ? ms_capture_get_status(self->capture) : self->last;
    const char *why = now.truncated ? "another program truncated the file" : now.error ? strerror(now.error) : NULL;
    PyObject *error = why ? PyUnicode_FromString(why) : Py_NewRef(Py_None);
    return error ? Py_BuildValue("(KKKN)", now.events, now.lost, now.bytes, error) : NULL;
}

static PyObject *capture_end(capture *self, PyObject *info)
{
    if (!PyDict_Check(info)) {
        PyErr_SetString(PyExc_TypeError, "expected a dict of str to str");
        return NULL;
    }
    const char **pairs = pairs_of(info);
    if (!pairs)
        return NULL;
    mst_collectives_name_groups();
    end_capture(self, pairs);
    PyMem_Free(pairs);
    return capture_status(self, NULL);
}

static PyObject *capture_flush(capture *self, PyObject *unused)
{
    (void)unused;
    ms_capture *open = self->capture;
    if (open) {
        Py_BEGIN_ALLOW_THREADS
        ms_capture_flush(open);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *capture_watch_sigterm(capture *self, PyObject *args)
{
    const char *before, *after;
    if (!PyArg_ParseTuple(args, "ss:watch_sigterm", &before, &after))
        return NULL;
    if (self->capture && mst_sigterm_watch(self->capture, before, after))
        self->watches_sigterm = true;
    return PyBool_FromLong(self->watches_sigterm);
}

static PyObject *capture_tell_rank(capture *self, PyObject *args)
{
    const char *rank, *world;
    if (!PyArg_ParseTuple(args, "ss:tell_rank", &rank, &world))
        return NULL;
    if (self->watches_sigterm)
        mst_sigterm_tell_rank(rank, world);
    Py_RETURN_NONE;
}

static PyMethodDef capture_methods[] = {
    {"end", (PyCFunction)capture_end, METH_O, "Write the events that are left and a closing dict; returns the status."},
    {"status", (PyCFunction)capture_status, METH_NOARGS, "(events, lost, bytes, error or None)."},
    {"watch_sigterm", (PyCFunction)capture_watch_sigterm, METH_VARARGS,
     "Complete the file when SIGTERM ends the program. The arguments are a line to print, before and after the file's\n"
     "size; it is not printed if the first one is empty. Returns whether SIGTERM has its default action, and so is\n"
     "watched for."},
    {"tell_rank", (PyCFunction)capture_tell_rank, METH_VARARGS,
     "The rank and the world size that the file states if SIGTERM ends the program."},
    {"flush", (PyCFunction)capture_flush, METH_NOARGS, "Wait until all events so far are in the file."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_capture_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.CaptureWriter",
    .tp_doc = "Writes a ledger's events to a file.",
    .tp_basicsize = sizeof(capture),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = capture_new,
    .tp_dealloc = (destructor)capture_dealloc,
    .tp_methods = capture_methods,
};

int mst_capture_init(void)
{
    return PyType_Ready(&mst_capture_type);
}
