/* events.c - Reader.events: an iterator over events of a capture; and Reader.notes. */
#include "capture_api/capture_api.h"

enum { BATCH_EVENTS = 256 }; /* they are read at once, without the GIL */

typedef struct events_iterator {
    PyObject_HEAD
    ms_cursor *cursor; /* NULL: it has reached the end */
    msr_reader *reader;
    uint32_t ops;
    uint64_t first, last;
    size_t next, count; /* in batch */
    ms_event batch[BATCH_EVENTS];
} events_iterator;

static int seek_first(events_iterator *self)
{
    int error = ms_cursor_open(self->reader->reader, &self->cursor);
    return error ? error : ms_cursor_seek(self->cursor, self->first);
}

PyObject *msr_events_new(msr_reader *reader, uint32_t ops, uint64_t first, uint64_t last)
{
    events_iterator *self = (events_iterator *)msr_events_type.tp_alloc(&msr_events_type, 0);
    if (!self)
        return NULL;
    self->reader = (msr_reader *)Py_NewRef(reader);
    self->ops = ops;
    self->first = first;
    self->last = last;
    if (!msr_lock_reader(reader)) {
        Py_DECREF(self);
        return NULL;
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = seek_first(self);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (error) {
        msr_raise(error);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void close_cursor(events_iterator *self)
{
    ms_cursor_close(self->cursor);
    self->cursor = NULL;
}

static void events_dealloc(events_iterator *self)
{
    close_cursor(self);
    Py_XDECREF(self->reader);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Read the next batch. MS_EEND: it is the last one. The cursor may be before `first`, if that moment cannot be
 * known. If there is a `last`, the cursor is asked for every event, not only for those of `ops`: else it could read far
 * beyond `last` in search of one. */
static int read_batch(events_iterator *self)
{
    self->next = self->count = 0;
    while (self->count < BATCH_EVENTS) {
        ms_event *event = &self->batch[self->count];
        int error = ms_cursor_next(self->cursor, self->last == UINT64_MAX ? self->ops : UINT32_MAX, event);
        if (error || event->number >= self->last)
            return error ? error : MS_EEND;
        self->count += event->number >= self->first && (self->ops >> event->op & 1);
    }
    return MS_OK;
}

static bool refill(events_iterator *self)
{
    if (!self->cursor || !msr_lock_reader(self->reader))
        return false;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = read_batch(self);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(self->reader);
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

static PyObject *tuple_of_event(const ms_event *event)
{
    const uint32_t has_category = 1u << MS_OP_ADD | 1u << MS_OP_DROP | 1u << MS_OP_CLAIM;
    const uint32_t has_phase = 1u << MS_OP_ADD | 1u << MS_OP_POSITION | 1u << MS_OP_OOM;
    PyObject *extra = extra_of(event);
    if (!extra)
        return NULL;
    return Py_BuildValue("(KOKIIKIOOIN)", (unsigned long long)event->number, msr_ops[event->op],
                         (unsigned long long)event->time, event->thread, event->device,
                         (unsigned long long)event->bytes, event->path,
                         has_category >> event->op & 1 ? msr_categories[event->category] : Py_None,
                         has_phase >> event->op & 1 ? msr_phases[event->phase] : Py_None, event->slot, extra);
}

static PyObject *events_next(events_iterator *self)
{
    if (self->next == self->count && !refill(self))
        return NULL;
    return tuple_of_event(&self->batch[self->next++]);
}

PyTypeObject msr_events_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Events",
    .tp_doc = "An iterator over events of a capture.",
    .tp_basicsize = sizeof(events_iterator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)events_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)events_next,
};

/* ---- Reader.notes: what a capture notes about blocks beyond its events ---- */

static const char *const note_kinds[MS_NOTE_COUNT] = {"saved", "requested", "stream", "segment", "input", "output"};

static bool append_note(PyObject *list, const ms_note *note)
{
    if (note->kind == MS_NOTE_BLOCK_KIND)
        return true; /* Blocks have it: RawSnapshot.blocks. */
    return msr_append(list, Py_BuildValue("(KsIK)", (unsigned long long)note->event, note_kinds[note->kind], note->slot,
                                          (unsigned long long)note->value));
}

PyObject *msr_notes(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    ms_notes *notes;
    ms_note note;
    PyObject *list = PyList_New(0);
    if (!list || !msr_lock_reader(reader)) {
        Py_XDECREF(list);
        return NULL;
    }
    int error = ms_notes_open(reader->reader, &notes);
    if (!error) {
        while ((error = ms_notes_next(notes, &note)) == MS_OK && append_note(list, &note))
            continue;
        ms_notes_close(notes);
    }
    msr_unlock_reader(reader);
    if (error != MS_EEND && !PyErr_Occurred())
        msr_raise(error);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}
