/* root_names.c - the root modules that are alive, and by which names they are shown. */
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mst_root {
    struct mst_module *known;
    PyObject *name;      /* its fqn, mostly the name of its class */
    PyObject *variables; /* a list of str, the best one first; NULL: none were found */
    uint32_t number;     /* among those with the same name: 1 is shown as Net, 2 as Net#2; 0: a container's member */
    bool by_variable;    /* it is shown by the name of a variable */
    bool was_called;     /* a container was looked for */
    char *shown;         /* the name by which it is shown; of a container's member, what follows the container's name */
    ms_path base;        /* of a container's member: the path of the container; else MS_GLOBAL */
    ms_path *paths;      /* of its calls, each in another context */
    size_t path_count;
};

/* Programs that create root modules all the time, in no variable, are not slowed down for ever. */
enum { MOST_SEARCHES = 4096, MOST_IN_VAIN = 256 };

/* ---- how many live root modules a variable was found to hold: registry->variables ---- */

static void count_variables(mst_registry *registry, const struct mst_root *root, long change)
{
    for (Py_ssize_t i = 0; root->variables && registry->variables && i < PyList_GET_SIZE(root->variables); i++) {
        PyObject *name = PyList_GET_ITEM(root->variables, i);
        PyObject *before = PyDict_GetItemWithError(registry->variables, name);
        PyObject *count = PyLong_FromLong((before ? PyLong_AsLong(before) : 0) + change);
        if (count)
            PyDict_SetItem(registry->variables, name, count);
        Py_XDECREF(count);
    }
    mst_clear_error();
}

static bool is_of_one_module(mst_registry *registry, PyObject *variable)
{
    PyObject *count = PyDict_GetItemWithError(registry->variables, variable);
    return count && PyLong_AsLong(count) == 1;
}

/* ---- the list ---- */

static void free_root(mst_registry *registry, struct mst_root *root)
{
    count_variables(registry, root, -1);
    Py_XDECREF(root->name);
    Py_XDECREF(root->variables);
    free(root->shown);
    free(root->paths);
    *root = (struct mst_root){0};
}

void mst_roots_drop_dead(mst_registry *registry)
{
    size_t kept = 0;
    for (size_t i = 0; i < registry->root_count; i++) {
        struct mst_root *root = &registry->roots[i];
        if (root->known && mst_module_is_alive(root->known))
            registry->roots[kept++] = *root;
        else
            free_root(registry, root);
    }
    registry->root_count = kept;
}

void mst_roots_free(mst_registry *registry)
{
    for (size_t i = 0; i < registry->root_count; i++)
        free_root(registry, &registry->roots[i]);
    free(registry->roots);
    Py_CLEAR(registry->variables);
    Py_CLEAR(registry->ambiguous);
}

static struct mst_root *find_root(mst_registry *registry, const struct mst_module *known)
{
    for (size_t i = 0; i < registry->root_count; i++)
        if (registry->roots[i].known == known)
            return &registry->roots[i];
    return NULL;
}

bool mst_root_is_known(mst_registry *registry, const struct mst_module *known)
{
    return find_root(registry, known) != NULL;
}

void mst_root_forget(mst_registry *registry, const struct mst_module *known)
{
    struct mst_root *root = find_root(registry, known);
    if (!root)
        return;
    free_root(registry, root);
    *root = registry->roots[--registry->root_count];
}

static bool reserve_root(mst_registry *registry)
{
    mst_roots_drop_dead(registry);
    return MS__ARRAY_GROW(registry->roots, registry->root_room, registry->root_count + 1);
}

/* ---- names ---- */

static bool has_name(const struct mst_root *root, const struct mst_root *as)
{
    return root != as && root->number && PyUnicode_Compare(root->name, as->name) == 0;
}

/* How many other live root modules have this name. */
static size_t count_others(const mst_registry *registry, const struct mst_root *root)
{
    size_t others = 0;
    for (size_t i = 0; i < registry->root_count; i++)
        others += has_name(&registry->roots[i], root);
    return others;
}

/* The lowest number that no other live root module of this name has. */
static uint32_t choose_number(const mst_registry *registry, const struct mst_root *root)
{
    bool *taken = calloc(registry->root_count + 2, sizeof *taken);
    uint32_t number = 1;
    for (size_t i = 0; taken && i < registry->root_count; i++)
        if (has_name(&registry->roots[i], root) && registry->roots[i].number <= registry->root_count)
            taken[registry->roots[i].number] = true;
    while (taken && taken[number])
        number++;
    free(taken);
    return number;
}

static bool is_shown(const mst_registry *registry, const char *name)
{
    for (size_t i = 0; i < registry->root_count; i++)
        if (registry->roots[i].number && registry->roots[i].shown && strcmp(registry->roots[i].shown, name) == 0)
            return true;
    return false;
}

/* The best variable that holds this module alone, and by whose name no other one is shown; NULL if there is none. */
static const char *choose_variable(mst_registry *registry, const struct mst_root *root)
{
    for (Py_ssize_t i = 0; root->variables && i < PyList_GET_SIZE(root->variables); i++) {
        PyObject *variable = PyList_GET_ITEM(root->variables, i);
        const char *name = PyUnicode_AsUTF8(variable);
        if (name && is_of_one_module(registry, variable) && !is_shown(registry, name))
            return name;
    }
    mst_clear_error();
    return NULL;
}

static void show_root_as(struct mst_root *root, const char *shown)
{
    char *copy = mst_concat("", shown);
    if (!copy)
        return;
    free(root->shown);
    root->shown = copy;
    if (root->path_count)
        mst_paths_rename(root->paths, root->path_count, shown);
}

