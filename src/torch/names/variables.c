/* variables.c - which variables and attributes of the running Python frames hold a module. Reads only; runs no Python.
 *
 * Searched are the local and global variables of every frame of this thread that is not torch's or modscope's own,
 * and one level deeper the attributes of objects and the items of lists, tuples and dicts. Of the names that are
 * found, those with fewer parts come first, and among these the outermost frame's: `generator` of the main program,
 * rather than `model` of a function that it was passed to. */
#include "torch/lines/lines.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <string.h>

enum { MOST_FRAMES = 256, MOST_NAMES = 16, MOST_ITEMS = 1024, MOST_OBJECTS = 256 };

struct search {
    PyObject *module;
    PyObject *names[2]; /* lists: names of one part, and of several */
    PyObject *container, *inside;
    Py_ssize_t inside_length;     /* in parts */
    PyObject *seen[MOST_OBJECTS]; /* objects and modules that were looked into; borrowed */
    size_t seen_count;
};

/* Whether an object is looked into for the first time. */
static bool see(struct search *search, PyObject *object)
{
    for (size_t i = 0; i < search->seen_count; i++)
        if (search->seen[i] == object)
            return false;
    if (search->seen_count == MOST_OBJECTS)
        return false;
    search->seen[search->seen_count++] = object;
    return true;
}

/* ---- names ---- */

static bool is_self(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "self") == 0 || PyUnicode_CompareWithASCIIString(name, "cls") == 0;
}

/* Private variables, and those that Python makes itself, say nothing to the reader. */
static bool is_telling(PyObject *name)
{
    return PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 0 && PyUnicode_ReadChar(name, 0) != '_' &&
           PyUnicode_IsIdentifier(name) && !is_self(name);
}

/* Takes over the reference; NULL is allowed. */
static void add_name(struct search *search, PyObject *name, bool is_long)
{
    PyObject *list = search->names[is_long];
    if (name && list && PyList_GET_SIZE(list) < MOST_NAMES && !PySequence_Contains(list, name))
        PyList_Append(list, name);
    Py_XDECREF(name);
    mst_clear_error();
}

/* ---- containers ---- */

bool mst_may_contain(PyObject *module)
{
    const char *name = mst_module_of_class(module);
    return strncmp(name, "torch.", strlen("torch.")) != 0 || strcmp(name, "torch.nn.modules.container") == 0 ||
           strcmp(name, "torch.nn.modules.module") == 0;
}

static Py_ssize_t count_parts(PyObject *name)
{
    Py_ssize_t parts = 1, length = PyUnicode_GET_LENGTH(name);
    for (Py_ssize_t at = 0; (at = PyUnicode_FindChar(name, '.', at, length, 1)) >= 0; at++)
        parts++;
    return parts;
}

/* The outermost container is the best one. */
static void try_container(struct search *search, PyObject *module)
{
    PyObject *children = mst_module_dict(module, mst.interned._modules);
    if (!children || !PyDict_GET_SIZE(children) || !see(search, module) || !mst_may_contain(module))
        return;
    PyObject *inside = mst_find_name_inside(module, search->module);
    Py_ssize_t length = inside ? count_parts(inside) : 0;
    if (length <= search->inside_length) {
        Py_XDECREF(inside);
        return;
    }
    search->inside_length = length;
    search->container = module;
    Py_XSETREF(search->inside, inside);
}

/* ---- values ---- */

/* `name`: of the variable; `key`: of the item or attribute in it, or NULL. False: the value is no module. */
static bool look_at_module(struct search *search, PyObject *name, PyObject *key, PyObject *value)
{
    if (!mst_is_module(value))
        return false;
    if (value != search->module)
        try_container(search, value);
    else if (!key && is_telling(name))
        add_name(search, Py_NewRef(name), false);
    else if (key && is_self(name) && is_telling(key))
        add_name(search, Py_NewRef(key), false);
    else if (key && is_telling(name) && PyUnicode_GET_LENGTH(key) > 0 &&
             PyUnicode_FindChar(key, '.', 0, PyUnicode_GET_LENGTH(key), 1) < 0)
        add_name(search, PyUnicode_FromFormat("%U.%U", name, key), true);
    mst_clear_error();
    return true;
}

