/* tensors.c - find the tensors in what a module takes and gives, however nested. */
#include "torch/native.h"

enum { DEEPEST = 64 };

int mst_quiet_enter(struct mst_quiet *quiet)
{
    quiet->guard = PyObject_CallNoArgs(mst_torch.disable_torch_function);
    PyObject *entered = quiet->guard ? PyObject_CallMethodNoArgs(quiet->guard, mst_words.__enter__) : NULL;
    if (!entered)
        Py_CLEAR(quiet->guard);
    Py_XDECREF(entered);
    return quiet->guard ? 0 : -1;
}

void mst_quiet_leave(struct mst_quiet *quiet)
{
    if (!quiet->guard)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *args[] = {quiet->guard, Py_None, Py_None, Py_None};
    PyObject *left = PyObject_VectorcallMethod(mst_words.__exit__, args, 4, NULL);
    Py_XDECREF(left);
    PyErr_Clear();
    Py_CLEAR(quiet->guard);
    PyErr_Restore(type, value, traceback);
}

struct visitor {
    mst_visit *visit;
    void *context;
    bool plainly; /* run no Python: look into lists, tuples and dicts only */
};

static int visit(PyObject *object, const struct visitor *to, int depth);

/* What is looked into may run somebody's Python, which may change what is looked through:
 * so items are owned, and only tuples and lists are looked through as they are. */
static int visit_sequence(PyObject *sequence, const struct visitor *to, int depth)
{
    int error = 0;
    for (Py_ssize_t i = 0; !error && i < PySequence_Fast_GET_SIZE(sequence); i++) {
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i));
        error = visit(item, to, depth);
        Py_DECREF(item);
    }
    return error;
}

static int visit_dict(PyObject *dict, const struct visitor *to, int depth)
{
    PyObject *values = PyDict_Values(dict);
    int error = values ? visit_sequence(values, to, depth) : -1;
    Py_XDECREF(values);
    return error;
}

static int visit_dataclass(PyObject *object, PyObject *fields, const struct visitor *to, int depth)
{
    PyObject *names = PyDict_Keys(fields);
    int error = names ? 0 : -1;
    for (Py_ssize_t i = 0; !error && i < PyList_GET_SIZE(names); i++) {
        PyObject *value = PyObject_GetAttr(object, PyList_GET_ITEM(names, i));
        PyErr_Clear();
        error = value ? visit(value, to, depth) : 0;
        Py_XDECREF(value);
    }
    Py_XDECREF(names);
    return error;
}

/* Only somebody's registered type needs Python: how to flatten it. */
static int visit_registered(PyObject *object, const struct visitor *to, int depth)
{
    PyObject *type = (PyObject *)Py_TYPE(object), *callback, *flatten, *flat = NULL;
    PyObject *how = mst_torch.pytree_nodes ? PyDict_GetItemWithError(mst_torch.pytree_nodes, type) : NULL;
    if (!how)
        return PyErr_Occurred() ? (PyErr_Clear(), 0) : 0;
    Py_INCREF(how);
    callback = mst_dynamo_off();
    flatten = PyObject_GetAttr(how, mst_words.flatten_fn);
    if (flatten)
        flat = PyObject_CallOneArg(flatten, object);
    mst_dynamo_on(callback);
    Py_DECREF(how);
    Py_XDECREF(flatten);
    PyErr_Clear();
    int error =
        flat && PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0 ? visit(PyTuple_GET_ITEM(flat, 0), to, depth) : 0;
    Py_XDECREF(flat);
    return error;
}

/* Types whose objects were found to hold no tensors: neither dataclasses nor registered. Looking for
 * that costs more than most calls' arguments altogether. */
enum { PLAIN_TYPES = 16 };
static struct {
    PyTypeObject *types[PLAIN_TYPES]; /* owned */
    size_t next;
    Py_ssize_t registered; /* how many types were, then */
} plain;

static bool is_plain(PyTypeObject *type)
{
    Py_ssize_t registered = mst_torch.pytree_nodes ? PyDict_GET_SIZE(mst_torch.pytree_nodes) : 0;
    if (plain.registered != registered) {
        plain.registered = registered;
        for (size_t i = 0; i < PLAIN_TYPES; i++)
            Py_CLEAR(plain.types[i]);
    }
    for (size_t i = 0; i < PLAIN_TYPES; i++)
        if (plain.types[i] == type)
            return true;
    return false;
}

static void note_plain(PyTypeObject *type)
{
    Py_INCREF(type);
    Py_XSETREF(plain.types[plain.next], type);
    plain.next = (plain.next + 1) % PLAIN_TYPES;
}

static bool is_registered(PyTypeObject *type)
{
    bool there = mst_torch.pytree_nodes && PyDict_Contains(mst_torch.pytree_nodes, (PyObject *)type) == 1;
    PyErr_Clear();
    return there;
}

static int visit(PyObject *object, const struct visitor *to, int depth)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
        object == Py_None || depth > DEEPEST)
        return 0;
    if (PyObject_TypeCheck(object, mst_torch.tensor))
        return to->visit(object, to->context);
    if (PyTuple_Check(object) || PyList_Check(object))
        return visit_sequence(object, to, depth + 1);
    if (PyDict_Check(object))
        return visit_dict(object, to, depth + 1);
    if (to->plainly || is_plain(type))
        return 0;
    PyObject *fields = PyObject_GetAttr((PyObject *)type, mst_words.__dataclass_fields__);
    PyErr_Clear();
    if (!fields && !is_registered(type)) {
        note_plain(type);
        return 0;
    }
    PyObject *callback = fields ? mst_dynamo_off() : NULL; /* a field may be a property */
    int error = fields && PyDict_Check(fields) ? visit_dataclass(object, fields, to, depth + 1)
                                               : visit_registered(object, to, depth + 1);
    mst_dynamo_on(callback);
    Py_XDECREF(fields);
    return error;
}

int mst_tensors_visit(PyObject *object, mst_visit *visit_tensor, void *context)
{
    struct visitor to = {visit_tensor, context, false};
    Py_XINCREF(object);
    int error = object ? visit(object, &to, 0) : 0;
    Py_XDECREF(object);
    return error;
}

int mst_tensors_visit_plainly(PyObject *object, mst_visit *visit_tensor, void *context)
{
    struct visitor to = {visit_tensor, context, true};
    return visit(object, &to, 0);
}

static int append_if_wanted(PyObject *tensor, void *list)
{
    PyObject *wants = PyObject_GetAttr(tensor, mst_words.requires_grad);
    if (!wants) {
        PyErr_Clear();
        return 0;
    }
    int error = wants == Py_True ? PyList_Append(list, tensor) : 0;
    Py_DECREF(wants);
    return error;
}

int mst_tensors_in(PyObject *object, PyObject *list)
{
    return mst_tensors_visit(object, append_if_wanted, list);
}
