/* module_names.c - name the modules that a module holds. Runs no Python. */
#include "torch/claims/claims.h"
#include "torch/names/names.h"

#include <stdlib.h>
#include <string.h>

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

PyObject *mst_escape(PyObject *name)
{
    PyObject *bytes = PyUnicode_AsEncodedString(name, "ascii", "backslashreplace"), *escaped = NULL;
    size_t length = bytes ? (size_t)PyBytes_GET_SIZE(bytes) : 0, count = 0;
    char *text = bytes ? malloc(4 * length + 1) : NULL;
    for (size_t i = 0; text && i < length; i++) {
        char letter = PyBytes_AS_STRING(bytes)[i];
        memcpy(text + count, letter ? &letter : "\\x00", letter ? 1 : 4);
        count += letter ? 1 : 4;
    }
    if (text)
        escaped = PyUnicode_FromStringAndSize(text, (Py_ssize_t)count);
    free(text);
    Py_XDECREF(bytes);
    return escaped;
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

/* ---- wrappers: modules that hold a model and pass calls on to it ---- */
static const struct wrapper {
    const char *package; /* where its class, or one that it derives from, is defined: the beginning of the name */
    const char *class;   /* NULL: any of the package */
    const char *key;     /* of what it wraps */
} wrappers[] = {
    {"torch.", "DistributedDataParallel", "module"},
    {"torch.", "DataParallel", "module"},
    {"torch.", "FullyShardedDataParallel", "_fsdp_wrapped_module"},
    {"torch.", "CheckpointWrapper", "_checkpoint_wrapped_module"},
    {"torch.", "OptimizedModule", "_orig_mod"},
    {"lightning", "_FabricModule", "_forward_module"},
    {"deepspeed.", "DeepSpeedEngine", "module"},
    {"peft.", NULL, "base_model"},
    {"peft.tuners.", NULL, "model"},
    {"ema_pytorch", "EMA", "online_model"},
};

static bool is_wrapper(PyTypeObject *type, const struct wrapper *wrapper)
{
    PyObject *name = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, mst.interned.__module__) : NULL;
    const char *package = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    return package && strncmp(package, wrapper->package, strlen(wrapper->package)) == 0 &&
           (!wrapper->class || strcmp(type->tp_name, wrapper->class) == 0);
}

/* Whether the module holds what it wraps under this key. */
static bool wraps(PyObject *module, const char *key)
{
    PyObject *mro = Py_TYPE(module)->tp_mro;
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        for (Py_ssize_t k = 0; strcmp(key, wrappers[i].key) == 0 && k < PyTuple_GET_SIZE(mro); k++)
            if (is_wrapper((PyTypeObject *)PyTuple_GET_ITEM(mro, k), &wrappers[i]))
                return true;
    return false;
}

enum { MOST_KEYS = 64, LONGEST_KEY = 256 };

/* Copy the first key of a name such as ".module.h.0"; "" if it is too long. Returns what follows. */
static const char *next_key(const char *name, char key[LONGEST_KEY])
{
    size_t length = strcspn(name + 1, ".");
    key[0] = '\0';
    if (length < LONGEST_KEY) {
        memcpy(key, name + 1, length);
        key[length] = '\0';
    }
    return name + 1 + length;
}

/* The module that holds each key of the name, from `owner` down. False if that does not lead to `module`. */
static bool find_holders_below(PyObject *owner, const char *name, PyObject *module, PyObject *holders[MOST_KEYS])
{
    char key[LONGEST_KEY];
    for (int i = 0; owner && *name == '.' && i < MOST_KEYS; i++) {
        holders[i] = owner;
        name = next_key(name, key);
        PyObject *children = mst_module_dict(owner, mst.interned._modules);
        owner = children ? PyDict_GetItemString(children, key) : NULL;
    }
    return owner == module && !*name;
}

/* The same by the recorded holders: while a module is being registered, its holder does not have it yet. */
static bool find_holders_above(const struct mst_module *known, int keys, PyObject *holders[MOST_KEYS])
{
    while (keys > 0 && known->holder && mst_module_is_alive(known->holder)) {
        known = known->holder;
        holders[--keys] = known->module;
    }
    return keys == 0;
}

char *mst_without_wrappers(const struct mst_module *owner, const char *inside, const struct mst_module *inner)
{
    PyObject *holders[MOST_KEYS];
    int keys = 0;
    for (const char *at = inside; *at; at++)
        keys += *at == '.';
    char *shorter = keys <= MOST_KEYS ? malloc(strlen(inside) + 1) : NULL, *end = shorter;
    bool known = shorter && ((owner && find_holders_below(owner->module, inside, inner->module, holders)) ||
                             find_holders_above(inner, keys, holders));
    bool left_out = false;
    for (int i = 0; known && i < keys; i++) {
        char key[LONGEST_KEY];
        const char *next = next_key(inside, key);
        if (wraps(holders[i], key)) {
            left_out = true;
        } else {
            memcpy(end, inside, (size_t)(next - inside));
            end += next - inside;
        }
        inside = next;
    }
    if (!left_out) {
        free(shorter);
        return NULL;
    }
    *end = '\0';
    return shorter;
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
