/* names.h - which modules are known, what they are called, and which path a call of one has. */
#ifndef MST_NAMES_H
#define MST_NAMES_H

#include "torch/process/process.h"

#include "base/array.h"
#include "base/map.h"

/* A registry belongs to the trackers that are active together. It holds modules weakly:
 * the extension must not keep a module alive. */

/* What a registry knows of one module. What every call reads fits into one cache line. */
struct mst_module {
    PyObject *module;          /* borrowed: it lives as long as `ref` refers to it */
    PyObject *ref;             /* a weak reference to it */
    PyObject **weakrefs;       /* the module's list of weak references, of which `ref` is the first */
    uint64_t context;          /* the context of the latest call (see mst_call_context) */
    ms_path path;              /* the path that the module had in that call; before: its path of mst_path_of_module */
    bool called;               /* `context` and `path` are set */
    bool hidden;               /* calls of it are not shown: a compiler or torch.export made it */
    bool children_named;       /* mst_name_children was run for it */
    bool shared;               /* several modules hold it */
    uint32_t number;           /* its index in the registry's `all` */
    uint32_t predicted_at;     /* the index of its latest call in mst.prediction; it may be out of date */
    PyObject *fqn;             /* the name of its latest call, or the name under which it was found; NULL: none yet */
    struct mst_module *holder; /* the module in which it was found, or NULL */
};

typedef struct mst_registry {
    size_t refs;
    struct mst_module **all; /* every module known */
    size_t count, room;
    struct ms__map by_module;    /* a module's address -> struct mst_module */
    struct ms__map by_parameter; /* a parameter's address -> struct mst_module of its owner */
    struct ms__map call_paths;   /* mst_call_key -> the path of calling a module in a context */
    struct ms__map by_path;      /* path -> struct mst_module that had it last */
    PyObject *by_fqn;            /* a dict: fqn -> weak reference */
    struct mst_root *roots;      /* see root_names.c */
    size_t root_count, root_room;
    PyObject *variables; /* a dict: variable -> how many of `roots` it was found to hold; NULL: none yet */
    PyObject *ambiguous; /* a set: names that several live root modules had at once; NULL: none yet */
    uint32_t searches, searches_in_vain; /* for variables */
    size_t owners_found_for;             /* `count` when the owners of an optimizer's parameters were looked for */
} mst_registry;

static inline bool mst_module_is_alive(const struct mst_module *known)
{
    return ((PyWeakReference *)known->ref)->wr_object == known->module;
}

/* Whether a module that is alive is the one meant, and not another one at the same address.
 * This reads the module, which the caller needs anyway, instead of the weak reference. */
static inline bool mst_module_is_same(const struct mst_module *known)
{
    return *known->weakrefs == known->ref;
}

/* ---- module_registry.c ---- */

mst_registry *mst_registry_new(void); /* NULL with an error set */
mst_registry *mst_registry_ref(mst_registry *registry);
void mst_registry_unref(mst_registry *registry); /* NULL is allowed */
/* Make `registry` the one in use (mst.registry), and add what `other` knows; `other` may be NULL. */
void mst_registry_use(mst_registry *registry, const mst_registry *other);
/* A module's entry, borrowed, or NULL. Never raises. */
struct mst_module *mst_registry_find(mst_registry *registry, PyObject *module);
/* A module's entry, added if there is none. NULL: memory ran out, or it supports no weak references. Pause the GC
 * before. */
struct mst_module *mst_registry_add(mst_registry *registry, PyObject *module);
void mst_registry_set_fqn(mst_registry *registry, struct mst_module *known, PyObject *fqn);
/* The name under which a module runs in this thread, else the name it is known by. Borrowed, or NULL. */
PyObject *mst_registry_fqn(mst_registry *registry, PyObject *module);
/* As mst_registry_fqn, but a module without a name gets one as a root module. Borrowed, or NULL with an error set. */
PyObject *mst_registry_name(mst_registry *registry, PyObject *module);
/* A new dict fqn -> module of those alive; `registry` may be NULL. */
PyObject *mst_registry_modules(mst_registry *registry);

/* The __module__ of an object's class, such as "torch.nn.modules.linear"; "" if it has none. Runs no Python. */
const char *mst_module_of_class(PyObject *module);
/* The Python string of a path's name: borrowed; NULL with an error set if memory runs out. */
PyObject *mst_path_fqn(ms_path path);

/* ---- module_names.c: the names of the modules that a module holds. Runs no Python. Pause the GC before ---- */

/* The dict `name` in a module's own __dict__, or with NULL the __dict__ itself: borrowed; NULL if it has none. */
PyObject *mst_module_dict(PyObject *module, PyObject *name);
/* Name all modules that `known`, whose name is known->fqn, holds, and record which parameters they own. */
void mst_name_children(mst_registry *registry, struct mst_module *known);
/* Name the modules that known modules have got since then. */
void mst_name_new_children(mst_registry *registry);
/* The dotted name of `module` inside `owner`: the shortest, then the first. New reference; NULL if it is not inside. */
PyObject *mst_find_name_inside(PyObject *owner, PyObject *module);
/* The name `inside` of `inner` in `owner`, such as ".module.h.0", without the keys under which wrappers hold what they
 * wrap: ".h.0". What a wrapper wraps is shown by the wrapper's name; its fqn stays torch's. `owner` may be NULL: then
 * the recorded holders tell. The caller frees the name; NULL: nothing is left out. */
