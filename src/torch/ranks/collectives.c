/* collectives.c - the collectives that this process launches, and the groups they belong to.
 *
 *     a backend's function (intercept_collectives.c) --.
 *     a virtual rank's operator (Python)             --+--> mst_collective_launched --> captures
 *
 * A group is known by its key when it is first used. Its name and its ranks are Python's to tell, so they are asked for
 * later, where the GIL is held anyway: at the next root call, optimizer step, or the end of the capture. */
#include "torch/api/api.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

#include <pthread.h>
#include <string.h>

enum { MOST_GROUPS = 4096 }; /* that exist at a time; collectives of others have no group */

struct group {
    uint64_t key; /* 0: it has ended */
    bool named;
    bool told; /* to the captures that are open */
    ms_collective_group group;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group *groups; /* guarded by lock, as the rest */
static uint32_t group_count, group_room;
static uint32_t last_number;
static _Atomic bool unnamed;          /* a group that was used has no name yet */
static _Atomic(ms_ledger *) captured; /* NULL: there is no capture */
static _Atomic uint64_t launched;     /* how many collectives were seen, for tests and verification */
static _Atomic uint64_t last_kind, last_bytes;

static MST_THREAD_LOCAL ms_path owner_here;

void mst_collectives_set_owner(ms_path owner)
{
    owner_here = owner;
}

/* The group with this key, which is added if it is new; NULL: there is no room. With the lock held. */
static struct group *find_group(uint64_t key)
{
    uint32_t unused = group_count;
    for (uint32_t i = 0; i < group_count; i++) {
        if (groups[i].key == key)
            return &groups[i];
        if (!groups[i].key)
            unused = i;
    }
    if (unused == group_room) {
        uint32_t room = group_room ? group_room * 2 : 16;
        struct group *larger = room <= MOST_GROUPS ? PyMem_RawRealloc(groups, room * sizeof *groups) : NULL;
        if (!larger)
            return NULL;
        groups = larger;
        group_room = room;
    }
    if (unused == group_count)
        group_count++;
    groups[unused] = (struct group){.key = key, .group.number = ++last_number};
    return &groups[unused];
}

static void tell_group(ms_ledger *ledger, struct group *group)
{
    if (!group->named || group->told)
        return;
    ms_collective_note_group(ledger, &group->group);
    group->told = true;
}

uint64_t mst_collective_launched(ms_collective_kind kind, uint64_t bytes, uint64_t key, uint64_t delay,
                                 uint64_t nanoseconds)
{
    atomic_store_explicit(&last_kind, kind, memory_order_relaxed);
    atomic_store_explicit(&last_bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&launched, 1, memory_order_relaxed);
    ms_ledger *ledger = atomic_load_explicit(&captured, memory_order_acquire);
    if (!ledger)
        return 0;
    ms_collective collective = {.kind = kind, .bytes = bytes, .nanoseconds = nanoseconds, .path = owner_here};
    pthread_mutex_lock(&lock);
    struct group *group = find_group(key);
    if (group) {
        collective.group = group->group.number;
        tell_group(ledger, group);
        if (!group->named)
            atomic_store_explicit(&unnamed, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return ms_collective_note(ledger, mst_thread_here(), &collective, delay);
}

void mst_collective_took(uint64_t number, ms_collective_timing timing, uint64_t nanoseconds)
{
    ms_ledger *ledger = atomic_load_explicit(&captured, memory_order_acquire);
    if (ledger)
        ms_collective_note_time(ledger, number, timing, nanoseconds);
}

void mst_collective_group_ended(uint64_t key)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < group_count; i++)
        if (groups[i].key == key)
            groups[i].key = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- names ---- */
static void copy_text(char *to, size_t room, const char *text)
{
    size_t size = strlen(text);
    size = size < room ? size : room - 1;
    memcpy(to, text, size);
    to[size] = 0;
}

/* (key, name, backend, ranks, size) */
static PyObject *name_collective_group(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long key;
    const char *name, *backend, *ranks;
    unsigned size;
    if (!PyArg_ParseTuple(args, "KsssI:name_collective_group", &key, &name, &backend, &ranks, &size))
        return NULL;
    ms_ledger *ledger = atomic_load(&captured);
    pthread_mutex_lock(&lock);
    struct group *group = key && ledger ? find_group(key) : NULL;
    if (group) {
        copy_text(group->group.name, sizeof group->group.name, name);
        copy_text(group->group.backend, sizeof group->group.backend, backend);
        copy_text(group->group.ranks, sizeof group->group.ranks, ranks);
        group->group.size = size;
        group->told = group->told && group->named;
        group->named = true;
        tell_group(ledger, group);
    }
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

void mst_collectives_name_groups(void)
{
    if (LIKELY(!atomic_load_explicit(&unnamed, memory_order_relaxed)))
        return;
    atomic_store(&unnamed, false); /* A group that torch does not name is not asked for again until it is used. */
    bool held = mst_signals_hold();
    PyObject *callback = mst_dynamo_disable();
    Py_XDECREF(mst_run_python(MST_PY_NAME_GROUPS, NULL));
    mst_clear_error();
    mst_dynamo_restore(callback);
    if (mst_signals_release(held) != 0)
        mst_clear_error();
}

/* ---- captures ---- */
void mst_collectives_begin(ms_ledger *ledger)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < group_count; i++)
        groups[i].told = false;
    pthread_mutex_unlock(&lock);
    atomic_store(&captured, ledger);
    mst_backends_intercept();
}

void mst_collectives_end(void)
{
    mst_backends_restore();
    atomic_store(&captured, NULL);
    atomic_store(&unnamed, false);
}

void mst_collectives_forked(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* Another thread of the parent may have held it. */
    group_count = 0;
    mst_gloo_forked();
    mst_collectives_end();
}

/* ---- from Python ---- */
static PyObject *note_collective(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    unsigned long long bytes, key, delay, nanoseconds;
    if (!PyArg_ParseTuple(args, "sKKKK:note_collective", &name, &bytes, &key, &delay, &nanoseconds))
        return NULL;
    for (int kind = 0; kind < MS_COLLECTIVE_COUNT; kind++) {
        if (strcmp(name, ms_collective_name((ms_collective_kind)kind)) == 0) {
            mst_collective_launched((ms_collective_kind)kind, bytes, key, delay, nanoseconds);
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "%s is no collective", name);
}

static PyObject *last_collective(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return Py_BuildValue("(KsK)", (unsigned long long)atomic_load(&launched),
                         ms_collective_name((ms_collective_kind)atomic_load(&last_kind)),
                         (unsigned long long)atomic_load(&last_bytes));
}

PyMethodDef mst_collectives_methods[] = {
    {"note_collective", note_collective, METH_VARARGS,
     "This thread launches a collective: kind, bytes, the key of its group, nanoseconds until it begins, and how many "
     "it takes."},
    {"name_collective_group", name_collective_group, METH_VARARGS,
     "What the group with a key is: its name, its backend, its ranks as text, and their number."},
    {"last_collective", last_collective, METH_NOARGS,
     "How many collectives were seen so far; kind and bytes of the last one."},
    {NULL, NULL, 0, NULL},
};
