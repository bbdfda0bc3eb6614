/* module_building.c - while a model is being built, claim what its modules register. The Python side gives these
 * functions to torch's global registration hooks.
 *
 * A module that is not called yet is in no other way known, and memory may run out before it is. torch calls the
 * hooks before it stores what is registered. When a module is put into another one, all that it holds is claimed again,
 * by its longer name: Linear, then Attention.query, then Block.attention.query. Runs no Python. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

#include <string.h>

static PyObject *building_hook_handles; /* a list: what removes the hooks; NULL: not registered */

static bool is_counted(void)
{
    return mst.ledger && mst.registry && mst_layout_is_known();
}

/* Compilers and torch.export make modules that hold the tensors of the program's own modules and optimizers. */
static bool is_built_by_program(PyObject *module)
{
    static const char *const packages[] = {"torch._", "torch.fx.", "torch.export."};
    if (!mst_is_module(module) || (mst.torch.graph_module && PyObject_TypeCheck(module, mst.torch.graph_module)))
        return false;
    const char *name = mst_module_of_class(module);
    for (size_t i = 0; i < sizeof packages / sizeof *packages; i++)
        if (strncmp(name, packages[i], strlen(packages[i])) == 0)
            return false;
    return true;
}

/* What needs Python to be claimed is claimed at the next call. */
static void claim_built_tensor(PyObject *tensor, ms_category category, ms_path path)
{
    if (!PyObject_TypeCheck(tensor, mst.torch.tensor))
        return;
    if (mst.by_dispatcher || mst_is_wrapper_subclass(tensor))
        mst.claims.due = true;
    else
        mst_claim_impl(mst_impl_of(tensor), category, path);
}

static void claim_built_dict(PyObject *module, PyObject *name, ms_category category, ms_path path)
{
    PyObject *dict = mst_module_dict(module, name), *key, *tensor;
    Py_ssize_t position = 0;
    while (dict && PyDict_Next(dict, &position, &key, &tensor))
        claim_built_tensor(tensor, category, path);
}

static bool has_tensors(PyObject *module)
{
    PyObject *parameters = mst_module_dict(module, mst.interned._parameters);
    PyObject *buffers = mst_module_dict(module, mst.interned._buffers);
    return (parameters && PyDict_GET_SIZE(parameters)) || (buffers && PyDict_GET_SIZE(buffers));
}

enum { MOST_LEVELS = 64 }; /* Deeper modules keep their shorter names until they are called. */

/* Claim what a module and those in it hold; it is called `inside` within the module at `base`. Copies of modules are
 * not known yet: nothing was registered in them. */
static void claim_built_module(PyObject *module, struct mst_module *holder, ms_path base, PyObject *inside,
                               struct ms__map *seen, int level)
{
    struct mst_module *known = mst_registry_add(mst.registry, module);
    if (known && !known->holder)
        known->holder = holder;
    if (!known || level > MOST_LEVELS || ms__map_has(seen, (uintptr_t)module) ||
        !ms__map_set(seen, (uintptr_t)module, 1))
        return;
    ms_path path = has_tensors(module) ? mst_path_inside(known, base, inside) : MS_GLOBAL;
    if (path > MS_UNKNOWN) {
        claim_built_dict(module, mst.interned._buffers, MS_BUFFER, path);
        claim_built_dict(module, mst.interned._parameters, MS_PARAMETER, path);
    }
    PyObject *children = mst_module_dict(module, mst.interned._modules), *key, *child;
    Py_ssize_t position = 0;
    while (children && PyDict_Next(children, &position, &key, &child)) {
        PyObject *name = PyUnicode_Check(key) && mst_is_module(child) ? mst_join_names(inside, key) : NULL;
        if (name)
            claim_built_module(child, known, base, name, seen, level + 1);
        Py_XDECREF(name);
    }
}

/* ---- from torch: (module, name, what is registered) ---- */

static PyObject *tensor_registered(PyObject *const *args, Py_ssize_t count, ms_category category)
{
    if (count != 3 || !is_counted() || !is_built_by_program(args[0]) || args[2] == Py_None)
        Py_RETURN_NONE;
    bool gc_enabled = mst_gc_pause();
    struct mst_module *known = mst_registry_add(mst.registry, args[0]);
    PyObject *inside = NULL;
    ms_path path = known ? mst_path_of_built_module(known, &inside) : MS_GLOBAL;
    if (path > MS_UNKNOWN && inside)
        path = mst_path_inside(known, path, inside);
    if (path > MS_UNKNOWN)
        claim_built_tensor(args[2], category, path);
    Py_XDECREF(inside);
    PyErr_Clear();
    mst_gc_resume(gc_enabled);
    Py_RETURN_NONE;
}

static PyObject *parameter_registered(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return tensor_registered(args, count, MS_PARAMETER);
}

static PyObject *buffer_registered(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return tensor_registered(args, count, MS_BUFFER);
}

/* The first module that holds another one is its holder, as long as it holds it. */
static void set_holder(struct mst_module *known, struct mst_module *holder)
{
    PyObject *key = mst_key_in_holder(known);
    if (!key)
        known->holder = holder;
    Py_XDECREF(key);
    known->shared |= known->holder != holder;
}

static void put_into_module(PyObject *module, PyObject *key, PyObject *child)
{
    if (!mst_registry_add(mst.registry, child))
        return;
    struct mst_module *holder = mst_registry_add(mst.registry, module);
    struct mst_module *known = mst_registry_find(mst.registry, child);
    if (!holder || !known || known == holder)
        return;
    set_holder(known, holder);
    if (known->called || known->holder != holder)
        return;
    PyObject *around;
    ms_path base = mst_path_of_built_module(holder, &around);
    PyObject *inside = mst_join_names(around, key);
    struct ms__map seen = {0};
    if (base > MS_UNKNOWN && inside)
        claim_built_module(child, holder, base, inside, &seen, 0);
    ms__map_clear(&seen);
    Py_XDECREF(inside);
    Py_XDECREF(around);
}

static PyObject *module_registered(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    if (count != 3 || !is_counted() || !is_built_by_program(args[0]) || !PyUnicode_Check(args[1]) ||
        args[2] == Py_None || !mst_is_module(args[2]))
        Py_RETURN_NONE;
    bool gc_enabled = mst_gc_pause();
    put_into_module(args[0], args[1], args[2]);
    PyErr_Clear();
    mst_gc_resume(gc_enabled);
    Py_RETURN_NONE;
}

PyMethodDef mst_building_methods[] = {
    {"parameter_registered", (PyCFunction)(void (*)(void))parameter_registered, METH_FASTCALL,
     "A module registers a parameter: (module, name, parameter)."},
    {"buffer_registered", (PyCFunction)(void (*)(void))buffer_registered, METH_FASTCALL,
     "A module registers a buffer: (module, name, buffer)."},
    {"module_registered", (PyCFunction)(void (*)(void))module_registered, METH_FASTCALL,
     "A module registers another one: (module, name, other)."},
    {NULL, NULL, 0, NULL},
};

int mst_building_hooks_register(void)
{
    building_hook_handles = mst_run_python(MST_PY_REGISTER_BUILDING_HOOKS, NULL);
    return building_hook_handles ? 0 : -1;
}

void mst_building_hooks_remove(void)
{
    mst_remove_hooks(&building_hook_handles);
}
