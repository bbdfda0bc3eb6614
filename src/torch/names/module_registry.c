/* module_registry.c - which modules are known, by which names. Modules are held weakly. */
#include "torch/calls/calls.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct ms__map path_fqns; /* path -> Python string; never cleared */

mst_registry *mst_registry_new(void)
{
    mst_registry *registry = calloc(1, sizeof *registry);
    if (!registry)
        return PyErr_NoMemory(), NULL;
    registry->refs = 1;
    registry->by_fqn = PyDict_New();
    if (registry->by_fqn)
        return registry;
    mst_registry_unref(registry);
    return NULL;
}

mst_registry *mst_registry_ref(mst_registry *registry)
{
    registry->refs++;
    return registry;
}

static void free_module(struct mst_module *known)
{
    Py_DECREF(known->ref);
    Py_XDECREF(known->fqn);
    free(known);
}

void mst_registry_unref(mst_registry *registry)
{
    if (!registry || --registry->refs > 0)
        return;
    for (size_t i = 0; i < registry->count; i++)
        free_module(registry->all[i]);
    free(registry->all);
    ms__map_clear(&registry->by_module);
    ms__map_clear(&registry->by_parameter);
    ms__map_clear(&registry->call_paths);
    ms__map_clear(&registry->by_path);
    Py_XDECREF(registry->by_fqn);
    mst_roots_free(registry);
    free(registry);
}

static void drop_dead_names(mst_registry *registry)
{
    PyObject *alive = PyDict_New(), *fqn, *ref;
    Py_ssize_t at = 0;
    while (alive && PyDict_Next(registry->by_fqn, &at, &fqn, &ref))
        if (((PyWeakReference *)ref)->wr_object != Py_None && PyDict_SetItem(alive, fqn, ref) != 0)
            Py_CLEAR(alive);
    if (alive)
        Py_SETREF(registry->by_fqn, alive);
    PyErr_Clear();
}

/* Drop the modules that died. The paths of calls are dropped with them and found again when needed. */
static void drop_dead_modules(mst_registry *registry)
{
    size_t kept = 0;
    mst_prediction_clear();
    mst_roots_drop_dead(registry);
    ms__map_clear(&registry->by_module);
    ms__map_clear(&registry->by_parameter);
    ms__map_clear(&registry->call_paths);
    ms__map_clear(&registry->by_path);
    for (size_t i = 0; i < registry->count; i++) {
        struct mst_module *known = registry->all[i];
        known->holder = known->holder && mst_module_is_alive(known->holder) ? known->holder : NULL;
    }
    for (size_t i = 0; i < registry->count; i++) {
        struct mst_module *known = registry->all[i];
        if (!mst_module_is_alive(known) ||
            !ms__map_set(&registry->by_module, (uintptr_t)known->module, (uintptr_t)known)) {
            free_module(known);
            continue;
        }
        known->number = (uint32_t)kept;
        registry->all[kept++] = known;
        if (known->called)
            ms__map_set(&registry->by_path, known->path, (uintptr_t)known);
    }
    registry->count = kept;
    drop_dead_names(registry);
}

static bool reserve_module(mst_registry *registry)
{
    if (registry->count < registry->room)
        return true;
    drop_dead_modules(registry);
    if (registry->count * 2 < registry->room)
        return true;
    return MS__ARRAY_GROW(registry->all, registry->room, registry->room + 1) || registry->count < registry->room;
}

struct mst_module *mst_registry_find(mst_registry *registry, PyObject *module)
{
    struct mst_module *known = ms__map_pointer(&registry->by_module, (uintptr_t)module);
    return known && mst_module_is_same(known) ? known : NULL;
}

const char *mst_module_of_class(PyObject *module)
{
    PyObject *dict = Py_TYPE(module)->tp_dict;
    PyObject *name = dict ? PyDict_GetItemWithError(dict, mst.interned.__module__) : NULL;
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    return text ? text : "";
}

/* Whether dynamo made the wrapper to export what it wraps. One that torch.compile returns is the program's own. */
static bool wraps_for_export(PyObject *wrapper)
{
    PyObject *own = mst_module_dict(wrapper, NULL);
    PyObject *dynamo_ctx = own ? PyDict_GetItemWithError(own, mst.interned.dynamo_ctx) : NULL;
    PyObject *export = dynamo_ctx ? PyObject_GetAttr(dynamo_ctx, mst.interned.export) : NULL;
    bool exports = export == Py_True;
    Py_XDECREF(export);
    PyErr_Clear();
    return exports;
}

/* Whether a compiler or torch.export made the module, to run the program's own modules in it. */
static bool is_made_by_torch(PyObject *module)
{
    PyObject *own = mst_module_dict(module, NULL);
    if (own && PyDict_Contains(own, mst.interned.compile_subgraph_reason) == 1)
        return true;
    const char *name = mst_module_of_class(module);
    return strncmp(name, "torch.export._", strlen("torch.export._")) == 0 ||
           strncmp(name, "torch._export.", strlen("torch._export.")) == 0 ||
           (strncmp(name, "torch._dynamo.", strlen("torch._dynamo.")) == 0 && wraps_for_export(module));
}

