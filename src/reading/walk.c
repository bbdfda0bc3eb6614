/* walk.c - the events of a capture, one by one. */
#include "reading/reading.h"

enum { BATCH = 256 }; /* events read at once, while the GIL is let go */

typedef struct walk {
    PyObject_HEAD
    ms_cursor *cursor; /* NULL: at the end */
    msr_reader *of;
    uint32_t ops;
    uint64_t first, last;
    size_t at, count; /* in events */
    ms_event events[BATCH];
} walk;

static int begin(walk *self)
{
    int error = ms_cursor_open(self->of->reader, &self->cursor);
    return error ? error : ms_cursor_seek(self->cursor, self->first);
}

PyObject *msr_walk_new(msr_reader *reader, uint32_t ops, uint64_t first, uint64_t last)
{
    walk *self = (walk *)msr_walk_type.tp_alloc(&msr_walk_type, 0);
    if (!self)
        return NULL;
    self->of = (msr_reader *)Py_NewRef(reader);
    self->ops = ops;
    self->first = first;
    self->last = last;
    if (!msr_take(reader)) {
        Py_DECREF(self);
        return NULL;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = begin(self);
    Py_END_ALLOW_THREADS
    msr_give(reader);
    if (error) {
        msr_raise(error);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void close_cursor(walk *self)
{
    ms_cursor_close(self->cursor);
    self->cursor = NULL;
}

static void walk_dealloc(walk *self)
{
    close_cursor(self);
    Py_XDECREF(self->of);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* MS_EEND with the last of them, or an error. The cursor may begin before `first`, where that cannot be known, and
 * it stops at every event near `last`, so as not to look for one of `ops` far beyond it. */
static int read_batch(walk *self)
{
    self->at = self->count = 0;
    while (self->count < BATCH) {
        ms_event *event = &self->events[self->count];
        int error = ms_cursor_next(self->cursor, self->last == UINT64_MAX ? self->ops : UINT32_MAX, event);
        if (error || event->number >= self->last)
            return error ? error : MS_EEND;
        self->count += event->number >= self->first && (self->ops >> event->op & 1);
    }
    return MS_OK;
}

static bool refill(walk *self)
{
    if (!self->cursor || !msr_take(self->of))
        return false;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = read_batch(self);
    Py_END_ALLOW_THREADS
    msr_give(self->of);
    if (!error)
        return true;
    if (error != MS_EEND) {
        msr_raise(error);
        self->count = 0;
    }
    close_cursor(self);
    return self->count > 0;
}

static PyObject *extra_of(const ms_event *event)
{
    if (event->op == MS_OP_OOM)
        return Py_BuildValue("(KK)", (unsigned long long)event->allocated, (unsigned long long)event->reserved);
    return Py_NewRef(event->op != MS_OP_CLAIM ? Py_None : event->from_now_on ? Py_True : Py_False);
}

static PyObject *event_of(const ms_event *event)
{
    const uint32_t blocks = 1u << MS_OP_ADD | 1u << MS_OP_DROP | 1u << MS_OP_CLAIM;
    const uint32_t places = 1u << MS_OP_ADD | 1u << MS_OP_POSITION | 1u << MS_OP_OOM;
    PyObject *extra = extra_of(event);
    if (!extra)
        return NULL;
    return Py_BuildValue("(KOKIIKIOOIN)", (unsigned long long)event->number, msr_ops[event->op],
                         (unsigned long long)event->time, event->thread, event->device,
                         (unsigned long long)event->bytes, event->path,
                         blocks >> event->op & 1 ? msr_categories[event->category] : Py_None,
                         places >> event->op & 1 ? msr_phases[event->phase] : Py_None, event->slot, extra);
}

static PyObject *walk_next(walk *self)
{
    if (self->at == self->count && !refill(self))
        return NULL;
    return event_of(&self->events[self->at++]);
}

PyTypeObject msr_walk_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Walk",
    .tp_doc = "Events of a capture.",
    .tp_basicsize = sizeof(walk),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)walk_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)walk_next,
};
