/* running_operator.c - the operator of torch's dispatcher that runs on this thread, where modscope runs it itself: for
 * the dispatcher as the source of blocks, and on the virtual device, whose kernels are wrapped here. */
#include "torch/api/api.h"
#include "torch/blocks/blocks.h"
#include "torch/process/process.h"
#include "torch/virtual/virtual.h"

#include <stdlib.h>
#include <string.h>

MST_THREAD_LOCAL const char *mst_running_operator;

/* A dict: "aten::add.Tensor" -> "aten::add". Nothing is removed from it, so the texts can be read without the GIL, and
 * their addresses identify them. */
static PyObject *names;

/* The text of a name that is in the dict from now on; NULL with an error set. */
static const char *intern_name(PyObject *full)
{
    PyObject *known = names ? PyDict_GetItemWithError(names, full) : NULL;
    if (known || PyErr_Occurred())
        return known ? PyUnicode_AsUTF8(known) : NULL;
    const char *text = PyUnicode_AsUTF8(full);
    const char *space = text ? strstr(text, "::") : NULL, *overload = space ? strchr(space, '.') : NULL;
    if (!text || (!names && !(names = PyDict_New())))
        return NULL;
    PyObject *name = PyUnicode_FromStringAndSize(text, overload ? overload - text : (Py_ssize_t)strlen(text));
    if (name)
        PyUnicode_InternInPlace(&name); /* overloads share it */
    const char *interned = name ? PyUnicode_AsUTF8(name) : NULL;
    if (interned && PyDict_SetItem(names, full, name) != 0)
        interned = NULL;
    Py_XDECREF(name);
    return interned;
}

const char *mst_operator_name(PyObject *operator)
{
    PyObject *full = PyObject_CallMethodNoArgs(operator, mst.interned.name);
    const char *name = full && PyUnicode_Check(full) ? intern_name(full) : NULL;
    Py_XDECREF(full);
    if (!name)
        mst_clear_error();
    return name;
}

/* ---- operators in forwards of modules, for captures ---- */

/* What an operator does beside returning new tensors: a function of its full name; NULL: no operators are noted. */
static PyObject *flags_of_name;
/* A dict: "aten::add.Tensor" -> a capsule with an ms_operator, which is never freed. */
static PyObject *noted_operators;

static PyObject *new_noted(PyObject *full)
{
    PyObject *flags = PyObject_CallOneArg(flags_of_name, full), *capsule = NULL;
    unsigned long bits = flags ? PyLong_AsUnsignedLong(flags) : 0;
    const char *text = PyErr_Occurred() ? NULL : PyUnicode_AsUTF8(full);
    char *name = text ? strdup(text) : NULL;
    ms_operator *noted = name ? malloc(sizeof *noted) : NULL;
    if (noted) {
        *noted = (ms_operator){name, (uint32_t)bits};
        capsule = PyCapsule_New(noted, NULL, NULL);
    }
    if (!capsule || PyDict_SetItem(noted_operators, full, capsule) != 0) {
        free(noted);
        free(name);
        Py_CLEAR(capsule);
    }
    Py_XDECREF(flags);
    return capsule;
}

/* The operator with this full name; NULL: it is not noted. */
static const ms_operator *noted_operator(PyObject *full)
{
    if (!noted_operators)
        noted_operators = PyDict_New();
    PyObject *known = noted_operators ? PyDict_GetItemWithError(noted_operators, full) : NULL;
    if (!known && noted_operators && !PyErr_Occurred() && (known = new_noted(full)))
        Py_DECREF(known); /* the dict has it */
    const ms_operator *noted = known ? PyCapsule_GetPointer(known, NULL) : NULL;
    mst_clear_error();
    return noted;
}

/* Whether the thread runs a forward of a module that is captured. */
static bool notes_operators(const ms_thread *thread)
{
    return flags_of_name && mst.ledger && ms_ledger_is_captured(mst.ledger) && thread &&
           ms_thread_phase(thread) == MS_FORWARD && ms_thread_path(thread) != MS_GLOBAL;
}

static uint64_t address_of(PyObject *tensor)
{
    struct mst_storage storage;
    return PyObject_TypeCheck(tensor, mst.torch.tensor) && mst_layout_is_known() &&
                   mst_read_storage(mst_impl_of(tensor), &storage)
               ? storage.data
               : 0;
}

static PyObject *note_operators(PyObject *self, PyObject *function)
{
    (void)self;
    Py_XDECREF(flags_of_name);
    flags_of_name = function == Py_None ? NULL : Py_NewRef(function);
    Py_RETURN_NONE;
}

