/* root_names.h - how modules are shown in figures: root modules of one class are told apart.
 *
 * A module has two names. Its fqn is what torch's trackers call it, and two modules may share it. The name by which
 * its paths are shown is its own:
 *     Net                 the first root module of its class, as long as no other one comes
 *     generator           one of several of its class, by the variable or attribute that holds it
 *     Net#2               the same where no variable is found: the second in the order in which they were first seen
 *     ModuleList.0        a member of a module that is not called itself
 *     generator.fc1       a module inside one of these
 * Runs no Python. Pause the GC before. */
#ifndef MST_ROOT_NAMES_H
#define MST_ROOT_NAMES_H

#include "torch/module_registry.h"

/* ---- shown_paths.c: by which name a path is shown ---- */

/* "before" and "after" in one string, to be freed; NULL if memory runs out. */
char *mst_concat(const char *before, const char *after);
/* Show `path` by the name of `base`, a lower path, and `suffix` after it, also when `base` is renamed. With
 * base MS_GLOBAL: by `suffix` alone. False if it is shown otherwise already: then it belongs to another module. */
bool mst_path_show_below(ms_path path, ms_path base, const char *suffix);
/* Rename some paths of one module, and all paths that are shown below them. */
void mst_paths_rename(const ms_path *paths, size_t count, const char *shown);
/* The Python string of the name by which a path is shown: a new reference, or NULL with an error set. */
PyObject *mst_path_shown(ms_path path);

/* ---- variables.c: which variables hold a module ---- */
struct mst_variables {
    PyObject *names;     /* a list of str, the best one first; owned */
    PyObject *container; /* a module that holds the module and is in a variable too; borrowed; NULL: none */
    PyObject *inside;    /* the module's name inside it; owned */
};

/* Search the variables of this thread's Python frames. NULL members: nothing was found, or memory ran out. */
struct mst_variables mst_find_variables(PyObject *module);

/* ---- root_names.c ---- */
struct mst_root;

/* A module that no known module holds, added if there is none. At its first call `called` is true: then a container
 * is looked for. NULL if memory runs out. It is valid until the next root is added. */
struct mst_root *mst_root_of(mst_registry *registry, struct mst_module *known, bool called);
/* The path of a root module that is called inside `parent`. */
ms_path mst_root_path(struct mst_root *root, ms_path parent);
bool mst_root_is_known(mst_registry *registry, const struct mst_module *known);
/* Whether a module may be shown as the holder of one that is called by itself: torch's own modules around a module
 * (OptimizedModule, DistributedDataParallel) are wrappers, except Module, ModuleList, ModuleDict and Sequential. */
bool mst_may_contain(PyObject *module);
/* A module turned out to be inside another one. */
void mst_root_forget(mst_registry *registry, const struct mst_module *known);
/* Before dead modules are freed. */
void mst_roots_drop_dead(mst_registry *registry);
void mst_roots_free(mst_registry *registry);

#endif
