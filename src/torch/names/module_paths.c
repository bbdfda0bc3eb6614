/* module_paths.c - the path of a module's call: its name and the path of the call around it. Runs no Python. */
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <stdlib.h>

enum { MAX_PREDICTED_CALLS = 1 << 20 };

/* The path called `fqn` inside `parent`; `nth` distinguishes paths with the same name. MS_UNKNOWN if
 * memory runs out. A name that is not UTF-8 or contains a NUL is escaped. */
static ms_path add_path(ms_path parent, PyObject *fqn, uint32_t nth)
{
    Py_ssize_t length = 0;
    const char *text = fqn ? PyUnicode_AsUTF8AndSize(fqn, &length) : NULL;
    mst_clear_error();
    PyObject *escaped = fqn && (!text || strlen(text) != (size_t)length) ? mst_escape(fqn) : NULL;
    if (escaped)
        text = PyUnicode_AsUTF8(escaped);
    ms_path path = MS_UNKNOWN;
    if (text && parent != MS_UNKNOWN)
        ms_path_add_nth(mst.watch, parent, text, nth, &path);
    Py_XDECREF(escaped);
    mst_clear_error();
    return path;
}

/* Whether another live module than `known` was called by this path last. */
static bool is_taken(ms_path path, const struct mst_module *known)
{
    const struct mst_module *other = ms__map_pointer(&mst.registry->by_path, path);
    return other && other != known && mst_module_is_alive(other);
}

ms_path mst_path_add(const struct mst_module *known, ms_path parent, PyObject *fqn, ms_path base, const char *suffix)
{
    for (uint32_t nth = 0;; nth++) {
        ms_path path = add_path(parent, fqn, nth);
        if (path == MS_UNKNOWN || (!is_taken(path, known) && mst_path_show_below(path, base, suffix)))
            return path;
    }
}

/* Add the path of a module that is called `inside` within the module at `base`. */
static ms_path add_path_inside(const struct mst_module *known, ms_path parent, PyObject *fqn, ms_path base,
                               PyObject *inside)
{
    PyObject *suffix = inside ? PyUnicode_FromFormat(".%U", inside) : NULL;
    const char *text = suffix ? PyUnicode_AsUTF8(suffix) : NULL;
    mst_clear_error();
    PyObject *escaped = suffix && !text ? mst_escape(suffix) : NULL;
    if (escaped)
        text = PyUnicode_AsUTF8(escaped);
    char *folded = text && !escaped ? mst_without_wrappers(mst_module_at(base), text, known) : NULL;
    ms_path path = text ? mst_path_add(known, parent, fqn, base, folded ? folded : text) : MS_UNKNOWN;
    free(folded);
    Py_XDECREF(suffix);
    Py_XDECREF(escaped);
    mst_clear_error();
    return path;
}

/* ---- holders ---- */

/* The last part of the name of `known`, if it is a key of `children` that holds `known`: a new reference, or NULL. */
static PyObject *key_by_name(const struct mst_module *known, PyObject *children)
{
    Py_ssize_t length = known->fqn ? PyUnicode_GET_LENGTH(known->fqn) : 0;
    Py_ssize_t dot = length ? PyUnicode_FindChar(known->fqn, '.', 0, length, -1) : -1;
    PyObject *key = dot >= 0 ? PyUnicode_Substring(known->fqn, dot + 1, length) : NULL;
    if (key && PyDict_GetItemWithError(children, key) != known->module)
        Py_CLEAR(key);
    mst_clear_error();
    return key;
}

/* The children are searched one by one only where the name does not say the key: a model may have 100,000 of them. */
PyObject *mst_key_in_holder(const struct mst_module *known)
{
    if (!known->holder || !mst_module_is_alive(known->holder))
        return NULL;
    PyObject *children = mst_module_dict(known->holder->module, mst.interned._modules), *key, *child;
    if (children && (key = key_by_name(known, children)))
        return key;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child))
        if (child == known->module && PyUnicode_Check(key))
            return Py_NewRef(key);
    return NULL;
}

/* Whether the module only holds others, as a ModuleList does: its class has no forward of its own. */
static bool is_container(const struct mst_module *known)
{
    return _PyType_Lookup(Py_TYPE(known->module), mst.interned.forward) ==
           _PyType_Lookup(mst.torch.module, mst.interned.forward);
}

enum wanted_holder {
    OUTERMOST,           /* or the nearest one that was called */
    OUTERMOST_CONTAINER, /* the same for a module that is about to be called by itself: a wrapper that was not called
                            does not count */
    LIKELY_CALLER        /* the nearest one that was called or that has a forward of its own; else the outermost one */
};

