/* cover.c - Cover: the greedy choice of modules to checkpoint (modscope_replay.h), for Python. */
#include "capture_api/capture_api.h"

#include "modscope_replay.h"

typedef struct cover_object {
    PyObject_HEAD
    ms_cover_problem problem;
    double *costs;
    int64_t *needed, *saved;
    uint8_t *lies_in;
} cover_object;

static void dealloc(PyObject *self)
{
    cover_object *cover = (cover_object *)self;
    PyMem_Free(cover->costs);
    PyMem_Free(cover->needed);
    PyMem_Free(cover->saved);
    PyMem_Free(cover->lies_in);
    Py_TYPE(self)->tp_free(self);
}

static bool read_costs(cover_object *cover, PyObject *costs)
{
    for (uint32_t i = 0; i < cover->problem.candidates; i++)
        cover->costs[i] = PyFloat_AsDouble(PyList_GET_ITEM(costs, i));
    return !PyErr_Occurred();
}

/* A row is a tuple of the bytes that are needed and a tuple of the bytes that each candidate saves. */
static bool read_row(cover_object *cover, uint32_t row, PyObject *item)
{
    long long needed;
    PyObject *saved;
    if (!PyArg_ParseTuple(item, "LO!:Cover", &needed, &PyTuple_Type, &saved))
        return false;
    if (PyTuple_GET_SIZE(saved) != (Py_ssize_t)cover->problem.candidates) {
        PyErr_SetString(PyExc_ValueError, "a row must have the savings of every candidate");
        return false;
    }
    cover->needed[row] = needed;
    for (uint32_t i = 0; i < cover->problem.candidates; i++)
        cover->saved[(size_t)i * cover->problem.rows + row] = PyLong_AsLongLong(PyTuple_GET_ITEM(saved, i));
    return !PyErr_Occurred();
}

/* `around`: the candidates in which this one lies. */
static bool read_around(cover_object *cover, uint32_t candidate, PyObject *around)
{
    uint32_t count = cover->problem.candidates;
    PyObject *items = PySequence_Fast(around, "the candidates around a candidate must be a sequence");
    bool ok = items != NULL;
    for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(items); i++) {
        unsigned long outer = PyLong_AsUnsignedLong(PySequence_Fast_GET_ITEM(items, i));
        ok = !PyErr_Occurred() && outer < count;
        if (ok)
            cover->lies_in[(size_t)candidate * count + outer] = 1;
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "there is no such candidate");
    }
    Py_XDECREF(items);
    return ok;
}

static bool read_problem(cover_object *cover, PyObject *costs, PyObject *rows, PyObject *around)
{
    size_t candidates = (size_t)PyList_GET_SIZE(costs), row_count = (size_t)PyList_GET_SIZE(rows);
    if (candidates > 1 << 16 || row_count > 1 << 20 || (size_t)PyList_GET_SIZE(around) != candidates) {
        PyErr_SetString(PyExc_ValueError, "costs and around must have an item for each candidate, 65536 at most");
        return false;
    }
    cover->costs = PyMem_Calloc(candidates + 1, sizeof *cover->costs);
    cover->needed = PyMem_Calloc(row_count + 1, sizeof *cover->needed);
    cover->saved = PyMem_Calloc(candidates * row_count + 1, sizeof *cover->saved);
    cover->lies_in = PyMem_Calloc(candidates * candidates + 1, 1);
    if (!cover->costs || !cover->needed || !cover->saved || !cover->lies_in) {
        PyErr_NoMemory();
        return false;
    }
    cover->problem = (ms_cover_problem){
        .candidates = (uint32_t)candidates,
        .rows = (uint32_t)row_count,
        .costs = cover->costs,
        .needed = cover->needed,
        .saved = cover->saved,
        .lies_in = cover->lies_in,
    };
    if (!read_costs(cover, costs))
        return false;
    for (uint32_t i = 0; i < cover->problem.rows; i++)
        if (!read_row(cover, i, PyList_GET_ITEM(rows, i)))
            return false;
    for (uint32_t i = 0; i < cover->problem.candidates; i++)
        if (!read_around(cover, i, PyList_GET_ITEM(around, i)))
            return false;
    return true;
}

static PyObject *new_cover(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"costs", "rows", "around", NULL};
    PyObject *costs, *rows, *around;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O!O!O!:Cover", names, &PyList_Type, &costs, &PyList_Type, &rows,
                                     &PyList_Type, &around))
        return NULL;
    cover_object *cover = (cover_object *)type->tp_alloc(type, 0);
    if (cover && !read_problem(cover, costs, rows, around))
        Py_CLEAR(cover);
    return (PyObject *)cover;
}

static PyObject *list_chosen(const bool *chosen, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < count; i++)
        if (chosen[i] && !msr_append(list, PyLong_FromUnsignedLong(i)))
            Py_CLEAR(list);
    return list;
}

static PyObject *choose(PyObject *self, PyObject *argument)
{
    cover_object *cover = (cover_object *)self;
    long long target = PyLong_AsLongLong(argument);
    if (target == -1 && PyErr_Occurred())
        return NULL;
    bool *chosen = PyMem_RawCalloc(cover->problem.candidates + 1, sizeof *chosen);
    bool is_covered = false;
    int error = MS_ENOMEM;
    if (chosen) {
        Py_BEGIN_ALLOW_THREADS
        error = ms_cover_choose(&cover->problem, target, chosen, &is_covered);
        Py_END_ALLOW_THREADS
    }
    PyObject *list = error         ? PyErr_NoMemory()
                     : !is_covered ? Py_NewRef(Py_None)
                                   : list_chosen(chosen, cover->problem.candidates);
    PyMem_RawFree(chosen);
    return list;
}

static PyMethodDef methods[] = {
    {"choose", choose, METH_O, "The candidates that bring every row to the target; None: none do."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject msr_cover_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._capture.Cover",
    .tp_doc = "The modules to checkpoint so that no moment needs more than a target, chosen greedily.",
    .tp_basicsize = sizeof(cover_object),
    .tp_dealloc = dealloc,
    .tp_methods = methods,
    .tp_new = new_cover,
};
