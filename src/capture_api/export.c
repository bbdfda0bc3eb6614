/* export.c - Reader.export: calls src/export, and passes what it writes to a Python function. */
#include "capture_api/capture_api.h"
#include "modscope_export.h"

struct export
{
    ms_export_job job;
    PyObject *write, *progress;
    PyThreadState *state;
};

/* The exporter calls this without the GIL. False: stop, with an exception set. */
static bool write_part(void *context, const void *bytes, size_t size, double part)
{
    struct export *export = context;
    PyEval_RestoreThread(export->state);
    PyObject *result = PyErr_CheckSignals() == 0
                           ? PyObject_CallFunction(export->write, "y#", (const char *)bytes, (Py_ssize_t)size)
                           : NULL;
    if (result && export->progress != Py_None)
        Py_SETREF(result, PyObject_CallFunction(export->progress, "d", part));
    Py_XDECREF(result);
    export->state = PyEval_SaveThread();
    return result != NULL;
}

/* The items of a list of bytes objects. They point into the objects: the list must not change meanwhile. Free the
 * array with PyMem_Free. NULL with an exception set. */
static ms_export_text *texts_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    ms_export_text *texts = PyMem_Calloc(*count + 1, sizeof *texts);
    if (!texts)
        PyErr_NoMemory();
    for (size_t i = 0; texts && i < *count; i++) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, (Py_ssize_t)i), &bytes, &size) != 0) {
            PyMem_Free(texts);
            return NULL;
        }
        texts[i] = (ms_export_text){bytes, (size_t)size};
    }
    return texts;
}

/* The items of a list of ints; free the array with PyMem_Free. NULL with an exception set. */
static uint32_t *numbers_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    uint32_t *numbers = PyMem_Calloc(*count + 1, sizeof *numbers);
    if (!numbers)
        PyErr_NoMemory();
    for (size_t i = 0; numbers && i < *count; i++)
        numbers[i] = (uint32_t)PyLong_AsLong(PyList_GET_ITEM(list, (Py_ssize_t)i)); /* -1 becomes UINT32_MAX */
    if (numbers && PyErr_Occurred()) {
        PyMem_Free(numbers);
        return NULL;
    }
    return numbers;
}

/* A bytes object's text; None: there is none. False with an exception set. */
static bool read_text(PyObject *object, ms_export_text *text)
{
    char *bytes;
    Py_ssize_t size;
    *text = (ms_export_text){NULL, 0};
    if (object == Py_None)
        return true;
    if (PyBytes_AsStringAndSize(object, &bytes, &size) != 0)
        return false;
    *text = (ms_export_text){bytes, (size_t)size};
    return true;
}

/* The items of a list of tuples (file, line, function, operator). They point into the objects, as those of texts_of.
 * Free the array with PyMem_Free. NULL with an exception set. */
static ms_export_place *places_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    ms_export_place *places = PyMem_Calloc(*count + 1, sizeof *places);
    if (!places)
        PyErr_NoMemory();
    for (size_t i = 0; places && i < *count; i++) {
        PyObject *file, *function, *operator_name;
        ms_export_place *place = &places[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, (Py_ssize_t)i), "OIOO", &file, &place->line, &function,
                              &operator_name) ||
            !read_text(file, &place->file) || !read_text(function, &place->function) ||
            !read_text(operator_name, &place->operator_name)) {
            PyMem_Free(places);
            return NULL;
        }
    }
    return places;
}

static int (*find_format(const char *format))(const ms_export_job *)
{
    static const struct {
        const char *format;
        int (*write)(const ms_export_job *);
    } formats[] = {{"perfetto", ms_export_perfetto},
                   {"torch-snapshot", ms_export_torch},
                   {"csv", ms_export_csv},
                   {"json", ms_export_json}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0)
            return formats[i].write;
    PyErr_Format(PyExc_ValueError, "there is no format '%s'", format);
    return NULL;
}

static PyObject *run_export(msr_reader *reader, struct export *export, int (*write)(const ms_export_job *))
{
    if (!msr_lock_reader(reader))
        return NULL;
    export->job.reader = reader->reader;
    export->state = PyEval_SaveThread();
    int error = write(&export->job);
    PyEval_RestoreThread(export->state);
    msr_unlock_reader(reader);
    if (PyErr_Occurred())
        return NULL;
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_OverflowError, "the blocks of this capture do not fit into a 62-bit address space");
    return error ? msr_raise(error) : Py_NewRef(Py_None);
}

static int convert_export_last(PyObject *object, void *last)
{
    *(uint64_t *)last = object == Py_None ? UINT64_MAX : PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

/* Convert the lists to arrays, which live as long as the export runs. */
static PyObject *export_with_names(msr_reader *self, struct export *export, PyObject *modules, PyObject *devices,
                                   PyObject *places, PyObject *order, int (*write)(const ms_export_job *))
{
    ms_export_job *job = &export->job;
    PyObject *result = NULL;
    ms_export_text *module_texts = texts_of(modules, &job->module_count);
    ms_export_text *device_texts = module_texts ? texts_of(devices, &job->device_count) : NULL;
    ms_export_place *stack_places = device_texts ? places_of(places, &job->place_count) : NULL;
    uint32_t *numbers = stack_places ? numbers_of(order, &job->order_count) : NULL;
    job->modules = module_texts;
    job->devices = device_texts;
    job->places = stack_places;
    job->order = numbers;
    if (numbers)
        result = run_export(self, export, write);
    PyMem_Free(module_texts);
    PyMem_Free(device_texts);
    PyMem_Free(stack_places);
    PyMem_Free(numbers);
    return result;
}

PyObject *msr_export(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"format", "write", "modules", "devices", "places",   "title",
                            "pid",    "began", "order",   "last",    "progress", NULL};
    struct export export = {.progress = Py_None, .job = {.put = write_part, .last = UINT64_MAX}};
    const char *format, *title = "";
    Py_ssize_t title_size = 0;
    unsigned long long began = 0;
    PyObject *modules = NULL, *devices = NULL, *places = NULL, *order = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "sO|$O!O!O!y#iKO!O&O:export", names, &format, &export.write,
                                     &PyList_Type, &modules, &PyList_Type, &devices, &PyList_Type, &places, &title,
                                     &title_size, &export.job.pid, &began, &PyList_Type, &order, convert_export_last,
                                     &export.job.last, &export.progress))
        return NULL;
    int (*write)(const ms_export_job *) = find_format(format);
    if (!write)
        return NULL;
    if (!modules || !devices || !places || !order)
        return PyErr_Format(PyExc_TypeError, "export() needs the arguments modules, devices, places and order");
    export.job.context = &export;
    export.job.title = (ms_export_text){title, (size_t)title_size};
    export.job.began = began;
    return export_with_names(self, &export, modules, devices, places, order, write);
}