/* Whether the module that is wanted is further out than `at`, which is not the first one. */
static bool is_further_out(const struct mst_module *at, enum wanted_holder wanted)
{
    return !at->called && (wanted != LIKELY_CALLER || is_container(at));
}

/* A module that holds `known`, by the recorded holders: borrowed; `known` itself if none does. *inside becomes the name
 * of `known` inside it, a new reference. */
static struct mst_module *find_holder(struct mst_module *known, enum wanted_holder wanted, PyObject **inside)
{
    enum { MOST_HOLDERS = 2000 }; /* modules may hold each other in a circle */
    struct mst_module *at = known;
    PyObject *key, *name = NULL;
    int holders = 0;
    while ((at == known || is_further_out(at, wanted)) && (key = mst_key_in_holder(at))) {
        if (wanted == OUTERMOST_CONTAINER && !at->holder->called && !mst_may_contain(at->holder->module)) {
            Py_DECREF(key);
            break;
        }
        PyObject *longer = name ? PyUnicode_FromFormat("%U.%U", key, name) : Py_NewRef(key);
        Py_XSETREF(name, longer);
        Py_DECREF(key);
        at = at->holder;
        if (!name || at == known || ++holders == MOST_HOLDERS) {
            Py_CLEAR(name);
            break;
        }
    }
    mst_clear_error();
    *inside = name;
    return name ? at : known;
}

/* The name of the module at `base`, and `inside` after it. New reference, or NULL. */
static PyObject *join_to_path(ms_path base, PyObject *inside)
{
    PyObject *before = mst_path_fqn(base);
    return before ? mst_join_names(before, inside) : NULL;
}

/* Whether known->path, of a module that was not called yet, is what mst_path_inside would find once more. */
static bool is_path_inside(const struct mst_module *known, ms_path base, PyObject *inside)
{
    return known->path > MS_UNKNOWN && ms_path_parent(mst.watch, known->path) == base &&
           mst_path_is_shown_below(known->path, base, inside) && !is_taken(known->path, known);
}

static ms_path root_path_of(struct mst_module *known)
{
    struct mst_root *root = mst_root_of(mst.registry, known, false);
    return root ? mst_root_path(root, MS_GLOBAL) : MS_GLOBAL;
}

/* A module that was not called yet, and its name inside the next one, which will most likely call it. */
struct uncalled_module {
    struct mst_module *known;
    PyObject *inside;
};

/* For a module that was not called yet this is the path that its first call will most likely get, so that its tensors
 * and its calls have one path and not two. Modules that hold each other in a circle have no outermost one: then it is
 * that of a root module. */
ms_path mst_path_of_module(struct mst_module *known)
{
    struct uncalled_module *chain = NULL;
    struct mst_module *at = known, *caller;
    size_t count = 0, room = 0;
    PyObject *inside;
    while (at && !at->called && (caller = find_holder(at, LIKELY_CALLER, &inside)) != at) {
        if (count > mst.registry->count || !MS__ARRAY_GROW(chain, room, count + 1)) {
            Py_DECREF(inside);
            at = NULL;
            break;
        }
        chain[count++] = (struct uncalled_module){at, inside};
        at = caller;
    }
    ms_path path = !at ? root_path_of(known) : at->called ? at->path : root_path_of(at);
    while (count-- > 0) {
        struct uncalled_module *next = &chain[count];
        if (at && !is_path_inside(next->known, path, next->inside))
            next->known->path = mst_path_inside(next->known, path, next->inside);
        path = at ? next->known->path : path;
        Py_DECREF(next->inside);
    }
    free(chain);
    return path;
}

ms_path mst_path_inside(const struct mst_module *known, ms_path base, PyObject *inside)
{
    PyObject *fqn = base > MS_UNKNOWN ? join_to_path(base, inside) : NULL;
    ms_path path = fqn ? add_path_inside(known, base, fqn, base, inside) : MS_GLOBAL;
    Py_XDECREF(fqn);
    mst_clear_error();
    return path;
}

ms_path mst_path_of_built_module(struct mst_module *known, PyObject **inside)
{
    *inside = NULL;
    struct mst_module *top = known->called ? known : find_holder(known, OUTERMOST, inside);
    if (top->called || mst_root_is_known(mst.registry, top))
        return mst_path_of_module(top);
    PyObject *name = PyType_GetName(Py_TYPE(top->module));
    const char *shown = name ? PyUnicode_AsUTF8(name) : NULL;
    ms_path path = shown ? mst_path_add(top, MS_GLOBAL, name, MS_GLOBAL, shown) : MS_GLOBAL;
    Py_XDECREF(name);
    mst_clear_error();
    return path;
}

/* ---- calls ---- */

