/* visit_tensors.c - find the tensors in a module's arguments and outputs, however deep. */
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"

enum { MAX_VISIT_DEPTH = 64 };

struct visitor {
    mst_visit *visit;
    void *context;
    bool containers_only; /* only lists, tuples and dicts, which needs no Python */
};

static int visit_object(PyObject *object, const struct visitor *to, int depth);

/* A visit may run Python of the program, which may change the list. So the size is read again
 * for each item, and each item is owned while it is visited. */
static int visit_sequence(PyObject *sequence, const struct visitor *to, int depth)
{
    int error = 0;
    for (Py_ssize_t i = 0; !error && i < PySequence_Fast_GET_SIZE(sequence); i++) {
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(sequence, i));
        error = visit_object(item, to, depth);
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
        mst_clear_error();
        error = value ? visit_object(value, to, depth) : 0;
        Py_XDECREF(value);
    }
    Py_XDECREF(names);
    return error;
}

/* A collections.UserDict, such as a BatchEncoding of Hugging Face's tokenizers. */
static bool is_user_dict(PyTypeObject *type)
{
    static PyObject *user_dict;
    if (!user_dict) {
        PyObject *collections = PyImport_ImportModule("collections");
        user_dict = collections ? PyObject_GetAttrString(collections, "UserDict") : NULL;
        Py_XDECREF(collections);
        mst_clear_error();
    }
    return user_dict && PyType_Check(user_dict) && PyType_IsSubtype(type, (PyTypeObject *)user_dict);
}

static int visit_user_dict(PyObject *object, const struct visitor *to, int depth)
{
    PyObject *name = PyUnicode_InternFromString("data"), *callback = mst_dynamo_disable();
    PyObject *data = name ? PyObject_GenericGetAttr(object, name) : NULL;
    mst_clear_error();
    int error = data ? visit_object(data, to, depth) : 0;
    mst_dynamo_restore(callback);
    Py_XDECREF(data);
    Py_XDECREF(name);
    return error;
}

/* A registered pytree type is flattened by the Python function that was registered with it. */
static int visit_registered(PyObject *object, const struct visitor *to, int depth)
{
    PyObject *type = (PyObject *)Py_TYPE(object), *callback, *flatten, *flat = NULL;
    PyObject *entry = mst.torch.pytree_nodes ? PyDict_GetItemWithError(mst.torch.pytree_nodes, type) : NULL;
    if (!entry)
        return PyErr_Occurred() ? (PyErr_Clear(), 0) : 0;
    Py_INCREF(entry);
    callback = mst_dynamo_disable();
    flatten = PyObject_GetAttr(entry, mst.interned.flatten_fn);
    if (flatten)
        flat = PyObject_CallOneArg(flatten, object);
    mst_dynamo_restore(callback);
    Py_DECREF(entry);
    Py_XDECREF(flatten);
    mst_clear_error();
    int error = flat && PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0
                    ? visit_object(PyTuple_GET_ITEM(flat, 0), to, depth)
                    : 0;
    Py_XDECREF(flat);
    return error;
}

/* A cache of types that are neither dataclasses nor registered, so that their objects are not
 * visited. Finding that out costs more than visiting all arguments of most calls. */
enum { PLAIN_TYPE_COUNT = 16 };
static struct {
    PyTypeObject *types[PLAIN_TYPE_COUNT]; /* owned */
    size_t next;                           /* the entry to replace next */
    Py_ssize_t registered;                 /* how many types were registered when the cache was filled */
} plain;

static bool is_plain_type(PyTypeObject *type)
{
    Py_ssize_t registered = mst.torch.pytree_nodes ? PyDict_GET_SIZE(mst.torch.pytree_nodes) : 0;
    if (plain.registered != registered) {
        plain.registered = registered;
        for (size_t i = 0; i < PLAIN_TYPE_COUNT; i++)
            Py_CLEAR(plain.types[i]);
    }
    for (size_t i = 0; i < PLAIN_TYPE_COUNT; i++)
        if (plain.types[i] == type)
            return true;
    return false;
}

static void add_plain_type(PyTypeObject *type)
{
    Py_INCREF(type);
    Py_XSETREF(plain.types[plain.next], type);
    plain.next = (plain.next + 1) % PLAIN_TYPE_COUNT;
}

static bool is_registered_type(PyTypeObject *type)
{
    bool found = mst.torch.pytree_nodes && PyDict_Contains(mst.torch.pytree_nodes, (PyObject *)type) == 1;
    PyErr_Clear();
    return found;
}

static int visit_object(PyObject *object, const struct visitor *to, int depth)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
        object == Py_None || depth > MAX_VISIT_DEPTH)
        return 0;
    if (PyObject_TypeCheck(object, mst.torch.tensor))
        return to->visit(object, to->context);
    if (PyTuple_Check(object) || PyList_Check(object))
        return visit_sequence(object, to, depth + 1);
    if (PyDict_Check(object))
        return visit_dict(object, to, depth + 1);
    if (to->containers_only || is_plain_type(type))
        return 0;
    PyObject *fields = PyObject_GetAttr((PyObject *)type, mst.interned.__dataclass_fields__);
    mst_clear_error();
    if (!fields && !is_registered_type(type)) {
        if (is_user_dict(type))
            return visit_user_dict(object, to, depth + 1);
        add_plain_type(type);
        return 0;
    }
    PyObject *callback = fields ? mst_dynamo_disable() : NULL; /* A field may be a property, which is Python. */
    int error = fields && PyDict_Check(fields) ? visit_dataclass(object, fields, to, depth + 1)
                                               : visit_registered(object, to, depth + 1);
    mst_dynamo_restore(callback);
    Py_XDECREF(fields);
    return error;
}

int mst_visit_tensors(PyObject *object, mst_visit *visit_tensor, void *context)
{
    struct visitor to = {visit_tensor, context, false};
    Py_XINCREF(object);
    int error = object ? visit_object(object, &to, 0) : 0;
    Py_XDECREF(object);
    return error;
}

int mst_visit_tensors_in_containers(PyObject *object, mst_visit *visit_tensor, void *context)
{
    struct visitor to = {visit_tensor, context, true};
    return visit_object(object, &to, 0);
}

static int append_if_requires_grad(PyObject *tensor, void *list)
{
    PyObject *requires_grad = PyObject_GetAttr(tensor, mst.interned.requires_grad);
    if (!requires_grad) {
        mst_clear_error();
        return 0;
    }
    int error = requires_grad == Py_True ? PyList_Append(list, tensor) : 0;
    Py_DECREF(requires_grad);
    return error;
}

int mst_append_grad_tensors(PyObject *object, PyObject *list)
{
    return mst_visit_tensors(object, append_if_requires_grad, list);
}
