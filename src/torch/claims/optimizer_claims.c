/* optimizer_claims.c - claim the state of an optimizer, and the gradients of its parameters. */
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/names/names.h"
#include "torch/process/process.h"

/* ---- parameters ---- */

/* Called for each parameter of an optimizer, with its owner. Returns whether it was left out. */
typedef bool visit_parameter(PyObject *parameter, bool owned, ms_path owner);

static bool visit_group(PyObject *group, visit_parameter *visit)
{
    bool left_out = false;
    PyObject *params = PyDict_Check(group) ? PyDict_GetItemWithError(group, mst.interned.params) : NULL;
    if (!params || !PyList_Check(params))
        return false;
    Py_INCREF(params);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(params); i++) {
        PyObject *parameter = PyList_GET_ITEM(params, i);
        if (!PyObject_TypeCheck(parameter, mst.torch.tensor))
            continue;
        ms_path owner = MS_GLOBAL;
        bool owned = mst_owner_find(mst_impl_of(parameter), &owner);
        Py_INCREF(parameter);
        left_out |= visit(parameter, owned, owner);
        Py_DECREF(parameter);
    }
    Py_DECREF(params);
    return left_out;
}

/* Returns whether a parameter was left out. A visit may run Python, which may change the lists. So their sizes are read
 * again for each item. */
static bool visit_parameters(PyObject *optimizer, visit_parameter *visit)
{
    bool left_out = false;
    PyObject *groups = PyObject_GetAttr(optimizer, mst.interned.param_groups);
    for (Py_ssize_t i = 0; groups && PyList_Check(groups) && i < PyList_GET_SIZE(groups); i++) {
        PyObject *group = Py_NewRef(PyList_GET_ITEM(groups, i));
        left_out |= visit_group(group, visit);
        Py_DECREF(group);
    }
    Py_XDECREF(groups);
    mst_clear_error();
    return left_out;
}

/* A parameter that no known module holds belongs to MS_GLOBAL, and so does its gradient. */
static void claim_unowned_parameter(PyObject *parameter, bool owned, ms_path owner)
{
    if (!owned && !mst_is_wrapper_subclass(parameter))
        mst_claim_unheld(mst_impl_of(parameter), MS_PARAMETER, owner);
}

static bool claim_unowned(PyObject *parameter, bool owned, ms_path owner)
{
    claim_unowned_parameter(parameter, owned, owner);
    if (!owned)
        mst_claim_gradient_of(parameter, owner);
    return owned;
}

static bool claim_owned_gradient(PyObject *parameter, bool owned, ms_path owner)
{
    if (owned)
        mst_claim_gradient_at_step(parameter, owner);
    return !owned;
}

static bool claim_any_gradient(PyObject *parameter, bool owned, ms_path owner)
{
    claim_unowned_parameter(parameter, owned, owner);
    mst_claim_gradient_at_step(parameter, owner);
    return false;
}

/* Wrapper subclasses are read only when a step begins, because Python runs for each of them. */
static bool claim_gradient_at_end(PyObject *parameter, bool owned, ms_path owner)
{
    (void)owned;
    bool wrapper = mst_is_wrapper_subclass(parameter);
    if (!wrapper)
        mst_claim_gradient_at_step(parameter, owner);
    return wrapper;
}

/* FSDP gives its modules other parameters while they run, so the owners of some parameters may not be known yet.
 * They are looked for once, and again when there are more modules. */
static void find_owners(void)
{
    if (!mst.registry || mst.registry->owners_found_for == mst.registry->count)
        return;
    mst_claim_modules();
    if (mst.registry)
        mst.registry->owners_found_for = mst.registry->count;
}

void mst_claim_gradients_at_step(PyObject *optimizer, bool begins)
{
    if (!mst.ledger)
        return;
    bool left_out = visit_parameters(optimizer, begins ? claim_owned_gradient : claim_gradient_at_end);
    if (begins && left_out) {
        find_owners();
        visit_parameters(optimizer, claim_any_gradient);
    }
}

/* ---- state ---- */

void mst_claim_optimizer(PyObject *optimizer)
{
    PyObject *state = mst.ledger ? PyObject_GetAttr(optimizer, mst.interned.state) : NULL;
    PyObject *items = state && PyDict_Check(state) ? PyDict_Items(state) : NULL;
    for (Py_ssize_t i = 0; items && i < PyList_GET_SIZE(items); i++) {
        PyObject *parameter = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0);
        ms_path owner = MS_GLOBAL;
        if (PyObject_TypeCheck(parameter, mst.torch.tensor))
            mst_owner_find(mst_impl_of(parameter), &owner);
        mst_claim_object(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1), MS_OPTSTATE, owner);
    }
    Py_XDECREF(items);
    Py_XDECREF(state);
    mst_clear_error();
}

void mst_claim_unowned_parameters(PyObject *optimizer)
{
    if (mst.ledger)
        visit_parameters(optimizer, claim_unowned);
}
