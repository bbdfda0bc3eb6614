/* gradient_claims.c - claim the gradients of parameters.
 *
 * Where backward nodes are intercepted, each AccumulateGrad node claims its leaf's new gradient.
 * Elsewhere parameters get a post-accumulate hook, which is a C function. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/claims/claims.h"
#include "torch/process/process.h"
#include "torch/ranks/ranks.h"

/* ---- whether another thread may be setting or deleting the attribute `grad` of a tensor.
 *
 * torch frees the old gradient there without the GIL, before the leaf refers to the new one. Until it has the
 * GIL again, the leaf refers to freed memory. torch runs no Python meanwhile, so the innermost function of such a
 * thread has "grad" among its names, or among its constants if it uses setattr(). ---- */

static bool has_grad(PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "grad") == 0)
            return true;
    }
    return false;
}

static bool may_set_gradient(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    if (!frame)
        return false;
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool found = has_grad(code->co_names) || has_grad(code->co_consts);
    Py_DECREF(code);
    Py_DECREF(frame);
    return found;
}

static bool sets_at_fork;       /* while a fork is under way: another thread sets a gradient */
static bool unfinished_at_fork; /* in a child: a thread that does not exist here was replacing a gradient */

void mst_gradient_setters_before_fork(void)
{
    sets_at_fork = mst.ledger && PyGILState_Check() && mst_other_thread_may_set_gradient();
}

void mst_gradient_setters_forked(bool accumulating)
{
    unfinished_at_fork |= sets_at_fork || accumulating;
}

