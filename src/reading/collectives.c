/* collectives.c - Reader.collectives and Reader.collective_totals: what a capture has of torch.distributed. */
#include "reading/reading.h"

#include "modscope_collectives.h"

#include <stdlib.h>

static bool read_collectives(msr_reader *reader, ms_collectives *found)
{
    int error;
    if (!msr_lock_reader(reader))
        return false;
    Py_BEGIN_ALLOW_THREADS
    error = ms_collectives_read(reader->reader, found);
    Py_END_ALLOW_THREADS
    msr_unlock_reader(reader);
    if (error)
        msr_raise(error);
    return !error;
}

/* Append a new reference, which may be NULL with an error set. */
static bool append_new(PyObject *list, PyObject *item)
{
    bool done = list && item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return done;
}

static PyObject *group_of(const ms_collective_group *group)
{
    return Py_BuildValue("(IsssI)", group->number, group->name, group->backend, group->ranks, group->size);
}

static PyObject *collective_of(const ms_collective *one)
{
    return Py_BuildValue("(KKKsKKIIIO)", (unsigned long long)one->event, (unsigned long long)one->time,
                         (unsigned long long)one->step, ms_collective_name(one->kind), (unsigned long long)one->bytes,
                         (unsigned long long)one->nanoseconds, one->path, one->thread, one->group,
                         msr_phases[one->phase]);
}

/* The pair of a list and the list of the groups; `rows` is consumed, and NULL if an error is set. */
static PyObject *with_groups(PyObject *rows, const ms_collectives *found)
{
    PyObject *groups = rows ? PyList_New(0) : NULL;
    bool done = groups != NULL;
    for (size_t i = 0; done && i < found->group_count; i++)
        done = append_new(groups, group_of(&found->groups[i]));
    PyObject *result = done ? PyTuple_Pack(2, rows, groups) : NULL;
    Py_XDECREF(rows);
    Py_XDECREF(groups);
    return result;
}

PyObject *msr_collectives(msr_reader *reader)
{
    ms_collectives found;
    if (!read_collectives(reader, &found))
        return NULL;
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows && i < found.count; i++)
        if (!append_new(rows, collective_of(&found.at[i])))
            Py_CLEAR(rows);
    PyObject *result = with_groups(rows, &found);
    ms_collectives_free(reader->reader, &found);
    return result;
}

/* ---- totals ---- */
static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_row(const void *a, const void *b)
{
    const ms_collective *first = a, *second = b;
    int order = compare(first->kind, second->kind);
    if (!order)
        order = compare(first->group, second->group);
    if (!order)
        order = compare(first->path, second->path);
    if (!order)
        order = compare(first->phase, second->phase);
    return order ? order : compare(first->step == 0, second->step == 0);
}

static PyObject *totals_of(const ms_collectives *found)
{
    PyObject *rows = PyList_New(0);
    for (size_t i = 0, next; rows && i < found->count; i = next) {
        const ms_collective *one = &found->at[i];
        uint64_t bytes = 0, nanoseconds = 0;
        for (next = i; next < found->count && by_row(one, &found->at[next]) == 0; next++) {
            bytes += found->at[next].bytes;
            nanoseconds += found->at[next].nanoseconds;
        }
        PyObject *row =
            Py_BuildValue("(sIIOOKKK)", ms_collective_name(one->kind), one->group, one->path, msr_phases[one->phase],
                          one->step ? Py_True : Py_False, (unsigned long long)(next - i), (unsigned long long)bytes,
                          (unsigned long long)nanoseconds);
        if (!append_new(rows, row))
            Py_CLEAR(rows);
    }
    return rows;
}

PyObject *msr_collective_totals(msr_reader *reader)
{
    ms_collectives found;
    if (!read_collectives(reader, &found))
        return NULL;
    if (found.count)
        qsort(found.at, found.count, sizeof *found.at, by_row);
    PyObject *result = with_groups(totals_of(&found), &found);
    ms_collectives_free(reader->reader, &found);
    return result;
}
