/* naming.c - finding a module's name: under the call that is running it. Runs no Python. */
#include "torch/memory.h"
#include "torch/names.h"

#include <stdlib.h>

PyObject *mst_dict_of(PyObject *module, PyObject *name)
{
    PyObject *own = PyObject_GenericGetDict(module, NULL);
    if (!own) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(own); /* the module holds it */
    PyObject *dict = name ? PyDict_GetItemWithError(own, name) : own;
    return dict && PyDict_Check(dict) ? dict : NULL;
}

static uint64_t edge_key(uint64_t context)
{
    return context + 1;
}

static bool is_module(PyObject *object)
{
    return PyObject_TypeCheck(object, mst_torch.module);
}

/* ---- the tree below a module, breadth first: parents before children, every module once ---- */
struct found {
    PyObject *module, *key; /* borrowed */
    size_t parent;
};

struct tree {
    struct found *found;
    size_t count, room;
    struct mst_map seen;
};

static bool tree_add(struct tree *tree, PyObject *module, PyObject *key, size_t parent)
{
    if (tree->count == tree->room) {
        size_t room = tree->room ? tree->room * 2 : 32;
        struct found *found = realloc(tree->found, room * sizeof *found);
        if (!found)
            return false;
        tree->found = found;
        tree->room = room;
    }
    tree->found[tree->count++] = (struct found){module, key, parent};
    return mst_map_set(&tree->seen, (uintptr_t)module, 0, 1);
}

/* Add the children of entry `at` that are new. False when memory ran out. */
static bool tree_open(struct tree *tree, size_t at)
{
    PyObject *children = mst_dict_of(tree->found[at].module, mst_words._modules), *key, *child;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child))
        if (PyUnicode_Check(key) && is_module(child) && !mst_map_get(&tree->seen, (uintptr_t)child, 0) &&
            !tree_add(tree, child, key, at))
            return false;
    return true;
}

static void tree_free(struct tree *tree)
{
    free(tree->found);
    mst_map_clear(&tree->seen);
}

static PyObject *joined(PyObject *before, PyObject *key)
{
    return before ? PyUnicode_FromFormat("%U.%U", before, key) : Py_NewRef(key);
}

PyObject *mst_name_inside(PyObject *owner, PyObject *module)
{
    struct tree tree = {0};
    size_t at = SIZE_MAX;
    bool room = tree_add(&tree, owner, NULL, 0);
    for (size_t i = 0; room && i < tree.count && at == SIZE_MAX; i++) {
        size_t before = tree.count;
        room = tree_open(&tree, i);
        for (size_t k = before; k < tree.count; k++)
            if (tree.found[k].module == module && at == SIZE_MAX)
                at = k;
    }
    PyObject *name = NULL;
    for (; at != SIZE_MAX && at != 0; at = tree.found[at].parent) {
        PyObject *longer =
            name ? PyUnicode_FromFormat("%U.%U", tree.found[at].key, name) : Py_NewRef(tree.found[at].key);
        Py_XSETREF(name, longer);
        if (!name)
            break;
    }
    PyErr_Clear();
    tree_free(&tree);
    return name;
}

static void note_parameters(mst_book *book, struct mst_module *known)
{
    PyObject *parameters = mst_dict_of(known->module, mst_words._parameters), *key, *tensor;
    Py_ssize_t position = 0;
    while (parameters && PyDict_Next(parameters, &position, &key, &tensor))
        if (tensor != Py_None && !mst_map_get(&book->by_parameter, (uintptr_t)tensor, 0))
            mst_map_set(&book->by_parameter, (uintptr_t)tensor, 0, (uintptr_t)known); /* tied: the first owner */
}

static ms_path path_named(ms_path parent, PyObject *fqn, uint32_t nth)
{
    Py_ssize_t length = 0;
    const char *text = fqn ? PyUnicode_AsUTF8AndSize(fqn, &length) : NULL;
    PyErr_Clear();
    PyObject *escaped = fqn && (!text || strlen(text) != (size_t)length) ? PyObject_ASCII(fqn) : NULL;
    if (escaped)
        text = PyUnicode_AsUTF8(escaped);
    ms_path path = MS_UNKNOWN;
    if (text && parent != MS_UNKNOWN)
        ms_path_add_nth(mst_watch, parent, text, nth, &path);
    Py_XDECREF(escaped);
    PyErr_Clear();
    return path;
}