bool mst_other_thread_may_set_gradient(void)
{
    if (unfinished_at_fork)
        return true;
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    while (thread && (thread == here || !may_set_gradient(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}

/* ---- claims ---- */

static bool begun_unseen;        /* accumulations may run that began before the ledger was attached */
static PyObject *gradient_hooks; /* a dict: a parameter's TensorImpl -> its hook's handle; NULL: none */

HOT void mst_claim_new_gradient(uint64_t grad, ms_path path, ms_kind kind)
{
    struct mst_storage storage;
    ms_ledger *ledger = atomic_load_explicit(&mst.gradients_ledger, memory_order_acquire);
    if (!ledger || !mst_read_storage(grad, &storage))
        return;
    uint64_t address = mst.by_dispatcher ? storage.storage : storage.data;
    if (UNLIKELY(kind != MS_KIND_NONE))
        ms_block_claim_kind(ledger, address, kind, path);
    else
        ms_block_claim(ledger, address, MS_GRADIENT, path);
}

void mst_gradients_begin(void)
{
    begun_unseen = true;
}

/* ---- a gradient is read only while no other thread can replace it ---- */

/* When a gradient is read. */
enum moment {
    IN_PASS,    /* when all known objects are read */
    AT_STEP,    /* at an optimizer step of this thread */
    ACCUMULATED /* this thread has accumulated it right now */
};

static bool runs_backward(PyThreadState *thread)
{
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    bool found = false;
    while (frame && !found) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        found = code == mst.torch.backward_code;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_SETREF(frame, back);
    }
    Py_XDECREF(frame);
    return found;
}

/* Whether a thread of Python is in a backward. The own thread counts where other threads run its nodes. */
static bool any_thread_runs_backward(bool own)
{
    PyThreadState *here = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(here));
    while (thread && ((thread == here && !own) || !runs_backward(thread)))
        thread = PyThreadState_Next(thread);
    return thread != NULL;
}

static bool is_on_cpu(PyObject *tensor)
{
    struct mst_storage storage;
    return !mst_layout_is_known() || !mst_read_storage(mst_impl_of(tensor), &storage) || storage.device_type == MST_CPU;
}

/* Whether every accumulation that runs now is known, by mst_accumulation_begin. */
static bool accumulations_are_known(PyObject *parameter)
{
    bool intercepted = mst.intercept_nodes && mst.layout.variable >= 0 && mst.accumulate_vtable;
    if (intercepted && !begun_unseen)
        return true;
    if (!intercepted && mst_other_threads_run_python())
        return false; /* The hooks claim what is accumulated. */
    if (any_thread_runs_backward(!is_on_cpu(parameter)))
        return false;
    begun_unseen = false; /* A backward that begins from now on is seen. */
    return true;
}

/* Take the owners' lock, so that no accumulation begins. False, without the lock, if the gradient must not be read.
 *
 * The GIL does not guard the gradients of a thread that trains. When `p.grad = None` frees a gradient, torch releases
 * the GIL while `p` still points to it, and not even torch can read it then. So nothing is read where other threads
 * train, except by the optimizer step that is about to read it; each accumulation has claimed its gradient. */
static bool lock_gradient(PyObject *parameter, enum moment moment)
{
    if (!accumulations_are_known(parameter) || (moment != AT_STEP && mst_other_threads_train()) ||
        mst_other_thread_may_set_gradient())
        return false;
    mst_owners_lock();
    if (!mst_accumulates_elsewhere(mst_impl_of(parameter)))
        return true;
    mst_owners_unlock();
    return false;
}

/* Needs no Python. False if that is not possible. With the owners' lock. */
static bool claim_gradient_in_place(PyObject *parameter, bool wrapper, ms_path path)
{
    if (mst.layout.grad < 0)
        return false;
    uint64_t grad = mst_grad_of(mst_impl_of(parameter));
    if (!grad)
        return true;
    if (mst.by_dispatcher || wrapper || !mst_read_word(grad, mst.layout.storage))
        return false;
    mst_claim_impl(grad, MS_GRADIENT, path);
    return true;
}

/* torch's own descriptor runs no Python while __torch_function__ is disabled and
 * the garbage collector is paused, so the caller may have the owners' lock. */
PyObject *mst_gradient_object(PyObject *parameter)
{
    descrgetfunc get = mst.torch.grad ? Py_TYPE(mst.torch.grad)->tp_descr_get : NULL;
    return get ? get(mst.torch.grad, parameter, (PyObject *)Py_TYPE(parameter)) : NULL;
}

/* Take the owners' lock, unless this thread has accumulated the gradient right now. False: do not read it. */
static bool begin_reading(PyObject *parameter, enum moment moment)
{
    if (moment == ACCUMULATED || lock_gradient(parameter, moment))
        return true;
    if (moment == IN_PASS)
        ms_claims_keep(mst_target_ledger(), MS_GRADIENT);
    return false;
}

static void end_reading(enum moment moment)
{
    if (moment != ACCUMULATED)
        mst_owners_unlock();
}

/* With a kind, or MS_KIND_NONE. */
static void claim_gradient_object(PyObject *parameter, ms_path path, ms_kind kind, enum moment moment)
{
    struct mst_torch_function_guard guard;
    if (mst_torch_function_disable(&guard) != 0) {
        mst_clear_error();
        return;
    }
    PyObject *grad = NULL;
    bool gc_enabled = mst_gc_pause();
    if (begin_reading(parameter, moment)) {
        grad = mst_gradient_object(parameter);
        end_reading(moment);
    }
    mst_gc_resume(gc_enabled);
    if (grad && grad != Py_None && PyObject_TypeCheck(grad, mst.torch.tensor)) {
        if (kind)
            mst_claim_tensor_kind(grad, kind, path);
        else
            mst_claim_tensor(grad, MS_GRADIENT, path);
    }
    Py_XDECREF(grad);
    mst_clear_error();
    mst_torch_function_restore(&guard);
}

static void claim_gradient(PyObject *parameter, ms_path path, enum moment moment)
{
    bool wrapper = mst_is_wrapper_subclass(parameter);
    if (!begin_reading(parameter, moment))
        return;
    bool done = claim_gradient_in_place(parameter, wrapper, path);
    end_reading(moment);
    if (!done)
        claim_gradient_object(parameter, path, MS_KIND_NONE, moment);
}

void mst_claim_gradient_of(PyObject *parameter, ms_path path)
{
    claim_gradient(parameter, path, IN_PASS);
}

void mst_claim_gradient_kind_of(PyObject *parameter, ms_path path, ms_kind kind)
{
    claim_gradient_object(parameter, path, kind, IN_PASS);
}

void mst_claim_gradient_at_step(PyObject *parameter, ms_path path)
{
    bool wrapper = mst_is_wrapper_subclass(parameter);
    if (!lock_gradient(parameter, AT_STEP))
        return;
    uint64_t grad = mst_grad_of(mst_impl_of(parameter));
    bool done = mst.layout.grad >= 0 && (!grad || (!wrapper && mst_claim_unheld(grad, MS_GRADIENT, path)));
    mst_owners_unlock();
    if (!done)
        claim_gradient_object(parameter, path, MS_KIND_NONE, AT_STEP);
}

/* ---- hooks, where nodes are not intercepted ---- */
static PyObject *after_accumulation(PyObject *self, PyObject *parameter)
{
    (void)self;
    ms_path path = MS_GLOBAL;
    if (mst.ledger && PyObject_TypeCheck(parameter, mst.torch.tensor) && mst_owner_find(mst_impl_of(parameter), &path))
        claim_gradient(parameter, path, ACCUMULATED);
    Py_RETURN_NONE;
}

static PyMethodDef after_accumulation_def = {"after_accumulation", after_accumulation, METH_O, NULL};

void mst_gradient_hook_register(PyObject *parameter)
{
    if (mst.intercept_nodes || (!gradient_hooks && !(gradient_hooks = PyDict_New())))
        return;
    PyObject *key = PyLong_FromUnsignedLongLong(mst_impl_of(parameter));
    if (key && !PyDict_Contains(gradient_hooks, key)) {
        PyObject *hook = PyCFunction_New(&after_accumulation_def, NULL);
        PyObject *handle =
            hook ? PyObject_CallMethod(parameter, "register_post_accumulate_grad_hook", "O", hook) : NULL;
        if (handle)
            PyDict_SetItem(gradient_hooks, key, handle);
        Py_XDECREF(handle);
        Py_XDECREF(hook);
    }
    Py_XDECREF(key);
    mst_clear_error(); /* A parameter that requires no gradient accepts no hook. */
}

void mst_gradient_hooks_remove(void)
{
    PyObject *handles = gradient_hooks ? PyDict_Values(gradient_hooks) : NULL;
    mst_remove_hooks(&handles);
    Py_CLEAR(gradient_hooks);
}
