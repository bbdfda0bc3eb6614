/* module_claims.c - claim the parameters, buffers and gradients that modules hold. */
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

/* What is claimed, in this order. A block that is several of these gets the category of the last claim, and
 * the pass over gradients records the owners of parameters for the passes after it. */
enum kind { GRADIENTS, BUFFERS, PARAMETERS, KIND_COUNT };

static void claim_kind(PyObject *tensor, int kind, ms_path path)
{
    if (kind == GRADIENTS) {
        path = mst_owner_add(mst_impl_of(tensor), path);
        mst_gradient_hook_register(tensor);
        mst_claim_gradient_of(tensor, path);
    } else if (kind == BUFFERS) {
        mst_claim_tensor(tensor, MS_BUFFER, path);
    } else {
        mst_owner_find(mst_impl_of(tensor), &path);
        mst_claim_tensor(tensor, MS_PARAMETER, path);
    }
}

static PyObject *tensors_of(PyObject *module, int kind)
{
    return mst_module_dict(module, kind == BUFFERS ? mst.interned._buffers : mst.interned._parameters);
}

/* A TorchScript module keeps its tensors elsewhere, and the modules in it are not known to the registry. */
static bool is_script_module(PyObject *module)
{
    PyObject *own = mst_module_dict(module, NULL);
    PyObject *tensors = own ? PyDict_GetItemWithError(own, mst.interned._parameters) : NULL;
    return !tensors || !PyDict_Check(tensors);
}

void mst_claim_module(struct mst_module *known)
{
    if (mst.by_dispatcher || !mst_layout_is_known()) {
        mst.claims.due = true;
        return;
    }
    /* Registering a gradient hook may run Python, which may drop the module and its tensors: both are owned here. */
    PyObject *module = Py_NewRef(known->module);
    mst.claims.due |= is_script_module(module);
    ms_path path = mst_path_of_module(known);
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        PyObject *dict = tensors_of(module, kind), *tensors = dict ? PyDict_Values(dict) : NULL;
        for (Py_ssize_t i = 0; tensors && i < PyList_GET_SIZE(tensors); i++) {
            PyObject *tensor = PyList_GET_ITEM(tensors, i);
            if (!PyObject_TypeCheck(tensor, mst.torch.tensor))
                continue;
            if (mst_is_wrapper_subclass(tensor))
                mst.claims.due = true;
            else
                claim_kind(tensor, kind, path);
        }
        Py_XDECREF(tensors);
    }
    Py_DECREF(module);
    mst_clear_error();
}

/* What is to be claimed. The list is made before anything is claimed, because claiming may run
 * Python, which may change the modules. */
struct held_object {
    PyObject *object; /* a tensor or a TorchScript module; owned */
    ms_path path;
};

struct held_list {
    struct held_object *objects;
    size_t count, room;
};

static bool append_held(struct held_list *list, PyObject *object, ms_path path)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 256;
        struct held_object *objects = PyMem_Realloc(list->objects, room * sizeof *objects);
        if (!objects)
            return false;
        list->objects = objects;
        list->room = room;
    }
    list->objects[list->count++] = (struct held_object){Py_NewRef(object), path};
    return true;
}

static void claim_script_module(PyObject *module, int kind, ms_path path)
{
    PyObject *found = PyObject_CallMethod(module, kind == BUFFERS ? "buffers" : "parameters", NULL);
    PyObject *tensors = found ? PySequence_List(found) : NULL;
    for (Py_ssize_t i = 0; tensors && i < PyList_GET_SIZE(tensors); i++)
        if (PyObject_TypeCheck(PyList_GET_ITEM(tensors, i), mst.torch.tensor))
            claim_kind(PyList_GET_ITEM(tensors, i), kind, path);
    Py_XDECREF(tensors);
    Py_XDECREF(found);
    mst_clear_error();
}

static void claim_held_object(PyObject *object, int kind, ms_path path)
{
    if (PyObject_TypeCheck(object, mst.torch.module))
        claim_script_module(object, kind, path);
    else
        claim_kind(object, kind, path);
}

/* List what the modules hold that have an fqn, or those that do not: modules that were built and never called. */
static void list_held_by(struct held_list *list, int kind, bool named)
{
    for (size_t i = 0; i < mst.registry->count; i++) {
        struct mst_module *known = mst.registry->all[i];
        if ((known->fqn != NULL) != named)
            continue;
        if (mst_module_is_alive(known) && is_script_module(known->module) &&
            !append_held(list, known->module, mst_path_of_module(known)))
            return;
        PyObject *tensors = mst_module_is_alive(known) ? tensors_of(known->module, kind) : NULL, *key, *tensor;
        ms_path path = tensors && PyDict_GET_SIZE(tensors) ? mst_path_of_module(known) : MS_GLOBAL;
        Py_ssize_t position = 0;
        while (tensors && PyDict_Next(tensors, &position, &key, &tensor))
            if (PyObject_TypeCheck(tensor, mst.torch.tensor) && !append_held(list, tensor, path))
                return;
    }
}

/* A module that was called owns a tensor that several modules hold. A parameter belongs to the first in the list,
 * a buffer to the last. */
static void list_held(struct held_list *list, int kind)
{
    list_held_by(list, kind, kind != BUFFERS);
    list_held_by(list, kind, kind == BUFFERS);
}

void mst_claim_modules(void)
{
    if (!mst.ledger || !mst.registry)
        return;
    PyObject *callback = mst_dynamo_disable();
    struct mst_torch_function_guard guard;
    bool disabled = mst_torch_function_disable(&guard) == 0;
    PyErr_Clear();
    mst.claims.due = mst.claims.awaiting_memory = false;
    mst_owners_clear();
    bool gc_enabled = mst_gc_pause();
    mst_name_new_children(mst.registry);
    mst_gc_resume(gc_enabled);
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct held_list list = {0};
        gc_enabled = mst_gc_pause();
        list_held(&list, kind);
        mst_gc_resume(gc_enabled);
        for (size_t i = 0; i < list.count; i++) {
            claim_held_object(list.objects[i].object, kind, list.objects[i].path);
            Py_DECREF(list.objects[i].object);
        }
        PyMem_Free(list.objects);
    }
    mst_claim_fsdp_modules();
    mst_claim_pipeline_stages();
    if (disabled)
        mst_torch_function_restore(&guard);
    mst_dynamo_restore(callback);
}
