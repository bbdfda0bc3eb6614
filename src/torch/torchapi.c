/* torchapi.c - what the extension uses of torch, by name, once. */
#include "torch/native.h"

#include "interpose/slot.h"

struct mst_torch mst_torch;
struct mst_words mst_words;

/* Follow a dotted path of attributes from an imported module. New reference. */
static PyObject *look_up(const char *module, const char *path)
{
    PyObject *object = PyImport_ImportModule(module);
    char word[64];
    while (object && *path) {
        size_t length = 0;
        while (path[length] && path[length] != '.' && length + 1 < sizeof word) {
            word[length] = path[length];
            length++;
        }
        word[length] = 0;
        path += length + (path[length] == '.');
        Py_SETREF(object, PyObject_GetAttrString(object, word));
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

static PyCodeObject *code_of(PyObject *function)
{
    PyObject *code = function ? PyObject_GetAttrString(function, "__code__") : NULL;
    PyErr_Clear();
    Py_XDECREF(function);
    return (PyCodeObject *)code;
}

/* What runs every optimizer's step: the one code object behind all wrapped step functions. */
static PyCodeObject *code_of_step(void)
{
    PyObject *wrap = look_up_or_null("torch.optim", "Optimizer.profile_hook_step");
    PyObject *step = wrap ? PyObject_CallOneArg(wrap, mst_torch.call_impl) : NULL;
    Py_XDECREF(wrap);
    return code_of(step);
}

static int look_up_needed(void)
{
    const struct {
        PyObject **where;
        const char *module, *path;
    } needed[] = {
        {(PyObject **)&mst_torch.module, "torch.nn", "Module"},
        {(PyObject **)&mst_torch.tensor, "torch", "Tensor"},
        {(PyObject **)&mst_torch.parameter, "torch.nn", "Parameter"},
        {(PyObject **)&mst_torch.ordered_dict, "collections", "OrderedDict"},
        {(PyObject **)&mst_torch.function_base, "torch._C", "_FunctionBase"},
        {&mst_torch.strided, "torch", "strided"},
        {&mst_torch.call_impl, "torch.nn", "Module._call_impl"},
        {&mst_torch.graph_task_id, "torch._C", "_current_graph_task_id"},
        {&mst_torch.current_node, "torch._C", "_current_autograd_node"},
        {&mst_torch.will_execute, "torch._C", "_will_engine_execute_node"},
        {&mst_torch.queue_callback, "torch.autograd", "Variable._execution_engine.queue_callback"},
        {&mst_torch.grad_enabled, "torch._C", "is_grad_enabled"},
        {&mst_torch.disable_torch_function, "torch._C", "DisableTorchFunction"},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        *needed[i].where = look_up(needed[i].module, needed[i].path);
        if (!*needed[i].where)
            return -1;
    }
    return 0;
}

int mst_torch_load(void)
{
#define X(word)                                                \
    if (!(mst_words.word = PyUnicode_InternFromString(#word))) \
        return -1;
    MST_WORDS(X)
#undef X
    if (look_up_needed() != 0) {
        PyErr_Format(PyExc_ImportError, "modscope: this torch lacks something modscope needs; "
                                        "install torch 2.4 or newer");
        return -1;
    }
    mst_torch.set_eval_frame = look_up_or_null("torch._C._dynamo.eval_frame", "set_eval_frame");
    mst_torch.function_modes = look_up_or_null("torch._C", "_len_torch_function_stack");
    mst_torch.graph_module = (PyTypeObject *)look_up_or_null("torch.fx", "GraphModule");
    mst_torch.pytree_nodes = look_up_or_null("torch.utils._pytree", "SUPPORTED_NODES");
    mst_torch.call_code = code_of(Py_NewRef(mst_torch.call_impl));
    mst_torch.optimizer_code = code_of_step();
    mst_torch.backward_code = code_of(look_up_or_null("torch.autograd.graph", "_engine_run_backward"));
    mst_torch.peek = (uint64_t(*)(void))ms_symbol_find("libtorch_cpu", "_ZN2at15sequence_number4peekEv");
    mst_torch.thread_id =
        (uint64_t(*)(void))ms_symbol_find("libtorch_cpu", "_ZN2at14RecordFunction15currentThreadIdEv");
    PyErr_Clear();
    return 0;
}

long long mst_graph_task(void)
{
    PyObject *id = PyObject_CallNoArgs(mst_torch.graph_task_id);
    long long value = id ? PyLong_AsLongLong(id) : -1;
    Py_XDECREF(id);
    if (value == -1 && PyErr_Occurred())
        PyErr_Clear();
    return value;
}

PyObject *mst_current_node(void)
{
    PyObject *node = PyObject_CallNoArgs(mst_torch.current_node);
    if (!node)
        PyErr_Clear();
    else if (node == Py_None)
        Py_CLEAR(node);
    return node;
}

void mst_forget_error(void)
{
    bool interrupted = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    PyErr_Clear();
    if (interrupted)
        PyErr_SetInterrupt();
}