ms_path mst_path_of_holding(const struct mst_module *known)
{
    if (known->called)
        return known->path;
    const struct mst_module *holder = known->holder;
    while (holder && !holder->called)
        holder = holder->holder;
    return known->fqn ? path_named(holder ? holder->path : MS_GLOBAL, known->fqn, 0) : MS_GLOBAL;
}

/* A module held by several parents keeps the first name here, and has them all in the map of
 * names; what is below it is named once. Depth first, as named_modules() goes. */
struct walk {
    mst_book *book;
    struct mst_map seen;
    int depth;
};

/* A new root holds this module: a call of it from outside goes by the new name. */
static void rename_found(mst_book *book, struct mst_module *known, PyObject *fqn)
{
    uint64_t *outside = mst_map_get(&book->edges, edge_key(MS_GLOBAL), (uintptr_t)known);
    if (outside)
        *outside = MS_GLOBAL;
    if (known->context == MS_GLOBAL)
        known->called = false;
    if (known->called || outside)
        mst_trace.count = mst_trace.next = 0;
    mst_book_rename(book, known, fqn);
}

enum { DEEPEST = 2000 }; /* modules in modules that are named in advance */

static void walk_below(struct walk *walk, struct mst_module *known, PyObject *fqn)
{
    if (++walk->depth > DEEPEST)
        goto done;
    known->walked = true;
    note_parameters(walk->book, known);
    if (mst_ledger && walk->book == mst_names)
        mst_claim_module(known);
    PyObject *children = mst_dict_of(known->module, mst_words._modules), *key, *child;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child)) {
        if (!PyUnicode_Check(key) || !is_module(child))
            continue;
        PyObject *name = joined(fqn, key);
        struct mst_module *below = name ? mst_book_add(walk->book, child) : NULL;
        if (below && !mst_map_get(&walk->seen, (uintptr_t)child, 0)) {
            mst_map_set(&walk->seen, (uintptr_t)child, 0, 1);
            rename_found(walk->book, below, name);
            below->shared |= below->holder && below->holder != known;
            below->holder = known;
            walk_below(walk, below, name);
        } else if (below) {
            below->shared = true;
            if (!PyDict_Contains(walk->book->by_fqn, name))
                PyDict_SetItem(walk->book->by_fqn, name, below->ref);
        }
        Py_XDECREF(name);
        PyErr_Clear();
    }
done:
    walk->depth--;
}

void mst_walk_new(mst_book *book)
{
    for (size_t i = 0; i < book->count; i++) {
        struct mst_module *known = book->all[i];
        PyObject *children = known->fqn && mst_alive(known) ? mst_dict_of(known->module, mst_words._modules) : NULL;
        PyObject *key, *child;
        Py_ssize_t position = 0;
        while (children && PyDict_Next(children, &position, &key, &child)) {
            if (!PyUnicode_Check(key) || !is_module(child) || mst_book_find(book, child))
                continue;
            PyObject *name = joined(known->fqn, key);
            struct mst_module *below = name ? mst_book_add(book, child) : NULL;
            if (below) {
                mst_book_rename(book, below, name);
                below->holder = known;
                note_parameters(book, below);
            }
            Py_XDECREF(name);
            PyErr_Clear();
            if (i >= book->count || book->all[i] != known)
                break; /* the dead were dropped */
        }
    }
}

void mst_walk(mst_book *book, struct mst_module *known)
{
    struct walk walk = {.book = book};
    mst_map_set(&walk.seen, (uintptr_t)known->module, 0, 1);
    walk_below(&walk, known, known->fqn);
    mst_map_clear(&walk.seen);
}

/* ---- calls ---- */
static ms_path edge(uint64_t context, const struct mst_module *known)
{
    uint64_t *there = mst_map_get(&mst_names->edges, edge_key(context), (uintptr_t)known);
    return there ? (ms_path)*there : MS_GLOBAL;
}

