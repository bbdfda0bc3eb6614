/* intercept_nodes.c - the interception point of backward nodes: the ELF slot of Engine::evaluate_function.
 *
 * It runs on any thread, without the GIL. A C++ exception may pass through intercept_node,
 * so this file is compiled with -fexceptions. The Python side verifies where a node keeps
 * its number and the thread that created it (mst.node_layout). */
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/claims/claims.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

#include "interpose/patch.h"

#define EVALUATE_FUNCTION "_ZN5torch8autograd6Engine17evaluate_function"

typedef void evaluate_function(void *engine, void *task, void *node, void *inputs, void *queue);
static evaluate_function intercept_node;

static ms_elf_slot node_slot;
static ms_patch node_patch = MS_PATCH_ELF_SLOT(intercept_node, &node_slot);
static _Atomic int tracking;           /* nodes are reported to the watch */
static _Atomic int counting;           /* nodes are counted, to verify that they reach us */
static _Atomic uint64_t counted_nodes; /* while `counting` */

/* A node that runs on this thread. */
struct running_node {
    ms_thread *thread;                    /* NULL: the node was not entered */
    const void *outer;                    /* the node around it on this thread, or NULL */
    bool accumulates;                     /* it accumulates a leaf's gradient */
    struct mst_accumulation accumulation; /* only if `accumulates` */
};

HOT static void leave_node(struct running_node *running)
{
    if (!running->thread)
        return;
    if (UNLIKELY(running->accumulates))
        mst_accumulation_end(&running->accumulation);
    mst_running_node = running->outer;
    ms_node_leave(running->thread, mst.torch.next_node_number());
}

/* A node without a number accumulates a leaf's gradient: it belongs to the leaf's owner. */
HOT static void enter_accumulation(struct running_node *running, ms_thread *thread, const void *node)
{
    bool has_leaf = mst.layout.variable >= 0 && mst_node_word(node, 0) == mst.accumulate_vtable;
    uint64_t leaf = has_leaf && atomic_load_explicit(&mst.gradients_ledger, memory_order_relaxed)
                        ? mst_node_word(node, mst.layout.variable)
                        : 0;
    if (leaf) {
        running->accumulates = true;
        running->accumulation.thread = thread;
        running->accumulation.leaf = leaf;
        mst_accumulation_begin(&running->accumulation);
    }
    if (leaf && running->accumulation.owned) {
        ms_node_enter_as(thread, running->accumulation.owner, mst.torch.next_node_number());
    } else {
        ms_node_enter(thread, mst_node_word(node, mst.node_layout.thread), MS_NO_NUMBER, mst.torch.next_node_number());
    }
}

HOT static void intercept_node(void *engine, void *task, void *node, void *inputs, void *queue)
{
    struct running_node running __attribute__((cleanup(leave_node)));
    running.thread = NULL;
    running.accumulates = false;
    if (atomic_load_explicit(&tracking, memory_order_relaxed)) {
        ms_thread *thread = mst_thread_here();
        if (LIKELY(thread != NULL)) {
            uint64_t number = mst_node_word(node, mst.node_layout.number);
            if (LIKELY(number != MS_NO_NUMBER))
                ms_node_enter(thread, mst_node_word(node, mst.node_layout.thread), number,
                              mst.torch.next_node_number());
            else
                enter_accumulation(&running, thread, node);
            running.thread = thread;
            running.outer = mst_running_node;
            mst_running_node = node;
        }
    }
    if (UNLIKELY(atomic_load_explicit(&counting, memory_order_relaxed)))
        atomic_fetch_add_explicit(&counted_nodes, 1, memory_order_relaxed);
    ((evaluate_function *)node_patch.previous)(engine, task, node, inputs, queue);
}

/* Whether a node reaches us through the functions that replaced ours. */
static bool node_reaches_us(void)
{
    uint64_t before = atomic_load(&counted_nodes);
    atomic_store(&counting, 1);
    PyObject *result = mst_run_python(MST_PY_RUN_ONE_NODE, NULL);
    atomic_store(&counting, 0);
    Py_XDECREF(result);
    mst_clear_error();
    return atomic_load(&counted_nodes) != before;
}

int mst_nodes_intercept(void)
{
    int error = ms_patch_install(&node_patch, node_reaches_us);
    if (error) {
        PyErr_Format(PyExc_RuntimeError, "the slot of Engine::evaluate_function cannot be written (error %d)", error);
        return -1;
    }
    atomic_store(&tracking, 1);
    return 0;
}

void mst_nodes_restore(void)
{
    atomic_store(&tracking, 0);
    ms_patch_restore(&node_patch);
}

/* ---- from Python ---- */
static PyObject *find_node_slot(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (!mst.torch.next_node_number || !mst.torch.thread_id)
        return PyUnicode_FromString("torch does not export its sequence numbers or thread ids");
    int error = ms_elf_slot_find("libtorch_cpu", EVALUATE_FUNCTION, &node_slot);
    if (error)
        return PyUnicode_FromFormat("no slot of Engine::evaluate_function in libtorch_cpu (error %d)", error);
    Py_RETURN_NONE;
}

static PyObject *nodes_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(node_slot.address && ms_patch_is_installed(&node_patch));
}

PyMethodDef mst_intercept_nodes_methods[] = {
    {"find_node_slot", find_node_slot, METH_NOARGS,
     "Find the slot through which backward nodes run; None, or why it was not found."},
    {"nodes_intercepted", nodes_intercepted, METH_NOARGS, "Whether backward nodes are intercepted now."},
    {NULL, NULL, 0, NULL},
};
