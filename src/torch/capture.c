/* capture.c - the type through which Python begins and ends a capture, and the story of an
 * allocation that failed. */
#include "torch/memory.h"

#include "modscope_capture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct capture {
    PyObject_HEAD ms_capture *capture; /* NULL: it has ended, or is another process's */
    PyObject *ledger;
    struct capture *next; /* of those that go on */
    ms_capture_status last;
    int fd;
    struct stat file; /* which one fd was */
} capture;

static capture *going_on;

/* Above the numbers that a program gets for its own files. */
static int out_of_the_way(void)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur < 200)
        return 3;
    return most.rlim_cur < 4096 ? (int)most.rlim_cur - 60 : 4000;
}

/* ---- keys and values ---- */

/* A dict of str to str as pairs of words with NULL at the end, borrowed from it; NULL with an error set. */
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

/* ---- beginning and ending ---- */
static int begin(capture *self, PyObject *info)
{
    const char **pairs = pairs_of(info);
    if (!pairs)
        return -1;
    int error;
    Py_BEGIN_ALLOW_THREADS error = ms_capture_begin(mst_ledger_of(self->ledger), self->fd, pairs, &self->capture);
    Py_END_ALLOW_THREADS PyMem_Free(pairs);
    if (error == MS_EIO)
        PyErr_SetFromErrno(PyExc_OSError);
    else if (error)
        PyErr_SetString(PyExc_MemoryError, ms_error_text(error));
    return error ? -1 : 0;
}

/* Capture(ledger, fd, info): the file stays the caller's, who may close it: it is duplicated. */
static PyObject *capture_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"ledger", "fd", "info", NULL};
    PyObject *ledger, *info;
    int fd;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!iO!:Capture", names, &mst_ledger_type, &ledger, &fd, &PyDict_Type,
                                     &info))
        return NULL;
    capture *self = (capture *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->ledger = Py_NewRef(ledger);
    self->fd = fcntl(fd, F_DUPFD_CLOEXEC, out_of_the_way());
    if (self->fd < 0) /* so many are not allowed here */
        self->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (self->fd >= 0)
        fstat(self->fd, &self->file);
    if (self->fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    } else if (begin(self, info) != 0) {
        Py_CLEAR(self);
    } else {
        self->next = going_on;
        going_on = self;
    }
    return (PyObject *)self;
}

static void take_out(capture *self)
{
    capture **at = &going_on;
    while (*at && *at != self)
        at = &(*at)->next;
    if (*at)
        *at = self->next;
}

static void end(capture *self, const char *const *pairs)
{
    ms_capture *ending = self->capture;
    if (!ending)
        return;
    self->capture = NULL;
    take_out(self);
    ms_capture_status last = {0};
    Py_BEGIN_ALLOW_THREADS last = ms_capture_end(ending, pairs);
    Py_END_ALLOW_THREADS self->last = last;
}

