/* fsdp_claims.c - claims of what FSDP2's objects hold.
 *
 *     FSDPState          one for each call of fully_shard
 *       ._fsdp_param_groups    FSDPParamGroup: what is gathered and reduced together
 *          .modules            the modules that were given to fully_shard
 *          .fsdp_params        FSDPParam
 *             ._sharded_param_data          the shard of this rank, padded              Sharded Param
 *             .sharded_param.grad           the reduced gradient's shard                Sharded Grad
 *             .all_gather_outputs           the whole parameter, while it is in use     Unsharded Param
 *             ._unsharded_param.grad        its gradient, until it is reduced           Unsharded Grad
 *          ._all_gather_result, .comm_ctx   buffers of collectives                      All Gather, Reduce Scatter
 *          ._all_reduce_state               of HSDP: what is reduced over copies        All Reduce
 *
 * A parameter and its gradients belong to the module that holds the parameter; a gradient's shard lies in one block
 * with those of its group, which belongs to the module that was given to fully_shard, as the buffers do. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

/* clang-format off */
#define ATTRIBUTES(X)                   \
    X(_fsdp_param_groups)               \
    X(_fsdp_param_group)                \
    X(_get_fsdp_state)                  \
    X(modules)                          \
    X(fsdp_params)                      \
    X(_module_info)                     \
    X(module)                           \
    X(_sharded_param_data)              \
    X(_sharded_post_forward_param_data) \
    X(sharded_param)                    \
    X(_unsharded_param)                 \
    X(_unsharded_inner_tensors)         \
    X(unsharded_accumulated_grad)       \
    X(all_gather_outputs)               \
    X(_all_gather_result)               \
    X(_partial_reduce_output)           \
    X(_all_reduce_state)                \
    X(comm_ctx)                         \
    X(all_gather_state)                 \
    X(reduce_scatter_states)            \
    X(reduce_scatter_state)             \
    X(_local_tensor)
/* clang-format on */
static struct {
#define X(name) PyObject *name;
    ATTRIBUTES(X)
#undef X
} names;