/* The path of an earlier call of `known` in `context`; MS_GLOBAL if there was none. */
static ms_path earlier_path(uint64_t context, const struct mst_module *known)
{
    uint64_t found = ms__map_get(&mst.registry->call_paths, mst_call_key(context, known));
    return found != MS__MAP_NONE ? (ms_path)found : MS_GLOBAL;
}

struct mst_module *mst_module_at(ms_path path)
{
    for (const struct mst_call *call = mst_open_call; call; call = call->outer)
        if (call->path == path)
            return mst_registry_find(mst.registry, call->module);
    struct mst_module *known = ms__map_pointer(&mst.registry->by_path, path);
    return known && mst_module_is_alive(known) ? known : NULL;
}

/* The name of `known` inside `owner` by the recorded holders, if each of them still holds the next one
 * under the same key, and no other module does. New reference, or NULL: search instead. */
static PyObject *name_by_holders(const struct mst_module *owner, const struct mst_module *known)
{
    PyObject *name = NULL;
    for (const struct mst_module *at = known; at != owner; at = at->holder) {
        bool good = at->holder && !at->shared && mst_module_is_alive(at->holder);
        PyObject *children = good ? mst_module_dict(at->holder->module, mst.interned._modules) : NULL;
        PyObject *key = children ? key_by_name(at, children) : NULL;
        if (!key) {
            Py_XDECREF(name);
            return NULL;
        }
        PyObject *longer = name ? PyUnicode_FromFormat("%U.%U", key, name) : Py_NewRef(key);
        Py_DECREF(key);
        Py_XSETREF(name, longer);
    }
    return name;
}

/* The name of `known` inside the nearest module of *context that holds it; *context becomes the path of that call.
 * New reference; NULL, and MS_GLOBAL, if none does. */
static PyObject *name_by_open_calls(ms_path *context, const struct mst_module *known)
{
    for (ms_path at = *context; at != MS_GLOBAL; at = ms_path_parent(mst.watch, at)) {
        struct mst_module *owner = mst_module_at(at);
        PyObject *inside = owner && owner != known ? name_by_holders(owner, known) : NULL;
        if (!inside && owner && owner != known)
            inside = mst_find_name_inside(owner->module, known->module);
        *context = at;
        if (inside)
            return inside;
    }
    *context = MS_GLOBAL;
    return NULL;
}

/* The path that `known` had when the nearest call of `context` called it earlier; MS_GLOBAL if none did. */
static ms_path nearest_earlier_path(ms_path context, const struct mst_module *known)
{
    ms_path path = earlier_path(context, known);
    for (; path == MS_GLOBAL && context != MS_GLOBAL; path = earlier_path(context, known))
        context = ms_path_parent(mst.watch, context);
    return path;
}

/* The path of a module that no open call holds. Its fqn is the name by which it is known, or that of its class. It is
 * shown below the module that holds it, even if that is never called. */
static ms_path find_root_call_path(struct mst_module *known, ms_path parent)
{
    PyObject *inside;
    struct mst_module *top = find_holder(known, OUTERMOST_CONTAINER, &inside);
    struct mst_root *root = top == known ? mst_root_of(mst.registry, known, true) : NULL;
    ms_path path = MS_UNKNOWN;
    if (root) {
        path = mst_root_path(root, parent);
    } else if (inside) {
        ms_path base = mst_path_of_module(top);
        PyObject *fqn = known->fqn ? Py_NewRef(known->fqn) : PyType_GetName(Py_TYPE(known->module));
        if (base > MS_UNKNOWN && fqn)
            path = add_path_inside(known, parent, fqn, base, inside);
        Py_XDECREF(fqn);
    }
    Py_XDECREF(inside);
    mst_clear_error();
    return path;
}

/* A forward inside a backward node is a recompute, perhaps inside the node of a sibling module. It
 * gets the path of its earlier call, else it belongs to the nearest call around the node that holds it. */
static ms_path find_call_path(struct mst_module *known, uint64_t context)
{
    bool in_node = context & MST_IN_NODE;
    ms_path around = (ms_path)context;
    if (around == MS_UNKNOWN && !in_node)
        return MS_UNKNOWN;
    if (around == MS_UNKNOWN)
        around = MS_GLOBAL;
    ms_path before = in_node ? nearest_earlier_path(around, known) : MS_GLOBAL;
    if (before != MS_GLOBAL)
        return before;
    ms_path owner = around;
    PyObject *inside = name_by_open_calls(&owner, known);
    /* A GraphModule that no open call holds was made by a compiler's backend, not by the program. */
    known->hidden = !inside && !known->fqn && around != MS_GLOBAL && mst.torch.graph_module &&
                    PyObject_TypeCheck(known->module, mst.torch.graph_module);
    if (known->hidden)
        return MS_GLOBAL;
    ms_path parent = in_node ? owner : around;
    if (!inside)
        return find_root_call_path(known, parent);
    PyObject *fqn = join_to_path(owner, inside);
    ms_path path = fqn ? add_path_inside(known, parent, fqn, owner, inside) : MS_UNKNOWN;
    Py_XDECREF(fqn);
    Py_DECREF(inside);
    mst_clear_error();
    return path;
}