/* The module that runs, or last ran, at a path: this thread's own open calls first. */
static struct mst_module *module_at(ms_path path)
{
    for (const struct mst_call *call = mst_open; call; call = call->outer)
        if (call->path == path)
            return mst_book_find(mst_names, call->module);
    uint64_t *there = mst_map_get(&mst_names->by_path, (uint64_t)path + 1, 0);
    struct mst_module *known = there ? (struct mst_module *)(uintptr_t)*there : NULL;
    return known && mst_alive(known) ? known : NULL;
}

/* The same for a module that was found in one place only: by what is remembered, if it is still so. */
static PyObject *name_remembered(const struct mst_module *owner, const struct mst_module *known)
{
    PyObject *name = NULL;
    for (const struct mst_module *at = known; at != owner; at = at->holder) {
        Py_ssize_t length = at->fqn ? PyUnicode_GET_LENGTH(at->fqn) : 0;
        Py_ssize_t dot = at->fqn ? PyUnicode_FindChar(at->fqn, '.', 0, length, -1) : -1;
        bool good = at->holder && !at->shared && dot >= 0 && mst_alive(at->holder);
        PyObject *children = good ? mst_dict_of(at->holder->module, mst_words._modules) : NULL;
        PyObject *key = children ? PyUnicode_Substring(at->fqn, dot + 1, length) : NULL;
        if (!key || PyDict_GetItemWithError(children, key) != at->module) {
            Py_XDECREF(key);
            Py_XDECREF(name);
            PyErr_Clear();
            return NULL;
        }
        PyObject *longer = name ? PyUnicode_FromFormat("%U.%U", key, name) : Py_NewRef(key);
        Py_DECREF(key);
        Py_XSETREF(name, longer);
    }
    return name;
}

/* The fqn of `known`, given by the nearest call of *context that holds it; *context is then
 * that call. NULL if none does. */
static PyObject *name_under(ms_path *context, const struct mst_module *known)
{
    for (ms_path at = *context; at != MS_GLOBAL; at = ms_path_parent(mst_watch, at)) {
        struct mst_module *owner = module_at(at);
        PyObject *inside = owner && owner != known ? name_remembered(owner, known) : NULL;
        if (!inside && owner && owner != known)
            inside = mst_name_inside(owner->module, known->module);
        if (!inside)
            continue;
        PyObject *fqn = joined(mst_fqn(at), inside);
        Py_DECREF(inside);
        *context = at;
        return fqn;
    }
    *context = MS_GLOBAL;
    return NULL;
}

/* What the nearest call of `context` that called `known` before called; MS_GLOBAL if none did. */
static ms_path ran_before(ms_path context, const struct mst_module *known)
{
    ms_path path = edge(context, known);
    for (; path == MS_GLOBAL && context != MS_GLOBAL; path = edge(context, known))
        context = ms_path_parent(mst_watch, context);
    return path;
}

/* Modules that live side by side under one name (two roots of a class) have a path each. */
static ms_path path_for(const struct mst_module *known, ms_path parent, PyObject *fqn)
{
    for (uint32_t nth = 0;; nth++) {
        ms_path path = path_named(parent, fqn, nth);
        const uint64_t *taken = mst_map_get(&mst_names->by_path, (uint64_t)path + 1, 0);
        const struct mst_module *other = taken ? (struct mst_module *)(uintptr_t)*taken : NULL;
        if (path == MS_UNKNOWN || !other || other == known || !mst_alive(other))
            return path;
    }
}

/* Inside a backward node a forward is run again, perhaps in the node of a sibling: it
 * belongs where it ran before, else to the nearest call around the node that holds it. */
static ms_path resolve(struct mst_module *known, uint64_t context)
{
    bool in_node = context & MST_IN_NODE;
    ms_path around = (ms_path)context;
    if (around == MS_UNKNOWN && !in_node)
        return MS_UNKNOWN;
    if (around == MS_UNKNOWN)
        around = MS_GLOBAL;
    ms_path before = in_node ? ran_before(around, known) : MS_GLOBAL;
    if (before != MS_GLOBAL)
        return before;
    ms_path owner = around;
    PyObject *fqn = name_under(&owner, known);
    /* Called inside a call, held by none: what a compiler's backend made, not the program's own. */
    known->hidden = !fqn && !known->fqn && around != MS_GLOBAL && mst_torch.graph_module &&
                    PyObject_TypeCheck(known->module, mst_torch.graph_module);
    if (known->hidden)
        return MS_GLOBAL;
    if (!fqn)
        fqn = Py_XNewRef(known->fqn ? known->fqn : mst_given_name(mst_names, known->module));
    ms_path path = path_for(known, in_node ? owner : around, fqn);
    Py_XDECREF(fqn);
    return path;
}

