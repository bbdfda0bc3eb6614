/* survey.c - what a look at all events tells, as Python's dicts and lists. */
#include "reading/reading.h"

/* ---- progress ---- */
struct progress {
    PyObject *call; /* or None */
    PyThreadState *state;
};

/* Without the GIL. */
static bool tell(void *context, double done)
{
    struct progress *progress = context;
    PyEval_RestoreThread(progress->state);
    bool on = PyErr_CheckSignals() == 0;
    if (on && progress->call != Py_None) {
        PyObject *result = PyObject_CallFunction(progress->call, "d", done);
        on = result != NULL;
        Py_XDECREF(result);
    }
    progress->state = PyEval_SaveThread();
    return on;
}

/* ---- the dict ---- */
static bool put(PyObject *dict, const char *key, PyObject *value)
{
    bool done = value && PyDict_SetItemString(dict, key, value) == 0;
    Py_XDECREF(value);
    return done;
}

static PyObject *number(uint64_t value)
{
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *number_or_none(uint64_t value)
{
    return value ? number(value) : Py_NewRef(Py_None);
}

static PyObject *peak_of(const ms_survey *survey, uint32_t device)
{
    const ms_capture_peak *peaks = &survey->peaks[device];
    if (!peaks->bytes)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(LKKKOIK)", (long long)peaks->bytes, (unsigned long long)peaks->moment,
                         (unsigned long long)peaks->time, (unsigned long long)peaks->step, msr_phases[peaks->phase],
                         peaks->running, (unsigned long long)peaks->reserved);
}

static PyObject *reserved_of(const ms_survey *survey, uint32_t device)
{
    return number(survey->peak_reserved[device]);
}

static PyObject *by_device(const ms_survey *survey, PyObject *(*ask)(const ms_survey *, uint32_t))
{
    PyObject *list = PyList_New(survey->devices);
    for (uint32_t i = 0; list && i < survey->devices; i++) {
        PyObject *item = ask(survey, i);
        if (item)
            PyList_SET_ITEM(list, i, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *phase_of(const ms_survey *survey, uint32_t phase)
{
    return Py_BuildValue("(KKK)", (unsigned long long)survey->phases[phase].time,
                         (unsigned long long)survey->phases[phase].blocks,
                         (unsigned long long)survey->phases[phase].bytes);
}

static PyObject *events_of(const ms_survey *survey, uint32_t op)
{
    return number(survey->events[op]);
}

static PyObject *by_word(const ms_survey *survey, PyObject *const *words, uint32_t count,
                         PyObject *(*ask)(const ms_survey *, uint32_t))
{
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; dict && i < count; i++) {
        PyObject *item = ask(survey, i);
        if (!item || PyDict_SetItem(dict, words[i], item) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    return dict;
}

static PyObject *dict_of(const ms_survey *survey)
{
    PyObject *dict = PyDict_New();
    if (!dict)
        return NULL;
    bool done =
        put(dict, "peaks", by_device(survey, peak_of)) && put(dict, "reserved", by_device(survey, reserved_of)) &&
        put(dict, "phases", by_word(survey, msr_phases, MS_OPTIMIZER + 1, phase_of)) &&
        put(dict, "events", by_word(survey, msr_ops, MS_OP_COUNT, events_of)) &&
        put(dict, "steps", number(survey->steps)) && put(dict, "optimizer_steps", number(survey->optimizer_steps)) &&
        put(dict, "oom_count", number(survey->oom_count)) &&
        put(dict, "first_oom", number_or_none(survey->first_oom)) &&
        put(dict, "last_oom", number_or_none(survey->last_oom)) && put(dict, "first", number(survey->first)) &&
        put(dict, "last", number(survey->last)) && put(dict, "is_lower_bound", PyBool_FromLong(survey->is_lower_bound));
    if (!done)
        Py_CLEAR(dict);
    return dict;
}

PyObject *msr_survey(msr_reader *reader, PyObject *call)
{
    ms_survey *survey = PyMem_Malloc(sizeof *survey);
    if (!survey)
        return PyErr_NoMemory();
    PyObject *dict = NULL;
    if (msr_take(reader)) {
        struct progress progress = {.call = call, .state = PyEval_SaveThread()};
        int error = ms_reader_survey(reader->reader, survey, tell, &progress);
        PyEval_RestoreThread(progress.state);
        msr_give(reader);
        if (!error)
            dict = dict_of(survey);
        else if (error != MS_ESTOPPED) /* else an exception stopped it */
            msr_raise(error);
    }
    PyMem_Free(survey);
    return dict;
}

/* ---- a part of the file ---- */
static int find_most(msr_reader *reader, uint64_t first, uint64_t last, int64_t *most)
{
    int error = msr_cursor(reader);
    if (!error)
        error = ms_cursor_seek(reader->cursor, first);
    return error ? error : ms_cursor_peaks(reader->cursor, last, most);
}

PyObject *msr_most(msr_reader *reader, uint64_t first, uint64_t last)
{
    int64_t most[MS_MAX_DEVICES];
    if (!msr_take(reader))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = find_most(reader, first, last, most);
    Py_END_ALLOW_THREADS
    msr_give(reader);
    if (error)
        return msr_raise(error);
    uint32_t devices = ms_reader_devices(reader->reader);
    PyObject *list = PyList_New(devices);
    for (uint32_t i = 0; list && i < devices; i++) {
        PyObject *bytes = PyLong_FromLongLong(most[i]);
        if (bytes)
            PyList_SET_ITEM(list, i, bytes);
        else
            Py_CLEAR(list);
    }
    return list;
}
