/* collectives.c - Reader.collectives, collective_totals and collective_sums: what a capture has of torch.distributed.
 */
#include "capture_api/capture_api.h"

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

static PyObject *group_of(const ms_collective_group *group)
{
    return Py_BuildValue("(IsssI)", group->number, group->name, group->backend, group->ranks, group->size);
}

static PyObject *collective_of(const ms_collective *one)
{
    return Py_BuildValue("(KKKsKKIIIOs)", (unsigned long long)one->event, (unsigned long long)one->time,
                         (unsigned long long)one->step, ms_collective_name(one->kind), (unsigned long long)one->bytes,
                         (unsigned long long)one->nanoseconds, one->path, one->thread, one->group,
                         msr_phases[one->phase], ms_collective_timing_name(one->timing));
}

/* The pair of a list and the list of the groups; `rows` is consumed, and NULL if an error is set. */
static PyObject *with_groups(PyObject *rows, const ms_collectives *found)
{
    PyObject *groups = rows ? PyList_New(0) : NULL;
    bool done = groups != NULL;
    for (size_t i = 0; done && i < found->group_count; i++)
        done = msr_append(groups, group_of(&found->groups[i]));
    PyObject *result = done ? PyTuple_Pack(2, rows, groups) : NULL;
    Py_XDECREF(rows);
    Py_XDECREF(groups);
    return result;
}

PyObject *msr_collectives(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    ms_collectives found;
    if (!read_collectives(reader, &found))
        return NULL;
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows && i < found.count; i++)
        if (!msr_append(rows, collective_of(&found.at[i])))
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

static PyObject *sum_by_row(const ms_collectives *found)
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
        if (!msr_append(rows, row))
            Py_CLEAR(rows);
    }
    return rows;
}

PyObject *msr_collective_totals(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    ms_collectives found;
    if (!read_collectives(reader, &found))
        return NULL;
    if (found.count)
        qsort(found.at, found.count, sizeof *found.at, by_row);
    PyObject *result = with_groups(sum_by_row(&found), &found);
    ms_collectives_free(reader->reader, &found);
    return result;
}

/* ---- sums, to compare ranks ---- */
struct group_sums {
    uint32_t group;
    uint64_t launched; /* collectives that every rank of the group must launch */
    uint64_t order;    /* a hash of their kinds and bytes, in their order */
    struct {
        uint64_t count, bytes, nanoseconds, timed;
    } kinds[MS_COLLECTIVE_COUNT];
};

struct sums {
    struct group_sums *groups;
    size_t count, room;
};

static struct group_sums *sums_of_group(struct sums *sums, uint32_t group)
{
    for (size_t i = sums->count; i-- > 0;)
        if (sums->groups[i].group == group)
            return &sums->groups[i];
    if (sums->count == sums->room) {
        size_t room = sums->room ? 2 * sums->room : 8;
        struct group_sums *larger = realloc(sums->groups, room * sizeof *larger);
        if (!larger)
            return NULL;
        sums->groups = larger;
        sums->room = room;
    }
    const uint64_t FNV_OFFSET = 0xCBF29CE484222325;
    sums->groups[sums->count] = (struct group_sums){.group = group, .order = FNV_OFFSET};
    return &sums->groups[sums->count++];
}

/* A message goes from one rank to another: the others of the group have no part in it. */
static bool is_message(ms_collective_kind kind)
{
    return kind == MS_COLLECTIVE_SEND || kind == MS_COLLECTIVE_RECV;
}

/* The bytes of these are not the same on all ranks of a group: the root has more, or each rank sends as it likes. */
static bool has_equal_bytes(ms_collective_kind kind)
{
    return kind != MS_COLLECTIVE_GATHER && kind != MS_COLLECTIVE_SCATTER && kind != MS_COLLECTIVE_ALL_TO_ALL;
}

static uint64_t hash_next(uint64_t hash, uint64_t number)
{
    const uint64_t FNV_PRIME = 0x100000001B3;
    for (int i = 0; i < 8; i++, number >>= 8)
        hash = (hash ^ (number & 0xFF)) * FNV_PRIME;
    return hash;
}

static bool add_sums(struct sums *sums, const ms_collectives *found)
{
    struct group_sums *group = NULL;
    for (size_t i = 0; i < found->count; i++) {
        const ms_collective *one = &found->at[i];
        if (!group || group->group != one->group)
            group = sums_of_group(sums, one->group);
        if (!group)
            return false;
        group->kinds[one->kind].count++;
        group->kinds[one->kind].bytes += one->bytes;
        group->kinds[one->kind].nanoseconds += one->nanoseconds;
        group->kinds[one->kind].timed += one->nanoseconds != 0;
        if (is_message(one->kind))
            continue;
        group->launched++;
        group->order = hash_next(hash_next(group->order, one->kind), has_equal_bytes(one->kind) ? one->bytes : 0);
    }
    return true;
}

/* (group, launched, order, [(kind, count, bytes, nanoseconds, timed), ...]) */
static PyObject *sums_row(const struct group_sums *group)
{
    PyObject *kinds = PyList_New(0);
    for (int i = 0; kinds && i < MS_COLLECTIVE_COUNT; i++) {
        if (!group->kinds[i].count)
            continue;
        PyObject *row =
            Py_BuildValue("(sKKKK)", ms_collective_name((ms_collective_kind)i),
                          (unsigned long long)group->kinds[i].count, (unsigned long long)group->kinds[i].bytes,
                          (unsigned long long)group->kinds[i].nanoseconds, (unsigned long long)group->kinds[i].timed);
        if (!msr_append(kinds, row))
            Py_CLEAR(kinds);
    }
    return kinds ? Py_BuildValue("(IKKN)", group->group, (unsigned long long)group->launched,
                                 (unsigned long long)group->order, kinds)
                 : NULL;
}

PyObject *msr_collective_sums(msr_reader *reader, PyObject *unused)
{
    (void)unused;
    ms_collectives found;
    struct sums sums = {0};
    if (!read_collectives(reader, &found))
        return NULL;
    PyObject *rows = add_sums(&sums, &found) ? PyList_New(0) : PyErr_NoMemory();
    for (size_t i = 0; rows && i < sums.count; i++)
        if (!msr_append(rows, sums_row(&sums.groups[i])))
            Py_CLEAR(rows);
    PyObject *result = with_groups(rows, &found);
    free(sums.groups);
    ms_collectives_free(reader->reader, &found);
    return result;
}
