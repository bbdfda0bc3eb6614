/* notes.c - Reader.notes: what a capture notes about blocks beyond its events. */
#include "capture_api/capture_api.h"

static const char *const kinds[MS_NOTE_COUNT] = {"saved", "requested", "stream", "segment", "input", "output"};

static int append_note(PyObject *list, const ms_note *note)
{
    if (note->kind == MS_NOTE_BLOCK_KIND)
        return 0; /* Blocks have it: RawSnapshot.blocks. */
    PyObject *item = Py_BuildValue("(KsIK)", (unsigned long long)note->event, kinds[note->kind], note->slot,
                                   (unsigned long long)note->value);
    int error = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return error;
}

PyObject *msr_notes(msr_reader *reader)
{
    ms_notes *notes;
    ms_note note;
    PyObject *list = PyList_New(0);
    if (!list || !msr_lock_reader(reader)) {
        Py_XDECREF(list);
        return NULL;
    }
    int error = ms_notes_open(reader->reader, &notes);
    if (!error) {
        while (!PyErr_Occurred() && (error = ms_notes_next(notes, &note)) == MS_OK)
            append_note(list, &note);
        ms_notes_close(notes);
    }
    msr_unlock_reader(reader);
    if (error != MS_EEND && !PyErr_Occurred())
        msr_raise(error);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}
