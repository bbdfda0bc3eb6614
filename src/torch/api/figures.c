/* figures.c - figures as Python objects. */
#include "torch/api/api.h"
#include "torch/names/names.h"

static PyObject *tuple_of(const int64_t *figures, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *bytes = PyLong_FromLongLong(figures[i]);
        if (!bytes)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, bytes);
    }
    return tuple;
}

PyObject *mst_tuple_of_sums(const ms_sums *sums)
{
    return tuple_of(sums->of, MS_CATEGORY_COUNT);
}

PyObject *mst_tuple_of_kinds(const ms_kind_sums *kinds)
{
    return tuple_of(kinds->of, MS_KIND_COUNT);
}

static bool are_zero(const int64_t *figures, int count)
{
    int64_t any = 0;
    for (int i = 0; i < count; i++)
        any |= figures[i];
    return !any;
}

int mst_append_new(PyObject *list, PyObject *item)
{
    int error = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return error;
}

PyObject *mst_sums_by_path(ms_ledger *ledger, ms_peak_tracker *at_peak)
{
    PyObject *list = PyList_New(0);
    uint32_t devices = ms_ledger_devices(ledger);
    for (uint32_t device = 0; list && device < devices; device++)
        for (ms_path path = 0; list && ms_ledger_find_path(ledger, at_peak, device, &path); path++) {
            ms_sums sums =
                at_peak ? ms_peak_tracker_peak_of(at_peak, device, path) : ms_ledger_now_of(ledger, device, path);
            if (are_zero(sums.of, MS_CATEGORY_COUNT))
                continue;
            PyObject *shown = mst_path_shown(path);
            if (!shown || mst_append_new(list, Py_BuildValue("(INN)", device, shown, mst_tuple_of_sums(&sums))) != 0)
                Py_CLEAR(list);
        }
    return list;
}

PyObject *mst_kinds_by_path(ms_ledger *ledger, ms_peak_tracker *at_peak)
{
    PyObject *list = PyList_New(0);
    uint32_t devices = ms_ledger_devices(ledger);
    for (uint32_t device = 0; list && device < devices; device++)
        for (ms_path path = 0; list && ms_ledger_find_path_with_kinds(ledger, device, &path); path++) {
            ms_kind_sums kinds =
                at_peak ? ms_peak_tracker_kinds_of(at_peak, device, path) : ms_ledger_kinds_of(ledger, device, path);
            if (are_zero(kinds.of, MS_KIND_COUNT))
                continue;
            PyObject *shown = mst_path_shown(path);
            if (!shown || mst_append_new(list, Py_BuildValue("(INN)", device, shown, mst_tuple_of_kinds(&kinds))) != 0)
                Py_CLEAR(list);
        }
    return list;
}