/* ---- the trace ---- */
enum { LONGEST_TRACE = 1 << 20 };

/* Go on after where the call stands in the trace, or put it next. */
static void note_step(struct mst_module *known, uint64_t context, ms_path path)
{
    struct mst_trace *trace = &mst_trace;
    size_t at = known->step;
    if (at >= trace->count || trace->steps[at].module != known->module || trace->steps[at].context != context)
        at = trace->next < LONGEST_TRACE ? trace->next : 0;
    if (at >= trace->room) {
        size_t room = trace->room ? trace->room * 2 : 256;
        struct mst_step *steps = realloc(trace->steps, room * sizeof *steps);
        if (!steps)
            return;
        trace->steps = steps;
        trace->room = room;
    }
    int32_t refs_at = (int32_t)((char *)known->refs - (char *)known->module);
    trace->steps[at] = (struct mst_step){known->module, known->ref, context, refs_at, path};
    trace->next = at + 1;
    if (at == trace->count)
        trace->count++;
    known->step = at;
}

static ms_path path_of_known(struct mst_module *known, uint64_t context)
{
    ms_path path = edge(context, known);
    if (path == MS_GLOBAL) {
        path = resolve(known, context);
        if (path != MS_UNKNOWN && path != MS_GLOBAL)
            mst_map_set(&mst_names->edges, edge_key(context), (uintptr_t)known, path);
    }
    if (known->hidden)
        return MS_GLOBAL;
    known->called = true;
    known->context = context;
    known->path = path;
    mst_map_set(&mst_names->by_path, (uint64_t)path + 1, 0, (uintptr_t)known);
    PyObject *fqn = path != MS_UNKNOWN ? mst_fqn(path) : NULL;
    if (fqn)
        mst_book_rename(mst_names, known, fqn);
    if (fqn && !known->walked)
        mst_walk(mst_names, known);
    PyErr_Clear();
    return path;
}

static ms_path path_of_call(PyObject *module, uint64_t context)
{
    struct mst_module *known = mst_book_find(mst_names, module);
    if (!known && !is_module(module))
        return MS_GLOBAL;
    if (!known && !(known = mst_book_add(mst_names, module)))
        return MS_UNKNOWN;
    if (known->hidden)
        return MS_GLOBAL;
    ms_path path = known->called && known->context == context ? known->path : path_of_known(known, context);
    if (path != MS_GLOBAL)
        note_step(known, context, path);
    return path;
}

ms_path mst_path_of_call(PyObject *module, uint64_t context)
{
    bool collecting = mst_stop_collecting();
    ms_path path = path_of_call(module, context);
    mst_collect_again(collecting);
    return path;
}

/* ---- parameters ---- */
static bool owns(const struct mst_module *known, PyObject *tensor)
{
    PyObject *parameters = mst_dict_of(known->module, mst_words._parameters), *key, *value;
    Py_ssize_t position = 0;
    while (parameters && PyDict_Next(parameters, &position, &key, &value))
        if (value == tensor)
            return true;
    return false;
}

static struct mst_module *owner_of(PyObject *tensor)
{
    uint64_t *there = mst_map_get(&mst_names->by_parameter, (uintptr_t)tensor, 0);
    struct mst_module *known = there ? (struct mst_module *)(uintptr_t)*there : NULL;
    if (known && mst_alive(known) && owns(known, tensor))
        return known;
    for (size_t i = 0; i < mst_names->count; i++) {
        known = mst_names->all[i];
        if (mst_alive(known) && owns(known, tensor)) {
            mst_map_set(&mst_names->by_parameter, (uintptr_t)tensor, 0, (uintptr_t)known);
            return known;
        }
    }
    return NULL;
}

ms_path mst_path_of_parameter(PyObject *tensor)
{
    const struct mst_module *known = mst_names ? owner_of(tensor) : NULL;
    return known ? mst_path_of_holding(known) : MS_GLOBAL;
}