static bool intern_names(void)
{
#define X(name)                                                           \
    if (!names.name && !(names.name = PyUnicode_InternFromString(#name))) \
        return false;
    ATTRIBUTES(X)
#undef X
    return true;
}

/* A new reference, or NULL without an error: the object has no such attribute, or it is None. */
static PyObject *attribute_of(PyObject *object, PyObject *name)
{
    PyObject *value = object ? PyObject_GetAttr(object, name) : NULL;
    if (!value)
        mst_clear_error();
    if (value == Py_None)
        Py_CLEAR(value);
    return value;
}

static bool is_tensor(PyObject *object)
{
    return object && PyObject_TypeCheck(object, mst.torch.tensor);
}

/* ---- claiming a tensor ---- */
struct kind_claim {
    ms_kind kind;
    ms_path path;
};

static int claim_inner_kind(PyObject *tensor, void *context)
{
    const struct kind_claim *claim = context;
    struct mst_storage storage;
    uint64_t impl = mst_impl_of(tensor);
    if (!mst_layout_is_known() || !mst_read_storage(impl, &storage) || (!storage.bytes && !mst.by_dispatcher))
        return 0;
    uint64_t address = mst.by_dispatcher ? storage.storage : storage.data;
    if (!address || ms_block_claim_kind(mst_target_ledger(), address, claim->kind, claim->path) != MS_ENOBLOCK)
        return 0;
    if (!mst.by_dispatcher)
        mst_claim_impl(impl, ms_kind_category(claim->kind), claim->path); /* adds it */
    else if (mst_dispatch_claim(tensor, ms_kind_category(claim->kind), claim->path) != 0)
        return -1;
    ms_block_claim_kind(mst_target_ledger(), address, claim->kind, claim->path);
    return 0;
}

void mst_claim_tensor_kind(PyObject *tensor, ms_kind kind, ms_path path)
{
    struct kind_claim claim = {kind, path};
    if (is_tensor(tensor) && mst_visit_inner_tensors(tensor, claim_inner_kind, &claim) != 0)
        mst_clear_error(); /* Nothing is claimed for a tensor that cannot be read. */
}

static void claim_attribute(PyObject *object, PyObject *name, ms_kind kind, ms_path path)
{
    PyObject *value = attribute_of(object, name);
    if (value && PyList_Check(value))
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++)
            mst_claim_tensor_kind(PyList_GET_ITEM(value, i), kind, path);
    else
        mst_claim_tensor_kind(value, kind, path);
    Py_XDECREF(value);
}

/* ---- owners ---- */

ms_path mst_kind_owner(PyObject *module)
{
    if (!module || !mst.registry)
        return MS_GLOBAL;
    bool gc_enabled = mst_gc_pause();
    struct mst_module *known = mst_registry_find(mst.registry, module);
    ms_path path = !known ? MS_GLOBAL : known->called ? known->path : mst_path_of_module(known);
    mst_gc_resume(gc_enabled);
    return path;
}

/* The path of the module that was given to fully_shard; of several, the first. */
static ms_path path_of_group(PyObject *group)
{
    PyObject *modules = attribute_of(group, names.modules);
    bool any = modules && PyTuple_Check(modules) && PyTuple_GET_SIZE(modules);
    ms_path path = mst_kind_owner(any ? PyTuple_GET_ITEM(modules, 0) : NULL);
    Py_XDECREF(modules);
    return path;
}

/* The path of the module that holds an FSDPParam. */
static ms_path path_of_param(PyObject *param)
{
    ms_path path = MS_GLOBAL;
    PyObject *sharded = attribute_of(param, names.sharded_param);
    bool found = is_tensor(sharded) && mst_owner_find(mst_impl_of(sharded), &path);
    Py_XDECREF(sharded);
    if (found)
        return path;
    PyObject *info = attribute_of(param, names._module_info), *module = attribute_of(info, names.module);
    path = mst_kind_owner(module);
    Py_XDECREF(module);
    Py_XDECREF(info);
    return path;
}

/* Which group an FSDPParam is in, by the path of the group. foreach_all_gather and foreach_reduce get only the
 * parameters. The keys are borrowed: they are compared, never used. */
static struct ms__map group_paths;

ms_path mst_fsdp_owner(PyObject *params)
{
    PyObject *first = PyList_Check(params) && PyList_GET_SIZE(params) ? PyList_GET_ITEM(params, 0) : NULL;
    uint64_t path = first ? ms__map_get(&group_paths, (uintptr_t)first) : MS_GLOBAL;
    return path != MS__MAP_NONE ? (ms_path)path : path_of_param(first);
}

/* ---- going through the objects ---- */
typedef void visit_param(PyObject *param, ms_path path);

/* Visit each FSDPParam of a group. */
static void visit_params(PyObject *group, visit_param *visit)
{
    ms_path of_group = path_of_group(group);
    PyObject *params = attribute_of(group, names.fsdp_params);
    for (Py_ssize_t i = 0; params && PyList_Check(params) && i < PyList_GET_SIZE(params); i++) {
        PyObject *param = Py_NewRef(PyList_GET_ITEM(params, i));
        ms__map_set(&group_paths, (uintptr_t)param, of_group);
        visit(param, path_of_param(param));
        Py_DECREF(param);
    }
    Py_XDECREF(params);
}

typedef void visit_group(PyObject *group);

/* Visit each group of a state. Before torch 2.12 a state had one group at most. */
static void visit_groups(PyObject *state, visit_group *visit)
{
    PyObject *groups = attribute_of(state, names._fsdp_param_groups);
    for (Py_ssize_t i = 0; groups && PyList_Check(groups) && i < PyList_GET_SIZE(groups); i++)
        visit(PyList_GET_ITEM(groups, i));
    PyObject *only = groups ? NULL : attribute_of(state, names._fsdp_param_group);
    if (only)
        visit(only);
    Py_XDECREF(only);
    Py_XDECREF(groups);
}

/* ---- parameters ---- */

static void claim_sharded(PyObject *param, ms_path path)
{
    claim_attribute(param, names._sharded_param_data, MS_KIND_SHARDED_PARAM, path);
}

static void claim_unsharded(PyObject *param, ms_path path)
{
    claim_attribute(param, names.all_gather_outputs, MS_KIND_UNSHARDED_PARAM, path);
    claim_attribute(param, names._unsharded_inner_tensors, MS_KIND_UNSHARDED_PARAM, path);
    PyObject *unsharded = attribute_of(param, names._unsharded_param);
    if (is_tensor(unsharded))
        mst_owner_set_gradient_kind(mst_impl_of(unsharded), path, MS_KIND_UNSHARDED_GRAD);
    Py_XDECREF(unsharded);
}

static void claim_kept(PyObject *param, ms_path path)
{
    claim_attribute(param, names._sharded_post_forward_param_data, MS_KIND_SHARDED_PARAM, path);
    claim_attribute(param, names.unsharded_accumulated_grad, MS_KIND_UNSHARDED_GRAD, path);
}

static void claim_group_sharded(PyObject *group)
{
    visit_params(group, claim_sharded);
}

void mst_claim_fsdp_state(PyObject *state)
{
    if (intern_names())
        visit_groups(state, claim_group_sharded);
    mst_clear_error();
}

void mst_claim_fsdp_unsharded(PyObject *group)
{
    if (intern_names())
        visit_params(group, claim_unsharded);
    mst_clear_error();
}

void mst_claim_fsdp_group_kept(PyObject *group)
{
    if (intern_names())
        visit_params(group, claim_kept);
    mst_clear_error();
}

void mst_claim_fsdp_kept(PyObject *state)
{
    if (intern_names())
        visit_groups(state, mst_claim_fsdp_group_kept);
    mst_clear_error();
}

/* ---- collectives ---- */

/* Claim item `at` of a tuple. */
static void claim_item(PyObject *tuple, Py_ssize_t at, ms_kind kind, ms_path path)
{
    if (tuple && PyTuple_Check(tuple) && at >= 0 && at < PyTuple_GET_SIZE(tuple))
        mst_claim_tensor_kind(PyTuple_GET_ITEM(tuple, at), kind, path);
}

void mst_claim_fsdp_gathered(PyObject *params, PyObject *result)
{
    if (intern_names())
        claim_item(result, 0, MS_KIND_ALL_GATHER, mst_fsdp_owner(params));
    mst_clear_error();
}

void mst_claim_fsdp_reducing(PyObject *params, PyObject *gradients)
{
    if (!intern_names() || !PyList_Check(params) || !PyList_Check(gradients))
        return;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(gradients) && i < PyList_GET_SIZE(params); i++)
        mst_claim_tensor_kind(PyList_GET_ITEM(gradients, i), MS_KIND_UNSHARDED_GRAD,
                              path_of_param(PyList_GET_ITEM(params, i)));
    mst_clear_error();
}

/* A gradient's shard is the local tensor of a DTensor. */
static void claim_sharded_gradient(PyObject *param, ms_path path)
{
    PyObject *sharded = attribute_of(param, names.sharded_param);
    PyObject *gradient = is_tensor(sharded) ? mst_gradient_object(sharded) : NULL;
    PyObject *local = gradient && gradient != Py_None ? attribute_of(gradient, names._local_tensor) : NULL;
    mst_claim_tensor_kind(local, MS_KIND_SHARDED_GRAD, path);
    Py_XDECREF(local);
    Py_XDECREF(gradient);
    Py_XDECREF(sharded);
}

/* In the result of foreach_reduce, from its end, as torch 2.12 added an item before them: what is reduced over the
 * copies of the model, and what is not reduced over them yet. */
enum { ALL_REDUCED = 3, REDUCED_PARTLY = 1 };

void mst_claim_fsdp_reduced(PyObject *params, PyObject *result)
{
    struct mst_torch_function_guard guard;
    if (!intern_names() || !PyList_Check(params))
        return;
    ms_path path = mst_fsdp_owner(params);
    Py_ssize_t length = result && PyTuple_Check(result) ? PyTuple_GET_SIZE(result) : 0;
    claim_item(result, 0, MS_KIND_REDUCE_SCATTER, path);
    claim_item(result, length - ALL_REDUCED, MS_KIND_ALL_REDUCE, path); /* before gradients, which may be views of it */
    claim_item(result, length - REDUCED_PARTLY, MS_KIND_SHARDED_GRAD, path);
    if (mst_torch_function_disable(&guard) == 0) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(params); i++)
            claim_sharded_gradient(PyList_GET_ITEM(params, i), path);
        mst_torch_function_restore(&guard);
    }
    mst_clear_error();
}

