/* torch_lookup.c - look up the objects of torch that the extension uses, by name, at import. */
#include "torch/process/process.h"

#include "interpose/elf_slot.h"

/* Import a module and follow a dotted path of attributes. New reference, or NULL with an error set. */
static PyObject *look_up(const char *module, const char *path)
{
    PyObject *object = PyImport_ImportModule(module);
    char name[64];
    while (object && *path) {
        size_t length = 0;
        while (path[length] && path[length] != '.' && length + 1 < sizeof name) {
            name[length] = path[length];
            length++;
        }
        name[length] = 0;
        path += length + (path[length] == '.');
        Py_SETREF(object, PyObject_GetAttrString(object, name));
    }
    return object;
}

static PyObject *look_up_or_null(const char *module, const char *path)
{
    PyObject *object = look_up(module, path);
    if (!object)
        PyErr_Clear();
    return object;
}

/* The code object of a Python function, or NULL. Consumes the reference to the function. */
static PyCodeObject *code_of(PyObject *function)
{
    PyObject *code = function ? PyObject_GetAttrString(function, "__code__") : NULL;
    PyErr_Clear();
    Py_XDECREF(function);
    return (PyCodeObject *)code;
}

/* The code object that runs every optimizer step: all wrapped step functions share it. */
static PyCodeObject *code_of_optimizer_step(void)
{
    PyObject *wrap = look_up_or_null("torch.optim", "Optimizer.profile_hook_step");
    PyObject *step = wrap ? PyObject_CallOneArg(wrap, mst.torch.call_impl) : NULL;
    Py_XDECREF(wrap);
    return code_of(step);
}

static int look_up_required(void)
{
    const struct {
        PyObject **target;
        const char *module, *path;
    } required[] = {
        {(PyObject **)&mst.torch.module, "torch.nn", "Module"},
        {(PyObject **)&mst.torch.tensor, "torch", "Tensor"},
        {(PyObject **)&mst.torch.parameter, "torch.nn", "Parameter"},
        {(PyObject **)&mst.torch.ordered_dict, "collections", "OrderedDict"},
        {(PyObject **)&mst.torch.function_base, "torch._C", "_FunctionBase"},
        {&mst.torch.grad, "torch", "Tensor.grad"},
        {&mst.torch.strided, "torch", "strided"},
        {&mst.torch.call_impl, "torch.nn", "Module._call_impl"},
        {&mst.torch.graph_task_id, "torch._C", "_current_graph_task_id"},
        {&mst.torch.current_node, "torch._C", "_current_autograd_node"},
        {&mst.torch.will_execute, "torch._C", "_will_engine_execute_node"},
        {&mst.torch.queue_callback, "torch.autograd", "Variable._execution_engine.queue_callback"},
        {&mst.torch.grad_enabled, "torch._C", "is_grad_enabled"},
        {&mst.torch.disable_torch_function, "torch._C", "DisableTorchFunction"},
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        *required[i].target = look_up(required[i].module, required[i].path);
        if (!*required[i].target)
            return -1;
    }
    return 0;
}

int mst_torch_load(void)
{
#define X(string)                                                     \
    if (!(mst.interned.string = PyUnicode_InternFromString(#string))) \
        return -1;
    MST_INTERNED(X)
#undef X
    if (look_up_required() != 0) {
        PyErr_Format(PyExc_ImportError, "modscope: this torch lacks an attribute that modscope needs; "
                                        "install torch 2.5 or newer");
        return -1;
    }
    mst.torch.set_eval_frame = look_up_or_null("torch._C._dynamo", "eval_frame.set_eval_frame");
    mst.torch.graph_module = (PyTypeObject *)look_up_or_null("torch.fx", "GraphModule");
    mst.torch.pytree_nodes = look_up_or_null("torch.utils._pytree", "SUPPORTED_NODES");
    mst.torch.call_code = code_of(Py_NewRef(mst.torch.call_impl));
    mst.torch.optimizer_code = code_of_optimizer_step();
    mst.torch.backward_code = code_of(look_up_or_null("torch.autograd.graph", "_engine_run_backward"));
    mst.torch.next_node_number =
        (uint64_t(*)(void))ms_elf_symbol_find("libtorch_cpu", "_ZN2at15sequence_number4peekEv");
    mst.torch.thread_id =
        (uint64_t(*)(void))ms_elf_symbol_find("libtorch_cpu", "_ZN2at14RecordFunction15currentThreadIdEv");
    PyErr_Clear();
    return 0;
}

bool mst_grad_enabled(void)
{
    PyObject *enabled = PyObject_CallNoArgs(mst.torch.grad_enabled);
    if (!enabled)
        PyErr_Clear();
    Py_XDECREF(enabled);
    return enabled != Py_False;
}

long long mst_graph_task_id(void)
{
    PyObject *id = PyObject_CallNoArgs(mst.torch.graph_task_id);
    long long value = id ? PyLong_AsLongLong(id) : -1;
    Py_XDECREF(id);
    if (value == -1 && PyErr_Occurred())
        PyErr_Clear();
    return value;
}

PyObject *mst_current_node(void)
{
    PyObject *node = PyObject_CallNoArgs(mst.torch.current_node);
    if (!node)
        PyErr_Clear();
    else if (node == Py_None)
        Py_CLEAR(node);
    return node;
}
