/* survey.c - Reader.survey and Reader.peaks: the core's survey as Python's dicts and lists. */
#include "capture_api/capture_api.h"

/* ---- progress ---- */
struct progress {
    PyObject *call; /* or None */
    PyThreadState *state;
};

/* The core calls this without the GIL. False: stop, with an exception set. */
static bool report_progress(void *context, double done)
{
    struct progress *progress = context;
    PyEval_RestoreThread(progress->state);
    bool go_on = PyErr_CheckSignals() == 0;
    if (go_on && progress->call != Py_None) {
        PyObject *result = PyObject_CallFunction(progress->call, "d", done);
        go_on = result != NULL;
        Py_XDECREF(result);
    }
    progress->state = PyEval_SaveThread();
    return go_on;
}

/* ---- the dict ---- */
static bool put_item(PyObject *dict, const char *key, PyObject *value)
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
    const ms_capture_peak *peak = &survey->peaks[device];
    if (!peak->bytes)
        return Py_NewRef(Py_None);
    return Py_BuildValue("(LKKKOIK)", (long long)peak->bytes, (unsigned long long)peak->moment,
                         (unsigned long long)peak->time, (unsigned long long)peak->step, msr_phases[peak->phase],
                         peak->running, (unsigned long long)peak->reserved);
}

static PyObject *peak_reserved_of(const ms_survey *survey, uint32_t device)
{
    return number(survey->peak_reserved[device]);
}

static PyObject *list_of_devices(const ms_survey *survey, PyObject *(*ask)(const ms_survey *, uint32_t))
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < survey->devices; i++)
        if (!msr_append(list, ask(survey, i)))
            Py_CLEAR(list);
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

static PyObject *dict_by_name(const ms_survey *survey, PyObject *const *names, uint32_t count,
                              PyObject *(*ask)(const ms_survey *, uint32_t))
{
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; dict && i < count; i++) {
        PyObject *item = ask(survey, i);
        if (!item || PyDict_SetItem(dict, names[i], item) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    return dict;
}

static PyObject *dict_of_survey(const ms_survey *survey)
{
    PyObject *dict = PyDict_New();
    if (!dict)
        return NULL;
    bool done = put_item(dict, "peaks", list_of_devices(survey, peak_of)) &&
                put_item(dict, "reserved", list_of_devices(survey, peak_reserved_of)) &&
                put_item(dict, "phases", dict_by_name(survey, msr_phases, MS_PHASE_COUNT, phase_of)) &&
                put_item(dict, "events", dict_by_name(survey, msr_ops, MS_OP_COUNT, events_of)) &&
                put_item(dict, "steps", number(survey->steps)) &&
                put_item(dict, "optimizer_steps", number(survey->optimizer_steps)) &&
                put_item(dict, "oom_count", number(survey->oom_count)) &&
                put_item(dict, "first_oom", number_or_none(survey->first_oom)) &&
                put_item(dict, "last_oom", number_or_none(survey->last_oom)) &&
                put_item(dict, "first", number(survey->first)) && put_item(dict, "last", number(survey->last)) &&
                put_item(dict, "is_lower_bound", PyBool_FromLong(survey->is_lower_bound));
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
    if (msr_lock_reader(reader)) {
        struct progress progress = {.call = call, .state = PyEval_SaveThread()};
        int error = ms_reader_survey(reader->reader, survey, report_progress, &progress);
        PyEval_RestoreThread(progress.state);
        msr_unlock_reader(reader);
        if (!error)
            dict = dict_of_survey(survey);
        else if (error != MS_ESTOPPED) /* report_progress has set an exception */
            msr_raise(error);
    }
    PyMem_Free(survey);
    return dict;
}

/* ---- the peaks between two moments ---- */
static int find_peaks(msr_reader *reader, uint64_t first, uint64_t last, int64_t *peaks)
{
    int error = msr_open_cursor(reader);
    if (!error)
        error = ms_cursor_seek(reader->cursor, first);
    return error ? error : ms_cursor_peaks(reader->cursor, last, peaks);
}

PyObject *msr_peaks(msr_reader *reader, uint64_t first, uint64_t last)
{
    int64_t peaks[MS_MAX_DEVICES];
    if (!msr_lock_reader(reader))
        return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = find_peaks(reader, first, last, peaks);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (error)
        return msr_raise(error);
    uint32_t devices = ms_reader_devices(reader->reader);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < devices; i++)
        if (!msr_append(list, PyLong_FromLongLong(peaks[i])))
            Py_CLEAR(list);
    return list;
}

/* ---- the time between two moments, by path and phase ---- */
static int find_times(msr_reader *reader, uint64_t first, uint64_t last, uint64_t *times, uint32_t paths)
{
    int error = msr_open_cursor(reader);
    if (!error)
        error = ms_cursor_seek(reader->cursor, first);
    return error ? error : ms_cursor_times(reader->cursor, last, times, paths);
}

static PyObject *list_of_times(const uint64_t *times, uint32_t paths)
{
    PyObject *list = PyList_New(0);
    for (uint32_t path = 0; list && path < paths; path++)
        for (uint32_t phase = 0; list && phase < MS_PHASE_COUNT; phase++) {
            uint64_t time = times[(size_t)path * MS_PHASE_COUNT + phase];
            if (!time)
                continue;
            if (!msr_append(list, Py_BuildValue("(IOK)", path, msr_phases[phase], (unsigned long long)time)))
                Py_CLEAR(list);
        }
    return list;
}

PyObject *msr_times(msr_reader *reader, uint64_t first, uint64_t last)
{
    uint32_t paths = ms_reader_paths(reader->reader);
    uint64_t *times = PyMem_Calloc((size_t)paths * MS_PHASE_COUNT, sizeof *times);
    if (!times)
        return PyErr_NoMemory();
    PyObject *list = NULL;
    if (msr_lock_reader(reader)) {
        int error;
        Py_BEGIN_ALLOW_THREADS
        error = find_times(reader, first, last, times, paths);
        Py_END_ALLOW_THREADS
        msr_unlock_reader(reader);
        list = error ? msr_raise(error) : list_of_times(times, paths);
    }
    PyMem_Free(times);
    return list;
}
