/* names.c - the books: which modules are known, by which names. Modules are held weakly. */
#include "torch/names.h"

#include <assert.h>
#include <stdlib.h>

mst_book *mst_names;
struct mst_trace mst_trace;

static struct mst_map fqns; /* path -> Python string, for ever */

mst_book *mst_book_new(void)
{
    mst_book *book = calloc(1, sizeof *book);
    if (!book)
        return PyErr_NoMemory(), NULL;
    book->refs = 1;
    book->by_fqn = PyDict_New();
    if (book->by_fqn)
        return book;
    mst_book_unref(book);
    return NULL;
}

mst_book *mst_book_ref(mst_book *book)
{
    book->refs++;
    return book;
}

static void free_module(struct mst_module *known)
{
    Py_DECREF(known->ref);
    Py_XDECREF(known->fqn);
    free(known);
}

void mst_book_unref(mst_book *book)
{
    if (!book || --book->refs > 0)
        return;
    for (size_t i = 0; i < book->count; i++)
        free_module(book->all[i]);
    free(book->all);
    mst_map_clear(&book->by_module);
    mst_map_clear(&book->by_parameter);
    mst_map_clear(&book->edges);
    mst_map_clear(&book->by_path);
    Py_XDECREF(book->by_fqn);
    free(book);
}

static void drop_dead_fqns(mst_book *book)
{
    PyObject *alive = PyDict_New(), *fqn, *ref;
    Py_ssize_t at = 0;
    while (alive && PyDict_Next(book->by_fqn, &at, &fqn, &ref))
        if (((PyWeakReference *)ref)->wr_object != Py_None && PyDict_SetItem(alive, fqn, ref) != 0)
            Py_CLEAR(alive);
    if (alive)
        Py_SETREF(book->by_fqn, alive);
    PyErr_Clear();
}

/* Forget the modules that died. What was remembered of calls is found again when needed. */
static void drop_dead(mst_book *book)
{
    size_t kept = 0;
    mst_trace.count = mst_trace.next = 0;
    mst_map_clear(&book->by_module);
    mst_map_clear(&book->by_parameter);
    mst_map_clear(&book->edges);
    mst_map_clear(&book->by_path);
    for (size_t i = 0; i < book->count; i++) {
        struct mst_module *known = book->all[i];
        known->holder = known->holder && mst_alive(known->holder) ? known->holder : NULL;
    }
    for (size_t i = 0; i < book->count; i++) {
        struct mst_module *known = book->all[i];
        if (!mst_alive(known) || !mst_map_set(&book->by_module, (uintptr_t)known->module, 0, (uintptr_t)known)) {
            free_module(known);
            continue;
        }
        book->all[kept++] = known;
        if (known->called)
            mst_map_set(&book->by_path, (uint64_t)known->path + 1, 0, (uintptr_t)known);
    }
    book->count = kept;
    drop_dead_fqns(book);
}

static bool make_room(mst_book *book)
{
    if (book->count < book->room)
        return true;
    drop_dead(book);
    if (book->count * 2 < book->room)
        return true;
    size_t room = book->room ? book->room * 2 : 64;
    struct mst_module **all = realloc(book->all, room * sizeof *all);
    if (!all)
        return book->count < book->room;
    book->all = all;
    book->room = room;
    return true;
}

struct mst_module *mst_book_find(mst_book *book, PyObject *module)
{
    uint64_t *found = mst_map_get(&book->by_module, (uintptr_t)module, 0);
    struct mst_module *known = found ? (struct mst_module *)(uintptr_t)*found : NULL;
    return known && mst_same(known) ? known : NULL;
}

static_assert(sizeof(struct mst_module) <= 64, "what a call looks at lies in one line of the cache");