enum { CACHE_LINE = 64 };
static_assert(sizeof(struct mst_module) <= CACHE_LINE, "what a call reads of a module fits into one cache line");

struct mst_module *mst_registry_add(mst_registry *registry, PyObject *module)
{
    struct mst_module *known = mst_registry_find(registry, module);
    if (known || !reserve_module(registry))
        return known;
    known = aligned_alloc(CACHE_LINE, CACHE_LINE);
    PyObject *ref = known ? PyWeakref_NewRef(module, NULL) : NULL;
    if (!ref || !ms__map_set(&registry->by_module, (uintptr_t)module, (uintptr_t)known)) {
        PyErr_Clear();
        Py_XDECREF(ref);
        free(known);
        return NULL;
    }
    *known = (struct mst_module){.module = module, .ref = ref, .weakrefs = PyObject_GET_WEAKREFS_LISTPTR(module)};
    known->hidden = is_made_by_torch(module);
    known->number = (uint32_t)registry->count;
    registry->all[registry->count++] = known;
    return known;
}

void mst_registry_set_fqn(mst_registry *registry, struct mst_module *known, PyObject *fqn)
{
    if (known->fqn == fqn)
        return;
    if (PyDict_SetItem(registry->by_fqn, fqn, known->ref) != 0)
        PyErr_Clear();
    Py_XSETREF(known->fqn, Py_NewRef(fqn));
}

void mst_registry_use(mst_registry *registry, const mst_registry *other)
{
    bool gc_enabled = mst_gc_pause();
    for (size_t i = 0; other && other != registry && i < other->count; i++) {
        const struct mst_module *theirs = other->all[i];
        if (!theirs->fqn || !mst_module_is_alive(theirs))
            continue;
        struct mst_module *known = mst_registry_add(registry, theirs->module);
        if (known && !known->fqn)
            mst_registry_set_fqn(registry, known, theirs->fqn);
    }
    if (registry != mst.registry)
        mst_prediction_clear();
    mst_registry_ref(registry);
    mst_registry_unref(mst.registry);
    mst.registry = registry;
    mst_gc_resume(gc_enabled);
}

PyObject *mst_registry_fqn(mst_registry *registry, PyObject *module)
{
    for (const struct mst_call *call = registry == mst.registry ? mst_open_call : NULL; call; call = call->outer)
        if (call->module == module)
            return mst_path_fqn(call->path);
    struct mst_module *known = mst_registry_find(registry, module);
    return known ? known->fqn : NULL;
}

/* The name that a module has, or gets as a root module: borrowed, or NULL. Pause the GC before. */
static PyObject *root_name(mst_registry *registry, PyObject *module)
{
    struct mst_module *known = mst_registry_add(registry, module);
    PyObject *fqn = known ? Py_XNewRef(known->fqn) : NULL;
    if (known && !fqn) {
        mst_root_of(registry, known, false);
        fqn = PyType_GetName(Py_TYPE(module));
    }
    if (!fqn)
        return NULL;
    mst_registry_set_fqn(registry, known, fqn);
    Py_DECREF(fqn);
    if (!known->children_named)
        mst_name_children(registry, known);
    return known->fqn;
}

PyObject *mst_registry_name(mst_registry *registry, PyObject *module)
{
    PyObject *fqn = mst_registry_fqn(registry, module);
    if (fqn)
        return fqn;
    bool gc_enabled = mst_gc_pause();
    fqn = root_name(registry, module);
    mst_gc_resume(gc_enabled);
    if (!fqn && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError,
                        "modscope: this module cannot be named, because it supports no weak references");
    return fqn;
}

PyObject *mst_registry_modules(mst_registry *registry)
{
    PyObject *modules = PyDict_New(), *fqn, *ref;
    Py_ssize_t at = 0;
    while (modules && registry && PyDict_Next(registry->by_fqn, &at, &fqn, &ref)) {
        PyObject *module = ((PyWeakReference *)ref)->wr_object;
        if (module != Py_None && Py_REFCNT(module) > 0 && PyDict_SetItem(modules, fqn, module) != 0)
            Py_CLEAR(modules);
    }
    return modules;
}

PyObject *mst_path_fqn(ms_path path)
{
    PyObject *fqn = ms__map_pointer(&path_fqns, path);
    if (fqn)
        return fqn;
    fqn = PyUnicode_FromString(ms_path_name(mst.watch, path));
    if (!fqn)
        return NULL;
    PyUnicode_InternInPlace(&fqn);
    if (!ms__map_set(&path_fqns, path, (uintptr_t)fqn)) {
        Py_DECREF(fqn);
        PyErr_NoMemory();
        return NULL;
    }
    return fqn;
}