/* ---- kernels of the virtual device ---- */

struct kernel {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function;
    PyObject *check;   /* called with the same arguments first, where one of them is a tensor of the CPU; or NULL */
    const char *name;  /* NULL: the kernel is for any operator, which is its first argument */
    PyObject *full;    /* the name with the overload, or NULL */
    bool is_composite; /* it is made of other operators, which have names of their own */
};

static bool interpreter_ends(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static Py_ssize_t number_of_arguments(size_t count, PyObject *keywords)
{
    return PyVectorcall_NARGS(count) + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
}

static bool is_on_cpu(PyObject *object)
{
    struct mst_storage storage;
    return PyObject_TypeCheck(object, mst.torch.tensor) && mst_layout_is_known() &&
           mst_read_storage(mst_impl_of(object), &storage) && storage.device_type == MST_CPU;
}

/* Whether an argument, or an item of one that is a list, is a tensor of the CPU. */
static bool any_on_cpu(PyObject *const *args, Py_ssize_t count)
{
    bool found = false;
    for (Py_ssize_t i = 0; i < count && !found; i++) {
        found = is_on_cpu(args[i]);
        if (!found && (PyList_CheckExact(args[i]) || PyTuple_CheckExact(args[i])))
            for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(args[i]) && !found; k++)
                found = is_on_cpu(PySequence_Fast_GET_ITEM(args[i], k));
    }
    return found;
}

/* The index of the device that an argument says: a torch.device, a tensor of the virtual devices, or a list of such.
 * -1: none. */
static int device_in(PyObject *argument)
{
    struct mst_storage storage;
    if (PyObject_TypeCheck(argument, mst.torch.tensor))
        return mst_read_storage(mst_impl_of(argument), &storage) && storage.device_type == MST_CUDA
                   ? storage.device_index
                   : -1;
    if (strcmp(Py_TYPE(argument)->tp_name, "torch.device") == 0) {
        const int8_t *device = (const int8_t *)argument + sizeof(PyObject); /* c10::Device */
        return device[0] == MST_CUDA ? device[1] : -1;
    }
    int found = -1;
    bool is_list = PyList_CheckExact(argument) || PyTuple_CheckExact(argument);
    for (Py_ssize_t i = 0; is_list && found < 0 && i < PySequence_Fast_GET_SIZE(argument); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(argument, i);
        if (!PyObject_TypeCheck(item, mst.torch.tensor) && item != Py_None)
            break; /* a list of numbers */
        found = device_in(item);
    }
    return found;
}

/* False with an error set if torch would refuse the arguments. The check may import and read files, which nobody can
 * while the interpreter ends. */
static bool may_run(const struct kernel *kernel, PyObject *const *args, size_t count, PyObject *keywords)
{
    if (LIKELY(!kernel->check || !any_on_cpu(args, number_of_arguments(count, keywords))) || interpreter_ends())
        return true;
    PyObject *checked = PyObject_Vectorcall(kernel->check, args, count, keywords);
    Py_XDECREF(checked);
    return checked != NULL;
}

/* While the interpreter ends, torch cannot free the Python object of a tensor that C++ still has: it would abort the
 * process. So what a kernel gets and returns then is kept. */
static void keep_while_ending(PyObject *const *args, Py_ssize_t count, PyObject *result)
{
    for (Py_ssize_t i = 0; i < count; i++)
        Py_INCREF(args[i]);
    Py_XINCREF(result);
}

/* The device on which an operator runs, as torch's own kernels choose it: that of `device=`, or else that of its first
 * tensor. -1: the current one. */
static int device_of_call(PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    int found = -1;
    Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named && found < 0; i++)
        if (strcmp(Py_TYPE(args[count + i])->tp_name, "torch.device") == 0)
            found = device_in(args[count + i]);
    for (Py_ssize_t i = 0; i < count + named && found < 0; i++)
        found = device_in(args[i]);
    return found;
}

static const ms_operator *operator_of_call(const struct kernel *kernel, PyObject *const *args, size_t count)
{
    PyObject *full = kernel->full || !PyVectorcall_NARGS(count) ? Py_XNewRef(kernel->full)
                                                                : PyObject_CallMethodNoArgs(args[0], mst.interned.name);
    const ms_operator *noted = full && PyUnicode_Check(full) ? noted_operator(full) : NULL;
    Py_XDECREF(full);
    mst_clear_error();
    return noted;
}