/* ---- everything, in a pass ---- */

static void claim_buffers(PyObject *group, ms_path path)
{
    PyObject *result = attribute_of(group, names._all_gather_result);
    claim_item(result, 0, MS_KIND_ALL_GATHER, path);
    claim_attribute(group, names._partial_reduce_output, MS_KIND_SHARDED_GRAD, path);
    Py_XDECREF(result);
}

static void claim_whole_param(PyObject *param, ms_path path)
{
    claim_sharded(param, path);
    claim_unsharded(param, path);
    claim_kept(param, path);
    uint64_t of_group = ms__map_get(&group_paths, (uintptr_t)param);
    ms_path shared = of_group != MS__MAP_NONE ? (ms_path)of_group : path;
    PyObject *sharded = attribute_of(param, names.sharded_param);
    PyObject *unsharded = attribute_of(param, names._unsharded_param);
    if (is_tensor(sharded))
        mst_claim_gradient_kind_of(sharded, shared, MS_KIND_SHARDED_GRAD);
    if (is_tensor(unsharded))
        mst_claim_gradient_kind_of(unsharded, path, MS_KIND_UNSHARDED_GRAD);
    Py_XDECREF(unsharded);
    Py_XDECREF(sharded);
}

static void claim_whole_group(PyObject *group)
{
    ms_path path = path_of_group(group);
    struct mst_torch_function_guard guard;
    PyObject *all_reduce = attribute_of(group, names._all_reduce_state);
    claim_item(all_reduce, 0, MS_KIND_ALL_REDUCE, path); /* before gradients, which may be views of it */
    if (all_reduce && mst_torch_function_disable(&guard) == 0) {
        visit_params(group, claim_sharded_gradient);
        mst_torch_function_restore(&guard);
    }
    Py_XDECREF(all_reduce);
    visit_params(group, claim_whole_param);
    claim_buffers(group, path);
}

