/* intercept_saved.c - the interception point of saved tensors: the ELF slots of SavedVariable's constructors.
 *
 * Autograd constructs a SavedVariable for each tensor that it keeps for backward. Blocks made outside any call are
 * MS_OTHER; those of them that are saved there become MS_ACTIVATION. Captures note every block that is saved. The
 * functions run on any thread, with or without the GIL. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"

#include "interpose/patch.h"

/* at::Tensor is a pointer to a TensorImpl. std::optional appends a bool. */
struct optional_tensor {
    uint64_t impl;
    bool has_value;
};

typedef void save_tensor(void *saved, const uint64_t *tensor, bool is_output, bool is_inplace_on_view);
typedef void save_optional(void *saved, const struct optional_tensor *tensor, bool is_output, bool is_inplace_on_view);

static save_tensor intercept_tensor, intercept_python_tensor;
static save_optional intercept_optional;

#define SAVE_TENSOR "_ZN5torch8autograd13SavedVariableC1ERKN2at6TensorEbb"
#define SAVE_OPTIONAL "_ZN5torch8autograd13SavedVariableC1ERKSt8optionalIN2at6TensorEEbb"

enum { TENSOR, OPTIONAL, PYTHON_TENSOR, SAVED_POINT_COUNT };

static struct saved_point {
    const char *library, *symbol;
    ms_elf_slot slot; /* slot.address is NULL until it is found */
    ms_patch patch;
} points[SAVED_POINT_COUNT] = {
    [TENSOR] = {"libtorch_cpu", SAVE_TENSOR, .patch = MS_PATCH_ELF_SLOT(intercept_tensor, &points[TENSOR].slot)},
    [OPTIONAL] = {"libtorch_cpu", SAVE_OPTIONAL,
                  .patch = MS_PATCH_ELF_SLOT(intercept_optional, &points[OPTIONAL].slot)},
    [PYTHON_TENSOR] = {"libtorch_python", SAVE_TENSOR,
                       .patch = MS_PATCH_ELF_SLOT(intercept_python_tensor, &points[PYTHON_TENSOR].slot)},
};

static _Atomic(ms_ledger *) saved_ledger; /* gets what is saved, or NULL */
static _Atomic uint64_t counted_saves;    /* while no ledger is set; see save_reaches_us */

/* What calls, nodes and optimizer steps make has its category already. */
static inline bool is_idle(void)
{
    return !mst_this_thread || ms_thread_phase(mst_this_thread) == MS_IDLE;
}

static void note_storage(ms_ledger *ledger, const struct mst_storage *storage, bool idle)
{
    uint64_t address = mst.by_dispatcher ? storage->storage : storage->data;
    if (idle)
        ms_block_saved(ledger, address);
    else
        ms_block_note_saved(ledger, address, storage->bytes > 0 ? (uint64_t)storage->bytes : 0);
}

/* Only captures want what is saved while the thread is not idle. */
HOT static void note_saved(uint64_t impl)
{
    struct mst_storage storage;
    ms_ledger *ledger = atomic_load_explicit(&saved_ledger, memory_order_acquire);
    bool idle = is_idle();
    if (!idle && !(ledger && ms_ledger_is_captured(ledger)))
        return;
    if (!ledger)
        atomic_fetch_add_explicit(&counted_saves, 1, memory_order_relaxed);
    else if (mst_read_storage(impl, &storage))
        note_storage(ledger, &storage, idle);
}

HOT static void intercept_tensor(void *saved, const uint64_t *tensor, bool is_output, bool is_inplace_on_view)
{
    note_saved(*tensor);
    ((save_tensor *)points[TENSOR].patch.previous)(saved, tensor, is_output, is_inplace_on_view);
}

static void intercept_python_tensor(void *saved, const uint64_t *tensor, bool is_output, bool is_inplace_on_view)
{
    note_saved(*tensor);
    ((save_tensor *)points[PYTHON_TENSOR].patch.previous)(saved, tensor, is_output, is_inplace_on_view);
}

HOT static void intercept_optional(void *saved, const struct optional_tensor *tensor, bool is_output,
                                   bool is_inplace_on_view)
{
    if (tensor->has_value)
        note_saved(tensor->impl);
    ((save_optional *)points[OPTIONAL].patch.previous)(saved, tensor, is_output, is_inplace_on_view);
}

/* ---- install and restore ---- */

/* Whether a saved tensor reaches us through the functions that replaced ours. */
static bool save_reaches_us(void)
{
    uint64_t before = atomic_load(&counted_saves);
    PyObject *result = mst_run_python(MST_PY_SAVE_ONE_TENSOR, NULL);
    Py_XDECREF(result);
    mst_clear_error();
    return atomic_load(&counted_saves) != before;
}

void mst_saved_intercept(ms_ledger *ledger)
{
    for (int i = 0; i < SAVED_POINT_COUNT; i++)
        if (mst.intercept_saved && ms_patch_install(&points[i].patch, save_reaches_us) != 0) {
            mst_saved_restore();
            return;
        }
    if (mst.intercept_saved)
        atomic_store(&saved_ledger, ledger);
}

void mst_saved_restore(void)
{
    atomic_store(&saved_ledger, NULL);
    for (int i = 0; i < SAVED_POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
}

/* ---- from Python ---- */
static PyObject *find_saved_slots(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < SAVED_POINT_COUNT; i++) {
        struct saved_point *point = &points[i];
        int error = point->slot.address ? 0 : ms_elf_slot_find(point->library, point->symbol, &point->slot);
        if (error)
            return PyUnicode_FromFormat("no slot of SavedVariable's constructor in %s (error %d)", point->library,
                                        error);
    }
    Py_RETURN_NONE;
}

static PyObject *set_saved_interception(PyObject *self, PyObject *on)
{
    (void)self;
    mst.intercept_saved = on == Py_True;
    Py_RETURN_NONE;
}

static PyObject *saved_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < SAVED_POINT_COUNT; i++)
        if (points[i].slot.address && ms_patch_is_installed(&points[i].patch))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

PyMethodDef mst_intercept_saved_methods[] = {
    {"find_saved_slots", find_saved_slots, METH_NOARGS,
     "Find the slots through which autograd saves tensors; None, or why they were not found."},
    {"set_saved_interception", set_saved_interception, METH_O,
     "Whether the next ledgers intercept saved tensors. The slots must have been found."},
    {"saved_intercepted", saved_intercepted, METH_NOARGS, "Whether saved tensors are intercepted now."},
    {NULL, NULL, 0, NULL},
};