static void capture_dealloc(capture *self)
{
    end(self, NULL);
    struct stat now; /* the program may have closed it, and have a file of its own there */
    if (self->fd >= 0 && fstat(self->fd, &now) == 0 && now.st_dev == self->file.st_dev &&
        now.st_ino == self->file.st_ino)
        close(self->fd);
    Py_XDECREF(self->ledger);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

void mst_captures_end(void)
{
    while (going_on)
        end(going_on, NULL);
}

void mst_captures_forked(void)
{
    for (; going_on; going_on = going_on->next) {
        ms_capture_abandon(going_on->capture);
        going_on->capture = NULL;
    }
}

/* ---- from Python ---- */
static PyObject *capture_figures(capture *self, PyObject *unused)
{
    (void)unused;
    ms_capture_status now = self->capture ? ms_capture_get_status(self->capture) : self->last;
    PyObject *error = now.error ? PyUnicode_FromString(strerror(now.error)) : Py_NewRef(Py_None);
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
    end(self, pairs);
    PyMem_Free(pairs);
    return capture_figures(self, NULL);
}

static PyObject *capture_flush(capture *self, PyObject *unused)
{
    (void)unused;
    ms_capture *going = self->capture;
    if (going) {
        Py_BEGIN_ALLOW_THREADS ms_capture_flush(going);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"end", (PyCFunction)capture_end, METH_O, "Write the rest and a last word (a dict); the figures."},
    {"figures", (PyCFunction)capture_figures, METH_NOARGS, "(events, lost, bytes, error or None)."},
    {"flush", (PyCFunction)capture_flush, METH_NOARGS, "Wait until all so far is in the file."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject mst_capture_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Capture",
    .tp_doc = "A ledger's events go to a file.",
    .tp_basicsize = sizeof(capture),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = capture_new,
    .tp_dealloc = (destructor)capture_dealloc,
    .tp_methods = methods,
};

int mst_capture_init(void)
{
    return PyType_Ready(&mst_capture_type);
}

/* ---- memory that ran out ---- */
enum { STORY = 4096, SHOWN = 5 };

_Atomic bool mst_oom_untold;
static _Atomic uint64_t ooms;
static _Atomic uint32_t stories; /* since watching began */
static _Atomic bool shown;       /* the latest went to stderr */
static char story[STORY];        /* of the latest; guarded by story_lock */
static uint64_t requested;       /* the same */
static pthread_mutex_t story_lock = PTHREAD_MUTEX_INITIALIZER;

/* Python may hold its own stream's lock in another thread: this goes to the file itself. */
static void show(const char *text, size_t length)
{
    while (length) {
        ssize_t wrote = write(STDERR_FILENO, text, length);
        if (wrote <= 0 && errno != EINTR)
            return;
        text += wrote > 0 ? wrote : 0;
        length -= wrote > 0 ? (size_t)wrote : 0;
    }
}

void mst_oom_begin(void)
{
    atomic_store(&stories, 0);
}

void mst_oom(ms_ledger *ledger, const ms_oom *oom)
{
    char text[STORY];
    size_t length = ms_ledger_oom(ledger, mst_mine, oom, text, sizeof text);
    atomic_fetch_add(&ooms, 1);
    uint32_t before = atomic_fetch_add(&stories, 1);
    atomic_store(&shown, before < SHOWN);
    if (before < SHOWN)
        show(text, length);
    if (before + 1 == SHOWN) {
        static const char last[] = "[modscope] further stories are not shown here, but exceptions carry them\n";
        show(last, sizeof last - 1);
    }
    pthread_mutex_lock(&story_lock);
    memcpy(story, text, length + 1);
    requested = oom->requested;
    pthread_mutex_unlock(&story_lock);
    atomic_store(&mst_oom_untold, true);
}

static PyObject *out_of_memory(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    char text[STORY];
    pthread_mutex_lock(&story_lock);
    memcpy(text, story, sizeof text);
    unsigned long long bytes = requested;
    pthread_mutex_unlock(&story_lock);
    PyObject *latest = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *untold = atomic_load(&mst_oom_untold) ? Py_True : Py_False;
    PyObject *was_shown = atomic_load(&shown) ? Py_True : Py_False;
    return latest ? Py_BuildValue("(KNKOO)", (unsigned long long)atomic_load(&ooms), latest, bytes, untold, was_shown)
                  : NULL;
}

static PyObject *story_told(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    atomic_store(&mst_oom_untold, false);
    Py_RETURN_NONE;
}

/* Python decides whether the error is of that failure, and says so by story_told. */
void mst_oom_note(void)
{
    if (LIKELY(!atomic_load_explicit(&mst_oom_untold, memory_order_relaxed)))
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *module = value ? PyImport_ImportModule("modscope._oom_report") : NULL;
    PyObject *done = module ? PyObject_CallMethod(module, "add_note", "O", value) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(module);
    mst_forget_error();
    PyErr_Restore(type, value, traceback);
}

PyMethodDef mst_capture_methods[] = {
    {"out_of_memory", out_of_memory, METH_NOARGS,
     "How many allocations failed so far, and of the latest the story, the bytes requested, and\n"
     "whether no exception has it yet, and whether it went to stderr."},
    {"story_told", story_told, METH_NOARGS, "The latest story was added to an exception."},
    {NULL, NULL, 0, NULL},
};
