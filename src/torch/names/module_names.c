/* module_names.c - name the modules that a module holds. Runs no Python. */
#include "torch/claims/claims.h"
#include "torch/names/names.h"

#include <stdlib.h>

PyObject *mst_module_dict(PyObject *module, PyObject *name)
{
    PyObject *own = PyObject_GenericGetDict(module, NULL);
    if (!own) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(own); /* The module holds another reference. */
    PyObject *dict = name ? PyDict_GetItemWithError(own, name) : own;
    return dict && PyDict_Check(dict) ? dict : NULL;
}

PyObject *mst_join_names(PyObject *before, PyObject *key)
{
    return before ? PyUnicode_FromFormat("%U.%U", before, key) : Py_NewRef(key);
}

/* ---- search: the modules below a module, breadth first, each once, parents before children ---- */
struct searched_module {
    PyObject *module, *key; /* borrowed */
    size_t parent;          /* index */
};

struct module_search {
    struct searched_module *modules;
    size_t count, room;
    struct ms__map seen; /* a module's address -> 1 */
};

static bool search_add(struct module_search *search, PyObject *module, PyObject *key, size_t parent)
{
    if (!MS__ARRAY_GROW(search->modules, search->room, search->count + 1))
        return false;
    search->modules[search->count++] = (struct searched_module){module, key, parent};
    return ms__map_set(&search->seen, (uintptr_t)module, 1);
}

/* Add the children of the module at index `at` that were not seen yet. False if memory runs out. */
static bool search_children(struct module_search *search, size_t at)
{
    PyObject *children = mst_module_dict(search->modules[at].module, mst.interned._modules), *key, *child;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child))
        if (PyUnicode_Check(key) && mst_is_module(child) && !ms__map_has(&search->seen, (uintptr_t)child) &&
            !search_add(search, child, key, at))
            return false;
    return true;
}

static void search_free(struct module_search *search)
{
    free(search->modules);
    ms__map_clear(&search->seen);
}

PyObject *mst_find_name_inside(PyObject *owner, PyObject *module)
{
    struct module_search search = {0};
    size_t at = SIZE_MAX;
    bool room = search_add(&search, owner, NULL, 0);
    for (size_t i = 0; room && i < search.count && at == SIZE_MAX; i++) {
        size_t before = search.count;
        room = search_children(&search, i);
        for (size_t k = before; k < search.count; k++)
            if (search.modules[k].module == module && at == SIZE_MAX)
                at = k;
    }
    PyObject *name = NULL;
    for (; at != SIZE_MAX && at != 0; at = search.modules[at].parent) {
        PyObject *longer =
            name ? PyUnicode_FromFormat("%U.%U", search.modules[at].key, name) : Py_NewRef(search.modules[at].key);
        Py_XSETREF(name, longer);
        if (!name)
            break;
    }
    PyErr_Clear();
    search_free(&search);
    return name;
}

/* ---- naming ---- */

/* A parameter that several modules hold belongs to the first one. */
static void record_parameters(mst_registry *registry, struct mst_module *known)
{
    PyObject *parameters = mst_module_dict(known->module, mst.interned._parameters), *key, *tensor;
    Py_ssize_t position = 0;
    while (parameters && PyDict_Next(parameters, &position, &key, &tensor))
        if (tensor != Py_None && !ms__map_has(&registry->by_parameter, (uintptr_t)tensor))
            ms__map_set(&registry->by_parameter, (uintptr_t)tensor, (uintptr_t)known);
}

/* Depth first, in the order of named_modules(). A module that several modules hold is named by the
 * first of them, and its children are named once; registry->by_fqn has all its names. */
struct naming {
    mst_registry *registry;
    struct ms__map seen; /* a module's address -> 1 */
    int depth;
};

/* Another module is now known to hold this one, so a call of it as a root module gets the new
 * name: drop the path that such calls had. */
static void rename_module(mst_registry *registry, struct mst_module *known, PyObject *fqn)
{
    uint64_t root_call = mst_call_key(MS_GLOBAL, known);
    bool was_root = ms__map_has(&registry->call_paths, root_call);
    ms__map_remove(&registry->call_paths, root_call);
    if (known->context == MS_GLOBAL) {
        known->called = false;
        known->path = MS_GLOBAL;
    }
    if (known->called || was_root)
        mst_prediction_clear();
    mst_registry_set_fqn(registry, known, fqn);
    mst_root_forget(registry, known);
}

enum { MAX_NAMING_DEPTH = 2000 }; /* deeper modules are named when they are called */

static void name_below(struct naming *naming, struct mst_module *known, PyObject *fqn)
{
    if (++naming->depth > MAX_NAMING_DEPTH)
        goto done;
    known->children_named = true;
    record_parameters(naming->registry, known);
    if (mst.ledger && naming->registry == mst.registry)
        mst_claim_module(known);
    PyObject *children = mst_module_dict(known->module, mst.interned._modules), *key, *child;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child)) {
        if (!PyUnicode_Check(key) || !mst_is_module(child))
            continue;
        PyObject *name = mst_join_names(fqn, key);
        struct mst_module *below = name ? mst_registry_add(naming->registry, child) : NULL;
        if (below && !ms__map_has(&naming->seen, (uintptr_t)child)) {
            ms__map_set(&naming->seen, (uintptr_t)child, 1);
            rename_module(naming->registry, below, name);
            below->shared |= below->holder && below->holder != known;
            below->holder = known;
            name_below(naming, below, name);
        } else if (below) {
            below->shared = true;
            if (!PyDict_Contains(naming->registry->by_fqn, name))
                PyDict_SetItem(naming->registry->by_fqn, name, below->ref);
        }
        Py_XDECREF(name);
        PyErr_Clear();
    }
done:
    naming->depth--;
}

void mst_name_new_children(mst_registry *registry)
{
    for (size_t i = 0; i < registry->count; i++) {
        struct mst_module *known = registry->all[i];
        PyObject *children =
            known->fqn && mst_module_is_alive(known) ? mst_module_dict(known->module, mst.interned._modules) : NULL;
        PyObject *key, *child;
        Py_ssize_t position = 0;
        while (children && PyDict_Next(children, &position, &key, &child)) {
            const struct mst_module *found = mst_is_module(child) ? mst_registry_find(registry, child) : NULL;
            if (!PyUnicode_Check(key) || !mst_is_module(child) || (found && found->fqn))
                continue;
            PyObject *name = mst_join_names(known->fqn, key);
            struct mst_module *below = name ? mst_registry_add(registry, child) : NULL;
            if (below) {
                mst_registry_set_fqn(registry, below, name);
                below->holder = known;
                record_parameters(registry, below);
            }
            Py_XDECREF(name);
            PyErr_Clear();
            if (i >= registry->count || registry->all[i] != known)
                break; /* Adding a module dropped dead ones: the list has moved. */
        }
    }
}

void mst_name_children(mst_registry *registry, struct mst_module *known)
{
    struct naming naming = {.registry = registry};
    ms__map_set(&naming.seen, (uintptr_t)known->module, 1);
    name_below(&naming, known, known->fqn);
    ms__map_clear(&naming.seen);
}
