/* export.c - modscope._capture.Reader.export: what src/export writes, given to Python. */
#include "export/export.h"
#include "reading/reading.h"

struct export
{
    mse_job job;
    PyObject *write, *progress;
    PyThreadState *state;
};

/* Without the GIL. False with an exception set. */
static bool put(void *context, const void *bytes, size_t size, double part)
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

/* Borrowed from a list of bytes, which must stay as it is. To be freed with PyMem_Free. */
static mse_text *texts_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    mse_text *texts = PyMem_Calloc(*count + 1, sizeof *texts);
    if (!texts)
        PyErr_NoMemory();
    for (size_t i = 0; texts && i < *count; i++) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, (Py_ssize_t)i), &bytes, &size) != 0) {
            PyMem_Free(texts);
            return NULL;
        }
        texts[i] = (mse_text){bytes, (size_t)size};
    }
    return texts;
}

/* To be freed with PyMem_Free. */
static uint32_t *numbers_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_GET_SIZE(list);
    uint32_t *numbers = PyMem_Calloc(*count + 1, sizeof *numbers);
    if (!numbers)
        PyErr_NoMemory();
    for (size_t i = 0; numbers && i < *count; i++)
        numbers[i] = (uint32_t)PyLong_AsLong(PyList_GET_ITEM(list, (Py_ssize_t)i)); /* -1: UINT32_MAX */
    if (numbers && PyErr_Occurred()) {
        PyMem_Free(numbers);
        return NULL;
    }
    return numbers;
}

static int (*find(const char *format))(const mse_job *)
{
    static const struct {
        const char *format;
        int (*write)(const mse_job *);
    } formats[] = {{"perfetto", mse_perfetto}, {"torch-snapshot", mse_torch}, {"csv", mse_csv}, {"json", mse_json}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0)
            return formats[i].write;
    PyErr_Format(PyExc_ValueError, "no format: '%s'", format);
    return NULL;
}

static PyObject *run(msr_reader *reader, struct export *export, int (*write)(const mse_job *))
{
    if (!msr_take(reader))
        return NULL;
    export->job.reader = reader->reader;
    export->state = PyEval_SaveThread();
    int error = write(&export->job);
    PyEval_RestoreThread(export->state);
    msr_give(reader);
    if (PyErr_Occurred())
        return NULL;
    if (error == MS_EINVAL)
        return PyErr_Format(PyExc_OverflowError, "there are more bytes than addresses");
    return error ? msr_raise(error) : Py_NewRef(Py_None);
}

static int to_last(PyObject *object, void *last)
{
    *(uint64_t *)last = object == Py_None ? UINT64_MAX : PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

/* The names and numbers of the job from Python's, while `write` goes on. */
static PyObject *with_names(msr_reader *self, struct export *export, PyObject *modules, PyObject *devices,
                            PyObject *order, int (*write)(const mse_job *))
{
    mse_job *job = &export->job;
    PyObject *result = NULL;
    mse_text *module_texts = texts_of(modules, &job->module_count);
    mse_text *device_texts = module_texts ? texts_of(devices, &job->device_count) : NULL;
    uint32_t *numbers = device_texts ? numbers_of(order, &job->order_count) : NULL;
    job->modules = module_texts;
    job->devices = device_texts;
    job->order = numbers;
    if (numbers)
        result = run(self, export, write);
    PyMem_Free(module_texts);
    PyMem_Free(device_texts);
    PyMem_Free(numbers);
    return result;
}

PyObject *msr_export(msr_reader *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"format", "write", "modules", "devices",  "title", "pid",
                            "began",  "order", "last",    "progress", NULL};
    struct export export = {.progress = Py_None, .job = {.put = put, .last = UINT64_MAX}};
    const char *format, *title = "";
    Py_ssize_t title_size = 0;
    unsigned long long began = 0;
    PyObject *modules = NULL, *devices = NULL, *order = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "sO|$O!O!y#iKO!O&O:export", names, &format, &export.write,
                                     &PyList_Type, &modules, &PyList_Type, &devices, &title, &title_size,
                                     &export.job.pid, &began, &PyList_Type, &order, to_last, &export.job.last,
                                     &export.progress))
        return NULL;
    int (*write)(const mse_job *) = find(format);
    if (!write)
        return NULL;
    if (!modules || !devices || !order)
        return PyErr_Format(PyExc_TypeError, "export needs the names of modules and devices, and their order");
    export.job.context = &export;
    export.job.title = (mse_text){title, (size_t)title_size};
    export.job.began = began;
    return with_names(self, &export, modules, devices, order, write);
}
