/* intercept_created_nodes.c - the interception point of nodes that are created: the ELF slots through which torch takes
 * the number of a new node. While stacks are read, the watch learns the stack that creates each node, so that what
 * backward allocates has its line of the forward.
 *
 * It runs on any thread, with or without the GIL. Nodes that other libraries create (C++ extensions) are not seen. */
#include "interpose/patch.h"
#include "torch/api/api.h"
#include "torch/calls/calls.h"
#include "torch/lines/lines.h"
#include "torch/process/process.h"

#define TAKE_NUMBER "_ZN2at15sequence_number17get_and_incrementEv"

typedef uint64_t take_number(void);
static take_number intercept_number, intercept_python_number;

enum { TORCH, PYTHON, NUMBER_POINT_COUNT };

static struct number_point {
    const char *library;
    ms_elf_slot slot; /* slot.address is NULL until it is found */
    ms_patch patch;
    _Atomic uint64_t counted; /* numbers while no stacks are read; see number_reaches_us */
} points[NUMBER_POINT_COUNT] = {
    [TORCH] = {"libtorch_cpu", .patch = MS_PATCH_ELF_SLOT(intercept_number, &points[TORCH].slot)},
    [PYTHON] = {"libtorch_python", .patch = MS_PATCH_ELF_SLOT(intercept_python_number, &points[PYTHON].slot)},
};

static bool usable;    /* found and verified */
static bool installed; /* and not restored yet */

static inline uint64_t note_number(struct number_point *point, uint64_t number)
{
    if (LIKELY(atomic_load_explicit(&mst_stack_depth, memory_order_relaxed))) {
        ms_thread *thread = mst_thread_here();
        if (LIKELY(thread != NULL))
            ms_node_created(thread, number, mst_frames_stack());
    } else {
        atomic_fetch_add_explicit(&point->counted, 1, memory_order_relaxed);
    }
    return number;
}

HOT static uint64_t intercept_number(void)
{
    return note_number(&points[TORCH], ((take_number *)points[TORCH].patch.previous)());
}

HOT static uint64_t intercept_python_number(void)
{
    return note_number(&points[PYTHON], ((take_number *)points[PYTHON].patch.previous)());
}

/* ---- install and restore ---- */

/* Whether a new node reaches us through the functions that replaced ours. The two points are installed one after the
 * other, so each counts for itself. */
static bool number_reaches(struct number_point *point)
{
    uint32_t depth = atomic_exchange(&mst_stack_depth, 0);
    uint64_t before = atomic_load(&point->counted);
    PyObject *result = mst_run_python(MST_PY_CREATE_NODES, NULL);
    Py_XDECREF(result);
    mst_clear_error();
    atomic_store(&mst_stack_depth, depth);
    return atomic_load(&point->counted) != before;
}

static bool torchs_number_reaches_us(void)
{
    return number_reaches(&points[TORCH]);
}

static bool pythons_number_reaches_us(void)
{
    return number_reaches(&points[PYTHON]);
}

void mst_created_nodes_intercept(void)
{
    if (!usable || installed)
        return;
    installed = true;
    if (ms_patch_install(&points[TORCH].patch, torchs_number_reaches_us) != 0 ||
        ms_patch_install(&points[PYTHON].patch, pythons_number_reaches_us) != 0)
        mst_created_nodes_restore();
}

void mst_created_nodes_restore(void)
{
    for (int i = 0; installed && i < NUMBER_POINT_COUNT; i++)
        ms_patch_restore(&points[i].patch);
    installed = false;
}

/* ---- from Python ---- */
static PyObject *find_number_slots(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < NUMBER_POINT_COUNT; i++) {
        struct number_point *point = &points[i];
        int error = point->slot.address ? 0 : ms_elf_slot_find(point->library, TAKE_NUMBER, &point->slot);
        if (error)
            return PyUnicode_FromFormat("no slot of at::sequence_number in %s (error %d)", point->library, error);
    }
    Py_RETURN_NONE;
}

static PyObject *set_created_interception(PyObject *self, PyObject *on)
{
    (void)self;
    usable = on == Py_True;
    Py_RETURN_NONE;
}

static PyObject *created_intercepted(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    for (int i = 0; i < NUMBER_POINT_COUNT; i++)
        if (points[i].slot.address && ms_patch_is_installed(&points[i].patch))
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *created_node_stack(PyObject *self, PyObject *argument)
{
    (void)self;
    uint64_t number = PyLong_AsUnsignedLongLong(argument);
    ms_thread *thread = PyErr_Occurred() ? NULL : mst_thread_here();
    if (!thread)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    return mst_stack_list(ms_node_stack(thread, mst.torch.thread_id ? mst.torch.thread_id() : 0, number));
}

PyMethodDef mst_created_nodes_methods[] = {
    {"find_number_slots", find_number_slots, METH_NOARGS,
     "Find the slots through which torch numbers new nodes; None, or why they were not found."},
    {"set_created_interception", set_created_interception, METH_O,
     "Whether new nodes are intercepted when stacks are read next. The slots must have been found."},
    {"created_intercepted", created_intercepted, METH_NOARGS, "Whether new nodes are intercepted now."},
    {"created_node_stack", created_node_stack, METH_O,
     "The frames of the stack that created the node of this thread with this number, innermost first."},
    {NULL, NULL, 0, NULL},
};