/* The class FSDPModule, borrowed from its module; NULL if the program has not imported it. */
static PyTypeObject *fsdp_module_type(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *fsdp = modules ? PyDict_GetItemString(modules, "torch.distributed.fsdp") : NULL;
    PyObject *type = fsdp ? PyObject_GetAttrString(fsdp, "FSDPModule") : NULL;
    PyErr_Clear();
    Py_XDECREF(type);
    return type && PyType_Check(type) ? (PyTypeObject *)type : NULL;
}

void mst_claim_fsdp_modules(void)
{
    PyTypeObject *type = mst.ledger && mst.registry && intern_names() ? fsdp_module_type() : NULL;
    ms__map_clear(&group_paths);
    PyObject *found = type ? PyList_New(0) : NULL;
    for (size_t i = 0; found && i < mst.registry->count; i++) {
        const struct mst_module *known = mst.registry->all[i];
        if (mst_module_is_alive(known) && PyObject_TypeCheck(known->module, type))
            PyList_Append(found, known->module);
    }
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(found); i++) {
        PyObject *state = PyObject_CallMethodNoArgs(PyList_GET_ITEM(found, i), names._get_fsdp_state);
        if (state)
            visit_groups(state, claim_whole_group);
        Py_XDECREF(state);
        mst_clear_error();
    }
    Py_XDECREF(found);
    mst_clear_error();
}