char *mst_without_wrappers(const struct mst_module *owner, const char *inside, const struct mst_module *inner);
/* "before.key", or "key" if before is NULL. New reference, or NULL with an error set. */
PyObject *mst_join_names(PyObject *before, PyObject *key);
/* The name with what is not ASCII, and NULs, as escapes. Unlike repr() it runs neither handlers of signals nor a
 * collection that is due. New reference, or NULL with an error set. */
PyObject *mst_escape(PyObject *name);

static inline bool mst_is_module(PyObject *object)
{
    return PyObject_TypeCheck(object, mst.torch.module);
}

/* ---- module_paths.c ---- */

/* The path of calling `module` in `context`; MS_GLOBAL: the call is not to be shown. */
ms_path mst_path_of_call(PyObject *module, uint64_t context);
/* The path under which a known module owns memory: that of its calls, or the one a call would have. */
ms_path mst_path_of_module(struct mst_module *known);
/* The key under which the recorded holder of `known` holds it: a new reference, or NULL if it does not any more. */
PyObject *mst_key_in_holder(const struct mst_module *known);
/* The path of a module that is called `inside` within the module at `base`. MS_GLOBAL if memory runs out. */
ms_path mst_path_inside(const struct mst_module *known, ms_path base, PyObject *inside);
/* While a model is being built: the path of the outermost module that holds `known`, or of `known` itself if it was
 * called. Modules of one class share it until they are called or read. *inside becomes the name of `known` inside it, a
 * new reference; NULL if it is `known`. */
ms_path mst_path_of_built_module(struct mst_module *known, PyObject **inside);
/* The path named `fqn` of calling `known` inside `parent`. It is shown by the name of `base` with `suffix` after it,
 * and no other live module has it. MS_UNKNOWN if memory runs out. */
ms_path mst_path_add(const struct mst_module *known, ms_path parent, PyObject *fqn, ms_path base, const char *suffix);
/* The live module whose call has a path, or had it last: borrowed, or NULL. This thread's open calls are searched
 * first. */
struct mst_module *mst_module_at(ms_path path);
/* The path of the module that owns a parameter; MS_GLOBAL if no known module does. */
ms_path mst_path_of_parameter(PyObject *tensor);

/* A key of mst_registry.call_paths: a context has 33 bits, and a registry has fewer than 2^31 modules. */
static inline uint64_t mst_call_key(uint64_t context, const struct mst_module *known)
{
    return context << 31 | known->number;
}

/* ---- module_paths.c ---- */

/* If the predicted call is this one, set its path and predict the next one. */
static inline bool mst_predict_call(PyObject *module, uint64_t context, ms_path *path)
{
    if (LIKELY(mst.prediction.next < mst.prediction.count)) {
        const struct mst_predicted_call *call = &mst.prediction.calls[mst.prediction.next];
        if (LIKELY(call->module == module && call->context == context &&
                   *(PyObject **)((char *)module + call->weakrefs_at) == call->ref)) {
            mst.prediction.next++;
            *path = call->path;
            return true;
        }
    }
    return false;
}

/* A call was not predicted: continue after its latest occurrence, or record it as the next call. */
void mst_prediction_record(struct mst_module *known, uint64_t context, ms_path path);

static inline void mst_prediction_clear(void)
{
    mst.prediction.count = mst.prediction.next = 0;
}

/* ---- root_names.c: how modules are shown in figures: root modules of one class are told apart ---- */

/* A module has two names. Its fqn is what torch's trackers call it, and two modules may share it. The name by which
 * its paths are shown is its own:
 *     Net                 the first root module of its class, as long as no other one comes
 *     generator           one of several of its class, by the variable or attribute that holds it
 *     Net#2               the same where no variable is found: the second in the order in which they were first seen
 *     ModuleList.0        a member of a module that is not called itself
 *     generator.fc1       a module inside one of these
 * Runs no Python. Pause the GC before. */

/* ---- shown_paths.c: by which name a path is shown ---- */

/* "before" and "after" in one string, to be freed; NULL if memory runs out. */
char *mst_concat(const char *before, const char *after);
/* Show `path` by the name of `base`, a lower path, and `suffix` after it, also when `base` is renamed. With
 * base MS_GLOBAL: by `suffix` alone. False if it is shown otherwise already: then it belongs to another module. */
bool mst_path_show_below(ms_path path, ms_path base, const char *suffix);
/* Whether `path` is shown by the name of `base` with a dot and `inside` after it. */
bool mst_path_is_shown_below(ms_path path, ms_path base, PyObject *inside);
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
