/* claims_at_call.c - the claims that are made when calls begin.
 *
 * Modules are claimed when they are first known. At a root call they are claimed again if some
 * of their parameters had no memory yet, or if the memory of a parameter or buffer was freed. A recording also does so
 * at some root calls to tell root modules apart that are not called, while the variables that hold them exist. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

static uint64_t parameters_dropped; /* ms_ledger_parameters_dropped at the latest root call */
static bool seeking;                /* for a recording: look for what is not known by calls */
static bool optimizer_found;        /* micro-batches are distinguished from training steps */
static bool optimizers_counted;     /* when the first of them stepped */
static uint32_t root_calls;         /* with grad mode on, since `seeking` was set */

void mst_claims_at_call_begin(void)
{
    parameters_dropped = ms_ledger_parameters_dropped(mst_target_ledger());
    mst_pipeline_forget();
}

void mst_claims_seek(bool seek)
{
    seeking = seek;
    optimizer_found = optimizers_counted = false;
    root_calls = 0;
}

/* The program may create its optimizer, or a copy of its model, late, and the searches are slow. So they run at the
 * 1st, 2nd, 4th, 8th, ... root call with grad mode on; the others begin no step. */
static void seek_unknown(void)
{
    root_calls++;
    if (LIKELY(root_calls & (root_calls - 1)))
        return;
    bool held = mst_signals_hold(); /* An interrupt's traceback must not show our Python code. */
    PyObject *callback = mst_dynamo_disable();
    PyObject *found = optimizer_found ? NULL : mst_run_python(MST_PY_LIST_OPTIMIZED, NULL);
    if (found && PyList_Check(found) && PyList_GET_SIZE(found) > 0) {
        optimizer_found = true;
        ms_ledger_expect_optimizer(mst_target_ledger());
    }
    Py_XDECREF(found);
    mst_clear_error();
    Py_XDECREF(mst_run_python(MST_PY_NAME_UNCALLED, NULL));
    mst_clear_error();
    mst_dynamo_restore(callback);
    if (mst_signals_release(held) != 0)
        mst_clear_error();
    mst.claims.due = true;
}

/* An optimizer of a model that the program no longer uses may still be alive, and never steps: it does not count. */
void mst_expect_optimizers(void)
{
    if (!seeking || optimizers_counted)
        return;
    optimizers_counted = true;
    PyObject *first = mst_run_python(MST_PY_LIST_OPTIMIZED, NULL);
    uint32_t count = 0;
    for (Py_ssize_t i = 0; first && PyList_Check(first) && i < PyList_GET_SIZE(first); i++) {
        ms_path owner;
        PyObject *parameter = PyList_GET_ITEM(first, i);
        count += PyObject_TypeCheck(parameter, mst.torch.tensor) && mst_owner_find(mst_impl_of(parameter), &owner);
    }
    Py_XDECREF(first);
    mst_clear_error();
    ms_ledger_expect_optimizers(mst_target_ledger(), count);
}

HOT void mst_claim_at_call(ms_thread *thread, bool without_grad)
{
    mst_optimizer_steps_end_abandoned(thread);
    if (!mst_open_call) {
        mst_thread_trains();
        mst_fsdp_intercept();
        mst_collectives_name_groups();
        mst_pipeline_at_root_call();
        uint64_t dropped = ms_ledger_parameters_dropped(mst_target_ledger());
        if (mst.claims.awaiting_memory || dropped != parameters_dropped)
            mst.claims.due = true;
        parameters_dropped = dropped;
        if (seeking && !without_grad)
            seek_unknown();
    }
    if (UNLIKELY(mst.claims.due))
        mst_claim_modules();
}