static void show_by_number(struct mst_root *root)
{
    PyObject *escaped = NULL;
    const char *name = PyUnicode_AsUTF8(root->name);
    if (!name) {
        mst_clear_error();
        escaped = mst_escape(root->name);
        name = escaped ? PyUnicode_AsUTF8(escaped) : NULL;
    }
    char number[sizeof "#4294967295"] = "";
    if (root->number > 1)
        snprintf(number, sizeof number, "#%u", root->number);
    char *shown = name ? mst_concat(name, number) : NULL;
    if (shown)
        show_root_as(root, shown);
    free(shown);
    Py_XDECREF(escaped);
    mst_clear_error();
}

static void show_by_variable(mst_registry *registry, struct mst_root *root)
{
    const char *variable = root->by_variable ? NULL : choose_variable(registry, root);
    if (!variable)
        return;
    root->by_variable = true;
    show_root_as(root, variable);
}

/* Whether several root modules with this name are alive, or were: then variables tell them apart. A program that makes
 * such modules again and again shows them by the same paths each time. */
static bool is_ambiguous(mst_registry *registry, PyObject *name, size_t others)
{
    if (!registry->ambiguous)
        registry->ambiguous = PySet_New(NULL);
    if (others && registry->ambiguous)
        PySet_Add(registry->ambiguous, name);
    bool known = registry->ambiguous && PySet_Contains(registry->ambiguous, name) == 1;
    PyErr_Clear();
    return others || known;
}

/* A module keeps the name that it has got while others come, except that the first of its class gets the name of
 * its variable when the second one comes. */
static void name_root(mst_registry *registry, struct mst_root *root)
{
    size_t others = count_others(registry, root);
    root->number = choose_number(registry, root);
    show_by_number(root);
    if (!is_ambiguous(registry, root->name, others))
        return;
    for (size_t i = 0; others == 1 && i < registry->root_count; i++)
        if (has_name(&registry->roots[i], root))
            show_by_variable(registry, &registry->roots[i]);
    show_by_variable(registry, root);
}

/* ---- containers ---- */

/* Show the root module as a member of a container that is not called. The caller finds `root` again. */
static void put_into_container(mst_registry *registry, const struct mst_module *known, PyObject *container,
                               PyObject *inside)
{
    struct mst_module *holder = mst_registry_add(registry, container);
    ms_path base = holder ? mst_path_of_module(holder) : MS_GLOBAL;
    const char *key = PyUnicode_AsUTF8(inside);
    struct mst_root *root = find_root(registry, known);
    char *suffix = key && root ? mst_concat(".", key) : NULL;
    mst_clear_error();
    if (!suffix || base <= MS_UNKNOWN) {
        free(suffix);
        return;
    }
    count_variables(registry, root, -1);
    Py_CLEAR(root->variables);
    free(root->shown);
    root->shown = suffix;
    root->base = base;
    root->number = 0;
    root->path_count = 0;
}

static struct mst_root *add_root(mst_registry *registry, struct mst_module *known)
{
    PyObject *name = known->fqn ? Py_NewRef(known->fqn) : PyType_GetName(Py_TYPE(known->module));
    if (!registry->variables)
        registry->variables = PyDict_New();
    if (!name || !registry->variables || !reserve_root(registry)) {
        Py_XDECREF(name);
        mst_clear_error();
        return NULL;
    }
    struct mst_root *root = &registry->roots[registry->root_count++];
    *root = (struct mst_root){.known = known, .name = name};
    return root;
}

struct mst_root *mst_root_of(mst_registry *registry, struct mst_module *known, bool called)
{
    struct mst_root *root = find_root(registry, known);
    bool added = !root;
    if (!root && !(root = add_root(registry, known)))
        return NULL;
    if (!added && (!called || root->was_called))
        return root;
    root->was_called = called;
    struct mst_variables found = {0};
    if (registry->searches < MOST_SEARCHES && registry->searches_in_vain < MOST_IN_VAIN) {
        found = mst_find_variables(known->module);
        registry->searches++;
        registry->searches_in_vain += !found.container && !(found.names && PyList_GET_SIZE(found.names));
    }
    if (found.container && called && registry == mst.registry) {
        put_into_container(registry, known, found.container, found.inside);
        root = find_root(registry, known);
    }
    bool to_name = root && root->base == MS_GLOBAL && (added || (!root->variables && !root->by_variable));
    if (to_name && found.names) {
        Py_XSETREF(root->variables, Py_NewRef(found.names));
        count_variables(registry, root, 1);
    }
    if (to_name && added)
        name_root(registry, root);
    else if (to_name && is_ambiguous(registry, root->name, count_others(registry, root)))
        show_by_variable(registry, root);
    Py_XDECREF(found.names);
    Py_XDECREF(found.inside);
    return root;
}

/* ---- paths ---- */

ms_path mst_root_path(struct mst_root *root, ms_path parent)
{
    for (size_t i = 0; i < root->path_count; i++)
        if (ms_path_parent(mst.watch, root->paths[i]) == parent)
            return root->paths[i];
    if (!root->shown)
        return MS_UNKNOWN;
    ms_path path = mst_path_add(root->known, parent, root->name, root->base, root->shown);
    ms_path *paths = path > MS_UNKNOWN ? realloc(root->paths, (root->path_count + 1) * sizeof *paths) : NULL;
    if (paths) {
        root->paths = paths;
        paths[root->path_count++] = path;
    }
    return path;
}
