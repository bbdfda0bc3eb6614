/* series.c - Reader.series and Reader.step_times: what a device held over time, and when steps began and ended, as the
 * bytes of arrays. */
#include "capture_api/capture_api.h"

static int find_series(msr_reader *reader, uint32_t device, const uint64_t *bounds, size_t columns, ms_sums *most,
                       size_t *begun)
{
    ms_cursor *cursor = NULL; /* one of its own: it keeps the claims of the whole file */
    int error = ms_cursor_open(reader->reader, &cursor);
    if (!error)
        error = ms_cursor_load_later_claims(cursor);
    if (!error)
        error = ms_cursor_seek(cursor, 0);
    if (!error)
        error = ms_cursor_series(cursor, device, bounds, columns, most, begun);
    ms_cursor_close(cursor);
    return error;
}

/* For each category one int64 for each column; -1 in columns that begin after the capture's end. */
static PyObject *array_of(const ms_sums *most, size_t columns, size_t begun)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(columns * MS_CATEGORY_COUNT * sizeof(int64_t)));
    if (!bytes)
        return NULL;
    char *out = PyBytes_AS_STRING(bytes);
    for (size_t category = 0; category < MS_CATEGORY_COUNT; category++)
        for (size_t column = 0; column < columns; column++, out += sizeof(int64_t)) {
            int64_t held = column < begun ? most[column].of[category] : -1;
            memcpy(out, &held, sizeof held);
        }
    return bytes;
}

static bool never_decreases(const uint64_t *bounds, size_t columns)
{
    for (size_t i = 0; i < columns; i++)
        if (bounds[i] > bounds[i + 1])
            return false;
    return true;
}

PyObject *msr_series(msr_reader *reader, unsigned device, const Py_buffer *buffer)
{
    const uint64_t *bounds = buffer->buf;
    size_t numbers = (size_t)buffer->len / sizeof *bounds, begun = 0;
    if (device >= MS_MAX_DEVICES || numbers < 2 || (size_t)buffer->len % sizeof *bounds ||
        !never_decreases(bounds, numbers - 1)) {
        PyErr_SetString(PyExc_ValueError, "expected a device, and two or more times that do not decrease");
        return NULL;
    }
    ms_sums *most = PyMem_Calloc(numbers - 1, sizeof *most);
    if (!most)
        return PyErr_NoMemory();
    PyObject *array = NULL;
    if (msr_lock_reader(reader)) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = find_series(reader, device, bounds, numbers - 1, most, &begun);
        Py_END_ALLOW_THREADS
        msr_unlock_reader(reader);
        array = error ? msr_raise(error) : array_of(most, numbers - 1, begun);
    }
    PyMem_Free(most);
    return array;
}

/* ---- when steps began and ended ---- */
enum { STEP_NUMBERS = 4 }; /* its number, when it began, when its last optimizer step ended, and the count of those */

struct step_times {
    uint64_t *at;
    size_t count, room, optimizer_steps;
};

static bool note_step(struct step_times *steps, const ms_event *event)
{
    if (event->op == MS_OP_OPTIMIZER_STEP) {
        steps->optimizer_steps++;
        if (!steps->count)
            return true;
        steps->at[steps->count - 2] = event->time;
        steps->at[steps->count - 1] = steps->optimizer_steps;
        return true;
    }
    if (steps->count + STEP_NUMBERS > steps->room) {
        size_t room = steps->room ? 2 * steps->room : 64;
        uint64_t *at = PyMem_RawRealloc(steps->at, room * sizeof *at);
        if (!at)
            return false;
        steps->at = at;
        steps->room = room;
    }
    memcpy(steps->at + steps->count, (uint64_t[STEP_NUMBERS]){event->bytes, event->time, 0, 0},
           STEP_NUMBERS * sizeof *steps->at);
    steps->count += STEP_NUMBERS;
    return true;
}

static int find_steps(msr_reader *reader, struct step_times *steps)
{
    ms_event event;
    int error = msr_open_cursor(reader);
    if (!error)
        error = ms_cursor_seek(reader->cursor, 0);
    while (!error) {
        error = ms_cursor_next(reader->cursor, 1u << MS_OP_STEP | 1u << MS_OP_OPTIMIZER_STEP, &event);
        if (!error && !note_step(steps, &event))
            error = MS_ENOMEM;
    }
    return error == MS_EEND ? MS_OK : error;
}

PyObject *msr_step_times(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    struct step_times steps = {NULL, 0, 0, 0};
    if (!msr_lock_reader(reader))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = find_steps(reader, &steps);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    Py_ssize_t size = (Py_ssize_t)(steps.count * sizeof *steps.at);
    PyObject *array = error ? msr_raise(error) : PyBytes_FromStringAndSize((const char *)steps.at, size);
    PyMem_RawFree(steps.at);
    return array;
}

PyObject *msr_has_call_times(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    ms_call_time *times = NULL;
    size_t count = 0;
    if (!msr_lock_reader(reader))
        return NULL;
    int error = ms_call_times_read(reader->reader, &times, &count);
    if (!error)
        ms_call_times_free(reader->reader, times);
    msr_unlock_reader(reader);
    return error ? msr_raise(error) : PyBool_FromLong(count != 0);
}