struct mst_module *mst_book_add(mst_book *book, PyObject *module)
{
    struct mst_module *known = mst_book_find(book, module);
    if (known || !make_room(book))
        return known;
    known = aligned_alloc(64, 64); /* one line of the cache */
    PyObject *ref = known ? PyWeakref_NewRef(module, NULL) : NULL;
    if (!ref || !mst_map_set(&book->by_module, (uintptr_t)module, 0, (uintptr_t)known)) {
        PyErr_Clear();
        Py_XDECREF(ref);
        free(known);
        return NULL;
    }
    *known = (struct mst_module){.module = module, .ref = ref, .refs = PyObject_GET_WEAKREFS_LISTPTR(module)};
    PyObject *own = mst_dict_of(module, NULL);
    known->hidden = own && PyDict_Contains(own, mst_words.compile_subgraph_reason) == 1;
    book->all[book->count++] = known;
    return known;
}

void mst_book_rename(mst_book *book, struct mst_module *known, PyObject *fqn)
{
    if (known->fqn == fqn)
        return;
    if (PyDict_SetItem(book->by_fqn, fqn, known->ref) != 0)
        PyErr_Clear();
    Py_XSETREF(known->fqn, Py_NewRef(fqn));
}

void mst_book_use(mst_book *book, const mst_book *other)
{
    bool collecting = mst_stop_collecting();
    for (size_t i = 0; other && other != book && i < other->count; i++) {
        const struct mst_module *theirs = other->all[i];
        if (!theirs->fqn || !mst_alive(theirs))
            continue;
        struct mst_module *known = mst_book_add(book, theirs->module);
        if (known && !known->fqn)
            mst_book_rename(book, known, theirs->fqn);
    }
    if (book != mst_names)
        mst_trace.count = mst_trace.next = 0;
    mst_book_ref(book);
    mst_book_unref(mst_names);
    mst_names = book;
    mst_collect_again(collecting);
}

PyObject *mst_book_fqn(mst_book *book, PyObject *module)
{
    for (const struct mst_call *call = book == mst_names ? mst_open : NULL; call; call = call->outer)
        if (call->module == module)
            return mst_fqn(call->path);
    struct mst_module *known = mst_book_find(book, module);
    return known ? known->fqn : NULL;
}

PyObject *mst_given_name(mst_book *book, PyObject *module)
{
    struct mst_module *known = mst_book_add(book, module);
    PyObject *fqn = known ? Py_XNewRef(known->fqn) : NULL;
    if (known && !fqn)
        fqn = PyType_GetName(Py_TYPE(module));
    if (!fqn)
        return NULL;
    mst_book_rename(book, known, fqn);
    Py_DECREF(fqn);
    if (!known->walked)
        mst_walk(book, known);
    return known->fqn;
}

PyObject *mst_book_name(mst_book *book, PyObject *module)
{
    PyObject *fqn = mst_book_fqn(book, module);
    if (fqn)
        return fqn;
    bool collecting = mst_stop_collecting();
    fqn = mst_given_name(book, module);
    mst_collect_again(collecting);
    if (!fqn && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "modscope: this module cannot be named: it takes no weak reference");
    return fqn;
}

PyObject *mst_book_modules(mst_book *book)
{
    PyObject *modules = PyDict_New(), *fqn, *ref;
    Py_ssize_t at = 0;
    while (modules && book && PyDict_Next(book->by_fqn, &at, &fqn, &ref)) {
        PyObject *module = ((PyWeakReference *)ref)->wr_object;
        if (module != Py_None && Py_REFCNT(module) > 0 && PyDict_SetItem(modules, fqn, module) != 0)
            Py_CLEAR(modules);
    }
    return modules;
}

PyObject *mst_fqn(ms_path path)
{
    uint64_t *there = mst_map_get(&fqns, (uint64_t)path + 1, 0);
    if (there)
        return (PyObject *)(uintptr_t)*there;
    PyObject *fqn = PyUnicode_FromString(ms_path_name(mst_watch, path));
    if (!fqn)
        return NULL;
    PyUnicode_InternInPlace(&fqn);
    if (!mst_map_set(&fqns, (uint64_t)path + 1, 0, (uintptr_t)fqn)) {
        Py_DECREF(fqn);
        PyErr_NoMemory();
        return NULL;
    }
    return fqn;
}
