/* module.c - the extension module modscope._capture: its exception, its types, and conversions that they share. */
#include "capture_api/capture_api.h"

#include <errno.h>

static PyObject *format_error;
PyObject *msr_ops[MS_OP_COUNT], *msr_phases[MS_PHASE_COUNT], *msr_categories[MS_CATEGORY_COUNT];
PyObject *msr_kinds[MS_KIND_COUNT];

PyObject *msr_raise(int error)
{
    switch (error) {
    case MS_ENOMEM:
        return PyErr_NoMemory();
    case MS_EIO:
        return PyErr_SetFromErrno(PyExc_OSError);
    case MS_EFORMAT:
        PyErr_SetString(format_error, "this file is not a modscope capture");
        break;
    case MS_ENEWER:
        PyErr_SetString(format_error,
                        "this capture was written by a newer version of modscope: upgrade modscope to read it");
        break;
    case MS_ENOSTEP:
    case MS_EEND:
        PyErr_SetString(PyExc_LookupError, ms_error_text(error));
        break;
    default:
        PyErr_SetString(PyExc_ValueError, ms_error_text(error));
    }
    return NULL;
}

bool msr_lock_reader(msr_reader *reader)
{
    if (reader->busy)
        PyErr_SetString(PyExc_RuntimeError,
                        "this capture is in use by another call: wait for it to end, or open the capture again");
    else
        return reader->busy = true;
    return false;
}

void msr_unlock_reader(msr_reader *reader)
{
    reader->busy = false;
}

bool msr_append(PyObject *list, PyObject *item)
{
    bool done = list && item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return done;
}

bool msr_put(PyObject *dict, PyObject *key, PyObject *value)
{
    bool done = key && value && PyDict_SetItem(dict, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return done;
}

PyObject *msr_tuple_of(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *bytes = PyLong_FromLongLong(numbers[i]);
        if (bytes)
            PyTuple_SET_ITEM(tuple, i, bytes);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *msr_sums(const ms_sums *sums)
{
    return msr_tuple_of(sums->of, MS_CATEGORY_COUNT);
}

static bool intern_names(PyObject **names, const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(names[i] = PyUnicode_InternFromString(texts[i])))
            return false;
    return true;
}

static bool make_names(void)
{
    static const char *const ops[MS_OP_COUNT] = {"add",  "drop",           "claim",    "position", "thread",
                                                 "step", "optimizer_step", "reserved", "oom"};
    static const char *const phases[MS_PHASE_COUNT] = {
#define X(name, text) text,
        MS_PHASES(X)
#undef X
    };
    static const char *const categories[MS_CATEGORY_COUNT] = {
#define X(name, text) text,
        MS_CATEGORIES(X)
#undef X
    };
    static const char *const kinds[MS_KIND_COUNT - 1] = {
#define X(name, text, category) text,
        MS_KINDS(X)
#undef X
    };
    msr_kinds[MS_KIND_NONE] = Py_NewRef(Py_None);
    return intern_names(msr_kinds + 1, kinds, MS_KIND_COUNT - 1) && intern_names(msr_ops, ops, MS_OP_COUNT) &&
           intern_names(msr_phases, phases, MS_PHASE_COUNT) &&
           intern_names(msr_categories, categories, MS_CATEGORY_COUNT);
}

static PyMethodDef functions[] = {
    {"read_source", msr_read_source, METH_O,
     "read_source($module, file, /)\n--\n\nWhat a source file is like now, as Reader.sources has it; None: it is not "
     "there."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "modscope._capture",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__capture(void)
{
    if (!make_names() || PyType_Ready(&msr_events_type) != 0)
        return NULL;
    format_error = PyErr_NewExceptionWithDoc("modscope._capture.FormatError",
                                             "The file is not a capture, or a newer version of modscope wrote it.",
                                             PyExc_ValueError, NULL);
    PyObject *module = format_error ? PyModule_Create(&definition) : NULL;
    if (!module || PyModule_AddType(module, &msr_reader_type) != 0 ||
        PyModule_AddType(module, &msr_snapshot_type) != 0 || PyModule_AddType(module, &msr_allocator_type) != 0 ||
        PyModule_AddType(module, &msr_stream_type) != 0 || PyModule_AddType(module, &msr_cover_type) != 0 ||
        PyModule_AddType(module, &msr_epoch_type) != 0 || PyModule_AddType(module, &msr_live_type) != 0 ||
        PyModule_AddObjectRef(module, "FormatError", format_error) != 0 ||
        PyModule_AddStringConstant(module, "version", MS_VERSION) != 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