static ms_path path_of_known_call(struct mst_module *known, uint64_t context)
{
    ms_path path = earlier_path(context, known);
    if (path == MS_GLOBAL) {
        path = find_call_path(known, context);
        if (path != MS_UNKNOWN && path != MS_GLOBAL)
            ms__map_set(&mst.registry->call_paths, mst_call_key(context, known), path);
    }
    if (known->hidden)
        return MS_GLOBAL;
    known->called = true;
    known->context = context;
    known->path = path;
    ms__map_set(&mst.registry->by_path, path, (uintptr_t)known);
    PyObject *fqn = path != MS_UNKNOWN ? mst_path_fqn(path) : NULL;
    if (fqn)
        mst_registry_set_fqn(mst.registry, known, fqn);
    if (fqn && !known->children_named)
        mst_name_children(mst.registry, known);
    mst_clear_error();
    return path;
}

/* ---- calls in the order in which they begin, to predict the next one ---- */

static bool is_predicted_at(size_t at, const struct mst_module *known, uint64_t context)
{
    const struct mst_call_prediction *prediction = &mst.prediction;
    return at < prediction->count && prediction->calls[at].module == known->module &&
           prediction->calls[at].context == context;
}

void mst_prediction_record(struct mst_module *known, uint64_t context, ms_path path)
{
    struct mst_call_prediction *prediction = &mst.prediction;
    uint32_t at = known->predicted_at;
    if (!is_predicted_at(at, known, context))
        at = prediction->next < MAX_PREDICTED_CALLS ? (uint32_t)prediction->next : 0;
    if (!MS__ARRAY_GROW(prediction->calls, prediction->room, at + 1))
        return;
    int32_t weakrefs_at = (int32_t)((char *)known->weakrefs - (char *)known->module);
    prediction->calls[at] = (struct mst_predicted_call){known->module, known->ref, context, weakrefs_at, path};
    prediction->next = at + 1;
    if (at == prediction->count)
        prediction->count++;
    known->predicted_at = at;
}

static ms_path path_of_unpredicted_call(PyObject *module, uint64_t context)
{
    struct mst_module *known = mst_registry_find(mst.registry, module);
    if (!known && !mst_is_module(module))
        return MS_GLOBAL;
    if (!known && !(known = mst_registry_add(mst.registry, module)))
        return MS_UNKNOWN;
    if (known->hidden)
        return MS_GLOBAL;
    ms_path path = known->called && known->context == context ? known->path : path_of_known_call(known, context);
    if (path != MS_GLOBAL)
        mst_prediction_record(known, context, path);
    return path;
}

ms_path mst_path_of_call(PyObject *module, uint64_t context)
{
    bool gc_enabled = mst_gc_pause();
    ms_path path = path_of_unpredicted_call(module, context);
    mst_gc_resume(gc_enabled);
    return path;
}

/* ---- parameters ---- */
static bool owns_parameter(const struct mst_module *known, PyObject *tensor)
{
    PyObject *parameters = mst_module_dict(known->module, mst.interned._parameters), *key, *value;
    Py_ssize_t position = 0;
    while (parameters && PyDict_Next(parameters, &position, &key, &value))
        if (value == tensor)
            return true;
    return false;
}

static struct mst_module *find_parameter_owner(PyObject *tensor)
{
    struct mst_module *known = ms__map_pointer(&mst.registry->by_parameter, (uintptr_t)tensor);
    if (known && mst_module_is_alive(known) && owns_parameter(known, tensor))
        return known;
    for (size_t i = 0; i < mst.registry->count; i++) {
        known = mst.registry->all[i];
        if (mst_module_is_alive(known) && owns_parameter(known, tensor)) {
            ms__map_set(&mst.registry->by_parameter, (uintptr_t)tensor, (uintptr_t)known);
            return known;
        }
    }
    return NULL;
}

ms_path mst_path_of_parameter(PyObject *tensor)
{
    struct mst_module *known = mst.registry ? find_parameter_owner(tensor) : NULL;
    if (!known || known->called)
        return known ? known->path : MS_GLOBAL;
    bool gc_enabled = mst_gc_pause();
    ms_path path = mst_path_of_module(known);
    mst_gc_resume(gc_enabled);
    return path;
}