static void look_into_sequence(struct search *search, PyObject *name, PyObject *value)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
    for (Py_ssize_t i = 0; i < count && i < MOST_ITEMS; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(value, i);
        PyObject *key = item == search->module ? PyUnicode_FromFormat("%zd", i) : NULL;
        if (key)
            look_at_module(search, name, key, item);
        else if (item && mst_is_module(item))
            try_container(search, item);
        Py_XDECREF(key);
    }
}

static void look_into_dict(struct search *search, PyObject *name, PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    for (int i = 0; i < MOST_ITEMS && PyDict_Next(dict, &position, &key, &value); i++)
        if (PyUnicode_Check(key))
            look_at_module(search, name, key, value);
}

static bool look_into_container(struct search *search, PyObject *name, PyObject *value)
{
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
        look_into_sequence(search, name, value);
    else if (PyDict_CheckExact(value))
        look_into_dict(search, name, value);
    else
        return false;
    return true;
}

/* The attributes of an object; those of `self` are looked into as if they were variables. */
static void look_into_object(struct search *search, PyObject *name, PyObject *object)
{
    bool self = is_self(name);
    if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) || PyType_Check(object) ||
        PyObject_TypeCheck(object, mst.torch.tensor) || (!self && !see(search, object)))
        return;
    PyObject *dict = mst_module_dict(object, NULL), *key, *value;
    Py_ssize_t position = 0;
    for (int i = 0; dict && i < MOST_ITEMS && PyDict_Next(dict, &position, &key, &value); i++)
        if (PyUnicode_Check(key) && !look_at_module(search, name, key, value) && self)
            look_into_container(search, key, value);
}

static void look_at_variable(struct search *search, PyObject *name, PyObject *value)
{
    if (!PyUnicode_Check(name) || look_at_module(search, name, NULL, value))
        return;
    if (is_telling(name) || is_self(name))
        if (!look_into_container(search, name, value))
            look_into_object(search, name, value);
}

/* ---- frames ---- */

/* Python's own functions are not asked: from 3.12 on they describe a variable that has no value with repr(), which runs
 * handlers of signals and collections that are due. */
static void look_at_locals(struct search *search, PyFrameObject *frame, PyCodeObject *code)
{
    PyObject *const *variables = mst_frame_variables(frame);
    for (int i = 0; variables && i < code->co_nlocalsplus && i < PyTuple_GET_SIZE(code->co_localsplusnames); i++) {
        PyObject *value = variables[i];
        if (value && PyCell_Check(value))
            value = PyCell_GET(value);
        if (value)
            look_at_variable(search, PyTuple_GET_ITEM(code->co_localsplusnames, i), value);
    }
}

static bool is_within(const char *name, const char *package)
{
    size_t length = strlen(package);
    return strncmp(name, package, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

/* Frames of torch and of modscope hold modules in variables that say nothing about the program. */
static bool is_of_program(PyObject *globals)
{
    PyObject *name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    mst_clear_error();
    return !text || (!is_within(text, "torch") && !is_within(text, "modscope"));
}

static void look_at_frame(struct search *search, PyFrameObject *frame)
{
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyCodeObject *code = PyFrame_GetCode(frame);
    if (is_of_program(globals)) {
        PyObject *name, *value;
        Py_ssize_t position = 0;
        for (bool more = see(search, globals); more && PyDict_Next(globals, &position, &name, &value);)
            look_at_variable(search, name, value);
        if (code->co_flags & CO_OPTIMIZED)
            look_at_locals(search, frame, code);
    }
    Py_DECREF(code);
    Py_DECREF(globals);
}

struct mst_variables mst_find_variables(PyObject *module)
{
    struct search search = {.module = module, .names = {PyList_New(0), PyList_New(0)}};
    PyFrameObject *frames[MOST_FRAMES];
    int count = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    for (; frame && count < MOST_FRAMES; frame = PyFrame_GetBack(frame))
        frames[count++] = frame;
    Py_XDECREF(frame);
    for (int i = count; i-- > 0; Py_DECREF(frames[i]))
        look_at_frame(&search, frames[i]);
    PyObject *names = search.names[0];
    if (names && search.names[1])
        PyList_SetSlice(names, PyList_GET_SIZE(names), PyList_GET_SIZE(names), search.names[1]);
    Py_XDECREF(search.names[1]);
    mst_clear_error();
    return (struct mst_variables){names, search.container, search.inside};
}
