/* nodes.c - the place of backward nodes: the slot of Engine::evaluate_function.
 *
 * Runs on any thread, without the GIL. A C++ exception passes through node_place, which
 * is why this file is compiled with -fexceptions. Where a node keeps its number and its
 * maker is not the same in every torch: it is learned (see _layout.py) and proved. */
#include "torch/memory.h"

#include "interpose/slot.h"

#define EVALUATE "_ZN5torch8autograd6Engine17evaluate_function"
enum { NODE_BYTES = 128 }; /* every Node is larger than this */

typedef void evaluate(void *engine, void *task, void *node, void *inputs, void *queue);

static ms_slot slot;
static evaluate *next_evaluate;
static bool chained; /* somebody stood on us when we left: they may still call us */
static _Atomic int awake;
static int number_at = -1, maker_at = -1; /* bytes into a Node */
static int function_at = -1;              /* bytes into a custom Function's Python object: its Node */
static _Atomic uint64_t evaluated;        /* counted only on the way to a proof */
static _Atomic int counting;

static uint64_t word_at(const void *node, int offset)
{
    return __atomic_load_n((const uint64_t *)((const char *)node + offset), __ATOMIC_RELAXED);
}

struct running {
    ms_thread *thread;
    uint64_t leaf; /* whose gradient the node accumulates, or 0 */
    uint64_t grad; /* what it was before */
    ms_path owner;
};

static void node_left(struct running *running)
{
    if (!running->thread)
        return;
    if (UNLIKELY(running->leaf)) {
        uint64_t grad = mst_grad_of(running->leaf);
        if (grad && grad != running->grad)
            mst_claim_gradient(grad, running->owner);
    }
    ms_node_leave(running->thread, mst_torch.peek());
}

/* A node without a number accumulates a leaf's gradient: it is the leaf's owner's. */
static void enter_accumulation(struct running *running, ms_thread *thread, const void *node)
{
    bool known = mst_layout.variable >= 0 && word_at(node, 0) == mst_accumulate;
    uint64_t leaf =
        known && atomic_load_explicit(&mst_gradients_to, memory_order_relaxed) ? word_at(node, mst_layout.variable) : 0;
    if (leaf && mst_owner_of(leaf, &running->owner)) {
        running->leaf = leaf;
        running->grad = mst_grad_of(leaf);
        ms_node_enter_as(thread, running->owner, mst_torch.peek());
    } else {
        ms_node_enter(thread, word_at(node, maker_at), MS_NO_NUMBER, mst_torch.peek());
    }
}

static void node_place(void *engine, void *task, void *node, void *inputs, void *queue)
{
    struct running running __attribute__((cleanup(node_left))) = {0};
    if (atomic_load_explicit(&awake, memory_order_relaxed)) {
        ms_thread *thread = mst_here();
        if (LIKELY(thread != NULL)) {
            uint64_t number = word_at(node, number_at);
            if (LIKELY(number != MS_NO_NUMBER))
                ms_node_enter(thread, word_at(node, maker_at), number, mst_torch.peek());
            else
                enter_accumulation(&running, thread, node);
            running.thread = thread;
        }
    }
    if (UNLIKELY(atomic_load_explicit(&counting, memory_order_relaxed)))
        atomic_fetch_add_explicit(&evaluated, 1, memory_order_relaxed);
    next_evaluate(engine, task, node, inputs, queue);
}

/* Whether a node still comes through us under whoever stands in the slot now. */
static bool reachable(void)
{
    PyObject *places = PyImport_ImportModule("modscope._probes");
    uint64_t before = atomic_load(&evaluated);
    atomic_store(&counting, 1);
    PyObject *result = places ? PyObject_CallMethod(places, "run_one_node", NULL) : NULL;
    atomic_store(&counting, 0);
    Py_XDECREF(places);
    Py_XDECREF(result);
    PyErr_Clear();
    return atomic_load(&evaluated) != before;
}

int mst_nodes_on(void)
{
    ms_function now = ms_slot_read(&slot);
    if (now != (ms_function)node_place && !(chained && reachable())) {
        next_evaluate = (evaluate *)now;
        chained = false;
        int error = ms_slot_write(&slot, (ms_function)node_place);
        if (error) {
            PyErr_Format(PyExc_RuntimeError, "the place of backward nodes cannot be written (error %d)", error);
            return -1;
        }
    }
    atomic_store(&awake, 1);
    return 0;
}