/* Call the kernel's function, and note the operator for captures. */
static PyObject *run_and_note(const struct kernel *kernel, PyObject *const *args, size_t count, PyObject *keywords)
{
    const ms_thread *thread = mst_this_thread;
    const ms_operator *noted =
        !kernel->is_composite && notes_operators(thread) ? operator_of_call(kernel, args, count) : NULL;
    if (!noted)
        return PyObject_Vectorcall(kernel->function, args, count, keywords);
    uint64_t before = ms_captured_events(mst.ledger);
    double busy = mst_virtual_clock_busy();
    PyObject *result = PyObject_Vectorcall(kernel->function, args, count, keywords);
    bool is_view = (noted->flags & (MS_OPERATOR_VIEW | MS_OPERATOR_IN_PLACE)) == MS_OPERATOR_VIEW;
    Py_ssize_t changed = kernel->name ? 0 : 1; /* the first argument of the operator */
    if (result && !is_view && notes_operators(thread))
        ms_operator_note(mst.ledger, thread, noted, before, (uint64_t)(mst_virtual_clock_busy() - busy),
                         PyVectorcall_NARGS(count) > changed ? address_of(args[changed]) : 0);
    return result;
}

/* An operator that runs inside another one's kernel is a part of it, and not checked. */
static PyObject *run_kernel(const struct kernel *kernel, PyObject *const *args, size_t count, PyObject *keywords)
{
    if (mst_running_operator)
        return PyObject_Vectorcall(kernel->function, args, count, keywords);
    if (!may_run(kernel, args, count, keywords))
        return NULL;
    if (!kernel->is_composite)
        mst_running_operator = kernel->name || !PyVectorcall_NARGS(count) ? kernel->name : mst_operator_name(args[0]);
    PyObject *result = run_and_note(kernel, args, count, keywords);
    mst_running_operator = NULL;
    return result;
}

/* Where a compiled function calls an operator, dynamo would compile the Python code of its kernel: a real one is C++.
 */
static PyObject *call_kernel(PyObject *self, PyObject *const *args, size_t count, PyObject *keywords)
{
    int device = mst_virtual_count() > 1 ? device_of_call(args, PyVectorcall_NARGS(count), keywords) : -1;
    int previous = mst_virtual_set_device(device);
    PyObject *callback = mst_dynamo_disable();
    PyObject *result = run_kernel((const struct kernel *)self, args, count, keywords);
    mst_dynamo_restore(callback);
    mst_virtual_set_device(previous);
    if (UNLIKELY(interpreter_ends()))
        keep_while_ending(args, number_of_arguments(count, keywords), result);
    return result;
}

static void kernel_dealloc(struct kernel *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->function);
    Py_CLEAR(self->check);
    Py_CLEAR(self->full);
    PyObject_GC_Del(self);
}

static int kernel_traverse(struct kernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->check);
    return 0;
}

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "modscope._native.Kernel",
    .tp_basicsize = sizeof(struct kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(struct kernel, call),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_traverse = (traverseproc)kernel_traverse,
};

static PyObject *operator_kernel(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *function, *name = Py_None, *check = Py_None;
    int is_composite = false;
    if (!PyArg_ParseTuple(args, "O|OOp", &function, &name, &check, &is_composite))
        return NULL;
    const char *text = name == Py_None ? NULL : intern_name(name);
    if (name != Py_None && !text)
        return NULL;
    struct kernel *kernel = PyObject_GC_New(struct kernel, &kernel_type);
    if (!kernel)
        return NULL;
    kernel->call = call_kernel;
    kernel->function = Py_NewRef(function);
    kernel->check = check == Py_None ? NULL : Py_NewRef(check);
    kernel->name = text;
    kernel->full = text ? Py_NewRef(name) : NULL;
    kernel->is_composite = is_composite;
    PyObject_GC_Track(kernel);
    return (PyObject *)kernel;
}

int mst_running_operator_init(void)
{
    return PyType_Ready(&kernel_type);
}

PyMethodDef mst_running_operator_methods[] = {
    {"operator_kernel", operator_kernel, METH_VARARGS,
     "operator_kernel(function, name=None, check=None, is_composite=False): a kernel that calls the function, while\n"
     "the device of the operator is the current one. Blocks that it makes know the operator's name; without one, the\n"
     "operator is the first argument. A composite operator's blocks are those of the operators of which it is made.\n"
     "`check` is called with the same arguments first, where one of them is a tensor of the CPU."},
    {"note_operators", note_operators, METH_O,
     "note_operators(flags): captures have the operators that run in forwards of modules. `flags` is called with the\n"
     "full name of each and returns what it does: 1 it changes a tensor in place, 2 it returns a view, 4 it draws\n"
     "random numbers. None: captures have none."},
    {NULL, NULL, 0, NULL},
};