void mst_nodes_off(void)
{
    atomic_store(&awake, 0);
    if (!slot.address)
        return;
    if (ms_slot_read(&slot) == (ms_function)node_place)
        ms_slot_write(&slot, (ms_function)next_evaluate);
    else
        chained = true;
}

/* ---- a node's Python object ---- */

/* The Node behind a Python object; NULL where a custom Function keeps it is not known. */
static const void *node_behind(PyObject *object)
{
    bool custom = PyObject_TypeCheck(object, mst_torch.function_base);
    int at = custom ? function_at : (int)sizeof(PyObject);
    return at >= 0 ? *(void **)((char *)object + at) : NULL;
}

static bool number_of(PyObject *object, uint64_t *number)
{
    PyObject *value = PyObject_CallMethodNoArgs(object, mst_words._sequence_nr);
    *number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    bool good = !PyErr_Occurred();
    PyErr_Clear();
    return good;
}

ms_path mst_path_of_node(PyObject *object)
{
    uint64_t number;
    if (!number_of(object, &number))
        return MS_UNKNOWN;
    const void *node = maker_at >= 0 ? node_behind(object) : NULL;
    return ms_node_path(mst_watch, node ? word_at(node, maker_at) : MS_ANY_THREAD, number);
}

bool mst_node_is_mine(PyObject *object)
{
    const void *node = maker_at >= 0 ? node_behind(object) : NULL;
    return !node || word_at(node, maker_at) == mst_torch.thread_id();
}

/* ---- learning and proving, from Python ---- */
static PyObject *find_slot(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    if (!mst_torch.peek || !mst_torch.thread_id)
        return PyUnicode_FromString("torch does not export its sequence numbers or thread ids");
    int error = ms_slot_find("libtorch_cpu", EVALUATE, &slot);
    if (error)
        return PyUnicode_FromFormat("no slot of Engine::evaluate_function in libtorch_cpu (error %d)", error);
    Py_RETURN_NONE;
}

static PyObject *list_of_words(const uint64_t *words, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *word = PyLong_FromUnsignedLongLong(words[i]);
        if (!word)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, word);
    }
    return list;
}

static PyObject *object_words(PyObject *self, PyObject *object)
{
    (void)self;
    return list_of_words((const uint64_t *)object, (size_t)Py_TYPE(object)->tp_basicsize / 8);
}

/* Any address may be asked for: what cannot be read is no node. */
static PyObject *words_at(PyObject *self, PyObject *address)
{
    (void)self;
    uint64_t words[NODE_BYTES / 8];
    unsigned long long at = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred())
        return NULL;
    return list_of_words(words, ms_peek((uintptr_t)at, words, sizeof words) ? NODE_BYTES / 8 : 0);
}

static PyObject *set_layout(PyObject *self, PyObject *args)
{
    (void)self;
    int number, maker, function;
    if (!PyArg_ParseTuple(args, "iii", &number, &maker, &function))
        return NULL;
    if (number >= NODE_BYTES || maker >= NODE_BYTES || (number >= 0 && number % 8) || (maker >= 0 && maker % 8)) {
        PyErr_SetString(PyExc_ValueError, "an offset is a multiple of 8 below 128, or -1");
        return NULL;
    }
    number_at = number;
    maker_at = maker;
    function_at = function;
    Py_RETURN_NONE;
}

static PyObject *thread_id(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(mst_torch.thread_id ? mst_torch.thread_id() : 0);
}

static PyObject *next_number(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyLong_FromUnsignedLongLong(mst_torch.peek ? mst_torch.peek() : 0);
}

static PyObject *nodes_standing(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return PyBool_FromLong(slot.address && ms_slot_read(&slot) == (ms_function)node_place);
}

PyMethodDef mst_nodes_methods[] = {
    {"find_slot", find_slot, METH_NOARGS, "Find the place of backward nodes; None, or why it is not there."},
    {"object_words", object_words, METH_O, "The words that a node's Python object is made of."},
    {"words_at", words_at, METH_O, "The words at an address where a node may be; [] if there is no memory."},
    {"set_layout", set_layout, METH_VARARGS,
     "Where a node keeps its number and its maker, and a custom Function its node; -1: not known."},
    {"thread_id", thread_id, METH_NOARGS, "torch's id of this thread."},
    {"next_number", next_number, METH_NOARGS, "The number this thread's next node will get."},
    {"nodes_standing", nodes_standing, METH_NOARGS, "Whether the place of backward nodes is taken now."},
    {NULL, NULL, 0, NULL},
};
